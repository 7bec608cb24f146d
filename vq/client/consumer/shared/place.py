"""Where a shared group is, for those who go by offsets: retention, lag, operators. Loop-bound."""

from collections.abc import Mapping

from vq.client.cluster import ClusterClient
from vq.client.reading.partition_reader import PartitionReader
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.model import TopicPartition


async def record_lows(
    cluster: ClusterClient,
    group: str,
    member: str,
    lows: Mapping[TopicPartition, tuple[str, int]],
) -> list[TopicPartition]:
    """Write the lowest messages that are not done as the group's offsets.

    Args:
        cluster: Where the group is.
        group: Its name.
        member: Who says so.
        lows: By partition, the id of its topic and the number of that message.

    Returns:
        The partitions whose offset is written; of others the number is not known any more.

    Raises:
        VqError: A broker or ZooKeeper does not answer; to be called again.
    """
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for partition, (topic_id, number) in lows.items():
        await cluster.track(partition.topic)
        offset = await PartitionReader(cluster, partition, topic_id).offset_at_number(number)
        if offset is not None:
            offsets[partition] = CommittedOffset(
                offset=offset,
                time_ms=cluster.clock.wall_ms(),
                member=member,
                topic_id=topic_id,
            )
    if offsets:
        await cluster.offsets.record(group, offsets)
    return list(offsets)
