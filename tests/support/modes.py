"""Groups of all working modes on one topic, what fails in them, and what must hold at the end.

The judgement is pure: it takes what members noted, what the log holds, and what ZooKeeper took.
"""

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from support.zookeeper_log import Change

import vq

Place = tuple[int, int]

#: So many messages of a partition come again after a crash, at most.
WINDOW: Final = 10
#: By name: settings of the members.
GROUPS: Final[Mapping[str, Mapping[str, Any]]] = {
    "orderly": {"workers": 2, "window_messages": WINDOW, "retry_backoff": (0.05, 0.2)},
    "keyed": {
        "mode": "keyed",
        "workers": 3,
        "window_messages": WINDOW,
        "retry_backoff": (0.05, 0.2),
    },
    "concurrent": {
        "mode": "concurrent",
        "workers": 3,
        "window_messages": WINDOW,
        "max_attempts": 1,
        "retry_schedule": (1.0, 2.0),
    },
    "lists": {
        "mode": "concurrent",
        "workers": 2,
        "batch_size": 8,
        "batch_wait_ms": 20.0,
        "window_messages": WINDOW,
        "max_attempts": 2,
        "retry_backoff": (0.05, 0.2),
        "retry_schedule": (1.0,),
    },
}
#: Those that copy what fails: some messages fail at every try, and become dead letters.
COPYING: Final = frozenset({"concurrent", "lists"})
_FAILS_EVERY: Final = 19
_POISON_EVERY: Final = 97


def number_of(content: bytes) -> int:
    """Return the number of a message of ``support.faults.Sender``."""
    return int(content.split(b"-")[1])


def is_poison(group: str, content: bytes) -> bool:
    """Whether a message fails at every try."""
    return group in COPYING and number_of(content) % _POISON_EVERY == 5


def fails(group: str, message: vq.Message) -> bool:
    """Whether this try of a message fails: some succeed at the second or third."""
    if is_poison(group, message.content):
        return True
    tries = 1 + number_of(message.content) % 2 if group != "concurrent" else 1
    return number_of(message.content) % _FAILS_EVERY == 7 and message.attempts <= tries


# What must hold at the end ------------------------------------------------------------------------
class Result(NamedTuple):
    """What a group has done with the messages of a topic.

    Attributes:
        group: Its name.
        log: The content of each message, by where it is stored.
        keys: Those that have a key, by where they are stored.
        received, done: How often a listener was given a message, and has done it.
        first: When it was done first.
        letters: How many dead letters a message has.
        crashes: How often a partition was lost with a session, by topic and partition.
    """

    group: str
    log: Mapping[Place, bytes]
    keys: Mapping[Place, str]
    received: Mapping[Place, int]
    done: Mapping[Place, int]
    first: Mapping[Place, float]
    letters: Mapping[Place, int]
    crashes: Mapping[tuple[str, int], int]


def wrong(result: Result, topic: str) -> Iterator[str]:
    """Say what a group has lost, done twice without a crash, or done in another order."""
    group = result.group
    poison = {place for place, content in result.log.items() if is_poison(group, content)}
    for place in sorted(result.log):
        if place in poison:
            if result.done.get(place) or not result.letters.get(place):
                yield f"{group}: {place} always fails, and is no dead letter"
        elif not result.done.get(place):
            yield f"{group}: {place} was done by nobody"
        elif result.letters.get(place):
            yield f"{group}: {place} was done, and is a dead letter"
    again: Counter[int] = Counter()
    for counts in (result.done, result.letters):
        for (partition, _), count in counts.items():
            again[partition] += count - 1
    copied = sum(count for (name, _), count in result.crashes.items() if name != topic)
    for partition, count in again.items():
        crashes = result.crashes.get((topic, partition), 0)
        if count > WINDOW * (crashes + copied):
            yield f"{group}: {count} in partition {partition} were done twice, {crashes} crashes"
    if group in {"orderly", "keyed"}:
        yield from _disorder(result)


def _disorder(result: Result) -> Iterator[str]:
    """What follows another message of its partition, or of its key, is done after it."""
    lanes: dict[tuple[int, str], list[Place]] = defaultdict(list)
    for place in sorted(result.log):
        if result.group == "orderly":
            lanes[place[0], ""].append(place)
        elif place in result.keys:
            lanes[place[0], result.keys[place]].append(place)
    for lane, places in lanes.items():
        times = [(result.first[place], place) for place in places if place in result.first]
        for (before, one), (after, other) in itertools.pairwise(times):
            if after < before:
                yield f"{result.group}: {lane}: {other} was done before {one}"


# What ZooKeeper took ----------------------------------------------------------------------------
class Loss(NamedTuple):
    """A member was killed, stopped or cut off ``at`` a time of the wall clock."""

    at: float
    member: str


class Owned(NamedTuple):
    """Who owns a partition from ``at`` on, "" if nobody does; ``crash``: a session has ended."""

    at: float
    member: str
    crash: bool = False


def ownership(
    changes: Iterable[Change], cluster: str, group: str
) -> dict[tuple[str, int], list[Owned]]:
    """Return who owned each partition of a group, in the order in which ZooKeeper took it."""
    head = f"/vq/{cluster}/consumers/{group}/owners/"
    found: dict[tuple[str, int], list[Owned]] = defaultdict(list)
    for change in changes:
        if not change.path.startswith(head):
            continue
        topic, _, number = change.path.removeprefix(head).partition("/")
        if not number.isdecimal():
            continue
        member = json.loads(change.data)["member"] if change.data else ""
        found[topic, int(number)].append(Owned(change.at, member, change.closes))
    return found


def crashes_of(owned: Mapping[tuple[str, int], Sequence[Owned]]) -> dict[tuple[str, int], int]:
    """Return how often each partition was lost with a session."""
    return {each: sum(one.crash for one in line) for each, line in owned.items()}


def unowned_s(lines: Iterable[Sequence[Owned]], losses: Sequence[Loss], end: float) -> list[float]:
    """Return for how long partitions had no living owner, the longest time last.

    With a session it begins when its member was lost, else when the partition was given up. It
    counts from the last loss of any member in it: until a session ends, its member is one that is
    to take over.
    """
    found: list[float] = []
    for line in lines:
        for number, gone in enumerate(line):
            if gone.member or gone.at >= end:
                continue
            owner = line[number - 1].member if number else ""
            lost = [each.at for each in losses if each.member == owner and each.at <= gone.at]
            begin = max(lost, default=gone.at) if gone.crash else gone.at
            taken = next((each.at for each in line[number + 1 :] if each.member), end)
            last = max((each.at for each in losses if begin <= each.at <= taken), default=begin)
            found.append(taken - last)
    return sorted(found)
