"""Digests: the same meaning gives the same digest anywhere, and anyone can recompute it."""

import hashlib
import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.formats.fingerprint import ORDER_VERSION, canonical_json, digest, pretty_json, short
from gristmill.formats.storage import FileFacts

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    facts: FileFacts


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [None, True]}, b'{"a":[null,true],"b":1}'),
        ("ä\n", b'"\\u00e4\\n"'),
        ((1, 2.0, "x"), b'[1,2.0,"x"]'),
        (FileFacts(3, "ab"), b'{"sha256":"ab","size":3}'),
        ([Outer("n", FileFacts(1, ""))], b'[{"facts":{"sha256":"","size":1},"name":"n"}]'),
        (0.1 + 0.2, b"0.30000000000000004"),
        ("\udcff", b'"\\udcff"'),
    ],
    ids=str,
)
def test_canonical_text(value: Any, text: bytes) -> None:
    assert canonical_json(value) == text
    assert digest(value) == hashlib.sha256(text).hexdigest()


@given(value=values)
def test_both_texts_read_back(value: Any) -> None:
    for text in (canonical_json(value), pretty_json(value)):
        assert json.loads(text) == value
    assert canonical_json(json.loads(pretty_json(value))) == canonical_json(value)


scalars = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "}\x01{", "]\x01[", "\x01", '"},\n{', "ä"])
tables = st.lists(st.dictionaries(st.sampled_from(["a", "b", "ä", "c\x01"]), scalars), max_size=4) | st.lists(
    st.lists(scalars, max_size=3), max_size=4
)


@given(value=values | st.dictionaries(st.integers(), values, max_size=3) | tables | st.lists(tables, max_size=2))
def test_the_text_for_people_is_what_python_writes(value: Any) -> None:
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False)
    assert pretty_json(value) == text.encode("utf-8", "backslashreplace") + b"\n"


@given(items=st.dictionaries(st.text(), st.integers(), min_size=2, max_size=6), data=st.data())
def test_the_order_of_keys_does_not_matter(items: dict[str, int], data: st.DataObject) -> None:
    shuffled = dict(data.draw(st.permutations(list(items.items()))))
    assert digest(shuffled) == digest(items)
    assert pretty_json(shuffled) == pretty_json(items)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": "1"}),
        ([1, 2], [2, 1]),
        ({"a": None}, {}),
        (True, 1),
        ([[1], 2], [1, [2]]),
    ],
    ids=str,
)
def test_different_values_have_different_digests(one: Any, other: Any) -> None:
    assert digest(one) != digest(other)


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"a": float("-inf")}], ids=str)
def test_what_is_no_number_is_refused(value: Any) -> None:
    for write in (canonical_json, pretty_json):
        with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
            write(value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(np.int64(1), "int64"), ({1, 2}, "set"), (b"x", "bytes"), ({"a": np.arange(2)}, "ndarray"), (FileFacts, "type")],
    ids=str,
)
def test_what_json_has_no_form_for_is_refused(value: Any, kind: str) -> None:
    for write in (canonical_json, pretty_json):
        with pytest.raises(
            TypeError, match=f"{kind} has no canonical JSON form: use dict, list, str, int, float, bool"
        ):
            write(value)


def test_text_for_people() -> None:
    assert pretty_json({"b": [1], "a": "ä"}) == '{\n  "a": "ä",\n  "b": [\n    1\n  ]\n}\n'.encode()


def test_a_list_of_facts_for_people() -> None:
    facts = [FileFacts(1, "a"), FileFacts(2, "}\x01{")]
    assert pretty_json(facts) == pretty_json([{"size": fact.size, "sha256": fact.sha256} for fact in facts])
    assert json.loads(pretty_json(facts))[1] == {"size": 2, "sha256": "}\x01{"}


def test_a_file_name_that_is_not_utf8_survives() -> None:
    name = b"caf\xe9.jsonl".decode("utf-8", "surrogateescape")
    assert json.loads(pretty_json({"path": name})) == {"path": name}
    assert pretty_json([name]) == b'[\n  "caf\\udce9.jsonl"\n]\n'


def test_short_digests() -> None:
    assert short(digest(1)) == digest(1)[:12]
    assert ORDER_VERSION == 1


def test_digests_do_not_depend_on_the_process() -> None:
    code = "from gristmill.formats.fingerprint import digest; print(digest({'b': {'x', } and 1.5, 'a': ['ä', None]}))"
    found = {
        subprocess.run(
            [sys.executable, "-O", "-c", code],
            env={"PYTHONHASHSEED": seed, "PATH": "", "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {digest({"a": ["ä", None], "b": 1.5})}
