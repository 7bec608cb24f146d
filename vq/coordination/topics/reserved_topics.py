"""Topics that vq makes for itself, as for the dead letters of a group, when it first needs them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from vq.coordination.topics import topics
from vq.coordination.topics.cluster_settings import read_settings
from vq.coordination.topics.topics import TopicExists
from vq.coordination.tree.coordinator import ConnectionLost, Coordinator
from vq.coordination.tree.reading import TopicView, gather_all, read_summary
from vq.coordination.tree.values.topics import READY
from vq.errors import CoordinationError, InvalidArgument
from vq.limits import AUTO_CREATE_PARTITIONS_MAX
from vq.model import FlushMode, Replication, RetentionPolicy, TopicOrigin, TopicSettings
from vq.reserved import Purpose, answered_topic, group_of, is_probe, is_reserved

#: For so long a retry topic keeps what its group has read.
RETRY_HOURS: Final = 72
#: For so long a topic of replies keeps them, and at least so many partitions it has: who asks reads
#: one of them, so few are woken by the replies to others. One that nobody reads costs a node.
REPLY_HOURS: Final = 1
REPLY_PARTITIONS_MIN: Final = 8
#: Of the topics in which delayed messages and transactions wait. What is acknowledged there is as
#: safe as anything; what was delivered goes after an hour, and what waits is kept by its master.
INTERNAL_SETTINGS: Final = TopicSettings(
    partitions=8,
    flush=FlushMode.SYNC,
    replication=Replication.SYNC,
    retention_hours=1,
    retention_policy=RetentionPolicy.DELETE,
)


def settings_like(strict: Sequence[TopicSettings], defaults: TopicSettings) -> TopicSettings:
    """Return the settings of a topic that keeps copies of messages of other topics.

    It is as safe as the strictest of them and takes messages of any size. It keeps
    everything: nobody may be there who reads it in time. Retention is that topic's own, so an
    operator can change it. See ``retry_settings`` for the other kind.

    Args:
        strict: The settings of these topics; without any, one partition.
        defaults: Of a new topic of the cluster: whether its blocks become archives.
    """
    archived = defaults.retention_policy is RetentionPolicy.ARCHIVE
    own = TopicSettings(
        retention_hours=None,
        retention_policy=RetentionPolicy.ARCHIVE if archived else RetentionPolicy.DELETE,
        archive_after_hours=defaults.archive_after_hours if archived else None,
        archive_to=defaults.archive_to if archived else None,
    )
    if not strict:
        return own
    syncs = any(each.flush is FlushMode.SYNC for each in strict)
    copied = any(each.replication is Replication.SYNC for each in strict)
    pools = {each.pool for each in strict}
    return replace(
        own,
        partitions=min(max(each.partitions for each in strict), AUTO_CREATE_PARTITIONS_MAX),
        flush=FlushMode.SYNC if syncs else FlushMode.ASYNC,
        flush_interval_messages=min(each.flush_interval_messages for each in strict),
        flush_interval_ms=min(each.flush_interval_ms for each in strict),
        pool=pools.pop() if len(pools) == 1 else None,
        replication=Replication.SYNC if copied else Replication.ASYNC,
        min_insync=max(each.min_insync for each in strict),
    )


def retry_settings(settings: TopicSettings) -> TopicSettings:
    """Return the settings of a retry topic, from those of a topic that keeps copies.

    Its group reads it: what that is done with goes after three days.
    """
    return replace(
        settings,
        retention_hours=RETRY_HOURS,
        retention_policy=RetentionPolicy.KEEP,
        archive_after_hours=None,
        archive_to=None,
    )


def reply_settings(settings: TopicSettings) -> TopicSettings:
    """Return the settings of a topic of replies, from those of a topic that keeps copies.

    It is as safe as the topic of the requests. Who asks waits for seconds: what is older goes, read
    or not.
    """
    return replace(
        settings,
        partitions=max(settings.partitions, REPLY_PARTITIONS_MIN),
        retention_hours=REPLY_HOURS,
        retention_policy=RetentionPolicy.DELETE,
        archive_after_hours=None,
        archive_to=None,
    )


def check_as_safe(topic: str, before: TopicSettings, after: TopicSettings) -> None:
    """Refuse to make a topic of vq's own less safe: it may have the only copy of a message.

    Raises:
        InvalidArgument: It would be flushed or copied later than it is acknowledged.
    """
    if not is_reserved(topic) or is_probe(topic):
        return
    for setting, sync in (("flush", FlushMode.SYNC), ("replication", Replication.SYNC)):
        if getattr(before, setting) is sync is not getattr(after, setting):
            raise InvalidArgument(
                f"topic {topic!r} keeps {setting} = {sync.value!r}, not "
                f"{getattr(after, setting).value!r}: it has acknowledged messages that are nowhere "
                "else, and they are to be as safe as those of the topics that they belong to"
            )


async def ensure_reserved(
    coordinator: Coordinator, name: str, origins: Sequence[str], by: TopicOrigin
) -> TopicView:
    """Return a reserved topic, made if there is none, with settings like those of some topics.

    May be called by several clients at once, and again after any failure.

    Args:
        coordinator: A started coordinator.
        name: As ``vq.reserved.topic_of`` or ``replies_topic`` returns it.
        origins: The topics whose messages it is to keep; one that is gone is left out.
        by: Who makes it.

    Raises:
        TopicExists: A deleted topic that can be brought back has the name.
        CoordinationError: No broker group can take its partitions, or ZooKeeper did not answer.
    """
    found = await read_summary(coordinator, name)
    if found is None or found.phase != READY:
        defaults = (await read_settings(coordinator)).defaults
        read = await gather_all(read_summary(coordinator, each) for each in sorted(set(origins)))
        strict = [each.settings for each in read if each is not None]
        settings = settings_like(strict, defaults)
        if group_of(name, Purpose.RETRY) is not None:
            settings = retry_settings(settings)
        elif answered_topic(name) is not None:
            settings = reply_settings(settings)
        try:
            return await topics.create_topic(coordinator, name, settings, origin=by)
        except TopicExists:
            await coordinator.sync()
            again = await read_summary(coordinator, name)
            if again is None or again.phase != READY:
                raise
        except ConnectionLost as error:
            raise CoordinationError(
                f"it is unknown whether topic {name!r} was created: {error}; it is tried again"
            ) from error
    return await topics.describe_topic(coordinator, name)
