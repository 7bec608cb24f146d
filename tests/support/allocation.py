"""Facts for the advisor: made of few words in tests, and of the large tree."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from support.large_tree import LargeTree

from vq.model import TopicPartition
from vq.operations.allocation.facts import (
    AllocatedTopic,
    AllocationFacts,
    GroupLoad,
    MeasuredPartition,
)

#: A disk with a third in use, and room for all that tests send in a day.
DISK_BYTES = 3 << 50
FREE_BYTES = 2 << 50
MB = 1_000_000.0


def group(name: str, **more: Any) -> GroupLoad:
    """Return a group with an empty disk that does not grow."""
    disk = {
        "disk_bytes_free": FREE_BYTES,
        "disk_bytes_total": DISK_BYTES,
        "disk_growth_bytes_per_hour": 0,
    }
    return GroupLoad(group=name, **{"version": 3, **disk, **more})


def partition(topic: str, number: int, of: str | None, rate: float | None, **more: Any):
    """Return a partition with a rate in bytes per second; messages are of 1,000 bytes."""
    values: dict[str, Any] = {
        "bytes_per_s": rate,
        "messages_per_s": None if rate is None else rate / 1_000,
        "stored_bytes": None if rate is None else round(rate) * 3_600,
        "version": 5,
    }
    return MeasuredPartition(topic=topic, partition=number, group=of, **{**values, **more})


def facts(
    placed: Mapping[str, Mapping[str, float | None]],
    *,
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    topics: Mapping[str, Mapping[str, Any]] | None = None,
) -> AllocationFacts:
    """Return facts of ``{group: {"topic-0": bytes per second}}``; more of groups and topics."""
    more, partitions, names = groups or {}, {}, set()
    for of, held in placed.items():
        for name, rate in held.items():
            topic, _, number = name.rpartition("-")
            key = TopicPartition(topic, int(number))
            partitions[key] = partition(topic, int(number), of, rate)
            names.add(topic)
    opened = Counter(each.group for each in partitions.values())
    return AllocationFacts(
        cluster="test",
        measured_ms=1_000,
        window_s=5.0,
        groups={
            name: group(name, **{"partitions": opened[name], **more.get(name, {})})
            for name in sorted({*placed, *more})
        },
        topics={
            name: AllocatedTopic(topic=name, **{"id": f"id-{name}", **(topics or {}).get(name, {})})
            for name in sorted(names)
        },
        partitions=partitions,
    )


def facts_of(made: LargeTree) -> AllocationFacts:
    """Return facts of the large tree, as its brokers would be measured."""
    opened = Counter(each.group for each in made.partitions.values())
    return AllocationFacts(
        cluster="test",
        groups={name: group(name, partitions=opened[name]) for name in made.groups},
        topics={name: AllocatedTopic(topic=name, id=f"id-{name}") for name in made.topics},
        partitions={
            key: partition(*key, each.group, each.bytes_per_s, stored_bytes=each.stored_bytes)
            for key, each in made.partitions.items()
        },
    )
