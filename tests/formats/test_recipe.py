"""The recipe: every key, every default, every mistake at once with its path, its value, the rule and a suggestion."""

import copy
import dataclasses
import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.formats.clean_settings import CleanSettings
from gristmill.formats.errors import RecipeError, SettingsError
from gristmill.formats.index_plan import IndexSettings, SplitRequest
from gristmill.formats.recipe import (
    DEFAULT_SEED,
    DEFAULT_SPLITS,
    DEFAULT_TARGET_TOKENS,
    Recipe,
    SourceSettings,
    TokenizerSettings,
    parse_recipe,
    read_recipe,
)

LEAST: dict[str, Any] = {
    "name": "tiny",
    "output": "out",
    "tokenizer": {"path": "tokenizer.json"},
    "sources": [{"id": "web", "files": "web.jsonl"}],
}
FULL = """
name   = "web-code.v2"
output = "gs://bucket/corpora/web-code/"
seed   = 4294967295

[tokenizer]
path = "meta-llama/Llama-3.1-8B"
eod  = 128001
control_text = "keep"

[defaults.clean]
min_chars = 50
max_chars = 100000
exact_dedup = false

[[sources]]
id = "web"
files = ["gs://bucket/web/*.jsonl.zst", "more/"]
format = "jsonl"
text_field = "problem"
extra_text_field = "solution"
separator = ""
weight = 0.7
max_epochs = 4
bad_records = "skip"
max_bad_fraction = 0
invalid_text = "replace"
expect_damaged = "a/b.jsonl.gz"
clean.exact_dedup = true

[[sources]]
id = "books"
files = "books/*.txt"
document = "line"
weight = 3
clean = false

[shards]
target_tokens = 1_000

[index]
sequence_length = 8192
tokens = 8_000_000_001
splits = "98,1,1"

[index.valid]
samples = 100

[index.test]
epochs = 2
"""


def changed(*changes: tuple[str, Any]) -> dict[str, Any]:
    """`LEAST` with values put at dotted paths; `...` removes one."""
    values = copy.deepcopy(LEAST)
    for path, value in changes:
        place: Any = values
        steps = [int(step) if step.isdigit() else step for step in path.split(".")]
        for step in steps[:-1]:
            place = place[step] if isinstance(step, int) else place.setdefault(step, {})
        if value is ...:
            del place[steps[-1]]
        else:
            place[steps[-1]] = value
    return values


def mistakes(values: dict[str, Any]) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(values, "recipe.toml")
    return [str(problem) for problem in caught.value.problems]


# ------------------------------------------------------------------------------------------------- what is read


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(FULL)
    source = SourceSettings(
        id="web",
        files=("gs://bucket/web/*.jsonl.zst", "more/"),
        format="jsonl",
        text_field="problem",
        extra_text_field="solution",
        separator="",
        template=None,
        html="main",
        document="file",
        weight=0.7,
        max_epochs=4.0,
        bad_records="skip",
        max_bad_fraction=0.0,
        invalid_text="replace",
        expect_damaged=("a/b.jsonl.gz",),
        clean=CleanSettings(enabled=True, min_chars=50, max_chars=100_000, exact_dedup=True),
    )
    other = SourceSettings(
        id="books",
        files=("books/*.txt",),
        format="auto",
        text_field="text",
        extra_text_field=None,
        separator="\n\n",
        template=None,
        html="main",
        document="line",
        weight=3.0,
        max_epochs=None,
        bad_records="fail",
        max_bad_fraction=0.01,
        invalid_text="bad",
        expect_damaged=(),
        clean=CleanSettings(enabled=False, min_chars=0, max_chars=None, exact_dedup=False),
    )
    assert read_recipe(str(tmp_path / "recipe.toml")) == Recipe(
        name="web-code.v2",
        output="gs://bucket/corpora/web-code",
        seed=4_294_967_295,
        tokenizer=TokenizerSettings(path="meta-llama/Llama-3.1-8B", eod=128_001, control_text="keep"),
        sources=(source, other),
        target_tokens=1000,
        index=IndexSettings(
            sequence_length=8192,
            seed=4_294_967_295,
            splits="98,1,1",
            train=SplitRequest(samples=976_563),
            valid=SplitRequest(samples=100),
            test=SplitRequest(epochs=2),
        ),
    )


