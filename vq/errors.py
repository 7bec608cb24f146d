"""Every error of vq: one tree, one registry of wire statuses.

    VqError
    ├── InvalidArgument        the caller passed something unusable (also a ValueError)
    ├── InvalidState           the object cannot do this now: closed, forked, not started
    │   └── NotShared          a message of no shared group is to be settled (an AttributeError)
    ├── Refused                done? No, certainly not. Safe to try again as it stands.
    │   ├── (one class per status, below)
    ├── OutcomeUnknown         done? Perhaps. Only a resend with the same sequence tells, or a look.
    │   ├── TimedOut, ConnectionCut, StorageFailed, InternalError, SequenceStale
    ├── BatchFailed            some messages of a ``send_batch`` are refused or unknown
    ├── CorruptData            bytes that fail their checksum or cannot be parsed
    ├── ListenerFailed         the application's listener raised for a message
    ├── FilterFailed           the application's message filter raised for a message
    ├── GroupStopped           the place a group committed is gone; somebody must decide
    ├── AlreadyHandled         the results of a message are stored already, with its offset
    ├── ProtocolError          the peer broke the wire protocol
    └── CoordinationError      ZooKeeper: unreachable, session ended, or the tree says otherwise
        └── OffsetStoreFailed  the same of the store that has a group's offsets

An outcome has three values: done, ``Refused``, ``OutcomeUnknown``. A caller never matches text: the
class attributes say what can be done. A status number on the wire maps to exactly one class here
(``error_from_status``), and a test keeps the numbers unique.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

STATUS_OK: Final = 0


class _Notes:
    """The notes of an error, made when somebody asks: Python shows them below a traceback.

    The first one is what to do. ``Exception.add_note`` adds to them as to any others.
    """

    def __get__(self, error: "VqError | None", kind: type) -> list[str]:
        if error is None:
            raise AttributeError("a class of errors has no notes")
        advice = advice_of(error)
        notes = [f"what to do: {advice}"] if advice else []
        error.__dict__["__notes__"] = notes
        return notes


class VqError(Exception):
    """Base of every error raised by vq.

    Attributes:
        status: The number this class has on the wire, or None for errors that never travel.
        retriable: Trying the same thing again later may succeed.
        refresh_routes: The caller's routes are old; read them again before retrying.
        hint: What to do, in one sentence; shown by the command line beside the message, and below
            a traceback. An error that knows better than its class has its own.
        details: Machine-readable facts, such as the valid range of an offset.
    """

    status: ClassVar[int | None] = None
    retriable: ClassVar[bool] = False
    refresh_routes: ClassVar[bool] = False
    hint: str = ""
    __notes__ = _Notes()

    def __init__(
        self,
        message: str = "",
        *,
        details: Mapping[str, int | str] | None = None,
        hint: str = "",
    ) -> None:
        if hint:
            self.hint = hint
        super().__init__(message or self.hint or type(self).__name__)
        self.details: dict[str, int | str] = dict(details or {})

    @property
    def message(self) -> str:
        """The text without the status."""
        return super().__str__()

    def __str__(self) -> str:
        """Return the text and, for a class with a status, its number: ``… (status 20)``."""
        if self.status is None:
            return self.message
        status = f" (status {self.status})"
        return self.message if self.message.endswith(status) else self.message + status


def advice_of(error: VqError) -> str:
    """Return the hint of an error, ``""`` if its text says the same, mostly in more detail."""
    begin = error.hint.partition(":")[0]
    return error.hint if begin and begin not in str(error) else ""


class InvalidArgument(VqError, ValueError):
    """An argument or setting is unusable; the message shows the value and the bound."""


class InvalidState(VqError):
    """The object cannot do this now: it is closed, was not started, or the process was forked."""


class NotShared(InvalidState, AttributeError):
    """The message is of no shared group, so it cannot be settled by itself.

    It is an ``AttributeError``, too: ``hasattr`` tells which messages can be.
    """

    hint = (
        "make the consumer with model='shared'; in another group a message is handled when its "
        "listener returns, or with the next call of get_many"
    )


class NotPublished(InvalidState):
    """The producer does not know the topic yet; ``publish`` comes first."""


class BatchFailed(VqError):
    """Some messages of a ``send_batch`` are refused or unknown; the others are stored.

    It is neither ``Refused`` nor ``OutcomeUnknown``: whoever sends the whole batch again stores a
    second copy of what is stored.

    Args:
        outcomes: See below.

    Attributes:
        outcomes: For each message, in the order of the call, its ``SendResult`` or its error.
        stored: Places in ``outcomes`` of the messages that are stored; the first place is 0.
        refused: Places of those that are certainly not stored.
        unknown: Places of those that may or may not be stored.
    """

    hint = (
        "`outcomes` has the result or the error of each message: send those again whose error is "
        "`retriable`; correct other refused ones; unknown ones may be stored, so look first"
    )

    def __init__(self, outcomes: Sequence[Any]) -> None:
        self.outcomes = tuple(outcomes)
        errors = {n: each for n, each in enumerate(outcomes) if isinstance(each, VqError)}
        self.stored = [n for n in range(len(self.outcomes)) if n not in errors]
        self.unknown = [n for n, each in errors.items() if isinstance(each, OutcomeUnknown)]
        self.refused = [n for n, each in errors.items() if not isinstance(each, OutcomeUnknown)]
        first = next(iter(errors.values()), None)
        super().__init__(
            f"of {len(self.outcomes)} messages {len(self.stored)} are stored, {len(self.refused)} "
            f"refused, {len(self.unknown)} unknown; the first error is {type(first).__name__}: "
            f"{first}",
            details={
                "stored": len(self.stored),
                "refused": len(self.refused),
                "unknown": len(self.unknown),
            },
        )
        self.__cause__ = first

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.outcomes,)


class CorruptData(VqError):
    """Bytes fail their checksum or cannot be parsed as what they claim to be."""


class ContentUnreadable(CorruptData):
    """The content of a message is none that its serializer reads; the message itself is whole."""


class GroupStopped(VqError):
    """The place of a group is gone, or it cannot handle what is there: it waits for a reset."""

    hint = "`vq group reset` sets where the group goes on; `vq group describe` shows where it was"


class ListenerFailed(VqError):
    """A listener raised for a message (``__cause__``), or asked for another try of it."""

    retriable = True
    hint = "the message is tried again; see the listener's own error"


class FilterFailed(VqError):
    """The ``matches`` of a ``vq.MessageFilter`` raised for a message; ``__cause__`` is what."""

    retriable = True
    hint = "the message is looked at again; see the filter's own error"


class CoordinationError(VqError):
    """ZooKeeper cannot be reached, the session ended, or the tree does not hold what it should."""

    retriable = True


class OffsetStoreFailed(CoordinationError):
    """It is not known what an offset store has, or whether it took a commit."""

    hint = (
        "the partition waits, and the member tries again; `vq group describe` shows why. Look at "
        "the database, or the file, that the error names"
    )


class AlreadyHandled(VqError):
    """The offset is behind the message, so the results of an earlier try of it are stored.

    ``commit_in`` raises it, so that the transaction is rolled back. A listener lets it through: the
    consumer then takes the message as handled. ``details["done"]``: of a list, so many of its first
    messages.
    """

    hint = "let it leave the transaction and the listener: the message counts as handled"


class DirectoryRefused(VqError):
    """A data directory must not be used: locked, foreign, damaged identity or newer format."""


class AddressUnavailable(VqError):
    """This process cannot listen on an address: taken, not this machine's, or not permitted."""

    hint = (
        "stop the process that listens there (`ss -ltnp`), choose another port, or name an address "
        "of this machine"
    )


