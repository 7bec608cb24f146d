"""An independent judge of what a fault run did: knows nothing of vq's code.

It reads what clients noted (``support.history``), what the logs hold at the end (offset and value
of every message, in order), and, for consumer groups, what ZooKeeper really took (in the order in
which it took it). The checks are those that Jepsen makes of log-like systems (jepsen
tests/kafka.clj and redpanda workload/queue.clj), under these names:

    lost          acknowledged, and the log ends behind its offset, but it is not there
    unseen        acknowledged at an offset that the log does not even reach
    misplaced     acknowledged at one place and stored at another
    aborted       refused for certain, and yet stored or delivered
    duplicate     stored twice
    inconsistent  two observations of one (partition, offset) differ
    invented      stored or delivered, but never sent
    reordered     one client's messages stand in a partition in another order than it sent them
    unsettled     a client that ended in order left a send without outcome, or one with two
    skipped       a consumer skipped messages without a new claim of the partition
    back          a consumer went back without a new claim of the partition
    restart       a consumer with a new claim did not begin at the group's committed offset
    unread        stored, but no member of a group that had time to drain received it
    repeated      delivered more than once, where nothing excuses it
    zombie        ZooKeeper took a commit of a member that no longer had the partition
    rewound       a committed offset went back
    overcommit    a member committed beyond messages that it never received
    diverged      two nodes of a group hold different bytes below the high watermark
    short         a node in sync lacks bytes below the high watermark
    usurped       one epoch of a group had two masters, or an epoch did not rise
    unfit         a node led on that refused messages for a full disk, beside one that need not
    early         a delayed message was received before its time
    recalled      a delayed message was cancelled, and yet stored or delivered
    half          some messages of a transaction are stored, and others are not
    split         the messages of a transaction in a partition are not back to back, in their order
    premature     a message of a transaction was received before anybody asked for its commit
    halted        sent while ZooKeeper alone was away, and refused or unknown in that time
    void          a fault had no effect, or too little was acknowledged for the run to say anything

An outcome has three values; a send with outcome *unknown* may be stored or not, but once at most
and in its order.
"""

import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Event = Mapping[str, Any]
Place = tuple[int, int]  # partition, offset
_SHOWN = 12
#: A node may lead so long with a full disk: it needs some time to hand over.
FULL_MAX_S = 8.0
#: Events of a message that is about to be sent, and that may be received from then on.
_BEGINS = frozenset({"send", "delay", "add"})
#: Times of delivery are whole milliseconds of the clock, and the one that a delay begins with, too.
_CLOCK_S = 0.001


class Anomaly(NamedTuple):
    """Something that must not be; ``kind`` is a name of the list above."""

    kind: str
    text: str


class Claim(NamedTuple):
    """ZooKeeper took: ``member`` has the partition from now on. ``order`` rises."""

    order: int
    partition: int
    member: str


class Commit(NamedTuple):
    """ZooKeeper took: everything before ``offset`` is done, says ``member``."""

    order: int
    partition: int
    member: str
    offset: int


class Reign(NamedTuple):
    """ZooKeeper took: ``master`` leads ``group`` in ``epoch``. ``order`` rises.

    ``insync`` are the nodes in sync, ``at`` is when, in seconds of ZooKeeper's clock.
    """

    order: int
    group: str
    epoch: int
    master: str
    insync: tuple[str, ...] = ()
    at: float = 0.0


class Presence(NamedTuple):
    """ZooKeeper took: a node is ``there``, and whether its disk is ``full``. ``order`` rises."""

    order: int
    group: str
    node: str
    there: bool
    full: bool = False
    at: float = 0.0


class Copy(NamedTuple):
    """The bytes that a node holds of a partition, from offset ``start`` on."""

    node: str
    partition: int
    start: int
    data: bytes


