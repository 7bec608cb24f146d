"""What must hold of a shared group: each rule yields what breaks it. Pure.

    a call      a listener got a message: who, when, and the count of deliveries
    said        what the listener said of it: when, and what it was told

What is judged is what applications saw, so one judge serves the simulation and real processes. All
times are seconds of one clock that is never set.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from support.violations import violations

from vq.client.consumer.shared.failed import TOO_OFTEN
from vq.reserved import DeliveryFailure

#: What ends the time of a member with a message; with the first three it is done.
DONE: Final = frozenset({"ack", "reject", "return"})
#: A delivery that ends so has failed.
FAILS: Final = frozenset({"nack", "raise"})
LETS_GO: Final = DONE | FAILS
#: Leases begin again when another node leads; it may go on so long after ZooKeeper has it.
TAKE_OVER_S: Final = 15.0


@dataclass(slots=True)
class Said:
    """What a listener said of its message.

    Attributes:
        what: ``ack``, ``nack``, ``reject``, ``extend``; ``return`` and ``raise``: it ended.
        asked: When it was said.
        seconds: Of an extension: for how long; of a release: after how long it is due.
        told: When the answer came; infinity: none came.
        outcome: ``ok``, ``lost`` or ``unknown``.
    """

    what: str
    asked: float
    seconds: float = 0.0
    told: float = math.inf
    outcome: str = "unknown"


@dataclass(slots=True)
class Call:
    """A message that a listener got.

    Attributes:
        message: Its value: no other message has it.
        who: The member.
        at: When.
        attempts: How often it was delivered, with this time, as the listener was told.
        lease_s: Of the member.
        said: In the order in which it was said.
    """

    message: str
    who: str
    at: float
    attempts: int
    lease_s: float
    said: list[Said] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.who} got {self.message} at {self.at:.3f} s (delivery {self.attempts})"

    @property
    def done(self) -> Said | None:
        """What made it done for sure."""
        for each in self.said:
            if each.what in DONE and each.outcome == "ok":
                return each
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedEvidence:
    """All that is judged.

    Attributes:
        calls: In their order.
        owed: Messages that producers know to be stored.
        poison: Messages whose listeners always fail.
        letters: By message: the count of deliveries of each of its dead letters.
        max_deliveries: Of the group.
        lows: When somebody wrote that all messages of a set were done, and which these are.
        take_overs: When another node began to lead, or may have.
        queues: In a group that keeps the order of keys: the messages of each key of a partition, in
            their order.
    """

    calls: Sequence[Call]
    owed: frozenset[str]
    poison: frozenset[str]
    letters: Mapping[str, Sequence[int]]
    max_deliveries: int
    lows: Sequence[tuple[float, Sequence[str]]] = ()
    take_overs: Sequence[float] = ()
    queues: Sequence[Sequence[str]] = ()

    def by_message(self) -> Mapping[str, Sequence[Call]]:
        """Return the calls with each message, in their order."""
        found: dict[str, list[Call]] = defaultdict(list)
        for each in self.calls:
            found[each.message].append(each)
        return found


def deliveries_of(failure: DeliveryFailure | None) -> int:
    """Return how often a dead letter was delivered, with a last time to no listener."""
    return 0 if failure is None else failure.attempts + (failure.reason == TOO_OFTEN)


Check = Callable[[SharedEvidence], Iterator[str]]


def _lost(evidence: SharedEvidence) -> Iterator[str]:
    """No member has said that it is done, and it is no dead letter."""
    ended = _ended(evidence)
    for message in sorted(evidence.owed - ended.keys()):
        if message not in evidence.letters:
            yield f"{message} is stored, and nobody has it done"


def _kept(evidence: SharedEvidence) -> Iterator[str]:
    """Retention may delete only what is done by then."""
    ended, seen = _ended(evidence), set[str]()
    for at, messages in evidence.lows:
        for message in messages:
            if message in seen or message in evidence.letters:
                continue
            if ended.get(message, math.inf) > at:
                seen.add(message)
                yield f"{message} counts as done at {at:.3f} s, and nobody has said so by then"


def _ended(evidence: SharedEvidence) -> dict[str, float]:
    """Return when somebody has said first that a message is done; perhaps it was too late."""
    ended: dict[str, float] = {}
    for call in evidence.calls:
        for each in call.said:
            if each.what in DONE and each.outcome != "lost":
                ended[call.message] = min(each.asked, ended.get(call.message, math.inf))
    return ended


def _two_holders(evidence: SharedEvidence) -> Iterator[str]:
    """What a member was told to have said in time, it said while nobody else had the message."""
    for calls in evidence.by_message().values():
        for at, call in enumerate(calls):
            for said in call.said:
                if said.outcome != "ok":
                    continue
                for other in calls[at + 1 :]:
                    if other.at < said.asked:
                        yield f"{call} and its {said.what} at {said.asked:.3f} s is taken; {other}"


def _done_is_done(evidence: SharedEvidence) -> Iterator[str]:
    for calls in evidence.by_message().values():
        for at, call in enumerate(calls):
            if call.done is not None:
                for other in calls[at + 1 :]:
                    if other.at >= call.done.asked:
                        yield f"{call}, and it was done at {call.done.told:.3f} s; {other}"


def _lease(evidence: SharedEvidence) -> Iterator[str]:
    """After an extension nobody else has it for so long, and what its member says is taken."""
    for calls in evidence.by_message().values():
        for at, call in enumerate(calls):
            for index, said in enumerate(call.said):
                if said.what != "extend" or said.outcome != "ok":
                    continue
                until = said.asked + said.seconds
                for later in call.said[index + 1 :]:
                    if later.outcome == "lost" and later.told < until:
                        yield f"{call} until {until:.3f} s; {later.what} at {later.told:.3f} s lost"
                    if later.what in {"extend", *LETS_GO}:
                        until = min(until, later.asked)
                        break
                for other in calls[at + 1 :]:
                    if said.told < other.at < until:
                        yield f"{call} until {until:.3f} s; {other}"


def _order(evidence: SharedEvidence) -> Iterator[str]:
    """Of one key, a message comes once all before it are over, and none of these comes then.

    Over is what a listener was done with, or what was given up: neither failure nor pause is.
    """
    by_message, over = evidence.by_message(), _over(evidence)
    for queue in evidence.queues:
        before: Call | None = None  # the last call with one of those before
        late, late_at = "", -math.inf  # the one before that was over last
        for message in queue:
            calls = by_message.get(message, ())
            if calls and calls[0].at < late_at:
                yield f"{calls[0]}; {late}, before it, is over at {late_at:.3f} s at the earliest"
            if calls and before is not None and calls[0].at < before.at:
                yield f"{calls[0]}; then {before}, which is before it"
            if calls and (before is None or before.at < calls[-1].at):
                before = calls[-1]
            if over.get(message, math.inf) > late_at:
                late, late_at = message, over.get(message, math.inf)


def _over(evidence: SharedEvidence) -> dict[str, float]:
    """Return when messages are done or given up, at the earliest."""
    over, most = _ended(evidence), evidence.max_deliveries
    by_message = evidence.by_message()
    for message, counts in evidence.letters.items():
        calls = by_message.get(message, ())
        last = [said for call in calls if call.attempts == most for said in call.said]
        times = [said.asked for said in last if said.what in FAILS]
        if any(count > most for count in counts):  # no listener was called with it any more
            times.append(calls[-1].at if calls else -math.inf)
        over[message] = min([over.get(message, math.inf), *times])
    return over


def _late(evidence: SharedEvidence) -> Iterator[str]:
    """What is said after the lease is over is not taken, unless it has begun again since."""
    for call in evidence.calls:
        until = call.at + call.lease_s
        for said in call.said:
            is_again = any(call.at - TAKE_OVER_S <= at <= said.told for at in evidence.take_overs)
            if said.outcome == "ok" and said.asked > until and not is_again:
                yield f"{call} until {until:.3f} s at most; {said.what} at {said.asked:.3f} s taken"
            if said.what == "extend" and said.outcome != "lost":
                until = max(until, said.told + said.seconds)


def _counts(evidence: SharedEvidence) -> Iterator[str]:
    """The count rises with each delivery, and by no more than there may have been."""
    for calls in evidence.by_message().values():
        least_s = min(call.lease_s for call in evidence.calls)
        before: Call | None = None
        for call in calls:
            if call.attempts > evidence.max_deliveries:
                yield f"{call}: that is more than {evidence.max_deliveries}"
            if before is not None and call.attempts <= before.attempts:
                yield f"{before}; then {call}"
            if before is not None:
                unseen = call.attempts - before.attempts - 1
                if unseen > 1 + (call.at - before.at) / least_s:
                    yield f"{before}; then {call}: {unseen} deliveries had no time to lapse"
            before = call


def _dead_letters(evidence: SharedEvidence) -> Iterator[str]:
    """A message is given up after so many deliveries, neither earlier nor if it is done."""
    most = evidence.max_deliveries
    for message, counts in evidence.letters.items():
        calls = evidence.by_message().get(message, ())
        for count in counts:
            if count < most:
                yield f"{message} was given up after {count} deliveries, not {most}"
            failed = any(
                call.attempts == most and any(each.what in FAILS for each in call.said)
                for call in calls
            )
            if count == most and not failed:
                yield f"{message} was given up, and no listener failed at delivery {most}"
        for call in calls:
            if call.done is not None:
                yield f"{message} is a dead letter and done: {call}"
    for message in sorted(evidence.poison & evidence.owed - evidence.letters.keys()):
        yield f"{message} failed each time and is no dead letter"


CHECKS: Final[tuple[Check, ...]] = (
    _lost,
    _kept,
    _two_holders,
    _done_is_done,
    _lease,
    _order,
    _late,
    _counts,
    _dead_letters,
)
#: What holds whatever is lost: in a cluster that lost what the group knew, messages come again.
NOTHING_LOST: Final[tuple[Check, ...]] = (_lost,)


def judge_shared(evidence: SharedEvidence, checks: Sequence[Check] = CHECKS) -> list[str]:
    """See ``violations``."""
    return [f"shared: {each}" for each in violations(checks, evidence)]
