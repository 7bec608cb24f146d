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
from vq.model import PartitionPlacement, PartitionState, TopicSettings
from vq.store.log.log_config import LogState


class State(enum.StrEnum):
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


class Event(enum.StrEnum):
    """What happens to a partition; ``EVENTS`` says what each means."""

    PLACED_TO_WRITE = "placed_to_write"
    PLACED_READ_ONLY = "placed_read_only"
    PLACED_NOT_WRITABLE = "placed_not_writable"
    PLACED_DELETED = "placed_deleted"
    PLACED_TO_READ = "placed_to_read"
    PLACED_ELSEWHERE = "placed_elsewhere"
    SEAL_FOUND = "seal_found"
    SHORT_FOUND = "short_found"
    DAMAGE_FOUND = "damage_found"
    SEAL = "seal"
    ADOPT = "adopt"
    MOVE_OVER = "move_over"
    UNSEALED = "unsealed"
    PUT_ASIDE = "put_aside"
    FAIL = "fail"
    OPEN_FAILED = "open_failed"
    CLOSE = "close"


#: What each event means, for the page of reference.
EVENTS: Final[dict[Event, str]] = {
    Event.PLACED_TO_WRITE: "the placement gives the appends to this group",
    Event.PLACED_READ_ONLY: "so it does, and the partition is `ro` or `closed`",
    Event.PLACED_NOT_WRITABLE: "so it does, and the topic is closed for writes",
    Event.PLACED_DELETED: "the topic is deleted and can be brought back; this group has a range",
    Event.PLACED_TO_READ: "the placement gives the appends to another group, a range to this one",
    Event.PLACED_ELSEWHERE: "the placement gives no range to this group",
    Event.SEAL_FOUND: "the open log is sealed",
    Event.SHORT_FOUND: "the open log ends before the range begins that takes the appends",
    Event.DAMAGE_FOUND: "the open log is quarantined",
    Event.SEAL: "a SEAL was accepted",
    Event.ADOPT: "an ADOPT was accepted, and the placement gives no range to this group",
    Event.MOVE_OVER: "the placement's version changed, or the time of a seal is up",
    Event.UNSEALED: "the version is raised and the log takes appends again",
    Event.PUT_ASIDE: "the log is put aside; another one takes its place",
    Event.FAIL: "an I/O error ended writing",
    Event.OPEN_FAILED: "an I/O error kept the log from being opened",
    Event.CLOSE: "the topic is gone, the partition is not held any more, or the node stops",
}

_PLACED: Final = {
    Event.PLACED_TO_WRITE: State.WRITES,
    Event.PLACED_READ_ONLY: State.READ_ONLY,
    Event.PLACED_NOT_WRITABLE: State.NOT_WRITABLE,
    Event.PLACED_DELETED: State.DELETED,
    Event.PLACED_TO_READ: State.READS,
    Event.PLACED_ELSEWHERE: State.ELSEWHERE,
}
_ENDS: Final = {
    Event.FAIL: State.FAILED,
    Event.OPEN_FAILED: State.UNREADABLE,
    Event.CLOSE: State.CLOSED,
}
_SPECIAL_LOG: Final = {
    Event.SEAL_FOUND: State.UNSEALING,
    Event.SHORT_FOUND: State.UNPREPARED,
    Event.DAMAGE_FOUND: State.QUARANTINED,
}


def _stays(state: State, *events: Event) -> dict[Event, State]:
    return dict.fromkeys(events, state)


def _takes_appends(state: State) -> dict[Event, State]:
    """Return the row of a state in which the placement gives the appends to this group."""
    own = {Event.SEAL: State.SEALED, Event.PUT_ASIDE: State.OPENING}
    return _PLACED | _SPECIAL_LOG | own | _stays(state, Event.MOVE_OVER) | _ENDS


def _ended(state: State) -> dict[Event, State]:
    """Return the row of a state that only ``CLOSE`` ends."""
    told = (*_PLACED, *_SPECIAL_LOG, Event.MOVE_OVER, Event.FAIL, Event.OPEN_FAILED)
    return _stays(state, *told) | {Event.CLOSE: State.CLOSED}


