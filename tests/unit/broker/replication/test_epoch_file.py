"""The highest epoch acted in."""

from pathlib import Path

import pytest

from vq.broker.replication.epoch_file import EpochFile, read_epoch
from vq.errors import CoordinationError, DirectoryRefused
from vq.store.disk.memory_disk import MemoryDisk

DATA = Path("/data")


def test_epochs_only_rise():
    """An epoch that was acted in is never taken again, also not after a restart."""
    disk = MemoryDisk()
    disk.mkdir(DATA)
    assert read_epoch(DATA, disk) == 0
    for epoch in (1, 5):
        EpochFile(DATA, disk).store(epoch)
        assert read_epoch(DATA, disk) == epoch
    for epoch in (5, 4):
        with pytest.raises(CoordinationError, match="acted in 5"):
            EpochFile(DATA, disk).store(epoch)


@pytest.mark.parametrize(
    "text", [b"", b"vq-epoch 2 7", b"vq-epoch 3 7 0", b"vq-epoch 1 x", b"\xff", b"a b c d"]
)
def test_a_damaged_epoch_file_is_refused(text):
    """A number that decides who leads is not guessed."""
    disk = MemoryDisk()
    disk.mkdir(DATA)
    disk.write_atomic(DATA / "@epoch", text)
    with pytest.raises(DirectoryRefused, match="epoch"):
        read_epoch(DATA, disk)


def test_every_damaged_byte_of_an_epoch_is_noticed():
    """Another digit would be another epoch: one that was acted in could be taken again."""
    disk = MemoryDisk()
    disk.mkdir(DATA)
    EpochFile(DATA, disk).store(17)
    text = disk.read_bytes(DATA / "@epoch")
    for at in range(len(text) - 1):
        damaged = bytearray(text)
        damaged[at] ^= 1
        disk.write_atomic(DATA / "@epoch", bytes(damaged))
        with pytest.raises(DirectoryRefused, match="epoch"):
            read_epoch(DATA, disk)


def test_an_epoch_of_the_first_version_is_read():
    """It had no checksum."""
    disk = MemoryDisk()
    disk.mkdir(DATA)
    disk.write_atomic(DATA / "@epoch", b"vq-epoch 1 17\n")
    assert read_epoch(DATA, disk) == 17
    EpochFile(DATA, disk).store(18)
    assert read_epoch(DATA, disk) == 18


def test_an_epoch_is_stored_again_only_after_its_own_write_failed():
    """It may be in the file already then; one that was compared and refused is refused again."""
    disk = MemoryDisk()
    disk.mkdir(DATA)
    EpochFile(DATA, disk).store(7)
    file = EpochFile(DATA, disk)
    disk.fail("read_bytes", name="@epoch")  # before anything was compared
    with pytest.raises(OSError):
        file.store(7)
    for _ in range(3):
        with pytest.raises(CoordinationError, match="acted in 7"):
            file.store(7)
    disk.fail("sync_directory", name="data")
    with pytest.raises(OSError, match="directory"):
        file.store(8)
    assert read_epoch(DATA, disk) == 8
    file.store(8)
    with pytest.raises(CoordinationError, match="acted in 8"):
        file.store(8)


def test_an_epoch_that_is_followed_may_be_the_same_again():
    """A node that was restarted follows the same master; an older epoch it never follows."""
    disk = MemoryDisk()
    disk.mkdir(DATA)
    for epoch in (3, 3, 5):
        EpochFile(DATA, disk).accept(epoch)
        assert read_epoch(DATA, disk) == epoch
    with pytest.raises(CoordinationError, match=r"leads in epoch 4, .* acted in 5"):
        EpochFile(DATA, disk).accept(4)
    with pytest.raises(CoordinationError, match="acted in 5"):
        EpochFile(DATA, disk).store(5)


def test_an_epoch_that_may_not_be_durable_is_written_again():
    disk = MemoryDisk()
    disk.mkdir(DATA)
    file = EpochFile(DATA, disk)
    disk.fail("sync_directory")
    with pytest.raises(OSError, match="told to fail"):
        file.accept(3)
    before = len(disk.operations)
    file.accept(3)
    assert len(disk.operations) > before