# Refused: certainly not done ------------------------------------------------------------------
class Refused(VqError):
    """The request was certainly not carried out."""


class NotSent(Refused):
    """Nothing was put on the wire within the deadline."""

    retriable = True
    hint = "no broker took the message in time: `vq cluster status` shows which ones are up"


class PartitionUnavailable(NotSent):
    """No broker takes messages for a partition now, and the producer was told not to wait."""

    hint = (
        "send it again later, or set on_unavailable to 'wait' or 'any'; `vq cluster status` shows "
        "which brokers are up"
    )


class BufferFull(Refused):
    """The producer's own buffer stayed full until the deadline."""

    retriable = True
    hint = (
        "the producer makes messages faster than the brokers take them: slow down; or a broker "
        "takes none: `vq cluster status`"
    )


class UnsupportedVersion(Refused):
    status = 3
    hint = "use a client and a broker whose protocol version ranges overlap"


class UnknownCommand(Refused):
    status = 4
    hint = "the broker is older than this client; upgrade the broker"


class FrameTooLarge(Refused):
    status = 5
    hint = "send smaller batches; before HELLO a frame has at most 4 KiB"


class HelloRequired(Refused):
    status = 6
    hint = "the first command of a connection is HELLO"


class AuthenticationFailed(Refused):
    status = 7
    hint = "check the user and the secret"


