"""Which documents a training step saw, looked up and not replayed, and the `gristmill trace` command.

Rows are a pure function of their number, so a step is answered from its batch sizes and a handful of index entries,
for any step of any run, by anyone who has the corpus. What a run that changed its stream on the way saw is asked of the
stream that it had then.
"""

import argparse
import contextlib
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gristmill.formats.errors import SettingsError
from gristmill.formats.fingerprint import short
from gristmill.formats.split import SPLITS
from gristmill.runtime.batch_schedule import BatchSchedule
from gristmill.runtime.corpus import open_corpus
from gristmill.runtime.metrics import MeasuredStream
from gristmill.runtime.provenance import carried_line
from gristmill.runtime.streams import ReaderStream, RowPiece, Stream
from gristmill.runtime.views import StreamView

__all__ = ["add_arguments", "count_sources", "row_lines", "run", "source_lines", "trace"]

_ROWS_AT_ONCE = 1 << 20


def count_sources(stream: Stream, rows: range) -> dict[str, int]:
    """How many of some rows come from each source, in memory bounded by a block of rows.

    Args:
        stream: where the rows are.
        rows: their numbers.

    Raises:
        IndexError: a row does not exist.
        SettingsError: the stream does not know its sources.
    """
    if not isinstance(stream, MeasuredStream):
        raise SettingsError(f"{stream!r} does not say which source a row is of, so there is nothing to count")
    counts: dict[str, int] = {}
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        block = rows[start : start + _ROWS_AT_ONCE]
        for name, count in stream.rows_by_source(np.arange(block.start, block.stop)).items():
            counts[name] = counts.get(name, 0) + count
    return counts


def source_lines(counts: Mapping[str, int], sequence_length: int) -> Iterator[str]:
    """Rows by source as a table, the largest first."""
    total = max(1, sum(counts.values()))
    width = max([len(name) for name in counts], default=0)
    for name, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        tokens = count * sequence_length
        yield f"  {name:{width}}  {count:>15,} samples  {100 * count / total:6.2f} %  {tokens:>19,} tokens"


def row_lines(pieces: Sequence[RowPiece]) -> Iterator[str]:
    """What a row is made of: a line for each piece, and one more for its text where it was decoded."""
    for piece in pieces:
        stop = piece.column + piece.stop - piece.start
        where = "" if piece.origin is None else f"; {piece.origin.input}, record {piece.origin.record:,}"
        yield (
            f"  {_span(piece.column, stop)}: {piece.source}, {piece.shard}, document {piece.document:,}, tokens "
            f"{_span(piece.start, piece.stop)}{where}"
        )
        if piece.origin is not None and piece.origin.carried is not None:
            yield f"    {carried_line(piece.origin.carried)}"
        if piece.text is not None:
            yield f"    {piece.text!r}"


def _span(start: int, stop: int) -> str:
    """A range of places as people write it, the last one included."""
    return f"{start:,}" if stop - start == 1 else f"{start:,} to {stop - 1:,}"


def trace(
    stream: ReaderStream | StreamView, rows: range, *, batch: range | None = None, text: bool = False
) -> Iterator[str]:
    """Rows of a stream and what each is made of, as lines of text.

    Args:
        stream: where the rows are.
        rows: their numbers.
        batch: the rows of the batch that they are of, to number them in it too.
        text: whether to show their text too.

    Raises:
        SettingsError: a row does not exist.
        GristmillError: a file cannot be read or is not what it must be.
    """
    _check_rows(stream, rows)
    for row in rows:
        within = "" if batch is None else f", row {row - batch.start:,} of the batch"
        yield f"sample {row:,}{within}"
        yield from row_lines(stream.describe(row, text=text))


def _check_rows(stream: Stream, rows: range) -> None:
    if rows.start < 0 or rows.stop > len(stream):
        wanted = f"sample {rows.start:,}" if len(rows) == 1 else f"samples {_span(rows.start, rows.stop)}"
        raise SettingsError(
            f"{wanted}: the stream has {len(stream):,} samples, numbered from 0; name an earlier one, or more samples "
            "with --num-samples where the index set holds them"
        )


