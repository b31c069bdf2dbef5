"""Beam's runner for Dask, with what it lacks: items spread over workers, side inputs computed once, a local cluster.

Beam passes over Reshuffle, so that all items of a stage would lie in one partition and be done by one process, and has
a worker that needs a side input compute it anew with all that led to it. Both are put right here where Beam translates
its steps to bags. Dask tries the items of a worker that died on others, so such a death does not end a run.
"""

import contextlib
import logging
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

import apache_beam as beam
import dask
import distributed
from apache_beam.runners.common import DoFnContext, DoFnInvoker, DoFnSignature, _OutputHandler
from apache_beam.runners.dask.dask_runner import DaskOptions, DaskRunner, DaskRunnerResult
from apache_beam.runners.dask.overrides import _GroupByKeyOnly, _Reshuffle, dask_overrides
from apache_beam.runners.dask.transform_evaluator import (
    TRANSLATIONS,
    DaskBagOp,
    GroupByKey,
    OneReceiver,
    get_windowed_value,
)
from apache_beam.transforms.sideinputs import SideInputMap
from dask.bag import Bag
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.utils import key_split

from gristmill import __version__
from gristmill.formats.errors import DataError, GristmillError, SettingsError

__all__ = ["dask_error", "GristmillDaskRunner"]

_NAME = "DaskRunner"
_PIECES_PER_THREAD = 4
_LOOK_SECONDS = 10.0
_OWN_PATIENCE_SECONDS = 90.0
_PATIENCE_SECONDS = 900.0  # a cluster that grows on demand may have none at first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What a worker needs to know of a ParDo."""

    fn: Any
    label: str
    window_fn: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    views: tuple[tuple[Any, Any, Any], ...]


class _ParDo(DaskBagOp):  # type: ignore[misc]  # Beam ships no types
    """A ParDo over the partitions of a bag; a side input is a value that Dask computes before, once."""

    def apply(self, input_bag: Any, side_inputs: Sequence[Any] | None = None) -> Any:
        """The bag of what the step gives."""
        transform = self.transform
        args, kwargs = transform.raw_side_inputs
        windowing = next(iter(self.applied.main_inputs.values())).windowing
        sides = list(side_inputs or ())
        step = _Step(
            fn=transform.fn,
            label=transform.label,
            window_fn=windowing.windowfn,
            args=tuple(args),
            kwargs=kwargs,
            views=tuple((side._view_class, side._view_options, side._iterable.window_fn) for side in sides),  # noqa: SLF001 - Beam offers no other way to them
        )
        bags = [side._iterable.bag for side in sides]  # noqa: SLF001 - as above
        values = [[(bag.name, number) for number in range(bag.npartitions)] for bag in bags]
        name = f"{self.applied.full_label}-{tokenize(step, input_bag.name, values)}"
        tasks = {(name, n): (_do_bundle, (input_bag.name, n), step, values) for n in range(input_bag.npartitions)}
        graph = HighLevelGraph.from_collections(name, tasks, dependencies=[input_bag, *bags])
        return Bag(graph, name, input_bag.npartitions)


def _do_bundle(items: Iterable[Any], step: _Step, sides: Sequence[Sequence[Iterable[Any]]]) -> list[Any]:
    """Does the items of a partition; nothing is kept between two partitions or two attempts."""
    received = OneReceiver()
    handler = _OutputHandler(
        window_fn=step.window_fn,
        main_receivers=received[None],
        tagged_receivers=received,
        per_element_output_counter=None,
        output_batch_converter=None,
        process_yields_batches=False,
        process_batch_yields_elements=False,
    )
    views = [
        SideInputMap(view, options, [get_windowed_value(value, window_fn) for part in parts for value in part])
        for (view, options, window_fn), parts in zip(step.views, sides, strict=True)
    ]
    invoker = DoFnInvoker.create_invoker(
        DoFnSignature(step.fn),
        handler,
        context=DoFnContext(step.label, state=None),
        side_inputs=views,
        input_args=list(step.args),
        input_kwargs=step.kwargs,
        user_state_context=None,
        bundle_finalizer_param=beam.DoFn.BundleFinalizerParam(),
    )
    invoker.invoke_setup()
    invoker.invoke_start_bundle()
    for item in items:
        invoker.invoke_process(get_windowed_value(item, step.window_fn))
    invoker.invoke_finish_bundle()
    invoker.invoke_teardown()
    return [value.value for value in received.values]


def _threads() -> int:
    return max(2, sum(map(int, distributed.get_client().nthreads().values())))


class _Spread(DaskBagOp):  # type: ignore[misc]  # Beam ships no types
    """A Reshuffle: deals what lies in few partitions to as many as keep all workers busy."""

    def apply(self, input_bag: Any, side_inputs: Any = None) -> Any:  # noqa: ARG002 - Beam names the argument
        """The same elements in more partitions."""
        pieces = self.bag_kwargs.get("npartitions") or _PIECES_PER_THREAD * _threads()
        return input_bag if input_bag.npartitions >= pieces else input_bag.repartition(npartitions=pieces)


class _Group(GroupByKey):  # type: ignore[misc]  # Beam ships no types
    """A GroupByKey between no more partitions than there are threads: Dask makes as many tasks as their square."""

    def apply(self, input_bag: Any, side_inputs: Any = None) -> Any:
        """The groups."""
        threads = _threads()
        fewer = input_bag if input_bag.npartitions <= threads else input_bag.repartition(npartitions=threads)
        return super().apply(fewer, side_inputs)


TRANSLATIONS[beam.ParDo] = _ParDo
TRANSLATIONS[_GroupByKeyOnly] = _Group
TRANSLATIONS[_Reshuffle] = _Spread