class NotAuthenticated(AuthenticationFailed):
    """The broker does not know who the client is, or the client does not know the broker."""

    status = 51
    hint = (
        "give a user and its password: `MessageFactoryConfig(user=, password=)`, `VQ_USER` and "
        "`VQ_PASSWORD`, or `--user`; `vq user list` shows who there is"
    )


class InvalidRequest(Refused):
    status = 8
    hint = "the request is malformed or misses a field; see docs/protocol.md"


class BadChecksum(Refused):
    status = 9
    retriable = True
    hint = "bytes were damaged on the way; send them again"


class MessageTooLarge(Refused):
    status = 10
    hint = "send a smaller message, or raise the topic's max_message_bytes if it is below 1 MiB"


class BatchTooLarge(Refused):
    status = 11
    hint = "send fewer or smaller messages in one batch"


class MemberRequired(Refused):
    status = 12
    hint = "prove first that you know the cluster's secret; see docs/protocol.md, PROVE"


class UnknownTopic(Refused):
    status = 20
    refresh_routes = True
    hint = "create it: `vq topic create NAME --partitions N`"


class UnknownPartition(Refused):
    status = 21
    retriable = True
    refresh_routes = True
    hint = "partitions are numbered from 0; `vq topic describe NAME` lists them"


class NotMaster(Refused):
    status = 22
    retriable = True
    refresh_routes = True
    hint = "another broker of the group leads it now, or none does; see `vq cluster status`"


class PartitionReadOnly(Refused):
    status = 23
    retriable = True
    refresh_routes = True
    hint = "the partition is being moved or was closed; read the routes again"


class PartitionFailed(Refused):
    status = 24
    hint = (
        "an I/O error ended writing here, or a file cannot be read; `vq doctor` and the broker's "
        "log say which: repair that, then restart the broker"
    )


class DiskFull(Refused):
    status = 26
    retriable = True
    hint = "free disk space or delete topics; the broker resumes by itself"


class Busy(Refused):
    status = 27
    retriable = True
    hint = "try again later; the message says what the broker waits for"


class OffsetOutOfRange(Refused):
    status = 28
    hint = "the error carries the valid range; choose earliest, latest or an offset inside it"


class OffsetNotBoundary(Refused):
    status = 29
    hint = "an offset must be the start of a record; the error carries the next valid one"


class PartitionQuarantined(Refused):
    status = 30
    hint = (
        "damage inside the log was found and nothing was cut; see `vq doctor` and the broker's log"
    )


class StaleEpoch(Refused):
    status = 31
    retriable = True
    refresh_routes = True
    hint = "the reader knows a newer master than this broker; read the routes again"


class PartitionRangeElsewhere(Refused):
    status = 32
    retriable = True
    refresh_routes = True
    hint = "this range of the partition lives on another broker group; read the routes again"


class FetchSessionLost(Refused):
    status = 33
    retriable = True
    hint = "the broker has no such fetch session at this sequence; begin it again with sequence 0"


class NotEnoughInSync(Refused):
    status = 34
    retriable = True
    hint = "start the other nodes of the group, or lower the topic's min_insync"


class LogTruncated(Refused):
    """The log has lost a part that this reader has read; what is there now is something else.

    ``details`` has ``topic`` and ``partition``; ``offset``, up to which was read; ``parts_at``, up
    to which the log can have the same bytes; ``last_epoch``, of the last batch that was read;
    ``found_epoch``, of the last batch before ``parts_at`` in the log (0: there is none); and
    ``epoch``, of the master.
    """

    status = 35
    hint = "messages that were read are gone; decide where to go on, from `parts_at` for example"


class HandOverFailed(Refused):
    status = 39
    retriable = True
    hint = "the master goes on as before; `vq cluster status` shows which nodes are in sync"


class SequenceGap(Refused):
    status = 40
    hint = "a batch of this producer is missing before this one; send it first"


class SequenceTaken(Refused):
    """Another batch is stored under the stamp of this one: it is no resend of that batch.

    Somebody else has sent it, who knows the producer's id: these are in the log.
    """

    status = 50
    hint = (
        "somebody else writes with this producer's id; this batch is not stored, send its messages "
        "again with another id"
    )


class ProducerFenced(Refused):
    """Another producer has taken over from this one: by its identity, or its transactional id."""

    status = 42
    hint = "a newer epoch of this producer id writes here; close this producer"


class UnknownProducer(Refused):
    status = 43
    hint = "the log no longer remembers this producer; start a new producer epoch"


class GenerationStale(Refused):
    status = 44
    hint = "the partition belongs to another member now; nothing was committed"


