"""Retention of a node some hours later, as it sees the time."""

from collections.abc import Callable
from typing import Any

from vq.broker.history.retaining import Retainer
from vq.broker.node import BrokerNode
from vq.clock import Clock
from vq.store.log.log import Log

HOUR_S = 3_600.0


class LateClock:
    """The clock of a node some hours later, as retention sees it."""

    def __init__(self, clock: Clock, hours: float) -> None:
        self._clock = clock
        self.hours = hours

    def wall_ms(self) -> int:
        return self._clock.wall_ms() + int(self.hours * HOUR_S * 1000)

    def monotonic(self) -> float:
        return self._clock.monotonic()


def give_clock(part: Any, clock: Clock) -> None:
    """Have one part of a node see another time than the others."""
    part._clock = clock


def give_wall_clock(log: Log, wall_ms: Callable[[], int]) -> Callable[[], int]:
    """Have a log stamp what is appended by another clock; return the one that it had."""
    before, log._wall_ms = log._wall_ms, wall_ms
    return before


def later(node: BrokerNode, hours: float) -> Retainer:
    """The retention of a node, some hours from now."""
    retainer = node.parts.upkeep.retainer
    give_clock(retainer, LateClock(node.parts.context.clock, hours))
    return retainer
