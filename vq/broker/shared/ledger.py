"""What shared groups have of the messages of their partitions. Pure.

                    receive                      ack, reject
    (not delivered) ───────▶ held by a member ───────────────▶ done
                      ▲        │         ▲ │ extend
                      │        │ release └─┘
              receive └─ open ◀┘ the lease is over

A partition is known by numbers of messages: all before ``low`` are done, none from ``cursor`` on
was delivered, and of those between what is not done is kept as runs, which are messages with equal
facts that follow each other. So what is kept grows with the gaps, not with the messages, and nobody
looks at a message. Of a group that keeps the order of keys it is also known which of them are open;
see ``open_keys``.

Requests are judged (``receive``, ``settle``) and become notes; only ``take`` changes what is known,
of a note that was just made as of one that is read from the log. So who reads the log knows what
its writer knew. Two things are not in the log: the time at which a lease is over, which begins
again when the note is read, and up to where partitions have messages, which members tell again.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from vq.broker.shared.notes import (
    Acquired,
    Forgotten,
    Granted,
    Lost,
    Members,
    MemberState,
    Note,
    OpenRun,
    SettledMessages,
    Settlement,
    SettlementKind,
    SourceKey,
    SourceState,
)
from vq.broker.shared.open_keys import OpenKeys
from vq.errors import Busy, InvalidRequest, SequenceStale
from vq.limits import KIB
from vq.shown import shown

ACK, RELEASE, REJECT, EXTEND, UNUSED = SettlementKind
#: With these, others may have the messages.
FREES: Final = frozenset({RELEASE, UNUSED})
#: Runs of one answer, and of one note.
RUNS_PER_ANSWER: Final = 1_000
#: What members have asked last is known of so many members of a group, the last ones. Of a SETTLE
#: that has not found more runs than so many it is only known that there were some: ``SOME_LOST``.
MEMBERS_MAX: Final = 5_000
LOST_MAX: Final = 20
SOME_LOST: Final[tuple[tuple[SourceKey, Lost], ...]] = ((SourceKey("", 0, ""), Lost(0, 0, 0, 0)),)
#: A group counts its grants from the time on at which it begins, or a node begins to lead, in this
#: part of a ms: so no grant has the number of one that nobody knows any more, of a group of its
#: name that was deleted, or of an end that the log has lost.
GRANTS_PER_MS: Final = 16
#: About so much of what settlements have not found goes into the record of the members.
LOST_BYTES: Final = 512 * KIB
#: Groups of one journal, and partitions of a group.
GROUPS_MAX: Final = 10_000
SOURCES_MAX: Final = 50_000
_first_of: Final = attrgetter("first")
_NEVER: Final = 2**63


class Now(NamedTuple):
    """The time.

    Attributes:
        ms: By a clock that is never set, from any begin: leases go by it.
        wall_ms: By the wall clock: that a message is due is noted by it.
    """

    ms: int
    wall_ms: int

    def lease_end_ms(self, lease_ms: int) -> int:
        """Return when a lease is over that begins now.

        ``ms`` is rounded down: the ms that has begun is not counted, so no lease is too short.
        """
        return self.ms + 1 + lease_ms


class Told(NamedTuple):
    """What a member tells of a partition.

    Attributes:
        source: The partition.
        begin: The number with which the group begins there, if it has not.
        end: Number of the first message that the member cannot read yet.
        cut_at: From this message on, all that was there is gone; None: the member knows of no cut.
        cuts: Of so many cuts the member knew when it saw that one; see ``SharedSource``.
    """

    source: SourceKey
    begin: int
    end: int
    cut_at: int | None = None
    cuts: int = 0


class ReceiveAsk(NamedTuple):
    """What a member asks.

    Attributes:
        member, attempt: Who, and its number of this request; one that is repeated has the same.
        most: It wants at most so many messages.
        lease_ms: For how long it has them.
        open_max: Nothing new is delivered of a partition that has so many messages open,
        group_open_max: and nothing new at all if all partitions of the group have so many.
        told: The partitions that it reads.
        is_keyed: Of one key, only one message may be handled at a time, in their order.
    """

    member: int
    attempt: int
    most: int
    lease_ms: int
    open_max: int
    group_open_max: int
    told: Sequence[Told]
    is_keyed: bool = False


class ToldKeys(NamedTuple):
    """What a member tells of the keys of messages that it has read.

    Attributes:
        source: The partition.
        first: The first message.
        grant: With which the member has them.
        keys: Of each of them, see ``OpenKeys``.
    """

    source: SourceKey
    first: int
    grant: int
    keys: Sequence[int]


@dataclass(slots=True)
class MessageRun:
    """Messages with equal facts that follow each other.

    Attributes:
        first, end: From the one up to, but without, the other.
        deliveries: How often each was delivered.
        grant, member, lease_ms: Who has them; a grant of 0: nobody.
        until_ms: When the lease is over; or when they are due. See ``Now.ms``.
    """

    first: int
    end: int
    deliveries: int
    grant: int
    member: int
    lease_ms: int
    until_ms: int

    def is_like(self, other: "MessageRun") -> bool:
        """Whether another run, which follows, has the same facts."""
        return (self.end, self.grant, self.deliveries, self.until_ms, self.lease_ms) == (
            other.first,
            other.grant,
            other.deliveries,
            other.until_ms,
            other.lease_ms,
        )

    def is_held(self, now: Now) -> bool:
        """Whether a member has them."""
        return self.grant != 0 and self.until_ms > now.ms


class SharedSource:
    """A partition of a group.

    Attributes:
        cursor: From this message on none was delivered.
        end: From this one on none can be read, as members have told.
        runs: What is before ``cursor`` and not done, in the order of the messages.
        open: How many messages these are.
        keys: Of these, if the group keeps their order; None: it does not.
        rejected: Messages that were given up, since this node reads the log.
        cuts: So often it was noted that the partition had lost its end.
    """

    __slots__ = ("_next_ms", "cursor", "cuts", "end", "keys", "open", "rejected", "runs")

    def __init__(self, cursor: int) -> None:
        self.cursor = self.end = cursor
        self.runs: list[MessageRun] = []
        self.open = self.rejected = self.cuts = 0
        self.keys: OpenKeys | None = None
        self._next_ms = 0  # before that, no run is due and no lease over

    @property
    def low(self) -> int:
        """The lowest message that is not done."""
        return self.runs[0].first if self.runs else self.cursor

    @property
    def next_ms(self) -> int | None:
        """When something may be due, or a lease over, at the earliest; None: nothing is open."""
        return self._next_ms if self.runs and self._next_ms < _NEVER else None

    def due(self, now: Now, count: int) -> Iterator[tuple[int, int, int]]:
        """Go through up to so many messages that are due: first, count, deliveries so far."""
        if not self.runs or self._next_ms > now.ms:
            return
        if self.keys is not None:
            yield from self._due_of_keys(self.keys, now, count)
            return
        for run in self.runs:
            if count <= 0:
                return
            if run.until_ms <= now.ms:
                some = min(count, run.end - run.first)
                count -= some
                yield run.first, some, run.deliveries
        if count > 0:  # all that is due goes out; there is nothing to look for before
            self._next_ms = min(each.until_ms for each in self.runs)

    def _due_of_keys(self, keys: OpenKeys, now: Now, count: int) -> Iterator[tuple[int, int, int]]:
        """Do what ``due`` does, and leave out what waits for others; their end is told."""
        keys.look(self.runs, self.cursor)
        later = [each.until_ms for each in self.runs if each.until_ms > now.ms]
        for run in self.runs:
            if run.until_ms > now.ms:
                continue
            for number in range(run.first, run.end):
                if count <= 0:
                    return
                if not keys.waits(number):
                    count -= 1
                    yield number, 1, run.deliveries
        self._next_ms = min(later, default=_NEVER)

    def keep_order(self) -> None:
        """Keep the order of keys from now on."""
        if self.keys is None:
            self.keys = OpenKeys()

    def tell_keys(self, first: int, keys: Sequence[int]) -> None:
        """Learn the keys of messages; what has waited for that may be due."""
        self.keep_order()
        assert self.keys is not None
        self.keys.tell(first, keys, self.runs)
        self._next_ms = 0

    def fresh(self, count: int, open_max: int) -> int:
        """Return how many messages that nobody has had can be delivered, up to ``count``."""
        return max(0, min(count, self.end - self.cursor, open_max - self.open))

    # What notes change ----------------------------------------------------------------------------
    def _cut_at(self, number: int) -> int:
        """Have a run begin at a message, if it is in one; return the index of the first such."""
        runs = self.runs
        at = bisect_right(runs, number, key=_first_of)
        if at and runs[at - 1].first == number:
            return at - 1
        if at and runs[at - 1].end > number:
            before = runs[at - 1]
            runs.insert(at, replace(before, first=number))
            before.end = number
        return at

    def _join(self, begin: int, end: int) -> None:
        """Join runs with equal facts among those from one index to another, and their next ones."""
        runs = self.runs
        for at in range(min(end, len(runs) - 1), max(begin, 1) - 1, -1):
            if runs[at - 1].is_like(runs[at]):
                runs[at - 1].end = runs[at].end
                del runs[at]

    def acquire(self, run: Granted, note: Acquired, until_ms: int) -> None:
        """Give messages to a member; those from the cursor on become open."""
        first, end = run.first, run.first + run.messages
        if end > self.cursor:
            begin = max(first, self.cursor)
            self.runs.append(MessageRun(begin, end, 0, 0, 0, 0, 0))
            self.open += end - begin
            self.cursor = end
            self.end = max(self.end, end)
        begin_at, end_at = self._cut_at(first), self._cut_at(end)
        end_at = bisect_right(self.runs, end - 1, key=_first_of)
        for each in self.runs[begin_at:end_at]:
            each.deliveries, each.grant, each.member = run.deliveries, note.grant, note.member
            each.lease_ms, each.until_ms = note.lease_ms, until_ms
        self._next_ms = min(self._next_ms, until_ms)
        self._join(begin_at, end_at)

    def settle(self, run: Settlement, now: Now) -> None:
        """Change what a member had."""
        first, end = run.first, run.first + run.messages
        begin_at = self._cut_at(first)
        self._cut_at(end)
        end_at = bisect_right(self.runs, end - 1, key=_first_of)
        if run.kind in {ACK, REJECT}:
            if self.keys is not None:
                for done in self.runs[begin_at:end_at]:
                    self.keys.done(range(done.first, done.end))
                self._next_ms = 0
            self.open -= sum(each.end - each.first for each in self.runs[begin_at:end_at])
            del self.runs[begin_at:end_at]
            self.rejected += run.messages if run.kind is REJECT else 0
            return
        for each in self.runs[begin_at:end_at]:
            if run.kind is EXTEND:
                each.lease_ms, each.until_ms = run.time_ms, now.lease_end_ms(run.time_ms)
            else:
                each.deliveries -= run.kind is UNUSED
                each.grant = each.member = each.lease_ms = 0
                wait_ms = run.time_ms - now.wall_ms
                each.until_ms = now.ms + wait_ms if wait_ms > 0 else 0  # those that are due join
            self._next_ms = min(self._next_ms, each.until_ms)
        self._join(begin_at, end_at)

    def lose(self, part: SourceState) -> None:
        """Know nothing of messages from the cursor of a note on: other ones get their numbers."""
        del self.runs[self._cut_at(part.cursor) :]
        self.open = sum(each.end - each.first for each in self.runs)
        self.cursor = self.end = part.cursor
        self.cuts = part.cuts
        self.keys = None if self.keys is None else OpenKeys()
        self._next_ms = 0

    def become(self, part: SourceState, now: Now) -> None:
        """Be what a note says."""
        self.cuts = part.cuts
        self.cursor, self.end = part.cursor, max(self.end, part.cursor)
        self.runs = [
            MessageRun(
                each.first,
                each.first + each.messages,
                each.deliveries,
                each.grant,
                each.member,
                each.lease_ms,
                now.lease_end_ms(each.lease_ms)
                if each.grant
                else now.ms + max(0, each.due_ms - now.wall_ms),
            )
            for each in part.runs
        ]
        self.open = sum(each.messages for each in part.runs)
        self._next_ms = 0

    def begin_leases(self, now: Now) -> None:
        """Have the leases of all that is held begin now."""
        for each in self.runs:
            if each.grant:
                each.until_ms = now.lease_end_ms(each.lease_ms)
        self._next_ms = 0

    def open_runs(self, now: Now) -> tuple[OpenRun, ...]:
        """Return the runs as a note has them."""
        return tuple(
            OpenRun(
                each.first,
                each.end - each.first,
                each.deliveries,
                each.grant,
                each.member,
                each.lease_ms,
                0 if each.grant else max(0, each.until_ms - now.ms + now.wall_ms),
            )
            for each in self.runs
        )

    # What is judged -------------------------------------------------------------------------------
    def held_of(self, run: Settlement, now: Now) -> Iterator[tuple[int, int, bool]]:
        """Go through a run of a SETTLE in pieces: first, count, whether its grant has them."""
        at, end = run.first, run.first + run.messages
        runs = self.runs
        index = max(0, bisect_right(runs, at, key=_first_of) - 1)
        while at < end:
            while index < len(runs) and runs[index].end <= at:
                index += 1
            found = runs[index] if index < len(runs) else None
            if found is None or found.first >= end:
                yield at, end - at, False
                return
            if found.first > at:
                yield at, found.first - at, False
                at = found.first
            upto = min(end, found.end)
            yield at, upto - at, found.grant == run.grant and found.until_ms > now.ms
            at = upto


class SharedGroup:
    """A group.

    Attributes:
        name: Of it.
        grants: The number of the last one.
        open: Messages of all partitions that were delivered and are not done.
        sources: Its partitions.
        members: What its members have asked last, the last one last.
        is_keyed: The order of keys is kept.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.grants = self.open = 0
        self.is_keyed = False
        self.sources: dict[SourceKey, SharedSource] = {}
        self.members: OrderedDict[int, MemberState] = OrderedDict()
        self._turn = 0  # which partition is looked at first

    # Requests -------------------------------------------------------------------------------------
    def begun(self, told: Iterable[Told], now: Now) -> list[SourceState]:
        """Return the notes of partitions with which the group begins.

        Raises:
            Busy: There would be too many.
        """
        new = [each for each in told if each.source not in self.sources]
        if new and len(self.sources) + len(new) > SOURCES_MAX:
            raise Busy(f"group {shown(self.name)} has {SOURCES_MAX} partitions; no more go")
        grants = self.grants or now.wall_ms * GRANTS_PER_MS
        return [SourceState(self.name, each.source, grants, each.begin, ()) for each in new]

    def cut(self, told: Iterable[Told], now: Now) -> list[SourceState]:
        """Return the notes of partitions that have lost their end.

        What is sent there next has the numbers of what is gone, and is delivered. All members see
        a cut, and some when it is noted already: so it counts only if they knew of those before.
        """
        found = []
        for each in told:
            source = self.sources[each.source]
            if each.cut_at is None or each.cuts != source.cuts:
                continue
            state = self.snapshot(each.source, now)
            runs = tuple(
                run._replace(messages=min(run.messages, each.cut_at - run.first))
                for run in state.runs
                if run.first < each.cut_at
            )
            cursor = min(source.cursor, each.cut_at)
            found.append(state._replace(cursor=cursor, runs=runs, cuts=source.cuts + 1))
        return found

    def keep_order(self, told: Iterable[Told]) -> None:
        """Keep the order of keys from now on."""
        self.is_keyed = True
        for each in told:
            self.sources[each.source].keep_order()

    def tell(self, told: Iterable[Told]) -> bool:
        """Learn up to where partitions have messages; return whether one has more than before."""
        is_more = False
        for each in told:
            source = self.sources[each.source]
            if each.end > source.end:
                source.end = each.end
                is_more = True
        return is_more

    def again(self, ask: ReceiveAsk, now: Now) -> list[tuple[SourceKey, MessageRun]] | None:
        """Return what a repeated request has got and still has; None: it is not repeated.

        Raises:
            InvalidRequest: It is older than the last one.
        """
        member = self.members.get(ask.member)
        if member is None or not member.attempt or ask.attempt > member.attempt:
            return None
        if ask.attempt < member.attempt:
            raise InvalidRequest(
                f"attempt {ask.attempt} of member {ask.member:#x}: attempt {member.attempt} was "
                "carried out before; attempts of a member rise"
            )
        return [
            (each.source, run)
            for each in ask.told
            for run in self.sources[each.source].runs
            if run.grant == member.grant and run.is_held(now)
        ]

    def receive(self, ask: ReceiveAsk, now: Now) -> Acquired | None:
        """Return the note that gives messages to a member; None: there are none now.

        Those that were delivered before come first. The partitions take turns.
        """
        sources: list[SourceKey] = []
        runs: list[Granted] = []
        left, fresh = ask.most, ask.group_open_max - self.open
        count = len(ask.told)
        for again in (True, False):
            for at in range(count):
                if left <= 0 or len(runs) >= RUNS_PER_ANSWER:
                    break
                key = ask.told[(self._turn + at) % count].source
                source = self.sources[key]
                index = len(sources)
                found: list[Granted] = []
                if again:
                    for first, some, deliveries in source.due(now, left):
                        if len(runs) + len(found) >= RUNS_PER_ANSWER:
                            break
                        before = found[-1] if found else None
                        if (
                            before is not None
                            and before.first + before.messages == first
                            and before.deliveries == deliveries + 1
                        ):
                            found[-1] = before._replace(messages=before.messages + some)
                        else:
                            found.append(Granted(index, first, some, deliveries + 1))
                elif some := source.fresh(min(left, fresh), ask.open_max):
                    fresh -= some
                    found.append(Granted(index, source.cursor, some, 1))
                if found:
                    left -= sum(each.messages for each in found)
                    sources.append(key)
                    runs += found
        if not runs:
            return None
        self._turn += 1
        return Acquired(
            self.name,
            ask.member,
            ask.attempt,
            self.grants + 1,
            ask.lease_ms,
            tuple(sources),
            tuple(runs),
        )

    def settled_before(self, member: int, sequence: int) -> MemberState | None:
        """Return what became of a SETTLE that is repeated; None: it is not.

        Raises:
            InvalidRequest: It is older than the last one.
            SequenceStale: It was carried out, and what it has not found is not known any more.
        """
        state = self.members.get(member)
        if not sequence or state is None or sequence > state.sequence:
            return None
        if sequence < state.sequence:
            raise InvalidRequest(
                f"SETTLE {sequence} of member {member:#x}: number {state.sequence} was carried out "
                "before; they rise"
            )
        if state.lost == SOME_LOST:
            raise SequenceStale(
                f"SETTLE {sequence} of member {member:#x} was carried out before, and which of its "
                "messages the member had no more is not known now"
            )
        return state

    def settle(
        self,
        member: int,
        sequence: int,
        sources: Sequence[SourceKey],
        runs: Iterable[Settlement],
        now: Now,
    ) -> SettledMessages:
        """Return the note of what became of messages; ``runs`` must not overlap."""
        done: list[Settlement] = []
        lost: list[Lost] = []
        for run in runs:
            source = self.sources.get(sources[run.source])
            pieces: Iterable[tuple[int, int, bool]] = [(run.first, run.messages, False)]
            if source is not None:
                pieces = source.held_of(run, now)
            time_ms = run.time_ms + (now.wall_ms if run.kind in FREES else 0)
            for first, count, held in pieces:
                if not held:
                    _add(lost, Lost(run.source, first, count, run.grant))
                else:
                    _add(done, run._replace(first=first, messages=count, time_ms=time_ms))
        return SettledMessages(
            self.name, member, sequence, tuple(sources), tuple(done), tuple(lost), now.wall_ms
        )

    def judge_keys(
        self, member: int, told: Sequence[ToldKeys], now: Now
    ) -> tuple[SettledMessages, list[Settlement]]:
        """Learn keys that a member has read; return which of its messages it must not handle.

        Returns:
            The note that gives these back, not counted as delivered; and the runs of messages,
            with the index of what was told, among them those that the member has no more.
        """
        for each in told:
            if each.source in self.sources:
                self.sources[each.source].tell_keys(each.first, each.keys)
        sources = list(dict.fromkeys(each.source for each in told))
        back: list[Settlement] = []
        waits: list[Settlement] = []
        for index, each in enumerate(told):
            run = Settlement(index, each.first, len(each.keys), each.grant, UNUSED, 0)
            source = self.sources.get(each.source)
            if source is None or source.keys is None:
                waits.append(run)
                continue
            source.keys.look(source.runs, source.cursor)
            for first, count, held in source.held_of(run, now):
                if not held:
                    _add(waits, run._replace(first=first, messages=count))
                    continue
                for number in range(first, first + count):
                    if source.keys.waits(number):
                        one = run._replace(first=number, messages=1)
                        _add(waits, one)
                        _add(back, one._replace(source=sources.index(each.source)))
        return SettledMessages(self.name, member, 0, tuple(sources), tuple(back), ()), waits

    # Notes ----------------------------------------------------------------------------------------
    def take(self, note: Acquired | SettledMessages | SourceState | Members, now: Now) -> None:
        """Take a note about the group."""
        if isinstance(note, SettledMessages | SourceState):
            # Nothing waits longer than it was to, also if the clock of who noted it was ahead.
            now = now._replace(wall_ms=max(now.wall_ms, note.wall_ms))
        if isinstance(note, Acquired):
            self.grants = max(self.grants, note.grant)
            for granted in note.runs:
                source = self.sources.get(note.sources[granted.source])
                if source is None:  # all of it comes behind: the log has lost what was before
                    continue
                self.open -= source.open
                source.acquire(granted, note, now.lease_end_ms(note.lease_ms))
                self.open += source.open
            before = self.members.get(note.member, MemberState(note.member))
            self._know(before._replace(attempt=note.attempt, grant=note.grant))
        elif isinstance(note, SettledMessages):
            for run in note.runs:
                source = self.sources.get(note.sources[run.source])
                if source is None:
                    continue
                self.open -= source.open
                source.settle(run, now)
                self.open += source.open
            if note.sequence:
                before = self.members.get(note.member, MemberState(note.member))
                lost = SOME_LOST
                if len(note.lost) <= LOST_MAX:
                    lost = tuple((note.sources[e.source], e._replace(source=0)) for e in note.lost)
                self._know(before._replace(sequence=note.sequence, lost=lost))
        elif isinstance(note, SourceState):
            self.grants = max(self.grants, note.grants)
            known = self.sources.get(note.source)
            if known is None:
                self.sources[note.source] = SharedSource(note.cursor)
            begun = self.sources[note.source]
            self.open -= begun.open
            if known is not None and note.cuts == known.cuts + 1:
                begun.lose(note)
            else:
                begun.become(note, now)
            self.open += begun.open
        else:
            self.members.clear()
            for member in note.members:
                self._know(member)

    def forget(self, note: Forgotten) -> None:
        """Know nothing of some partitions any more; members of this topic begin anew."""
        for key in [each for each in self.sources if note.is_about(each)]:
            self.open -= self.sources.pop(key).open

    def snapshots(self, now: Now) -> Iterator[SourceState | Members]:
        """Go through notes that say all of the group; whoever makes them does not take them."""
        yield self.members_now()
        for key in self.sources:
            yield self.snapshot(key, now)

    def members_now(self) -> Members:
        """Return the note of what members have asked last.

        Of a settlement it is left out what it has not found, if all of that needs much room.
        """
        members: list[MemberState] = []
        room = LOST_BYTES
        for each in reversed(self.members.values()):
            room -= sum(2 * len(key.topic) + 100 for key, _ in each.lost)
            left_out = each.lost and room < 0
            members.append(each._replace(lost=SOME_LOST) if left_out else each)
        return Members(self.name, tuple(reversed(members)))

    def snapshot(self, key: SourceKey, now: Now) -> SourceState:
        """Return the note that says all of one partition."""
        source = self.sources[key]
        runs = source.open_runs(now)
        return SourceState(
            self.name, key, self.grants, source.cursor, runs, now.wall_ms, source.cuts
        )

    def _know(self, member: MemberState) -> None:
        self.members[member.member] = member
        self.members.move_to_end(member.member)
        if len(self.members) > MEMBERS_MAX:
            self.members.popitem(last=False)


