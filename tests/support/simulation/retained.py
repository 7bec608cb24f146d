"""Members of a shared group while brokers delete what is done: nothing that is open may go.

The topic keeps little, and for the group what it is not done with (the retention policy ``keep``).
Blocks go within seconds, on masters and on nodes that copy, and both are killed.
"""

from collections.abc import Mapping
from typing import Any

from support.simulation.judge import Stored
from support.simulation.run import Report, SendersUnderFaults, execute
from support.simulation.shared import judge_members, queues_of
from support.simulation.workload import produce
from support.simulation.world import Program, Size

from vq.client.cluster import ClusterClient

_BROKERS = ("kill broker", "power cut", "pause", "expire", "client dies", "leave")
_COPIES = ("kill broker", "hand over", "cut nodes", "slow node", "client dies", "replace disk")
_KEPT_BYTES = 1
#: Which cluster, and what strikes; the last one has a group that keeps the order of keys.
ROWS: dict[str, tuple[Size, tuple[str, ...]]] = {
    "alone": (Size(2, partitions=2, members=0, shared=3, kept_bytes=_KEPT_BYTES), _BROKERS),
    "copies": (Size(1, 2, members=0, shared=3, copies=1, kept_bytes=_KEPT_BYTES), _COPIES),
    "keys": (
        Size(1, 2, members=0, shared=3, copies=1, keyed=True, kept_bytes=_KEPT_BYTES),
        _COPIES,
    ),
}


class Retained(SendersUnderFaults):
    """Clients send, members of a shared group handle it, and brokers delete it."""

    prefix = "p"
    _operator: ClusterClient
    _letters: Mapping[str, list[int]] = {}

    def sends(self) -> Program:
        """See ``SendersUnderFaults``."""
        return produce

    async def create_topic(self, operator: ClusterClient) -> None:
        """See ``Simulation``."""
        self._operator = operator
        await super().create_topic(operator)

    async def settle(self) -> None:
        """See ``SendersUnderFaults``."""
        await self.until("the group to be done", self.shared_is_done)
        self._letters = await self._operator_process.spawn(self.read_letters(self._operator))

    def judge(self, log: Mapping[str, list[Stored]]) -> list[str]:
        """See ``SendersUnderFaults``; what is not in the log any more counts by its places."""
        events = self.world.history.events
        acknowledged = list(self.world.history.of("ok"))
        sent: dict[str, list[tuple[int, str]]] = {}
        for _, _, _, value, partition, offset, _ in acknowledged:
            sent.setdefault(partition, []).append((offset, value))
        left = {each.value for found in log.values() for each in found}
        self.effects["deleted"] = sum(event[3] not in left for event in acknowledged)
        queues = queues_of(events, sent) if self.world.size.keyed else []
        self.effects["in order"] = sum(len(each) - 1 for each in queues)
        broken = [" ".join(map(str, event[2:])) for event in self.world.history.of("broken")]
        return broken + judge_members(events, sent, self._letters, queues)


def play(seed: int, which: str, seconds: float = 20.0) -> Report:
    """Run one seed of a row."""
    size, kinds = ROWS[which]

    def make(loop: Any) -> Retained:
        return Retained(loop, seed, seconds=seconds, size=size, kinds=kinds, tell=None)

    return execute(make)
