"""How full the disk may get."""

import pytest

from vq.broker.disks.disk_watch import DiskLevel, DiskWatch, Marks


@pytest.mark.parametrize(
    ("free", "levels"),
    [
        ([50, 20, 9, 11, 13, 20, 30], "OK WARN REFUSE REFUSE RELIEVE WARN OK"),
        ([25, 24.9, 26, 27, 27.1], "WARN WARN WARN WARN OK"),
        ([10, 12, 12.1, 17, 17.1], "REFUSE REFUSE RELIEVE RELIEVE WARN"),
        ([15.1, 15, 16.9, 17.1], "WARN RELIEVE RELIEVE WARN"),
        ([3.1, 3, 4.9, 5.1, 12.1], "REFUSE STOP STOP REFUSE RELIEVE"),
        ([0, 100], "STOP OK"),
    ],
)
def test_disk_levels_rise_at_once_and_end_with_a_gap(free, levels):
    """75 % warns, 85 % relieves, 90 % refuses, 97 % stops copies; each ends 2 % below that."""
    watch = DiskWatch(Marks())
    assert " ".join(watch.observe(f, 100).name for f in free) == levels


def test_refuse_is_the_mark_that_counts():
    """With refuse at 100 %, the disk itself says no first, and copies are not stopped before."""
    watch = DiskWatch(Marks(refuse=1.0, resume=1.0))
    assert watch.observe(1, 100) is DiskLevel.RELIEVE
    assert watch.observe(0, 100) is DiskLevel.STOP
    assert DiskWatch(Marks(refuse=0.5, resume=0.4)).observe(50, 100) is DiskLevel.REFUSE


@pytest.mark.parametrize(
    ("free", "excess"), [([20], 0), ([15], 2), ([9], 8), ([14, 16], 1), ([14, 18], 0)]
)
def test_so_much_must_go_that_nothing_goes_early_any_more(free, excess):
    """Down to 83 %, since nothing goes early from there on."""
    watch = DiskWatch(Marks())
    for each in free:
        watch.observe(each, 100)
    assert watch.excess_bytes == excess


def test_an_unmeasured_disk_is_not_full():
    """Zero bytes of zero is no share."""
    assert DiskWatch(Marks()).used_share == 0
    assert DiskWatch(Marks()).level is DiskLevel.OK


@pytest.mark.parametrize(
    ("free", "total", "level"),
    [
        (0, 0, DiskLevel.OK),
        (2**64 - 4_096, 1_000, DiskLevel.STOP),  # less than nothing, without its sign
        (1_001, 1_000, DiskLevel.STOP),
        (-5, 1_000, DiskLevel.STOP),
        (2**64, 2**64, DiskLevel.OK),
    ],
)
def test_odd_numbers_of_a_file_system_are_a_level_all_the_same(free, total, level):
    """And fit into what is told of them, also the sum of several directories."""
    watch = DiskWatch(Marks())
    assert watch.observe(free, total) is level
    assert 0 <= watch.free <= watch.total < 2**59
    assert watch.excess_bytes < 2**59


def test_no_more_must_go_than_is_there():
    """Also where resume is so far below refuse that a lower step has no end."""
    watch = DiskWatch(Marks(refuse=0.9, resume=0.02))
    watch.observe(10, 100)
    assert watch.excess_bytes == 90


def test_a_file_system_may_be_full_of_files():
    """The larger share counts; then the oldest block goes, and the next one after a look."""
    watch = DiskWatch(Marks())
    assert watch.observe(50, 100, 0, 0) is DiskLevel.OK
    assert watch.observe(50, 100, 24, 100) is DiskLevel.WARN
    assert watch.fullness == "76.0% full of files (inodes)"
    assert watch.observe(50, 100, 9, 100) is DiskLevel.REFUSE
    assert (watch.excess_bytes, watch.size_excess) == (1, 0)
    assert watch.observe(9, 100, 50, 100) is DiskLevel.REFUSE
    assert watch.fullness == "91.0% full"
    assert (watch.excess_bytes, watch.size_excess) == (8, 8)
    assert watch.observe(50, 100, 2**64 - 1, 100) is DiskLevel.STOP
    assert watch.observe(50, 100, 100, 100) is DiskLevel.OK
