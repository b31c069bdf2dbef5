"""The `gristmill blend` command: indices of every member of a blend and of the blend itself, made beforehand.

    D/dataset_<i>/<hash>-{document,sample,shuffle}_index.npy   one folder per entry, numbered as written
    D/dataset_index.npy  D/dataset_sample_index.npy            the blend, as long as --total-samples says

Options and names are those of MaxText's builder. Members are built at the same time, in processes or on a Beam runner,
and what is there is not built again, so a run that was stopped goes on where it stopped.
"""

import argparse
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gristmill.formats.adopted_blend import blend_request, new_blend
from gristmill.formats.adopted_command import add_data_arguments, order_request
from gristmill.formats.adopted_order import store_member
from gristmill.formats.adopted_plan import OrderPlan, plan_order
from gristmill.formats.blend_store import find_blend, save_blend
from gristmill.formats.data_sources import DataSource, open_data_sources
from gristmill.formats.data_spec import parse_data_spec
from gristmill.formats.documents import check_unit
from gristmill.formats.errors import GristmillError, SettingsError, StorageError
from gristmill.formats.index_member import MemberReport
from gristmill.formats.index_plan import MemberPlan
from gristmill.formats.log import tell
from gristmill.formats.storage import exists, join
from gristmill.pipelines.beam_items import do_items, do_items_on_beam

__all__ = ["add_arguments", "BlendItem", "build_item", "run"]

_HERE = (None, "auto", "loop")  # runners that need no Beam: processes, or this one alone


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendItem:
    """One member to build.

    Attributes:
        folder: where its indices belong.
        source: its data.
        member: what to build.
    """

    folder: str
    source: DataSource
    member: MemberPlan


def build_item(item: BlendItem) -> str:
    """Builds a member unless it is there; tells of it in a line."""
    report = store_member(item.folder, item.source, item.member)
    return f"{item.folder}: {report.source}, {report.rows:,} samples, {report.epochs} epochs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options; what it does not know goes to Beam."""
    parser.add_argument(
        "--datasets",
        required=True,
        metavar="SPEC",
        help="'path,weight;path,weight'; a path is a prefix, folder or manifest",
    )
    parser.add_argument("--output-dir", required=True, metavar="D", help="folder or URL for the indices")
    parser.add_argument("--seq-length", type=int, required=True, metavar="L", help="tokens per sample")
    parser.add_argument("--total-samples", type=int, required=True, metavar="N", help="samples of the blend")
    parser.add_argument("--seed", type=int, default=1234, help="seed of the order (default: %(default)s)")
    parser.add_argument(
        "--margin",
        type=float,
        default=0.5,
        metavar="M",
        help="percent built beyond each member's share (default: %(default)s)",
    )
    parser.add_argument("--split", help="sizes of train, valid and test (default: all of the data)")
    add_data_arguments(parser)
    parser.add_argument(
        "--max-workers", type=int, metavar="N", help="processes on this machine (default: one per core)"
    )
    parser.add_argument(
        "--runner", metavar="NAME", help="a runner of Beam's to build the members on, instead of processes"
    )


def run(arguments: argparse.Namespace, beam_flags: list[str]) -> int:
    """Builds members and blend; returns the exit code.

    Raises:
        SettingsError: an option is wrong, or the folder cannot be written to or holds another blend.
        MissingExtraError: a runner is named, and Beam is not installed.
    """
    if beam_flags and arguments.runner in _HERE:
        raise SettingsError(f"{beam_flags[0]}: gristmill blend knows no such option, and Beam's go with --runner")
    entries = parse_data_spec(arguments.datasets)
    for entry in entries:
        if entry.index_folder is not None:
            raise SettingsError(
                f"--datasets: {entry.index_folder}|… names an index folder, but --output-dir says where indices go"
            )
    request = order_request(
        arguments,
        samples=arguments.total_samples,
        epochs=None,
        seed=arguments.seed,
        surplus=arguments.margin / 100,
    )
    folders = [join(arguments.output_dir, f"dataset_{number}") for number in range(len(entries))]
    try:
        sources = open_data_sources(
            [replace(entry, index_folder=folder) for entry, folder in zip(entries, folders, strict=True)],
            unit=check_unit(arguments.granularity),
            eod_id=arguments.eod_id,
            vocabulary=arguments.vocabulary,
        )
        plan = plan_order(sources, request)
        items = [
            BlendItem(folder=folders[member.place], source=sources[member.place], member=member)
            for member in plan.members
        ]
        _build(arguments, beam_flags, items)
        reports = [store_member(item.folder, item.source, item.member) for item in items]
        _blend(arguments.output_dir, plan, reports)
    except StorageError as error:
        raise SettingsError(f"--output-dir: {error}; name a folder that can be written to") from error
    for left_out in plan.left_out:
        tell(f"{left_out.source} takes no part: {left_out.reason}")
    return 0


def _build(arguments: argparse.Namespace, beam_flags: list[str], items: list[Any]) -> None:
    if arguments.runner in _HERE:
        workers = 1 if arguments.runner == "loop" else arguments.max_workers
        do_items(build_item, items, workers=workers, say=partial(tell, name="member"))
    else:
        do_items_on_beam(build_item, items, arguments.runner, beam_flags)


def _blend(folder: str, plan: OrderPlan, reports: list[MemberReport]) -> None:
    """Builds the blend unless it is there."""
    request = blend_request(plan, reports)
    if request is None:
        tell(f"{folder}: a single member takes part, so its own order is that of the blend")
        return
    samples = request.rule.samples
    there = [name for name in ("dataset_index.npy", "dataset_sample_index.npy") if exists(join(folder, name))]
    if there:
        try:
            found, reasons = find_blend(folder, request)
        except GristmillError as error:
            found, reasons = None, [str(error)]
        if found is None and exists(join(folder, "blend.json")):
            raise SettingsError(
                f"{folder}: holds another blend ({'; '.join(reasons)}); name another --output-dir, or remove "
                f"{', '.join(there)} and blend.json"
            )
        if found is not None:
            tell(f"{folder}: the blend of {samples:,} samples is there", "blend", folder=folder, samples=samples)
            return
    blend = new_blend(plan, reports, request)
    cut = replace(
        blend, dataset_index=blend.dataset_index[:samples], dataset_sample_index=blend.dataset_sample_index[:samples]
    )
    save_blend(folder, request, cut, named=False)
    tell(f"{folder}: a blend of {samples:,} samples", "blend", folder=folder, samples=samples)