def test_defaults() -> None:
    recipe = parse_recipe(LEAST)
    assert recipe == parse_recipe(copy.deepcopy(LEAST))
    assert (recipe.seed, recipe.target_tokens, recipe.index) == (DEFAULT_SEED, DEFAULT_TARGET_TOKENS, None)
    assert (DEFAULT_SEED, DEFAULT_TARGET_TOKENS, DEFAULT_SPLITS) == (1234, 50_000_000, "969,30,1")
    assert recipe.tokenizer == TokenizerSettings(path="tokenizer.json", eod=None, control_text="ordinary")
    (source,) = recipe.sources
    assert source.clean == CleanSettings() == CleanSettings(enabled=True, min_chars=0, max_chars=None, exact_dedup=True)
    assert (source.format, source.separator, source.max_bad_fraction) == ("auto", "\n\n", 0.01)


@pytest.mark.parametrize(
    ("defaults", "own", "expected"),
    [
        (None, None, CleanSettings()),
        ({"min_chars": 5}, None, CleanSettings(min_chars=5)),
        (
            {"min_chars": 5, "exact_dedup": False},
            {"max_chars": 9},
            CleanSettings(min_chars=5, max_chars=9, exact_dedup=False),
        ),
        ({"min_chars": 5}, {"min_chars": 0}, CleanSettings()),
        ({"min_chars": 5}, True, CleanSettings(min_chars=5)),
        ({"min_chars": 5}, False, CleanSettings(enabled=False, exact_dedup=False)),
        (False, None, CleanSettings(enabled=False, exact_dedup=False)),
        (False, True, CleanSettings()),
        (False, {"min_chars": 3}, CleanSettings(min_chars=3)),
        (True, None, CleanSettings()),
    ],
    ids=str,
)
def test_cleaning_is_inherited_key_by_key(defaults: Any, own: Any, expected: CleanSettings) -> None:
    changes = [("defaults.clean", defaults)] * (defaults is not None) + [("sources.0.clean", own)] * (own is not None)
    assert parse_recipe(changed(*changes)).sources[0].clean == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, SplitRequest()),
        ({"samples": 7}, SplitRequest(samples=7)),
        ({"tokens": 64}, SplitRequest(samples=4)),
        ({"tokens": 65}, SplitRequest(samples=5)),
        ({"tokens": 1}, SplitRequest(samples=1)),
        ({"epochs": 3}, SplitRequest(epochs=3)),
    ],
    ids=str,
)
def test_a_split_is_sized_in_one_of_three_ways(given: dict[str, int], expected: SplitRequest) -> None:
    index = {"sequence_length": 16, **given, "valid": given, "test": given}
    settings = parse_recipe(changed(("index", index))).index
    assert settings is not None
    assert (settings.train, settings.valid, settings.test) == (expected, expected, expected)
    assert (settings.splits, settings.seed, settings.add_extra_token) == (DEFAULT_SPLITS, DEFAULT_SEED, True)


@pytest.mark.parametrize(
    ("output", "expected"),
    [("out/", "out"), ("/", "/"), ("gs://b/c//", "gs://b/c"), ("a b", "a b")],
)
def test_outputs(output: str, expected: str) -> None:
    assert parse_recipe(changed(("output", output))).output == expected


