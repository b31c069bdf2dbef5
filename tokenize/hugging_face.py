"""Tokenizers in Hugging Face's layout: a folder, or a repository of the hub.

A ``tokenizer.json`` is taken as it is, whatever class the folder names: `transformers` rebuilds some classes from
parts, which can change ids. It is asked only where there is no ``tokenizer.json``, always on files that are already on
this machine, and never with remote code. Fetching the few tokenizer files ourselves trades some requests for errors
that can be told in one sentence.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.formats.errors import MissingExtraError, TokenizerError
from gristmill.tokenize.byte_level import vocabulary_and_merges
from gristmill.tokenize.sentencepiece_model import check_conversion, is_sentencepiece, sentencepiece_tokenizer
from gristmill.tokenize.sources import (
    CONFIG_NAMES,
    LoadedTokenizer,
    import_transformers,
    own_marks,
    with_declared_tokens,
)
from gristmill.tokenize.tiktoken_file import is_tiktoken, tiktoken_tokenizer

__all__ = ["folder_tokenizer", "hub_folder", "is_hub_id", "is_tokenizer_file"]

_HUB_ID = re.compile(r"^[A-Za-z0-9][\w.\-]*(/[\w.\-]+)?(@[\w.\-/]+)?$")
_MODEL_NAMES = re.compile(
    r"^(tokenizer\.json|.*vocab\.json|.*vocab\.txt|.*merges\.txt|.*\.model|.*\.model\.v\d+|.*\.tiktoken|tekken\.json"
    r"|spiece\.model|vocab\.bpe|encoder\.json)$"
)


def is_tokenizer_file(name: str) -> bool:
    """Whether a file of a model's folder has to do with its tokenizer, by its name."""
    return name in CONFIG_NAMES or _MODEL_NAMES.match(name) is not None


def is_hub_id(path: str) -> bool:
    """Whether a string can be a hub repository's id: ``owner/name`` or ``name``, with ``@revision`` or not."""
    return _HUB_ID.match(path) is not None and ".." not in path


def folder_tokenizer(folder: Path, source: str) -> LoadedTokenizer:
    """Loads the tokenizer that a folder holds.

    The first of these that is there decides: ``tokenizer.json``; what `transformers.AutoTokenizer` makes of the folder,
    where a tokenizer_config.json or config.json says which class it is; one ``*vocab.json`` with one ``*merges.txt``;
    one SentencePiece model; one tiktoken file.

    Args:
        folder: a folder on this machine.
        source: names it in messages.

    Raises:
        TokenizerError: it holds no tokenizer, or one that cannot be loaded.
        MissingExtraError: a library that the kind needs is not installed.
    """
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file() and is_tokenizer_file(entry.name))
    configs = {name: (folder / name).read_bytes() for name in names if name in CONFIG_NAMES}
    if "tokenizer.json" in names:
        return _from_json((folder / "tokenizer.json").read_bytes(), configs, source)
    models = [name for name in names if name not in CONFIG_NAMES]
    if models and ("tokenizer_config.json" in configs or "config.json" in configs):
        if any(name.endswith(".model") and is_sentencepiece((folder / name).read_bytes()) for name in models):
            check_conversion(source)
        return _from_transformers(folder, configs, source)
    vocabularies = [name for name in models if name.endswith("vocab.json")]
    merges = [name for name in models if name.endswith("merges.txt")]
    if len(vocabularies) == 1 and len(merges) == 1:
        return vocabulary_and_merges((folder / vocabularies[0]).read_bytes(), (folder / merges[0]).read_bytes(), source)
    heads = {name: (folder / name).read_bytes() for name in models if not name.endswith((".json", ".txt"))}
    pieces = [name for name, data in heads.items() if is_sentencepiece(data)]
    ranks = [name for name, data in heads.items() if is_tiktoken(data)]
    if len(pieces) == 1 and not ranks:
        return sentencepiece_tokenizer(folder / pieces[0], source)
    if len(ranks) == 1 and not pieces:
        return tiktoken_tokenizer(heads[ranks[0]], ranks[0], source)
    raise TokenizerError(
        f"{source}: the folder's tokenizer cannot be told apart (found: {', '.join(names) or 'no file of one'}): "
        f"it needs a tokenizer.json, one vocab.json with merges.txt, one SentencePiece model or one tiktoken file; or "
        f"give the file itself"
    )


