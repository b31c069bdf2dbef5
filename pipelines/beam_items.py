"""Does independent items of work on a Beam runner, or in processes of this machine; each leaves its own files.

Nothing comes back but errors: whoever wants the results reads the files, which are the same whoever wrote them. So
items may be done twice or begun anew, and what an earlier run finished is found and passed over.
"""

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

from gristmill.formats.errors import MissingExtraError, SettingsError
from gristmill.pipelines.item_pool import ItemPool, usable_cores

__all__ = ["do_items", "do_items_on_beam"]


def do_items(
    work: Callable[[Any], str], items: Sequence[Any], *, workers: int | None = None, say: Callable[[str], None] = print
) -> None:
    """Does items in processes of this machine, or in this one where a single worker does.

    Args:
        work: does an item and tells of it in a line; a function of a module, pickled by name.
        items: what to do.
        workers: processes; None takes one per core, and never more than there are items.
        say: takes the lines as items are done.

    Raises:
        SettingsError: `workers` is below 1.
        Exception: whatever an item raised; those not begun are not begun any more.
    """
    if workers is not None and workers < 1:
        raise SettingsError(f"--max-workers {workers}: at least 1 is needed")
    count = min(workers or usable_cores(), len(items))
    if count < 2:
        for item in items:
            say(work(item))
        return
    with ItemPool(count) as pool:
        pool.map(work, items, done=say)


def do_items_on_beam(
    work: Callable[[Any], str], items: Sequence[Any], runner: str, flags: Sequence[str], *, verbose: bool = False
) -> None:
    """Does items on a Beam runner and waits for the end.

    Args:
        work: does an item; a function of a module, pickled by name.
        items: what to do.
        runner: name of a Beam runner.
        flags: Beam's pipeline options as on a command line.
        verbose: whether Beam's own log is shown.

    Raises:
        MissingExtraError: Beam is not installed.
        SettingsError: Beam knows no such runner or option.
        GristmillError: what an item raised.
    """
    if importlib.util.find_spec("apache_beam") is None:
        raise MissingExtraError("apache-beam", "prepare", f"--runner {runner}")
    from gristmill.pipelines.beam_quiet import quiet
    from gristmill.pipelines.beam_runners import run_pipeline

    with quiet(verbose=verbose):
        import apache_beam as beam

        def build(pipeline: Any) -> None:
            pipeline | "Items" >> beam.Create(list(items)) | "Spread" >> beam.Reshuffle() | "Work" >> beam.Map(work)

        run_pipeline(build, runner, flags, verbose=verbose)
