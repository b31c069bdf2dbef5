"""The recipe: one TOML file that describes a corpus, checked as a whole before any work.

A recipe is data: reading it opens no input and resolves no tokenizer. All mistakes are reported at once. It holds no
setting that the trainer owns (mesh, batch size), and what it is named by never depends on where files lie.
"""

import re
import tomllib
from dataclasses import asdict, dataclass, field
from typing import Any

from gristmill.formats.carry_table import Carry, read_carry
from gristmill.formats.clean_settings import CleanSettings
from gristmill.formats.clean_table import read_clean
from gristmill.formats.dedup_table import ParagraphDedup, key_identity, read_dedup
from gristmill.formats.errors import Problem, RecipeError, SettingsError, StorageError
from gristmill.formats.fingerprint import digest
from gristmill.formats.hub_table import HubDataset, read_hub
from gristmill.formats.index_plan import IndexSettings
from gristmill.formats.index_table import read_index
from gristmill.formats.limits_table import Budget, Limits, note_shares, read_budget, read_limits
from gristmill.formats.near_table import NearDedup
from gristmill.formats.settings_table import SettingsTable
from gristmill.formats.storage import read_bytes
from gristmill.formats.text_form import TextForm, text_form
from gristmill.formats.text_table import read_template

__all__ = [
    "DEFAULT_SEED",
    "DEFAULT_SPLITS",
    "DEFAULT_TARGET_TOKENS",
    "FORMATS",
    "parse_recipe",
    "read_recipe",
    "Recipe",
    "SourceSettings",
    "STREAM",
    "TokenizerSettings",
]

DEFAULT_SEED = 1234
"""Seed of a recipe that names none; Megatron's."""

DEFAULT_TARGET_TOKENS = 50_000_000
"""Tokens per shard of a recipe that says nothing."""

DEFAULT_SPLITS = "969,30,1"
"""Proportions of training, validation and test of an index that names none; Megatron's."""

FORMATS = ("auto", "jsonl", "parquet", "arrow", "csv", "warc", "tfrecord", "array_record", "text", "python")
"""What `format` of a source may say."""

STREAM = "stream"
"""The format of what is no file but a shard of a dataset of the hub, which no recipe names."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME_SAYS = "letters, digits, dots, dashes and underscores, starting with a letter or digit"
_ID_SAYS = f"{_NAME_SAYS}, not ending in .npy"
_MOST_TOKENS_PER_SHARD = 2**40
_READING = (
    *("format", "text_field", "extra_text_field", "separator", "template", "html", "document", "record", "carry"),
    *("bad_records", "invalid_text", "expect_damaged"),
)
_UNUSED = {"record": "example", "carry": None}  # what says that a setting which came later is not used
_PLACES = ("files", "hub", "materialize", "copies")  # say where a source's files lie, which decides no document


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerSettings:
    """Which tokenizer a corpus is made with.

    Attributes:
        path: hub id, folder, tokenizer.json, SentencePiece model or tiktoken file; a path or URL.
        eod: text or id of the end-of-document token; None takes the tokenizer's own.
        control_text: "ordinary" encodes text that spells a control token like any other text; "keep" makes the token.
    """

    path: str
    eod: str | int | None
    control_text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSettings:
    """One source of text.

    Attributes:
        id: its name in folders, reports and batches.
        files: files, folders, globs or URLs; empty where a dataset of the hub is read.
        format: "auto" goes by each file's name.
        text_field: field or column that holds the text.
        extra_text_field: second field, joined behind the first; None for none.
        separator: what joins the two.
        template: text with fields in braces, in place of those three; None for none.
        html: what becomes text of a web archive's pages: "main", their main content, or "all".
        document: what a document of a text file is: "file" or "line".
        record: what a record of a TFRecord or ArrayRecord file is: "example", "json" or "text".
        carry: fields that are kept beside each document, or None.
        weight: share of the training samples; None where no source has one.
        max_epochs: how often the training split may use it; None for any.
        bad_records: "fail" stops at the first bad record, "skip" counts it and goes on.
        max_bad_fraction: share of bad records above which "skip" fails too, 0 to 1.
        invalid_text: "bad" makes text that is no valid UTF-8 a bad record; "replace" puts U+FFFD and counts it.
        expect_damaged: input files (paths relative to their pattern) that are known to be cut short.
        clean: cleaning and deduplication.
        limits: the most that is taken of it.
        hub: the dataset of the hub that is read in place of files, or None.
        materialize: whether the download stage copies the texts, and later stages read the copy.
        copies: folder or URL of copies that several recipes share; None keeps them in the corpus.
    """

    id: str
    files: tuple[str, ...]
    format: str
    text_field: str
    extra_text_field: str | None
    separator: str
    template: str | None
    html: str
    document: str
    weight: float | None
    max_epochs: float | None
    bad_records: str
    max_bad_fraction: float
    invalid_text: str
    expect_damaged: tuple[str, ...]
    clean: CleanSettings
    limits: Limits = field(default_factory=Limits)
    hub: HubDataset | None = None
    materialize: bool = False
    copies: str | None = None
    record: str = "example"
    carry: Carry | None = None

    @property
    def form(self) -> TextForm:
        """How the text is put together from a record's fields."""
        return text_form(self.text_field, self.extra_text_field, self.separator, self.template)

    def reading(self) -> dict[str, Any]:
        """What decides which texts and addresses reading gives, before any of them is cleaned."""
        address = self.clean.url_field if self.clean.url_lists else None
        return _told({name: getattr(self, name) for name in _READING} | {"address": address})

    def identity(self) -> dict[str, Any]:
        """Everything that decides the source's documents, without where the files lie, how much is taken of
        them and how they are mixed."""
        values = asdict(self)
        for name in ("limits", "weight", "max_epochs", *_PLACES):
            del values[name]
        values["clean"] = self.clean.identity()
        return _told(values)


