"""The progress of a group whose readers are no members, such as a Spark query.

Such a group is listed and has a lag as any other. Its readers share out the partitions themselves.
"""

from collections.abc import Mapping, Sequence

from vq.bounds import check_whole
from vq.client.cluster import ClusterClient
from vq.coordination.groups import groups
from vq.coordination.groups.contract import check_own_topics
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup
from vq.errors import InvalidArgument, InvalidState
from vq.message_filter import Filter, Where
from vq.model import TopicPartition


async def commit_progress(
    cluster: ClusterClient,
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    topic_ids: Mapping[str, str],
    tags: Sequence[str] = (),
    where: str = "",
) -> None:
    """Write how far a group is whose readers are no members, such as a Spark query.

    So its lag is seen, and judged by how it moves: ``by_stream`` of its description is True.
    The first commit makes the group. An offset that is lower than the committed one changes
    nothing, unless that one is of a topic that was deleted since. May be repeated.

    Args:
        group: Its name; nobody else may read with it.
        offsets: Where the next messages to read begin.
        topic_ids: By topic its id, as ``get_topic`` tells it.
        tags: Only messages with these are read; none: all.
        where: Only messages of which this expression is true are read, see ``vq.Where``; "": all.
            Give one of the two.

    Raises:
        InvalidState: The group has members; nothing was written.
        InvalidArgument: The group reads a topic with another filter, or an offset is negative; or a
            topic is its own dead letters, or with tags its own retry topic.
    """
    for partition, offset in offsets.items():
        check_whole("offset", offset)
        if offset < 0:
            raise InvalidArgument(f"offset {offset} of {partition} is below 0")
    coordinator = cluster.coordinator
    if where and tags:
        raise InvalidArgument(f"tags = {list(tags)} and where = {where!r}: give one of them")
    wanted = Filter.of(Where(where)) if where else Filter(tuple(sorted(tags)))
    topics = {partition.topic: wanted for partition in offsets}
    present = await groups.members(coordinator, group)
    if present:
        raise InvalidState(
            f"group {group!r} has members, {len(present)} in all: {', '.join(list(present)[:5])}; "
            "give a reader that is not a member a group of its own"
        )
    contract = ConsumerGroup(topics=topics, by_stream=True)
    check_own_topics(group, contract)
    await groups.ensure_group(coordinator, group, contract)
    now_ms = cluster.clock.wall_ms()
    await cluster.offsets.record(
        group,
        {
            partition: CommittedOffset(
                offset=offset,
                time_ms=now_ms,
                member=cluster.config.client_id,
                topic_id=topic_ids.get(partition.topic, ""),
            )
            for partition, offset in offsets.items()
        },
    )
