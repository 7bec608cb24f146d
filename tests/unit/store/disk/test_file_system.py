"""File systems: which kind a mount is, and when files share one."""

import os
from pathlib import Path

import pytest

from vq.store.disk import file_system
from vq.store.disk.file_system import FileSystems, is_remote, parse_kind
from vq.store.disk.real_disk import RealDisk

MOUNTS = """\
25 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw,discard
36 25 7:0 / /mnt/xfs rw,relatime - xfs /dev/loop0 rw,attr2,inode64
37 25 7:1 / /mnt/with\\040space rw shared:3 master:1 - ext2 /dev/loop1 rw
38 25 7:2 / /mnt/rt rw - xfs /dev/loop2 rw,rtdev=/dev/loop3,inode64
136 25 0:40 / /tmp rw - tmpfs tmpfs rw
"""


@pytest.mark.parametrize(
    ("mount_id", "kind"),
    [(25, "ext4"), (36, "xfs"), (37, "ext2"), (38, ""), (136, "tmpfs"), (3, ""), (6, "")],
)
def test_the_kind_is_that_of_the_mount(mount_id: int, kind: str) -> None:
    """ext2 is not ext4, and an XFS with a second device for data is not one that is known."""
    assert parse_kind(MOUNTS, mount_id) == kind


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "fuse", "ceph"])
def test_a_file_system_that_asks_a_server_is_told(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A write there may hang, and the broker with it."""
    monkeypatch.setattr(file_system, "kind_of", lambda fd: kind)
    RealDisk().open(tmp_path / "f", create=True).close()
    assert is_remote(kind)
    assert "file system asks a server for writes" in caplog.text


@pytest.mark.parametrize("kind", ["ext4", "xfs", "tmpfs", "overlay", "fuseblk", ""])
def test_a_local_file_system_is_no_warning(kind: str) -> None:
    assert not is_remote(kind)


def test_a_file_that_is_a_link_to_another_file_system_is_synced_by_itself(tmp_path: Path) -> None:
    """The directory it is opened in is not on its file system, so it proves nothing about it."""
    target = Path("/dev/shm") / f"vq-{os.getpid()}-{tmp_path.name}"
    if not target.parent.is_dir() or target.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system here")
    target.touch()
    try:
        (tmp_path / "link").symlink_to(target)
        file = RealDisk().open(tmp_path / "link")
        assert file.file_system is None
        file.close()
    finally:
        target.unlink()


def test_without_a_descriptor_left_a_file_is_synced_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next file asks again."""
    systems = FileSystems()
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with monkeypatch.context() as patch:
            patch.setattr("vq.store.disk.file_system.os.open", _refuse)
            assert systems.of_file(fd, tmp_path / "f") is None
        assert systems.of_directory(tmp_path) is None
        assert systems.of_file(fd, tmp_path / "f") is systems.of_directory(tmp_path)
    finally:
        os.close(fd)


def _refuse(*_: object) -> int:
    raise OSError(24, "too many open files")