P = TypeVar("P", Settlement, Lost)


def _add(pieces: list[P], piece: P) -> None:
    """Add a piece; it becomes part of the last one if it follows that and says the same."""
    before = pieces[-1] if pieces else piece
    alike = before._replace(first=piece.first, messages=piece.messages) == piece
    if alike and before.first + before.messages == piece.first:
        pieces[-1] = before._replace(messages=before.messages + piece.messages)
    else:
        pieces.append(piece)


class SharedLedger:
    """The groups of one journal. Not safe for several threads.

    Attributes:
        groups: By name.
    """

    def __init__(self) -> None:
        self.groups: dict[str, SharedGroup] = {}

    def take(self, note: Note, now: Now) -> None:
        """Take a note."""
        group = self.groups.get(note.group)
        if isinstance(note, Forgotten):
            if not note.topic:
                self.groups.pop(note.group, None)
            elif group is not None:
                group.forget(note)
            return
        if group is None:
            group = self.groups[note.group] = SharedGroup(note.group)
        group.take(note, now)

    def begin_to_lead(self, now: Now) -> None:
        """Have all leases begin now: who reads the log cannot know when they began.

        Nor can it know what was given to whom behind the end of a log that was cut.
        """
        for group in self.groups.values():
            group.grants = max(group.grants, now.wall_ms * GRANTS_PER_MS)
            for source in group.sources.values():
                source.begin_leases(now)

    def group(self, name: str) -> SharedGroup:
        """Return a group that a member asks for; it may be new.

        Raises:
            Busy: There would be too many.
        """
        found = self.groups.get(name)
        if found is None:
            if len(self.groups) >= GROUPS_MAX:
                raise Busy(f"{GROUPS_MAX} shared groups are in this journal; no more go")
            found = self.groups[name] = SharedGroup(name)
        return found
