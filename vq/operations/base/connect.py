"""Opening a cluster for the questions and changes of an operator."""

import contextlib
from collections.abc import AsyncIterator, Sequence

from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import MessageFactoryConfig
from vq.coordination.tree.coordinator import Coordinator, NoNode, NotEmpty
from vq.coordination.tree.paths import BROKERS
from vq.coordination.tree.reading import children_or_none
from vq.coordination.zookeeper.zk import ROOT, ZooKeeperCoordinator
from vq.errors import CoordinationError


class UnknownCluster(CoordinationError):
    """No broker has ever registered in a cluster of this name."""

    retriable = False
    hint = "name one of them with --cluster or VQ_CLUSTER; the first `vq broker` makes a cluster"


@contextlib.asynccontextmanager
async def cluster_client(
    config: MessageFactoryConfig, *, must_exist: bool = True
) -> AsyncIterator[ClusterClient]:
    """Open the cluster on the running loop and close it at the end.

    ``must_exist``: refuse one in which no broker has ever registered: its name is misspelled.

    Raises:
        UnknownCluster: There is no such cluster.
        CoordinationError: ZooKeeper does not answer within ``config.start_timeout_s``.
    """
    cluster = await open_cluster(config, operator=True)
    try:
        if await cluster.coordinator.exists(BROKERS) is None:
            if must_exist:
                names = await cluster_names(config)
                raise UnknownCluster(
                    f"there is no cluster {config.cluster!r} at {config.zookeeper}; "
                    f"{there_are(names)}"
                )
            await forget_root(cluster.coordinator)
        yield cluster
    finally:
        await cluster.close()


async def forget_root(coordinator: Coordinator) -> None:
    """Delete the root of a cluster's tree that holds nothing: connecting has made it."""
    with contextlib.suppress(NoNode, NotEmpty):
        await coordinator.delete("")


async def cluster_names(config: MessageFactoryConfig) -> list[str]:
    """Return the clusters that exist; forget that of ``config``, which does not."""
    tree = ZooKeeperCoordinator(
        config.zookeeper,
        ROOT,
        root="",
        session_timeout_s=config.session_timeout_s,
        auth=config.zookeeper_auth,
        tls=config.zookeeper_tls,
    )
    await tree.start(config.start_timeout_s)
    try:
        names = [
            name
            for name in await children_or_none(tree, "")
            if await tree.exists(f"{name}/{BROKERS}") is not None
        ]
        with contextlib.suppress(NoNode, NotEmpty):  # opening it has made the root of its tree
            await tree.delete(config.cluster)
    finally:
        await tree.close()
    return names


def there_are(names: Sequence[str]) -> str:
    """Return the names of clusters as an error and a check tell them."""
    return f"there are: {', '.join(names) or 'none yet'}"
