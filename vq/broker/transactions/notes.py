"""What the master of a partition of the journal of transactions notes there. Pure.

    Piece       bytes of messages of a transaction, for one partition: a part, or some of it
    Step        a transaction begins, goes on, is prepared, committed, or rolled back
    Carried     what was noted of a transaction before, at once: the older notes are not needed
    Checked     producers were asked what is to become of it, so often
    Client      who has a transactional id: the epochs before this one are over
    Sent, Done  see ``journal.notes``; an item is a part of a transaction that is committed

The notes of one request are one batch: its pieces, then its step. So all of it is there or nothing.

What is prepared may wait for long, and would keep all of the log behind it. So its pieces are noted
again, in batches, and ``Carried`` behind the last one. Only that makes them count: a copy that a
crash ends is begun anew by whoever leads next. A decision that is kept is a ``Carried`` alone.
"""

import json
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from vq import limits
from vq.broker.journal import notes
from vq.broker.journal.notes import Done, Sent
from vq.model import TopicPartition, TransactionState

#: Of a part, so much goes into one note: a record has room for it, and for what is before it.
PIECE_BYTES: Final = limits.MESSAGE_BYTES_MAX - 4 * limits.KIB
#: Who decides if nobody asks.
TIME_OUT: Final = "time-out"
UNDECIDED: Final = "time-out of its offsets"
FENCED: Final = "another producer with its transactional id"
#: Who decides for a producer that is gone, where its transaction decides for other resources: this
#: is as good as a decision of the producer.
RECOVERED: Final = "vq tx recover"
#: So a piece begins; its number follows.
_PIECE: Final = b'{"piece":'
#: Quicker than to call the class, for each note.
_STATES: Final = {int(each): each for each in TransactionState}


class PartPiece(NamedTuple):
    """Bytes of one part of a transaction.

    Attributes:
        transaction: Its number.
        part: Which of its parts, from 0 on.
        to: Where the part goes.
        topic_id: Of that topic; another one of its name does not get it.
        messages: How many begin in the piece.
        data: Bytes of their records.
        copy: It was noted before, and is the so-manieth piece of a copy, from 1 on; 0: it was not.
    """

    transaction: int
    part: int
    to: TopicPartition
    topic_id: str
    messages: int
    data: bytes
    copy: int = 0


class CheckPlan(NamedTuple):
    """How producers are asked what is to become of a half message, and how far that is.

    Attributes:
        group: The producer group.
        interval_ms: Between two checks.
        most: So many are sent.
        many: It was sent as a list of messages.
        sent: How many a producer got.
        next_ms: When the next one is due, by the wall clock of the master.
    """

    group: str
    interval_ms: int
    most: int
    many: bool
    sent: int
    next_ms: int


class Checked(NamedTuple):
    """A producer has got a check; see ``CheckPlan``."""

    transaction: int
    sent: int
    next_ms: int


class TransactionStep(NamedTuple):
    """What became of a transaction.

    Attributes:
        transaction: Its number.
        request: How many requests of its producer were carried out, with this one.
        state: What it is from now on.
        by: Who has decided, or "".
        at_ms: When, by the wall clock of the master.
        client, client_epoch: Who began it: its transactional id and the epoch of that, or "" and 0.
        timeout_ms: An open one is rolled back so long after its begin.
        xid: Its name in other resources, or "".
        keep: Its commit is kept until it is forgotten.
        checks: Of a half message that is prepared; whoever notes that again notes these, too.
        decision, decision_version: Of one that is prepared: the node in ZooKeeper that decides it,
            and the version of that before; "" and 0: a request does.
        user: Who began it, as brokers know users; "": nobody asks for rights, or an older broker
            has noted it.
    """

    transaction: int
    request: int
    state: TransactionState
    by: str
    at_ms: int
    client: str = ""
    client_epoch: int = 0
    timeout_ms: int = 0
    xid: str = ""
    keep: bool = False
    checks: CheckPlan | None = None
    decision: str = ""
    decision_version: int = 0
    user: str = ""

    @property
    def is_automatic(self) -> bool:
        """Whether nobody has asked for it: it counts only if the transaction is still open."""
        return self.by == TIME_OUT


class Carried(NamedTuple):
    """A transaction that is prepared, or whose decision is kept: all but its messages.

    Attributes:
        transaction: Its number.
        request, state, by, client, client_epoch, xid, keep, checks, user: See ``TransactionStep``.
        begun_ms, decided_ms: By the wall clock of the master; 0: it is not.
        pieces: How many its copy has, which stands before.
        parts: Of a decision: partition, messages and bytes of each.
    """

    transaction: int
    request: int
    state: TransactionState
    by: str
    client: str
    client_epoch: int
    xid: str
    keep: bool
    begun_ms: int
    decided_ms: int
    pieces: int
    parts: tuple[tuple[TopicPartition, int, int], ...] = ()
    checks: CheckPlan | None = None
    user: str = ""


class Client(NamedTuple):
    """Who has a transactional id from now on; what earlier epochs have open is rolled back.

    Attributes:
        id: That.
        epoch: Counts those who had it.
        at_ms: Since when, by the wall clock of the master.
    """

    id: str
    epoch: int
    at_ms: int