def test_the_command_lines_output_comes_first(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(FULL)
    assert read_recipe(str(tmp_path / "recipe.toml"), output="memory://x/").output == "memory://x"


def test_a_recipe_is_read_from_anywhere_and_with_a_byte_order_mark() -> None:
    from gristmill.formats.storage import write_bytes

    write_bytes("memory://recipes/r.toml", b"\xef\xbb\xbf" + FULL.encode())
    assert read_recipe("memory://recipes/r.toml").name == "web-code.v2"


# ------------------------------------------------------------------------------------------------------- mistakes

MISTAKES: dict[str, tuple[list[tuple[str, Any]], list[str]]] = {
    "no name": (
        [("name", ...)],
        ["name: is missing; it must be letters, digits, dots, dashes and underscores, starting"],
    ),
    "a name with a space": (
        [("name", "a b")],
        ['name: is "a b"; it must be letters, digits, dots, dashes and underscores'],
    ),
    "a name with a newline": ([("name", "a\n")], ['name: is "a\\n"; it must be letters, digits']),
    "a hidden name": ([("name", ".a")], ['name: is ".a"; it must be']),
    "no output": ([("output", "")], ['output: is ""; it must be a folder or URL']),
    "a negative seed": ([("seed", -1)], ["seed: is -1; it must be an integer from 0 to 4294967295"]),
    "a large seed": ([("seed", 2**32)], ["seed: is 4294967296; it must be an integer from 0 to 4294967295"]),
    "a fraction for seed": ([("seed", 1.0)], ["seed: is 1.0; it must be an integer from 0 to 4294967295"]),
    "no tokenizer": (
        [("tokenizer", ...)],
        [
            "tokenizer: is missing; it must be a table",
            "tokenizer.path: is missing; it must be a hub id, folder, file or URL",
        ],
    ),
    "a tokenizer by name alone": (
        [("tokenizer", "gpt2")],
        ['tokenizer: is "gpt2"; it must be a table', "tokenizer.path: is"],
    ),
    "an empty tokenizer": (
        [("tokenizer.path", "")],
        ['tokenizer.path: is ""; it must be a hub id, folder, file or URL'],
    ),
    "an empty EOD": ([("tokenizer.eod", "")], ['tokenizer.eod: is ""; it must be the text of one token, or its id']),
    "a negative EOD": ([("tokenizer.eod", -1)], ["tokenizer.eod: is -1; it must be the text of one token, or its id"]),
    "EOD switched on": (
        [("tokenizer.eod", True)],
        ["tokenizer.eod: is true; it must be the text of one token, or its id"],
    ),
    "control text": (
        [("tokenizer.control_text", "kep")],
        ['tokenizer.control_text: is "kep"; it must be one of "ordinary", "keep"; did you mean "keep"?'],
    ),
    "a key of the tokenizer": (
        [("tokenizer.eos", 1)],
        ['tokenizer.eos: is not a known key; did you mean "eod"? known here: control_text, eod, path'],
    ),
    "no source": ([("sources", [])], ["sources: is empty; at least one [[sources]] is needed"]),
    "sources missing": ([("sources", ...)], ["sources: is missing; it must be one or more tables [[sources]]"]),
    "one table for sources": (
        [("sources", {"id": "a"})],
        ["sources: is {'id': 'a'}; it must be one or more tables [[sources]]"],
    ),
    "no id": ([("sources.0.id", ...)], ["sources[0].id: is missing; it must be letters, digits"]),
    "a folder for id": ([("sources.0.id", "a/b")], ['sources[0].id: is "a/b"; it must be letters, digits']),
    "upwards for id": ([("sources.0.id", "..")], ['sources[0].id: is ".."; it must be letters']),
    "an array for id": (
        [("sources.0.id", "x.npy")],
        ['sources[0].id: is "x.npy"; it must be letters, digits, dots, dashes'],
    ),
    "no files": ([("sources.0.files", ...)], ["sources[0].files: is missing; it must be a list of strings"]),
    "empty files": ([("sources.0.files", [])], ["sources[0].files: is empty; it must name at least one"]),
    "format": (
        [("sources.0.format", "json")],
        ['sources[0].format: is "json"; it must be one of "auto", "jsonl", "parquet", "arrow", "csv", "warc", "tf'],
    ),
    "text field": ([("sources.0.text_field", "")], ['sources[0].text_field: is ""; it must be the name of a field']),
    "extra field": (
        [("sources.0.extra_text_field", 3)],
        ["sources[0].extra_text_field: is 3; it must be the name of a field"],
    ),
    "separator alone": (
        [("sources.0.separator", "\n")],
        ["sources[0].separator: joins text_field and extra_text_field, but there is no extra_text_field"],
    ),
    "template without a field": (
        [("sources.0.template", "{{no}}")],
        ["sources[0].template: is '{{no}}': no field's name in braces"],
    ),
    "template that asks for a format": (
        [("sources.0.template", "{a:>5}")],
        ["sources[0].template: is '{a:>5}': {a} asks for a format; values are put in as they are"],
    ),
    "template with a brace too many": (
        [("sources.0.template", "{a}}")],
        ["sources[0].template: is '{a}}': Single '}' encountered in format string"],
    ),
    "template and text field": (
        [("sources.0.template", "{a}"), ("sources.0.text_field", "a")],
        ["sources[0].text_field: says how the text is made up, and so does template; give one of them"],
    ),
    "document": (
        [("sources.0.document", "lines")],
        ['sources[0].document: is "lines"; it must be one of "file", "line"; did you mean "line"?'],
    ),
    "negative weight": (
        [("sources.0.weight", -0.5)],
        ["sources[0].weight: is -0.5; it must be a finite number, 0 or more"],
    ),
    "no number for weight": (
        [("sources.0.weight", float("nan"))],
        ["sources[0].weight: is nan; it must be a finite number, 0 or more"],
    ),
    "infinite weight": (
        [("sources.0.weight", float("inf"))],
        ["sources[0].weight: is inf; it must be a finite number"],
    ),
    "text for weight": ([("sources.0.weight", "half")], ['sources[0].weight: is "half"; it must be a finite number']),
    "no epoch": ([("sources.0.max_epochs", 0)], ["sources[0].max_epochs: is 0.0; it must be a number above 0"]),
    "bad records": (
        [("sources.0.bad_records", "ignore")],
        ['sources[0].bad_records: is "ignore"; it must be one of "fail", "skip"'],
    ),
    "bad fraction": (
        [("sources.0.max_bad_fraction", 1.5)],
        ["sources[0].max_bad_fraction: is 1.5; it must be a fraction from"],
    ),
    "invalid text": (
        [("sources.0.invalid_text", "replaced")],
        ['sources[0].invalid_text: is "replaced"; it must be one of "bad", "replace"; did you mean "replace"?'],
    ),
    "damaged": (
        [("sources.0.expect_damaged", [1])],
        ["sources[0].expect_damaged: is [1]; it must be a list of non-empty strings"],
    ),
    "a misspelt key of a source": (
        [("sources.0.text_feild", "a")],
        ['sources[0].text_feild: is not a known key; did you mean "text_field"? known here: bad_records, carry, c'],
    ),
    "clean": ([("sources.0.clean", "no")], ['sources[0].clean: is "no"; it must be a table']),
    "min chars": (
        [("defaults.clean.min_chars", -1)],
        ["defaults.clean.min_chars: is -1; it must be a number of characters, 0"],
    ),
    "max below min": (
        [("defaults.clean.min_chars", 9), ("sources.0.clean", {"max_chars": 5})],
        ["sources[0].clean.max_chars: is 5, less than min_chars, 9; no document could pass"],
    ),
    "dedup": (
        [("sources.0.clean.exact_dedup", "yes")],
        ['sources[0].clean.exact_dedup: is "yes"; it must be true or false'],
    ),
    "a key of clean": (
        [("defaults.clean.maxchars", 3)],
        ['defaults.clean.maxchars: is not a known key; did you mean "max_chars"? known here: bad_words, c4, con'],
    ),
    "a key of defaults": (
        [("defaults.min_chars", 3)],
        ["defaults.min_chars: is not a known key; known here: clean"],
    ),
    "defaults": ([("defaults", 3)], ["defaults: is 3; it must be a table"]),
    "target": (
        [("shards.target_tokens", 0)],
        ["shards.target_tokens: is 0; it must be a number of tokens, 1 to 1099511627776"],
    ),
    "huge target": (
        [("shards.target_tokens", 10**20)],
        ["shards.target_tokens: is 100000000000000000000; it must be a number"],
    ),
    "a key of shards": (
        [("shards.tokens", 5)],
        ['shards.tokens: is not a known key; did you mean "target_tokens"? known here: target_tokens'],
    ),
    "no length": (
        [("index", {})],
        ["index.sequence_length: is missing; it must be a number of tokens, 2 to 2147483646"],
    ),
    "length 1": (
        [("index.sequence_length", 1)],
        ["index.sequence_length: is 1; it must be a number of tokens, 2 to 2147483646"],
    ),
    "huge length": ([("index.sequence_length", 2**31 - 1)], ["index.sequence_length: is 2147483647; it must be"]),
    "two sizes": (
        [("index", {"sequence_length": 8, "tokens": 5, "samples": 5})],
        ["index.tokens: and samples both size the split; give one of samples, tokens and epochs"],
    ),
    "two sizes of a split": (
        [("index", {"sequence_length": 8, "valid": {"epochs": 5, "samples": 5}})],
        ["index.valid.epochs: and samples both size the split; give one of samples, tokens and epochs"],
    ),
    "no sample": (
        [("index", {"sequence_length": 8, "samples": 0})],
        ["index.samples: is 0; it must be a positive integer"],
    ),
    "half an epoch": (
        [("index", {"sequence_length": 8, "epochs": 0.5})],
        ["index.epochs: is 0.5; it must be a positive integer"],
    ),
    "samples beyond reason": (
        [("index", {"sequence_length": 8, "samples": 2**63})],
        ["index.samples: is 9223372036854775808;"],
    ),
    "splits": (
        [("index", {"sequence_length": 8, "splits": "90,abc5,5"})],
        ["index.splits: split '90,abc5,5': the proportion of valid, 'abc5', is not a number"],
    ),
    "splits as a list": (
        [("index", {"sequence_length": 8, "splits": [98, 1, 1]})],
        ["index.splits: is [98, 1, 1]; it must be"],
    ),
    "a key of index": (
        [("index", {"sequence_length": 8, "seq_length": 8})],
        ['index.seq_length: is not a known key; did you mean "sequence_length"? known here: epochs, samples, sc'],
    ),
    "a key of a split": (
        [("index", {"sequence_length": 8, "test": {"sample": 8}})],
        ['index.test.sample: is not a known key; did you mean "samples"? known here: drop_last_partial, ep'],
    ),
    "index": ([("index", True)], ["index: is true; it must be a table", "index.sequence_length: is missing"]),
    "a misspelt table": (
        [("tokeniser", {"path": "x"})],
        ['tokeniser: is not a known key; did you mean "tokenizer"? known here: budget, dedup_key, defaults, ind'],
    ),
}


@pytest.mark.parametrize(("changes", "expected"), MISTAKES.values(), ids=MISTAKES)
def test_each_mistake_is_told(changes: list[tuple[str, Any]], expected: list[str]) -> None:
    found = mistakes(changed(*changes))
    assert len(found) == len(expected), found
    for told, beginning in zip(found, expected, strict=True):
        assert told.startswith(beginning), told


def weighted(*weights: float | None, **index: Any) -> dict[str, Any]:
    sources = [
        {"id": f"s{number}", "files": "x"} | ({} if weight is None else {"weight": weight})
        for number, weight in enumerate(weights)
    ]
    more = {"index": {"sequence_length": 8, **index}} if index else {}
    return {**copy.deepcopy(LEAST), "sources": sources, **more}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (weighted(1, None, 2, None), ["sources[1].weight: is missing; either every source has a weight or none"] * 2),
        (weighted(0, 0), ["sources: every weight is 0; at least one must be above 0"]),
        (weighted(1, 2, splits="1"), ["index: weights need a size to be shares of; give samples or tokens (or epochs"]),
        (
            weighted(1, 2, epochs=2),
            ["index.epochs: cannot be kept together with weights; give samples or tokens, or leave"],
        ),
    ],
    ids=["some have weights", "all zero", "no size", "epochs"],
)
def test_weights_that_cannot_be_followed(values: dict[str, Any], expected: list[str]) -> None:
    found = [told.replace("sources[3]", "sources[1]") for told in mistakes(values)]
    assert len(found) == len(expected), found
    assert all(told.startswith(beginning) for told, beginning in zip(found, expected, strict=True)), found