def _from_json(text: bytes, configs: Mapping[str, bytes], source: str) -> LoadedTokenizer:
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{source}/tokenizer.json: not UTF-8: {error}") from error
    eos, pad = own_marks(configs, source)
    return LoadedTokenizer(text=with_declared_tokens(decoded, configs, source), eos=eos, pad=pad)


def _from_transformers(folder: Path, configs: Mapping[str, bytes], source: str) -> LoadedTokenizer:
    transformers = import_transformers(f"the tokenizer of {source}")
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            str(folder), use_fast=True, trust_remote_code=False, local_files_only=True
        )
    except Exception as error:
        raise TokenizerError(
            f"{source}: transformers cannot load its tokenizer: {' '.join(str(error).split())}"
        ) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise TokenizerError(
            f"{source}: {type(tokenizer).__name__} has no form as a tokenizer.json, so it cannot be used here: give a "
            f"model with a tokenizer.json"
        )
    eos, pad = own_marks(configs, source)
    return LoadedTokenizer(
        text=str(backend.to_str()),
        eos=eos if tokenizer.eos_token is None else str(tokenizer.eos_token),
        pad=pad if tokenizer.pad_token is None else str(tokenizer.pad_token),
    )


def hub_folder(path: str) -> Path:
    """Fetches the tokenizer's files of a hub repository into the hub's own cache.

    ``HF_ENDPOINT``, ``HF_TOKEN``, ``HF_HOME`` and ``HF_HUB_OFFLINE`` of the environment apply, as `huggingface_hub`
    reads them when it is first imported.

    Args:
        path: ``owner/name`` or ``owner/name@revision``.

    Returns:
        The cached snapshot's folder.

    Raises:
        TokenizerError: the repository, the revision or a tokenizer in it is absent, or access was refused, or the hub
            cannot be reached.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise MissingExtraError("huggingface_hub", "prepare", f"the tokenizer {path!r} of the hub") from error
    repository, _, revision = path.partition("@")

    def fetch(name: str) -> Path | None:
        try:
            return Path(huggingface_hub.hf_hub_download(repository, name, revision=revision or None))
        except errors.LocalEntryNotFoundError:
            # Without a connection, only a note in the cache can tell a file that the hub does not have from a lost one.
            known = huggingface_hub.try_to_load_from_cache(repository, name, revision=revision or None)
            if known is huggingface_hub._CACHED_NO_EXIST:  # noqa: SLF001  the documented way to ask
                return None
            raise
        except errors.EntryNotFoundError:
            return None

    try:
        found = fetch("tokenizer.json")
        fetched = [found, *(fetch(name) for name in CONFIG_NAMES)]
        if found is None:
            listed = huggingface_hub.list_repo_files(repository, revision=revision or None)
            fetched += [fetch(name) for name in listed if "/" not in name and is_tokenizer_file(name)]
    except Exception as error:
        raise TokenizerError(_hub_message(path, error, errors)) from error
    here = [file for file in fetched if file is not None]
    if not here:
        raise TokenizerError(f"{path}: this hub repository holds no tokenizer file")
    return here[0].parent


def _hub_message(path: str, error: Exception, errors: Any) -> str:
    """One sentence for what the hub answered, or did not answer."""
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{path}: this hub repository is gated: ask for access on its page and set HF_TOKEN to a token that has it"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{path}: no such file or folder here, and no hub repository of this name is visible: check the spelling, "
            f"or set HF_TOKEN if it is private"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{path}: the hub repository has no such revision"
    if isinstance(error, errors.HFValidationError):
        return f"{path}: no such file or folder here, and no valid hub id either"
    reason = " ".join(str(error).split())
    if isinstance(error, errors.OfflineModeIsEnabled | errors.LocalEntryNotFoundError):
        return (
            f"{path}: the hub cannot be reached and its files are not in the cache: check the network and "
            f"HF_ENDPOINT, unset HF_HUB_OFFLINE, or give a local tokenizer.json ({reason})"
        )
    return f"{path}: the hub refused or failed: {reason or type(error).__name__}"
