"""Which way of reading a file system gets."""

from pathlib import Path

import pytest

from gristmill.formats.errors import SettingsError
from gristmill.runtime.backends import backend_of, check_backend, file_system_type

MOUNTS = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:26 / /net rw - nfs4 server:/exports rw
31 30 8:1 / /net/me/scratch rw,noatime shared:5 master:2 - xfs /dev/sdb1 rw
32 22 0:27 / /mnt/a\\040b rw - fuse.gcsfuse bucket rw
33 22 0:28 / /mnt/over rw - nfs server:/old rw
34 33 8:2 / /mnt/over rw - ext4 /dev/sdc1 rw
a line of another form
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/x.bin", "ext4"),
        ("/net", "nfs4"),
        ("/net/me/x.bin", "nfs4"),
        ("/network/x.bin", "ext4"),
        ("/net/me/scratch/x.bin", "xfs"),
        ("file:///net/me/scratch/x.bin", "xfs"),
        ("/mnt/a b/c", "fuse.gcsfuse"),
        ("/mnt/over/c", "ext4"),
        ("gs://bucket/x.bin", ""),
    ],
)
def test_the_innermost_mount_counts(tmp_path: Path, path: str, kind: str) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    assert file_system_type(path, str(table)) == kind


def test_without_a_table_nothing_is_known(tmp_path: Path) -> None:
    assert file_system_type("/net/x", str(tmp_path / "none")) == ""


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    table = tmp_path / "mountinfo"
    table.write_text(f"22 1 0:1 / / rw - ext4 a rw\n23 22 0:2 / {tmp_path / 'real'} rw - lustre b rw\n")
    assert file_system_type(str(tmp_path / "link" / "x"), str(table)) == "lustre"


def test_what_is_asked_for_is_taken(tmp_path: Path) -> None:
    path = str(tmp_path / "x.bin")
    assert [backend_of(path, check_backend(name)) for name in ("mmap", "pread")] == ["mmap", "pread"]
    assert backend_of(path, "auto") in {"mmap", "pread"}


def test_another_word_is_refused() -> None:
    with pytest.raises(SettingsError, match="backend 'fast': it is 'mmap', 'pread', or 'auto', which takes pread on"):
        check_backend("fast")
