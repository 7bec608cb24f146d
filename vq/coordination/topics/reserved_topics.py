"""Topics that vq makes for itself, when it first needs them."""

from typing import Final

from vq.model import FlushMode, Replication, RetentionPolicy, TopicSettings

#: Of the topic in which delayed messages wait. What is acknowledged there is as safe as anything;
#: what was delivered goes after an hour, and what waits is kept by its master.
DELAYED_SETTINGS: Final = TopicSettings(
    partitions=8,
    flush=FlushMode.SYNC,
    replication=Replication.SYNC,
    retention_hours=1,
    retention_policy=RetentionPolicy.DELETE,
)