def _told(values: dict[str, Any]) -> dict[str, Any]:
    """Settings of a source without those that came later and are not used, so that digests stay what they were."""
    return {name: value for name, value in values.items() if name not in _UNUSED or value != _UNUSED[name]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole recipe, valid by itself.

    Attributes:
        name: name of the corpus.
        output: folder or URL of the corpus.
        seed: seed of every shuffle.
        tokenizer: the tokenizer.
        sources: the sources, in order of priority.
        target_tokens: tokens per shard, reached to within one document.
        index: the index set, or None for shards only.
        near_dedup: how near duplicates are found, or None for not at all.
        paragraph_dedup: how repeated paragraphs are found, or None for not at all.
        dedup_key: what of a text or paragraph is compared, one of `dedup_table.TEXT_KEYS`.
        budget: tokens of the whole recipe.
    """

    name: str
    output: str
    seed: int
    tokenizer: TokenizerSettings
    sources: tuple[SourceSettings, ...]
    target_tokens: int
    index: IndexSettings | None
    near_dedup: NearDedup | None = None
    paragraph_dedup: ParagraphDedup | None = None
    dedup_key: str = "normalized"
    budget: Budget = field(default_factory=Budget)

    def digest(self) -> str:
        """Digest of the recipe without `output` and without where inputs and tokenizer lie."""
        values = asdict(self)
        del values["output"]
        del values["tokenizer"]["path"]
        for source, own in zip(values["sources"], self.sources, strict=True):
            for name in _PLACES:
                del source[name]
            source["clean"] = own.clean.identity()
        values["sources"] = [_told(source) for source in values["sources"]]
        values["dedup_key"] = self.key_identity()
        if self.paragraph_dedup is None:
            del values["paragraph_dedup"]
        return digest(values)

    def key_identity(self) -> dict[str, Any] | None:
        """What the keys of its texts follow from, as JSON values; None where no texts are compared."""
        compares = self.paragraph_dedup is not None or any(source.clean.exact_dedup for source in self.sources)
        return key_identity(self.dedup_key) if compares else None


def read_recipe(path: str, *, output: str | None = None) -> Recipe:
    """Reads and checks a recipe.

    Args:
        path: path or URL of the TOML file.
        output: replaces the recipe's `output`.

    Raises:
        SettingsError: the file is missing or no TOML.
        RecipeError: it has mistakes; all are listed.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except StorageError as error:
        raise SettingsError(f"{error}; a recipe is a TOML file").about(file=path) from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: a recipe must be UTF-8 text: {error}").about(file=path) from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: no valid TOML: {error}").about(file=path) from error
    if output is not None:
        values["output"] = output
    try:
        return parse_recipe(values, path)
    except RecipeError as error:
        raise error.about(file=path) from None


def parse_recipe(values: dict[str, Any], where: str = "recipe") -> Recipe:
    """Checks a recipe given as nested dictionaries.

    Args:
        values: what the TOML file holds.
        where: what messages call it.

    Raises:
        RecipeError: it has mistakes; all are listed.
    """
    problems: list[Problem] = []
    top = SettingsTable(values, "", problems)
    name = top.take("name", str, "", required=True, rule=_is_name, says=_NAME_SAYS)
    output = top.take("output", str, "", required=True, rule=bool, says="a folder or URL")
    seed = top.take(
        "seed", int, DEFAULT_SEED, rule=lambda value: 0 <= value < 2**32, says="an integer from 0 to 4294967295"
    )
    tokenizer = _tokenizer(top.table("tokenizer", required=True))
    defaults = top.table("defaults")
    clean = read_clean(defaults, CleanSettings())
    defaults.finish()
    sources = tuple(_source(table, clean) for table in top.tables("sources"))
    shards = top.table("shards")
    target = shards.take(
        "target_tokens",
        int,
        DEFAULT_TARGET_TOKENS,
        rule=lambda value: 0 < value <= _MOST_TOKENS_PER_SHARD,
        says=f"a number of tokens, 1 to {_MOST_TOKENS_PER_SHARD}",
    )
    shards.finish()
    ids, cleaned = [source.id for source in sources], [source.clean.enabled for source in sources]
    near, paragraphs, key = read_dedup(top, ids, cleaned)
    weights = {source.id: source.weight for source in sources}
    index = None
    if top.has("index"):
        index = read_index(top.table("index"), seed=seed or 0, weights=weights, splits=DEFAULT_SPLITS)
    budget = read_budget(top.table("budget"))
    note_shares(top, budget, ids, [source.weight for source in sources])
    top.finish()
    _check_sources(sources, problems)
    _check_weights(sources, index, problems)
    if problems:
        raise RecipeError(where, problems)
    return Recipe(
        name=name or "",
        output=(output or "").rstrip("/") or "/",
        seed=DEFAULT_SEED if seed is None else seed,
        tokenizer=tokenizer,
        sources=sources,
        target_tokens=target or DEFAULT_TARGET_TOKENS,
        index=index,
        near_dedup=near,
        paragraph_dedup=paragraphs,
        dedup_key=key,
        budget=budget,
    )


