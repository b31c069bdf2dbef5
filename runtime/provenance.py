"""From a document of a corpus back to the record of an input file that it was made of.

Nothing is read until somebody asks, and then a few small ranges: a training job carries this along for nothing. It is
kept as the corpus's folder alone, so what it tells is what lies there when it is asked.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.formats.errors import CorpusError
from gristmill.formats.manifest import read_manifest
from gristmill.formats.metadata import MetadataFile
from gristmill.formats.origins import OriginFile, origins_path
from gristmill.formats.storage import join
from gristmill.runtime.decoder import Decode, open_decoder

__all__ = ["carried_line", "CorpusProvenance", "Origin"]

_SHOWN = 160
_FILES_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The record that a document was made of.

    Attributes:
        input: path of the input file, relative to the recipe's pattern, as the manifest has it.
        record: number of the record within the file, from 0: of a line (blank ones do not count) or of a Parquet row.
        split: number of the split of the source that the record was read in; `rejected/` and `clean/` are named by it.
        split_record: number of the record within the split.
        carried: what the recipe carries along with the document (`id`, and other fields by name), as JSON values; None
            where it carries nothing.
    """

    input: str
    record: int
    split: int
    split_record: int
    carried: Mapping[str, Any] | None = None


def carried_line(carried: Mapping[str, Any]) -> str:
    """What a document carries along, on one line for people; a long value is shown in part."""
    values = ((name, value if isinstance(value, str) else json.dumps(value)) for name, value in carried.items())
    return ", ".join(f"{name} {text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}" for name, text in values)


class CorpusProvenance:
    """Says where the documents of one corpus came from, and decodes them. Safe to use from many threads.

    Attributes:
        folder: of the corpus, as path or URL.
    """

    def __init__(self, folder: str) -> None:
        """Reads nothing."""
        self.folder = folder
        self._lock = threading.Lock()
        self._inputs: dict[str, Sequence[str]] | None = None
        self._known: dict[str, bool] = {}
        self._carrying: set[str] = set()
        self._files: OrderedDict[str, OriginFile] = OrderedDict()
        self._decode: Decode | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return (CorpusProvenance, (self.folder,))

    def __repr__(self) -> str:
        return f"CorpusProvenance({self.folder!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CorpusProvenance) and other.folder == self.folder

    def __hash__(self) -> int:
        return hash(self.folder)

    def origin(self, source: str, shard: str, document: int) -> Origin | None:
        """The record that a document was made of; None where the corpus does not keep it.

        Args:
            source: name of the source.
            shard: the shard's prefix inside the corpus.
            document: number of the document in the shard.

        Raises:
            CorpusError: the corpus is not the one any more that had this shard.
            FormatError: its manifest, `.rec` or `.meta` files are damaged.
            StorageError: a file cannot be read.
        """
        with self._lock:
            inputs = self._read_manifest()
            if shard not in self._known or source not in inputs:
                raise CorpusError(
                    f"{self.folder}: holds no shard {shard} of source {source!r} any more: it was prepared anew since "
                    "the stream was opened"
                )
            if not self._known[shard]:
                return None
            file = self._files.pop(shard, None) or OriginFile(origins_path(join(self.folder, shard)))
            self._files[shard] = file
            if len(self._files) > _FILES_KEPT:
                self._files.popitem(last=False)
            place = file.place(document)
        names = inputs[source]
        if place.input >= len(names):
            raise CorpusError(
                f"{file.path}: document {document} is from input {place.input} of source {source!r}, which has "
                f"{len(names)}; `gristmill verify` lists what does not fit"
            )
        carried = MetadataFile(join(self.folder, shard)).values(document) if shard in self._carrying else None
        return Origin(
            input=names[place.input],
            record=place.record,
            split=place.split,
            split_record=place.split_record,
            carried=carried,
        )

    def decode(self, ids: list[int]) -> str:
        """Text of ids, by the corpus's own tokenizer.

        Raises:
            CorpusError: the corpus has no readable tokenizer.
            MissingExtraError: the `tokenizers` library is not installed.
        """
        with self._lock:
            if self._decode is None:
                self._decode = open_decoder(join(self.folder, "tokenizer", "tokenizer.json"))
            return self._decode(ids)

    def _read_manifest(self) -> dict[str, Sequence[str]]:
        if self._inputs is None:
            manifest = read_manifest(self.folder)
            shards = [shard for source in manifest.sources for shard in source.shards]
            self._known = {shard.path: shard.rec is not None for shard in shards}
            self._carrying = {shard.path for shard in shards if shard.meta is not None}
            self._inputs = {source.id: [entry.path for entry in source.inputs] for source in manifest.sources}
        return self._inputs
