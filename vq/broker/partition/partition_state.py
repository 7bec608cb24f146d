"""What state a partition is in on its broker, which state comes next, and what each state allows.

In here: the table of transitions, the table of rules, and how a placement and a log are named as
events. Not in here: any I/O. ``channel`` owns a partition's state and asks this module for the next
one; ``docs/reference/partition-states.md`` is drawn from both tables.

A placement and a log are looked at together, the placement first: ``placed`` names what ZooKeeper
says, ``found`` names what is special about the open log. Whether a log is open is no state: the
first request that needs the log opens it.
"""

import enum
from dataclasses import dataclass
from typing import Final

from vq.broker.base.events import StateEvent
from vq.errors import (
    InternalError,
    NotMaster,
    PartitionFailed,
    PartitionQuarantined,
    PartitionReadOnly,
    ShuttingDown,
    TopicClosed,
    UnknownTopic,
    VqError,
)
from vq.model import PartitionPlacement, PartitionState, Span, TopicPartition, TopicSettings
from vq.store.log.log_config import LogState


class ChannelState(enum.StrEnum):
    """The state of a partition on its broker; ``RULES`` says what each means and allows."""

    OPENING = "opening"
    WRITES = "writes"
    READ_ONLY = "read_only"
    NOT_WRITABLE = "not_writable"
    DELETED = "deleted"
    READS = "reads"
    ELSEWHERE = "elsewhere"
    PREPARED = "prepared"
    UNPREPARED = "unprepared"
    SEALED = "sealed"
    UNSEALING = "unsealing"
    QUARANTINED = "quarantined"
    FAILED = "failed"
    UNREADABLE = "unreadable"
    CLOSED = "closed"


class ChannelEvent(StateEvent):
    """What happens to a partition."""

    PLACED_TO_WRITE = "placed_to_write", "the placement gives the appends to this group"
    PLACED_READ_ONLY = "placed_read_only", "so it does, and the partition is `ro` or `closed`"
    PLACED_NOT_WRITABLE = "placed_not_writable", "so it does, and the topic is closed for writes"
    PLACED_DELETED = (
        "placed_deleted",
        "the topic is deleted and can be brought back; this group has a range",
    )
    PLACED_TO_READ = (
        "placed_to_read",
        "the placement gives the appends to another group, a range to this one",
    )
    PLACED_ELSEWHERE = "placed_elsewhere", "the placement gives no range to this group"
    SEAL_FOUND = "seal_found", "the open log is sealed"
    SHORT_FOUND = "short_found", "the open log ends before the range begins that takes the appends"
    DAMAGE_FOUND = "damage_found", "the open log is quarantined"
    SEAL = "seal", "a SEAL was accepted"
    ADOPT = "adopt", "an ADOPT was accepted, and the placement gives no range to this group"
    MOVE_OVER = "move_over", "the placement's version changed, or the time of a seal is up"
    UNSEALED = "unsealed", "the version is raised and the log takes appends again"
    PUT_ASIDE = "put_aside", "the log is put aside; another one takes its place"
    FAIL = "fail", "an I/O error ended writing"
    OPEN_FAILED = "open_failed", "an I/O error kept the log from being opened"
    CLOSE = "close", "the topic is gone, the partition is not held any more, or the node stops"


_PLACED: Final = {
    ChannelEvent.PLACED_TO_WRITE: ChannelState.WRITES,
    ChannelEvent.PLACED_READ_ONLY: ChannelState.READ_ONLY,
    ChannelEvent.PLACED_NOT_WRITABLE: ChannelState.NOT_WRITABLE,
    ChannelEvent.PLACED_DELETED: ChannelState.DELETED,
    ChannelEvent.PLACED_TO_READ: ChannelState.READS,
    ChannelEvent.PLACED_ELSEWHERE: ChannelState.ELSEWHERE,
}
_ENDS: Final = {
    ChannelEvent.FAIL: ChannelState.FAILED,
    ChannelEvent.OPEN_FAILED: ChannelState.UNREADABLE,
    ChannelEvent.CLOSE: ChannelState.CLOSED,
}
_SPECIAL_LOG: Final = {
    ChannelEvent.SEAL_FOUND: ChannelState.UNSEALING,
    ChannelEvent.SHORT_FOUND: ChannelState.UNPREPARED,
    ChannelEvent.DAMAGE_FOUND: ChannelState.QUARANTINED,
}


