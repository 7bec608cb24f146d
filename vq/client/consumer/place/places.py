"""Whether a group may go on at its committed offset; checked before the first read.

A commit has an offset, the id of its topic, the id of the message before the offset, and the epoch
of the batch before it. A log that lost its end (a lost disk, an old backup, a power cut before a
flush, a master that had not all) gives the same offsets to other messages. A group that went on
there would skip messages.
"""

from typing import Final

from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.progress import Progress
from vq.client.reading.partition_reader import PartitionReader
from vq.coordination.groups.zookeeper_offsets import why_of_another
from vq.coordination.topics import topics
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.coordination.tree.values.group_terms import BAD_RECORD, GroupModel
from vq.errors import (
    CoordinationError,
    GroupStopped,
    LogTruncated,
    OffsetNotBoundary,
    OffsetOutOfRange,
    VqError,
)
from vq.message_filter import Filter
from vq.model import TopicPartition
from vq.remoting.format import Command, Place
from vq.remoting.wire_pb2 import OffsetsRequest, OffsetsResponse

#: What the reason begins with if a listener failed: no message was lost then.
LISTENER_FAILED: Final = "on_failure = 'stop'"


async def why_elsewhere(
    cluster: ClusterClient, partition: TopicPartition, committed: CommittedOffset
) -> str:
    """Return why an offset means nothing in the topic that there is now, by the tree; "": it does.

    Raises:
        CoordinationError: The topic was made anew, and the routes known here are those of the old
            one; try again.
    """
    if not committed.topic_id:
        return ""
    if cluster.routes.topic(partition.topic).id == committed.topic_id:
        return ""
    now = await topics.describe_topic(cluster.coordinator, partition.topic)
    if now.id == committed.topic_id:
        cluster.refresh(partition.topic)
        raise CoordinationError(f"the routes of topic {partition.topic!r} are behind; try again")
    return why_of_another(committed, now.id)


async def why_another(reader: PartitionReader, progress: Progress, wanted: Filter) -> str:
    """Ask the broker whether the place is still the same; return why not, or "".

    "" also if it is unknown: an earlier version of the broker, damage, retention.

    Raises:
        VqError: It did not answer.
    """
    request = OffsetsRequest(
        place=True,
        place_offset=progress.position,
        # By tags, brokers know which message was handled last before the place. Other filters are
        # unknown to them, or to those of an earlier version; then the epoch tells.
        place_message_id=0 if wanted.check else progress.message_id or 0,
        place_tags=wanted.tags,
        place_epoch=progress.epoch,
    )
    response, _ = await reader.request(progress.position, Command.OFFSETS, request)
    assert isinstance(response, OffsetsResponse)
    return response.place_reason if response.place == Place.OTHER else ""


def proves_a_loss(error: VqError, position: int) -> bool:
    """Whether an answer to a read at ``position``, which was good before, says it is gone."""
    if isinstance(error, OffsetOutOfRange):
        return position > int(error.details.get("latest", position))
    return isinstance(error, OffsetNotBoundary | LogTruncated)


def stopped_error(config: ConsumerConfig, partition: TopicPartition, reason: str) -> GroupStopped:
    """Return the error for a group, or a broadcasting member, that waits for a decision."""
    lost = "Messages were lost there; going on by itself it might skip others. "
    if reason.startswith((LISTENER_FAILED, BAD_RECORD)):
        lost = ""
    if config.model is GroupModel.BROADCASTING:
        return GroupStopped(
            f"member {config.member_id or '(unnamed)'!r} of broadcasting group {config.group!r} "
            f"was stopped on {partition}: {reason}. {lost}Decide where it goes on: seek of the "
            "consumer; a restart tries the same place again"
        )
    return GroupStopped(
        f"group {config.group!r} was stopped on {partition}: {reason}. {lost}"
        f"Decide where it goes on: `vq group reset {config.group} --topic "
        f"{partition.topic} --partition {partition.partition}`"
    )
