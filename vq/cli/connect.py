"""Opening the cluster for one command: a factory for messages, a client core for questions."""

import contextlib
import logging
from collections.abc import AsyncIterator

from vq.cli.text import SafeFormatter
from vq.client.cluster import ClusterClient, open_cluster
from vq.client.config import MessageFactoryConfig
from vq.coordination.zk import ZooKeeperCoordinator


def coordinator_of(config: MessageFactoryConfig) -> ZooKeeperCoordinator:
    """Return a coordinator for the cluster, not started."""
    return ZooKeeperCoordinator(
        config.zookeeper, config.cluster, session_timeout_s=config.session_timeout_s
    )


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


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Send log lines of the library to standard error, short ones for a person."""
    logging.basicConfig(level=level, force=True)
    use_safe_lines("%(levelname)s %(name)s: %(message)s")


def use_safe_lines(form: str) -> None:
    """Have the root's handlers write lines of this form, in which control characters are shown."""
    for handler in logging.getLogger().handlers:
        handler.setFormatter(SafeFormatter(form))