def _stays(state: ChannelState, *events: ChannelEvent) -> dict[ChannelEvent, ChannelState]:
    return dict.fromkeys(events, state)


def _takes_appends(state: ChannelState) -> dict[ChannelEvent, ChannelState]:
    """Return the row of a state in which the placement gives the appends to this group."""
    own = {ChannelEvent.SEAL: ChannelState.SEALED, ChannelEvent.PUT_ASIDE: ChannelState.OPENING}
    return _PLACED | _SPECIAL_LOG | own | _stays(state, ChannelEvent.MOVE_OVER) | _ENDS


def _ended(state: ChannelState) -> dict[ChannelEvent, ChannelState]:
    """Return the row of a state that only ``CLOSE`` ends."""
    told = (
        *_PLACED,
        *_SPECIAL_LOG,
        ChannelEvent.MOVE_OVER,
        ChannelEvent.FAIL,
        ChannelEvent.OPEN_FAILED,
    )
    return _stays(state, *told) | {ChannelEvent.CLOSE: ChannelState.CLOSED}


#: The next state. An event that is missing in a row must not happen in that state.
TRANSITIONS: Final[dict[ChannelState, dict[ChannelEvent, ChannelState]]] = {
    ChannelState.OPENING: _PLACED | _stays(ChannelState.OPENING, ChannelEvent.MOVE_OVER) | _ENDS,
    ChannelState.WRITES: _takes_appends(ChannelState.WRITES),
    ChannelState.READ_ONLY: _takes_appends(ChannelState.READ_ONLY),
    ChannelState.NOT_WRITABLE: _takes_appends(ChannelState.NOT_WRITABLE),
    # What is special about the log is looked at again when the topic is brought back.
    ChannelState.DELETED: _PLACED
    | _stays(
        ChannelState.DELETED,
        ChannelEvent.SEAL_FOUND,
        ChannelEvent.SHORT_FOUND,
        ChannelEvent.MOVE_OVER,
    )
    | {
        ChannelEvent.DAMAGE_FOUND: ChannelState.QUARANTINED,
        ChannelEvent.PUT_ASIDE: ChannelState.OPENING,
    }
    | _ENDS,
    # The log of a range that moved away is sealed. That says nothing new.
    ChannelState.READS: _PLACED
    | _stays(
        ChannelState.READS, ChannelEvent.SEAL_FOUND, ChannelEvent.PUT_ASIDE, ChannelEvent.MOVE_OVER
    )
    | {ChannelEvent.DAMAGE_FOUND: ChannelState.QUARANTINED}
    | _ENDS,
    ChannelState.ELSEWHERE: _PLACED
    | _stays(ChannelState.ELSEWHERE, ChannelEvent.SEAL_FOUND, ChannelEvent.MOVE_OVER)
    | {
        ChannelEvent.DAMAGE_FOUND: ChannelState.QUARANTINED,
        ChannelEvent.ADOPT: ChannelState.PREPARED,
    }
    | _ENDS,
    # Whatever is special about the log is looked at again when the placement changes.
    ChannelState.PREPARED: _PLACED
    | _stays(
        ChannelState.PREPARED,
        ChannelEvent.PLACED_ELSEWHERE,
        ChannelEvent.SEAL_FOUND,
        ChannelEvent.DAMAGE_FOUND,
    )
    | _stays(ChannelState.PREPARED, ChannelEvent.ADOPT, ChannelEvent.PUT_ASIDE)
    | {ChannelEvent.MOVE_OVER: ChannelState.ELSEWHERE}
    | _ENDS,
    ChannelState.UNPREPARED: _PLACED
    | _stays(ChannelState.UNPREPARED, ChannelEvent.MOVE_OVER)
    | {ChannelEvent.PUT_ASIDE: ChannelState.OPENING}
    | _ENDS,
    # Settings may change while a move is on. Only the end of the move ends the seal.
    ChannelState.SEALED: _PLACED
    | _stays(ChannelState.SEALED, ChannelEvent.PLACED_TO_WRITE, ChannelEvent.PLACED_READ_ONLY)
    | _stays(ChannelState.SEALED, ChannelEvent.PLACED_NOT_WRITABLE, ChannelEvent.PLACED_DELETED)
    | _stays(ChannelState.SEALED, ChannelEvent.SEAL_FOUND, ChannelEvent.SHORT_FOUND)
    | _stays(ChannelState.SEALED, ChannelEvent.SEAL, ChannelEvent.PUT_ASIDE)
    | {
        ChannelEvent.DAMAGE_FOUND: ChannelState.QUARANTINED,
        ChannelEvent.MOVE_OVER: ChannelState.OPENING,
    }
    | _ENDS,
    ChannelState.UNSEALING: _PLACED
    | _stays(ChannelState.UNSEALING, ChannelEvent.MOVE_OVER)
    | {
        ChannelEvent.SEAL: ChannelState.SEALED,
        ChannelEvent.UNSEALED: ChannelState.OPENING,
        ChannelEvent.PUT_ASIDE: ChannelState.OPENING,
    }
    | _ENDS,
    ChannelState.QUARANTINED: _stays(
        ChannelState.QUARANTINED, *_PLACED, ChannelEvent.DAMAGE_FOUND, ChannelEvent.MOVE_OVER
    )
    | {ChannelEvent.ADOPT: ChannelState.PREPARED, ChannelEvent.PUT_ASIDE: ChannelState.OPENING}
    | _ENDS,
    ChannelState.FAILED: _ended(ChannelState.FAILED),
    ChannelState.UNREADABLE: _ended(ChannelState.UNREADABLE),
    ChannelState.CLOSED: _ended(ChannelState.CLOSED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a state means and allows.

    Attributes:
        meaning: One sentence for the page of reference.
        told: The word of STATUS.
        refusal: What a PUT is refused with; None: PUTs are taken. A closed partition refuses with
            the error that closed it.
        why: The text of the refusal. It may name ``partition``, ``topic``, ``group``, ``writer``
            (the group that takes the appends), ``placed`` (the placement's own state), ``log``
            (the reason of the log) and ``cause`` (the error that ended the partition).
        read, seal, adopt, verify: Whether such requests are carried out; reading goes as far as the
            log goes.
    """

    meaning: str
    told: str = "ro"
    refusal: type[VqError] | None = PartitionReadOnly
    why: str = ""
    read: bool = True
    seal: bool = False
    adopt: bool = False
    verify: bool = True

    @property
    def append(self) -> bool:
        """Whether a PUT is taken."""
        return self.refusal is None


_BEING_MOVED: Final = "partition {partition} is being moved to another group"
_BEING_PREPARED: Final = "the log of partition {partition} is being prepared for a move"
_LIVES_ON: Final = "partition {partition} lives on {writer}, not {group}"
_WRITING_ENDED: Final = "partition {partition}: writing ended with {cause}"

RULES: Final[dict[ChannelState, Rules]] = {
    ChannelState.OPENING: Rules(
        meaning="The log that will serve is not known yet.", why=_BEING_PREPARED, adopt=True
    ),
    ChannelState.WRITES: Rules(
        meaning="This group takes the appends.", told="rw", refusal=None, seal=True
    ),
    ChannelState.READ_ONLY: Rules(
        meaning="This group would take the appends; the partition takes none.",
        why="partition {partition} is {placed}",
        seal=True,
    ),
    ChannelState.NOT_WRITABLE: Rules(
        meaning="This group would take the appends; the topic is closed for writes.",
        told="closed",
        refusal=TopicClosed,
        why="topic {topic} is closed for writes",
        seal=True,
    ),
    ChannelState.DELETED: Rules(
        meaning="The topic is deleted and can be brought back; its data stay as they are.",
        told="deleted",
        refusal=UnknownTopic,
        why="topic {topic} was deleted",
    ),
    ChannelState.READS: Rules(
        meaning="This group holds a range; another group takes the appends.",
        why="new messages of {partition} go to {writer}",
        adopt=True,
    ),
    ChannelState.ELSEWHERE: Rules(
        meaning="This group holds no range; the broker forgets the partition.",
        refusal=NotMaster,
        why=_LIVES_ON,
        adopt=True,
    ),
    ChannelState.PREPARED: Rules(
        meaning="This group holds no range yet; its log is prepared for a move.",
        refusal=NotMaster,
        why=_LIVES_ON,
        adopt=True,
    ),
    ChannelState.UNPREPARED: Rules(
        meaning="This group takes the appends, and its log ends before they begin.",
        why=_BEING_PREPARED,
    ),
    ChannelState.SEALED: Rules(
        meaning="A move is on; it counts on the end of the log.",
        told="sealed",
        why=_BEING_MOVED,
        seal=True,
    ),
    ChannelState.UNSEALING: Rules(
        meaning="The move came to nothing; the log is sealed until the version is raised.",
        why=_BEING_MOVED,
        seal=True,
    ),
    ChannelState.QUARANTINED: Rules(
        meaning="Damage was found inside the log when it was opened.",
        told="quarantined",
        refusal=PartitionQuarantined,
        why="partition {partition}: {log}",
        adopt=True,
    ),
    ChannelState.FAILED: Rules(
        meaning="An I/O error ended writing.",
        told="failed",
        refusal=PartitionFailed,
        why=_WRITING_ENDED,
    ),
    ChannelState.UNREADABLE: Rules(
        meaning="An I/O error kept the log from being opened.",
        told="failed",
        refusal=PartitionFailed,
        why=_WRITING_ENDED,
        read=False,
    ),
    ChannelState.CLOSED: Rules(
        meaning="The broker does not serve the partition any more.",
        refusal=ShuttingDown,
        why="{cause}",
        read=False,
        verify=False,
    ),
}


def next_state(state: ChannelState, event: ChannelEvent) -> ChannelState:
    """Return the state that follows ``state`` when ``event`` happens.

    Raises:
        InternalError: The event must not happen in that state.
    """
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise InternalError(f"a partition that is {state} cannot take the event {event}")
    return following


def placed(
    placement: PartitionPlacement,
    settings: TopicSettings,
    group: str,
    *,
    holds_range: bool,
) -> ChannelEvent:
    """Name what ZooKeeper says of a partition, as ``group`` sees it."""
    if placement.state is PartitionState.DELETED and holds_range:
        return ChannelEvent.PLACED_DELETED
    if placement.writer_group != group:
        return ChannelEvent.PLACED_TO_READ if holds_range else ChannelEvent.PLACED_ELSEWHERE
    if placement.state is not PartitionState.RW:
        return ChannelEvent.PLACED_READ_ONLY
    return ChannelEvent.PLACED_TO_WRITE if settings.writable else ChannelEvent.PLACED_NOT_WRITABLE


def found(log: LogState, *, short: bool) -> ChannelEvent | None:
    """Name what is special about an open log, None if nothing is.

    Args:
        log: Its state.
        short: Whether it ends before the range begins in which this group takes the appends.
    """
    if log is LogState.QUARANTINED:
        return ChannelEvent.DAMAGE_FOUND
    if log is LogState.SEALED:
        return ChannelEvent.SEAL_FOUND
    return ChannelEvent.SHORT_FOUND if short and log is LogState.OK else None


def local_span(placement: PartitionPlacement, group: str) -> Span | None:
    """Return the last span that ``group`` holds, or None when it holds none."""
    return next((span for span in reversed(placement.spans) if span.group == group), None)


def check_placement_version(partition: TopicPartition, known: int, wanted: int) -> None:
    """Return if a move was decided under the placement that is known here.

    Raises:
        PartitionReadOnly: It was not; nothing was done.
    """
    if known != wanted:
        raise PartitionReadOnly(
            f"partition {partition} has placement version {known}, not {wanted}; read it again and "
            "repeat the move"
        )
