"""The settings of the cluster: whether producers may create topics.

Loop-bound functions on a ``ClusterClient``.
"""

from collections.abc import Callable
from dataclasses import replace

from vq.admin.changes import unknown_when_cut
from vq.client.cluster import ClusterClient
from vq.coordination import cluster_settings
from vq.coordination.paths import ClusterSettings
from vq.model import TopicSettings


async def read_settings(cluster: ClusterClient) -> ClusterSettings:
    """Return the settings of the cluster."""
    return await cluster_settings.read_settings(cluster.coordinator)


async def change_auto_create(
    cluster: ClusterClient, change: Callable[[TopicSettings | None], TopicSettings | None]
) -> ClusterSettings:
    """Change the settings of topics that producers create; return the new settings.

    Args:
        cluster: A started client.
        change: Takes the settings, None: producers may create no topics; returns the new ones. It
            may be called again if another operator changes them at the same time.

    Raises:
        InvalidArgument: There are more partitions than one step creates, or ``change`` raised it.
        ChangeUnknown: ZooKeeper went away; they are changed or not.
    """
    with unknown_when_cut("changing the settings of the cluster"):
        return await cluster_settings.change_settings(
            cluster.coordinator,
            lambda before: replace(before, auto_create=change(before.auto_create)),
        )
