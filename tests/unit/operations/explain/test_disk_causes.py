"""Why a disk fills up: each cause, and what is not known."""

from dataclasses import replace
from typing import Any

import pytest
from support.explained import asked

from vq.model import TopicSettings
from vq.operations.brokers.disks import DiskState
from vq.operations.explain import disk_causes
from vq.operations.explain.answers import NOT_KNOWN
from vq.operations.explain.disk_causes import DiskFacts, TopicOnDisk

GIB = 1 << 30
DISK = DiskState("/d", 40 * GIB, 100 * GIB, "ok", 0, None, 0)


ORDERS = TopicOnDisk(
    topic="orders",
    disk_bytes=50 * GIB,
    growth_bytes_per_day=GIB,
    settings=TopicSettings(retention_hours=72),
    unarchived_bytes=0,
    overdue_bytes=0,
    moved_bytes=0,
)
FINE = DiskFacts(node="b1/n1", group="b1", disk=DISK, topics=(ORDERS,))


def holding(**changes: Any) -> DiskFacts:
    return replace(FINE, topics=(replace(ORDERS, **changes),))


DISKS = {
    "broker_silent": DiskFacts(node="b1/n1", group="b1", error="TimedOut"),
    "directory_away": replace(FINE, disk=replace(DISK, level="gone")),
    "held_back": holding(held_bytes=20 * GIB, held_by="group g", held_partition=2),
    "waiting_messages": holding(topic="_vq.delayed"),
    "archive_behind": holding(unarchived_bytes=20 * GIB),
    "retention_behind": holding(overdue_bytes=20 * GIB),
    "deleted_topics": holding(is_deleted=True),
    "diverged_files": replace(FINE, diverged_bytes=20 * GIB),
    "moved_away": holding(moved_bytes=20 * GIB),
    "kept_forever": holding(settings=TopicSettings(retention_hours=None)),
    "other_files": holding(disk_bytes=GIB),
    "more_comes_than_goes": replace(
        FINE, disk=replace(DISK, full_in_hours=20.0, growth_bytes_per_hour=GIB)
    ),
    "not_filling": FINE,
}


@pytest.mark.parametrize("cause", DISKS)
def test_why_a_disk_fills_up(cause: str) -> None:
    found = asked(disk_causes.TABLE, DISKS[cause])
    assert found.found.cause == cause
    assert found.is_certain
    assert disk_causes.disk_told(DISKS[cause])


def test_every_cause_of_a_disk_has_its_case() -> None:
    assert list(DISKS) == [each.cause for each in disk_causes.TABLE]


def test_what_no_group_reads_is_kept_for_nobody() -> None:
    found = asked(disk_causes.TABLE, holding(held_bytes=20 * GIB, held_by="no consumer group"))
    assert found.found.commands == ("vq topic alter orders --retention-policy delete",)


def test_a_small_part_of_a_disk_is_no_cause() -> None:
    found = asked(disk_causes.TABLE, holding(held_bytes=GIB, held_by="group g"))
    assert (found.found.cause, found.also) == ("not_filling", ())


def test_a_disk_whose_topics_are_not_told_has_no_certain_answer() -> None:
    found = asked(disk_causes.TABLE, replace(FINE, topics=None))
    assert (found.found.cause, found.is_certain) == (NOT_KNOWN, False)
    assert "held_back" in found.open
