"""Lines of text that name data: what they mean, and what each mistake is called."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.formats.data_spec import DataEntry, parse_data_spec
from gristmill.formats.errors import SettingsError


def entry(*paths: str, folder: str | None = None, weight: float | None = None) -> DataEntry:
    return DataEntry(paths=paths, index_folder=folder, weight=weight)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("web", [entry("web")]),
        (" data/web ", [entry("data/web")]),
        ("idx|web", [entry("web", folder="idx")]),
        ("idx|web:code : books", [entry("web", "code", "books", folder="idx")]),
        ("web:code", [entry("web", "code")]),
        ("web,1.0", [entry("web", weight=1.0)]),
        ("idx|web,3;", [entry("web", folder="idx", weight=3.0)]),
        ("web,0.7;code,0.3", [entry("web", weight=0.7), entry("code", weight=0.3)]),
        ("web,0.7; code , .3 ;", [entry("web", weight=0.7), entry("code", weight=0.3)]),
        ("web;code", [entry("web"), entry("code")]),
        ("web,0;code,1e-3", [entry("web", weight=0.0), entry("code", weight=0.001)]),
        ("a|web:b,1;c|d,2", [entry("web", "b", folder="a", weight=1.0), entry("d", folder="c", weight=2.0)]),
        ("gs://b/web", [entry("gs://b/web")]),
        ("gs://b/i|gs://b/web:gs://b/x,2", [entry("gs://b/web", "gs://b/x", folder="gs://b/i", weight=2.0)]),
        ("simplecache::gs://b/web:web", [entry("simplecache::gs://b/web", "web")]),
        ("v1,v2/web", [entry("v1,v2/web")]),
        ("a,b/web,0.5;c,0.5", [entry("a,b/web", weight=0.5), entry("c", weight=0.5)]),
        ("web,2024/x", [entry("web,2024/x")]),
        ("web,new", [entry("web,new")]),
        ("web,1;web,1", [entry("web", weight=1.0), entry("web", weight=1.0)]),
    ],
)
def test_what_a_line_means(text: str, expected: list[DataEntry]) -> None:
    assert list(parse_data_spec(text)) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"data '': names no data; write '\[index_folder"),
        (" ; ", "names no data"),
        ("web,1;;code,1", "entry 2 is empty; drop one ';'"),
        (";web,1", "entry 1 is empty"),
        ("web,1;;", "entry 2 is empty"),
        ("web,0.5;code", "entry 2 'code' has no weight, while others have one"),
        ("web;code,0.5", "entry 1 'web' has no weight, while others have one"),
        ("web,0.5;code,half", "entry 2 'code,half' has no weight, while others have one"),
        ("web,0.5x", "entry 1: weight '0.5x' is no number"),
        ("web,1_000", "entry 1: weight '1_000' is no number"),
        ("web,-x", "entry 1: weight '-x' is no number"),
        ("web,1;code,-0.5", r"entry 2: weight -0\.5 is negative; 0 leaves an entry out"),
        ("web,1;code,nan", "entry 2: weight nan is not finite"),
        ("web,1;code,-inf", "entry 2: weight -inf is not finite"),
        ("web,1e999", "entry 1: weight 1e999 is not finite"),
        ("web,", "entry 1 ends with ',' and has no weight behind it"),
        (",0.5", "entry 1 is a weight without data"),
        ("web,0;code,0", "every weight is 0, so nothing would be drawn"),
        ("|web", "entry 1 '|web' names no index folder before '|'".replace("|", r"\|")),
        ("idx|", r"entry 1 'idx\|' has no data behind '\|'"),
        ("idx|,1", r"entry 1 'idx\|' has no data behind '\|'"),
        ("a|b|c", r"holds 2 '\|'; one separates the index folder from the data"),
        ("web:", "an empty path beside ':'"),
        ("idx|:web", "an empty path beside ':'"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_data_spec(text)


names = st.from_regex(r"[a-z][a-z0-9_/.]{0,8}[a-z]", fullmatch=True)
urls = st.builds("gs://{}/{}".format, names, names)
paths = st.lists(st.one_of(names, urls), min_size=1, max_size=3)


@given(
    st.lists(st.tuples(paths, st.one_of(st.none(), names, urls), st.floats(0.001, 1e6)), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_what_is_written_down_is_read_back(
    rows: list[tuple[list[str], str | None, float]], weighted: bool, closed: bool
) -> None:
    expected = [entry(*data, folder=folder, weight=weight if weighted else None) for data, folder, weight in rows]
    parts = [
        ("" if one.index_folder is None else f"{one.index_folder}|")
        + ":".join(one.paths)
        + ("" if one.weight is None else f",{one.weight!r}")
        for one in expected
    ]
    assert list(parse_data_spec(";".join(parts) + ";" * closed)) == expected
