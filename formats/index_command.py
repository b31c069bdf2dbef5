"""The `gristmill index` command: one more order for data that are there.

Of a finished corpus it is an index set, built anew or as an extension of another; of anyone's data, named by
``--input``, the three arrays of MaxText's builder. Two things under one name, because who asks for an order need not
care whose the data are.
"""

import argparse
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from gristmill.formats.adopted_command import add_data_arguments, run_input
from gristmill.formats.errors import SettingsError
from gristmill.formats.index_build import build_index_set
from gristmill.formats.index_extend import extend_index_set
from gristmill.formats.index_order import order_history
from gristmill.formats.index_set import INDICES_FOLDER, IndexSet, IndexSettings, SplitRequest, find_sets, read_set
from gristmill.formats.log import tell
from gristmill.formats.manifest import Manifest, read_manifest
from gristmill.formats.recipe import DEFAULT_SEED, DEFAULT_SPLITS
from gristmill.formats.storage import join

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's options."""
    parser.add_argument("corpus", nargs="?", help="folder or URL of the corpus, unless --input names other data")
    parser.add_argument(
        "--input", nargs="+", metavar="P", help="data of anyone's as one data set: prefixes, folders, or a raw manifest"
    )
    parser.add_argument("--output-dir", metavar="D", help="with --input: folder or URL for the indices")
    parser.add_argument("--seq-length", type=int, metavar="L", help="tokens per sample")
    parser.add_argument("--seed", type=int, help=f"seed of the order (default: {DEFAULT_SEED})")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--num-samples", type=int, metavar="N", help="samples of the training split")
    size.add_argument("--num-epochs", type=int, metavar="E", help="passes of the training split (default: one)")
    parser.add_argument("--split", help=f"sizes of train, valid and test (default: {DEFAULT_SPLITS})")
    parser.add_argument(
        "--extend",
        nargs="?",
        const="",
        metavar="SET",
        help="go on behind an index set, the corpus's own if none is named, whose rows stay as they are",
    )
    parser.add_argument("--from-sample", type=int, metavar="S", help="with --extend: where --weights begin to hold")
    parser.add_argument("--weights", metavar="ID=W,…", help="with --extend: weights of the sources from there on")
    parser.add_argument(
        "--max-workers",
        type=int,
        metavar="N",
        help="sources of a corpus built at the same time (default: one per core)",
    )
    add_data_arguments(parser)


def run(
    arguments: argparse.Namespace,
    working_on: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext(),
) -> int:
    """Builds the index set; returns the exit code.

    Args:
        arguments: as parsed.
        working_on: keeps other runs off a corpus while this one writes into it.

    Raises:
        SettingsError: an option is missing or does not go with another.
        CorpusError: another run is working on the corpus.
    """
    if arguments.input is not None:
        return _run_input(arguments)
    if arguments.corpus is None:
        raise SettingsError("name a corpus, or other data with --input")
    for option in ("--output-dir", "--split-index", "--eod-id", "--vocabulary"):
        if getattr(arguments, _name(option)) is not None:
            raise SettingsError(f"{option} goes with --input; a corpus says it itself")
    if arguments.granularity != "sequence" or not arguments.add_extra_token:
        raise SettingsError("--granularity and --add-extra-token go with --input")
    read_manifest(arguments.corpus)  # what is no corpus is not written into
    with working_on(arguments.corpus):
        manifest = read_manifest(arguments.corpus)
        built = _build(arguments, manifest) if arguments.extend is None else _extend(arguments, manifest)
    samples = {order.split: order.samples for order in built.orders}
    says = ", ".join(f"{split} {count:,} samples" for split, count in samples.items())
    tell(f"{built.folder}: {says}", "index_set", folder=built.folder, samples=samples)
    return 0


def _run_input(arguments: argparse.Namespace) -> int:
    if arguments.corpus is not None:
        raise SettingsError(f"{arguments.corpus}: a corpus and --input exclude each other")
    for option in ("--extend", "--from-sample", "--weights", "--max-workers"):
        if getattr(arguments, _name(option)) is not None:
            raise SettingsError(f"{option} does not go with --input, which is one data set and has nothing to extend")
    return run_input(arguments, DEFAULT_SEED if arguments.seed is None else arguments.seed)


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _build(arguments: argparse.Namespace, manifest: Manifest) -> IndexSet:
    if arguments.seq_length is None:
        raise SettingsError("--seq-length L: the tokens per sample are missing")
    for option, value in (("--from-sample", arguments.from_sample), ("--weights", arguments.weights)):
        if value is not None:
            raise SettingsError(f"{option} goes with --extend; the weights of a new index set are those of the recipe")
    settings = IndexSettings(
        sequence_length=arguments.seq_length,
        seed=DEFAULT_SEED if arguments.seed is None else arguments.seed,
        splits=DEFAULT_SPLITS if arguments.split is None else arguments.split,
        train=SplitRequest(samples=arguments.num_samples, epochs=arguments.num_epochs),
        valid=SplitRequest(drop_last_partial=not arguments.keep_last_partial),
    )
    cores = len(os.sched_getaffinity(0))
    workers = cores if arguments.max_workers is None else arguments.max_workers
    return build_index_set(arguments.corpus, manifest, settings, partial(tell, name="member"), workers=workers)


def _extend(arguments: argparse.Namespace, manifest: Manifest) -> IndexSet:
    for option in ("--seq-length", "--seed", "--split", "--num-epochs", "--max-workers"):
        if getattr(arguments, _name(option)) is not None:
            raise SettingsError(f"{option} does not go with --extend: an extension takes it from the set it extends")
    if arguments.keep_last_partial:
        raise SettingsError(
            "--keep-last-partial does not go with --extend: an extension takes it from the set it extends"
        )
    name = arguments.extend or manifest.index_set
    if name is None:
        names = ", ".join(found.name for found in find_sets(arguments.corpus)) or "there is none"
        raise SettingsError(
            f"--extend: {arguments.corpus} was prepared without [index], so it has no index set of its own; name one "
            f"({names})"
        )
    parent = read_set(join(arguments.corpus, INDICES_FOLDER, name))
    built = extend_index_set(
        arguments.corpus,
        manifest,
        parent,
        samples=arguments.num_samples,
        from_sample=arguments.from_sample,
        weights=None if arguments.weights is None else _weights(arguments.weights),
        say=partial(tell, name="member"),
    )
    if len(built.history) > len(order_history(parent, "train")):
        tell(f"rows before {built.history[-1].from_sample:,} are those of {name}")
    else:
        tell(f"the order is that of {name}, and longer")
    return built


def _weights(text: str) -> dict[str, float]:
    """Weights by source from ``id=weight,id=weight``."""
    found: dict[str, float] = {}
    for part in text.split(","):
        source, equals, weight = part.strip().rpartition("=")
        try:
            value = float(weight)
        except ValueError:
            value = None
        if not equals or not source or value is None:
            raise SettingsError(f"--weights {text!r}: {part.strip()!r} is no weight; write id=weight,id=weight")
        if source in found:
            raise SettingsError(f"--weights {text!r}: {source!r} is named twice")
        found[source] = value
    return found
