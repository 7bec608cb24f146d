"""Why a consumer group did not get a message: what is asked for the answer.

Loop-bound functions on a ``ClusterClient``. They read, and change nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from vq.bounds import check_between
from vq.broker.journal.notes import NOTE_TAG
from vq.broker.transactions.notes import PartPiece, decode_note
from vq.client.cluster import ClusterClient
from vq.client.reading.partition_reader import PartitionReader, records_decoder
from vq.coordination.groups.groups import UnknownGroup, known_reads
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import NoNode
from vq.coordination.tree.values.consumers import Assignment, ClaimReason
from vq.errors import (
    CorruptData,
    InvalidArgument,
    OffsetNotBoundary,
    PartitionFailed,
    PartitionQuarantined,
    UnknownTopic,
    VqError,
)
from vq.limits import MIB
from vq.message_filter import ALL, Filter
from vq.model import Message, TopicPartition, TransactionState, check_name, time_ms_of
from vq.operations.explain.answers import Explanation, explain
from vq.operations.explain.message_causes import TABLE, MessageFacts, MessageState, message_told
from vq.operations.explain.partition import gather_partition
from vq.operations.messages.dead_letters import read_dead_letters
from vq.operations.messages.delayed import DELAYED_MESSAGES_MAX, list_delayed
from vq.operations.messages.finding import AROUND_MS, find_messages
from vq.operations.messages.settling import LetterState
from vq.operations.messages.stored import read_range
from vq.operations.messages.transactions import describe_transaction
from vq.reserved import DELAYED_TOPIC, TRANSACTIONS_TOPIC, Purpose, topic_of
from vq.store.records.record import Record, decode_into

#: One search of a topic reads at most so much, and takes at most so long.
SEARCHED_BYTES: Final = 256 * MIB
SEARCH_S: Final = 20.0
_ID_END: Final = 1 << 63
_UNDECIDED: Final = frozenset({TransactionState.OPEN, TransactionState.PREPARED})


@dataclass(frozen=True, slots=True)
class _Whereabouts:
    """Where a message is, before anything is asked of the group."""

    state: MessageState | None
    partition: int = 0
    message: Message | None = None
    detail: str = ""
    due_ms: int | None = None
    transaction: int | None = None


async def explain_message(
    cluster: ClusterClient,
    group: str,
    topic: str,
    *,
    id: int | None = None,
    partition: int | None = None,
    offset: int | None = None,
) -> Explanation:
    """Say why a consumer group did not get a message, or that it did.

    Topics are searched for it: that of the message, those of the group's retries and dead letters,
    what is delayed, and what transactions hold back.

    Args:
        group: The group, which need not exist.
        topic: The topic that the message was sent to.
        id: Of the message, in [1, 2**63).
        partition, offset: Or where it lies.

    Raises:
        UnknownTopic, UnknownPartition: There is none.
        InvalidArgument: Neither an id nor a place is given, or both.
    """
    check_name("group", group)
    has_place = partition is not None and offset is not None
    if (id is None) == (not has_place) or (partition is None) != (offset is None):
        raise InvalidArgument("give the id of the message, or its partition and offset")
    for what, value in (("id", id), ("partition", partition), ("offset", offset)):
        if value is not None:
            check_between(what, value, 0, _ID_END - 1)
    unknown: list[str] = []
    if id is not None:
        asked = str(id)
        found = await _by_id(cluster, topic, id, unknown)
        at, more = await gather_partition(cluster, group, topic, found.partition)
    else:
        assert partition is not None, "checked above"
        assert offset is not None, "checked above"
        asked = f"{partition}:{offset}"
        at, more = await gather_partition(cluster, group, topic, partition)
        found = await _by_place(cluster, topic, partition, offset, at.log_end, unknown)
    unknown += more
    message = found.message
    facts = MessageFacts(
        at=at,
        asked=asked,
        state=found.state,
        detail=found.detail,
        id=id if message is None else message.id,
        offset=offset if message is None else message.offset,
        tag=None if message is None else message.tag,
        key=None if message is None or message.key is None else _shown_key(message.key),
        sent_ms=None if id is None and message is None else time_ms_of(id or message.id),  # type: ignore[union-attr]
        stored_ms=None if message is None else message.append_time_ms,
        due_ms=found.due_ms,
        transaction=found.transaction,
    )
    if message is not None and at.exists and at.reads:
        facts = await _of_group(cluster, facts, message, unknown)
    subject = f"group {group} and message {asked} of {topic}"
    return explain("message", subject, TABLE, facts, message_told(facts), unknown)


def _shown_key(key: object) -> str:
    return key.hex() if isinstance(key, bytes) else str(key)


# Where the message is ---------------------------------------------------------------------------
async def _by_place(
    cluster: ClusterClient,
    topic: str,
    partition: int,
    offset: int,
    log_end: int | None,
    unknown: list[str],
) -> _Whereabouts:
    reader = PartitionReader(cluster, TopicPartition(topic, partition))
    try:
        start, end = await reader.bounds()
        if offset < start:
            text = f": offsets before {start} are deleted"
            return _Whereabouts(MessageState.DELETED, partition, detail=text[2:])
        if offset >= end:
            if log_end is None:
                unknown.append(f"where the log of {topic}-{partition} ends at its master")
                return _Whereabouts(None, partition)
            if offset < log_end:
                return _Whereabouts(MessageState.NOT_REPLICATED, partition)
            return _Whereabouts(MessageState.NOT_YET, partition, detail=f"its end is offset {end}")
        read = await read_range(cluster, topic, partition, offset, max_bytes=1)
        messages = read.messages()
    except OffsetNotBoundary as error:
        return _Whereabouts(MessageState.NO_MESSAGE, partition, detail=error.message)
    except (CorruptData, PartitionQuarantined, PartitionFailed) as error:
        return _Whereabouts(MessageState.DAMAGED, partition, detail=error.message)
    except UnknownTopic:
        raise
    except VqError as error:
        unknown.append(f"{topic}-{partition}: {type(error).__name__}: {error.message}")
        return _Whereabouts(None, partition)
    if not messages or messages[0].offset != offset:
        return _Whereabouts(
            MessageState.NO_MESSAGE, partition, detail="a record of vq's own lies there"
        )
    return _Whereabouts(MessageState.STORED, partition, messages[0])


async def _by_id(cluster: ClusterClient, topic: str, id: int, unknown: list[str]) -> _Whereabouts:
    view = await topics.describe_topic(cluster.coordinator, topic)
    searched, complete, deleted = await _search(cluster, topic, id, unknown)
    if searched is not None:
        return _Whereabouts(MessageState.STORED, searched.partition, searched)
    waits = await _delayed(cluster, topic, id, unknown)
    if waits is not None:
        return waits
    if await _search_own(cluster, DELAYED_TOPIC, id, unknown) is not None:
        return _Whereabouts(MessageState.RECALLED if complete else None)
    kept = await _in_journal(cluster, view.id, topic, id, unknown)
    if kept is not None:
        return kept
    if not complete or unknown:
        return _Whereabouts(None)  # it may be where nobody could look
    if deleted:
        text = "what was stored around the time in its id is deleted, so it was deleted, too, or it"
        return _Whereabouts(MessageState.DELETED, detail=f"{text} was never stored")
    return _Whereabouts(MessageState.NOT_STORED)


async def _search(
    cluster: ClusterClient, topic: str, id: int, unknown: list[str], *, since_only: bool = False
) -> tuple[Message | None, bool, bool]:
    """Search a topic for an id; return the message, whether all was searched, and what was gone.

    ``since_only``: copies come at any later time.
    """
    bounds: Mapping[str, int] = {}
    if since_only:
        bounds = {"since_ms": max(0, time_ms_of(id) - AROUND_MS)}
    try:
        found = await find_messages(
            cluster,
            topic,
            id=id,
            limit=1,
            max_bytes=SEARCHED_BYTES,
            timeout=SEARCH_S,
            **bounds,  # type: ignore[arg-type]
        )
    except UnknownTopic:
        return None, True, False
    except VqError as error:
        unknown.append(f"topic {topic}: {type(error).__name__}: {error.message}")
        return None, False, False
    if found.messages:
        return found.messages[0], True, False
    if not found.complete:
        lost = [f"partition {number}: {gap.reason}" for number, gap in found.gaps]
        why = "; ".join(lost[:3]) or f"{found.stopped}"
        unknown.append(f"topic {topic} was not searched as a whole: {why}")
    return None, found.complete, bool(found.gaps)


async def _search_own(
    cluster: ClusterClient, topic: str, id: int, unknown: list[str]
) -> Message | None:
    return (await _search(cluster, topic, id, unknown, since_only=True))[0]


async def _delayed(
    cluster: ClusterClient, topic: str, id: int, unknown: list[str]
) -> _Whereabouts | None:
    try:
        waiting = await list_delayed(cluster, topic, limit=DELAYED_MESSAGES_MAX)
    except VqError as error:
        unknown.append(f"delayed messages: {type(error).__name__}: {error.message}")
        return None
    for each in waiting.first:
        if each.waits.id == id:
            return _Whereabouts(MessageState.DELAYED, each.partition, due_ms=each.due_ms)
    if waiting.waiting > len(waiting.first):
        unknown.append(f"only {len(waiting.first)} of {waiting.waiting} delayed messages were read")
    return None


async def _in_journal(
    cluster: ClusterClient, topic_id: str, topic: str, id: int, unknown: list[str]
) -> _Whereabouts | None:
    """Return the transaction that has a message, if that is not stored: its journal is read."""
    try:
        view = await topics.describe_topic(cluster.coordinator, TRANSACTIONS_TOPIC)
    except UnknownTopic:
        return None
    try:
        for number in range(len(view.partitions)):
            piece = await _piece_with(
                PartitionReader(cluster, TopicPartition(TRANSACTIONS_TOPIC, number), view.id),
                (topic_id, topic, id),
            )
            if piece is None:
                continue
            found = await describe_transaction(cluster, piece.transaction)
            partition = piece.to.partition
            if found.state in _UNDECIDED:
                word = found.state.word
                return _Whereabouts(
                    MessageState.UNDECIDED, partition, detail=word, transaction=piece.transaction
                )
            if found.state is TransactionState.ROLLED_BACK:
                by = f"by {found.by}" if found.by else "by its producer"
                return _Whereabouts(
                    MessageState.ROLLED_BACK, partition, detail=by, transaction=piece.transaction
                )
    except VqError as error:
        unknown.append(f"what transactions hold back: {type(error).__name__}: {error.message}")
    return None


async def _piece_with(reader: PartitionReader, wanted: tuple[str, str, int]) -> PartPiece | None:
    """Return the piece of a transaction that has a message; None: no piece that is kept has it."""
    start, end = await reader.bounds()
    begun: dict[tuple[int, int], bytes] = {}  # what a piece has of a record that goes on
    at = start
    while at < end:
        try:
            async for records in reader.read(at, records_decoder(), end):
                for record in records:
                    piece = _piece(record)
                    if piece is not None and _has(piece, wanted, begun):
                        return piece
            return None
        except CorruptData as error:
            at = await reader.behind(int(error.details.get("offset", at)), error)
    return None


def _piece(record: Record) -> PartPiece | None:
    if record.tag != NOTE_TAG:
        return None
    try:
        note = decode_note(record.payload)
    except CorruptData:
        return None  # of a later version
    return note if isinstance(note, PartPiece) else None


def _has(
    piece: PartPiece, wanted: tuple[str, str, int], begun: dict[tuple[int, int], bytes]
) -> bool:
    topic_id, topic, id = wanted
    if piece.topic_id != topic_id or piece.to.topic != topic:
        return False
    key = piece.transaction, piece.part
    data = begun.pop(key, b"") + piece.data
    records: list[Record] = []
    try:
        read_to = decode_into(data, 0, records)
    except CorruptData:
        return any(each.id == id for each in records)
    if read_to < len(data):
        begun[key] = data[read_to:]
    return any(each.id == id for each in records)


# What the group makes of it -----------------------------------------------------------------------
async def _of_group(
    cluster: ClusterClient, facts: MessageFacts, message: Message, unknown: list[str]
) -> MessageFacts:
    """Add what the group has made of a message that is stored."""
    group, topic = facts.at.group, facts.at.topic
    try:
        contract = await known_reads(cluster.coordinator, group)
    except UnknownGroup:
        return facts
    first_ms, reset_ms = await _claims(cluster, group, TopicPartition(topic, message.partition))
    before = len(unknown)
    letter, detail = await _letter(cluster, group, message.id, unknown)
    retries = await _retries(cluster, group, message.id, unknown)
    committed = await cluster.offsets.at(group, TopicPartition(topic, message.partition))
    ahead = committed is not None and any(each == message.offset for each, _ in committed.ahead)
    return replace(
        facts,
        matches=_matches(contract.filter_of(topic), message),
        ahead=ahead,
        letter=letter,
        detail=detail,
        letters_known=len(unknown) == before,
        retries=retries,
        first_claim_ms=first_ms,
        reset_ms=reset_ms,
        starts_latest=contract.start == "latest",
    )


def _matches(wanted: Filter | None, message: Message) -> bool | None:
    """Whether a filter of a contract lets a message through; None: only members know."""
    if wanted is None or wanted == ALL:
        return True
    if wanted.code:
        return None
    try:
        tried = Filter.of_text(wanted.text)
    except InvalidArgument:
        return None  # of a later version
    if tried.tags:
        return message.tag in tried.tags
    return None if tried.check is None else tried.check(message)


async def _claims(
    cluster: ClusterClient, group: str, partition: TopicPartition
) -> tuple[int | None, int | None]:
    """Return when a partition was first claimed, and when its place was last set, if known."""
    path = Assignment.path(group, *partition)
    try:
        history = Assignment.decode(path, (await cluster.coordinator.get(path)).data).history
    except NoNode:
        return None, None
    first = [each.time_ms for each in history if each.reason == ClaimReason.FIRST]
    reset = [each.time_ms for each in history if each.reason == ClaimReason.RESET]
    return (first[0] if first else None), (reset[-1] if reset else None)


def _topic_of(purpose: Purpose, group: str) -> str | None:
    """Return a reserved topic of a group; None: its name is too long to have one."""
    try:
        return topic_of(purpose, group)
    except InvalidArgument:
        return None


async def _letter(
    cluster: ClusterClient, group: str, id: int, unknown: list[str]
) -> tuple[LetterState | None, str]:
    name = _topic_of(Purpose.DEAD_LETTERS, group)
    if name is None:
        return None, ""
    if await _search_own(cluster, name, id, unknown) is None:
        return None, ""
    try:
        async for each in read_dead_letters(cluster, group, settled=True):
            if each.message.id == id:
                return each.state, "" if each.failure is None else each.failure.reason
    except VqError as error:
        unknown.append(f"dead letters of group {group}: {type(error).__name__}: {error.message}")
    return None, ""


async def _retries(cluster: ClusterClient, group: str, id: int, unknown: list[str]) -> bool:
    """Whether a copy waits in the group's retry topic: for its time, or to be handled."""
    name = _topic_of(Purpose.RETRY, group)
    if name is None:
        return False
    copy = await _search_own(cluster, name, id, unknown)
    if copy is not None:
        place = await cluster.offsets.at(group, TopicPartition(name, copy.partition))
        if place is None or copy.offset >= place.offset:
            return True
    return await _delayed(cluster, name, id, unknown) is not None
