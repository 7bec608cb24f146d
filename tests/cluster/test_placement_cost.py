"""What a move costs ZooKeeper: calls counted at its twin, for topics and clusters of many sizes.

The mover reads three nodes and the counts of two groups, and writes once. Whoever follows the
topic, a client or a broker, reads the topic's node, the list of changed partitions, the partition
that moved, and looks whether it was still the same topic. None of it depends on the number of
partitions.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.coordination import LeadingBroker, client_of

from vq.broker.logs.topics_view import TopicsView
from vq.coordination.topics.placement import move
from vq.coordination.topics.routes import RouteWatcher
from vq.coordination.topics.topics import change_placement, create_topic, describe_topic
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.reading import TopicView
from vq.model import TopicSettings
from vq.testing.waiting import WAIT_S, until

MOVER_CALLS = 6
FOLLOWER_CALLS = 4
#: A reading without a reason: the topic's node and its list; for clients a sync and, for each of
#: the two groups, its state and its master; for brokers the names of topics and of groups, and the
#: counts of the two groups.
BROKER_AUDIT_CALLS = 2 + 2 + 2
CLIENT_AUDIT_CALLS = 2 + 1 + 2 * 2
#: A client that comes back may read twice: when its watches end, and when it is connected.
RETURN_CALLS = 2 * CLIENT_AUDIT_CALLS + 1


class Cluster:
    """A topic on two groups, clients that follow it, and one broker that does."""

    def __init__(self, ensemble: MemoryEnsemble, view: TopicView) -> None:
        self.ensemble = ensemble
        self.view = view
        self.clients: list[MemoryCoordinator] = []
        self.watchers: list[RouteWatcher] = []
        self.broker: TopicsView
        self.told: list[TopicView] = []

    async def quiet(self) -> int:
        """Wait until nobody calls any more; return how many calls there were in all."""
        turns = 0
        async with asyncio.timeout(WAIT_S):
            while turns < 20:
                turns = 0 if self._busy() else turns + 1
                await asyncio.sleep(0)
        return self.ensemble.served

    def _busy(self) -> bool:
        return self.ensemble.is_busy or any(each._keeper.hinted for each in self.watchers)

    async def follow(self, clients: int) -> None:
        """Have so many clients, and the broker, follow the topic."""
        self.broker = TopicsView(await self._client(), follower=self, interval_s=3600.0)
        await self.broker.refresh()
        for number in range(clients):
            watcher = RouteWatcher(await self._client())
            if number:  # the others read the same, only slower
                watcher._snapshot = self.watchers[0].snapshot
            await watcher.track("t")
            self.watchers.append(watcher)

    async def _client(self):
        client = self.ensemble.coordinator("test", session_timeout_s=3600.0)
        await client.start()
        self.clients.append(client)
        return client

    async def apply_topic(self, view: TopicView) -> None:
        """See ``TopicFollower``."""
        self.told.append(view)

    async def remove_topic(self, name: str) -> None:
        """See ``TopicFollower``."""
        raise AssertionError(f"{name} is gone")

    async def move(self, coordinator, number: int) -> None:
        """Move one partition to the other group, and wait until everybody knows."""
        placement = self.view.partitions[number]
        target = "b2" if placement.writer_group == "b1" else "b1"
        self.view = await change_placement(coordinator, self.view, move(placement, 5, target))
        wanted = self.view.partitions[number]
        await until(
            lambda: all(each.snapshot.partitions("t")[number] == wanted for each in self.watchers)
        )
        await self.broker.refresh()
        assert self.told[-1].partitions[number] == wanted

    async def close(self) -> None:
        for watcher in self.watchers:
            await watcher.close()
        for client in self.clients:
            await client.close()


@asynccontextmanager
async def cluster_of(partitions: int, clients: int) -> AsyncIterator[tuple[Cluster, object]]:
    """A cluster that is quiet, and an operator's coordinator."""
    ensemble = MemoryEnsemble()
    async with client_of(ensemble, session_timeout_s=3600.0) as operator:
        brokers = [LeadingBroker(operator, group=group) for group in ("b1", "b2")]
        for broker in brokers:
            await broker.start()
        view = await create_topic(operator, "t", TopicSettings(partitions=partitions))
        cluster = Cluster(ensemble, view)
        await cluster.follow(clients)
        yield cluster, operator
        await cluster.close()
        for broker in brokers:
            await broker.stop()


SIZES = [
    pytest.param(partitions, clients, marks=pytest.mark.long if partitions >= 1_000 else ())
    for partitions in (10, 100, 1_000, 4_000)
    for clients in (2, 10, 50)
]


@pytest.mark.parametrize(("partitions", "clients"), SIZES)
async def test_a_move_costs_what_changed(partitions: int, clients: int) -> None:
    """Each follower a few calls, whatever the number of partitions; readings without a reason too.

    A client that was cut off pays for what it missed, and no more.
    """
    async with cluster_of(partitions, clients) as (cluster, operator):
        before = await cluster.quiet()
        for number in (0, partitions - 1, 1):
            await cluster.move(operator, number)
            after = await cluster.quiet()
            assert after - before <= MOVER_CALLS + FOLLOWER_CALLS * (clients + 1)
            before = after
        for watcher in cluster.watchers:
            watcher._doubt()
            watcher._keeper.wake()
        cluster.broker.hint()
        await cluster.broker.refresh()
        after = await cluster.quiet()
        assert after - before <= CLIENT_AUDIT_CALLS * clients + BROKER_AUDIT_CALLS
        client = cluster.clients[1]  # the first one is the broker's
        cluster.ensemble.disconnect(client)
        for number in (2, 3, 4):
            placement = cluster.view.partitions[number]
            target = "b2" if placement.writer_group == "b1" else "b1"
            moved = move(placement, 5, target)
            cluster.view = await change_placement(operator, cluster.view, moved)
        before = await cluster.quiet()
        cluster.ensemble.reconnect(client)
        wanted = (await describe_topic(operator, "t")).partitions
        before += partitions + 3
        await until(lambda: cluster.watchers[0].snapshot.partitions("t") == wanted)
        assert await cluster.quiet() - before <= RETURN_CALLS + 3
