"""Which files a source reads, in what order, and under what name."""

import bz2
import gzip
import lzma
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
import zstandard

from gristmill.formats.errors import InputError, SettingsError, StorageError
from gristmill.formats.recipe import SourceSettings, parse_recipe
from gristmill.pipelines.inputs import InputFile, find_inputs

LINE = b'{"text": "a"}\n'


def source(*files: str, **settings: Any) -> SourceSettings:
    values = {
        "name": "test",
        "output": "somewhere/else",
        "tokenizer": {"path": "t.json"},
        "sources": [{"id": "s", "files": list(files), **settings}],
    }
    return parse_recipe(values).sources[0]


def find(*files: str, **settings: Any) -> tuple[InputFile, ...]:
    return find_inputs(source(*files, **settings), "sources[0]")


def names(*files: str, **settings: Any) -> list[str]:
    return [file.relative for file in find(*files, **settings)]


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., str]:
    """Writes files below the test's folder; gives the path of the last."""

    def write(*listed: str, data: bytes = LINE) -> str:
        for name in listed:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return str(path)

    return write


class TestNames:
    def test_a_literal_path(self, put: Callable[..., str]) -> None:
        (found,) = find(put("a.jsonl"))
        assert (found.relative, found.size, found.format, found.compression) == ("a.jsonl", len(LINE), "jsonl", None)
        assert found.checksum.startswith("xxh3:")

    @pytest.mark.parametrize("name", ["a b.jsonl", "c*d.jsonl", "e?f.jsonl", "g[1].jsonl", "h[!x]*.jsonl", "ü.jsonl"])
    def test_a_literal_path_with_the_signs_of_patterns(self, put: Callable[..., str], name: str) -> None:
        put("run[1] v2/ab.jsonl", "run[1] v2/cxd.jsonl", "run[1] v2/g1.jsonl")
        (found,) = find(put(f"run[1] v2/{name}"))
        assert found.relative == name

    def test_a_folder_with_the_signs_of_patterns(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("run[1] v2/a b.jsonl", "run[1] v2/c*d.jsonl", "run1 v2/other.jsonl")
        assert names(str(tmp_path / "run[1] v2")) == ["a b.jsonl", "c*d.jsonl"]

    def test_a_pattern_below_a_folder_with_the_signs_of_patterns(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("run[1] v2/a b.jsonl", "run[1] v2/c*d.jsonl", "run1 v2/other.jsonl")
        assert names(str(tmp_path / "run[1] v2" / "*.jsonl")) == ["a b.jsonl", "c*d.jsonl"]

    def test_a_pattern_keeps_its_meaning_where_no_such_folder_is(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("run1/a.jsonl", "run2/a.jsonl", "run3/a.jsonl")
        assert names(str(tmp_path / "run[12]" / "*.jsonl")) == ["run1/a.jsonl", "run2/a.jsonl"]

    def test_a_recursive_pattern(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/a.jsonl", "d/x/b.jsonl", "d/x/y/c.jsonl", "d/x/y/no.parquet.bak")
        assert names(str(tmp_path / "d" / "**" / "*.jsonl")) == ["a.jsonl", "x/b.jsonl", "x/y/c.jsonl"]

    def test_a_folder_is_read_whole_and_in_one_order(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/b.jsonl", "d/a.txt", "d/x/c.py", "d/x/README.md", "d/z.jsonl.gz", "d/B.JSONL")
        assert names(str(tmp_path / "d")) == ["B.JSONL", "a.txt", "b.jsonl", "x/c.py", "z.jsonl.gz"]
        assert names(str(tmp_path / "d") + "/") == ["B.JSONL", "a.txt", "b.jsonl", "x/c.py", "z.jsonl.gz"]

    def test_the_order_of_creation_is_nothing(self, put: Callable[..., str], tmp_path: Path) -> None:
        listed = [f"part-{number}.jsonl" for number in (3, 10, 1, 2, 0)]
        put(*(f"one/{name}" for name in listed))
        put(*(f"two/{name}" for name in reversed(listed)))
        assert names(str(tmp_path / "one")) == names(str(tmp_path / "two")) == sorted(listed)

    def test_a_file_url(self, put: Callable[..., str]) -> None:
        assert names("file://" + put("a.jsonl")) == ["a.jsonl"]

    def test_a_relative_pattern(self, put: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        put("a.jsonl", "b.jsonl", "d/c.jsonl")
        monkeypatch.chdir(tmp_path)
        assert names("*.jsonl") == ["a.jsonl", "b.jsonl"]
        assert names("./*.jsonl", "d") == ["a.jsonl", "b.jsonl", "c.jsonl"]
        assert names("**/*.jsonl") == ["a.jsonl", "b.jsonl", "d/c.jsonl"]

    def test_a_name_that_is_no_unicode(self, tmp_path: Path) -> None:
        path = os.fsencode(tmp_path) + b"/caf\xe9.jsonl"
        with open(path, "wb") as file:
            file.write(LINE)
        assert names(str(tmp_path)) == ["caf\udce9.jsonl"]


class TestOnceEach:
    def test_patterns_that_overlap(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/a0.jsonl", "d/a1.jsonl", "d/b.jsonl")
        folder = str(tmp_path / "d")
        assert names(f"{folder}/a*.jsonl", f"{folder}/*.jsonl", folder) == ["a0.jsonl", "a1.jsonl", "b.jsonl"]

    def test_the_order_of_patterns_is_kept(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/a.jsonl", "d/z.jsonl")
        assert names(str(tmp_path / "d/z.jsonl"), str(tmp_path / "d")) == ["z.jsonl", "a.jsonl"]

    def test_a_link_to_a_file_that_is_there_too(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/a.jsonl")
        (tmp_path / "d" / "b.jsonl").symlink_to("a.jsonl")
        (tmp_path / "link").symlink_to("d")
        assert names(str(tmp_path / "d"), str(tmp_path / "link")) == ["a.jsonl"]

    def test_a_dangling_link(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/a.jsonl")
        (tmp_path / "d" / "b.jsonl").symlink_to("gone.jsonl")
        with pytest.raises(StorageError, match=r"b\.jsonl: cannot be examined: No such file"):
            find(str(tmp_path / "d"))

    def test_a_folder_that_contains_itself(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/x.jsonl", "d/a/y.jsonl")
        (tmp_path / "d" / "loop").symlink_to(".")
        (tmp_path / "d" / "a" / "up").symlink_to("..")
        assert names(str(tmp_path / "d")) == ["a/y.jsonl", "x.jsonl"]

    def test_a_link_is_not_preferred_to_the_folder_itself(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/z/x.jsonl")
        (tmp_path / "d" / "a").symlink_to("z")
        assert names(str(tmp_path / "d")) == names(str(tmp_path / "d" / "**")) == ["z/x.jsonl"]
        assert names(str(tmp_path / "d" / "a*" / "*.jsonl")) == ["a/x.jsonl"]

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
    @pytest.mark.parametrize("pattern", ["d", "d/**", "d/*/x.jsonl"])
    def test_a_folder_that_may_not_be_listed(self, put: Callable[..., str], tmp_path: Path, pattern: str) -> None:
        put("d/a/x.jsonl", "d/closed/x.jsonl")
        (tmp_path / "d" / "closed").chmod(0)
        try:
            with pytest.raises(StorageError, match=r"d/closed: cannot be listed: Permission denied"):
                find(str(tmp_path / pattern))
        finally:
            (tmp_path / "d" / "closed").chmod(0o700)

    def test_a_linked_folder_is_followed(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("real/x.jsonl", "d/a.jsonl")
        (tmp_path / "d" / "more").symlink_to("../real")
        assert names(str(tmp_path / "d")) == ["a.jsonl", "more/x.jsonl"]


class TestSameName:
    def test_files_of_one_name_are_told_apart(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("en/part-0.jsonl", "de/part-0.jsonl", "de/part-1.jsonl")
        found = find(str(tmp_path / "en"), str(tmp_path / "de" / "*.jsonl"))
        assert [file.relative for file in found] == ["en/part-0.jsonl", "de/part-0.jsonl", "part-1.jsonl"]
        assert [Path(file.path).read_bytes() for file in found] == [LINE] * 3

    def test_by_as_many_folders_as_it_takes(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("a/x/part.jsonl", "b/x/part.jsonl", "c/y/part.jsonl")
        found = names(*(str(tmp_path / folder) for folder in ("a/x", "b/x", "c/y")))
        assert found == ["a/x/part.jsonl", "b/x/part.jsonl", "y/part.jsonl"]

    def test_the_packed_and_the_plain_file_of_one_stem_are_two(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/part-0.jsonl")
        put("d/part-0.jsonl.gz", data=gzip.compress(LINE))
        assert [(file.relative, file.compression) for file in find(str(tmp_path / "d"))] == [
            ("part-0.jsonl", None),
            ("part-0.jsonl.gz", "gzip"),
        ]


class TestLeftOut:
    def test_hidden_files_and_the_marks_of_other_tools(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/a.jsonl", "d/_also.jsonl", "d/.part-0.swp", "d/.hidden.jsonl", "d/_SUCCESS", "d/.git/x.jsonl")
        put("d/_temporary/x.jsonl", "d/__pycache__/x.py", "d/notes", "d/_delta_log/0.json")
        assert names(str(tmp_path / "d")) == ["_also.jsonl", "a.jsonl"]
        assert names(str(tmp_path / "d" / "*.jsonl")) == ["_also.jsonl", "a.jsonl"]

    def test_a_hidden_file_is_read_when_it_is_named(self, put: Callable[..., str]) -> None:
        assert names(put("d/.hidden.jsonl")) == [".hidden.jsonl"]

    def test_a_hidden_folder_is_read_when_it_is_named(self, put: Callable[..., str], tmp_path: Path) -> None:
        put(".cache/x.jsonl", ".cache/.y.jsonl")
        assert names(str(tmp_path / ".cache")) == ["x.jsonl"]
        assert names(str(tmp_path / ".cache" / "*.jsonl")) == ["x.jsonl"]


class TestNothing:
    @pytest.mark.parametrize(
        "pattern",
        [
            "no-such-file.jsonl",
            "d/*.parquet",
            "no-such-folder/",
            "empty",
            "d/[!a-z]",
            "no-such-folder/*.jsonl",
            "no-such-folder/**/*.jsonl",
            "d/*/*.jsonl",
            "d/x?/**",
        ],
    )
    def test_a_pattern_that_names_nothing(self, put: Callable[..., str], tmp_path: Path, pattern: str) -> None:
        good = put("d/a.jsonl")
        (tmp_path / "empty").mkdir()
        named = str(tmp_path) + "/" + pattern
        with pytest.raises(SettingsError) as caught:
            find(good, named)
        assert f'sources[0].files: nothing to read at "{named}"' in str(caught.value)

    def test_a_format_that_cannot_be_told(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("d/a.docx")
        with pytest.raises(
            SettingsError, match=r'the format of ".*a\.docx" cannot be told.*set format to one of jsonl'
        ):
            find(str(tmp_path / "d" / "*"))
        assert [file.format for file in find(str(tmp_path / "d" / "*"), format="text")] == ["text"]

    def test_a_file_listed_as_damaged_that_is_not_there(self, put: Callable[..., str]) -> None:
        with pytest.raises(SettingsError, match=r'sources\[0\]\.expect_damaged: no input file is called "b\.jsonl"'):
            find(put("d/a.jsonl"), expect_damaged=["b.jsonl"])

    @pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz", ".zst", ".GZ"])
    def test_a_packed_file_of_no_bytes(self, put: Callable[..., str], ending: str) -> None:
        path = put(f"a.jsonl{ending}", data=b"")
        with pytest.raises(InputError, match=r"a\.jsonl.*has 0 bytes"):
            find(path)

    def test_an_empty_plain_file_is_a_file(self, put: Callable[..., str]) -> None:
        assert find(put("a.jsonl", data=b""))[0].size == 0


class TestCompression:
    PACKERS: ClassVar[dict[str, Callable[[bytes], bytes]]] = {
        "gzip": gzip.compress,
        "bzip2": bz2.compress,
        "xz": lzma.compress,
        "zstd": zstandard.compress,
    }

    @pytest.mark.parametrize("compression", PACKERS)
    @pytest.mark.parametrize("content", [LINE, b""], ids=["a line", "nothing"])
    @pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz", "X.JSONL.ZST", "x.ndjson.xz"])
    def test_bytes_count_and_not_the_name(
        self, put: Callable[..., str], name: str, compression: str, content: bytes
    ) -> None:
        (found,) = find(put(name, data=self.PACKERS[compression](content)))
        assert (found.format, found.compression) == ("jsonl", compression)

    @pytest.mark.parametrize("name", ["x.jsonl.gz", "X.JSONL.GZ", "x.json.zst", "x.jsonl.bz2", "x.jsonl.xz"])
    def test_plain_text_under_a_packed_name(self, put: Callable[..., str], name: str) -> None:
        assert find(put(name))[0].compression is None

    @pytest.mark.parametrize("text", [b"BZh is how bzip2 files begin", b"BZh9 is how", b"P*M and so on", b"(\xc2\xb5"])
    def test_text_that_begins_like_a_packed_file(self, put: Callable[..., str], text: bytes) -> None:
        assert find(put("x.txt", data=text))[0].compression is None

    def test_a_parquet_file_is_never_unpacked(self, put: Callable[..., str]) -> None:
        assert find(put("x.parquet", data=gzip.compress(LINE)))[0].compression is None


class TestChecksum:
    def test_a_change_is_seen_whatever_size_and_time_say(self, put: Callable[..., str]) -> None:
        path = put("a.jsonl", data=b'{"text": "a"}\n')
        before, times = find(path)[0].checksum, Path(path).stat()
        put("a.jsonl", data=b'{"text": "b"}\n')
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert find(path)[0].checksum != before


class TestStore:
    @pytest.fixture
    def store(self) -> Any:
        file_system = fsspec.filesystem("memory")
        file_system.store.clear()
        for name in ("d/b.jsonl", "d/a.jsonl", "d/x/c.jsonl", "d/.hidden.jsonl", "d/_SUCCESS", "e/run[1]/z.jsonl"):
            file_system.pipe_file(f"/{name}", LINE)
        yield file_system
        file_system.store.clear()

    def test_files_folders_and_patterns(self, store: Any) -> None:
        assert names("memory://d/b.jsonl") == ["b.jsonl"]
        assert names("memory://d") == names("memory://d/") == ["a.jsonl", "b.jsonl", "x/c.jsonl"]
        assert names("memory://d/*.jsonl") == ["a.jsonl", "b.jsonl"]
        assert names("memory://d/**/*.jsonl") == ["a.jsonl", "b.jsonl", "x/c.jsonl"]
        assert [file.path for file in find("memory://d/*.jsonl", "memory://d")] == [
            "memory:///d/a.jsonl",
            "memory:///d/b.jsonl",
            "memory:///d/x/c.jsonl",
        ]

    def test_a_literal_url_with_the_signs_of_patterns(self, store: Any) -> None:
        assert names("memory://e/run[1]/z.jsonl") == ["z.jsonl"]
        assert names("memory://e/run[1]/*.jsonl") == ["z.jsonl"]

    def test_a_url_written_in_two_ways_is_one_file(self, store: Any) -> None:
        assert names("memory://d/a.jsonl", "memory:///d/a.jsonl", "memory://d") == ["a.jsonl", "b.jsonl", "x/c.jsonl"]

    def test_a_pattern_that_names_nothing(self, store: Any) -> None:
        with pytest.raises(SettingsError, match=r'nothing to read at "memory://d/\*\.parquet"'):
            find("memory://d/*.parquet")

    def test_a_store_that_nobody_knows(self) -> None:
        with pytest.raises(SettingsError, match=r"^nosuch://x/y: nothing reads nosuch://; gs://, s3://"):
            find("nosuch://x/y")


class TestLists:
    def test_a_list_names_what_is_read(self, put: Callable[..., str], tmp_path: Path) -> None:
        put("a/x.jsonl", "a/y.jsonl", "b/z.jsonl", "c.jsonl")
        listed = put("list.txt", data=f"\ufeff# all of it\r\na/*.jsonl\r\n\n{tmp_path}/b\nc.jsonl".encode())
        assert names(f"@{listed}") == ["x.jsonl", "y.jsonl", "z.jsonl", "c.jsonl"]
        assert names(str(tmp_path / "c.jsonl"), f"@{listed}") == ["c.jsonl", "x.jsonl", "y.jsonl", "z.jsonl"]

    def test_a_file_that_is_called_like_a_list(
        self, put: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put("@x.jsonl")
        monkeypatch.chdir(tmp_path)
        assert names("@x.jsonl") == ["@x.jsonl"]

    @pytest.mark.parametrize(
        ("data", "problem"),
        [
            (b"# nothing\n\n", r'sources\[0\].files: the list "@.*list.txt" names nothing'),
            (b"\xff\n", r"is no UTF-8 text"),
            (b"a\n\n@other\n", r"list.txt:3: names a list, @other; lists are not nested"),
            (b"gone/*.jsonl\n", r'nothing to read at ".*gone/\*.jsonl"'),
        ],
    )
    def test_a_wrong_list(self, put: Callable[..., str], data: bytes, problem: str) -> None:
        with pytest.raises(SettingsError, match=problem):
            names(f"@{put('list.txt', data=data)}")

    def test_no_list(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r'the list "@.*/gone.txt" cannot be read: .*No such file'):
            names(f"@{tmp_path}/gone.txt")


class TestTheWeb:
    def test_a_list_of_addresses(self, hub: Any, put: Callable[..., str]) -> None:
        hub.add("a/b", {"x.jsonl": LINE, "y z.jsonl.gz": gzip.compress(LINE), "d/x.jsonl": LINE * 2})
        base = f"{hub.address}/datasets/a/b/resolve/main"
        lines = [f"{base}/x.jsonl?download=true&x=*.gz", f"{base}/y%20z.jsonl.gz", f"{base}/d/x.jsonl"]
        found = find(f"@{put('urls.txt', data=chr(10).join(lines).encode())}")
        assert [file.relative for file in found] == ["main/x.jsonl", "y z.jsonl.gz", "d/x.jsonl"]
        assert [file.compression for file in found] == [None, "gzip", None]
        assert [file.size for file in found] == [len(LINE), len(gzip.compress(LINE)), 2 * len(LINE)]
        assert all(file.checksum.startswith('etag:"') for file in found)

    def test_an_address_that_leads_nowhere(self, hub: Any) -> None:
        with pytest.raises(StorageError, match=r"x.jsonl: cannot be read: the server answered 404"):
            names(f"{hub.address}/x.jsonl")


class TestPackagesOfStores:
    @pytest.mark.parametrize("url", ["s3://bucket/x.jsonl", "s3://bucket/*.jsonl"])
    def test_a_package_that_is_missing(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "s3fs", None)
        with pytest.raises(
            SettingsError, match=r"s3://bucket/.*: s3:// is read through a package .* pip install s3fs$"
        ):
            names(url)
