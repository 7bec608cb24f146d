"""Retention of a node some hours later, as it sees the time."""

from vq.broker.history.retaining import Retainer
from vq.broker.node import BrokerNode
from vq.clock import Clock

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


def later(node: BrokerNode, hours: float) -> Retainer:
    """The retention of a node, some hours from now."""
    retainer = node.parts.upkeep.retainer
    retainer._clock = LateClock(node.parts.context.clock, hours)
    return retainer
