"""A member's cache of its group: the contract, the other members, the last claim of each partition.

When a member joins, each of the others reads one node, and one more for each partition that moved
(``tree.mirror``). After a lost connection ``doubt`` has everything read again, and ``audit`` some
of it each time, so that over time all is compared with the tree.
"""

from collections.abc import Callable, Iterable
from functools import partial

from vq.coordination.groups.claims import Assigned, read_assigned
from vq.coordination.groups.groups import MemberView, read_group, read_member
from vq.coordination.tree.coordinator import Coordinator, Watch, join
from vq.coordination.tree.mirror import Mirror
from vq.coordination.tree.paths import CONSUMERS
from vq.coordination.tree.values.consumers import Assignment, ConsumerGroup, Member
from vq.model import TopicPartition


class GroupMirror:
    """The contract, members and assignments of one group, kept fresh by watches.

    Loop-bound, one reader.

    Args:
        coordinator: A started coordinator.
        group: The name of the group.
        on_change: Called when a member joins, leaves or changes, or the contract changes; must not
            block.
    """

    def __init__(
        self, coordinator: Coordinator, group: str, *, on_change: Callable[[], None]
    ) -> None:
        self._coordinator = coordinator
        self._group = group
        self._members = Mirror(
            coordinator,
            Member.parent(group),
            partial(read_member, coordinator, group),
            on_hint=on_change,
        )
        self._contract = Mirror(
            coordinator,
            CONSUMERS,
            partial(read_group, coordinator),
            listed=False,
            on_hint=on_change,
        )
        self._contract.add(group)
        self._assigned: dict[str, Mirror[Assigned]] = {}  # by topic

    async def contract(self, *, again: bool = False) -> ConsumerGroup | None:
        """Return the contract, read ``again`` if that is said; None: there is none."""
        if again:
            return await self._contract.read(self._group)
        await self._contract.refresh()
        return self._contract.values.get(self._group)

    async def members(self) -> dict[str, MemberView]:
        """Return the members, sorted by name."""
        await self._members.refresh()
        return dict(sorted(self._members.values.items()))

    async def assigned(self, topics: Iterable[str]) -> dict[TopicPartition, Assigned]:
        """Return the last claim of every partition of ``topics`` that was ever claimed."""
        wanted = sorted(set(topics))
        for gone in self._assigned.keys() - set(wanted):
            del self._assigned[gone]
        result: dict[TopicPartition, Assigned] = {}
        for topic in wanted:
            if topic not in self._assigned:
                self._assigned[topic] = self._assignments(topic)
            await self._assigned[topic].refresh()
            result |= {
                TopicPartition(topic, int(name)): value
                for name, value in self._assigned[topic].values.items()
                if name.isdecimal()
            }
        return result

    def doubt(self) -> None:
        """Have everything read again."""
        self._contract.doubt()
        self._members.doubt()
        for each in self._assigned.values():
            each.doubt()

    def audit(self) -> None:
        """Have the names, and some of the values of each kind, read again."""
        self._contract.audit()
        self._members.audit()
        for each in self._assigned.values():
            each.audit()

    def _assignments(self, topic: str) -> Mirror[Assigned]:
        parent = Assignment.parent(self._group, topic)

        async def read(name: str, watch: Watch) -> Assigned | None:
            return await read_assigned(self._coordinator, join(parent, name), watch)

        return Mirror(self._coordinator, parent, read)