class Fault(NamedTuple):
    """A fault of a run: how often it was injected, and how often it had an effect.

    ``strikes`` is how often it was done, as often as ``effects`` says if None; 0 for another view
    of strikes that are counted elsewhere.
    """

    name: str
    effects: int
    strikes: int | None = None

    @property
    def blows(self) -> int:
        """How often it was done."""
        return self.effects if self.strikes is None else self.strikes


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Everything a judgement goes by.

    Attributes:
        histories: Events of every client, in the order in which it noted them.
        log: Per partition, (offset, value) of every message at the end, in rising order.
        group: Consumers among the clients form a group; its claims and commits are below.
        claims, commits: What ZooKeeper took, in its order; empty without a group.
        copies: What the nodes hold that were in sync at the end, all of one partition in one group.
        watermarks: Per partition, its high watermark at the end.
        reigns: What ZooKeeper took about who leads.
        presences: What it took about who is registered, and whose disk is full.
        away: From when to when ZooKeeper was away, and nothing else was wrong, by the clock of the
            histories; the topic has replication = sync.
        in_turn: Members are at one message of a partition at a time.
        drained: The group was given time to receive everything.
        repeats_allowed: Deliveries of one message beyond the first may happen (a member died).
        faults: The injected faults.
        acknowledged_min: The least number of acknowledged sends per strike of a fault.
    """

    histories: Mapping[str, Sequence[Event]]
    log: Mapping[int, Sequence[tuple[int, str]]]
    group: bool = False
    claims: Sequence[Claim] = ()
    commits: Sequence[Commit] = ()
    copies: Sequence[Copy] = ()
    watermarks: Mapping[int, int] = field(default_factory=dict)
    reigns: Sequence[Reign] = ()
    presences: Sequence[Presence] = ()
    away: Sequence[tuple[float, float]] = ()
    in_turn: bool = True
    drained: bool = False
    repeats_allowed: bool = False
    faults: Sequence[Fault] = ()
    acknowledged_min: int = 0


@dataclass
class Verdict:
    """The anomalies of a run; ``counts`` are for its report."""

    anomalies: list[Anomaly] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def kinds(self) -> set[str]:
        """Which kinds of anomaly were found."""
        return {anomaly.kind for anomaly in self.anomalies}

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        kinds = Counter(anomaly.kind for anomaly in self.anomalies)
        found = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())) or "none"
        shown = [f"  {anomaly.kind}: {anomaly.text}" for anomaly in self.anomalies[:_SHOWN]]
        return "\n".join([f"counts: {counts}", f"anomalies: {found}", *shown])


def judge(evidence: Evidence) -> Verdict:
    """Return what is wrong with a run."""
    verdict = Verdict()
    stored = _places(evidence.log)
    for check in (
        _check_sends,
        _check_outages,
        _check_delayed,
        _check_transactions,
        _check_log,
        _check_order,
        _check_reads,
        _check_copies,
        _check_reigns,
        _check_full_masters,
        _check_void,
    ):
        verdict.anomalies += check(evidence, stored)
    if evidence.group:
        verdict.anomalies += _check_commits(evidence)
        verdict.anomalies += _check_walks(evidence) if evidence.in_turn else ()
    for events in evidence.histories.values():
        verdict.counts.update(event["kind"] for event in events)
    verdict.counts["stored"] = sum(len(messages) for messages in evidence.log.values())
    return verdict


def _places(log: Mapping[int, Sequence[tuple[int, str]]]) -> dict[str, list[Place]]:
    places: dict[str, list[Place]] = defaultdict(list)
    for partition, messages in sorted(log.items()):
        for offset, value in messages:
            places[value].append((partition, offset))
    return places


# Producers ------------------------------------------------------------------------------------
def _check_sends(evidence: Evidence, stored: Mapping[str, list[Place]]) -> Iterator[Anomaly]:
    ends = {p: messages[-1][0] for p, messages in evidence.log.items() if messages}
    for client, events in evidence.histories.items():
        outcomes: dict[str, int] = {}
        ended = any(event["kind"] == "end" for event in events)
        for event in events:
            kind, value = event["kind"], event.get("value", "")
            if kind in _BEGINS and kind != "add":  # those end with their transaction
                outcomes.setdefault(value, 0)
            elif kind in {"sent", "waits", "refused", "unknown"}:
                outcomes[value] = outcomes.get(value, 0) + 1
            if kind == "sent":
                yield from _check_acknowledged(event, stored.get(value, []), ends)
            elif kind == "refused" and stored.get(value):
                yield Anomaly("aborted", f"{value} was refused and lies at {stored[value]}")
        for value, count in outcomes.items():
            if count > 1 or (count == 0 and ended):
                yield Anomaly("unsettled", f"{client}: {value} has {count} outcomes")


def _check_acknowledged(
    event: Event, places: list[Place], ends: Mapping[int, int]
) -> Iterator[Anomaly]:
    place = (event["partition"], event["offset"])
    if place in places:
        return
    text = f"{event['value']} was acknowledged at {place}"
    if places:
        yield Anomaly("misplaced", f"{text} and lies at {places}")
    elif place[1] > ends.get(place[0], -1):
        yield Anomaly("unseen", f"{text}; the log ends at {ends.get(place[0])}")
    else:
        yield Anomaly("lost", f"{text}; the log does not have it")


def _check_delayed(evidence: Evidence, stored: Mapping[str, list[Place]]) -> Iterator[Anomaly]:
    """What waits comes when it is due, unless it is cancelled for certain; then never."""
    due: dict[str, float] = {}
    waits: set[str] = set()
    asked: set[str] = set()
    outcomes: dict[str, str] = {}
    for event in itertools.chain.from_iterable(evidence.histories.values()):
        kind, value = event["kind"], event.get("value", "")
        if kind == "delay":
            due[value] = event["at"] + event["delay_s"]
        elif kind == "waits":
            waits.add(value)
        elif kind == "cancel":
            asked.add(value)
        elif kind == "recall":
            outcomes[value] = event["outcome"]
    if not due:
        return
    for value in waits:
        outcome = outcomes.get(value, "UNKNOWN" if value in asked else "")
        if outcome == "CANCELLED" and stored.get(value):
            yield Anomaly("recalled", f"{value} was cancelled and lies at {stored[value]}")
        elif outcome not in {"CANCELLED", "UNKNOWN"} and not stored.get(value):
            yield Anomaly("lost", f"{value} was to come later, and never came; {outcome}")
    for client, event in _receipts(evidence):
        early_s = due.get(event["value"], event["at"]) - event["at"]
        if early_s > _CLOCK_S:
            yield Anomaly("early", f"{client} received {event['value']} {early_s:.3f} s early")
        if outcomes.get(event["value"]) == "CANCELLED":
            yield Anomaly("recalled", f"{client} received {event['value']}, which was cancelled")
    if not waits.intersection(stored) or "CANCELLED" not in outcomes.values():
        yield Anomaly("void", "no delayed message came, or none was cancelled")


class _Transaction:
    """What a client has noted of a transaction."""

    def __init__(self) -> None:
        self.values: list[str] = []
        self.asked_at = float("inf")
        self.state = ""


def _transactions(evidence: Evidence) -> dict[str, _Transaction]:
    found: dict[str, _Transaction] = defaultdict(_Transaction)
    for event in itertools.chain.from_iterable(evidence.histories.values()):
        if "transaction" in event:
            each = found[event["transaction"]]
            if event["kind"] == "add":
                each.values.append(event["value"])
            elif event["kind"] == "asked":
                each.asked_at = min(each.asked_at, event["at"])
            else:
                each.state = event["state"]
    return found


def _check_transactions(evidence: Evidence, stored: Mapping[str, list[Place]]) -> Iterator[Anomaly]:
    """All of a transaction is stored, back to back in each partition, or nothing of it is."""
    found = _transactions(evidence)
    order: dict[int, dict[int, int]] = defaultdict(dict)  # by partition, of each offset
    for partition, messages in evidence.log.items():
        order[partition] = {offset: place for place, (offset, _) in enumerate(messages)}
    for name, each in found.items():
        lacking = [value for value in each.values if value not in stored]
        if each.state == "rolled back" and len(lacking) < len(each.values):
            yield Anomaly("aborted", f"{name} was rolled back, and some of it is stored")
        elif each.state == "committed" and lacking:
            yield Anomaly("lost", f"{name} was committed, and the log lacks {lacking}")
        elif 0 < len(lacking) < len(each.values):
            yield Anomaly("half", f"{name} is {each.state}, and the log lacks {lacking} alone")
        if each.state == "unknown":
            yield Anomaly("unsettled", f"{name} is still in doubt")
        places: dict[int, list[int]] = defaultdict(list)
        for value in each.values:
            for partition, offset in stored.get(value, [])[:1]:
                places[partition].append(order[partition][offset])
        for partition, at in places.items():
            if at != list(range(at[0], at[0] + len(at))):
                yield Anomaly("split", f"{name} lies in partition {partition} at {at}")
    asked = {value: each.asked_at for each in found.values() for value in each.values}
    for client, event in _receipts(evidence):
        if event.get("at", float("inf")) < asked.get(event["value"], 0.0):
            yield Anomaly("premature", f"{client} received {event['value']} before its commit")
    states = {each.state for each in found.values()}
    if found and not {"committed", "rolled back"} <= states:
        yield Anomaly("void", f"transactions are only {', '.join(sorted(states))}")


def _check_outages(evidence: Evidence, _stored: object) -> Iterator[Anomaly]:
    for begin, end in evidence.away:
        for client, events in evidence.histories.items():
            sends = [e for e in events if e["kind"] in {"send", "refused", "unknown"}]
            inside = [event for event in sends if begin < event["at"] < end]
            sent = {event["value"] for event in inside if event["kind"] == "send"}
            for event in inside:
                if event["kind"] != "send" and event["value"] in sent:
                    after_s = event["at"] - begin
                    text = f"{event['value']} of {client} was {event['kind']} {after_s:.3f} s later"
                    yield Anomaly("halted", text)


def _sent_values(evidence: Evidence) -> set[str]:
    return {
        event["value"]
        for events in evidence.histories.values()
        for event in events
        if event["kind"] in _BEGINS
    }


def _check_log(evidence: Evidence, stored: Mapping[str, list[Place]]) -> Iterator[Anomaly]:
    known = _sent_values(evidence)
    for value, places in stored.items():
        if len(places) > 1:
            yield Anomaly("duplicate", f"{value} lies at {places}")
        if value not in known:
            yield Anomaly("invented", f"{value} lies at {places[0]} and nobody sent it")
    for partition, messages in evidence.log.items():
        offsets = [offset for offset, _ in messages]
        if any(later <= earlier for earlier, later in itertools.pairwise(offsets)):
            yield Anomaly("inconsistent", f"the offsets of partition {partition} do not rise")


def _check_order(evidence: Evidence, _stored: object) -> Iterator[Anomaly]:
    turn: dict[str, tuple[str, int]] = {}
    for client, events in evidence.histories.items():
        for number, event in enumerate(events):
            if event["kind"] == "send":
                turn[event["value"]] = (client, number)
    for partition, messages in sorted(evidence.log.items()):
        last: dict[str, tuple[int, str]] = {}
        for _, value in messages:
            if value not in turn:
                continue
            client, number = turn[value]
            before = last.get(client)
            if before is not None and number < before[0]:
                yield Anomaly(
                    "reordered",
                    f"{client} sent {value} before {before[1]}; partition {partition} has it after",
                )
            last[client] = (number, value)


def _check_void(evidence: Evidence, _stored: object) -> Iterator[Anomaly]:
    for fault in evidence.faults:
        if not fault.effects:
            yield Anomaly("void", f"{fault.name} had no effect")
        elif fault.effects < fault.blows:
            yield Anomaly("void", f"{fault.name}: {fault.effects} of {fault.blows} had an effect")
    acknowledged = sum(
        event["kind"] == "sent" for events in evidence.histories.values() for event in events
    )
    least = evidence.acknowledged_min * max(1, sum(fault.blows for fault in evidence.faults))
    if acknowledged < least:
        yield Anomaly("void", f"{acknowledged} sends were acknowledged, {least} are needed")


# Copies ---------------------------------------------------------------------------------------
def _check_copies(evidence: Evidence, _stored: object) -> Iterator[Anomaly]:
    first: dict[int, Copy] = {}
    for copy in evidence.copies:
        watermark = evidence.watermarks.get(copy.partition, 0)
        end = copy.start + len(copy.data)
        if end < watermark:
            yield Anomaly(
                "short",
                f"{copy.node} has partition {copy.partition} up to {end}, not {watermark}",
            )
        other = first.setdefault(copy.partition, copy)
        begin, end = (
            max(copy.start, other.start),
            min(watermark, end, other.start + len(other.data)),
        )
        mine = copy.data[begin - copy.start : max(0, end - copy.start)]
        theirs = other.data[begin - other.start : max(0, end - other.start)]
        if mine != theirs:
            at = next(i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
            yield Anomaly(
                "diverged",
                f"{copy.node} and {other.node} differ in partition {copy.partition} at "
                f"{begin + at}, below {watermark}",
            )


def _check_reigns(evidence: Evidence, _stored: object) -> Iterator[Anomaly]:
    last: dict[str, Reign] = {}
    for reign in sorted(evidence.reigns, key=lambda each: each.order):
        before = last.get(reign.group)
        if before is not None and (
            reign.epoch < before.epoch
            or (reign.epoch == before.epoch and reign.master != before.master)
        ):
            yield Anomaly(
                "usurped",
                f"{reign.master} leads {reign.group} in epoch {reign.epoch}; {before.master} led "
                f"it in epoch {before.epoch}",
            )
        last[reign.group] = reign


def _check_full_masters(evidence: Evidence, _stored: object) -> Iterator[Anomaly]:
    """Follow who leads, who is in sync and there, and whose disk is full."""
    lead: dict[str, Reign] = {}
    there: dict[str, dict[str, bool]] = defaultdict(dict)  # by group and node, whether it is full
    since: dict[str, float] = {}
    for item in sorted([*evidence.reigns, *evidence.presences], key=lambda each: each.order):
        group = item.group
        if isinstance(item, Reign):
            lead[group] = item
        elif item.there:
            there[group][item.node] = item.full
        else:
            there[group].pop(item.node, None)
        reign = lead.get(group)
        if reign is None:
            continue
        better = [node for node in reign.insync if there[group].get(node) is False]
        if there[group].get(reign.master) and better:
            since.setdefault(group, item.at)
            continue
        lasted_s = item.at - since.pop(group, item.at)
        if lasted_s > FULL_MAX_S:
            yield Anomaly("unfit", f"{group} was led for {lasted_s:.1f} s by a full node")
    last_at = max((each.at for each in (*evidence.reigns, *evidence.presences)), default=0.0)
    for group, begun in since.items():
        if last_at - begun > FULL_MAX_S:
            yield Anomaly("unfit", f"{group} is led by a full node since {last_at - begun:.1f} s")


# Consumers ------------------------------------------------------------------------------------
def _check_reads(evidence: Evidence, stored: Mapping[str, list[Place]]) -> Iterator[Anomaly]:
    known = _sent_values(evidence)
    refused = {
        event["value"]
        for events in evidence.histories.values()
        for event in events
        if event["kind"] == "refused"
    }
    log = {(p, offset): value for p, messages in evidence.log.items() for offset, value in messages}
    seen: dict[Place, str] = {}
    times: Counter[Place] = Counter()
    for client, event in _receipts(evidence):
        place, value = (event["partition"], event["offset"]), event["value"]
        times[place] += 1
        if value in refused:
            yield Anomaly("aborted", f"{value} was refused and {client} received it")
        if value not in known:
            yield Anomaly("invented", f"{client} received {value}, which nobody sent")
        for other in {log.get(place, value), seen.setdefault(place, value)} - {value}:
            yield Anomaly("inconsistent", f"{place} was {value} for {client}, and is {other}")
        if value not in stored:
            yield Anomaly("lost", f"{client} received {value} at {place}; the log lacks it")
    if evidence.drained:
        for value, places in stored.items():
            if not any(times[place] for place in places):
                yield Anomaly("unread", f"{value} at {places} was received by nobody")
    if not evidence.repeats_allowed:
        for place, count in times.items():
            if count > 1:
                yield Anomaly("repeated", f"{place} was delivered {count} times")


def _receipts(evidence: Evidence) -> Iterator[tuple[str, Event]]:
    for client, events in evidence.histories.items():
        for event in events:
            if event["kind"] == "received":
                yield client, event


def _check_walks(evidence: Evidence) -> Iterator[Anomaly]:
    """Every member goes through a partition message by message, and starts where it may."""
    offsets = {p: [offset for offset, _ in messages] for p, messages in evidence.log.items()}
    starts: dict[int, set[int]] = defaultdict(lambda: {0})
    for commit in evidence.commits:
        starts[commit.partition].add(bisect_left(offsets.get(commit.partition, []), commit.offset))
    claims = Counter((claim.member, claim.partition) for claim in evidence.claims)
    last: dict[tuple[str, int], int] = {}
    jumps: Counter[tuple[str, int]] = Counter()
    for client, event in _receipts(evidence):
        partition = event["partition"]
        index = bisect_left(offsets.get(partition, []), event["offset"])
        key = (client, partition)
        before = last.get(key)
        last[key] = index
        if before is not None and index == before + 1:
            continue
        jumps[key] += 1
        text = f"{client} took partition {partition} {claims[key]} times, and jumped"
        if jumps[key] > claims[key] and before is not None:
            kind = "back" if index <= before else "skipped"
            yield Anomaly(kind, f"{text} {jumps[key]} times, at last to {event['offset']}")
        elif jumps[key] > claims[key] or not (
            index in starts[partition] or (before is not None and index <= before)
        ):
            yield Anomaly("restart", f"{text} to {event['offset']}, which nobody had committed")


def _check_commits(evidence: Evidence) -> Iterator[Anomaly]:
    received: dict[tuple[str, int], set[int]] = defaultdict(set)
    for client, event in _receipts(evidence):
        received[client, event["partition"]].add(event["offset"])
    offsets = {p: [offset for offset, _ in messages] for p, messages in evidence.log.items()}
    holder: dict[int, str] = {}
    reached: dict[int, int] = {}
    for item in sorted([*evidence.claims, *evidence.commits], key=lambda each: each.order):
        partition, member = item.partition, item.member
        if isinstance(item, Claim):
            holder[partition] = member
            continue
        before = reached.get(partition, 0)
        if holder.get(partition) != member:
            yield Anomaly(
                "zombie",
                f"{member} committed {item.offset} in partition {partition}, which "
                f"{holder.get(partition)} had",
            )
        if item.offset < before:
            yield Anomaly("rewound", f"partition {partition} from {before} to {item.offset}")
        here = offsets.get(partition, [])
        passed = here[bisect_left(here, before) : bisect_left(here, item.offset)]
        missed = [offset for offset in passed if offset not in received[member, partition]]
        if missed and evidence.in_turn:
            yield Anomaly(
                "overcommit",
                f"{member} committed {item.offset} in partition {partition} and never received "
                f"{missed[:3]} ({len(missed)} in all)",
            )
        reached[partition] = item.offset
