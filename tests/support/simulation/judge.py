"""Checks a history against the promises of vq; each check yields the violations that it finds.

The checks are those of Jepsen's tests of logs (aborted, lost, unseen, duplicate, inconsistent,
reordered, skipped), and what vq adds: progress never goes back or past what was delivered, ids are
unique, a second delivery has a reason. What is judged is what clients saw, and the final log.
"""

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from support.simulation.history import Event
from support.simulation.kept import Kept, Place

#: After such a fault struck a member, its last messages may be delivered again, for so long: a
#: session, a call and a back-off may have to end before the member or its heir goes on.
EXCUSES = frozenset(
    {
        "kill",
        "pause",
        "expire",
        "disconnect",
        "blink",
        "lost reply",
        "lost request",
        "ensemble away",
    }
)
EXCUSED_S = 15.0
#: A broker reads settings anew in this time, also when it hears nothing of a change.
SETTINGS_S = 15.0
VIOLATIONS_MAX = 20


@dataclass(frozen=True, slots=True)
class Stored:
    """One message of the final log."""

    offset: int
    next_offset: int
    value: str
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that is judged: what happened, the final log and its end, and the group's progress."""

    events: Sequence[Event]
    log: Mapping[str, Sequence[Stored]]
    ends: Mapping[str, int]
    committed: Mapping[tuple[str, str], int]  # (group, partition)
    groups: Mapping[str, str]  # first letter of a member's name → group
    is_for: Callable[[str, str], bool]  # whether a member's group gets a value
    kept: Mapping[Place, Sequence[Kept]] = field(default_factory=dict)  # cut from logs


@dataclass(slots=True)
class _Facts:
    evidence: Evidence
    sent: dict[str, str] = field(default_factory=dict)  # value → producer
    outcome: dict[str, Event] = field(default_factory=dict)
    places: dict[str, list[tuple[str, Stored]]] = field(default_factory=dict)  # by value
    excused: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # host → from, to
    due: dict[tuple[str, str], list[Stored]] = field(default_factory=dict)  # by letter, partition


def judge(evidence: Evidence) -> list[str]:
    """Return what is wrong, empty if nothing is; at most ``VIOLATIONS_MAX`` lines."""
    facts = _gather(evidence)
    found: list[str] = []
    for check in CHECKS:
        for violation in check(facts):
            found.append(f"{check.__name__.removeprefix('_')}: {violation}")
            if len(found) >= VIOLATIONS_MAX:
                return found
    return found


def _gather(evidence: Evidence) -> _Facts:
    facts = _Facts(evidence)
    for event in evidence.events:
        time, kind, who, *rest = event
        if kind == "send":
            facts.sent[rest[0]] = who
        elif kind in {"ok", "refused", "unknown"}:
            facts.outcome.setdefault(rest[0], event)
        elif kind == "fault" and who in EXCUSES:
            target, seconds = rest
            facts.excused.setdefault(target, []).append((time, time + seconds + EXCUSED_S))
    for partition, messages in evidence.log.items():
        for stored in messages:
            facts.places.setdefault(stored.value, []).append((partition, stored))
        for letter in evidence.groups:
            facts.due[letter, partition] = [s for s in messages if evidence.is_for(letter, s.value)]
    return facts


def _noticed_at_once(facts: _Facts) -> Iterator[str]:
    for event in facts.evidence.events:
        if event[1] == "broken":
            yield f"at {event[0]:.3f} s {event[2]} {' '.join(map(str, event[3:]))}"


def _outcome_told_twice(facts: _Facts) -> Iterator[str]:
    for event in facts.evidence.events:
        if event[1] in {"ok", "refused", "unknown"} and facts.outcome[event[3]] is not event:
            yield f"{event[3]}: {facts.outcome[event[3]]} and {event}"


def _lost(facts: _Facts) -> Iterator[str]:
    """Acknowledged, but not at the acknowledged place; see ``_may_not_be_lost``."""
    for value, event in facts.outcome.items():
        if event[1] != "ok":
            continue
        partition, offset, message_id = event[4:]
        found = facts.places.get(value, [])
        if any((w, s.offset, s.id) == (partition, offset, message_id) for w, s in found):
            continue
        why_not = _may_not_be_lost(facts, event)
        if why_not:
            place = f"{partition}:{offset}"
            yield f"{value}, acknowledged at {place} at {event[0]:.3f} s, {why_not}, found: {found}"


