"""Opens the files of a member of an index set: mapped, known to be whole by their sizes, and checked at both ends."""

from typing import Any

from numpy.typing import NDArray

from gristmill.formats.errors import FormatError
from gristmill.formats.index_member import MemberReport, member_file, member_layout
from gristmill.formats.indices import EpochPlan, MemberIndices
from gristmill.formats.npy import open_npy
from gristmill.formats.storage import join

__all__ = ["open_member_files"]


def open_member_files(
    set_folder: str, report: MemberReport, *, sequence_length: int, add_extra_token: bool
) -> MemberIndices:
    """Opens the files of a member and checks dtype, shape, size and both ends of every array.

    Args:
        set_folder: path or URL of the index set's folder.
        report: the member, as recorded.
        sequence_length: tokens per sample.
        add_extra_token: whether samples overlap by one token.

    Returns:
        The indices, memory-mapped from local files, read into memory from elsewhere.

    Raises:
        FormatError: a file is missing, cut short, or does not fit the record.
    """
    plan = EpochPlan(
        tokens=report.tokens,
        sequence_length=sequence_length,
        add_extra_token=add_extra_token,
        epochs=sum(block.epochs for block in report.blocks),
        separate=report.separate,
        samples=report.rows,
    )
    paths: dict[str, str] = {}
    arrays: dict[str, NDArray[Any]] = {}
    for index, (dtype, shape) in member_layout(report).items():
        paths[index] = join(set_folder, member_file(report.split, report.source, index))
        arrays[index] = open_npy(paths[index], dtype, shape)
    _check_ends(paths["document_index"], arrays["document_index"], report.start, report.end, "sequence number")
    numbers = report.rows + len(report.later)
    _check_ends(paths["shuffle_index"], arrays["shuffle_index"], 0, numbers, "sample number")
    _check_ends(paths["sample_index"], arrays["sample_index"][:, 0], 0, report.entries, "place in the document index")
    _check_ends(paths["sample_index"], arrays["sample_index"][:, 1], 0, report.tokens + 1, "token offset")
    return MemberIndices(plan=plan, **arrays)


def _check_ends(path: str, array: NDArray[Any], start: int, end: int, what: str) -> None:
    for row in (0, len(array) - 1):
        if not start <= int(array[row]) < end:
            raise FormatError(
                f"{path}: row {row} holds {what} {array[row]}, outside {start} to {end - 1}: damaged; build the "
                "indices again"
            )
