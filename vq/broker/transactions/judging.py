"""What a request wants of a transaction, whether it may have that, and what is answered. Pure."""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from vq import limits
from vq.broker.transactions.journaled import JournaledTransaction
from vq.broker.transactions.notes import FENCED, PartPiece
from vq.errors import BatchTooLarge, InvalidRequest, ProducerFenced, TransactionRefused
from vq.model import TransactionState

COMMITTED, ROLLED_BACK = TransactionState.COMMITTED, TransactionState.ROLLED_BACK


class Ask(NamedTuple):
    """What a request wants of a transaction.

    Attributes:
        number: Of the transaction.
        request: Of the request in it, from 0 on.
        state: What the transaction is to be.
        has_parts: The request has messages.
        client, client_epoch: Who asks.
        by: Whose decision it is, if not its producer's.
        xid, keep: See ``TransactionStep``.
        group: It is the answer to a check that this producer group got; or "".
    """

    number: int
    request: int
    state: TransactionState
    has_parts: bool
    client: str = ""
    client_epoch: int = 0
    by: str = ""
    xid: str = ""
    keep: bool = False
    group: str = ""


class Answer(NamedTuple):
    """What became of a transaction, if nothing is to be noted for a request.

    Attributes:
        state: What it is.
        by: Who decided, if not its producer.
        offsets: Of its parts.
        stored: It is committed, and all of it is stored, or has no topic any more.
    """

    state: TransactionState
    by: str = ""
    offsets: Sequence[int] = ()
    stored: bool = False


#: What became of a transaction, by whom, the offsets of its parts, when, and who had begun it. The
#: state is a number, so that all of it is plain: the garbage collector looks at none of what is
#: remembered.
Ended: TypeAlias = tuple[int, str, tuple[int, ...], int, str]


def answer_of(found: JournaledTransaction) -> Answer:
    """Return what became of a transaction of which all is known."""
    stored = found.state is COMMITTED and found.is_stored
    return Answer(found.state, found.by, [each.offset for each in found.parts], stored)


def answer_in(ended: Ended) -> Answer:
    """Return what became of a transaction of which only that is remembered."""
    state, by, offsets, _, _ = ended
    return Answer(TransactionState(state), by, offsets, state == COMMITTED)


def after_end(ask: Ask, answer: Answer) -> Answer:
    """Return the answer to a request for a transaction that has ended.

    Raises:
        TransactionRefused: It became something else than is wanted.
        ProducerFenced: Whoever took the transactional id has rolled it back.
    """
    if ask.state in {answer.state, TransactionState.UNKNOWN, TransactionState.FORGOTTEN}:
        return answer
    if answer.by == FENCED and ask.client:
        raise ProducerFenced(
            f"another producer has taken the transactional id {ask.client!r}; transaction "
            f"{ask.number} is rolled back"
        )
    by = f" by {answer.by}" if answer.by else ""
    raise TransactionRefused(
        f"transaction {ask.number} is {answer.state.word}{by}; it cannot be {ask.state.word}",
        details={"state": int(answer.state)},
    )


def judge_prepared(ask: Ask) -> None:
    """Return if a transaction that is prepared may become what a request wants.

    Raises:
        TransactionRefused: It may not.
    """
    if ask.has_parts or ask.state is TransactionState.OPEN:
        raise TransactionRefused(f"transaction {ask.number} is prepared; it takes no messages")


def judge_open(ask: Ask, found: JournaledTransaction) -> None:
    """Return if a request is the next one of a transaction that is open, or rolls it back.

    Raises:
        TransactionRefused: It is not.
    """
    if ask.state is ROLLED_BACK:
        return
    if ask.by:
        raise TransactionRefused(
            f"transaction {ask.number} is open: its producer may still send messages of it. It can "
            "only be rolled back"
        )
    if ask.request != found.requests:
        raise TransactionRefused(
            f"transaction {ask.number}: request {ask.request} is not the next one, "
            f"{found.requests} is"
        )


def check_decider(ask: Ask, found: JournaledTransaction) -> None:
    """Return if the producer group of a request may decide for a half message.

    Raises:
        TransactionRefused: It is another one's, or no half message.
    """
    group = "" if found.checks is None else found.checks.group
    if group != ask.group:
        of = f"of producer group {group!r}" if group else "no half message"
        raise TransactionRefused(
            f"transaction {ask.number} is {of}; a producer of group {ask.group!r} decides for it"
        )


def check_parts(found: JournaledTransaction | None, pieces: Sequence[PartPiece]) -> None:
    """Return if a transaction, or one that begins, may have these pieces, too.

    Raises:
        InvalidRequest: They do not follow those that it has, or it would have too much.
        BatchTooLarge: It would have too much for one partition.
    """
    parts = [] if found is None else [(e.to, e.topic_id, e.messages, e.size) for e in found.parts]
    taken = {to for to, *_ in parts}
    for piece in pieces:
        if piece.part == len(parts) and piece.to not in taken:
            parts.append((piece.to, piece.topic_id, 0, 0))
            taken.add(piece.to)
        if not piece.part < len(parts) or parts[piece.part][:2] != (piece.to, piece.topic_id):
            raise InvalidRequest(
                f"part {piece.part} is for {piece.to}; the transaction has {len(parts)} parts, and "
                "each goes to another partition"
            )
        to, topic_id, messages, size = parts[piece.part]
        messages, size = messages + piece.messages, size + len(piece.data)
        if messages > limits.BATCH_RECORDS_MAX or size > limits.BATCH_BYTES_MAX:
            raise BatchTooLarge(
                f"a transaction has {messages} messages of {size} bytes for {to}; what it has for "
                f"one partition is stored as one batch, of at most {limits.BATCH_RECORDS_MAX} "
                f"messages and {limits.BATCH_BYTES_MAX} bytes"
            )
        parts[piece.part] = to, topic_id, messages, size
    total = sum(size for *_, size in parts)
    if len(parts) > limits.TRANSACTION_PARTS_MAX or total > limits.TRANSACTION_BYTES_MAX:
        raise InvalidRequest(
            f"a transaction of {len(parts)} parts and {total} bytes; at most "
            f"{limits.TRANSACTION_PARTS_MAX} and {limits.TRANSACTION_BYTES_MAX} are allowed"
        )
