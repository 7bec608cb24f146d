"""Where requests find the channel of their partition."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from vq.broker.partition.channel import Channel
from vq.errors import InvalidRequest, UnknownTopic, VqError
from vq.limits import TOPIC_ID_CHARS_MAX
from vq.model import TopicPartition
from vq.shown import shown


class Directory(Protocol):
    """Where channels are found and opened; in practice ``partitions.Partitions``."""

    channels: dict[tuple[str, int], Channel]

    def resolve(
        self,
        partition: TopicPartition,
        then: Callable[[Channel | VqError], None],
        asker: object,
    ) -> None:
        """Look again for a partition that is not in ``channels``; ``then`` is called later.

        The number of waiting look-ups of one ``asker`` is bounded; beyond it ``then`` gets
        ``Busy``.
        """
        ...

    def is_changing(self, partition: TopicPartition) -> bool:
        """Whether a log of the partition is being opened, cut or put aside at this moment."""
        ...

    def open(self, channel: Channel, then: Callable[[], None]) -> None:
        """Give the channel its log, or a failure; ``then`` is called afterwards."""
        ...


def known(directory: Directory, partition: TopicPartition, topic_id: str) -> Channel | None:
    """Return the channel of a partition, if it is one of the topic with that id (empty: any)."""
    channel = directory.channels.get(partition)
    return channel if channel is None or topic_id in (channel.topic_id, "") else None


def look_up(
    directory: Directory,
    partition: TopicPartition,
    topic_id: str,
    then: Callable[[Channel | VqError], None],
    asker: object,
) -> None:
    """Look for the partition in ZooKeeper: the watch that tells of it may be on its way.

    Also if the channel here is of another topic of that name, which is about to be deleted: a
    message for the new topic must not be stored there. ``asker`` is the connection that asks.
    """

    if len(topic_id) > TOPIC_ID_CHARS_MAX:  # it would be kept as long as the look-up takes
        error = InvalidRequest(
            f"topic id {shown(topic_id)} has {len(topic_id)} characters, at most "
            f"{TOPIC_ID_CHARS_MAX} are in one"
        )
        asyncio.get_running_loop().call_soon(then, error)
        return

    def compare(found: Channel | VqError) -> None:
        if isinstance(found, Channel) and topic_id not in (found.topic_id, ""):
            then(
                UnknownTopic(
                    f"topic {partition.topic!r} was deleted and made anew; publish or subscribe it "
                    "again"
                )
            )
        else:
            then(found)

    directory.resolve(partition, compare if topic_id else then, asker)
