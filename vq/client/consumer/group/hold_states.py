"""The states of a member's hold on one partition, and the events that lead from one to the next.

Pure. ``holds`` has the data of a hold, ``share`` and ``membership`` read and write the tree, and
``core`` begins and drains deliveries. They give their events to this table, which says what is
allowed. ARCHITECTURE.md shows the table as a diagram; a test compares them.
"""

import enum
from collections.abc import Mapping
from typing import Final

from vq.model import TopicPartition


class State(enum.Enum):
    """Where a partition stands with this member."""

    FREE = "free"
    """Nothing in the tree is this member's, and it waits for nobody."""
    WAITING = "waiting"
    """Another member owns it; a watch is on the owner node."""
    CLAIMING = "claiming"
    """A claim is under way; the owner node may be this member's already."""
    OVERTAKEN = "overtaken"
    """As CLAIMING, but the owner may have changed since the claim has read it."""
    STARTING = "starting"
    """Owned; the place to begin at is looked up."""
    CHECKING = "checking"
    """The broker is asked whether the place is still the same; what was fetched is delivered."""
    DELIVERING = "delivering"
    """Messages are fetched and delivered."""
    STOPPED = "stopped"
    """Owned; the group goes on here only after a reset."""
    PAUSING = "pausing"
    """Ownership is in doubt, or the application seeks or has paused it; the listener is at its last
    message."""
    PAUSED = "paused"
    """Ownership is in doubt, or the application has paused it; no listener runs."""
    DRAINING = "draining"
    """It is given up; the listener is at its last message."""
    OWES_COMMIT = "owes commit"
    """It is given up and no listener runs; the last commit is not in the tree yet."""
    LOST = "lost"
    """Another member may own it; the listener is at its last message, nothing is committed."""
    OWES_RELEASE = "owes release"
    """Not consumed any more; the owner node may still be this member's."""


class Event(enum.Enum):
    """What happens to a hold."""

    CLAIM = "claim"
    OWNER_CHANGED = "owner changed"
    STILL_OWNED = "still owned"
    CLAIM_FAILED = "claim failed"
    CLAIMED = "claimed"
    CHECK = "check"
    DELIVER = "deliver"
    STOP = "stop"
    PAUSE = "pause"
    DRAINED = "drained"
    RESUME = "resume"
    GIVE_UP = "give up"
    COMMITTED = "committed"
    LOSE = "lose"
    LEAVE = "leave"
    RELEASED = "released"


_ENDS: Final = {
    Event.GIVE_UP: State.DRAINING,
    Event.LOSE: State.LOST,
    Event.LEAVE: State.OWES_RELEASE,  # the member leaves without a clean hand-over
}

#: A missing entry is an event that must not happen in that state; it is a bug of ours.
TABLE: Final[Mapping[State, Mapping[Event, State]]] = {
    State.FREE: {Event.CLAIM: State.CLAIMING},
    State.WAITING: {Event.OWNER_CHANGED: State.FREE, Event.LEAVE: State.FREE},
    State.CLAIMING: {
        Event.CLAIMED: State.STARTING,
        Event.STILL_OWNED: State.WAITING,
        Event.CLAIM_FAILED: State.OWES_RELEASE,
        Event.OWNER_CHANGED: State.OVERTAKEN,
    },
    State.OVERTAKEN: {
        Event.CLAIMED: State.STARTING,
        Event.STILL_OWNED: State.FREE,  # to be claimed again at once: the watch is used up
        Event.CLAIM_FAILED: State.OWES_RELEASE,
        Event.OWNER_CHANGED: State.OVERTAKEN,
    },
    State.STARTING: {
        Event.CHECK: State.CHECKING,
        Event.DELIVER: State.DELIVERING,
        Event.STOP: State.STOPPED,
        **_ENDS,
    },
    State.CHECKING: {
        Event.DELIVER: State.DELIVERING,
        Event.STOP: State.STOPPED,
        Event.PAUSE: State.PAUSING,
        **_ENDS,
    },
    State.DELIVERING: {
        Event.CHECK: State.CHECKING,
        Event.STOP: State.STOPPED,
        Event.PAUSE: State.PAUSING,
        **_ENDS,
    },
    State.STOPPED: {Event.PAUSE: State.PAUSING, **_ENDS},
    State.PAUSING: {Event.PAUSE: State.PAUSING, Event.DRAINED: State.PAUSED, **_ENDS},
    State.PAUSED: {Event.RESUME: State.STARTING, **_ENDS, Event.GIVE_UP: State.OWES_COMMIT},
    State.DRAINING: {Event.DRAINED: State.OWES_COMMIT, **_ENDS},
    State.OWES_COMMIT: {
        Event.COMMITTED: State.OWES_RELEASE,
        **_ENDS,
        Event.GIVE_UP: State.OWES_COMMIT,
    },
    State.LOST: {Event.DRAINED: State.OWES_RELEASE, **_ENDS, Event.GIVE_UP: State.LOST},
    State.OWES_RELEASE: {Event.RELEASED: State.FREE},
}

#: Claimed, and not known to be another's: its commits and reports count.
OWNED: Final = frozenset(
    state for state, events in TABLE.items() if Event.GIVE_UP in events and state is not State.LOST
)
#: On its way to another member, and never delivered again before that.
LEAVING: Final = frozenset({State.DRAINING, State.OWES_COMMIT})
#: Given up or lost: a hand-over leads it to its release, and it is not claimed before.
ENDING: Final = LEAVING | {State.LOST, State.OWES_RELEASE}


class ImpossibleEvent(RuntimeError):
    """An event has no entry in the table for the state of a hold."""

    def __init__(self, state: State, event: Event, partition: TopicPartition) -> None:
        super().__init__(
            f"a hold that is {state.value!r} does not take {event.value!r}: partition={partition}"
        )
        self.state = state
        self.event = event
        self.partition = partition


def after(state: State, event: Event, partition: TopicPartition) -> State:
    """Return the state that ``event`` leads to.

    Raises:
        ImpossibleEvent: The table has no entry for it.
    """
    found = TABLE[state].get(event)
    if found is None:
        raise ImpossibleEvent(state, event, partition)
    return found
