"""Why the disk of a broker fills up: what holds what, and the causes in their order. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from vq.model import TopicSettings
from vq.operations.base.sizes import bytes_text, duration_text
from vq.operations.brokers.disks import DiskState
from vq.operations.explain.answers import CauseRow, ExplainedFact
from vq.reserved import is_reserved

#: A cause has at least such a part of the bytes in use.
SHARE: Final = 0.1
#: Topics that one text names.
_NAMED: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOnDisk:
    """What a topic holds on the disk of one node.

    Attributes:
        topic: Its name.
        disk_bytes: What its blocks and archives take there.
        growth_bytes_per_day: What was appended in the last 24 hours; None: not known.
        oldest_ms: When the oldest batch was appended, in milliseconds since 1970; None: not known.
        settings: Of the topic; None: it cannot be read, or is deleted.
        is_deleted: It is deleted, and can be brought back.
        held_bytes: What would have been deleted if nobody needed it.
        held_by: Who needs it; "": nobody.
        held_partition: The partition with most of that.
        unarchived_bytes: Blocks that should be archives by now; None: not known.
        overdue_bytes: Blocks that should have been deleted by now; None: not known.
        moved_bytes: Of partitions whose messages another broker group takes now; None: not known.
    """

    topic: str
    disk_bytes: int
    growth_bytes_per_day: int | None = None
    oldest_ms: int | None = None
    settings: TopicSettings | None = None
    is_deleted: bool = False
    held_bytes: int = 0
    held_by: str = ""
    held_partition: int | None = None
    unarchived_bytes: int | None = None
    overdue_bytes: int | None = None
    moved_bytes: int | None = None

    @property
    def is_kept_forever(self) -> bool:
        """Whether no setting ever deletes a message of it."""
        settings = self.settings
        if settings is None or is_reserved(self.topic):
            return False
        return settings.retention_hours is None and settings.retention_bytes is None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskFacts:
    """What is known of the disk of a node.

    Attributes:
        node: The node, with its group.
        group: Its group.
        error: Why it does not answer; "": it does.
        disk: The fullest disk with a data directory; None: not told.
        topics: What topics hold there, the largest first; None: not told.
        diverged_bytes: In files of messages that it had to cut from its logs.
        failing_jobs: Timed duties that failed at their last run, with the reasons.
    """

    node: str
    group: str
    error: str = ""
    disk: DiskState | None = None
    topics: tuple[TopicOnDisk, ...] | None = None
    diverged_bytes: int = 0
    failing_jobs: tuple[str, ...] = ()

    @property
    def used_bytes(self) -> int | None:
        """Bytes of the file system in use; None: not known."""
        disk = self.disk
        if disk is None or disk.bytes_total is None or disk.bytes_free is None:
            return None
        return max(0, disk.bytes_total - disk.bytes_free)

    @property
    def vq_bytes(self) -> int | None:
        """What is vq's of that: blocks, archives and what was cut; None: not known."""
        if self.topics is None:
            return None
        return sum(each.disk_bytes for each in self.topics) + self.diverged_bytes

    def is_much(self, size: int | None) -> bool | None:
        """Whether so many bytes are a reason; None: not known."""
        if size is None or self.used_bytes is None:
            return None
        return size > 0 and size >= SHARE * self.used_bytes


_Size = Callable[[TopicOnDisk], int | None]


def _sum(facts: DiskFacts, size: _Size) -> int | None:
    """Return a sum over all topics; None: a part is not known, and the others have nothing."""
    if facts.topics is None:
        return None
    found = [size(each) for each in facts.topics]
    total = sum(each or 0 for each in found)
    return total if total or None not in found else None


def _largest(facts: DiskFacts, size: _Size) -> list[TopicOnDisk]:
    """Return the topics with most of something, the first one first."""
    having = [each for each in facts.topics or () if size(each)]
    return sorted(having, key=lambda each: -(size(each) or 0))


def _named(facts: DiskFacts, size: _Size) -> str:
    largest = _largest(facts, size)
    texts = [f"{each.topic} {bytes_text(size(each))}" for each in largest[:_NAMED]]
    more = f" and {len(largest) - _NAMED} more topics" if len(largest) > _NAMED else ""
    return ", ".join(texts) + more


def _by_topics(
    cause: str, size: _Size, text: str, commands: Callable[[TopicOnDisk], Sequence[str]]
) -> CauseRow[DiskFacts]:
    """Return the row of what topics hold; ``text`` is followed by how much, and by which."""
    return CauseRow(
        cause=cause,
        holds=lambda facts: facts.is_much(_sum(facts, size)),
        text=lambda facts: (
            f"{bytes_text(_sum(facts, size))} of {facts.node} {text}: {_named(facts, size)}"
        ),
        commands=lambda facts: commands(_largest(facts, size)[0]),
    )


def _held(topic: TopicOnDisk) -> int:
    return topic.held_bytes


def _held_commands(topic: TopicOnDisk) -> Sequence[str]:
    group = topic.held_by.removeprefix("group ").strip("'\"")
    if " " in group:  # there is no group at all
        return (f"vq topic alter {topic.topic} --retention-policy delete",)
    return (
        f"vq explain partition {topic.topic}/{topic.held_partition or 0} --group {group}",
        f"vq group forget {group} --topic {topic.topic}",
    )


def _waiting(topic: TopicOnDisk) -> int:
    return topic.disk_bytes if topic.topic in {"_vq.delayed", "_vq.transactions"} else 0


def _other(facts: DiskFacts) -> int | None:
    if facts.used_bytes is None or facts.vq_bytes is None:
        return None
    return max(0, facts.used_bytes - facts.vq_bytes)


