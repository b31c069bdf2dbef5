"""The `gristmill clean-up` command: says what a corpus does not need any more, with its size, and removes it."""

import argparse
from typing import TYPE_CHECKING

from gristmill.pipelines.lock_options import add_lock_arguments, stale_after

if TYPE_CHECKING:
    from gristmill.pipelines.lock_record import AskService

__all__ = ["add_arguments", "run"]

_KEEPS = {
    "raw": "keep raw/, the copies of sources",
    "clean": "keep clean/, what deduplication found",
    "spill": "keep spill/, ids before they are shards",
    "rejected": "keep rejected/, the samples of what was left out",
    "receipts": "keep the receipts of shards and of members of index sets",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("corpus", metavar="OUTPUT", help="folder or URL of the corpus")
    for name, says in _KEEPS.items():
        parser.add_argument(f"--keep-{name}", dest="keep", action="append_const", const=name, help=says)
    parser.add_argument(
        "--other-indices", action="store_true", help="remove index sets too, but for the one that the manifest names"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and remove nothing")
    add_lock_arguments(parser)


def run(arguments: argparse.Namespace, ask: "AskService | None" = None) -> int:
    """Cleans a corpus up; returns the exit code.

    Args:
        arguments: as parsed.
        ask: asks the service of another run's job whether it goes on.

    Raises:
        CorpusError: there is no corpus, or a run works on it.
        StorageError: a file cannot be listed, written or removed.
    """
    from gristmill.pipelines.clean_up import clean_up, find_leftovers

    corpus, keep = arguments.corpus.rstrip("/"), arguments.keep or ()
    if arguments.dry_run:
        found = find_leftovers(corpus, keep, other_sets=arguments.other_indices)
    else:
        seconds = stale_after(arguments.stale_after)
        found = clean_up(corpus, keep, other_sets=arguments.other_indices, stale_after=seconds, ask=ask, say=print)
    verb = "would remove" if arguments.dry_run else "removed"
    for leftover in found:
        amount = f"{leftover.name}: {_files(len(leftover.files))}, {leftover.size:,} bytes"
        print(f"kept {amount}: {leftover.kept}" if leftover.kept else f"{verb} {amount}")
    gone = [leftover for leftover in found if not leftover.kept]
    count, size = sum(len(leftover.files) for leftover in gone), sum(leftover.size for leftover in gone)
    print(f"{corpus}: {verb} {_files(count)}, {size:,} bytes" if gone else f"{corpus}: nothing to remove")
    return 0


def _files(count: int) -> str:
    return f"{count:,} file{'' if count == 1 else 's'}"
