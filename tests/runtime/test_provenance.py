"""Where rows came from: from the tokens of a row back to the texts of the input files."""

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from gristmill.formats.errors import CorpusError, SettingsError, StorageError
from gristmill.formats.manifest import read_manifest
from gristmill.runtime import RowPiece, open_corpus, open_megatron
from gristmill.runtime.decoder import open_decoder
from gristmill.runtime.provenance import CorpusProvenance

TEXTS = {
    "web": [f"the {number}th page of the web, {'fox ' * (number % 7)}ends" for number in range(50)],
    "code": [f"def f{number}():\n    return {number}" for number in range(25)],
}


@pytest.fixture(scope="module")
def prepared(new_workshop: Callable[[], Any]) -> Any:
    """A corpus of two sources of several files, prepared from real texts; its folder is `out`."""
    workshop = new_workshop()
    for name, texts in TEXTS.items():
        for part in range(3):
            workshop.jsonl(f"{name}/{part}.jsonl", texts[part::3])
    sources = [{"id": name, "files": [f"{workshop.folder}/{name}"], "weight": 0.5} for name in TEXTS]
    index = {"sequence_length": 24, "samples": 40, "splits": "8,1,1"}
    workshop.prepare(*sources, index=index, shards={"target_tokens": 500})
    return workshop


def text_of(piece: RowPiece) -> str:
    """The text of the record that a piece says it is from."""
    assert piece.origin is not None
    part = int(Path(piece.origin.input).stem)
    return TEXTS[piece.source][part::3][piece.origin.record]


@pytest.mark.parametrize("split", ["train", "valid"])
def test_every_piece_leads_to_its_text(prepared: Any, split: str) -> None:
    corpus = open_corpus(prepared.folder / "out")
    stream = corpus.stream(split)
    decode = open_decoder(corpus.tokenizer_path)
    encode = Tokenizer.from_file(corpus.tokenizer_path).encode
    tokens = stream.read(range(len(stream)))
    for row in range(len(stream)):
        pieces = stream.describe(row, text=True)
        assert sum(piece.stop - piece.start for piece in pieces) == stream.sequence_length + 1
        for piece in pieces:
            ids = [*encode(text_of(piece)).ids, stream.eod_id]
            part = tokens[row, piece.column : piece.column + piece.stop - piece.start].tolist()
            assert ids[piece.start : piece.stop] == part
            assert piece.text == decode(part)
        plain = stream.describe(row)
        assert [piece.text for piece in plain] == [None] * len(plain)
        assert [piece.origin for piece in plain] == [piece.origin for piece in pieces]


def test_it_travels_as_the_folder(prepared: Any) -> None:
    stream = open_corpus(prepared.folder / "out").stream()
    described = stream.describe(3, text=True)
    travelled = pickle.loads(pickle.dumps(stream))
    assert travelled.describe(3, text=True) == described
    assert travelled.provenance == stream.provenance == CorpusProvenance(str(prepared.folder / "out"))
    assert hash(travelled.provenance) == hash(stream.provenance)
    assert repr(stream.provenance) == f"CorpusProvenance('{prepared.folder}/out')"
    assert len(pickle.dumps(stream.provenance)) < 300


def test_a_corpus_in_an_object_store(prepared: Any, tmp_path: Path) -> None:
    from gristmill.formats.storage import write_bytes

    local = open_corpus(prepared.folder / "out").stream()
    url = f"memory://{tmp_path.name}"
    for path in (prepared.folder / "out").rglob("*"):
        if path.is_file():
            write_bytes(f"{url}/{path.relative_to(prepared.folder / 'out')}", path.read_bytes())
    assert open_corpus(url).stream().describe(5, text=True) == local.describe(5, text=True)


def test_data_of_anyone_have_no_origin(prepared: Any) -> None:
    corpus = open_corpus(prepared.folder / "out")
    prefix = f"{corpus.folder}/{corpus.manifest.sources[0].shards[0].path}"
    stream = open_megatron(prefix, sequence_length=24, eod_id=0)
    pieces = stream.describe(0)
    assert [piece.origin for piece in pieces] == [None] * len(pieces)
    assert stream.tokenizer_fingerprint is None
    with pytest.raises(SettingsError, match=r"its data name no tokenizer, so ids cannot be shown as text; name the"):
        stream.describe(0, text=True)
    (piece, *_) = stream.describe(0, tokenizer=corpus.tokenizer_path)
    assert piece.text is not None
    assert piece.text in f"{TEXTS['web'][3 * piece.document]}<|endoftext|>"  # the shard begins with the first file


def test_a_corpus_that_keeps_no_records(make_corpus: Any) -> None:
    folder = make_corpus()
    make_corpus.index(folder, samples=20)
    stream = open_corpus(folder).stream()
    assert stream.describe(0)[0].origin is None
    assert stream.tokenizer_fingerprint == "0" * 64
    with pytest.raises(CorpusError, match=r"tokenizer/tokenizer\.json: no tokenizer there, so ids cannot be shown"):
        stream.describe(0, text=True)


def test_what_does_not_fit_is_told(prepared: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(prepared.folder / "out", tmp_path / "out"))
    stream = open_corpus(folder).stream()
    known = CorpusProvenance(str(folder))
    with pytest.raises(
        CorpusError, match=r"holds no shard tokens/other of source 'web' any more: it was prepared anew"
    ):
        known.origin("web", "tokens/other", 0)
    shard = read_manifest(str(folder)).sources[0].shards[0].path
    assert known.origin("web", shard, 0) is not None
    path = folder / f"{shard}.rec"
    data = path.read_bytes()
    documents = read_manifest(str(folder)).sources[0].shards[0].documents
    path.write_bytes(data[: 4 * documents + 16] + b"\x09" + data[4 * documents + 17 :])
    with pytest.raises(
        CorpusError, match=r"\.rec: document 0 is from input 9 of source 'web', which has 3; `gristmill"
    ):
        CorpusProvenance(str(folder)).origin("web", shard, 0)
    for path in folder.glob("tokens/*/*.rec"):
        path.unlink()
    with pytest.raises(StorageError, match=r"\.rec: cannot"):
        stream.describe(0)
    assert len(stream.read([0])) == 1, "reading does not need to know"
