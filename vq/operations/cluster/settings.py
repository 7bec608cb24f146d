"""The settings of the cluster: whether producers may create topics.

Loop-bound functions on a ``ClusterClient``.
"""

from dataclasses import replace

from vq.client.cluster import ClusterClient
from vq.client.kinds import given_settings
from vq.coordination.topics import cluster_settings
from vq.coordination.topics.cluster_settings import Change
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.model import TopicSettings
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import ChangeUnknown, unknown_when_cut


class SettingsUnknown(ChangeUnknown):
    """ZooKeeper went away while the settings of the cluster were changed."""

    hint = "`vq cluster settings` shows them; the change may be repeated"


async def read_settings(cluster: ClusterClient) -> ClusterSettings:
    """Return the settings of the cluster."""
    return await cluster_settings.read_settings(cluster.coordinator)


async def change_settings(cluster: ClusterClient, change: Change) -> ClusterSettings:
    """Change the settings of the cluster; return the new ones.

    Args:
        cluster: A started client.
        change: Takes the settings and returns the new ones. It may be called again if another
            operator changes them at the same time.

    Raises:
        InvalidArgument: Producers could not create topics with them, or ``change`` raised it.
        SettingsUnknown: ZooKeeper went away; they are changed or not.
    """
    with unknown_when_cut("changing the settings of the cluster", SettingsUnknown):
        return await cluster_settings.change_settings(cluster.coordinator, change)


@audited(About.SETTINGS)
async def set_auto_create(cluster: ClusterClient, wanted: TopicSettings | None) -> ClusterSettings:
    """Let producers create topics that are missing, with these settings; None: forbid it.

    The settings are kept while it is forbidden: ``cluster_settings().new_topics`` has them.

    Raises:
        InvalidArgument: No producer could create such a topic: it has more than 500 partitions,
            is not writable, or no broker group is in its pool.
        SettingsUnknown: ZooKeeper went away; it is changed or not.
    """
    if wanted is None:
        return await change_settings(cluster, lambda before: replace(before, may_create=False))
    given_settings(
        TopicSettings,
        wanted,
        "wanted",
        "give vq.TopicSettings(...) of the topics that producers create, or None to forbid it",
    )
    return await change_settings(
        cluster, lambda before: replace(before, may_create=True, new_topics=wanted)
    )
