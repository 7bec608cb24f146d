"""The reserve on the disk of the logs: made while there is space, given back when there is none."""

from pathlib import Path

import pytest

from vq.broker.logs.reserve import RESERVE_NAME, Reserve
from vq.errors import DiskFull
from vq.limits import MIB
from vq.store.disk.memory_disk import MemoryDisk

DATA = Path("/data")
TOTAL = 64 * MIB
KEPT = MIB  # a small disk gives a 64th part


@pytest.fixture
def disk() -> MemoryDisk:
    made = MemoryDisk()
    made.capacity_bytes = TOTAL
    made.mkdir(DATA)
    return made


@pytest.fixture
def reserve(disk: MemoryDisk) -> Reserve:
    return Reserve(DATA, disk)


def fill(disk: MemoryDisk, left: int) -> None:
    """Take all of the disk but ``left`` bytes."""
    free, _ = disk.free_space(DATA)
    file = disk.open(DATA / "ballast", create=True)
    file.allocate(0, free - left)
    file.close()


def test_a_reserve_is_kept_while_there_is_space(disk: MemoryDisk, reserve: Reserve) -> None:
    reserve.hold()
    assert reserve.held
    assert disk.size(DATA / RESERVE_NAME) == KEPT
    reserve.release_if_short()
    assert reserve.held, "nothing is short"


def test_no_reserve_is_taken_from_the_last_space(disk: MemoryDisk, reserve: Reserve) -> None:
    fill(disk, left=2 * KEPT - 1)
    reserve.hold()
    assert not reserve.held


def test_a_start_on_a_full_disk_gets_the_reserve(disk: MemoryDisk, reserve: Reserve) -> None:
    reserve.hold()
    fill(disk, left=0)
    reserve.release_if_short()
    assert not reserve.held
    assert disk.free_space(DATA)[0] == KEPT


def test_a_write_that_must_be_is_tried_again_with_the_reserve(
    disk: MemoryDisk, reserve: Reserve
) -> None:
    reserve.hold()
    fill(disk, left=0)
    reserve.spend(lambda: disk.write_atomic(DATA / "epoch", b"1"), "no epoch")
    assert disk.read_bytes(DATA / "epoch") == b"1"
    assert not reserve.held


def test_without_reserve_the_error_says_what_to_do(disk: MemoryDisk, reserve: Reserve) -> None:
    fill(disk, left=0)
    with pytest.raises(DiskFull, match=r"disk of /data is full: no epoch; free some space"):
        reserve.spend(lambda: disk.write_atomic(DATA / "epoch", b"1"), "no epoch")


def test_other_errors_pass(reserve: Reserve) -> None:
    def fail() -> None:
        raise PermissionError(1, "no")

    reserve.hold()
    with pytest.raises(PermissionError):
        reserve.spend(fail, "nothing")
    assert reserve.held
