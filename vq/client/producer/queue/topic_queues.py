"""A topic of one producer: a list of appended messages, and a queue per partition.

Messages are appended to one list per topic. The next holder of the accumulator's lock, mostly the
sender, *drains* the list: it moves all messages to the queues of their partitions at once. Some
have their partition already, mostly by their key; a ``Spread`` deals out the others. The message of
a blocking send goes into its queue at once, behind all that was appended before it.

A partition may become *unavailable*, see ``OnUnavailable``. Then ``set_aside`` decides about the
messages that wait in its queue: they stay, are refused, or are dealt to other partitions. Messages
that are dealt again keep their order, behind those that wait at the new partition already: they may
come behind later ones of the same thread, which ``on_unavailable="any"`` allows.

The main thread may drain, and a signal handler may raise in it. CPython runs signal handlers when a
call returns, when a function begins and when a loop repeats. So steps that must not be separated
have no call and no loop between them below.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from vq import limits
from vq.client.config import OnUnavailable, ProducerConfig
from vq.client.future import ANY_PARTITION, BlockingSendFuture, SendFuture
from vq.client.producer.metrics import TopicMeter
from vq.client.producer.queue.futures import divide
from vq.client.producer.queue.partition_queue import Host, PartitionQueue
from vq.client.producer.spread.partitioner import (
    DEFAULT,
    Keys,
    PartitionLoad,
    TopicPartitions,
    chosen_by,
    key_partition,
    own_choice,
    strategy_of,
)
from vq.client.producer.spread.spread import Shares, shares_of
from vq.errors import InvalidArgument
from vq.model import Compression, Message, TopicPartition, TopicSettings
from vq.reserved import answered_topic, is_reserved
from vq.store.records.compression import compress
from vq.store.records.format import (
    COMPRESSION_LZ4,
    COMPRESSION_NONE,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    FLAG_COMPRESSION_SHIFT,
)

_KINDS: Final[Mapping[str, int]] = {
    Compression.NONE: COMPRESSION_NONE,
    Compression.ZLIB: COMPRESSION_ZLIB,
    Compression.ZSTD: COMPRESSION_ZSTD,
    Compression.LZ4: COMPRESSION_LZ4,
}


@dataclass(frozen=True, slots=True)
class Compressor:
    """The stage ``compress`` of one topic. Any thread, several at once.

    It runs in the thread that sends, after the size was checked and before the message takes buffer
    space.

    Attributes:
        kind: One of ``format.COMPRESSION_*``.
        threshold: Least bytes of a content that is compressed.
        meter: Counts each content that is compressed.
    """

    kind: int
    threshold: int
    meter: TopicMeter = field(compare=False)

    def __call__(self, content: bytes) -> tuple[int, bytes]:
        """Return flag bits of the record, and the bytes to store.

        No bits and the content itself, if it is below the threshold, or would not get smaller by
        what a reader is to pay for.
        """
        if len(content) >= self.threshold:
            compressed = compress(content, self.kind)
            if len(content) - len(compressed) >= least_saving(len(content)):
                self.meter.compressed(len(content), len(compressed))
                return self.kind << FLAG_COMPRESSION_SHIFT, compressed
            self.meter.compressed(len(content), len(content))
        return 0, content


def least_saving(size: int) -> int:
    """Return by how many bytes a content of so many has to get smaller to be stored compressed.

    By an eighth below 1 KiB: each stream costs every reader about 2 µs, however small it is.
    """
    return max(1, size // 8) if size < limits.KIB else 1


def compressor_of(
    config: ProducerConfig, settings: TopicSettings, meter: TopicMeter
) -> Compressor | None:
    """Return the compressor of a producer for a topic; None: nothing is compressed.

    Kind and threshold are two settings: a producer may take one of them from the topic.
    """
    kind = _KINDS[config.compression or settings.compression or Compression.NONE]
    if kind == COMPRESSION_NONE:
        return None
    for threshold in (config.compression_threshold, settings.compression_threshold):
        if threshold is not None:
            return Compressor(kind, threshold, meter)
    return Compressor(kind, limits.COMPRESSION_THRESHOLD_BYTES, meter)


def _named_partition(message: Message, _: TopicPartitions) -> int:
    return message.partition


class TopicQueues:
    """A published topic.

    ``drain``, ``queue_of`` and ``next_partition`` are called under the accumulator's lock.

    The others are not: ``update`` runs on the loop, ``partition_of`` in any thread.

    Attributes:
        topic: Its name.
        topic_id: Its id; a topic that is deleted and created again has another one.
        appended: Messages that wait to be drained, oldest first; any thread appends.
        shares: What a drain has yet to move to queues; an interrupted drain leaves some.
        compressor: Compresses messages; None: none are compressed.
        content_bytes_max: Largest payload the topic takes, before compression.
        queues: One per partition.
        directed: A message in ``appended`` may have its partition already.
        choose: The application's own partitioner; None: ``keys`` and ``spread`` decide.
        is_own: It is a topic of vq's own.
        keys: What a key does.
        plain_bytes_max: Largest payload that is stored as it is, without a look at ``compressor``.
        usual_keys: Among how many partitions a key chooses by ``key_partition``; -1: a key chooses
            none; 0: who appends asks ``partition_of``.
        spread: Deals out the messages that have no partition yet.
        on_unavailable: What happens to directed messages whose partition is unavailable.
        ordered: Messages without a key stay at their partition like those with one.
        partitions: What the application's partitioner sees of the topic.
        weights: How much each partition gets of the messages that are spread; None: all the same.
    """

    __slots__ = (
        "_able",
        "_full",
        "_host",
        "_staying",
        "appended",
        "choose",
        "compressor",
        "content_bytes_max",
        "directed",
        "is_own",
        "keys",
        "meter",
        "on_unavailable",
        "ordered",
        "partitions",
        "plain_bytes_max",
        "queues",
        "shares",
        "spread",
        "topic",
        "topic_id",
        "usual_keys",
        "weights",
    )

    def __init__(
        self,
        topic: str,
        topic_id: str,
        host: Host,
        meter: TopicMeter,
    ) -> None:
        """Make a topic without partitions; ``update`` adds them.

        Args:
            topic: Its name.
            topic_id: Its id.
            host: The producer.
            meter: Counts.
        """
        config = host.config
        self.topic = topic
        self.topic_id = topic_id
        self.appended: list[SendFuture] = []
        self.shares: list[tuple[PartitionQueue, list[SendFuture]]] = []
        self.content_bytes_max = self.plain_bytes_max = TopicSettings().max_message_bytes
        self.compressor: Compressor | None = None
        self.queues: list[PartitionQueue] = []
        self.directed = False
        self.keys = (strategy_of(config.partitioner) or DEFAULT).keys
        self.spread = host.make_spread(self._is_waiting)
        self.usual_keys = 0
        self.is_own = is_reserved(topic)
        self.choose = own_choice(config.partitioner)
        self.on_unavailable = OnUnavailable(config.on_unavailable)
        if answered_topic(topic) is not None:  # who waits for a reply reads one partition alone
            self.choose, self.on_unavailable = _named_partition, OnUnavailable.WAIT
        self.ordered = config.ordered
        self.partitions = TopicPartitions(topic, 0, ())
        self._able: frozenset[int] = frozenset()  # the partitions that are available
        self._full: frozenset[int] = frozenset()  # their disks are full
        self.weights: Sequence[float] | None = None  # one per partition
        # By partition: how many messages at the head of its queue stay there, and the last of them.
        self._staying: dict[int, tuple[int, SendFuture]] = {}
        self._host = host
        self.meter = meter

    def update(self, settings: TopicSettings, partitions: int, writable: Sequence[int]) -> None:
        """Follow the routes: add partitions; the spread skips those that are unavailable."""
        self.compressor = compressor = compressor_of(self._host.config, settings, self.meter)
        self.content_bytes_max = largest = settings.max_message_bytes
        self.plain_bytes_max = (
            largest if compressor is None else min(largest, compressor.threshold - 1)
        )
        if self.is_own:
            self.plain_bytes_max = -1  # what an application sends there by hand is looked at
        known = self.partitions
        if known.count == partitions and known.writable == tuple(writable):
            return
        added: list[PartitionQueue] = []
        for number in range(len(self.queues), partitions):
            queue = PartitionQueue(TopicPartition(self.topic, number), self._host, self.meter)
            queue.topic_id = self.topic_id
            added.append(queue)
        self.queues += added  # in one step: the number of partitions decides where keys go
        if self.choose is None:
            self.usual_keys = -1 if self.keys is Keys.IGNORED else len(self.queues)
        loads = known.loads if known.count == partitions else ()
        self.partitions = TopicPartitions(self.topic, partitions, tuple(writable), loads)
        self._able = frozenset(writable)
        self._staying = {}
        self._spread_again()

    def follow_weights(self, weights: Sequence[float] | None) -> None:
        """Spread messages by weight from now on.

        Args:
            weights: One for each partition of the topic, >= 0; None: all the same. Partitions that
                were added since, and a list of zeros, count as no weights.
        """
        if weights != self.weights:
            self.weights = weights
            self._spread_again()

    def pass_by(self, full: frozenset[int]) -> None:
        """Deal no messages to partitions on full disks, while there are others."""
        if full != self._full:
            self._full = full
            self._spread_again()

    def follow_loads(self, loads: Sequence[PartitionLoad]) -> None:
        """Show these loads to the application's partitioner, one for each partition."""
        if len(loads) == self.partitions.count:
            self.partitions = replace(self.partitions, loads=tuple(loads))

    def _spread_again(self) -> None:
        known, weights = self.partitions, self.weights
        able = known.writable or range(known.count)
        chosen = [number for number in able if number not in self._full] or able
        if weights is not None and len(weights) == known.count:
            of_chosen = [weights[number] for number in chosen]
            self.spread.follow(chosen, of_chosen if sum(of_chosen) > 0 else None)
        else:
            self.spread.follow(chosen)

    def _is_waiting(self, partition: int) -> bool:
        return bool(self.queues[partition].pending)

    def partition_of(self, message: Message) -> int:
        """Return the partition for a message, or ``ANY_PARTITION``: the spread deals it out.

        Any thread, without the lock: an application's partitioner may block or send messages.

        Raises:
            InvalidArgument: There is no key and the strategy needs one, or the partitioner raised
                or chose a partition that does not exist.
        """
        if self.choose is not None:
            return chosen_by(self.choose, message, self.partitions)
        key = message.key
        if self.keys is Keys.IGNORED:
            return ANY_PARTITION
        if key is not None:
            return key_partition(key, len(self.queues))
        if self.keys is Keys.REQUIRED:
            raise InvalidArgument(
                f"a message to {self.topic} has no key, and the partitioner 'hash' needs one: give "
                "it a key, or leave out partitioner, so that messages without a key go round robin"
            )
        return ANY_PARTITION

    def next_partition(self) -> int:
        """Return the next partition of the spread, which sees all earlier messages in queues."""
        if self.appended or self.shares:
            self.drain()
        return self.spread.one()

    def queue_of(self, future: BlockingSendFuture) -> PartitionQueue:
        """Return the queue for a blocking send; all earlier messages are in queues then."""
        if self.appended or self.shares:
            self.drain()
        if future.partition < 0:
            future.partition = self.spread.one()
            future.dealt = True
        return self.queues[future.partition]

    def free_queue_of(self, items: list[SendFuture]) -> PartitionQueue | None:
        """Return the queue that a thread may lead with all these messages; None: there is none.

        All earlier messages are in queues then.
        """
        if self.appended or self.shares:
            self.drain()
        queue = self.queues[items[0].partition]
        shares = divide(items) if queue.is_free_for(items) else None
        return queue if shares is not None and len(shares) == 1 else None

    def drain(self) -> None:
        """Move appended messages to the queues in order; first those of an interrupted drain."""
        if self.shares:
            self._hand_out()
        items = self.appended[:]
        count = len(items)
        shares = self._directed_shares(items) if self.directed else self._shares(items)
        self.shares = shares
        del self.appended[:count]  # callers append behind the slice at any time
        # One line, which a trace function does not part: other threads append at any time.
        self.directed = self.directed if self.appended else False
        self._hand_out()

    def drain_to_one(self) -> None:
        """Move all appended messages to one queue: they are to fail, and ``drain`` raised."""
        items = self.appended[:]
        count = len(items)
        self.shares += [(self.queues[0], items)]  # no call between these two
        del self.appended[:count]
        self._hand_out()

    def _hand_out(self) -> None:
        shares = self.shares
        while shares:
            queue, items = shares[-1]
            queue.pending += items
            del shares[-1]

    def set_aside(self, queue: PartitionQueue) -> tuple[list[SendFuture], bool]:
        """Decide about the messages that wait for an unavailable partition; under the lock.

        The sender owns the queue. It looks again only at messages that were not there before, and
        at all of them after a change of what is available.

        Returns:
            The messages to refuse, which are still in the queue (see ``PartitionQueue.refuse``);
            and whether messages were moved to other queues, which the caller has sent.
        """
        number, able = queue.partition.partition, self._able
        if number in able or not (able or self.on_unavailable is OnUnavailable.FAIL):
            return [], False
        queue.take_apart()
        begin = self._count_staying(queue)
        waiting = queue.pending[begin:]
        if not waiting:
            return [], False
        end = begin + len(waiting)
        moving = [item for item in waiting if self._moves(item)] if able else []
        refused: list[SendFuture] = []
        if moving:
            moved = set(moving)
            waiting = [item for item in waiting if item not in moved]
            shares = self._shares_again(moving)
            for item in moving:
                if isinstance(item, BlockingSendFuture):
                    item.leads = False  # its thread waits at the former queue
            self.shares += shares  # no call between these two
            queue.pending[begin:end] = waiting
            self._hand_out()
        if self.on_unavailable is OnUnavailable.FAIL:
            refused = waiting
        elif waiting:
            self._staying[number] = begin + len(waiting), waiting[-1]
        return refused, bool(moving)

    def _count_staying(self, queue: PartitionQueue) -> int:
        """Return how many messages at the head of a queue were found to stay, at least 0."""
        count, last = self._staying.get(queue.partition.partition, (0, None))
        pending = queue.pending
        return count if 0 < count <= len(pending) and pending[count - 1] is last else 0

    def _is_directed(self, item: SendFuture) -> bool:
        return self.ordered or not item.is_dealt

    def _moves(self, item: SendFuture) -> bool:
        """Return whether a message leaves a partition that is unavailable.

        Later messages of the same thread may be in the other partitions already, and it would come
        behind them. A caller that waits for the outcome has sent none: its messages lose no order.
        """
        if self.on_unavailable is OnUnavailable.ANY:
            return True
        return not self.ordered and getattr(item, "dealt", False)

    def _shares_again(
        self, items: list[SendFuture]
    ) -> list[tuple[PartitionQueue, list[SendFuture]]]:
        """Return where messages of an unavailable partition go; some partition is available."""
        able, one = self._able, self.spread.one
        chosen: list[int] = []
        for item in items:
            home = item.partition if self._is_directed(item) else ANY_PARTITION
            chosen.append(home if home in able else one())
        shares = self._of_queues(shares_of(chosen, items))
        for queue, _ in shares:
            queue.has_diverted = queue.has_diverted or self.on_unavailable is OnUnavailable.ANY
        return shares

    def _shares(self, items: list[SendFuture]) -> list[tuple[PartitionQueue, list[SendFuture]]]:
        """Return what goes to each queue when the spread deals out all messages."""
        return self._of_queues(self.spread.deal(items)) if items else []

    def _directed_shares(
        self, items: list[SendFuture]
    ) -> list[tuple[PartitionQueue, list[SendFuture]]]:
        shares = divide(items)
        if shares is not None:
            return self._of_queues(shares)
        chosen = [item.partition for item in items]
        undirected = [place for place, number in enumerate(chosen) if number < 0]
        if undirected:
            for number, places in self.spread.deal(undirected):
                for place in places:
                    chosen[place] = number
        return self._of_queues(shares_of(chosen, items))

    def _of_queues(
        self, shares: Shares[SendFuture]
    ) -> list[tuple[PartitionQueue, list[SendFuture]]]:
        return [(self.queues[number], share) for number, share in shares]
