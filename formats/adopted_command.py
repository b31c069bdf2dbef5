"""The `--input` form of `gristmill index`: indices of anyone's data in a folder, with the options of MaxText's builder.

What it writes is what `open_megatron` finds when the folder is its `cache_dir` or stands before a ``|``. Running it
again finds that the work is done.
"""

import argparse

from gristmill.formats.adopted_order import store_member
from gristmill.formats.adopted_plan import OrderRequest, plan_order
from gristmill.formats.blend import SURPLUS
from gristmill.formats.data_sources import open_data_sources
from gristmill.formats.data_spec import DataEntry
from gristmill.formats.documents import check_unit
from gristmill.formats.errors import SettingsError, StorageError
from gristmill.formats.fingerprint import digest
from gristmill.formats.index_member import member_epochs
from gristmill.formats.log import tell
from gristmill.formats.member_store import member_facts, member_prefix
from gristmill.formats.split import SPLITS

__all__ = ["add_data_arguments", "order_request", "run_input"]


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that `gristmill index --input` and `gristmill blend` share beyond length, seed and split."""
    parser.add_argument(
        "--split-index", type=int, metavar="I", help="which part of --split: 0 train, 1 valid, 2 test (default: 0)"
    )
    parser.add_argument(
        "--add-extra-token", type=int, choices=(0, 1), default=1, help="whether neighbouring samples share a token"
    )
    parser.add_argument(
        "--keep-last-partial",
        action="store_true",
        help="keep the last sample of validation although it is shorter; of data that are no corpus, of test too",
    )
    parser.add_argument(
        "--granularity", default="sequence", metavar="UNIT", help="what is shuffled as one: sequence or document"
    )
    parser.add_argument(
        "--eod-id", type=int, metavar="ID", help="id that closes a document of raw shards, if they do not say"
    )
    parser.add_argument(
        "--vocabulary", type=int, metavar="N", help="bound of the ids of raw shards, if not what they say"
    )


def order_request(
    arguments: argparse.Namespace, *, samples: int | None, epochs: int | None, seed: int, surplus: float = SURPLUS
) -> OrderRequest:
    """What the options ask for.

    Raises:
        SettingsError: an option is missing, wrong, or does not go with another.
    """
    if arguments.seq_length is None:
        raise SettingsError("--seq-length L: the tokens per sample are missing")
    place = arguments.split_index or 0
    if not 0 <= place < len(SPLITS):
        raise SettingsError(f"--split-index {place}: the parts are 0 train, 1 valid, 2 test")
    if arguments.split_index is not None and arguments.split is None:
        raise SettingsError(f"--split-index {place} goes with --split, for example --split 969,30,1")
    return OrderRequest(
        sequence_length=arguments.seq_length,
        seed=seed,
        split=SPLITS[place],
        splits=arguments.split,
        samples=samples,
        epochs=epochs,
        surplus=surplus,
        add_extra_token=bool(arguments.add_extra_token),
        drop_last_partial=not arguments.keep_last_partial,
    )


def run_input(arguments: argparse.Namespace, seed: int) -> int:
    """Builds the indices of ``--input``; returns the exit code.

    Raises:
        SettingsError: an option is missing, wrong, or does not go with another; or the folder cannot be written to.
    """
    if arguments.output_dir is None:
        raise SettingsError("--output-dir D: the folder for the indices of --input is missing")
    if arguments.num_samples is None and arguments.num_epochs is None:
        raise SettingsError("--input needs --num-samples N or --num-epochs E")
    request = order_request(arguments, samples=arguments.num_samples, epochs=arguments.num_epochs, seed=seed)
    entry = DataEntry(paths=tuple(arguments.input), index_folder=arguments.output_dir)
    sources = open_data_sources(
        [entry], unit=check_unit(arguments.granularity), eod_id=arguments.eod_id, vocabulary=arguments.vocabulary
    )
    (member,) = plan_order(sources, request).members
    try:
        report = store_member(arguments.output_dir, sources[0], member)
    except StorageError as error:
        raise SettingsError(f"--output-dir: {error}; name a folder that can be written to") from error
    epochs = member_epochs(member, report.tokens)
    place = member_prefix(arguments.output_dir, digest(member_facts(member, epochs, sources[0].member_source)))
    says = f"{place}-{{document,sample,shuffle}}_index.npy: {report.rows:,} samples, {report.epochs} epochs"
    tell(says, "indices", file=place, samples=report.rows, epochs=report.epochs)
    return 0