Note: TypeAlias = PartPiece | TransactionStep | Carried | Checked | Client | Sent | Done


def encode_note(note: Note) -> bytes:
    """Return the record of a note."""
    if isinstance(note, PartPiece):
        head: dict[str, Any] = {
            "piece": note.transaction,
            "part": note.part,
            "to": list(note.to),
            "topic_id": note.topic_id,
            "messages": note.messages,
        }
        if note.copy:
            head["copy"] = note.copy
        return notes.encode(head, note.data)
    if isinstance(note, TransactionStep):
        head = {
            "step": note.transaction,
            "request": note.request,
            "state": int(note.state),
            "at": note.at_ms,
        }
        if note.by:
            head["by"] = note.by
        if note.client:
            head["client"], head["epoch"] = note.client, note.client_epoch
        if note.timeout_ms:
            head["timeout"] = note.timeout_ms
        if note.xid:
            head["xid"] = note.xid
        if note.keep:
            head["keep"] = True
        if note.checks is not None:
            head["checks"] = list(note.checks)
        if note.decision:
            head["decision"], head["version"] = note.decision, note.decision_version
        if note.user:
            head["user"] = note.user
        return notes.encode(head)
    if isinstance(note, Carried):
        head = {
            "carried": note.transaction,
            "request": note.request,
            "state": int(note.state),
            "by": note.by,
            "client": note.client,
            "epoch": note.client_epoch,
            "xid": note.xid,
            "keep": note.keep,
            "begun": note.begun_ms,
            "decided": note.decided_ms,
            "pieces": note.pieces,
            "parts": [[*to, messages, size] for to, messages, size in note.parts],
        }
        if note.checks is not None:
            head["checks"] = list(note.checks)
        if note.user:
            head["user"] = note.user
        return notes.encode(head)
    if isinstance(note, Checked):
        return notes.encode(
            {"checked": note.transaction, "sent_checks": note.sent, "next": note.next_ms}
        )
    if isinstance(note, Client):
        return notes.encode({"client": note.id, "epoch": note.epoch, "at": note.at_ms})
    return notes.encode_delivery(note)


def decode_note(payload: bytes) -> Note:
    """Return the note that a record with the tag ``NOTE_TAG`` has.

    Raises:
        CorruptData: It is none.
    """
    if payload.startswith(_PIECE):
        try:
            return _piece_in(payload)
        except (ValueError, TypeError, KeyError, RecursionError):
            pass  # not as it is written here; below it is read as any other note
    return notes.decode(payload, _read)


def _piece_in(payload: bytes) -> PartPiece:
    """Return the piece that is most of what a journal has, in a third of the time.

    Raises:
        ValueError, TypeError, KeyError: It is read otherwise, if at all.
    """
    end, at = payload.index(b"\n"), payload.index(b",")
    part, to, topic_id, messages, copy = _place_in(payload[at + 1 : end])
    data = payload[end + 1 :]
    return PartPiece(int(payload[len(_PIECE) : at]), part, to, topic_id, messages, data, copy)


@lru_cache(maxsize=4_096)
def _place_in(line: bytes) -> tuple[int, TopicPartition, str, int, int]:
    """Return what stands behind the number of a piece: it is the same in many of them."""
    head = json.loads(b"{" + line)
    to = TopicPartition(*head["to"])
    return head["part"], to, head["topic_id"], head["messages"], head.get("copy", 0)


def piece_bytes(payload: bytes) -> bytes:
    """Return the bytes of messages of a piece, of which the record's payload is given."""
    return notes.behind(payload)


def _read(head: dict[str, Any], behind: bytes) -> Note:
    if "piece" in head:
        to = TopicPartition(*head["to"])
        return PartPiece(
            head["piece"],
            head["part"],
            to,
            head["topic_id"],
            head["messages"],
            behind,
            head.get("copy", 0),
        )
    if "step" in head:
        return TransactionStep(
            head["step"],
            head["request"],
            _STATES[head["state"]],
            head.get("by", ""),
            head["at"],
            head.get("client", ""),
            head.get("epoch", 0),
            head.get("timeout", 0),
            head.get("xid", ""),
            head.get("keep", False),
            _plan_in(head),
            head.get("decision", ""),
            head.get("version", 0),
            head.get("user", ""),
        )
    if "carried" in head:
        parts = tuple((TopicPartition(e[0], e[1]), e[2], e[3]) for e in head["parts"])
        return Carried(
            head["carried"],
            head["request"],
            _STATES[head["state"]],
            head["by"],
            head["client"],
            head["epoch"],
            head["xid"],
            head["keep"],
            head["begun"],
            head["decided"],
            head["pieces"],
            parts,
            _plan_in(head),
            head.get("user", ""),
        )
    if "checked" in head:
        return Checked(head["checked"], head["sent_checks"], head["next"])
    if "client" in head:
        return Client(head["client"], head["epoch"], head["at"])
    return notes.delivery_in(head, behind)


def _plan_in(head: dict[str, Any]) -> CheckPlan | None:
    return CheckPlan(*head["checks"]) if "checks" in head else None