def _is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def _is_id(text: str) -> bool:
    return _is_name(text) and not text.endswith(".npy")  # a source's folder lies beside index arrays


def _tokenizer(table: SettingsTable) -> TokenizerSettings:
    path = table.take("path", str, "", required=bool(table.path), rule=bool, says="a hub id, folder, file or URL")
    eod: str | int | None = None
    says = "the text of one token, or its id"
    if isinstance(table.peek("eod"), int):
        eod = table.take("eod", int, None, rule=lambda value: value >= 0, says=says)
    else:
        eod = table.take("eod", str, None, rule=bool, says=says)
    control = table.choice("control_text", ("ordinary", "keep"), "ordinary")
    table.finish()
    return TokenizerSettings(path=path or "", eod=eod, control_text=control)


def _source(table: SettingsTable, clean: CleanSettings) -> SourceSettings:
    copies = table.take("copies", str, None, rule=bool, says="a folder or URL")
    source = SourceSettings(
        id=table.take("id", str, "", required=True, rule=_is_id, says=_ID_SAYS) or "",
        files=table.strings("files", required=not table.has("dataset")),
        format=table.choice("format", FORMATS, "auto"),
        text_field=table.take("text_field", str, "text", rule=bool, says="the name of a field") or "text",
        extra_text_field=table.take("extra_text_field", str, None, rule=bool, says="the name of a field"),
        separator=table.take("separator", str, "\n\n") or "",
        template=read_template(table),
        html=table.choice("html", ("main", "all"), "main"),
        document=table.choice("document", ("file", "line"), "file"),
        record=table.choice("record", ("example", "json", "text"), "example"),
        carry=read_carry(table),
        weight=table.take("weight", float, None, rule=lambda value: value >= 0, says="a finite number, 0 or more"),
        max_epochs=table.take("max_epochs", float, None, rule=lambda value: value > 0, says="a number above 0"),
        bad_records=table.choice("bad_records", ("fail", "skip"), "fail"),
        max_bad_fraction=_or(
            table.take(
                "max_bad_fraction", float, 0.01, rule=lambda value: 0 <= value <= 1, says="a fraction from 0 to 1"
            ),
            0.01,
        ),
        invalid_text=table.choice("invalid_text", ("bad", "replace"), "bad"),
        expect_damaged=table.strings("expect_damaged"),
        clean=read_clean(table, clean),
        limits=read_limits(table),
        hub=read_hub(table),
        materialize=bool(table.take("materialize", bool, copies is not None)),
        copies=copies,
    )
    if copies is not None and not source.materialize:
        table.note("copies", "says where copies are kept, but materialize = false makes none")
    if table.has("separator") and not table.has("extra_text_field"):
        table.note("separator", "joins text_field and extra_text_field, but there is no extra_text_field")
    table.finish()
    return source


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _check_sources(sources: tuple[SourceSettings, ...], problems: list[Problem]) -> None:
    seen: dict[str, int] = {}
    for number, source in enumerate(sources):
        if source.id and source.id in seen:
            problems.append(
                Problem(
                    f"sources[{number}].id", f'is "{source.id}", as is sources[{seen[source.id]}].id; ids must differ'
                )
            )
        seen.setdefault(source.id, number)


def _check_weights(sources: tuple[SourceSettings, ...], index: IndexSettings | None, problems: list[Problem]) -> None:
    weighted = [number for number, source in enumerate(sources) if source.weight is not None]
    if not weighted:
        return
    for number, source in enumerate(sources):
        if source.weight is None:
            problems.append(
                Problem(f"sources[{number}].weight", "is missing; either every source has a weight or none")
            )
    if len(weighted) == len(sources) and not any(source.weight for source in sources):
        problems.append(Problem("sources", "every weight is 0; at least one must be above 0"))
    if index is None:
        return
    if index.train.epochs is not None:
        problems.append(
            Problem(
                "index.epochs", "cannot be kept together with weights; give samples or tokens, or leave weights out"
            )
        )
    elif index.train.samples is None and len(sources) > 1:
        problems.append(
            Problem("index", "weights need a size to be shares of; give samples or tokens (or epochs without weights)")
        )