class ShuttingDown(Refused):
    status = 45
    retriable = True
    refresh_routes = True
    hint = "the broker is stopping; another try reaches its successor"


class PermissionRefused(Refused):
    status = 46
    hint = "the topic's permissions do not allow this"


class TopicClosed(PermissionRefused):
    status = 49
    hint = "the topic is closed for writes; `vq topic open NAME` opens it again"


class NotAuthorized(PermissionRefused):
    """The rules do not allow a user to do that; the details have user, right, resource, rule.

    If it uses a producer id or a transaction of another user, they have its ``number``.
    """

    status = 52
    hint = (
        "`vq acl test USER RIGHT RESOURCE` says which rule decides; whoever manages the cluster "
        "allows it: `vq acl add SUBJECT RIGHTS RESOURCE`"
    )


class Throttled(Refused):
    """The quota of a user or client is used up; the details have user, limit and delay_ms."""

    status = 53
    retriable = True
    hint = (
        "send less, or try again after the time in the details; `vq quota show USER` says what a "
        "user may use, `vq quota set` changes it"
    )


class TransactionRefused(Refused):
    """A transaction cannot be what was asked for; what it is, the text says."""

    status = 47
    hint = "begin another one; `vq tx show NUMBER` tells what became of this one"


class LeaseLost(Refused):
    """A message is not with this taker any more: another one may have it."""

    hint = (
        "a message that was settled before needs nothing more; otherwise its next taker does the "
        "work: raise the lease, or extend it in time"
    )


class Unreachable(Refused):
    """No connection could be made, so nothing was sent."""

    retriable = True
    refresh_routes = True
    hint = "check that the broker runs and that its address can be reached from here"


# Outcome unknown: perhaps done ----------------------------------------------------------------
class OutcomeUnknown(VqError):
    """It is unknown whether the request was carried out. Never report it as failed."""


class InternalError(OutcomeUnknown):
    status = 1
    hint = "an unexpected error inside the broker; its log has the trace"


class StorageFailed(OutcomeUnknown):
    status = 25
    hint = "an I/O error struck while the batch was being made durable; check the disk"


class SequenceStale(OutcomeUnknown):
    """An unknown outcome that a resend cannot resolve: the broker has forgotten the batch."""

    status = 41
    hint = "the broker remembers only newer batches, so it cannot tell whether this one was stored"


class TimedOut(OutcomeUnknown):
    status = 48
    hint = "it may be done, or not: look before you do it again, or give it more time"


class ConnectionCut(OutcomeUnknown):
    hint = "it may be done, or not: look before you do it again"


class TransactionInDoubt(OutcomeUnknown):
    """It is unknown whether a transaction is committed.

    ``details["transaction"]`` is its number, and ``details["xid"]`` its name in other resources, if
    it has one. Its messages are stored all or none. Commit it again, or roll it back, or ask for
    its outcome: whichever the broker does first holds.
    """

    hint = "commit the same transaction again, or ask for its outcome: either settles it"


class BranchesLeft(VqError):
    """A transaction is committed, and a database that takes part was not told.

    It keeps its part prepared, with locks, until ``vq tx recover`` commits it. Nothing is lost.
    ``details["transaction"]`` is the number.
    """

    hint = "run `vq tx recover --database URL` for that database"


# The peer's fault -----------------------------------------------------------------------------
class ProtocolError(VqError):
    """The peer sent bytes that are no frame of this protocol; the connection is closed."""

    status = 2
    hint = "is this really a vq peer? see docs/protocol.md"


def _classes(root: type[VqError]) -> list[type[VqError]]:
    found = [root]
    for sub in root.__subclasses__():
        found += _classes(sub)
    return found


#: Wire status → class. Closed: a number not in here is reported as ``InternalError``.
STATUSES: Final[Mapping[int, type[VqError]]] = {
    cls.status: cls for cls in _classes(VqError) if cls.status is not None
}

#: With these a broker refuses a batch for its stamp. It has lost what the producer sent before, or
#: somebody else sends with the producer's id. Each batch that follows is refused, too, until the
#: producer begins another stamp. This one is not stored, if it was never sent before.
STAMP_REFUSED: Final = (ProducerFenced, SequenceGap, SequenceTaken, UnknownProducer)


def error_from_status(
    status: int, message: str, *, details: Mapping[str, int | str] | None = None
) -> VqError:
    """Return the error for a wire status; an unknown status becomes ``InternalError``."""
    cls = STATUSES.get(status, InternalError)
    text = message if status in STATUSES else f"status {status} (unknown to this client): {message}"
    return cls(text, details=details)
