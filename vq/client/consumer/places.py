"""Whether a group may go on where it committed: looked at before the first byte is read.

A commit says more than an offset: which topic it was of, and which message lies before it. A log
that came back shorter (a lost disk, an old backup, flushes that a power cut took) gives out the
same offsets again, for other messages. A group that read on there would skip what was stored since.
"""

from collections.abc import Awaitable, Callable, Sequence

from vq.client.cluster import ClusterClient
from vq.client.consumer.delivery import Progress
from vq.coordination import topics
from vq.coordination.paths import CommittedOffset
from vq.errors import CoordinationError, GroupStopped, OffsetNotBoundary, OffsetOutOfRange, VqError
from vq.model import TopicPartition
from vq.remoting.format import Command, Place
from vq.remoting.wire_pb2 import OffsetsRequest, OffsetsResponse

Ask = Callable[[TopicPartition, int, int, OffsetsRequest], Awaitable[tuple[object, bytes]]]


async def why_stopped(
    cluster: ClusterClient, where: TopicPartition, committed: CommittedOffset
) -> str:
    """Return why the group does not go on, as far as the tree can tell; "": it may.

    Raises:
        CoordinationError: The topic was made anew, and the routes known here are those of the old
            one; try again.
    """
    if committed.stopped or not committed.topic_id:
        return committed.stopped
    if cluster.routes.topic(where.topic).id == committed.topic_id:
        return ""
    now = await topics.describe_topic(cluster.coordinator, where.topic)
    if now.id == committed.topic_id:
        cluster.refresh(where.topic)
        raise CoordinationError(f"the routes of topic {where.topic!r} are behind; try again")
    return (
        f"the offset was committed for another topic of this name (id {committed.topic_id}, now "
        f"{now.id})"
    )


async def why_another(
    ask: Ask, where: TopicPartition, progress: Progress, tags: Sequence[str]
) -> str:
    """Ask the broker whether the place is still the same; return why not, or "".

    "" also when it cannot be told: a broker of an earlier version, damage, retention.

    Raises:
        VqError: It did not answer.
    """
    request = OffsetsRequest(
        topic=where.topic,
        partition=where.partition,
        place=True,
        place_offset=progress.position,
        place_message_id=progress.message_id or 0,
        place_tags=tags,
    )
    response, _ = await ask(where, progress.position, Command.OFFSETS, request)
    assert isinstance(response, OffsetsResponse)
    return response.place_reason if response.place == Place.OTHER else ""


def proves_a_loss(error: VqError, position: int) -> bool:
    """Whether an answer to a read at ``position``, which was good before, says it is gone."""
    if isinstance(error, OffsetOutOfRange):
        return position > int(error.details.get("latest", position))
    return isinstance(error, OffsetNotBoundary)


def stopped_error(group: str, where: TopicPartition, reason: str) -> GroupStopped:
    """Return what is told of a group that stands still until somebody decides."""
    return GroupStopped(
        f"group {group!r} was stopped on {where}: {reason}. Messages were lost there; going on by "
        f"itself it might skip others. Decide where it goes on: `vq group reset {group} --topic "
        f"{where.topic} --partition {where.partition}`"
    )
