"""From what a recipe calls its tokenizer to all that a corpus needs to know about it; done once, in the launcher.

A path may name, and is told apart by what is there rather than by its ending:

    a ``tokenizer.json``            taken as it is; config files beside it say which token is its eos
    a folder in Hugging Face's way  see `hugging_face.folder_tokenizer`
    a GPT-2 pair                    a folder with one ``*vocab.json`` and one ``*merges.txt``, or the path of the former
                                    with the latter beside it under the same name
    a SentencePiece ``.model``      converted with `transformers`, compared with `sentencepiece`
    a tiktoken file                 see `tiktoken_file` for the encodings that are known
    a hub id                        ``owner/name`` or ``owner/name@revision``

Files and folders may be local or any URL that fsspec opens. What exists on this machine wins over a hub id of the same
spelling.
"""

import logging
import os
import tempfile
from pathlib import Path

from tokenizers import Tokenizer

from gristmill.formats import storage
from gristmill.formats.errors import StorageError, TokenizerError
from gristmill.tokenize.byte_level import vocabulary_and_merges
from gristmill.tokenize.canonical import (
    canonical_text,
    check_added_tokens,
    load_definition,
    missing_bytes,
    parse_tokenizer,
    spellable_tokens,
)
from gristmill.tokenize.definition import HuggingFaceEngine
from gristmill.tokenize.end_mark import find_eod, find_pad
from gristmill.tokenize.hugging_face import folder_tokenizer, hub_folder, is_hub_id, is_tokenizer_file
from gristmill.tokenize.probe import probe_texts
from gristmill.tokenize.resolved import ResolvedTokenizer, fingerprint_of, token_dtype
from gristmill.tokenize.sentencepiece_model import is_sentencepiece, sentencepiece_tokenizer
from gristmill.tokenize.sources import CONFIG_NAMES, LoadedTokenizer, own_marks, with_declared_tokens
from gristmill.tokenize.tiktoken_file import is_tiktoken, tiktoken_tokenizer

__all__ = ["load_tokenizer", "resolve_tokenizer"]

_log = logging.getLogger("gristmill.tokenize")
_FILE_ENDINGS = (".json", ".model", ".tiktoken", ".txt", ".bpe")
_CHECKED_TEXTS = 400


def resolve_tokenizer(
    path: str, eod: str | int | None = None, *, base_folder: str | None = None, pad: str | int | None = None
) -> ResolvedTokenizer:
    """Loads a tokenizer of any known kind and fixes its EOD, vocabulary and dtype.

    Args:
        path: what the module's docstring lists.
        eod: the token that closes every document: its text (exactly one entry of the vocabulary), its id, or None for
            the tokenizer's own eos.
        base_folder: what a relative local path is relative to; None is the current folder.
        pad: padding token, by text or id; None takes the tokenizer's own, which may be none.

    Raises:
        TokenizerError: no tokenizer is there, it cannot be loaded, or its EOD is unknown or not in the vocabulary.
        MissingExtraError: a library that this kind needs is not installed.
        StorageError: a file cannot be read.
    """
    loaded = load_tokenizer(path, base_folder=base_folder)
    data = parse_tokenizer(loaded.text, path)
    original = load_definition(loaded.text, path)
    check_added_tokens(data, original, path)
    eod_id, eod_token = find_eod(original, eod, loaded.eos, path)
    pad_id = find_pad(original, pad, loaded.pad, path)

    model_type = type(original.model).__name__
    json_text = canonical_text(data, model_type, eod_token)
    canonical = load_definition(json_text.decode("utf-8"), path)
    vocabulary = _check_same(original, canonical, path)
    control = {number: token.content for number, token in canonical.get_added_tokens_decoder().items() if token.special}
    control[eod_id] = eod_token
    special_tokens = tuple(token for _, token in sorted(control.items()))
    if missing := missing_bytes(data, model_type):
        _log.warning(
            "%s: %d of the 256 bytes are not in the vocabulary: text that holds one loses it without a word",
            path,
            missing,
        )
    resolved = ResolvedTokenizer(
        json_text=json_text,
        fingerprint=fingerprint_of(json_text, eod_id),
        eod_id=eod_id,
        eod_token=eod_token,
        pad_id=pad_id,
        vocabulary=vocabulary,
        dtype=token_dtype(vocabulary),
        special_tokens=special_tokens,
        disarmed_tokens=spellable_tokens(canonical, special_tokens),
        source=path,
    )
    _compare_with_reference(resolved, loaded)
    return resolved


