"""Topics of a cluster of processes, made and deleted without starting the ``vq`` command."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from support.cluster import ProcessCluster

from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.zookeeper.zk import ZooKeeperCoordinator
from vq.model import TopicSettings


async def _with(cluster: ProcessCluster, work: Callable[[Coordinator], Awaitable[Any]]) -> Any:
    coordinator = ZooKeeperCoordinator(cluster.zookeeper, cluster.name, session_timeout_s=4.0)
    await coordinator.start(10.0)
    try:
        return await work(coordinator)
    finally:
        await coordinator.close()


def create_topic(cluster: ProcessCluster, name: str, **settings: Any) -> None:
    """Make a topic; not on a running loop."""
    wanted = TopicSettings(**settings)
    asyncio.run(_with(cluster, lambda client: topics.create_topic(client, name, wanted)))


def delete_topic(cluster: ProcessCluster, name: str) -> None:
    """Delete a topic; not on a running loop."""
    asyncio.run(_with(cluster, lambda client: topics.delete_topic(client, name)))
