"""The `gristmill verify` command: every byte of a corpus, or of data that anyone made, is read and compared."""

import argparse

from gristmill.formats.data_check import check_data
from gristmill.formats.data_spec import parse_data_spec
from gristmill.formats.errors import SettingsError
from gristmill.formats.export import is_corpus
from gristmill.formats.log import tell
from gristmill.formats.raw_manifest import find_raw_manifest
from gristmill.formats.storage import exists, list_files
from gristmill.formats.verify import verify_corpus

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument(
        "corpus", help="folder or URL of a corpus; or prefixes, folders and raw manifests of anyone's data"
    )
    parser.add_argument(
        "--eod-id", type=int, metavar="ID", help="anyone's data: the id that every document must end with"
    )
    parser.add_argument("--vocabulary", type=int, metavar="N", help="anyone's data: bound of the ids")
    parser.add_argument(
        "--checksums", metavar="FILE", help="anyone's data: checksums to compare with, written where FILE is not there"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints what is wrong; returns the exit code."""
    data = arguments.corpus
    if _is_anyones(data):
        remedy = ""
        problems = check_data(
            data, eod_id=arguments.eod_id, vocabulary=arguments.vocabulary, checksums=arguments.checksums
        )
    else:
        for option in ("eod_id", "vocabulary", "checksums"):
            if getattr(arguments, option) is not None:
                raise SettingsError(
                    f"--{option.replace('_', '-')} is for data without a manifest; a corpus has its own"
                )
        problems = verify_corpus(data)
        remedy = "\nRemove the files named above, then run `gristmill prepare` on the recipe: it makes them again."
    for problem in problems:
        tell(str(problem), "problem")
    says = f"{data}: {len(problems)} problems{remedy}" if problems else f"{data}: sound"
    tell(says, "verified", data=data, problems=len(problems))
    return 1 if problems else 0


def _is_anyones(data: str) -> bool:
    """Whether there is something else than a corpus, finished or not; what is not there at all is taken for one."""
    if is_corpus(data) or exists(f"{data}/_stages"):
        return False
    entry = parse_data_spec(data)[0]
    first = entry.paths[0]
    if len(entry.paths) > 1 or exists(f"{first}.idx") or first.endswith((".bin", ".idx", ".json")):
        return True
    return find_raw_manifest(first) is not None or any(path.endswith(".idx") for path in list_files(first))