def _grows(facts: DiskFacts) -> bool | None:
    if facts.disk is None:
        return None
    if facts.disk.full_in_hours is not None:
        return True
    return None if facts.disk.growth_bytes_per_hour is None else False


def _growth(topic: TopicOnDisk) -> int:
    return topic.growth_bytes_per_day or 0


def _grows_text(facts: DiskFacts) -> str:
    disk = facts.disk
    hours = None if disk is None else disk.full_in_hours
    when = (
        "and is full: messages are refused"
        if not hours
        else f"and is full in {duration_text(hours * 3600)} at the growth of now"
    )
    most = f". Most comes for {_named(facts, _growth)} a day" if _largest(facts, _growth) else ""
    return f"{facts.node} gets more than is deleted, {when}{most}"


def _grows_commands(facts: DiskFacts) -> Sequence[str]:
    for topic in _largest(facts, _growth):
        hours = None if topic.settings is None else topic.settings.retention_hours
        if hours is not None and hours > 1:
            return (
                f"vq topic alter {topic.topic} --retention-hours {max(1, hours // 2)}",
                f"vq topic describe {topic.topic}",
            )
    return ("vq topic list", "vq cluster status")


#: The causes in the order in which they are told.
TABLE: Final[Sequence[CauseRow[DiskFacts]]] = (
    CauseRow(
        cause="broker_silent",
        holds=lambda facts: bool(facts.error),
        text="{f.node} does not answer: {f.error}",
        commands=("vq doctor", "vq cluster status"),
    ),
    CauseRow(
        cause="directory_away",
        holds=lambda facts: None if facts.disk is None else facts.disk.level in {"gone", "silent"},
        text="{f.node}: {f.disk}. It is no question of space: the medium, or its mount, is away",
        commands=("vq doctor", "vq cluster status"),
    ),
    _by_topics(
        "held_back",
        _held,
        "would be deleted, and wait for a consumer group that has not read them "
        "(retention_policy = keep)",
        _held_commands,
    ),
    _by_topics(
        "waiting_messages",
        _waiting,
        "are messages that wait for their time, or for a decision",
        lambda topic: ("vq delayed list" if topic.topic == "_vq.delayed" else "vq tx list",),
    ),
    _by_topics(
        "archive_behind",
        lambda topic: topic.unarchived_bytes,
        "should be archives by now, and are not",
        lambda topic: (f"vq archive run --topic {topic.topic}", "vq archive history"),
    ),
    _by_topics(
        "retention_behind",
        lambda topic: topic.overdue_bytes,
        "should be deleted by now, and are not",
        lambda topic: ("vq broker jobs", f"vq topic describe {topic.topic}"),
    ),
    _by_topics(
        "deleted_topics",
        lambda topic: topic.disk_bytes if topic.is_deleted else 0,
        "are of topics that are deleted and can still be brought back",
        lambda topic: (f"vq topic delete {topic.topic} --now", "vq topic list --deleted"),
    ),
    CauseRow(
        cause="diverged_files",
        holds=lambda facts: facts.is_much(facts.diverged_bytes),
        text=lambda facts: (
            f"{bytes_text(facts.diverged_bytes)} of {facts.node} are messages that "
            "it had to cut from its logs, and keeps until somebody deletes them"
        ),
        commands=("vq cluster diverged",),
    ),
    _by_topics(
        "moved_away",
        lambda topic: topic.moved_bytes,
        "are of partitions whose messages another broker group takes now; they go as they get old",
        lambda topic: (f"vq topic describe {topic.topic}",),
    ),
    _by_topics(
        "kept_forever",
        lambda topic: topic.disk_bytes if topic.is_kept_forever else 0,
        "are of topics without any bound (no retention_hours, no retention_bytes)",
        lambda topic: (f"vq topic alter {topic.topic} --retention-hours 72",),
    ),
    CauseRow(
        cause="other_files",
        holds=lambda facts: (
            None if (other := _other(facts)) is None else other > (facts.used_bytes or 0) / 2
        ),
        text=lambda facts: (
            f"{bytes_text(_other(facts))} of the {bytes_text(facts.used_bytes)} in "
            f"use on the disk of {facts.node} are no messages of this node: other files, or other "
            "brokers, share the file system"
        ),
    ),
    CauseRow(
        cause="more_comes_than_goes",
        holds=_grows,
        text=_grows_text,
        commands=_grows_commands,
    ),
    CauseRow(
        cause="not_filling",
        holds=lambda _: True,
        text="the disk of {f.node} does not fill up: {f.disk}",
        commands=("vq cluster status",),
        is_rest=True,
    ),
)


def disk_told(facts: DiskFacts) -> tuple[ExplainedFact, ...]:
    """Return the facts for people and programs; those of topics are beside them."""
    disk = facts.disk
    values: dict[str, str | int | float | bool | None] = {
        "node": facts.node,
        "directory": None if disk is None else disk.directory,
        "level": None if disk is None else disk.level,
        "bytes_total": None if disk is None else disk.bytes_total,
        "bytes_free": None if disk is None else disk.bytes_free,
        "growth_bytes_per_hour": None if disk is None else disk.growth_bytes_per_hour,
        "full_in_hours": None if disk is None else disk.full_in_hours,
        "bytes_of_topics": None
        if facts.topics is None
        else sum(each.disk_bytes for each in facts.topics),
        "bytes_of_other_files": _other(facts),
        "diverged_bytes": facts.diverged_bytes if not facts.error else None,
        "failing_jobs": "; ".join(facts.failing_jobs) if not facts.error else None,
    }
    return tuple(ExplainedFact(name, value) for name, value in values.items())