@pytest.mark.parametrize(
    "values",
    [weighted(1), weighted(1, 0), weighted(0.7, 0.3, samples=5), weighted(10, 20, tokens=5), weighted(5, splits="1")],
    ids=["one", "one left out", "samples", "tokens", "one source, one pass"],
)
def test_weights_that_can_be_followed(values: dict[str, Any]) -> None:
    assert [source.weight for source in parse_recipe(values).sources] == [each["weight"] for each in values["sources"]]


def test_two_sources_of_one_id() -> None:
    values = changed(("sources", [{"id": name, "files": "x"} for name in ("a", "b", "a", "a")]))
    assert mistakes(values) == [
        'sources[2].id: is "a", as is sources[0].id; ids must differ',
        'sources[3].id: is "a", as is sources[0].id; ids must differ',
    ]


def test_all_mistakes_are_listed_at_once() -> None:
    changes = [change for changes, _ in MISTAKES.values() for change in changes if change[0].count(".") < 2]
    several = dict(itertools.islice(((path.split(".")[0], (path, value)) for path, value in changes), 60))
    found = mistakes(changed(*several.values()))
    assert len({told.split(":")[0].split(".")[0].split("[")[0] for told in found}) == len(several)


def test_the_message_names_the_recipe_and_counts() -> None:
    with pytest.raises(
        RecipeError, match=r"^r\.toml: 2 mistakes in the recipe\n  - seed: is -1; .*\n  - colour: is not a known"
    ):
        parse_recipe(changed(("seed", -1), ("colour", "red")), "r.toml")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, r"recipe\.toml: cannot be opened: No such file or directory; a recipe is a TOML file"),
        (b"name = ", r"recipe\.toml: no valid TOML: Invalid value \(at line 1, column 8\)|no valid TOML"),
        (b"a = 1\na = 2\n", r"recipe\.toml: no valid TOML: Cannot overwrite a value"),
        (b"name = '\xff'", r"recipe\.toml: a recipe must be UTF-8 text: 'utf-8' codec can't decode byte 0xff"),
    ],
    ids=["missing", "cut short", "twice", "other encoding"],
)
def test_files_that_are_no_recipe(tmp_path: Path, data: bytes | None, message: str) -> None:
    if data is not None:
        (tmp_path / "recipe.toml").write_bytes(data)
    with pytest.raises(SettingsError, match=message) as caught:
        read_recipe(str(tmp_path / "recipe.toml"))
    assert caught.value.exit_code == 2


