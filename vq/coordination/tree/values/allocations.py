"""Values below ``allocations``: a plan that is carried out, how far that is, and its end.

An order never changes. Who carries it out writes the progress while holding a lease; anybody may
ask for its end.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import ALLOCATIONS
from vq.coordination.tree.values.value import Value, read
from vq.errors import InvalidState
from vq.limits import is_valid_name

#: Orders that are remembered, the newest ones.
ORDERS_KEPT: Final = 10
#: Failed moves, and moves in flight, that a progress names.
NAMED_MAX: Final = 64
_ERROR_CHARACTERS_MAX: Final = 300


class AllocationState(enum.StrEnum):
    """How far an order is."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # a move could not be made; those before it are
    CANCELLED = "cancelled"


class AllocationEvent(enum.Enum):
    """What changes the state of an order."""

    FINISH = "all moves are made"
    FAIL = "a move cannot be made"
    CANCEL = "somebody wants it to end"
    RESUME = "somebody goes on with it"


#: A missing entry must not happen; ``next_state`` raises.
TRANSITIONS: Final[Mapping[AllocationState, Mapping[AllocationEvent, AllocationState]]] = {
    AllocationState.RUNNING: {
        AllocationEvent.FINISH: AllocationState.DONE,
        AllocationEvent.FAIL: AllocationState.FAILED,
        AllocationEvent.CANCEL: AllocationState.CANCELLED,
        AllocationEvent.RESUME: AllocationState.RUNNING,  # whoever ran it is gone
    },
    AllocationState.FAILED: {
        AllocationEvent.RESUME: AllocationState.RUNNING,
        AllocationEvent.CANCEL: AllocationState.CANCELLED,
    },
    AllocationState.CANCELLED: {AllocationEvent.RESUME: AllocationState.RUNNING},
    AllocationState.DONE: {},
}


def next_state(state: AllocationState, event: AllocationEvent) -> AllocationState:
    """Return the state of an order after an event.

    Raises:
        InvalidState: It cannot happen in this state.
    """
    found = TRANSITIONS[state].get(event)
    if found is None:
        raise InvalidState(f"an allocation that is {state} cannot have the event {event.name}")
    return found


class OrderedMove(NamedTuple):
    """A partition that is to go from one group to another; ``start``: where the first one began."""

    topic: str
    partition: int
    source: str
    target: str
    start: int


class OrderedPool(NamedTuple):
    """A topic that gets another pool first; None: the common one."""

    topic: str
    pool: str | None


_PLAIN: Final = {
    "started_ms": int,
    "by": str,
    "source": str,
    "at_a_time": int,
    "pause_s": float,
    "topics": tuple[str, ...],
    "groups": tuple[str, ...],
    "ids": tuple[str, ...],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationOrder(Value):
    """``allocations/<plan>``: what is to be done, and how fast.

    Attributes:
        started_ms: When it was ordered, by the clock of who ordered it.
        by: Who that was.
        source: Where the plan is from.
        at_a_time: So many partitions move at a time.
        pause_s: So long is waited after each, in each of these.
        ids: The ids of the topics.
        pools: Topics that get another pool first.
        moves: In their order.
    """

    _what = "allocation"
    started_ms: int
    by: str
    source: str
    at_a_time: int
    pause_s: float
    ids: Mapping[str, str]
    pools: tuple[OrderedPool, ...]
    moves: tuple[OrderedMove, ...]

    @staticmethod
    def path(plan: str) -> str:
        """Return the path of the order of a plan."""
        return join(ALLOCATIONS, plan)

    def _to_json(self) -> dict[str, Any]:
        topics = sorted({*self.ids, *(each.topic for each in self.moves)})
        groups = sorted({name for each in self.moves for name in (each.source, each.target)})
        topic_at = {name: at for at, name in enumerate(topics)}
        group_at = {name: at for at, name in enumerate(groups)}
        return {
            "started_ms": self.started_ms,
            "by": self.by,
            "source": self.source,
            "at_a_time": self.at_a_time,
            "pause_s": self.pause_s,
            "topics": topics,
            "ids": [self.ids.get(name, "") for name in topics],
            "pools": [list(each) for each in self.pools],
            "groups": groups,
            "moves": [
                [
                    topic_at[each.topic],
                    each.partition,
                    group_at[each.source],
                    group_at[each.target],
                    each.start,
                ]
                for each in self.moves
            ],
        }

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        found = {name: read(name, document[name], kind) for name, kind in _PLAIN.items()}
        topics, groups = found.pop("topics"), found.pop("groups")
        for name in (*topics, *groups):
            if not is_valid_name(name):
                raise ValueError(f"{name!r} is not a name")
        moves = []
        for numbers in document["moves"]:
            if len(numbers) != 5 or any(type(each) is not int or each < 0 for each in numbers):
                raise TypeError(f"{numbers!r} is not a move")
            topic, partition, source, target, start = numbers
            moves.append(
                OrderedMove(topics[topic], partition, groups[source], groups[target], start)
            )
        return cls(
            **{**found, "ids": dict(zip(topics, found["ids"], strict=True))},
            pools=read("pools", document["pools"], tuple[OrderedPool, ...]),
            moves=tuple(moves),
        )


class FailedMove(NamedTuple):
    """A move that could not be made, and why."""

    topic: str
    partition: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationProgress(Value):
    """``allocations/<plan>/progress``: how far an order is, as who carries it out tells.

    Attributes:
        state: See ``AllocationState``.
        by: Who carries it out, or did last.
        updated_ms: When this was written, by the clock of that process.
        done: Moves that are made, also by an earlier process.
        moving: Partitions that are on their way, as ``orders-3``.
        failed: Moves that could not be made.
    """

    _what = "progress of an allocation"
    state: AllocationState = AllocationState.RUNNING
    by: str = ""
    updated_ms: int = 0
    done: int = 0
    moving: tuple[str, ...] = ()
    failed: tuple[FailedMove, ...] = ()

    @staticmethod
    def path(plan: str) -> str:
        """Return the path of the progress of a plan."""
        return join(AllocationOrder.path(plan), "progress")

    def bounded(self) -> Self:
        """Return it with so few names and so short errors that it stays small."""
        failed = tuple(
            each._replace(error=each.error[:_ERROR_CHARACTERS_MAX])
            for each in self.failed[:NAMED_MAX]
        )
        return replace(self, moving=self.moving[:NAMED_MAX], failed=failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationCancel(Value):
    """``allocations/<plan>/cancel``: no further move is to begin."""

    _what = "end of an allocation"
    by: str = ""
    time_ms: int = 0

    @staticmethod
    def path(plan: str) -> str:
        """Return the path of the wish."""
        return join(AllocationOrder.path(plan), "cancel")
