"""Single batches that one call of an operation sends to several partitions, with stamps of its own.

Loop-bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from vq.client.cluster import ClusterClient
from vq.client.puts import put_batch
from vq.coordination.topics import topics
from vq.coordination.tree.reading import TopicView
from vq.errors import UnknownTopic
from vq.model import Message, ProducerStamp, TopicPartition


@dataclass(slots=True)
class SingleBatches:
    """What one call knows of topics, and under which stamps it sends.

    Attributes:
        cluster: Where to.
        wait_s: How long the brokers of one batch are waited for.
    """

    cluster: ClusterClient
    wait_s: float
    _topics: dict[str, TopicView | None] = field(default_factory=dict)
    _next: dict[TopicPartition, ProducerStamp] = field(default_factory=dict)

    async def topic(self, name: str) -> TopicView | None:
        """Return a topic; None: there is none. It is read once."""
        if name not in self._topics:
            try:
                view = await topics.describe_topic(self.cluster.coordinator, name)
                await self.cluster.track(name)
            except UnknownTopic:
                self._topics[name] = None
            else:
                self._topics[name] = view
        return self._topics[name]

    def made(self, name: str) -> None:
        """A topic was made that was not there: read it again."""
        self._topics.pop(name, None)

    def stamp(self, partition: TopicPartition) -> ProducerStamp:
        """Return the stamp of the next batch to a partition."""
        if partition not in self._next:
            producer_id = self.cluster.rng.getrandbits(63) | 1
            self._next[partition] = ProducerStamp(producer_id, 0, 0)
        return self._next[partition]

    def stored(self, partition: TopicPartition) -> None:
        """The batch with that stamp is stored."""
        stamp = self._next[partition]
        self._next[partition] = stamp._replace(sequence=stamp.sequence + 1)

    async def put(
        self,
        partition: TopicPartition,
        topic_id: str,
        stamp: ProducerStamp,
        records: Sequence[bytes],
        *,
        resend: bool = False,
    ) -> int:
        """Store a batch; see ``put_batch``."""
        return await put_batch(
            self.cluster,
            partition,
            stamp,
            records,
            topic_id=topic_id,
            deadline=self.cluster.clock.monotonic() + self.wait_s,
            resend=resend,
        )


def about_bytes(message: Message) -> int:
    """Return about how many bytes the record of a message takes."""
    headers = message.headers or {}
    texts = [message.tag or "", *headers, *headers.values()]
    key = message.key
    if isinstance(key, str):
        texts.append(key)
    others = len(message.content) + (len(key) if isinstance(key, bytes) else 0)
    return others + sum(len(each.encode()) for each in texts)