values_of_any_kind: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
PATHS = [
    "name",
    "output",
    "seed",
    "tokenizer",
    "tokenizer.eod",
    "defaults",
    "defaults.clean",
    "sources",
    "sources.0.id",
]
PATHS += [f"sources.0.{key}" for key in ("files", "format", "weight", "max_epochs", "clean", "separator", "document")]
PATHS += ["shards", "shards.target_tokens", "index", "other"]


@given(path=st.sampled_from(PATHS), value=values_of_any_kind)
def test_no_value_breaks_the_reader(path: str, value: Any) -> None:
    """Any value at any key is either followed or told under that key's table."""
    told: list[str] = []
    try:
        parse_recipe(changed((path, value)))
    except RecipeError as error:
        told = [problem.key for problem in error.problems]
    assert all(key.startswith(path.split(".")[0]) for key in told)


# --------------------------------------------------------------------------------------------------------- digests


def digest_with(*changes: tuple[str, Any]) -> str:
    return parse_recipe(changed(*changes)).digest()


@pytest.mark.parametrize(
    "change",
    [("output", "elsewhere"), ("tokenizer.path", "other.json"), ("sources.0.files", ["gs://b/x"])],
    ids=lambda change: change[0],
)
def test_where_things_lie_is_not_in_the_digest(change: tuple[str, Any]) -> None:
    assert digest_with(change) == digest_with()


