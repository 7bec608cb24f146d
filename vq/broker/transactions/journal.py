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
from collections.abc import Mapping, Sequence
from typing import Final

from vq import limits
from vq.broker.base.runner import Runner
from vq.broker.journal.deliveries import DONE_S
from vq.broker.journal.items import Item
from vq.broker.journal.notes import NOTE_TAG, UNKNOWN, Sent
from vq.broker.journal.outbox import Gone, Outbox, Parcel
from vq.broker.journal.reader import LOOK_S, JournalReader
from vq.broker.partition.batch_check import check_batch
from vq.broker.partition.channel import Channel
from vq.broker.standing.gate import Gate
from vq.broker.transactions.ledger import (
    Answer,
    Ask,
    JournaledPart,
    JournaledTransaction,
    TransactionLedger,
)
from vq.broker.transactions.notes import (
    FENCED,
    PIECE_BYTES,
    TIME_OUT,
    UNDECIDED,
    Client,
    Note,
    PartPiece,
    TransactionStep,
    decode_note,
    encode_note,
    piece_bytes,
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
    InvalidRequest,
    TransactionRefused,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import TopicPartition, TransactionState
from vq.remoting import wire_pb2 as wire
from vq.reserved import DELAYED_TOPIC, TRANSACTIONS_TOPIC
from vq.shown import shown
from vq.store.records.record import Record, decode_records, has_tag
from vq.tasks import begin_task

__all__ = ["Journal", "JournalCounts"]

logger = get_logger(__name__)

#: Who takes a transactional id is noted again once so much was written behind it.
CARRY_BYTES: Final = 16 * limits.MIB
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


class JournalCounts:
    """What the journals of a node count from its start on."""

    __slots__ = ("committed", "rolled_back", "undeliverable")

    def __init__(self) -> None:
        self.committed = self.rolled_back = self.undeliverable = 0


class Journal(JournalReader):
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
        self._noted: dict[int | str, asyncio.Future[None]] = {}  # what is not read back yet
        self._unstored: dict[int, asyncio.Future[None]] = {}  # committed, and somebody waits
        self._looked_at = 0.0
        self._held = 0  # bytes of requests that are not noted yet
        self._coordinator = coordinator
        self._settling: asyncio.Task[None] | None = None  # looks at nodes in ZooKeeper
        self._swept_at = clock.monotonic()

    # Requests -------------------------------------------------------------------------------------
    async def transact(self, request: wire.TransactRequest, body: bytes) -> wire.TransactResponse:
        """Carry out a TRANSACT.

        Raises:
            VqError: It is refused; or it is not known whether it was carried out.
        """
        number, size = request.transaction, len(body)
        if self._held and self._held + size > HELD_BYTES_MAX:
            raise Busy(f"{self._held} bytes of transactions wait until they are noted")
        _check_request(request, size)
        self._held += size
        try:
            largest = await self._outbox.largest({each.topic for each in request.parts})
            pieces = _pieces_of(request, body, largest)
            del body
            ask = Ask(
                number,
                request.number,
                _state_of(request.state),
                bool(pieces),
                request.client,
                request.client_epoch,
                request.by,
            )
            answer = await self._carry_out(ask, pieces, request)
            pieces.clear()
        finally:
            self._held -= size
        if answer.state is TransactionState.COMMITTED and number in self.ledger.active:
            await self._until_stored(number, request.max_wait_ms / 1_000)
            answer = self.ledger.answer(number)
        return _response(answer)

    async def _carry_out(
        self, ask: Ask, pieces: Sequence[PartPiece], request: wire.TransactRequest
    ) -> Answer:
        number = ask.number
        decided: TransactionState | None = None
        while True:
            await self._until_read(number, ask.client)
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
                request.decision,
                request.decision_version,
            )
            await self._note(number, [*pieces, step])
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
        _check_client(client)
        await self._until_read(client)
        epoch = self.ledger.epoch_of(client) + 1
        await self._note(client, [Client(client, epoch, self._clock.wall_ms())])
        return epoch

    async def _until_read(self, *keys: int | str) -> None:
        """Return once all that was noted about transactions and clients is read back.

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
        for each in self.ledger.listed(ended=request.ended):
            if each.number <= request.after:
                continue
            if len(response.transactions) == most or room <= 0:
                response.more = True
                break
            status = _status(each)
            room -= status.ByteSize()
            response.transactions.append(status)
        return response

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
        if committed is not None:
            for number, part in enumerate(committed.parts):
                item = Item(step.transaction, number, part.size)
                if not self._deliveries.is_under_way(part.to, item):
                    self._deliveries.ready(part.to, (item,))
        self._was_read(step.transaction)

    def _was_read(self, key: int | str) -> None:
        read = self._noted.pop(key, None)
        if read is not None and not read.done():
            read.set_result(None)

    def go_live(self) -> None:
        """See ``JournalReader``."""
        logger.info(
            "transactions were read", partition=self.channel, active=len(self.ledger.active)
        )

    def ended(self) -> None:
        """See ``JournalReader``."""
        for read in self._noted.values():
            read.set_exception(self.channel.acks.mastership_lost())
            read.exception()  # perhaps nobody waits any more
        for stored in self._unstored.values():
            stored.cancel()
        if self._settling is not None:
            self._settling.cancel()

    # Delivering -----------------------------------------------------------------------------------
    def took(self, sent: Sent, new: Sequence[Item]) -> bool:
        """See ``Source``."""
        for each in new:
            self._deliveries.take_out(sent.to, each)
        if sent.items and all(each.key in self.ledger.active for each in sent.items):
            return True
        self.free(sent.to, sent.items)  # it is stored: otherwise all of it would still be there
        return False

    def put_back(self, to: TopicPartition, items: Sequence[Item]) -> None:
        """See ``Source``."""
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
            for offset, length in part.pieces:
                raw = bytes(await self._log.bytes_at(offset, length))
                (record,) = decode_records(raw, offset)
                data.append(piece_bytes(record.payload))
        body = b"".join(data)
        if len(body) != sum(each.length for each in sent.items):
            raise CorruptData(f"the parts of {sent.to} have {len(body)} bytes in the journal")
        one = sent.items[0].key
        is_one = all(each.key == one for each in sent.items)
        return Parcel(sent.to, sent.stamp, body, messages, resend, one if is_one else 0, topic_id)

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
        overdue = [e for e in self.ledger.overdue(now_ms) if e.number not in self._noted]
        state = TransactionState.ROLLED_BACK
        due: list[Note] = [
            TransactionStep(each.number, each.requests, state, TIME_OUT, now_ms) for each in overdue
        ]
        old = self.ledger.clients_before(self.position - CARRY_BYTES)
        due += [each for each in itertools.islice(old, DUE_MAX) if each.id not in self._noted]
        if due:
            self._append(due[:DUE_MAX])
        if self._settling is None or self._settling.done():
            undecided = self.ledger.undecided(now_ms)[:DUE_MAX]
            is_due = now - self._swept_at >= SWEEP_S
            if undecided or is_due:
                self._swept_at = now if is_due else self._swept_at
                self._settling = begin_task(self._settle(undecided, sweeps=is_due))

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


def _check_request(request: wire.TransactRequest, size: int) -> None:
    """Return if a request has what it may have, and its body so many bytes.

    Raises:
        InvalidRequest: It has not.
    """
    if not request.transaction or request.transaction > 2**63 - 1:
        raise InvalidRequest(f"{request.transaction} is no number of a transaction")
    if request.client:
        _check_client(request.client)
    if len(request.xid) > limits.XID_CHARS_MAX:
        raise InvalidRequest(
            f"xid {shown(request.xid)} has {len(request.xid)} characters; at most "
            f"{limits.XID_CHARS_MAX} are allowed"
        )
    if size > limits.TRANSACT_BYTES_MAX:
        raise InvalidRequest(
            f"{size} bytes in one request; at most {limits.TRANSACT_BYTES_MAX} are allowed: "
            "send the parts of a larger transaction in several ones"
        )
    if request.decision and (
        decisions.NAME.fullmatch(request.decision) is None
        or request.state != TransactionState.PREPARED
    ):
        raise InvalidRequest(
            f"decision node {shown(request.decision)}: a transaction that is prepared may have "
            "one, whose name is 16 hexadecimal digits"
        )
    if len(request.by) > limits.NAME_CHARS_MAX or request.by in {TIME_OUT, FENCED, UNDECIDED}:
        raise InvalidRequest(f"{shown(request.by)} is no name of somebody who decides")
    if len(request.parts) > limits.TRANSACTION_PARTS_MAX:
        raise InvalidRequest(
            f"{len(request.parts)} parts in one request; at most {limits.TRANSACTION_PARTS_MAX} "
            "are allowed"
        )
    if len({each.index for each in request.parts}) < len(request.parts):
        raise InvalidRequest("a part comes twice in one request")
    for part in request.parts:
        id = part.topic_id
        if not limits.is_valid_name(part.topic) or (id and not limits.is_topic_id(id)):
            raise InvalidRequest(f"{shown(part.topic)} is no name of a topic, or its id is none")


def _pieces_of(
    request: wire.TransactRequest, body: bytes, largest: Mapping[str, int]
) -> list[PartPiece]:
    """Return the parts of a request, cut so that each goes into a note.

    Args:
        request, body: The request.
        largest: Bytes of a message that a topic takes.

    Raises:
        VqError: They are not what the request says.
    """
    pieces: list[PartPiece] = []
    at = 0
    for part in request.parts:
        data = body[at : at + part.size]
        at += part.size
        check_batch(
            data,
            record_count=part.record_count,
            crc=part.crc,
            max_message_bytes=largest.get(part.topic, limits.MESSAGE_BYTES_MAX),
        )
        to = TopicPartition(part.topic, part.partition)
        if to.topic == TRANSACTIONS_TOPIC or (
            to.topic == DELAYED_TOPIC and has_tag(data, NOTE_TAG)
        ):
            raise InvalidRequest(f"messages of a transaction for {to}, to which only brokers write")
        messages = part.record_count
        for begin in range(0, len(data), PIECE_BYTES):
            cut = data[begin : begin + PIECE_BYTES]
            pieces.append(
                PartPiece(request.transaction, part.index, to, part.topic_id, messages, cut)
            )
            messages = 0
    if at != len(body):
        raise InvalidRequest(f"the parts have {at} bytes, the body has {len(body)}")
    return pieces


def _state_of(state: int) -> TransactionState:
    try:
        return TransactionState(state)
    except ValueError:
        raise InvalidRequest(f"{state} is no state of a transaction") from None


def _check_client(client: str) -> None:
    if not 1 <= len(client) <= limits.TRANSACTIONAL_ID_CHARS_MAX:
        raise InvalidRequest(
            f"transactional id {shown(client)} has {len(client)} characters; 1 to "
            f"{limits.TRANSACTIONAL_ID_CHARS_MAX} are allowed"
        )


def _response(answer: Answer) -> wire.TransactResponse:
    return wire.TransactResponse(
        state=int(answer.state),
        offsets=list(answer.offsets),
        by=answer.by,
        stored=answer.stored,
    )


def _status(each: JournaledTransaction) -> wire.TransactionStatus:
    return wire.TransactionStatus(
        transaction=each.number,
        state=int(each.state),
        by=each.by,
        client=each.client,
        client_epoch=each.client_epoch,
        xid=each.xid,
        begun_ms=each.begun_ms,
        ends_ms=each.ends_ms,
        decided_ms=each.decided_ms,
        parts=[
            wire.TransactionPartStatus(
                topic=part.to.topic,
                partition=part.to.partition,
                messages=part.messages,
                size=part.size,
                stored=part.stored,
                offset=part.offset,
            )
            for part in each.parts
        ],
    )
