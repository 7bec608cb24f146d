"""The highest epoch acted in."""

from pathlib import Path

import pytest

from vq.broker.epoch_file import read_epoch, store_epoch
from vq.errors import CoordinationError, DirectoryRefused
from vq.store.memory_disk import MemoryDisk

DATA = Path("/data")


def test_epochs_only_rise():
    """An epoch that was acted in is never taken again, also not after a restart."""
    disk = MemoryDisk()
    disk.mkdir(DATA)
    assert read_epoch(DATA, disk) == 0
    for epoch in (1, 5):
        store_epoch(DATA, disk, epoch)
        assert read_epoch(DATA, disk) == epoch
    for epoch in (5, 4):
        with pytest.raises(CoordinationError, match="acted in 5"):
            store_epoch(DATA, disk, epoch)


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
    store_epoch(DATA, disk, 17)
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
    store_epoch(DATA, disk, 18)
    assert read_epoch(DATA, disk) == 18
