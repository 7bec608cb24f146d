"""One partition of the journal of transactions on the node that leads it.

    request ──▶ judged (``ledger``) ──▶ noted: its messages, its step, and if it commits, what goes
                                        where ──▶ read back: it is committed, so it is so
                                                          │
                           answered ◀── stored ◀── delivered, as one batch for each partition

Nothing of a transaction is in a partition before its commit is a durable note, and from then on it
is delivered by whoever leads. So there is no moment at which a part of it could be lost, and nobody
waits in a partition for what is not decided.
"""

import asyncio
import itertools
from collections.abc import Sequence
from typing import Final, TypeAlias

from vq import limits
from vq.broker.base.runner import Runner
from vq.broker.base.session import Session
from vq.broker.journal.deliveries import DONE_S
from vq.broker.journal.items import Item
from vq.broker.journal.notes import NOTE_TAG, UNKNOWN, Sent
from vq.broker.journal.outbox import Gone, Outbox, Parcel
from vq.broker.journal.reader import LOOK_S, DeliveringReader
from vq.broker.partition.channel import Channel
from vq.broker.standing.gate import Gate
from vq.broker.transactions.check_desk import CheckDesk, WaitingProducer
from vq.broker.transactions.journaled import JournaledPart, JournaledTransaction, carried
from vq.broker.transactions.judging import Answer, Ask
from vq.broker.transactions.ledger import TransactionLedger
from vq.broker.transactions.notes import (
    TIME_OUT,
    UNDECIDED,
    Carried,
    Checked,
    Client,
    Note,
    PartPiece,
    TransactionStep,
    decode_note,
    encode_note,
    piece_bytes,
)
from vq.broker.transactions.requests import (
    check_client,
    check_group,
    check_request,
    part_status_of,
    pieces_of,
    plan_of,
    response_of,
    state_of,
    status_of,
)
from vq.clock import Clock
from vq.coordination.groups import decisions
from vq.coordination.groups.decisions import DecisionNode
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.reading import gather_all
from vq.errors import (
    Busy,
    CoordinationError,
    CorruptData,
    TransactionRefused,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import TopicPartition, TransactionState
from vq.remoting import wire_pb2 as wire
from vq.store.records.record import Record, decode_records
from vq.tasks import begin_task

logger = get_logger(__name__)

#: A transactional id, what is prepared and a decision that is kept are noted again once so much was
#: written behind them. For what is prepared, twice the size of all transactions is added: otherwise
#: the copies alone would bring about the next ones.
CARRY_BYTES: Final = 16 * limits.MIB
#: So much of what is prepared, or of what is kept, is noted again at a time, or one piece.
CARRIED_BYTES: Final = 512 * limits.KIB
#: About so long is a note without messages.
NOTE_BYTES: Final = 200
#: An answer with a list ends behind the transaction that fills so much: each has up to 1,000 parts
#: with the names of their topics, and all of it is one header.
LISTED_BYTES: Final = limits.FRAME_HEADER_BYTES_MAX // 4
#: So many of these, and of what is overdue, are noted at a time.
DUE_MAX: Final = 1_000
#: Bytes of requests that wait until they are noted.
HELD_BYTES_MAX: Final = 64 * limits.MIB
#: What producers have left in ZooKeeper is looked for this often.
SWEEP_S: Final = 600.0
#: An open transaction that does not say otherwise ends after so long.
TIMEOUT_MS: Final = int(limits.TRANSACTION_TIMEOUT_S_DEFAULT * 1_000)

#: What is noted of: a transaction, by its number; a transactional id; a name, (xid,).
_Key: TypeAlias = int | str | tuple[str]


class JournalCounts:
    """What the journals of a node count from its start on."""

    __slots__ = ("checks", "committed", "rolled_back", "undeliverable")

    def __init__(self) -> None:
        self.committed = self.rolled_back = self.undeliverable = self.checks = 0


class Journal(DeliveringReader):
    """See the module. Loop-bound.

    Args:
        channel, outbox, gate, clock, runner: See ``JournalReader``.
        coordinator: Knows what is decided together with offsets.
        counts: Of the node.

    Attributes:
        ledger: The transactions.
        what, batch_bytes, batch_items: See ``deliveries.Source``.
    """

    what: Final = "parts of transactions"
    batch_bytes: Final = 256 * limits.KIB  # so many bytes have fewer records than a batch may
    batch_items: Final = 1_000

    def __init__(
        self,
        channel: Channel,
        outbox: Outbox,
        gate: Gate,
        *,
        clock: Clock,
        runner: Runner,
        coordinator: Coordinator,
        counts: JournalCounts,
    ) -> None:
        super().__init__(channel, outbox, gate, clock=clock, runner=runner, passes_by=False)
        self.ledger: Final = TransactionLedger()
        self._counts = counts
        self._outbox = outbox
        self._noted: dict[_Key, asyncio.Future[None]] = {}  # what is not read back yet
        self._desk = CheckDesk(self.ledger)
        self._unstored: dict[int, asyncio.Future[None]] = {}  # committed, and somebody waits
        self._looked_at = 0.0
        self._carrying = 0, 0  # a transaction of which so many pieces are noted again
        self._held = 0  # bytes of requests that are not noted yet
        self._coordinator = coordinator
        self._settling: asyncio.Task[None] | None = None  # looks at nodes in ZooKeeper
        self._swept_at = clock.monotonic()

    # Requests -------------------------------------------------------------------------------------
    async def transact(
        self, request: wire.TransactRequest, body: bytes, user: str
    ) -> wire.TransactResponse:
        """Carry out a TRANSACT.

        Args:
            request, body: The request.
            user: Who begins it, if it is new; see ``TransactionStep``.

        Raises:
            VqError: It is refused; or it is not known whether it was carried out.
        """
        number, size = request.transaction, len(body)
        if self._held and self._held + size > HELD_BYTES_MAX:
            raise Busy(f"{self._held} bytes of transactions wait until they are noted")
        check_request(request, size)
        self._held += size
        try:
            largest = await self._outbox.largest({each.topic for each in request.parts})
            pieces = pieces_of(request, body, largest)
            del body
            ask = Ask(
                number,
                request.number,
                state_of(request.state),
                bool(pieces),
                request.client,
                request.client_epoch,
                request.by,
                request.xid,
                request.keep,
                request.checks.group,
            )
            answer = await self._carry_out(ask, pieces, request, user)
            pieces.clear()
        finally:
            self._held -= size
        if answer.state is TransactionState.COMMITTED and number in self.ledger.active:
            await self._until_stored(number, request.max_wait_ms / 1_000)
            answer = self.ledger.answer(number)
        return response_of(answer)

    async def _carry_out(
        self, ask: Ask, pieces: Sequence[PartPiece], request: wire.TransactRequest, user: str
    ) -> Answer:
        number = ask.number
        decided: TransactionState | None = None
        while True:
            await self._until_read(number, ask.client, (ask.xid,))
            now_ms = self._clock.wall_ms()
            answer = self.ledger.judge(ask, now_ms)
            found = self.ledger.active.get(number)
            if answer is not None or decided is not None or found is None:
                break
            if not found.is_undecided or (ask.state is TransactionState.COMMITTED and not ask.by):
                break
            decided = await self._ask_node(found, takes_away=ask.state is not _COMMITTED)
        if answer is None:
            self.ledger.check_parts(number, pieces)
            self.ledger.check_name(ask)
            step = TransactionStep(
                number,
                ask.request + 1 if found is None or not ask.by else found.requests,
                decided or ask.state,
                ask.by if decided in {None, ask.state} else "",
                now_ms,
                request.client,
                request.client_epoch,
                min(request.timeout_ms or TIMEOUT_MS, limits.TRANSACTION_TIMEOUT_MS_MAX),
                request.xid,
                request.keep,
                plan_of(request, now_ms),
                request.decision,
                request.decision_version,
                user if found is None else "",
            )
            notes: list[Note] = [*pieces, step]
            if found is not None and self.ledger.is_kept(ask, found):
                kept = carried(found)._replace(
                    request=step.request, state=step.state, by=step.by, decided_ms=now_ms
                )
                notes.insert(0, kept)
            await self._note(number, notes)
            answer = self.ledger.answer_to(ask)
        return answer

    async def _ask_node(self, found: JournaledTransaction, *, takes_away: bool) -> TransactionState:
        """Return what became of a transaction that a node in ZooKeeper decides.

        Args:
            found: The transaction.
            takes_away: If nothing is decided, have it rolled back.

        Raises:
            TransactionRefused: Nothing is decided.
            CoordinationError: ZooKeeper cannot be asked.
        """
        node = self._node_of(found)
        if takes_away:
            is_committed = await decisions.take_away(self._coordinator, node, found.number)
            return _COMMITTED if is_committed else TransactionState.ROLLED_BACK
        (is_committed,) = await decisions.is_decided(self._coordinator, [(node, found.number)])
        if is_committed:
            return _COMMITTED
        raise TransactionRefused(
            f"transaction {found.number} moves offsets of a group, and these are not committed: "
            "only its producer can do that. It can be rolled back"
        )

    def _node_of(self, found: JournaledTransaction) -> DecisionNode:
        partition = self.channel.partition.partition
        return DecisionNode(partition, found.decision, found.decision_version)

    async def fence(self, client: str) -> int:
        """Give a transactional id to who asks for it; return its epoch.

        Raises:
            VqError: That cannot be, or it is not known whether it was done.
        """
        check_client(client)
        await self._until_read(client)
        now_ms = self._clock.wall_ms()
        epoch = self.ledger.ids.next_epoch(client, now_ms)
        await self._note(client, [Client(client, epoch, now_ms)])
        return epoch

    async def _until_read(self, *keys: _Key) -> None:
        """Return once all that was noted about numbers, clients and names is read back.

        Raises:
            VqError: This node does not lead any more.
        """
        while waits := [self._noted[key] for key in keys if key in self._noted]:
            await asyncio.shield(waits[0])  # and look at all of them again

    async def _note(self, key: int | str, notes: Sequence[Note]) -> None:
        """Append notes, the last of which is about ``key``; return once that is read back.

        Raises:
            VqError: They cannot be appended; or this node does not lead any more.
        """
        step = notes[-1]
        sent: list[Sent] = []
        if isinstance(step, TransactionStep) and step.state is TransactionState.COMMITTED:
            for to, item in self._items(step.transaction, notes):
                begun = self._deliveries.begin(to, item)
                if begun is not None:
                    sent.append(begun)
        why = self._append(notes, sent)
        if why is not None:
            self._deliveries.not_written(sent, is_ready=False)
            raise why
        self._deliveries.written(sent)
        await asyncio.shield(self._noted[key])

    def _append(self, notes: Sequence[Note], sent: Sequence[Sent] = ()) -> VqError | None:
        """Append notes; whatever is asked about the same waits until they are read back."""
        why = self.append(list(map(encode_note, [*notes, *sent])))
        if why is None:
            loop = asyncio.get_running_loop()
            for note in notes:
                if isinstance(note, TransactionStep):
                    self._noted[note.transaction] = loop.create_future()
                    if note.xid:
                        self._noted[note.xid,] = loop.create_future()
                elif isinstance(note, Carried) and note.state is TransactionState.PREPARED:
                    self._noted[note.transaction] = loop.create_future()
                elif isinstance(note, Client):
                    self._noted[note.id] = loop.create_future()
        return why

    def _items(self, number: int, notes: Sequence[Note]) -> list[tuple[TopicPartition, Item]]:
        """Return what a transaction has for each partition, with the pieces that are noted now."""
        found = self.ledger.active.get(number)
        parts = [] if found is None else [(each.to, each.size) for each in found.parts]
        for note in notes:
            if isinstance(note, PartPiece):
                if note.part == len(parts):
                    parts.append((note.to, 0))
                to, size = parts[note.part]
                parts[note.part] = to, size + len(note.data)
        return [(to, Item(number, part, size)) for part, (to, size) in enumerate(parts)]

    # Checks of half messages ----------------------------------------------------------------------
    async def check(
        self, session: Session, request: wire.CheckRequest
    ) -> tuple[wire.CheckResponse, bytes]:
        """Carry out a CHECK: return half messages of which its producer is to say what they are.

        Raises:
            VqError: It is refused.
        """
        if request.again:
            await self._check_again(request.again)
            return wire.CheckResponse(), b""
        check_group(request.group)
        count = min(request.max_count, limits.CHECKS_PER_ANSWER_MAX)
        waiting = self._desk.wait(session, request.group, request.instance, count)
        numbers: Sequence[int] = ()
        try:
            self._hand_out()
            wait_s = min(request.max_wait_ms / 1_000, limits.LONG_POLL_S_MAX)
            await asyncio.wait([waiting.handed], timeout=wait_s)
            if waiting.handed.done():
                numbers = waiting.handed.result()
            return await self._checks_for(waiting, numbers)
        finally:
            session.waiting.pop(waiting, None)
            self._desk.leave(waiting)
            if numbers:
                self._desk.answered(numbers)
                self._hand_out()

    def _hand_out(self) -> None:
        if not self._desk.is_empty and self._may_check():
            self._desk.hand_out(self._clock.wall_ms(), self._noted)

    def _may_check(self) -> bool:
        """Whether producers may be asked: no other node can know that something has ended."""
        return self.is_live and self.channel.role.holds()

    async def _checks_for(
        self, waiting: WaitingProducer, numbers: Sequence[int]
    ) -> tuple[wire.CheckResponse, bytes]:
        """Return what was handed to a producer, if it is still so; and note that it was asked.

        Nothing is awaited between the last look and the answer. If the note is lost with this node,
        the next one asks once more.
        """
        read: list[tuple[JournaledTransaction, bytes]] = []
        for number in numbers:
            found = self.ledger.active.get(number)
            if found is None:
                continue
            try:
                read.append((found, b"".join([await self._bytes_of(e) for e in found.parts])))
            except (VqError, OSError) as error:
                logger.warning(
                    "half message cannot be read, others are checked",
                    partition=self.channel,
                    transaction=number,
                    error=error,
                )
                self._put_off(found)
        response, now_ms = wire.CheckResponse(), self._clock.wall_ms()
        if waiting.is_gone or not self._may_check():
            return response, b""
        due = [
            (each, body)
            for each, body in read
            if each.is_check_due(now_ms) and each.number not in self._noted
        ]
        notes = [_check_of(each, now_ms) for each, _ in due]
        if not notes or self._append(notes) is not None:
            return response, b""
        for (each, _), note in zip(due, notes, strict=True):
            self.ledger.take_checked(note)
            assert each.checks is not None
            asked = response.transactions.add(
                transaction=each.number, check=note.sent, many=each.checks.many
            )
            asked.parts.extend(map(part_status_of, each.parts))
        self._counts.checks += len(notes)
        return response, b"".join(body for _, body in due)

    def _put_off(self, found: JournaledTransaction) -> None:
        """Have a half message that cannot be read now wait for its next check; it counts none."""
        plan = found.checks
        if plan is not None:
            found.checks = plan._replace(next_ms=self._clock.wall_ms() + plan.interval_ms)

    async def _check_again(self, number: int) -> None:
        """Have a half message checked from now on, as if no check was sent.

        Raises:
            VqError: It cannot be, or it is not known whether that was noted.
        """
        await self._until_read(number)
        found, now_ms = self.ledger.checked_again(number), self._clock.wall_ms()
        assert found.checks is not None
        plan = found.checks._replace(sent=0, next_ms=now_ms)
        step = TransactionStep(number, found.requests, found.state, "", now_ms, checks=plan)
        await self._note(number, [step])
        logger.info("half message is checked again", partition=self.channel, transaction=number)
        self._look_at_checks()

    def _look_at_checks(self) -> None:
        parked = self._desk.look(self._clock.wall_ms())
        if parked:
            logger.warning(
                "half messages are parked: no producer knows what is to become of them",
                partition=self.channel,
                count=len(parked),
                first=parked[0],
            )
        self._hand_out()

    async def _until_stored(self, number: int, wait_s: float) -> None:
        """Return once all of a transaction is stored, or after so long."""
        stored = self._unstored.get(number)
        if stored is None:
            stored = self._unstored[number] = asyncio.get_running_loop().create_future()
        await asyncio.wait([stored], timeout=min(wait_s, limits.LONG_POLL_S_MAX))

    def listed(self, request: wire.TransactionsRequest) -> wire.TransactionsResponse:
        """Carry out a TRANSACTIONS."""
        response = wire.TransactionsResponse()
        most, room = min(request.max_count or 100, 1_000), LISTED_BYTES
        now_ms = self._clock.wall_ms()
        for each in self.ledger.listed(ended=request.ended, kept=request.kept, xid=request.xid):
            if each.number <= request.after:
                continue
            if len(response.transactions) == most or room <= 0:
                response.more = True
                break
            status = status_of(each, now_ms)
            status.kept = each.number in self.ledger.kept
            room -= status.ByteSize()
            response.transactions.append(status)
        return response

    async def messages_of(self, told: wire.TransactionStatus) -> bytes:
        """Return the records of the parts that are told, one part behind the other.

        Raises:
            TransactionRefused: They are not here any more; or they are too many.
            VqError, OSError: They cannot be read now.
        """
        found = self.ledger.active.get(told.transaction)
        if found is None or found.is_stored:
            state = TransactionState(told.state)
            raise TransactionRefused(
                f"transaction {told.transaction} is {state.word}, and no message of it waits in "
                "its journal",
                details={"state": told.state},
            )
        size = sum(each.size for each in told.parts)
        if size > limits.TRANSACT_BYTES_MAX:
            raise TransactionRefused(
                f"transaction {told.transaction} has {size} bytes of messages; at most "
                f"{limits.TRANSACT_BYTES_MAX} are told"
            )
        data = [await self._bytes_of(part) for part in found.parts[: len(told.parts)]]
        body = b"".join(data)
        if len(body) != size:  # it has ended, or got more, meanwhile
            raise Busy(f"transaction {told.transaction} goes on; ask again")
        return body

    # Reading --------------------------------------------------------------------------------------
    def take(self, record: Record) -> None:
        """See ``JournalReader``."""
        if record.tag != NOTE_TAG:
            logger.warning(
                "what is no transaction is left out", partition=self.channel, offset=record.offset
            )
            return
        note = decode_note(record.payload)
        if isinstance(note, PartPiece):
            self.ledger.take_piece(note, record.offset, record.next_offset - record.offset)
        elif isinstance(note, TransactionStep):
            self._take_step(note, record.offset)
        elif isinstance(note, Carried):
            self.ledger.take_carried(note, record.offset)
            if note.state is TransactionState.PREPARED:
                self._was_read(note.transaction)
        elif isinstance(note, Checked):
            self.ledger.take_checked(note)
        elif isinstance(note, Client):
            self._counts.rolled_back += self.ledger.take_client(note, record.offset)
            self._was_read(note.id)
        else:
            self._deliveries.take(note)

    def _take_step(self, step: TransactionStep, offset: int) -> None:
        committed = self.ledger.take_step(step, offset)
        if step.state is TransactionState.COMMITTED:
            self._counts.committed += 1
        elif step.state is TransactionState.ROLLED_BACK:
            self._counts.rolled_back += 1
        if self.is_live:
            if committed is not None:
                for number, part in enumerate(committed.parts):
                    item = Item(step.transaction, number, part.size)
                    if not self._deliveries.is_under_way(part.to, item):
                        self._deliveries.ready(part.to, (item,))
            self._was_read(step.transaction)
            self._was_read((step.xid,))

    def _was_read(self, key: _Key) -> None:
        read = self._noted.pop(key, None)
        if read is not None and not read.done():
            read.set_result(None)

    def go_live(self) -> None:
        """See ``JournalReader``; from now on it is kept what is ready.

        While the log is read it is not: for most of it the note of its batch follows.
        """
        under_way = self._deliveries.under_way()
        ready: dict[TopicPartition, list[Item]] = {}
        for each in self.ledger.committed():
            for number, part in enumerate(each.parts):
                item = Item(each.number, number, part.size)
                if not part.stored and item not in under_way:
                    ready.setdefault(part.to, []).append(item)
        for to, items in ready.items():
            self._deliveries.ready(to, items)
        logger.info(
            "transactions were read", partition=self.channel, active=len(self.ledger.active)
        )
        super().go_live()

    def ended(self) -> None:
        """See ``JournalReader``."""
        for read in self._noted.values():
            read.set_exception(self.channel.acks.mastership_lost())
            read.exception()  # perhaps nobody waits any more
        for stored in self._unstored.values():
            stored.cancel()
        self._desk.close(self.channel.acks.mastership_lost())
        if self._settling is not None:
            self._settling.cancel()

    # Delivering -----------------------------------------------------------------------------------
    def took(self, sent: Sent, new: Sequence[Item]) -> bool:
        """See ``Source``."""
        for each in new if self.is_live else ():
            self._deliveries.take_out(sent.to, each)
        if sent.items and all(each.key in self.ledger.active for each in sent.items):
            return True
        self.free(sent.to, sent.items)  # it is stored: otherwise all of it would still be there
        return False

    def put_back(self, to: TopicPartition, items: Sequence[Item]) -> None:
        """See ``Source``."""
        if self.is_live:
            self._deliveries.ready(to, items)

    def free(self, _to: TopicPartition, items: Sequence[Item], offset: int = UNKNOWN) -> None:
        """See ``Source``."""
        for each in items:
            found = self.ledger.active.get(each.key)
            if found is not None:
                part = found.parts[each.offset]
                part.stored, part.offset = True, offset
                if found.is_stored:
                    self.ledger.end(found)
                    stored = self._unstored.pop(found.number, None)
                    if stored is not None and not stored.done():
                        stored.set_result(None)
            if offset != UNKNOWN:
                offset += each.length

    def _part_of(self, item: Item) -> JournaledPart:
        return self.ledger.active[item.key].parts[item.offset]

    def joins(self, first: Item, item: Item) -> bool:
        """See ``Source``."""
        return self._part_of(first).topic_id == self._part_of(item).topic_id

    async def parcel(self, sent: Sent, *, resend: bool, tries: int) -> Parcel:
        """See ``Source``."""
        data: list[bytes] = []
        messages = 0
        parts = list(map(self._part_of, sent.items))
        topic_id = parts[0].topic_id
        for part in parts:
            messages += part.messages
            data.append(await self._bytes_of(part))
        body = b"".join(data)
        if len(body) != sum(each.length for each in sent.items):
            raise CorruptData(f"the parts of {sent.to} have {len(body)} bytes in the journal")
        one = sent.items[0].key
        is_one = all(each.key == one for each in sent.items)
        return Parcel(sent.to, sent.stamp, body, messages, resend, one if is_one else 0, topic_id)

    async def _bytes_of(self, part: JournaledPart) -> bytes:
        """Return the records of a part.

        Raises:
            VqError, OSError: They cannot be read now.
        """
        data: list[bytes] = []
        for offset, length in part.pieces:
            raw = bytes(await self._log.bytes_at(offset, length))
            (record,) = decode_records(raw, offset)
            data.append(piece_bytes(record.payload))
        return b"".join(data)

    def delivered(self, to: TopicPartition, items: Sequence[Item], gone: Gone | None) -> None:
        """See ``Source``."""
        if gone is not None:
            self._counts.undeliverable += len(items)

    # Writing --------------------------------------------------------------------------------------
    def write(self) -> None:
        """See ``JournalReader``."""
        notes = self._deliveries.notes()
        if notes:
            if self.append(list(map(encode_note, notes))) is None:
                self._deliveries.written(notes)
            else:
                self._deliveries.not_written(notes)
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        now_ms = self._clock.wall_ms()
        self.ledger.forget(now_ms)
        self._look_at_checks()
        overdue = [e for e in self.ledger.overdue(now_ms) if e.number not in self._noted]
        state = TransactionState.ROLLED_BACK
        due: list[Note] = [
            TransactionStep(each.number, each.requests, state, TIME_OUT, now_ms) for each in overdue
        ]
        before = self.old_before(CARRY_BYTES)
        old = self.ledger.ids.before(before)
        due += [each for each in itertools.islice(old, DUE_MAX) if each.id not in self._noted]
        due = due[:DUE_MAX]
        room = CARRIED_BYTES
        for kept in self.ledger.kept_before(before):
            room -= NOTE_BYTES * (1 + len(kept.parts))
            if room < 0 or len(due) >= DUE_MAX:
                break
            if kept.transaction not in self._noted:
                due.append(kept)
        if due:
            self._append(due)
        if self._settling is None or self._settling.done():
            undecided = self.ledger.undecided(now_ms)[:DUE_MAX]
            is_due = now - self._swept_at >= SWEEP_S
            if undecided or is_due:
                self._swept_at = now if is_due else self._swept_at
                self._settling = begin_task(self._settle(undecided, sweeps=is_due))

    async def go_on(self) -> None:
        """Note again some of what is prepared and has much of the log behind it."""
        ledger, noted = self.ledger, self._noted
        number, done = self._carrying
        begun = ledger.active.get(number)
        before = self.old_before(CARRY_BYTES + 2 * ledger.size)
        waiting = {each.number: each for each in ledger.prepared_before(before)}
        if begun is not None:
            waiting = {number: begun, **waiting}
        notes: list[Note] = []
        room, carrying = CARRIED_BYTES, (0, 0)
        taken: set[_Key] = set()
        for found in waiting.values():
            if room <= 0:
                break
            if found.state is not TransactionState.PREPARED or found.number in noted:
                continue
            if found.is_undecided:
                continue  # it ends soon
            taken.add(found.number)
            at = done if found is begun else 0
            pieces = [(part, *each) for part, of in enumerate(found.parts) for each in of.pieces]
            while at < len(pieces) and room > 0:
                part, offset, length = pieces[at]
                at += 1
                notes.append(await self._piece_at(offset, length, found.number, part, at))
                room -= length
            if at < len(pieces):
                carrying = found.number, at
                break
            notes.append(carried(found, len(pieces)))
            room -= len(found.xid) + NOTE_BYTES
        if not notes:
            self._carrying = 0, 0
        elif not (taken & noted.keys()) and self._append(notes) is None:  # none is decided
            self._carrying = carrying
            self.wake()

    async def _piece_at(
        self, offset: int, length: int, number: int, part: int, copy: int
    ) -> PartPiece:
        (record,) = decode_records(bytes(await self._log.bytes_at(offset, length)), offset)
        piece = decode_note(record.payload)
        if not isinstance(piece, PartPiece) or piece[:2] != (number, part):
            raise CorruptData(f"no messages of transaction {number} are at offset {offset}")
        return piece._replace(copy=copy)

    # What ZooKeeper decides -----------------------------------------------------------------------
    async def _settle(self, undecided: Sequence[JournaledTransaction], *, sweeps: bool) -> None:
        """Note what nodes in ZooKeeper have decided, and take those away whose time is over."""
        try:
            nodes = [(self._node_of(each), each.number) for each in undecided]
            committed = await decisions.is_decided(self._coordinator, nodes)
            now_ms = self._clock.wall_ms()
            ended = [
                (each, is_committed)
                for each, is_committed in zip(undecided, committed, strict=True)
                if is_committed or each.ends_ms <= now_ms
            ]
            await gather_all(self._settle_one(*each) for each in ended)
            if sweeps:
                partition, awaited = self.channel.partition.partition, self.ledger.awaited()
                await decisions.sweep_decisions(self._coordinator, partition, awaited, now_ms)
        except CoordinationError as error:
            self.tell("decisions", f"decisions of {self.channel} cannot be read: {error}")
        else:
            self.tell("decisions", "")

    async def _settle_one(self, each: JournaledTransaction, is_committed: bool) -> None:
        number, state = each.number, _COMMITTED
        if not is_committed:
            state = await self._ask_node(each, takes_away=True)
        try:
            await self._until_read(number)
            if each.is_undecided:
                by = "" if state is _COMMITTED else UNDECIDED
                now_ms = self._clock.wall_ms()
                await self._note(
                    number, [TransactionStep(number, each.requests, state, by, now_ms)]
                )
        except CoordinationError:
            raise
        except VqError:  # this node leads no more, or has no room; whoever leads does it
            return

    def needs(self) -> Sequence[int]:
        """See ``JournalReader``."""
        return self.ledger.needs()

    def pause_s(self) -> float:
        """See ``JournalReader``."""
        return LOOK_S if self.ledger.active else DONE_S


_COMMITTED: Final = TransactionState.COMMITTED


def _check_of(found: JournaledTransaction, now_ms: int) -> Checked:
    """Return the note that a check of it is sent."""
    plan = found.checks
    assert plan is not None
    return Checked(found.number, plan.sent + 1, now_ms + plan.interval_ms)