@pytest.mark.parametrize(
    "change",
    [
        ("name", "other"),
        ("seed", 1),
        ("tokenizer.eod", "x"),
        ("tokenizer.control_text", "keep"),
        ("sources.0.id", "other"),
        ("sources.0.text_field", "body"),
        ("sources.0.weight", 1),
        ("sources.0.bad_records", "skip"),
        ("sources.0.clean.min_chars", 1),
        ("shards.target_tokens", 1),
        ("index", {"sequence_length": 8}),
    ],
    ids=lambda change: change[0],
)
def test_what_decides_the_corpus_is_in_the_digest(change: tuple[str, Any]) -> None:
    assert digest_with(change) != digest_with()


def test_the_identity_of_a_source_leaves_out_place_and_mixture() -> None:
    def identity(*changes: tuple[str, Any]) -> dict[str, Any]:
        return parse_recipe(changed(*changes)).sources[0].identity()

    assert identity(("sources.0.files", "y"), ("sources.0.weight", 2), ("sources.0.max_epochs", 3)) == identity()
    assert identity(("sources.0.format", "text")) != identity()
    places, mixture = {"files", "hub", "materialize", "copies"}, {"limits", "weight", "max_epochs"}
    kept = {field.name for field in dataclasses.fields(SourceSettings)} - places - mixture
    unused = {"record", "carry"}  # told of a source that uses them alone, so that older digests stay
    assert set(identity()) == kept - unused
    assert identity(("sources.0.record", "json"))["record"] == "json"
    assert identity(("sources.0.id_field", "name"))["carry"] == {"id_field": "name", "fields": ()}


@pytest.mark.parametrize("spelled", [1, 1.0])
def test_a_weight_is_the_same_however_it_is_spelled(spelled: float) -> None:
    assert digest_with(("sources.0.weight", spelled)) == digest_with(("sources.0.weight", 1.0))


def test_recipes_travel() -> None:
    recipe = parse_recipe(changed(("index", {"sequence_length": 8})))
    copies: list[Callable[[Recipe], Recipe]] = [lambda one: pickle.loads(pickle.dumps(one)), copy.deepcopy]
    assert all(make(recipe) == recipe for make in copies)