#: The next state. An event that is missing in a row must not happen in that state.
TRANSITIONS: Final[dict[State, dict[Event, State]]] = {
    State.OPENING: _PLACED | _stays(State.OPENING, Event.MOVE_OVER) | _ENDS,
    State.WRITES: _takes_appends(State.WRITES),
    State.READ_ONLY: _takes_appends(State.READ_ONLY),
    State.NOT_WRITABLE: _takes_appends(State.NOT_WRITABLE),
    # What is special about the log is looked at again when the topic is brought back.
    State.DELETED: _PLACED
    | _stays(State.DELETED, Event.SEAL_FOUND, Event.SHORT_FOUND, Event.MOVE_OVER)
    | {Event.DAMAGE_FOUND: State.QUARANTINED, Event.PUT_ASIDE: State.OPENING}
    | _ENDS,
    # The log of a range that moved away is sealed. That says nothing new.
    State.READS: _PLACED
    | _stays(State.READS, Event.SEAL_FOUND, Event.PUT_ASIDE, Event.MOVE_OVER)
    | {Event.DAMAGE_FOUND: State.QUARANTINED}
    | _ENDS,
    State.ELSEWHERE: _PLACED
    | _stays(State.ELSEWHERE, Event.SEAL_FOUND, Event.MOVE_OVER)
    | {Event.DAMAGE_FOUND: State.QUARANTINED, Event.ADOPT: State.PREPARED}
    | _ENDS,
    # Whatever is special about the log is looked at again when the placement changes.
    State.PREPARED: _PLACED
    | _stays(State.PREPARED, Event.PLACED_ELSEWHERE, Event.SEAL_FOUND, Event.DAMAGE_FOUND)
    | _stays(State.PREPARED, Event.ADOPT, Event.PUT_ASIDE)
    | {Event.MOVE_OVER: State.ELSEWHERE}
    | _ENDS,
    State.UNPREPARED: _PLACED
    | _stays(State.UNPREPARED, Event.MOVE_OVER)
    | {Event.PUT_ASIDE: State.OPENING}
    | _ENDS,
    # Settings may change while a move is on. Only the end of the move ends the seal.
    State.SEALED: _PLACED
    | _stays(State.SEALED, Event.PLACED_TO_WRITE, Event.PLACED_READ_ONLY)
    | _stays(State.SEALED, Event.PLACED_NOT_WRITABLE, Event.PLACED_DELETED)
    | _stays(State.SEALED, Event.SEAL_FOUND, Event.SHORT_FOUND)
    | _stays(State.SEALED, Event.SEAL, Event.PUT_ASIDE)
    | {Event.DAMAGE_FOUND: State.QUARANTINED, Event.MOVE_OVER: State.OPENING}
    | _ENDS,
    State.UNSEALING: _PLACED
    | _stays(State.UNSEALING, Event.MOVE_OVER)
    | {Event.SEAL: State.SEALED, Event.UNSEALED: State.OPENING, Event.PUT_ASIDE: State.OPENING}
    | _ENDS,
    State.QUARANTINED: _stays(State.QUARANTINED, *_PLACED, Event.DAMAGE_FOUND, Event.MOVE_OVER)
    | {Event.ADOPT: State.PREPARED, Event.PUT_ASIDE: State.OPENING}
    | _ENDS,
    State.FAILED: _ended(State.FAILED),
    State.UNREADABLE: _ended(State.UNREADABLE),
    State.CLOSED: _ended(State.CLOSED),
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

RULES: Final[dict[State, Rules]] = {
    State.OPENING: Rules(
        meaning="The log that will serve is not known yet.", why=_BEING_PREPARED, adopt=True
    ),
    State.WRITES: Rules(
        meaning="This group takes the appends.", told="rw", refusal=None, seal=True
    ),
    State.READ_ONLY: Rules(
        meaning="This group would take the appends; the partition takes none.",
        why="partition {partition} is {placed}",
        seal=True,
    ),
    State.NOT_WRITABLE: Rules(
        meaning="This group would take the appends; the topic is closed for writes.",
        told="closed",
        refusal=TopicClosed,
        why="topic {topic} is closed for writes",
        seal=True,
    ),
    State.DELETED: Rules(
        meaning="The topic is deleted and can be brought back; its data stay as they are.",
        told="deleted",
        refusal=UnknownTopic,
        why="topic {topic} was deleted",
    ),
    State.READS: Rules(
        meaning="This group holds a range; another group takes the appends.",
        why="new messages of {partition} go to {writer}",
        adopt=True,
    ),
    State.ELSEWHERE: Rules(
        meaning="This group holds no range; the broker forgets the partition.",
        refusal=NotMaster,
        why=_LIVES_ON,
        adopt=True,
    ),
    State.PREPARED: Rules(
        meaning="This group holds no range yet; its log is prepared for a move.",
        refusal=NotMaster,
        why=_LIVES_ON,
        adopt=True,
    ),
    State.UNPREPARED: Rules(
        meaning="This group takes the appends, and its log ends before they begin.",
        why=_BEING_PREPARED,
    ),
    State.SEALED: Rules(
        meaning="A move is on; it counts on the end of the log.",
        told="sealed",
        why=_BEING_MOVED,
        seal=True,
    ),
    State.UNSEALING: Rules(
        meaning="The move came to nothing; the log is sealed until the version is raised.",
        why=_BEING_MOVED,
        seal=True,
    ),
    State.QUARANTINED: Rules(
        meaning="Damage was found inside the log when it was opened.",
        told="quarantined",
        refusal=PartitionQuarantined,
        why="partition {partition}: {log}",
        adopt=True,
    ),
    State.FAILED: Rules(
        meaning="An I/O error ended writing.",
        told="failed",
        refusal=PartitionFailed,
        why=_WRITING_ENDED,
    ),
    State.UNREADABLE: Rules(
        meaning="An I/O error kept the log from being opened.",
        told="failed",
        refusal=PartitionFailed,
        why=_WRITING_ENDED,
        read=False,
    ),
    State.CLOSED: Rules(
        meaning="The broker does not serve the partition any more.",
        refusal=ShuttingDown,
        why="{cause}",
        read=False,
        verify=False,
    ),
}


def next_state(state: State, event: Event) -> State:
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
) -> Event:
    """Name what ZooKeeper says of a partition, as ``group`` sees it."""
    if placement.state is PartitionState.DELETED and holds_range:
        return Event.PLACED_DELETED
    if placement.writer_group != group:
        return Event.PLACED_TO_READ if holds_range else Event.PLACED_ELSEWHERE
    if placement.state is not PartitionState.RW:
        return Event.PLACED_READ_ONLY
    return Event.PLACED_TO_WRITE if settings.writable else Event.PLACED_NOT_WRITABLE


def found(log: LogState, *, short: bool) -> Event | None:
    """Name what is special about an open log, None if nothing is.

    Args:
        log: Its state.
        short: Whether it ends before the range begins in which this group takes the appends.
    """
    if log is LogState.QUARANTINED:
        return Event.DAMAGE_FOUND
    if log is LogState.SEALED:
        return Event.SEAL_FOUND
    return Event.SHORT_FOUND if short and log is LogState.OK else None
