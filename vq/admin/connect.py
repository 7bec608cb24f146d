"""Opening a cluster for the questions and changes of an operator."""

import contextlib
from collections.abc import AsyncIterator

from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import MessageFactoryConfig


@contextlib.asynccontextmanager
async def cluster_client(config: MessageFactoryConfig) -> AsyncIterator[ClusterClient]:
    """Open the cluster on the running loop and close it at the end.

    Raises:
        CoordinationError: ZooKeeper does not answer within ``config.start_timeout_s``.
    """
    cluster = await open_cluster(config)
    try:
        yield cluster
    finally:
        await cluster.close()
