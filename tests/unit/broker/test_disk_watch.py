"""How full the disk may get."""

import pytest

from vq.broker.disk_watch import DiskLevel, DiskWatch


@pytest.mark.parametrize(
    ("free", "levels"),
    [
        ([50, 20, 9, 11, 13, 20, 30], "OK WARN REFUSE REFUSE WARN WARN OK"),
        ([25, 24.9], "WARN WARN"),
        ([10, 12, 12.1], "REFUSE REFUSE WARN"),
        ([0, 100], "REFUSE OK"),
    ],
)
def test_disk_levels_rise_at_once_and_resume_with_a_gap(free, levels):
    """75 % warns, 90 % refuses, and below 88 % PUTs are taken again."""
    watch = DiskWatch(0.75, 0.90, 0.88)
    assert " ".join(watch.observe(f, 100).name for f in free) == levels


def test_an_unmeasured_disk_is_not_full():
    """Zero bytes of zero is no share."""
    assert DiskWatch(0.75, 0.9, 0.88).used_share == 0
    assert DiskWatch(0.75, 0.9, 0.88).level is DiskLevel.OK
