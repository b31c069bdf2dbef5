"""Copies of what sources give, as Parquet, split for split: below ``raw/`` in the corpus, or where recipes share them.

A copy holds what reading a split gives, text and number of every good record, and its receipt holds the account of the
reading: what was left out and why, and the digests of what was read. Whoever reads the copy in place of the input so
ends with the same batches, counts and digests, and no later byte depends on whether there is one. The price: a copy is
of the chosen fields, so another `text_field` makes another copy. A shared copy is called by the digest of what it
follows from, so recipes that read the same in the same way find it, and others never meet it; nothing is removed there.
"""

import io
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.formats.errors import DataError, InputError
from gristmill.formats.fingerprint import digest
from gristmill.formats.receipts import Receipt, item_receipt_path, valid_receipt, write_receipt
from gristmill.formats.recipe import SourceSettings
from gristmill.formats.storage import FileFacts, Publication, join, open_read, publish
from gristmill.pipelines.job import Job
from gristmill.pipelines.joined import join_batches
from gristmill.pipelines.plan import Plan, Split
from gristmill.pipelines.read import read_split
from gristmill.pipelines.records import Batch, RecordAccount

__all__ = ["copied_files", "copies", "copy_receipt", "copy_split", "raw_path", "read_records"]

_STEP = "download"
_VERSION = 1
_GROUP_CHARS = 16 << 20
_GROUP_ROWS = 64 << 10
_ROWS = 256
_SCHEMA = pa.schema([("record", pa.uint32()), ("text", pa.large_string()), ("url", pa.string())])


def raw_path(source_id: str, part: int) -> str:
    """Path of a split's copy, relative to the corpus."""
    return f"raw/{source_id}/part-{part:05d}.parquet"


def copies(job: Job, plan: Plan) -> list[Split]:
    """The splits that the run copies: those of sources that ask for it, and that the run reads."""
    last = len(job.recipe.sources) if job.source is None else job.source
    return [split for split in plan.splits if job.source_of(split).materialize and split.source <= last]


def copy_split(job: Job, split: Split) -> dict[str, Any]:
    """Copies a split unless its receipt is still valid; see the module.

    Returns:
        The item's result: split and source, records and bytes of the copy, and the copy's size and digest.

    Raises:
        InputError: a record is bad and the policy is "fail", or a file is damaged.
        StorageError: a file cannot be read or written.
    """
    receipt = copy_receipt(job, split)
    if receipt is None:
        source = job.source_of(split)
        place = _place(job, split)
        name = place.name
        account = RecordAccount(source.bad_records)
        with publish(join(place.folder, name)) as publication:
            _write(publication, read_split(split, source, account), carried=source.carry is not None)
        facts = publication.facts()
        result = {"file": {"path": name, "size": facts.size, "sha256": facts.sha256}, "account": _as_json(account)}
        receipt = Receipt(digest=_digest(split), files={name: facts}, result=result)
        write_receipt(place.receipt, receipt)
    account_of = receipt.result["account"]
    return {
        "number": split.number,
        "source": split.source,
        "records": account_of["records"],
        "bad": account_of["bad"],
        "file": receipt.result["file"],
    }


def copied_files(job: Job, plan: Plan, results: list[dict[str, Any]]) -> dict[str, FileFacts]:
    """The copies of a run that lie in the corpus, by path.

    Raises:
        DataError: a split that was to be copied was not.
    """
    wanted = {split.number for split in copies(job, plan)}
    if {result["number"] for result in results} != wanted:
        raise DataError(f"{job.corpus}: {len(results)} copies of {len(wanted)} splits; run again")
    own = {split.number for split in plan.splits if job.source_of(split).copies is None}
    files = (result["file"] for result in results if result["number"] in own)
    return {str(file["path"]): FileFacts(file["size"], file["sha256"]) for file in files}


