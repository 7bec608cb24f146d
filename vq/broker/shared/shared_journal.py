"""One partition of the topic of shared groups on the node that leads it.

    request ──▶ judged (``ledger``) ──▶ noted, and so from now on ──▶ read back: it is committed
                                                                          │
                                                               answered ◀─┘

The ledger is what the log will say once all of it is committed, so requests are judged one behind
the other without a wait, and the notes of many go with one flush. No answer leaves before all that
it was judged by is committed. If it never is, this node leads no more, and nobody has seen it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeAlias

from vq import limits
from vq.broker.base.runner import Runner
from vq.broker.base.session import Session
from vq.broker.journal.deliveries import DONE_S
from vq.broker.journal.notes import NOTE_TAG
from vq.broker.journal.outbox import Outbox
from vq.broker.journal.reader import LOOK_S, JournalReader
from vq.broker.partition.channel import Channel
from vq.broker.security.authority import Authority
from vq.broker.shared.ledger import FREES, Now, ReceiveAsk, SharedGroup, SharedLedger, ToldKeys
from vq.broker.shared.notes import (
    Acquired,
    Forgotten,
    JournalFloor,
    Lost,
    Members,
    Note,
    Settlement,
    SettlementKind,
    SourceKey,
    SourceState,
    decode_note,
    encode_note,
    floor_in,
    is_snapshot,
)
from vq.broker.shared.receivers import Receivers
from vq.broker.shared.requests import (
    ask_of,
    check_group,
    cuts_of,
    keys_of,
    lows_of,
    settlements_of,
    sources_of,
    status_of,
)
from vq.broker.standing.gate import Gate
from vq.clock import Clock
from vq.errors import InvalidRequest, TimedOut, VqError
from vq.limits import KIB, LONG_POLL_S_MAX, MIB
from vq.log_lines import get_logger
from vq.remoting import wire_pb2 as wire
from vq.shown import shown
from vq.store.records.record import Record
from vq.tasks import in_turns

logger = get_logger(__name__)

#: What is open is noted again once so much was written behind it, and twice the size of all such
#: notes: otherwise these alone would bring about the next ones.
CARRY_BYTES: Final = 16 * MIB
#: After so much it is noted from where on the log is needed,
FLOOR_BYTES: Final = 1 * MIB
#: and that is looked for in so much before the end: first the one, then the other.
LOOKED_THROUGH_BYTES: Final = (2 * MIB, 16 * MIB)
#: So much of it is noted again at a time, or one partition.
CARRIED_BYTES: Final = 512 * KIB
#: What is noted must be committed within so long; later its outcome is unknown.
COMMIT_S: Final = 30.0

#: It is looked so often whether topics were deleted; others have their turn after so many keys.
GONE_LOOK_S: Final = 60.0
KEYS_PER_TURN: Final = 1_000

Gone: TypeAlias = Callable[[Iterable[SourceKey]], Awaitable[Sequence[SourceKey]]]
#: What is noted as a whole: a partition of a group; or what is known of its members, with None.
_Whole: TypeAlias = tuple[str, SourceKey | None]
#: Its offset, and how long it is.
_Place: TypeAlias = tuple[int, int]


class SharedCounts:
    """What the shared groups of a node count from its start on."""

    __slots__ = ("acked", "delivered", "extended", "lost", "redelivered", "rejected", "released")

    def __init__(self) -> None:
        self.delivered = self.redelivered = self.lost = 0
        self.acked = self.released = self.rejected = self.extended = 0


class SharedJournal(JournalReader):
    """See the module. Loop-bound.

    Args:
        channel, outbox, gate, clock, runner: See ``JournalReader``.
        counts: Of the node.
        authority: See ``Receivers``.
        gone: Returns which of these topics, by the keys of their first partitions, were deleted.

    Attributes:
        ledger: The groups.
        receivers: Members that wait for messages.
        opened_bytes: So much of the log was read until it was live.
        what: See ``JournalReader``.
    """

    what: Final = "shared groups"

    def __init__(
        self,
        channel: Channel,
        outbox: Outbox,
        gate: Gate,
        *,
        clock: Clock,
        runner: Runner,
        counts: SharedCounts,
        authority: Authority,
        gone: Gone,
    ) -> None:
        super().__init__(channel, outbox, gate, clock=clock, runner=runner, passes_by=False)
        self.ledger: Final = SharedLedger()
        self.receivers: Final = Receivers(authority)
        self.opened_bytes = 0
        self._counts = counts
        self._appended: deque[tuple[int, asyncio.Future[None]]] = deque()  # ends of notes
        self._wholes: OrderedDict[_Whole, _Place] = OrderedDict()  # where each is noted
        self._whole_bytes = 0  # of these notes
        self._carrying: set[_Whole] = set()  # noted again, and not read back
        self._told_at = 0  # when it was noted last from where on the log is needed
        self._timers: dict[str, asyncio.TimerHandle] = {}  # by group: when something is due
        self._gone = gone
        self._look_at = clock.monotonic() + GONE_LOOK_S

    def _now(self) -> Now:
        return Now(int(self._clock.monotonic() * 1_000), self._clock.wall_ms())

    # Requests -------------------------------------------------------------------------------------
    async def receive(self, session: Session, request: wire.ReceiveRequest) -> wire.ReceiveResponse:
        """Carry out a RECEIVE.

        Raises:
            VqError: It is refused; or it is not known whether it was carried out.
        """
        ask, told = ask_of(request), keys_of(request)
        group = self.ledger.group(request.group)
        begun = group.begun(ask.told, self._now())
        if begun:
            self._note(begun)
        if ask.is_keyed:
            group.keep_order(ask.told)
        self._note_cuts(group, ask)
        waits = self._judge_keys(group, request, told) if told else []
        if ask.attempt and not ask.most:
            self.receivers.end(group.name, ask.member)
        if group.tell(ask.told) or told:
            self._hand_out(group)
        begun_ms, waited_ms = self._now().ms, 0
        again = group.again(ask, self._now()) if ask.most else ()
        if again is None:
            got, got_ms = await self._wait_for(session, group, ask, request.max_wait_ms / 1_000)
            runs = [] if got is None else _runs_of(ask, got)
            waited_ms = max(0, got_ms - begun_ms - 1)  # both are rounded
        else:
            grant = group.members[ask.member].grant if again else 0
            at = {each.source: index for index, each in enumerate(ask.told)}
            runs = [
                wire.SharedRun(
                    source=at[key],
                    first=run.first,
                    messages=run.end - run.first,
                    grant=grant,
                    deliveries=run.deliveries,
                )
                for key, run in again
            ]
        lows, cuts = lows_of(group, (each.source for each in ask.told)), cuts_of(group, ask.told)
        await self._until_committed()
        return wire.ReceiveResponse(
            runs=runs,
            lows=lows,
            waits=waits,
            keyed=ask.is_keyed,
            waited_ms=waited_ms,
            cuts=cuts,
        )

    def _note_cuts(self, group: SharedGroup, ask: ReceiveAsk) -> None:
        """Note which partitions have lost their end, as a member tells."""
        for note in group.cut(ask.told, self._now()):
            before = group.sources[note.source]
            logger.warning(
                "partition of a shared group was cut, what comes next there is delivered",
                partition=self.channel,
                group=group.name,
                source=f"{note.source.topic}-{note.source.partition}",
                number=note.cursor,
                before=before.cursor,
                open=before.open,
            )
            self._note([note])

    def _judge_keys(
        self, group: SharedGroup, request: wire.ReceiveRequest, told: Sequence[ToldKeys]
    ) -> list[wire.SharedRun]:
        """Return which of the messages whose keys are told must wait; they are given back."""
        note, waits = group.judge_keys(request.member, told, self._now())
        if note.runs:
            self._note([note])
            self._count(note.runs, ())
        return [
            wire.SharedRun(
                source=request.keys[each.source].source,
                first=each.first,
                messages=each.messages,
                grant=each.grant,
            )
            for each in waits
        ]

    async def _wait_for(
        self, session: Session, group: SharedGroup, ask: ReceiveAsk, wait_s: float
    ) -> tuple[Acquired | None, int]:
        waiting = self.receivers.wait(session, group.name, ask)
        try:
            self._hand_out(group)
            if wait_s:
                await asyncio.wait([waiting.got], timeout=min(wait_s, LONG_POLL_S_MAX))
            return waiting.got.result() if waiting.got.done() else None, waiting.got_ms
        finally:
            self.receivers.leave(waiting)

    def _hand_out(self, group: SharedGroup) -> None:
        """Give messages to members that wait, the one that has waited longest first."""
        now, without = self._now(), set[int]()
        waiting = self.receivers.of(group.name)
        for each in waiting:
            if each.wants in without:
                continue
            note = group.receive(each.ask, now)
            if note is None:
                without.add(each.wants)
                continue
            try:
                self._note([note])
            except VqError as error:  # the next one would get the same answer
                each.got.set_exception(error)
                break
            each.got_ms = now.ms
            each.got.set_result(note)
            for run in note.runs:
                self._counts.delivered += run.messages
                self._counts.redelivered += run.messages if run.deliveries > 1 else 0
        self._look_later(group, now)

    def _look_later(self, group: SharedGroup, now: Now) -> None:
        """Look again when something is due that a member waits for."""
        timer = self._timers.pop(group.name, None)
        if timer is not None:
            timer.cancel()
        wanted = {each.wants: each.ask for each in self.receivers.of(group.name)}
        times = [
            next_ms
            for ask in wanted.values()
            for told in ask.told
            if (next_ms := group.sources[told.source].next_ms) is not None
        ]
        if times:
            loop = asyncio.get_running_loop()
            wait_s = max(0, min(times) - now.ms) / 1_000 + 0.001  # not before it is due
            self._timers[group.name] = loop.call_later(wait_s, self._due, group.name)

    def _due(self, name: str) -> None:
        del self._timers[name]
        group = self.ledger.groups.get(name)
        if group is not None and self.is_live:
            self._hand_out(group)

    async def settle(self, request: wire.SettleRequest) -> wire.SettleResponse:
        """Carry out a SETTLE.

        Raises:
            VqError: It is refused; or it is not known whether it was carried out.
        """
        sources, runs = sources_of(request), settlements_of(request)
        group, now = self.ledger.groups.get(request.group), self._now()
        if group is None:  # nobody has messages of it, and a name alone is nothing to keep
            group = SharedGroup(request.group)
        before = group.settled_before(request.member, request.sequence)
        if before is not None:
            at = {key: index for index, key in enumerate(sources)}
            lost = [run._replace(source=at[key]) for key, run in before.lost if key in at]
        else:
            note = group.settle(request.member, request.sequence, sources, runs, now)
            lost = list(note.lost)
            if note.runs:
                self._note([note])
            self._count(note.runs, lost)
            if any(each.kind in FREES for each in note.runs) or (note.runs and group.is_keyed):
                self._hand_out(group)
        lows = lows_of(group, sources)
        await self._until_committed()
        return wire.SettleResponse(
            lost=[
                wire.SharedRun(
                    source=each.source,
                    first=each.first,
                    messages=each.messages,
                    grant=each.grant,
                )
                for each in lost
            ],
            lows=lows,
        )

    async def describe(self, request: wire.SharedRequest) -> wire.SharedResponse:
        """Carry out a SHARED.

        Raises:
            VqError: It is refused; or it is not known whether it was carried out.
        """
        check_group(request.group)
        name = request.group
        if request.forget_topic and not limits.is_valid_name(request.forget_topic):
            raise InvalidRequest(f"{shown(request.forget_topic)} is no name of a topic")
        if request.forget or request.forget_topic:
            self._forget(Forgotten(name, "" if request.forget else request.forget_topic))
        group = self.ledger.groups.get(name)
        response = wire.SharedResponse(found=group is not None)
        if group is not None:
            now, most = self._now(), min(request.max_count or 100, 1_000)
            response.grants, response.members = group.grants, len(group.members)
            response.receiving = len(self.receivers.of(name))
            after = request.after_topic, request.after_partition
            keys = sorted(each for each in group.sources if each[:2] > after or not after[0])
            response.more = len(keys) > most
            response.sources.extend(status_of(e, group.sources[e], now) for e in keys[:most])
        await self._until_committed()
        return response

    def _forget(self, note: Forgotten) -> None:
        """Keep nothing of a group, or of a topic for it; members that wait for that ask again.

        Raises:
            VqError: It cannot be noted: nothing has changed.
        """
        group = self.ledger.groups.get(note.group)
        if group is None or (note.topic and not any(map(note.is_about, group.sources))):
            return
        self._note([note])
        for waiting in self.receivers.of(note.group):
            if any(note.is_about(each.source) for each in waiting.ask.told):
                waiting.cancel()
        logger.info(
            "shared group is forgotten",
            partition=self.channel,
            group=note.group,
            topic=note.topic or "all",
        )

    def _count(self, runs: Sequence[Settlement], lost: Sequence[Lost]) -> None:
        counts = self._counts
        counts.lost += sum(each.messages for each in lost)
        for each in runs:
            if each.kind is SettlementKind.ACK:
                counts.acked += each.messages
            elif each.kind is SettlementKind.REJECT:
                counts.rejected += each.messages
            elif each.kind is SettlementKind.EXTEND:
                counts.extended += each.messages
            else:
                counts.released += each.messages

    # Notes ----------------------------------------------------------------------------------------
    def _note(self, notes: Sequence[Note]) -> None:
        """Append notes, and have it so.

        Raises:
            VqError: They cannot be appended: nothing has changed.
        """
        why = self.append(list(map(encode_note, notes)))
        if why is not None:
            raise why
        now = self._now()
        for note in notes:
            self.ledger.take(note, now)
            self._drop(note)

    def _drop(self, note: Note) -> None:
        """Need nothing of what is forgotten."""
        if not isinstance(note, Forgotten):
            return
        for whole in [each for each in self._wholes if each[0] == note.group]:
            source = whole[1]
            if not note.topic or (source is not None and note.is_about(source)):
                self._whole_bytes -= self._wholes.pop(whole)[1]

    async def _until_committed(self) -> None:
        """Return once all that was noted is committed.

        Raises:
            VqError: This node leads no more; or it takes too long.
        """
        if self._is_over:
            raise self.channel.acks.mastership_lost()
        log = self.channel.log
        end = self.position if log is None else log.end_offset
        if self.position >= end:
            return
        committed = asyncio.get_running_loop().create_future()
        self._appended.append((end, committed))
        await asyncio.wait([committed], timeout=COMMIT_S)
        if not committed.done():
            raise TimedOut(f"nothing was committed in {self.channel} for {COMMIT_S:.0f} s")
        committed.result()

    def take_all(self, records: Sequence[Record]) -> None:
        """See ``JournalReader``."""
        super().take_all(records)
        position = self.position
        while self._appended and self._appended[0][0] <= position:
            _, committed = self._appended.popleft()
            if not committed.done():
                committed.set_result(None)

    async def begin(self) -> bool:
        """See ``JournalReader``: a note near the end tells from where on the log is needed."""
        channel, log = self.channel, self._log
        if not channel.knows_end:
            return False
        for size in LOOKED_THROUGH_BYTES:
            for record in reversed(await log.last_records(size)):
                found = floor_in(record.payload) if record.tag == NOTE_TAG else None
                if found is not None:
                    self._told_at = record.offset
                    log.begin_at(found)
                    return True
            if channel.read_limit - log.begin <= size:
                break
        return True

    def take(self, record: Record) -> None:
        """See ``JournalReader``; what this node has noted is known."""
        if record.tag != NOTE_TAG:
            logger.warning(
                "what is no note of a shared group is left out",
                partition=self.channel,
                offset=record.offset,
            )
            return
        if self.is_live and not is_snapshot(record.payload):
            return
        if floor_in(record.payload) is not None:
            return
        note = decode_note(record.payload)
        if not self.is_live:
            self.ledger.take(note, self._now())
            self._drop(note)
        if isinstance(note, SourceState | Members):
            whole = note.group, note.source if isinstance(note, SourceState) else None
            self._carrying.discard(whole)
            group = self.ledger.groups.get(note.group)
            # It may have been forgotten and begun again before this was read back.
            if group is not None and (whole[1] is None or whole[1] in group.sources):
                self._wholes.setdefault((note.group, None), (record.offset, 0))
                size = record.next_offset - record.offset
                self._whole_bytes += size - self._wholes.pop(whole, (0, 0))[1]
                self._wholes[whole] = record.offset, size

    def go_live(self) -> None:
        """See ``JournalReader``."""
        self.opened_bytes = self._log.read_bytes
        self.ledger.begin_to_lead(self._now())
        logger.info(
            "shared groups were read",
            partition=self.channel,
            groups=len(self.ledger.groups),
            bytes=self.opened_bytes,
        )

    def write(self) -> None:
        """See ``JournalReader``: note again what has much of the log behind it."""
        room, now = CARRIED_BYTES, self._now()
        before = self.old_before(CARRY_BYTES + 2 * self._whole_bytes)
        notes: list[Note] = []
        taken: list[_Whole] = []
        for whole, (offset, _) in self._wholes.items():
            if offset >= before or room <= 0:
                break
            name, source = whole
            if whole not in self._carrying:
                group = self.ledger.groups[name]
                note = group.members_now() if source is None else group.snapshot(source, now)
                notes.append(note)
                taken.append(whole)
                room -= len(encode_note(note))
        if notes and self.append(list(map(encode_note, notes))) is None:
            self._carrying.update(taken)
        if self.position - self._told_at >= FLOOR_BYTES:
            floor = min([self.position, *self.needs()])
            if self.append([encode_note(JournalFloor(floor))]) is None:
                self._told_at = self.position

    async def go_on(self) -> None:
        """See ``JournalReader``: forget topics that were deleted."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + GONE_LOOK_S
        topics: dict[SourceKey, None] = {}
        for group in list(self.ledger.groups.values()):
            async for each in in_turns(list(group.sources), KEYS_PER_TURN):
                topics[each._replace(partition=0)] = None
        for gone in await self._gone(topics):
            for name in list(self.ledger.groups):
                self._forget(Forgotten(name, gone.topic, gone.topic_id))

    def needs(self) -> Sequence[int]:
        """See ``JournalReader``."""
        return [next(iter(self._wholes.values()))[0]] if self._wholes else ()

    def pause_s(self) -> float:
        """See ``JournalReader``."""
        return LOOK_S if self._carrying else DONE_S

    def ended(self) -> None:
        """See ``JournalReader``."""
        error = self.channel.acks.mastership_lost()
        self.receivers.close(error)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for _, committed in self._appended:
            if not committed.done():
                committed.set_exception(error)
                committed.exception()
        self._appended.clear()


def _runs_of(ask: ReceiveAsk, got: Acquired) -> list[wire.SharedRun]:
    """Return the messages that a member gets, with the indexes that its request has."""
    at = {each.source: index for index, each in enumerate(ask.told)}
    return [
        wire.SharedRun(
            source=at[got.sources[run.source]],
            first=run.first,
            messages=run.messages,
            grant=got.grant,
            deliveries=run.deliveries,
        )
        for run in got.runs
    ]
