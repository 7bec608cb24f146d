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
from support.simulation.kept import Kept
from support.simulation.losses import Loss, Place
from support.simulation.permits import Permits
from support.violations import violations

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
#: Where nothing keeps sends from being acknowledged, some are within this time.
STILL_S = 3.0


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
    losses: Sequence[Loss] = ()  # what may be lost, and when


@dataclass(slots=True)
class _Facts:
    evidence: Evidence
    sent: dict[str, str] = field(default_factory=dict)  # value → producer
    outcome: dict[str, Event] = field(default_factory=dict)
    places: dict[str, list[tuple[str, Stored]]] = field(default_factory=dict)  # by value
    excused: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # host → from, to
    due: dict[tuple[str, str], list[Stored]] = field(default_factory=dict)  # by letter, partition
    log: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)  # next offset, value
    resets: dict[tuple[str, str], Event] = field(default_factory=dict)  # the last one of each
    permits: Permits = field(init=False)

    def __post_init__(self) -> None:
        self.permits = Permits(self.evidence.events, self.evidence.kept, self.evidence.losses)

    def remains(self, event: Event) -> bool:
        """Whether what was read is in the final log."""
        _, _, _, partition, offset, next_offset, value = event
        return self.log.get((partition, offset)) == (next_offset, value)

    def since_reset(self) -> Iterator[Event]:
        """Yield what members read, claimed and committed, without what a loss made void.

        That is what is not in the log any more, and in a partition that an operator has set back,
        all before that. The operator's act is among the events.
        """
        letters = {group: letter for letter, group in self.evidence.groups.items()}
        unclaimed: set[tuple[str, str]] = set()
        for event in self.evidence.events:
            if event[1] not in {"commit", "own", "read", "reset"}:
                continue
            letter = letters.get(event[2], "") if event[1] == "reset" else event[2][0]
            last = self.resets.get((letter, event[3]))
            is_over = last is not None and event is not last and _is_before(event, last)
            if event[1] == "reset":
                unclaimed.add((letter, event[3]))
            elif event[1] == "own":
                unclaimed.discard((letter, event[3]))
            elif event[1] == "read" and (letter, event[3]) in unclaimed:
                continue  # what the owner had in hand when it was fenced
            if not is_over and (event[1] != "read" or self.remains(event)):
                yield event


def _is_before(event: Event, reset: Event) -> bool:
    return event[0] <= reset[0]


def judge(evidence: Evidence) -> list[str]:
    """See ``violations``."""
    return violations(CHECKS, _gather(evidence))


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
    letters = {group: letter for letter, group in evidence.groups.items()}
    for event in evidence.events:
        if event[1] == "reset" and event[2] in letters:
            facts.resets[letters[event[2]], event[3]] = event
    for partition, messages in evidence.log.items():
        for stored in messages:
            facts.log[partition, stored.offset] = stored.next_offset, stored.value
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
    """Acknowledged, but not at the acknowledged place, and nothing explains it; see ``permits``."""
    for value, event in facts.outcome.items():
        if event[1] != "ok":
            continue
        partition, offset, message_id = event[4:]
        found = facts.places.get(value, [])
        if any((w, s.offset, s.id) == (partition, offset, message_id) for w, s in found):
            continue
        why_not = facts.permits.why_not(event)
        if why_not:
            place = f"{partition}:{offset}"
            yield f"{value}, acknowledged at {place} at {event[0]:.3f} s, {why_not}, found: {found}"


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


def _refused_for_nothing(facts: _Facts) -> Iterator[str]:
    """Not acknowledged, or none was for a while, although nothing was in the way of it."""
    for end, seconds in [(e[0], e[3]) for e in facts.evidence.events if e[1] == "calm"]:
        begin = last = end - seconds
        for event in facts.evidence.events:
            time, kind, who, *rest = event
            if not begin <= time <= end:
                continue
            if kind in {"refused", "unknown"}:
                yield f"{rest[0]} of {who} was {kind} at {time:.3f} s: {rest[1:]}"
            elif kind == "ok":
                if time - last > STILL_S:
                    yield f"nothing was acknowledged from {last:.3f} s to {time:.3f} s"
                last = time
        if end - last > STILL_S:
            yield f"nothing was acknowledged from {last:.3f} s to {end:.3f} s"


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
    """Every message that a client read is in the log, and is equal for all clients.

    What a power cut or an unclean election took may have been read before.
    """
    for event in facts.evidence.events:
        if event[1] in {"read", "seen"} and not facts.remains(event):
            time, _, who, partition, offset, next_offset, value = event
            if not facts.permits.was_taken(time, value, partition, offset):
                yield (
                    f"{who} saw {value} at {partition}:{offset} (to {next_offset}) at "
                    f"{time:.3f} s, the log has {facts.log.get((partition, offset))}"
                )