def _range(option: str, text: str) -> tuple[int, int]:
    first, colon, stop = text.partition(":")
    if not colon or not first.strip().isdecimal() or not stop.strip().isdecimal():
        noun = "step" if option == "--steps" else "sample"
        raise SettingsError(f"{option} {text}: the rule is FIRST:STOP, two {noun} numbers; STOP itself is not included")
    return int(first), int(stop)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `gristmill trace`."""
    parser.add_argument("corpus", metavar="OUTPUT", help="folder or URL of a corpus")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sample", type=int, metavar="N", help="show one sample, by its number in the stream")
    what.add_argument("--step", type=int, metavar="K", help="show the samples of a training step, counted from 0")
    what.add_argument("--steps", metavar="A:B", help="count samples by source over the steps from A up to B")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--global-batch", type=int, metavar="G", help="samples of a step, where it never changed")
    sizes.add_argument(
        "--batch-schedule", metavar="S:G,...", help='samples of a step from each step on, as in "0:256,10000:512"'
    )
    parser.add_argument("--row", type=int, metavar="R", help="with --step: this row of the batch only")
    parser.add_argument("--split", choices=SPLITS, default="train", help="which stream (default: %(default)s)")
    parser.add_argument("--text", action="store_true", help="show the text of each piece too")
    parser.add_argument("--seq-length", type=int, metavar="L", help="of the stream (default: the corpus's own)")
    parser.add_argument("--seed", type=int, help="of the stream (default: the corpus's own)")
    parser.add_argument("--index-set", metavar="SET", help="of the stream, where several fit")
    parser.add_argument("--num-samples", type=int, metavar="N", help="of the stream, where a run asked for more")
    parser.add_argument("--windows", action="store_true", help="the stream is one of windows: corpus.windows()")
    parser.add_argument(
        "--skip",
        action="append",
        default=[],
        metavar="A:B",
        help="samples that the run left out by skip_range(A, B); once for each call, in their order",
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints what was asked for; returns the exit code."""
    schedule = _schedule(arguments)
    stream = _stream(arguments)
    with contextlib.closing(stream):
        for line in _answer(arguments, stream, schedule):
            print(line)
    return 0


def _stream(arguments: argparse.Namespace) -> ReaderStream | StreamView:
    """The stream that a run had."""
    corpus, which = open_corpus(arguments.corpus), (arguments.split, arguments.seq_length, arguments.seed)
    skips = [_range("--skip", text) for text in arguments.skip]
    if arguments.windows and arguments.index_set is not None:
        raise SettingsError(f"--index-set {arguments.index_set}: windows have none; leave out one of the two")
    stream: ReaderStream | StreamView
    if arguments.windows:
        stream = corpus.windows(*which, samples=arguments.num_samples)
    else:
        stream = corpus.stream(*which, index_set=arguments.index_set, samples=arguments.num_samples)
    for first, stop in skips:
        stream = stream.skip_range(first, stop)
    return stream


def _schedule(arguments: argparse.Namespace) -> BatchSchedule | None:
    """The batch sizes, which steps need and a sample has no use for."""
    given = "--batch-schedule" if arguments.batch_schedule is not None else "--global-batch"
    if arguments.sample is not None:
        for name, value in ((given, arguments.batch_schedule or arguments.global_batch), ("--row", arguments.row)):
            if value is not None:
                raise SettingsError(f"{name}: says nothing about --sample {arguments.sample}; leave it out")
        return None
    if arguments.row is not None and arguments.step is None:
        raise SettingsError(f"--row {arguments.row}: is of one batch; name it with --step")
    if arguments.batch_schedule is not None:
        return BatchSchedule.parse(arguments.batch_schedule)
    if arguments.global_batch is not None:
        return BatchSchedule.constant(arguments.global_batch)
    raise SettingsError(
        "steps are counted in batches: say how many samples a step had with --global-batch G, or, where that changed, "
        'with --batch-schedule "0:256,10000:512"'
    )


def _answer(
    arguments: argparse.Namespace, stream: ReaderStream | StreamView, schedule: BatchSchedule | None
) -> Iterator[str]:
    head = f"{stream.name}, {stream.split}, {short(stream.fingerprint)}"
    if schedule is None:
        _check_rows(stream, range(arguments.sample, arguments.sample + 1))
        yield f"{head}: {len(stream):,} samples of {stream.sequence_length:,} tokens"
        yield from trace(stream, range(arguments.sample, arguments.sample + 1), text=arguments.text)
        return
    if arguments.steps is not None:
        first, stop = _range("--steps", arguments.steps)
        rows = schedule.span(first, stop)
        _check_rows(stream, rows)
        yield f"{head}: steps {_span(first, stop)}, samples {_span(rows.start, rows.stop)}"
        yield from source_lines(count_sources(stream, rows), stream.sequence_length)
        return
    rows = batch = schedule.rows(arguments.step)
    if arguments.row is not None:
        if not 0 <= arguments.row < len(batch):
            raise SettingsError(f"--row {arguments.row}: step {arguments.step} has rows 0 to {len(batch) - 1}")
        rows = batch[arguments.row : arguments.row + 1]
    _check_rows(stream, rows)
    yield f"{head}: step {arguments.step:,}, samples {_span(batch.start, batch.stop)}"
    yield from trace(stream, rows, batch=batch, text=arguments.text)