def _may_not_be_lost(facts: _Facts, event: Event) -> str:
    """Return why an acknowledged message may not be lost; "" if a take-over may lose it.

    The master of its epoch may have acknowledged it alone, and another node has led in a later
    epoch. The old master, or who had copied it, has it in a file of cut bytes. That nobody has read
    it is the check ``inconsistent``.
    """
    time, partition = event[0], event[4]
    if not _acknowledged_alone(facts, partition.rpartition("-")[0], time):
        return "by all nodes in sync"
    kept = facts.evidence.kept.get(event[4:7], ())
    if not kept:
        return "and no node keeps it"
    leads = [each[2:5] for each in facts.evidence.events if each[1] == "lead"]
    for node, group, epoch in leads:
        for each in kept:
            if each.group == group and each.epoch < epoch and each.node != node:
                return ""
    return "and nobody took over"


def _acknowledged_alone(facts: _Facts, topic: str, time: float) -> bool:
    """Whether a master may have acknowledged a message of a topic alone at some time.

    A change of the settings reaches it within ``SETTINGS_S``.
    """
    alone, since = False, 0.0
    for event in facts.evidence.events:
        if event[1] == "set" and event[2] == topic:
            if event[0] > time:
                break
            if (event[3] == "async") != alone:
                alone, since = event[3] == "async", event[0]
    return alone or (since > 0 and time < since + SETTINGS_S)


def _aborted(facts: _Facts) -> Iterator[str]:
    """Refused, but stored or read."""
    for value, event in facts.outcome.items():
        if event[1] == "refused" and value in facts.places:
            yield f"{value} ({event[4]} at {event[0]:.3f} s) lies at {facts.places[value]}"
    for event in facts.evidence.events:
        if event[1] in {"read", "seen"}:
            outcome = facts.outcome.get(event[6])
            if outcome is not None and outcome[1] == "refused":
                yield f"{event[6]} was refused ({outcome}) and read: {event}"


def _invented(facts: _Facts) -> Iterator[str]:
    for value, places in facts.places.items():
        if value not in facts.sent:
            yield f"{value!r} was never sent and lies at {places}"


def _duplicate(facts: _Facts) -> Iterator[str]:
    for value, places in facts.places.items():
        if len(places) > 1:
            yield f"{value} is stored {len(places)} times: {places}"


def _same_id(facts: _Facts) -> Iterator[str]:
    holders: dict[int, str] = {}
    for value, places in facts.places.items():
        other = holders.setdefault(places[0][1].id, value)
        if other != value:
            yield f"{value} and {other} have the id {places[0][1].id}"


def _reordered(facts: _Facts) -> Iterator[str]:
    for partition, messages in facts.evidence.log.items():
        last: dict[str, int] = {}
        for stored in messages:
            producer, _, number = stored.value.rpartition("/")
            if int(number) <= last.get(producer, -1):
                yield f"{partition}: {stored.value} behind {producer}/{last[producer]}"
            last[producer] = int(number)


def _inconsistent(facts: _Facts) -> Iterator[str]:
    """Every message that a client read is in the log, and is equal for all clients."""
    log = {
        (partition, stored.offset): (stored.next_offset, stored.value)
        for partition, messages in facts.evidence.log.items()
        for stored in messages
    }
    for event in facts.evidence.events:
        if event[1] in {"read", "seen"}:
            _, _, who, partition, offset, next_offset, value = event
            if log.get((partition, offset)) != (next_offset, value):
                yield (
                    f"{who} saw {value} at {partition}:{offset} (to {next_offset}) at "
                    f"{event[0]:.3f} s, the log has {log.get((partition, offset))}"
                )


def _unreadable(facts: _Facts) -> Iterator[str]:
    """The readable range ends behind its last message, and nothing overlaps."""
    for partition, messages in facts.evidence.log.items():
        position = 0
        for stored in messages:
            if stored.offset < position:
                yield f"{partition}: {stored} begins before {position}"
            position = stored.next_offset
        end = facts.evidence.ends[partition]
        if position != end:
            yield f"{partition}: the last message ends at {position}, not {end}"


