"""Whose data directory this is."""

import errno
from dataclasses import asdict
from pathlib import Path

import pytest

from vq.errors import DirectoryRefused
from vq.store.directory.identity import IDENTITY_NAME, Identity, check_identity
from vq.store.disk.disk import TEMPORARY_SUFFIX
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.records.checked_text import encode_text
from vq.store.records.format import FORMAT_VERSION

HOME = Path("/srv/vq")


def check(disk: MemoryDisk, *, cluster: str = "c", group: str = "g", node: str = "n") -> Identity:
    return check_identity(HOME, cluster=cluster, group=group, node=node, disk=disk)


def empty() -> MemoryDisk:
    disk = MemoryDisk()
    disk.mkdir(HOME)
    return disk


def test_the_first_broker_gives_it_an_identity_that_stays() -> None:
    """And an id of its own: an emptied directory gets another one."""
    disk = empty()
    first = check(disk)
    assert check(disk) == first
    assert check(empty()).id != first.id
    assert Identity.from_bytes(first.to_bytes(), HOME) == first


@pytest.mark.parametrize("other", ["cluster", "group", "node"])
def test_another_brokers_directory_is_refused(other: str) -> None:
    """The message shows both sides and what to do."""
    disk = empty()
    check(disk)
    with pytest.raises(DirectoryRefused, match="a directory of its own") as caught:
        check(disk, **{other: "x"})
    assert "'x'" in str(caught.value)


def test_a_newer_format_is_refused() -> None:
    """It says to run the newer vq."""
    disk = empty()
    disk.write_atomic(HOME / IDENTITY_NAME, encode_text(FORMAT_VERSION + 2, asdict(check(disk))))
    with pytest.raises(DirectoryRefused, match="a newer vq wrote it"):
        check(disk)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b"3", b"\xff", b'{"v": 1}', b'{"v": 1, "a": 2}', b'{"v": "x"}']
)
def test_a_damaged_identity_is_refused_not_replaced(text: bytes) -> None:
    """Guessing would let the wrong broker in."""
    disk = empty()
    disk.write_atomic(HOME / IDENTITY_NAME, text)
    with pytest.raises(DirectoryRefused, match="damaged"):
        check(disk)
    assert disk.read_bytes(HOME / IDENTITY_NAME) == text


def test_a_directory_of_something_else_is_refused() -> None:
    """vq does not spread into a home directory by a slip of the keyboard."""
    disk = empty()
    disk.write_atomic(HOME / "thesis.tex", b"")
    with pytest.raises(DirectoryRefused, match=r"thesis\.tex"):
        check(disk)


def test_a_file_systems_own_directory_is_no_stranger() -> None:
    """A mount point can be a data directory."""
    disk = empty()
    disk.mkdir(HOME / "lost+found")
    check(disk)


def test_every_damaged_byte_of_an_identity_is_noticed() -> None:
    """No single bit makes it another broker's, or another directory."""
    disk = empty()
    text = check(disk).to_bytes()
    for at in range(len(text) - 1):
        damaged = bytearray(text)
        damaged[at] ^= 1
        disk.write_atomic(HOME / IDENTITY_NAME, bytes(damaged))
        with pytest.raises(DirectoryRefused, match=r"damaged|newer"):
            check(disk)


def test_an_identity_of_the_first_format_is_taken_over() -> None:
    """From then on an earlier vq refuses the directory, which may hold what it cannot read."""
    disk = empty()
    old = b'{"v": 1, "cluster": "c", "group": "g", "node": "n", "id": "8f"}\n'
    disk.write_atomic(HOME / IDENTITY_NAME, old)
    assert check(disk) == Identity("c", "g", "n", "8f")
    assert b'"v": 2' in disk.read_bytes(HOME / IDENTITY_NAME)
    assert check(disk) == Identity("c", "g", "n", "8f")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_an_identity_of_the_first_format_stays_while_the_disk_is_full(code: int) -> None:
    """It is valid; the broker starts, gives its reserve back, and a later start writes it anew."""
    disk = empty()
    old = b'{"v": 1, "cluster": "c", "group": "g", "node": "n", "id": "8f"}\n'
    disk.write_atomic(HOME / IDENTITY_NAME, old)
    disk.fail("pwrite", error=code, name=IDENTITY_NAME + TEMPORARY_SUFFIX)
    assert check(disk) == Identity("c", "g", "n", "8f")
    assert disk.read_bytes(HOME / IDENTITY_NAME) == old
    assert check(disk) == Identity("c", "g", "n", "8f")
    assert b'"v": 2' in disk.read_bytes(HOME / IDENTITY_NAME)


def test_an_identity_that_cannot_be_written_otherwise_is_an_error() -> None:
    """A medium that fails is not used."""
    disk = empty()
    old = b'{"v": 1, "cluster": "c", "group": "g", "node": "n", "id": "8f"}\n'
    disk.write_atomic(HOME / IDENTITY_NAME, old)
    disk.fail("pwrite", name=IDENTITY_NAME + TEMPORARY_SUFFIX)
    with pytest.raises(OSError, match=IDENTITY_NAME):
        check(disk)
