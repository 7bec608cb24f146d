"""What requests about transactions may say, what is noted for them, and what is answered. Pure."""

from collections.abc import Mapping

from vq import limits
from vq.broker.journal.notes import NOTE_TAG
from vq.broker.partition.batch_check import check_batch
from vq.broker.transactions.journaled import JournaledPart, JournaledTransaction
from vq.broker.transactions.judging import Answer
from vq.broker.transactions.notes import (
    FENCED,
    PIECE_BYTES,
    TIME_OUT,
    UNDECIDED,
    CheckPlan,
    PartPiece,
)
from vq.coordination.groups import decisions
from vq.errors import InvalidRequest
from vq.model import TopicPartition, TransactionState
from vq.remoting import wire_pb2 as wire
from vq.reserved import DELAYED_TOPIC, SHARED_TOPIC, TRANSACTIONS_TOPIC
from vq.shown import shown
from vq.store.records.record import has_tag


def check_request(request: wire.TransactRequest, size: int) -> None:
    """Return if a request has what it may have, and its body so many bytes.

    Raises:
        InvalidRequest: It has not.
    """
    if not request.transaction or request.transaction > 2**63 - 1:
        raise InvalidRequest(f"{request.transaction} is no number of a transaction")
    if request.client:
        check_client(request.client)
    if request.HasField("checks"):
        _check_checks(request)
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


def pieces_of(
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
        if to.topic in {TRANSACTIONS_TOPIC, SHARED_TOPIC} or (
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


def plan_of(request: wire.TransactRequest, now_ms: int) -> CheckPlan | None:
    """Return how a half message is checked, with which a request prepares it; None: it is none."""
    checks = request.checks
    if request.state != TransactionState.PREPARED or not request.HasField("checks"):
        return None
    next_ms = now_ms + checks.after_ms
    return CheckPlan(checks.group, checks.interval_ms, checks.most, checks.many, 0, next_ms)


def state_of(state: int) -> TransactionState:
    """Return the state with a number.

    Raises:
        InvalidRequest: There is none.
    """
    try:
        return TransactionState(state)
    except ValueError:
        raise InvalidRequest(f"{state} is no state of a transaction") from None


def check_client(client: str) -> None:
    """Return if that may be a transactional id.

    Raises:
        InvalidRequest: It may not.
    """
    if not 1 <= len(client) <= limits.TRANSACTIONAL_ID_CHARS_MAX:
        raise InvalidRequest(
            f"transactional id {shown(client)} has {len(client)} characters; 1 to "
            f"{limits.TRANSACTIONAL_ID_CHARS_MAX} are allowed"
        )


def check_group(group: str) -> None:
    """Return if that may be a producer group.

    Raises:
        InvalidRequest: It may not.
    """
    if not limits.is_valid_name(group):
        raise InvalidRequest(f"{shown(group)} is no name of a producer group")


def _check_checks(request: wire.TransactRequest) -> None:
    """Return if a request says rightly how a half message is checked, or for whom it decides.

    Raises:
        InvalidRequest: It does not.
    """
    checks = request.checks
    check_group(checks.group)
    if request.state == TransactionState.FORGOTTEN:  # that is not asked of a producer group
        raise InvalidRequest("the answer to a check commits or rolls back; it forgets no decision")
    if request.state != TransactionState.PREPARED:
        return
    least_ms, most_ms = int(limits.CHECK_S_MIN * 1_000), int(limits.CHECK_S_MAX * 1_000)
    for name, value, least, most in (
        ("after_ms", checks.after_ms, least_ms, most_ms),
        ("interval_ms", checks.interval_ms, least_ms, most_ms),
        ("most", checks.most, 1, limits.CHECKS_MAX),
        ("number", request.number, 0, 0),  # an answer to a producer has all of it
    ):
        if not least <= value <= most:
            raise InvalidRequest(f"{name} = {value} of a half message is outside [{least}, {most}]")


def response_of(answer: Answer) -> wire.TransactResponse:
    """Return the answer to a TRANSACT."""
    return wire.TransactResponse(
        state=int(answer.state),
        offsets=list(answer.offsets),
        by=answer.by,
        stored=answer.stored,
    )


def status_of(each: JournaledTransaction, now_ms: int) -> wire.TransactionStatus:
    """Return what a list tells of a transaction."""
    status = wire.TransactionStatus(
        transaction=each.number,
        state=int(each.state),
        by=each.by,
        client=each.client,
        client_epoch=each.client_epoch,
        xid=each.xid,
        begun_ms=each.begun_ms,
        ends_ms=each.ends_ms,
        decided_ms=each.decided_ms,
        parts=map(part_status_of, each.parts),
    )
    if each.checks is not None:
        status.checks.group = each.checks.group
        status.checks.sent, status.checks.most = each.checks.sent, each.checks.most
        if each.state is TransactionState.PREPARED:  # otherwise nobody is asked any more
            status.checks.next_ms = each.checks.next_ms
            status.checks.parked = each.is_parked(now_ms)
    return status


def part_status_of(part: JournaledPart) -> wire.TransactionPartStatus:
    """Return what is told of a part of a transaction."""
    return wire.TransactionPartStatus(
        topic=part.to.topic,
        partition=part.to.partition,
        messages=part.messages,
        size=part.size,
        stored=part.stored,
        offset=part.offset,
    )
