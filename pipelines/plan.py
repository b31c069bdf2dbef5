"""The plan of a run: inputs pinned, cut into splits, with the digest that says when a split's work is still valid.

A split is an ordered list of extents, about 32 MiB together: one large file is cut at record boundaries so that it
uses all cores, many small ones are put together so that each costs no work item. The cut depends on the inputs alone,
never on runner or workers, which is what makes the corpus the same wherever it is prepared.
"""

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.formats.errors import FormatError, InputError
from gristmill.formats.fingerprint import canonical_json, digest
from gristmill.formats.recipe import STREAM, Recipe, SourceSettings
from gristmill.formats.storage import join, open_read, read_bytes, write_bytes
from gristmill.pipelines.array_record_file import read_array_index
from gristmill.pipelines.arrow_file import arrow_batches
from gristmill.pipelines.field_check import check_fields
from gristmill.pipelines.inputs import InputFile, find_inputs

__all__ = [
    "Extent",
    "Plan",
    "PLAN_NAME",
    "plan_run",
    "planned_splits",
    "read_plan",
    "Split",
    "SPLIT_BYTES",
    "write_plan",
]

SPLIT_BYTES = 32 << 20
"""Input bytes that a split aims at."""

PLAN_NAME = "_stages/plan.json"
"""Path of the plan inside a corpus."""

