"""Large files beside the logs are flushed in steps."""

from pathlib import Path

import pytest
from support.store import memory_disk

from vq.store.archive.archive_place import new_zip
from vq.store.disk import long_file
from vq.store.disk.long_file import LongFile
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.disk.new_block import NewBlock

BLOCK = Path("/data/orders/0/0000000000000000.block")


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_file, "SYNC_BYTES", 10)


@pytest.fixture
def disk() -> MemoryDisk:
    """One with the directory of a log."""
    found = memory_disk()
    found.mkdir(BLOCK.parent)
    return found


def flushes(disk: MemoryDisk) -> int:
    return sum(operation.kind == "datasync" for operation in disk.operations)


def test_a_file_never_has_more_to_flush_than_a_step_and_one_write(disk: MemoryDisk) -> None:
    """The last flush is for the rest."""
    file = LongFile(disk.open(BLOCK, create=True))
    counts = []
    for _ in range(7):
        file.write(bytes(4))
        counts.append(flushes(disk))
    file.sync()
    assert counts == [0, 0, 1, 1, 1, 2, 2]
    assert (flushes(disk), file.length) == (3, 28)
    file.close()


def test_a_zip_beside_a_log_is_flushed_in_steps(disk: MemoryDisk) -> None:
    """So is a block that is restored or repaired."""
    zip_ = new_zip(disk, BLOCK, "")
    for _ in range(4):
        zip_.write(bytes(10))
    assert flushes(disk) == 4
    zip_.discard()
    block = NewBlock(disk, BLOCK)
    for _ in range(4):
        block.add(bytes(10))
    assert flushes(disk) == 8
    block.discard()
