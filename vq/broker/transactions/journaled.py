"""One transaction as its journal has it: its parts, where their notes are, what it is. Pure."""

from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from vq.broker.journal.notes import UNKNOWN
from vq.broker.transactions.notes import Carried, CheckPlan, PartPiece
from vq.model import TopicPartition, TransactionState

_STORED: Final = attrgetter("stored")


@dataclass(slots=True)
class JournaledPart:
    """What a transaction has for one partition.

    Attributes:
        to, topic_id: The partition.
        messages, size: How much it is.
        pieces: Where in the journal: offsets and lengths of notes.
        stored: It is in its partition, or that is gone.
        offset: Where it is there, or ``UNKNOWN``.
    """

    to: TopicPartition
    topic_id: str
    messages: int = 0
    size: int = 0
    pieces: list[tuple[int, int]] = field(default_factory=list)
    stored: bool = False
    offset: int = UNKNOWN


@dataclass(slots=True)
class JournaledTransaction:
    """One transaction.

    Attributes:
        number: An id as messages have.
        offset: Of its first note.
        state: What it is.
        requests: How many of its producer's were carried out.
        parts: What it has, for each partition.
        by: Who decided, if not its producer.
        torn: The journal does not have its first notes any more: it has ended.
        client, client_epoch, xid, keep, checks, user: See ``TransactionStep``.
        begun_ms, ends_ms, decided_ms: By the wall clock of the master; 0: it is not.
        decision, decision_version: See ``TransactionStep``.
        prepared_ms: Since when only that node decides; 0: it does not.
        committed_at: The offset of the note that it is; or ``UNKNOWN``.
    """

    number: int
    offset: int
    state: TransactionState = TransactionState.OPEN
    requests: int = 0
    parts: list[JournaledPart] = field(default_factory=list)
    by: str = ""
    torn: bool = False
    client: str = ""
    client_epoch: int = 0
    xid: str = ""
    keep: bool = False
    begun_ms: int = 0
    ends_ms: int = 0
    decided_ms: int = 0
    checks: CheckPlan | None = None
    decision: str = ""
    decision_version: int = 0
    prepared_ms: int = 0
    committed_at: int = UNKNOWN
    user: str = ""

    def is_check_due(self, now_ms: int) -> bool:
        """Whether it is time to ask a producer, or to park it."""
        plan, is_prepared = self.checks, self.state is TransactionState.PREPARED
        return plan is not None and is_prepared and plan.next_ms <= now_ms

    def is_parked(self, now_ms: int) -> bool:
        """Whether all checks were sent, and the last one had its time."""
        plan = self.checks
        return plan is not None and plan.sent >= plan.most and self.is_check_due(now_ms)

    @property
    def is_undecided(self) -> bool:
        """Whether a node in ZooKeeper decides it, and the journal does not know how."""
        return self.state is TransactionState.PREPARED and bool(self.decision)

    @property
    def is_stored(self) -> bool:
        """Whether all its parts are."""
        return all(map(_STORED, self.parts))


def carried(found: JournaledTransaction, pieces: int = 0) -> Carried:
    """Return the note of a transaction that was noted before.

    Args:
        found: It is prepared, and so many ``pieces`` of it stand before; or it is decided.
    """
    parts = () if pieces else tuple((each.to, each.messages, each.size) for each in found.parts)
    return Carried(
        found.number,
        found.requests,
        found.state,
        found.by,
        found.client,
        found.client_epoch,
        found.xid,
        found.keep,
        found.begun_ms,
        found.decided_ms,
        pieces,
        parts,
        found.checks,
        found.user,
    )


def uncarried(note: Carried, offset: int) -> JournaledTransaction:
    """Return the transaction that a note has: all but its pieces."""
    # As long as it is not stored, what is active tells it.
    is_stored = note.state is TransactionState.COMMITTED
    return JournaledTransaction(
        note.transaction,
        offset,
        note.state,
        note.request,
        [JournaledPart(to, "", count, size, [], is_stored) for to, count, size in note.parts],
        note.by,
        False,
        note.client,
        note.client_epoch,
        note.xid,
        note.keep,
        note.begun_ms,
        0,
        note.decided_ms,
        note.checks,
        user=note.user,
    )


def add_piece(parts: list[JournaledPart], piece: PartPiece, offset: int, length: int) -> None:
    """Add what a note has to its part; the note is at an offset of the journal."""
    if piece.part == len(parts):
        parts.append(JournaledPart(piece.to, piece.topic_id))
    part = parts[piece.part]
    part.messages += piece.messages
    part.size += len(piece.data)
    part.pieces.append((offset, length))