def read_records(job: Job, split: Split, source: SourceSettings, account: RecordAccount) -> Iterator[Batch]:
    """The good, non-empty texts of a split in order, from its copy where there is one; else as `read_split`.

    Raises:
        InputError: a record is bad and the policy is "fail", or a file is damaged.
        StorageError: a file cannot be read.
    """
    receipt = copy_receipt(job, split) if source.materialize else None
    if receipt is None:
        yield from join_batches(read_split(split, source, account))
        return
    _restore(account, receipt.result["account"])
    place = _place(job, split)
    path = join(place.folder, place.name)
    with open_read(path) as raw:
        try:
            file = pq.ParquetFile(raw, buffer_size=1 << 20, pre_buffer=False, page_checksum_verification=True)
            addressed = bool(source.clean.url_lists)
            for rows in file.iter_batches(_ROWS, use_threads=False):
                addresses = rows.column("url").to_pylist() if addressed else None
                carried = (
                    rows.column("carried").cast(pa.large_binary()).to_pylist() if source.carry is not None else None
                )
                yield Batch(rows.column("text").to_pylist(), rows.column("record").to_pylist(), addresses, carried)
        except (pa.ArrowException, OSError) as error:
            raise InputError(f"{path}: damaged copy: {error}; remove it and run again") from error


class _Place(NamedTuple):
    """Where the copy of a split is kept.

    Attributes:
        folder: folder or URL that the name counts from.
        name: path of the copy.
        receipt: path or URL of its receipt.
    """

    folder: str
    name: str
    receipt: str


def _place(job: Job, split: Split) -> _Place:
    source = job.source_of(split)
    if source.copies is None:
        receipt = item_receipt_path(job.corpus, _STEP, job.item(split))
        return _Place(job.corpus, raw_path(source.id, split.part), receipt)
    name = _digest(split)
    return _Place(source.copies, f"{name}.parquet", join(source.copies, f"{name}.json"))


def _digest(split: Split) -> str:
    return digest({"step": _STEP, "version": _VERSION, "reading": split.reading})


def copy_receipt(job: Job, split: Split) -> Receipt | None:
    """The receipt of a split's copy; None where it is not there, or not for this reading."""
    place = _place(job, split)
    return valid_receipt(place.folder, place.receipt, _digest(split))


def _write(publication: Publication, batches: Iterator[Batch], *, carried: bool) -> None:
    """Writes batches as row groups of bounded size, cut by what they hold alone."""
    schema = _SCHEMA.append(pa.field("carried", pa.large_string())) if carried else _SCHEMA
    options: dict[str, Any] = {"compression": "zstd", "use_dictionary": False, "write_statistics": False}
    with (
        pa.PythonFile(_Sink(publication), mode="w") as sink,
        pq.ParquetWriter(sink, schema, write_page_checksum=True, **options) as writer,
    ):
        held: list[pa.RecordBatch] = []
        rows, chars = 0, 0
        for batch in batches:
            urls = batch.addresses or [None] * len(batch.texts)
            columns = [
                pa.array(batch.records, pa.uint32()),
                pa.array(batch.texts, pa.large_string()),
                pa.array(urls, pa.string()),
                *([pa.array(batch.carried, pa.large_binary()).cast(pa.large_string())] if carried else ()),
            ]
            held.append(pa.record_batch(columns, schema=schema))
            rows, chars = rows + len(batch.texts), chars + sum(map(len, batch.texts))
            chars += sum(map(len, batch.carried or ()))
            if chars >= _GROUP_CHARS or rows >= _GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(held), row_group_size=rows)
                held, rows, chars = [], 0, 0
        if held:
            writer.write_table(pa.Table.from_batches(held), row_group_size=rows)


class _Sink(io.RawIOBase):
    """A publication as Arrow writes to it."""

    def __init__(self, publication: Publication) -> None:
        super().__init__()
        self._publication = publication

    def writable(self) -> bool:
        """Always."""
        return True

    def tell(self) -> int:
        """Bytes written so far."""
        return self._publication.size

    def write(self, data: Any) -> int:
        """Hands bytes on."""
        view = memoryview(data)
        self._publication.write(view)
        return view.nbytes


def _as_json(account: RecordAccount) -> dict[str, Any]:
    return {
        "records": account.records,
        "bad": account.bad,
        "dropped": dict(sorted(account.dropped.items())),
        "counted": dict(sorted(account.counted.items())),
        "samples": account.samples,
        "inputs": [list(entry) for entry in account.inputs],
        "last_bad": account.last_bad,
    }


def _restore(account: RecordAccount, kept: dict[str, Any]) -> None:
    """Fills a fresh account with that of the reading; no rule of cleaning shares a reason with a reader's."""
    account.records, account.bad = kept["records"], kept["bad"]
    account.dropped, account.counted = Counter(kept["dropped"]), Counter(kept["counted"])
    account.samples = list(kept["samples"])
    account.inputs = [(int(file), str(found), int(end)) for file, found, end in kept["inputs"]]
    account.last_bad = kept["last_bad"]