def _unseen(facts: _Facts) -> Iterator[str]:
    """In the log, but the group never received it, or did not commit it at the end."""
    evidence = facts.evidence
    got = {(event[2][0], event[3], event[4]) for event in evidence.events if event[1] == "read"}
    for (letter, partition), messages in facts.due.items():
        group = evidence.groups[letter]
        for stored in messages:
            if (letter, partition, stored.offset) not in got:
                yield f"{stored.value} at {partition}:{stored.offset} reached nobody in {group}"
        committed = evidence.committed.get((group, partition), 0)
        if messages and committed < messages[-1].next_offset:
            yield (
                f"{partition}: the members of {group} left in order, but {committed} is committed, "
                f"not {messages[-1].next_offset}"
            )


def _progress(facts: _Facts) -> Iterator[str]:
    """Commits never go back, and never past a message that was not delivered yet."""
    delivered: dict[tuple[str, str], set[int]] = defaultdict(set)
    first_open: dict[tuple[str, str], int] = defaultdict(int)  # index of the first undelivered one
    last: dict[tuple[str, str], int] = {}
    for event in facts.evidence.events:
        if event[1] == "read":
            delivered[event[2][0], event[3]].add(event[4])
        elif event[1] == "commit":
            time, _, member, partition, offset = event
            key = member[0], partition
            if offset < last.get(key, 0):
                yield f"{member} sets {partition} from {last[key]} back to {offset} at {time:.3f} s"
            last[key] = offset
            messages, at = facts.due.get(key, ()), first_open[key]
            while at < len(messages) and messages[at].offset in delivered[key]:
                at += 1
            first_open[key] = at
            if at < len(messages) and offset > messages[at].offset:
                yield (
                    f"{member} commits {partition}:{offset} at {time:.3f} s, but "
                    f"{messages[at].value} at {messages[at].offset} was not delivered by then"
                )


def _skipped(facts: _Facts) -> Iterator[str]:
    """A claim begins where progress stands, and goes on message by message."""
    offsets = {key: [stored.offset for stored in due] for key, due in facts.due.items()}
    committed: dict[tuple[str, str], int] = {}
    expected: dict[tuple[str, str], int] = {}
    for event in facts.evidence.events:
        time, kind, member = event[:3]
        if kind not in {"commit", "own", "read"}:
            continue
        partition, *rest = event[3:]
        key = member[0], partition
        if kind == "commit":
            committed[key] = rest[0]
        elif kind == "own":
            begin = bisect.bisect_left(offsets.get(key, []), committed.get(key, 0))
            expected[member, partition] = begin
        else:
            index = bisect.bisect_left(offsets.get(key, []), rest[0])
            wanted = expected.get((member, partition))
            if wanted is None:
                yield f"{member} reads {partition}:{rest[0]} at {time:.3f} s without a claim"
            elif index != wanted:
                yield (
                    f"{member} reads {partition}:{rest[0]} (message {index}) at {time:.3f} s; "
                    f"message {wanted} comes next"
                )
            expected[member, partition] = index + 1


def _delivered_again(facts: _Facts) -> Iterator[str]:
    """A second delivery, or one beside a new owner, needs a fault that explains it."""
    last_read: dict[tuple[str, str, int], Event] = {}
    owner: dict[tuple[str, str], tuple[str, float]] = {}
    for event in facts.evidence.events:
        if event[1] == "own":
            owner[event[2][0], event[3]] = event[2], event[0]
        elif event[1] == "read":
            time, _, member, partition, offset, _, value = event
            holder, since = owner.get((member[0], partition), (member, 0.0))
            if holder != member and not _is_excused(facts, member, since, time):
                yield f"{member} delivers {value} at {time:.3f} s, but {holder} has {partition}"
            before = last_read.get((member[0], partition, offset))
            if before is not None and not (
                _is_excused(facts, before[2], before[0], time)
                or _is_excused(facts, member, before[0], time)
            ):
                yield (
                    f"{value} at {partition}:{offset} was delivered to {before[2]} at "
                    f"{before[0]:.3f} s and to {member} at {time:.3f} s"
                )
            last_read[member[0], partition, offset] = event


def _is_excused(facts: _Facts, member: str, begin: float, end: float) -> bool:
    host = member.partition("-")[0]
    return any(
        start <= end and stop >= begin
        for target in (host, "all")
        for start, stop in facts.excused.get(target, ())
    )


CHECKS: tuple[Callable[[_Facts], Iterator[str]], ...] = (
    _noticed_at_once,
    _outcome_told_twice,
    _lost,
    _aborted,
    _invented,
    _duplicate,
    _same_id,
    _reordered,
    _inconsistent,
    _unreadable,
    _unseen,
    _progress,
    _skipped,
    _delivered_again,
)