class _Result(DaskRunnerResult):  # type: ignore[misc]  # Beam ships no types
    """A run that takes its client, and the cluster if it has one of its own, down when it ends."""

    closing: contextlib.ExitStack
    patience: float

    def wait_until_finish(self, duration: int | None = None) -> str:
        """Waits for the end, in milliseconds if not for ever; raises what a worker raised."""
        with self.closing:
            if duration is None:
                _await(self.client, self.futures, self.patience)
            state: str = super().wait_until_finish(duration)
            lost = [future.status for future in self.futures if future.status != "finished"]
            if lost and duration is None:  # which Beam takes for done
                raise DataError(
                    f"Dask gave the run up as {lost[0]}; its scheduler's log says why. What is finished stays"
                )
        return state


def _await(client: Any, futures: Sequence[Any], patience: float) -> None:
    """Waits for futures, but not for workers that do not come: Dask itself waits for them without end."""
    seen = time.monotonic()
    while True:
        try:
            distributed.wait(futures, timeout=_LOOK_SECONDS)
            return
        except CancelledError:
            return
        except TimeoutError:
            if client.nthreads():
                seen = time.monotonic()
            elif time.monotonic() - seen > patience:
                raise DataError(
                    f"Dask has had no worker for {patience:.0f} s; its workers' log says why they ended. What is "
                    "finished stays"
                ) from None


class GristmillDaskRunner(DaskRunner):  # type: ignore[misc]  # Beam ships no types
    """Runs a pipeline on a Dask cluster that the options name, or on one of processes of this machine.

    Args:
        workers: processes of the cluster that is started where the options name none.
        verbose: whether the workers' log is shown.
    """

    def __init__(self, workers: int, *, verbose: bool = False) -> None:
        super().__init__()
        self._workers = workers
        self._verbose = verbose

    def run_pipeline(self, pipeline: Any, options: Any) -> _Result:
        """Hands a pipeline to Dask; the result takes down what was started here.

        Raises:
            SettingsError: no scheduler answers, or the cluster has no Gristmill of this version.
        """
        with contextlib.ExitStack() as opening:
            given = options.view_as(DaskOptions).get_all_options(drop_default=True, current_only=True)
            bag_options = DaskOptions._extract_bag_kwargs(given)  # noqa: SLF001 - as Beam's own runner does
            own = not given.keys() & {"address", "scheduler_file"}
            if own:
                given["address"] = opening.enter_context(_cluster(self._workers, verbose=self._verbose))
            client = opening.enter_context(_client(given))
            if not own:
                _check_versions(client)
            pipeline.replace_all(dask_overrides())
            visitor = self.to_dask_bag_visitor(bag_options)
            pipeline.visit(visitor)
            last = list(visitor.bags.values())[-1]  # a run is one chain of stages, so all else leads to it
            result = _Result(client, client.compute(dask.optimize(last)))
            result.patience = _OWN_PATIENCE_SECONDS if own else _PATIENCE_SECONDS
            result.closing = opening.pop_all()
            return result


def _client(options: dict[str, Any]) -> Any:
    """A connection to a scheduler."""
    try:
        return distributed.Client(**options)
    except (OSError, TimeoutError, ValueError) as error:
        where = options.get("address") or options.get("scheduler_file")
        raise SettingsError(
            f"--runner {_NAME}: no Dask scheduler answers at {where} ({error}); start one with `dask scheduler`, or "
            "leave its address out to have processes started on this machine"
        ) from error


def _check_versions(client: Any) -> None:
    """Refuses a cluster whose processes could not do the work; a worker that cannot read an item ends at once."""
    try:
        found = {**client.run(_version), "the scheduler": client.run_on_scheduler(_version)}
    except Exception as error:
        raise SettingsError(
            f"--runner {_NAME}: a process of the cluster cannot load Gristmill: {type(error).__name__}: {error}; "
            f"install gristmill[dask]=={__version__} where its scheduler and its workers run"
        ) from error
    other = next((where for where, version in found.items() if version != __version__), None)
    if other is not None:
        raise SettingsError(
            f"--runner {_NAME}: {other} has Gristmill {found[other]}, but {__version__} launches the run; "
            "install the same"
        )


def _version() -> str:
    """The version of Gristmill where this is called."""
    return __version__


@contextlib.contextmanager
def _cluster(workers: int, *, verbose: bool) -> Iterator[str]:
    """Runs a cluster of processes of this machine; yields its scheduler's address."""
    level = logging.WARNING if verbose else logging.CRITICAL
    with contextlib.ExitStack() as closing:
        with _interruptions_held():
            cluster = closing.enter_context(
                distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=0,  # Dask would restart a worker that uses its share of the memory, whatever it holds
                    dashboard_address=":0",  # any free port: the usual one may be another cluster's
                    silence_logs=level,
                )
            )
        yield cluster.scheduler_address


@contextlib.contextmanager
def _interruptions_held() -> Iterator[None]:
    """Holds a Ctrl-C back until the block ends; threads that begin inside and all that they start never get one.

    A terminal sends it to every process, and each worker would print what it makes of it; the launcher ends them.
    """
    resource_tracker.ensure_running()  # which lets every signal through again where it is started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def dask_error(error: BaseException) -> GristmillError | None:
    """The error to tell where Dask gave up, as it does on items whose workers die again and again; None for others."""
    if isinstance(error, distributed.KilledWorker):
        return DataError(
            f"Dask gave up on {key_split(error.task)!r}: every worker process that worked on it ended without "
            "a word; if the system killed them for lack of memory, run again with fewer. What is finished stays"
        )
    return None
