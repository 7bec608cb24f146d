"""What there is to read: asks ZooKeeper and brokers on the driver, and gives ranges."""

import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_vq.filters import EVERYTHING, Narrowed
from pyspark_vq.options import Place, Places, ReadOptions
from pyspark_vq.ranges import Range
from vq import Admin
from vq.admin import PartitionEnds
from vq.errors import (
    InvalidArgument,
    NotMaster,
    OffsetOutOfRange,
    PermissionRefused,
    VqError,
)

logger = logging.getLogger("pyspark_vq")
_LOOK_AGAIN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic as it is now.

    Attributes:
        name: Its name.
        id: Tells it from a namesake that was deleted.
        ends: The offsets that its partitions hold; None: a broker is silent.
    """

    name: str
    id: str
    ends: Mapping[int, PartitionEnds | None]


def takes(options: ReadOptions, name: str) -> bool:
    """Return whether a query is to read the topic of a name."""
    if options.topic_pattern is None:
        return name in options.topics
    return re.fullmatch(options.topic_pattern, name) is not None


def names_now(admin: Admin, options: ReadOptions) -> tuple[list[str], dict[str, VqError]]:
    """Return the names of a query's topics, sorted; none if no topic has a name of the pattern.

    Beside them, by name, why topics with a name of the pattern cannot be read in ZooKeeper.
    """
    if options.topic_pattern is None:
        return sorted(options.topics), {}
    found, unreadable = admin.readable_topics()
    names = sorted(each.name for each in found if takes(options, each.name))
    return names, {name: error for name, error in unreadable.items() if takes(options, name)}


def names_to_begin(admin: Admin, options: ReadOptions) -> list[str]:
    """Return the names of a query's topics, sorted, when it begins.

    Raises:
        InvalidArgument: No topic has a name of the pattern; or an option names the places of a
            topic that is not read.
        VqError: One with a name of the pattern cannot be read in ZooKeeper, and data loss fails the
            query.
    """
    names, unreadable = names_now(admin, options)
    for name, error in unreadable.items():
        if options.fail_on_data_loss:
            raise type(error)(
                f"topicPattern = {options.topic_pattern!r} takes topic {name!r}, and its messages "
                f"would be missing: {error}; repair it, or failOnDataLoss=false to leave it out"
            ) from error
        logger.warning("topic %r is left out: %s", name, error)
    if not names:
        raise InvalidArgument(
            f"no topic has a name like topicPattern = {options.topic_pattern!r}; "
            "`vq topic list` shows all"
        )
    for option, places in (
        ("startingOffsets", options.starting),
        ("endingOffsets", options.ending),
    ):
        others = sorted({topic for topic, _ in places.named} - set(names))
        if others:
            raise InvalidArgument(
                f"{option} names topic {others[0]!r}, which the query does not read; it reads "
                f"{', '.join(names[:10])}"
            )
    return names


def topic_now(admin: Admin, name: str) -> TopicNow:
    """Return a topic as it is now.

    Raises:
        UnknownTopic: There is none of this name.
        PermissionRefused: It is not readable.
    """
    topic = admin.get_topic(name)
    if not topic.settings.readable:  # brokers would refuse, and seem to be silent
        raise PermissionRefused(
            f"topic {name!r} is not readable; Admin.alter_topic({name!r}, readable=True) opens it"
        )
    return TopicNow(name, topic.id, admin.bounds(topic))


def known_ends(
    admin: Admin, topic: TopicNow, timeout_s: float, left: Narrowed = EVERYTHING
) -> dict[int, PartitionEnds]:
    """Return the ends of the wanted partitions; asks again while a broker is silent.

    Raises:
        NotMaster: It is still silent after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    ends = topic.ends
    while True:
        wanted = {n: found for n, found in ends.items() if left.takes(topic.name, n)}
        silent = sorted(n for n, found in wanted.items() if found is None)
        if not silent:
            return {n: found for n, found in wanted.items() if found is not None}
        if time.monotonic() >= deadline:
            raise NotMaster(
                f"the brokers of {len(silent)} partitions of {topic.name!r} do not answer, such as "
                f"{silent[:5]}, for {timeout_s:g} s; start them (`vq cluster status`), see in the "
                "log whether they take the user of the query, or leave the partitions out with a "
                "filter"
            )
        time.sleep(_LOOK_AGAIN_S)
        ends = admin.bounds(topic.name)


