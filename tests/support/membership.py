"""Members of a group over ZooKeeper's twin, and consumers that only note what they are told."""

import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

from support.broker import MemoryCluster
from support.client import cluster_client

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.group.hold_states import State
from vq.client.consumer.group.holds import Hold, Holds
from vq.client.consumer.group.membership import Membership
from vq.coordination.groups import claims, groups
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.values.consumers import Owner
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import VqError
from vq.message_filter import ALL as EVERYTHING
from vq.message_filter import Filter
from vq.model import TopicPartition
from vq.testing.waiting import until

P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))
ALL = {P0, P1, P2, P3}
SOON = Backoff(first_s=0.01, most_s=0.02, jitter=0.5)


class Consumer:
    """What a member tells its consumer, and a consumer that may be slow or fail."""

    def __init__(
        self, cluster: ClusterClient, name: str, *, wanted: Filter = EVERYTHING, **settings: Any
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.held: set[TopicPartition] = set()
        self.events: list[str] = []
        self.followed = FailurePolicy()
        self.on_claimed: Callable[[claims.Claim], Awaitable[None]] | None = None
        self.on_drain: Callable[[TopicPartition], Awaitable[None]] | None = None
        self.on_commit: Callable[[TopicPartition], Awaitable[None]] | None = None
        self.on_suspend: Callable[[], None] | None = None
        self.permit = Permit(cluster.clock.monotonic)
        self.member = Membership(
            cluster,
            ConsumerConfig(**{"group": "g", "member_id": name, **settings}),
            member=name,
            filters={"t": wanted},
            offsets=cluster.offsets,
            holds=Holds("g", name),
            consumer=self,
            permit=self.permit,
        )

    @property
    def coordinator(self) -> MemoryCoordinator:
        coordinator = self.cluster.coordinator
        assert isinstance(coordinator, MemoryCoordinator)
        return coordinator

    def follow(self, failure: FailurePolicy) -> None:
        self.followed = failure

    async def claimed(self, hold: Hold) -> None:
        """See ``GroupConsumer``."""
        if self.on_claimed is not None:
            await self.on_claimed(hold.claim)
        assert hold.partition not in self.held
        self.held.add(hold.partition)

    async def drain(self, hold: Hold) -> None:
        """See ``GroupConsumer``."""
        if self.on_drain is not None:
            await self.on_drain(hold.partition)
        if hold.state is State.LOST:
            self.events.append(f"drop {hold.partition}")
            self.held.discard(hold.partition)

    async def commit_last(self, hold: Hold) -> None:
        """See ``GroupConsumer``."""
        if self.on_commit is not None:
            await self.on_commit(hold.partition)
        self.events.append(f"give up {hold.partition}")
        self.held.discard(hold.partition)

    def suspend(self) -> None:
        """See ``GroupConsumer``."""
        self.events.append("suspend")
        if self.on_suspend is not None:
            self.on_suspend()

    def resume(self) -> None:
        """See ``GroupConsumer``."""
        self.events.append("resume")

    def ended(self, error: VqError) -> None:
        """See ``GroupConsumer``."""
        self.events.append(f"ended: {error}")


class Group:
    """A cluster, a topic of four partitions, and the members made in it."""

    def __init__(self, cluster: MemoryCluster, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self._stack = stack

    async def client(self, **settings: Any) -> ClusterClient:
        client = cluster_client(self.cluster, **{"session_timeout_s": 0.4, **settings})
        await client.start()
        self._stack.push_async_callback(client.close)
        return client

    async def join(
        self, name: str, client: ClusterClient | None = None, **settings: Any
    ) -> Consumer:
        consumer = await self.member(name, client, **settings)
        await consumer.member.start()
        return consumer

    async def member(
        self, name: str, client: ClusterClient | None = None, **settings: Any
    ) -> Consumer:
        consumer = Consumer(client or await self.client(), name, **settings)
        self._stack.push_async_callback(self._end, consumer)
        return consumer

    @staticmethod
    async def _end(consumer: Consumer) -> None:
        if consumer.coordinator.crashed:  # nobody says good-bye
            task = consumer.member._task
            assert task is not None
            task.cancel()
        else:
            await consumer.member.close(1.0)

    async def owners(self) -> dict[TopicPartition, str]:
        async with self.cluster.admin() as coordinator:
            owners = await claims.read_partitions(coordinator, Owner, "g", ["t"])
            return {where: owner.member for where, owner in owners.items()}

    async def members(self) -> list[str]:
        async with self.cluster.admin() as coordinator:
            return sorted(await groups.members(coordinator, "g"))


def audit(consumer: Consumer) -> None:
    """Let the time of the next audit have come."""
    consumer.member._audit_at = -math.inf
    consumer.member.wake()


async def lose_and_claim_again(group: Group, consumer: Consumer) -> None:
    """Take the owner node of ``P1`` from its member; it notices, drops it and claims it anew."""
    async with group.cluster.admin() as coordinator:
        await coordinator.delete("consumers/g/owners/t/1")
    audit(consumer)
    await until(lambda: consumer.events == [f"drop {P1}"] and consumer.held == ALL)


async def gives(found: Awaitable[object], wanted: object) -> bool:
    """Tell whether what is awaited is ``wanted``."""
    return await found == wanted


async def share(*consumers: Consumer) -> None:
    """Wait until the partitions are shared out evenly, each to one member."""

    def shared() -> bool:
        sizes = [len(consumer.held) for consumer in consumers]
        together = set().union(*(consumer.held for consumer in consumers))
        return together == ALL and sum(sizes) == 4 and max(sizes) - min(sizes) <= 1

    await until(shared)