def _silent(facts: _Facts) -> Iterator[str]:
    """Readers whose place is gone are told; nobody else is."""
    lost: dict[tuple[str, str], list[int]] = defaultdict(list)  # ends of lost messages, as read
    owed: dict[tuple[str, str], Event] = {}  # a commit behind one of them
    letters = {group: letter for letter, group in facts.evidence.groups.items()}
    for event in facts.evidence.events:
        _, kind, who, *rest = event
        if kind == "read" and not facts.remains(event):
            lost[who[0], rest[0]].append(rest[2])
        elif kind == "own":  # begins at what is committed
            lost.pop((who[0], rest[0]), None)
        elif kind == "commit" and any(end <= rest[1] for end in lost[who[0], rest[0]]):
            owed.setdefault((who[0], rest[0]), event)
        elif kind in {"stopped", "reset"}:
            key = (letters.get(who, "") if kind == "reset" else who[0]), rest[0]
            owed.pop(key, None)
            lost.pop(key, None)
        if kind in {"stopped", "told"} and not facts.permits.may_have_lost(event[0], rest[0]):
            yield f"{who} was told of a loss in {rest[0]} at {event[0]:.3f} s, and none happened"
    for (letter, partition), event in owed.items():
        yield (
            f"{facts.evidence.groups[letter]} was never told that messages before {event[4]} of "
            f"{partition} are lost, which {event[2]} committed at {event[0]:.3f} s"
        )
    yield from _read_on(facts)


def _read_on(facts: _Facts) -> Iterator[str]:
    """Yield reads by position that went on behind a message that is gone, without an error."""
    ends: dict[tuple[str, str], tuple[int, bool]] = {}  # of what was read last, and if it is gone
    at: dict[tuple[str, str], int] = {}  # of reads that began behind a message that is gone
    for event in facts.evidence.events:
        _, kind, who, *rest = event
        if kind == "told":
            ends.pop((who, rest[0]), None)
        elif kind == "asked":
            at.pop((who, rest[0]), None)
            if ends.get((who, rest[0])) == (rest[1], True):
                at[who, rest[0]] = rest[1]
        elif kind == "seen":
            remains = facts.remains(event)
            begun = at.pop((who, rest[0]), None)
            if begun is not None and remains:
                yield f"{who} read {event[6]} from {rest[0]}:{begun} on; what was before it is gone"
            ends[who, rest[0]] = event[5], not remains


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
    got = {(e[2][0], e[3], e[4]) for e in facts.since_reset() if e[1] == "read"}
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
    for event in facts.since_reset():
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
    """A claim begins where progress stands, and goes on message by message.

    A member that claims a partition again may also begin behind that, up to where it came itself,
    unless another one has committed meanwhile.
    """
    offsets = {key: [stored.offset for stored in due] for key, due in facts.due.items()}
    committed: dict[tuple[str, str], int] = {}
    expected: dict[tuple[str, str], int] = {}
    came_to: dict[tuple[str, str], int] = {}
    letters = {group: letter for letter, group in facts.evidence.groups.items()}
    for event in facts.since_reset():
        time, kind, member = event[:3]
        partition, *rest = event[3:]
        key = member[0], partition
        if kind in {"commit", "reset"}:
            if kind == "reset":
                key = letters.get(member, ""), partition
            committed[key] = rest[0]
            for other, place in list(came_to):
                if (other[0], place) == key and other != member:
                    del came_to[other, place]
        elif kind == "own":
            begin = bisect.bisect_left(offsets.get(key, []), committed.get(key, 0))
            expected[member, partition] = begin
        else:
            index = bisect.bisect_left(offsets.get(key, []), rest[0])
            wanted = expected.get((member, partition))
            if wanted is None:
                yield f"{member} reads {partition}:{rest[0]} at {time:.3f} s without a claim"
            elif index != wanted and not wanted < index <= came_to.get((member, partition), -1):
                yield (
                    f"{member} reads {partition}:{rest[0]} (message {index}) at {time:.3f} s; "
                    f"message {wanted} comes next"
                )
            expected[member, partition] = came_to[member, partition] = index + 1


def _delivered_again(facts: _Facts) -> Iterator[str]:
    """A second delivery, or one beside a new owner, needs a fault that explains it."""
    last_read: dict[tuple[str, str, int], Event] = {}
    owner: dict[tuple[str, str], tuple[str, float]] = {}
    for event in facts.since_reset():
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
    _refused_for_nothing,
    _invented,
    _duplicate,
    _same_id,
    _reordered,
    _inconsistent,
    _silent,
    _unreadable,
    _unseen,
    _progress,
    _skipped,
    _delivered_again,
)