_READER_VERSION = 1
_FILES_PER_SPLIT = 4096
_THREADS = 16
_GROUPED = ("parquet", "arrow", "array_record")  # formats whose files lie in groups of rows
_KEY_BYTES_PER_PARTITION = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """A part of an input file.

    Attributes:
        file: number of the input file within its source.
        path: path or URL of the file.
        relative: what messages call it.
        format: one of `formats.recipe.FORMATS`, but not "auto".
        compression: "gzip", "bzip2", "xz", "zstd", "zlib", or None.
        start: first byte, row group of a Parquet file, record batch of an Arrow file or chunk of an ArrayRecord file.
        end: byte, row group, record batch or chunk behind the last.
        whole: whether the extent is the whole file.
    """

    file: int
    path: str
    relative: str
    format: str
    compression: str | None
    start: int
    end: int
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One work item of reading.

    Attributes:
        source: number of the source in the recipe.
        part: number within the source; files are named by it.
        number: number within the run, in order of priority; records are ranked by it.
        extents: what to read, in order.
        digest: digest of what its records follow from: inputs, extents and the source's settings.
        reading: digest of what the reading of them follows from: the same without how they are cleaned.
    """

    source: int
    part: int
    number: int
    extents: tuple[Extent, ...]
    digest: str
    reading: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run reads.

    Attributes:
        inputs: input files by source.
        splits: the splits that are read, by number.
        cut: numbers of the sources of which some splits are left out, since a limit will not need them.
    """

    inputs: tuple[tuple[InputFile, ...], ...]
    splits: tuple[Split, ...]
    cut: tuple[int, ...] = ()

    @property
    def input_bytes(self) -> int:
        """Bytes of all input files, as stored."""
        return sum(file.size for files in self.inputs for file in files)

    @property
    def partitions(self) -> int:
        """Into how many groups deduplication keys are dealt; decides no byte of the corpus."""
        return min(4096, 1 + self.input_bytes // _KEY_BYTES_PER_PARTITION)

    def digest(self) -> str:
        """Digest of everything that reading depends on."""
        return digest([split.digest for split in self.splits])


def plan_run(recipe: Recipe) -> Plan:
    """Lists the inputs of a recipe and cuts them into splits.

    Raises:
        SettingsError: a pattern matches nothing, or fields are wanted of files that have none.
        InputError: a Parquet file cannot be opened.
        StorageError: a file cannot be examined.
    """
    inputs: list[tuple[InputFile, ...]] = []
    splits: list[Split] = []
    for number, source in enumerate(recipe.sources):
        files = find_inputs(source, f"sources[{number}]", output=recipe.output)
        check_fields(files, source, f"sources[{number}]")
        inputs.append(files)
        for part, extents in enumerate(_pack(_extents(files, source))):
            splits.append(
                Split(
                    source=number,
                    part=part,
                    number=len(splits),
                    extents=tuple(extents),
                    digest=_split_digest(source.identity(), files, extents),
                    reading=_split_digest(source.reading(), files, extents),
                )
            )
    return Plan(inputs=tuple(inputs), splits=tuple(splits))


def _split_digest(settings: dict[str, Any], files: tuple[InputFile, ...], extents: list[Extent]) -> str:
    parts = [
        [files[extent.file].relative, files[extent.file].checksum, extent.format, extent.start, extent.end]
        for extent in extents
    ]
    return digest({"reader": _READER_VERSION, "source": settings, "extents": parts})


def _extents(files: tuple[InputFile, ...], source: SourceSettings) -> Iterator[tuple[int, Extent]]:
    """(bytes, extent) of every file, in order; what files say of their groups of rows is read ahead, side by side."""
    pool = ThreadPoolExecutor(_THREADS)
    try:
        asked = pool.map(_group_sizes, [file for file in files if file.format in _GROUPED])
        for number, file in enumerate(files):
            sizes = next(asked) if file.format in _GROUPED else None
            for size, extent in _file_extents(number, file, sizes, source):
                alone = extent.format == STREAM and len(files) <= _FILES_PER_SPLIT  # a shard is resumed by itself
                yield max(size, SPLIT_BYTES) if alone else size, extent
    finally:
        pool.shutdown(cancel_futures=True)


def _group_sizes(file: InputFile) -> list[int] | None:
    """Bytes of every group of rows of a file; None where it has none that it could be cut between."""
    if file.format == "parquet":
        return _row_groups(file)
    if file.format == "array_record":
        index = read_array_index(file.path, file.size)
        return None if index is None else np.diff(index.bounds).tolist()
    batches = arrow_batches(file.path) if file.format == "arrow" else None
    return None if batches is None else [size for _, size in batches]


def _file_extents(
    number: int, file: InputFile, sizes: list[int] | None, source: SourceSettings
) -> Iterator[tuple[int, Extent]]:
    if sizes is not None:
        yield from _groups(number, file, sizes)
    elif file.compression is None and (file.format == "jsonl" or (file.format == "text" and source.document == "line")):
        pieces = max(1, -(-file.size // SPLIT_BYTES))
        bounds = [file.size * piece // pieces for piece in range(pieces + 1)]
        for start, end in itertools.pairwise(bounds):
            yield end - start, _extent(number, file, start, end, whole=pieces == 1)
    else:
        yield file.size, _extent(number, file, 0, file.size, whole=True)


def _extent(number: int, file: InputFile, start: int, end: int, *, whole: bool) -> Extent:
    return Extent(
        file=number,
        path=file.path,
        relative=file.relative,
        format=file.format,
        compression=file.compression,
        start=start,
        end=end,
        whole=whole,
    )


def _row_groups(file: InputFile) -> list[int]:
    """Bytes of every row group of a Parquet file."""
    try:
        with open_read(file.path) as raw:
            metadata = pq.read_metadata(raw)
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"{file.path}: cannot be read as Parquet: {error}; fetch it again or leave it out") from error
    return [metadata.row_group(group).total_byte_size for group in range(metadata.num_row_groups)]


def _groups(number: int, file: InputFile, sizes: list[int]) -> Iterator[tuple[int, Extent]]:
    """(bytes, extent) of groups of rows that lie one after the other, cut between them."""
    if not sizes:
        yield 0, _extent(number, file, 0, 0, whole=True)
    start, size = 0, 0
    for group, group_bytes in enumerate(sizes):
        if size and size + group_bytes > SPLIT_BYTES:
            yield size, _extent(number, file, start, group, whole=False)
            start, size = group, 0
        size += group_bytes
    if start < len(sizes):
        yield size, _extent(number, file, start, len(sizes), whole=start == 0)


def _pack(extents: Iterator[tuple[int, Extent]]) -> Iterator[list[Extent]]:
    """Puts extents together, in order, until the next one would pass the aim."""
    packed: list[Extent] = []
    size = 0
    for extent_bytes, extent in extents:
        if packed and (size + extent_bytes > SPLIT_BYTES or len(packed) == _FILES_PER_SPLIT):
            yield packed
            packed, size = [], 0
        packed.append(extent)
        size += extent_bytes
    if packed:
        yield packed


def write_plan(corpus: str, plan: Plan) -> None:
    """Publishes the plan inside the corpus, where the work items read it."""
    value = {"inputs": plan.inputs, "splits": plan.splits, "cut": plan.cut}
    write_bytes(join(corpus, PLAN_NAME), canonical_json(value) + b"\n")


def read_plan(corpus: str) -> Plan:
    """Reads the plan of the current run.

    Raises:
        FormatError: the file is damaged.
    """
    path = join(corpus, PLAN_NAME)
    return _parsed(path, read_bytes(path))


@lru_cache(maxsize=1)
def _parsed(path: str, content: bytes) -> Plan:
    """The plan that a file holds; a run asks for it in every stage."""
    try:
        value: dict[str, Any] = json.loads(content)
        splits = tuple(
            Split(**{**split, "extents": tuple(Extent(**extent) for extent in split["extents"])})
            for split in value["splits"]
        )
        inputs = tuple(tuple(InputFile(**file) for file in files) for files in value["inputs"])
        cut = tuple(int(number) for number in value["cut"])
    except (ValueError, KeyError, TypeError) as error:
        raise FormatError(f"{path}: damaged plan ({type(error).__name__}: {error}); start the run again") from error
    return Plan(inputs=inputs, splits=splits, cut=cut)


@lru_cache(maxsize=1)
def planned_splits(corpus: str, plan_digest: str) -> tuple[Split, ...]:
    """The splits of a run, by number, read once by a process that asks again.

    Raises:
        FormatError: the plan in the corpus is damaged, or that of another run.
    """
    plan = read_plan(corpus)
    if plan.digest() != plan_digest:
        raise FormatError(f"{join(corpus, PLAN_NAME)}: is the plan of another run by now; start the run again")
    return plan.splits