def batch_ranges(admin: Admin, options: ReadOptions, left: Narrowed) -> list[Range]:
    """Return the ranges of a batch query, by topic and partition; some may be empty.

    Raises:
        VqError: See ``names_to_begin``, ``topic_now``, ``known_ends`` and ``offsets_of``.
    """
    found = []
    for name in names_to_begin(admin, options):
        if left.topics is not None and name not in left.topics:
            continue
        topic = topic_now(admin, name)
        ends = known_ends(admin, topic, options.timeout_s, left)
        starts = offsets_of(admin, topic, ends, "startingOffsets", options.starting, options)
        stops = offsets_of(admin, topic, ends, "endingOffsets", options.ending, options)
        bounds = starts
        if left.since_ms is not None and ends:
            since_ms = left.since_ms - int(options.clock_ahead_s * 1000)
            since = Places(Place(time_ms=max(0, since_ms)), {})
            bounds = offsets_of(admin, topic, ends, "timestamp", since, options)
        for n, start in sorted(starts.items()):
            passed = start < bounds[n]
            found.append(Range(topic.name, n, max(start, bounds[n]), stops[n], topic.id, passed))
    return found


def offsets_of(
    admin: Admin,
    topic: TopicNow,
    ends: Mapping[int, PartitionEnds],
    name: str,
    places: Places,
    options: ReadOptions,
) -> dict[int, int]:
    """Return the offsets that an option means now.

    Raises:
        InvalidArgument: It names a partition that does not exist.
        OffsetOutOfRange: It names an offset that is not kept, and data loss fails the query.
        NotMaster: A broker that must be asked for a time is still silent after the timeout.
    """
    for which, number in places.named:
        if which == topic.name and number not in topic.ends and number != -1:
            raise InvalidArgument(
                f"{name} names partition {number} of {topic.name!r}, which has partitions 0 to "
                f"{len(topic.ends) - 1}"
            )
    first = _first_offsets(admin, topic, ends, options)
    times: dict[int, Mapping[int, int]] = {}
    found = {}
    for number, held in ends.items():
        place = places.of(topic.name, number)
        if place.time_ms is not None and place.time_ms not in times:
            times[place.time_ms] = _at_time(admin, topic, ends, place.time_ms, options.timeout_s)
        if place.offset is not None:
            offset = _checked(topic, number, held, name, place.offset, options)
        elif place.time_ms is not None:
            offset = times[place.time_ms][number]
        else:
            offset = held.earliest if place.end == "earliest" else held.latest
        found[number] = min(max(offset, first[number]), held.latest)
    return found


def _at_time(
    admin: Admin,
    topic: TopicNow,
    ends: Mapping[int, PartitionEnds],
    time_ms: int,
    timeout_s: float,
) -> dict[int, int]:
    """Return the offsets of a time in the partitions of ``ends``; asks again as ``known_ends``.

    Raises:
        NotMaster: A broker is still silent after ``timeout_s``.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        found = admin.offsets_at_time(topic.name, time_ms)
        known = {n: at for n in ends if (at := found.get(n)) is not None}
        if len(known) == len(ends):
            return known
        if time.monotonic() >= deadline:
            silent = min(ends.keys() - known.keys())
            raise NotMaster(
                f"a broker of {topic.name}-{silent} does not tell the offset of a time for "
                f"{timeout_s:g} s; start it first (`vq cluster status`)"
            )
        time.sleep(_LOOK_AGAIN_S)


def _checked(
    topic: TopicNow,
    number: int,
    held: PartitionEnds,
    name: str,
    offset: int,
    options: ReadOptions,
) -> int:
    """Return an offset that a user gave, if it is kept.

    Raises:
        OffsetOutOfRange: It is not, and data loss fails the query.
    """
    if held.earliest <= offset <= held.latest:
        return offset
    text = (
        f"{name}: offset {offset} of {topic.name}-{number} is outside "
        f"[{held.earliest}, {held.latest}]"
    )
    if options.fail_on_data_loss:
        raise OffsetOutOfRange(
            f"{text}; give another one, or failOnDataLoss=false to read what is there",
            details={"earliest": held.earliest, "latest": held.latest},
        )
    logger.warning("%s; the nearest one is taken", text)
    return offset


def _first_offsets(
    admin: Admin, topic: TopicNow, ends: Mapping[int, PartitionEnds], options: ReadOptions
) -> dict[int, int]:
    """Return where reading may begin: behind archived blocks if those are not wanted."""
    first = {number: held.earliest for number, held in ends.items()}
    if options.include_archive or not ends:
        return first
    blocks, silent = admin.list_archives(topic.name)
    if silent:
        raise NotMaster(f"nodes do not tell their archives: {'; '.join(silent[:3])}")
    for block in blocks:
        if block.topic_id == topic.id and block.partition in first:
            first[block.partition] = max(first[block.partition], block.end)
    return first
