"""What a consumer reads without its group: messages by position, the last ones, bounds and times.

Loop-bound. In here: what the methods of ``MessageConsumer`` check and return. How a partition is
read is in ``reading.partition_reader``. A group member reads ahead with ``fetcher``.
"""

from dataclasses import replace

from vq import limits
from vq.bounds import check_between, check_whole
from vq.client.cluster import ClusterClient
from vq.client.consumer.troubles import Troubles
from vq.client.reading.decode import Decoder
from vq.client.reading.forward import ONE_ANSWER
from vq.client.reading.last_read import LastRead
from vq.client.reading.partition_reader import PartitionReader
from vq.client.reading.positions import Moment, check_moment
from vq.client.reading.tail import check_count, merge_last, stored_ms
from vq.coordination.tree.reading import gather_all
from vq.message_filter import Filter, Wanting
from vq.model import Message, MessageList, OffsetBounds, TopicPartition, check_timeout


class Reader:
    """What one consumer reads by position; bytes that fail a check are counted in ``troubles``."""

    def __init__(self, cluster: ClusterClient, troubles: Troubles) -> None:
        self._cluster = cluster
        self._troubles = troubles
        self._last_read = LastRead()

    def partition(self, partition: TopicPartition) -> PartitionReader:
        """Return what reads a partition from its masters."""
        return PartitionReader(self._cluster, partition, last_read=self._last_read)

    async def get(
        self,
        topic: str,
        partition: int,
        offset: int,
        length: int,
        timeout: float | None = None,
        message_filter: Wanting = None,
    ) -> MessageList:
        """See ``MessageConsumer.get``."""
        wanted = Filter.of(message_filter)
        bound = 0.0 if timeout is None else check_timeout(timeout)
        for what, number in (("partition", partition), ("offset", offset)):
            check_whole(what, number)
        check_between("length", length, 1, limits.FETCH_BYTES_MAX, "bytes")
        topic_partition = TopicPartition(topic, partition)
        await self._cluster.track(topic)
        # A number that fits no field of a request is checked here.
        if not 0 <= partition < limits.PARTITIONS_PER_TOPIC_MAX:
            self._cluster.routes.placement(topic_partition)  # raises with the range of partitions
        reader = self.partition(topic_partition)
        await reader.check_size(offset)
        clock = self._cluster.clock
        deadline = clock.monotonic() + bound
        decoder = Decoder(topic_partition, wanted=wanted)
        options = replace(ONE_ANSWER, wanted=wanted) if wanted else ONE_ANSWER
        read = reader.read(offset, decoder, size=length, options=options)
        try:
            while True:
                left = max(0.0, deadline - clock.monotonic())
                read.wait_s = min(left, limits.LONG_POLL_S_MAX)
                messages = await anext(read)
                if messages:
                    end = read.next_offset if wanted else messages[-1].next_offset
                    return MessageList(messages, end)
                # With a filter, looking for the next message may take as long as the log is.
                if (read.is_idle or wanted) and clock.monotonic() >= deadline:
                    return MessageList((), read.next_offset)
        finally:
            self._troubles.bad_reads += read.bad_reads

    async def last(
        self, topic: str, count: int, partition: int | None, message_filter: Wanting = None
    ) -> list[Message]:
        """See ``MessageConsumer.get_last``."""
        check_count(count)
        wanted = Filter.of(message_filter)
        if partition is not None:
            check_whole("partition", partition)
            return await self._last_of(TopicPartition(topic, partition), count, wanted)
        partitions = await self._partitions(topic)
        found = await gather_all(self._last_of(each, count, wanted) for each in partitions)
        return merge_last(found, count, stored_ms)

    async def _last_of(
        self, partition: TopicPartition, count: int, wanted: Filter
    ) -> list[Message]:
        reader = self.partition(partition)
        return await reader.last(
            await reader.bounds(),
            count,
            lambda: Decoder(partition, wanted=wanted),
            lambda message: message,
            size_of=lambda message: len(message.content),
            size=limits.FETCH_BYTES_MAX,
            wanted=wanted,
        )

    async def bounds(self, topic: str, partition: int) -> OffsetBounds:
        """See ``MessageConsumer.get_bounds``."""
        check_whole("partition", partition)
        return await self.partition(TopicPartition(topic, partition)).bounds()

    async def offset_at(self, topic: str, partition: int, moment: Moment) -> int:
        """See ``MessageConsumer.offset_at``."""
        check_whole("partition", partition)
        return await self.partition(TopicPartition(topic, partition)).place(check_moment(moment))

    async def offsets_at(self, topic: str, moment: Moment) -> dict[TopicPartition, int]:
        """See ``MessageConsumer.offsets_at``."""
        wanted = check_moment(moment)
        partitions = await self._partitions(topic)
        found = await gather_all(self.partition(each).place(wanted) for each in partitions)
        return dict(zip(partitions, found, strict=True))

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        routes = await self._cluster.track(topic)
        return [TopicPartition(topic, each.partition) for each in routes.partitions(topic)]