def load_tokenizer(path: str, *, base_folder: str | None = None) -> LoadedTokenizer:
    """Finds out what kind of tokenizer a path names and reads it; see `resolve_tokenizer`."""
    if not path:
        raise TokenizerError("the tokenizer's path is empty: give a file, a folder or a hub id")
    if not storage.is_local(path):
        return _from_url(path)
    place = storage.local_path(path).expanduser()
    if base_folder is not None and not place.is_absolute():
        place = Path(os.path.join(storage.local_path(base_folder), place))
    if place.is_dir():
        return folder_tokenizer(place, path)
    if place.is_file():
        return _from_file(place, path)
    if path.startswith(("/", ".", "~", "file://")) or path.endswith(_FILE_ENDINGS) or not is_hub_id(path):
        raise TokenizerError(f"{path}: no such tokenizer file or folder (looked for {place})")
    return folder_tokenizer(hub_folder(path), path)


def _from_file(place: Path, source: str) -> LoadedTokenizer:
    """A single file on this machine, told apart by its contents."""
    try:
        data = place.read_bytes()
    except OSError as error:
        raise StorageError(f"{source}: cannot be read: {error.strerror or error}") from error
    if data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"{"):
        merges = _merges_beside(place)
        if merges is not None and b'"model"' not in data[:100_000]:
            return vocabulary_and_merges(data, merges.read_bytes(), source)
        beside = {name: (place.parent / name).read_bytes() for name in CONFIG_NAMES if (place.parent / name).is_file()}
        # Files beside a tokenizer under another name may belong to something else.
        configs = beside if place.name == "tokenizer.json" else {}
        eos, pad = own_marks(configs, source)
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise TokenizerError(f"{source}: not UTF-8: {error}") from error
        return LoadedTokenizer(text=with_declared_tokens(text, configs, source), eos=eos, pad=pad)
    if is_tiktoken(data):
        return tiktoken_tokenizer(data, place.name, source)
    if is_sentencepiece(data):
        return sentencepiece_tokenizer(place, source)
    raise TokenizerError(
        f"{source}: neither a tokenizer.json, nor a GPT-2 vocab.json, a SentencePiece model or a tiktoken file"
    )


def _merges_beside(place: Path) -> Path | None:
    """``gpt2-merges.txt`` beside ``gpt2-vocab.json``, and so on."""
    if not place.name.endswith("vocab.json"):
        return None
    merges = place.with_name(place.name.removesuffix("vocab.json") + "merges.txt")
    return merges if merges.is_file() else None


def _from_url(path: str) -> LoadedTokenizer:
    """A file or folder of an object store: what belongs to the tokenizer is copied here first."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        wanted = [file for file in storage.list_files(path) if is_tokenizer_file(storage.base_name(file))]
        if wanted and storage.base_name(path) != storage.base_name(wanted[0]):
            _copy(wanted, folder)
            return folder_tokenizer(folder, path)
        name = storage.base_name(path)
        parent = path[: -len(name)].rstrip("/")
        beside = {*CONFIG_NAMES, name.removesuffix("vocab.json") + "merges.txt"}
        if not storage.exists(path):
            raise TokenizerError(f"{path}: no such tokenizer file or folder")
        _copy([path, *(file for file in storage.list_files(parent) if storage.base_name(file) in beside)], folder)
        return _from_file(folder / name, path)


def _copy(files: list[str], folder: Path) -> None:
    for file in files:
        (folder / storage.base_name(file)).write_bytes(storage.read_bytes(file))


def _check_same(original: Tokenizer, canonical: Tokenizer, source: str) -> int:
    """Checks that making a tokenizer canonical changed no id, and returns the smallest number above every id."""
    vocab = canonical.get_vocab(with_added_tokens=True)
    if vocab != original.get_vocab(with_added_tokens=True):
        raise TokenizerError(f"{source}: its canonical form has other ids than the file: please report this tokenizer")
    texts = probe_texts()[:_CHECKED_TEXTS]
    for tokenizer in (original, canonical):
        tokenizer.encode_special_tokens = True
    encoded = zip(
        original.encode_batch(texts, add_special_tokens=False), canonical.encode_batch(texts, add_special_tokens=False)
    )
    for text, (before, after) in zip(texts, encoded):
        if before.ids != after.ids:
            raise TokenizerError(
                f"{source}: its canonical form encodes {text!a} otherwise: please report this tokenizer"
            )
    return max(vocab.values()) + 1


def _compare_with_reference(resolved: ResolvedTokenizer, loaded: LoadedTokenizer) -> None:
    """Warns where the converted tokenizer and the library that it came from disagree."""
    if loaded.reference is None:
        return
    texts = probe_texts(resolved.special_tokens)
    ids, offsets = HuggingFaceEngine(resolved).encode(texts)
    different = [
        text
        for number, text in enumerate(texts)
        if loaded.reference(text) != ids[offsets[number] : offsets[number + 1]].tolist()
    ]
    if different:
        _log.warning(
            "%s: the converted tokenizer gives other ids than the original library for %d of %d hostile texts, first "
            "for %a; the converted one is what the corpus is made and described with",
            resolved.source,
            len(different),
            len(texts),
            different[0][:40],
        )
