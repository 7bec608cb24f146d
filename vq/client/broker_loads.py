"""The load of brokers, as the producers of one factory know it.

It has no task: each producer that follows the load asks for a refresh now and then, and a load that
another producer has just asked for is not read again. While ZooKeeper is away the last loads stay,
until they are stale.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from vq import limits
from vq.clock import Clock
from vq.coordination.brokers.loads import PublishedLoad, read_loads
from vq.coordination.tree.coordinator import Coordinator, SessionState
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import CoordinationError
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: A load is not read again within this time; shorter than the shortest pause of one producer.
READ_AGAIN_S: Final = limits.LOAD_READ_INTERVAL_S / 2
assert READ_AGAIN_S < limits.LOAD_READ_INTERVAL_S * (1 - limits.LOAD_JITTER)


@dataclass(slots=True)
class _NodeLoad:
    """What is known of one node.

    Attributes:
        asked_s: When it was asked for.
        found: Its load; None: it has none.
        since_s: When ``found`` was first seen; the load is at least that old.
    """

    asked_s: float
    found: PublishedLoad | None = None
    since_s: float = 0.0


class BrokerLoads:
    """The loads of the nodes that were asked for. Loop-bound.

    Args:
        coordinator: Read only while it is connected.
        clock: For the age of a load. Clocks of brokers do not count.
    """

    def __init__(self, coordinator: Coordinator, clock: Clock) -> None:
        self._coordinator = coordinator
        self._clock = clock
        self._entries: dict[tuple[str, str], _NodeLoad] = {}  # by group and node

    async def refresh(self, nodes: Mapping[str, str]) -> None:
        """Read the loads of these nodes (group → node), unless that was done just now.

        Loads that nobody has asked for since they became stale are forgotten.
        """
        now = self._clock.monotonic()
        if self._coordinator.state is not SessionState.CONNECTED:
            return
        self._entries = {
            key: entry
            for key, entry in self._entries.items()
            if now - entry.asked_s < limits.LOAD_STALE_S
        }
        due = {}
        for group, node in nodes.items():
            entry = self._entries.get((group, node))
            if entry is None:
                entry = self._entries[group, node] = _NodeLoad(asked_s=now - READ_AGAIN_S)
            if now - entry.asked_s >= READ_AGAIN_S:
                entry.asked_s = now
                due[group] = node
        if not due:
            return
        try:
            found = await read_loads(self._coordinator, due)
        except CoordinationError as error:
            logger.debug("load of brokers cannot be read, trying again later", error=error)
            return
        for group, node in due.items():
            self._note(self._entries.get((group, node)), found.get(group))

    def _note(self, entry: _NodeLoad | None, found: PublishedLoad | None) -> None:
        if entry is None:
            return
        if found is None or entry.found is None or found.written != entry.found.written:
            entry.found = found
            entry.since_s = self._clock.monotonic()

    def get(self, group: str, node: str) -> BrokerLoad | None:
        """Return the load of a node; None: it is not known, or stale."""
        entry = self._entries.get((group, node))
        if entry is None or entry.found is None:
            return None
        if self._clock.monotonic() - entry.since_s > limits.LOAD_STALE_S:
            return None
        return entry.found.load
