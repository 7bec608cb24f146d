"""The asynchronous consumer: reads, membership, and messages one by one."""

from typing import Self

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.giving_up import Called, awaiting
from vq.client.consumer.deliver.hands import present_hand
from vq.client.consumer.deliver.inbox import Inbox, Messages
from vq.client.consumer.deliver.listening import AsyncListener, Listening, check_listener
from vq.client.consumer.deliver.redelivered import redelivering_async
from vq.client.consumer.deliver.stored_results import passing_async
from vq.client.consumer.deliver.time_limit import limited
from vq.client.consumer.group.taken import TakenMessages
from vq.client.consumer.pull import Pull, SharedMessages, SharedPull
from vq.client.producer.transaction.transaction import TransactionCore
from vq.client.reading.positions import Moment, Position
from vq.errors import InvalidArgument, InvalidState, VqError
from vq.message_filter import Wanting
from vq.model import Message, MessageList, OffsetBounds, PartitionTrouble, TopicPartition


class MessageConsumer:
    """Receives messages by position, or as a member of a group.

    A member gives its messages to listeners, or to a task that iterates or calls ``get_many``.
    """

    def __init__(
        self, core: ConsumerCore, inbox: Inbox, listening: Listening, cluster: ClusterClient
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._check_loop = cluster.check_loop
        self._inbox = inbox
        self._listening = listening
        self._is_pulled: bool | None = None  # None: nothing was subscribed
        self._pull = Pull(inbox, self._begin)
        self._shared = SharedPull(core) if core.is_shared else None
        self._started = False
        self._listeners: dict[str, AsyncListener] = {}  # by topic or pattern
        self._redelivered = redelivering_async(self._listeners, in_lists=core.config.batch_size > 1)

    @property
    def config(self) -> ConsumerConfig:
        """How this consumer fetches and commits."""
        return self._core.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    @property
    def last_error(self) -> VqError | None:
        """The last error that stopped a partition, also if it goes on since; None: no error yet."""
        return self._core.last_error

    @property
    def bad_reads(self) -> int:
        """How often bytes failed a check and were fetched again on a new connection."""
        return self._core.bad_reads

    @property
    def bad_records(self) -> int:
        """How many records nobody could read and were passed over, see ``on_bad_record``."""
        return self._core.bad_records

    def troubles(self) -> dict[TopicPartition, PartitionTrouble]:
        """Return the partitions that do not go on now, each with the cause and the time.

        Causes are damaged bytes, a listener that raises, or a broker that refuses. The consumer
        tries again with growing pauses and skips nothing. ``vq group describe`` shows the same,
        with one exception: what passes by itself, such as a broker that is away or has too many
        readers, is only here, and when it has lasted for 10 s.
        """
        return self._core.troubles()

    @property
    def member(self) -> str:
        """The name of this member inside its group."""
        return self._core.member

    def _here(self) -> ConsumerCore:
        """Return the core to a coroutine on the factory's loop."""
        self._check_loop()
        return self._core

    async def get(
        self,
        topic: str,
        partition: int,
        offset: int,
        length: int,
        timeout: float | None = None,
        message_filter: Wanting = None,
    ) -> MessageList:
        """Read messages from ``offset`` on; see ``vq.MessageConsumer.get``."""
        reader = self._here().reader
        return await reader.get(topic, partition, offset, length, timeout, message_filter)

    def subscribe(
        self,
        topic_or_pattern: str,
        length: int = limits.MIB,
        listener: AsyncListener | None = None,
        message_filter: Wanting = None,
    ) -> Self:
        """Add a topic, or those of a pattern, before ``start`` or the iteration.

        All topics of a consumer have listeners, or none has and a task iterates or calls
        ``get_many``.

        Args:
            topic_or_pattern: A topic, which must exist when the consumer starts, or a pattern of
                names such as ``"orders.*"``; see ``vq.MessageConsumer.subscribe``.
            length: Bytes fetched at a time, 1 to 8 MiB.
            listener: A coroutine function, called on the factory's loop for each message, or with
                ``config.batch_size`` for lists of them; ``config.mode`` says in which order, and
                ``config.workers`` how many run at a time. A message counts as consumed when it
                returns; see ``vq.MessageConsumer.subscribe`` for failures. Call ``start`` after.
            message_filter: A tag, or several as ``"a || b"``, a ``vq.Where`` or a
                ``vq.MessageFilter``; see ``vq.MessageConsumer.subscribe``.

        Returns:
            This consumer.

        Raises:
            InvalidArgument: An argument is wrong, or some topics have a listener and some none.
        """
        if self._is_pulled is not None and self._is_pulled is not (listener is None):
            raise InvalidArgument(
                "some topics of this consumer have a listener and some have none; give all of them "
                "one, or none and iterate or call get_many, or make two consumers"
            )
        if listener is None:
            self._core.subscribe(topic_or_pattern, length, message_filter, self._inbox)
        else:
            check_listener(listener)
            self._core.subscribe(
                topic_or_pattern,
                length,
                message_filter,
                self._listening,
                self._called(listener),
                self._called(self._redelivered),
            )
            self._listeners[topic_or_pattern] = listener
        self._is_pulled = listener is None
        return self

    def _called(self, listener: AsyncListener) -> Called:
        """Return what the executor calls for a listener. Copies have time, whatever its limit."""
        core, limit_s = self._core, self.config.listener_timeout_s
        called = listener if self.config.offset_store is None else passing_async(listener)
        called = called if limit_s is None else limited(called, limit_s)
        return Called(called, awaiting(called, core.failed.tries, core.copy))

    def _check_pulled(self) -> None:
        if self._is_pulled is False:
            raise InvalidState(
                "the topics of this consumer have listeners, which get the messages; subscribe "
                "without a listener to iterate or to call get_many"
            )

    async def start(self) -> Self:
        """Join the group; the iteration and ``get_many`` do it when they begin."""
        await self._here().start()
        self._started = True
        return self

    def __aiter__(self) -> Messages | SharedMessages:
        """Iterate over messages as they arrive, in one task at a time.

        With ``model="shared"`` any number of tasks may iterate, and none of what follows holds:
        each message is a ``vq.SharedMessage`` that counts as consumed by its ``ack`` alone. One
        that nobody has settled when its lease is over is delivered again.

        A message counts as consumed when the task asks for the next one, or by ``close``. Leaving
        the loop, by ``break`` or by an error, does not consume it. While one task is inside its
        loop, another task that asks for a message gets ``InvalidState``, whichever iterator it
        uses. After a task has ended, another one may go on with its iterator; if the task failed,
        its message is delivered again. If the error was caught outside the loop, a new loop in any
        task does not deliver that message again: it gets the next one, and the log has a warning,
        once. Catch errors inside the loop, or give ``subscribe`` a listener, which gets a message
        again that it has failed for. ``await anext(aiter(consumer))`` counts as a loop that was
        left at once.

        Bound a wait with ``asyncio.timeout``. Before Python 3.12 ``asyncio.wait_for`` asks in a
        task of its own, which is refused while the caller's task has a message.

        Raises:
            InvalidState: Another task has a message, or waits for one.
            CoordinationError: The session with ZooKeeper has ended for good, as when it refuses the
                client; no message follows.
        """
        self._cluster.check_parent()
        self._check_pulled()
        if self._shared is not None:
            return SharedMessages(self._shared)
        return Messages(self._inbox, self._begin)

    async def get_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """Return up to ``max_messages`` messages that have arrived, waiting for a first one.

        It waits ``timeout`` seconds, without one as long as it takes, and returns an empty list if
        none came; 0 only looks. The first call joins the group, which the time-out does not bound.

        The messages of a call count as consumed when the same task calls again (or asks its
        iterator), or by ``close``: all of them or none, as with ``async for``. A call that is
        cancelled has taken none: the next one gets what comes, and nothing is lost or repeated. A
        partition that another member is to get waits for the next call.

        So catch the error of a handler inside the loop over the messages. If a loop around it
        catches it and calls again, the group passes by all that were not handled; they are
        committed with the next commit. A warning in the log says once that the loop was left.

        With ``model="shared"`` this is otherwise: any number of tasks may call, and a call settles
        nothing that an earlier one has returned. Await ``ack``, ``nack``, ``reject`` or ``extend``
        of each message. What is not settled when its lease is over is delivered again; ``close``
        gives back the rest.

        Args:
            max_messages: 1 to 100,000.
            timeout: Seconds.

        Raises:
            InvalidState: The consumer is closed, or another task has a message, or waits for one.
            CoordinationError: The session with ZooKeeper has ended for good; no message follows.
        """
        self._check_loop()
        self._check_pulled()
        pull = self._pull if self._shared is None else self._shared
        return await pull.get_many(max_messages, timeout)

    async def _begin(self) -> None:
        self._check_loop()
        if not self._started:
            await self.start()

    def _take(self, transaction: TransactionCore | None) -> TakenMessages | None:
        """See ``ConsumerCore.take``; for a producer."""
        inbox = self._inbox if self._is_pulled else None
        return self._here().take(transaction, present_hand(), inbox)

    async def get_offset(self, topic: str) -> dict[TopicPartition, int]:
        """Return the committed offset of the group in every partition that has one."""
        return await self._here().committed(topic)

    async def get_bounds(self, topic: str, partition: int) -> OffsetBounds:
        """Return the range of offsets that can be read now; see ``vq.MessageConsumer``."""
        return await self._here().reader.bounds(topic, partition)

    async def offset_at(self, topic: str, partition: int, moment: Moment) -> int:
        """Return the offset of a time or an end; see ``vq.MessageConsumer.offset_at``."""
        return await self._here().reader.offset_at(topic, partition, moment)

    async def offsets_at(self, topic: str, moment: Moment) -> dict[TopicPartition, int]:
        """Return ``offset_at`` of every partition of a topic."""
        return await self._here().reader.offsets_at(topic, moment)

    async def get_last(
        self,
        topic: str,
        count: int,
        partition: int | None = None,
        message_filter: Wanting = None,
    ) -> list[Message]:
        """Return the last messages of a partition or topic; see ``vq.MessageConsumer``."""
        return await self._here().reader.last(topic, count, partition, message_filter)

    async def seek(self, where: TopicPartition | str, position: Position) -> None:
        """Let the group go on at another place; see ``vq.MessageConsumer.seek``.

        The message in hand counts when its task asks for the next one, which comes from there.
        """
        await self._here().steering.seek(where, position)

    def pause(self, *where: TopicPartition | str) -> None:
        """Deliver nothing of some partitions until ``resume``; see ``vq.MessageConsumer``."""
        self._here().steering.pause(where)

    def resume(self, *where: TopicPartition | str) -> None:
        """Go on after ``pause``; without a partition, with all held now. See ``pause``."""
        self._here().steering.resume(where)

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused now, sorted."""
        return self._here().steering.paused()

    async def commit(self) -> None:
        """Commit the consumed messages now instead of at the next interval."""
        await self._here().commit()

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this member holds now."""
        return self._core.held()

    async def close(self) -> None:
        """Finish the messages in hand, commit, leave the group. May be called again.

        It waits up to 30 s for listeners that run; one that is not done by then is cancelled, and
        its message is delivered again.

        Of an iteration the current message counts only if the calling task asked for it, or a task
        that has ended without an error. If another task is handling a message inside its loop,
        ``close`` waits up to 30 s; a message that is not handled by then is delivered again. So
        close before you cancel that task. Also delivered again is the message of a task that
        failed, and of another task that left its loop. Inside a loop, call ``close`` in the loop's
        own task, not in a task that the loop waits for (before Python 3.12 ``asyncio.wait_for``
        makes one). If an exception leaves ``async with`` of this consumer or its factory, the
        current message does not count.

        Raises:
            InvalidState: A listener called it, which would wait for itself.
        """
        if self._cluster.forked:
            return
        core = self._here()
        self._listening.check_outside()
        self._inbox.close()
        try:
            await core.close()
        finally:
            if core.stopped:  # a cancelled close waits on in the background
                await self._listening.close()

    async def __aenter__(self) -> Self:
        self._check_loop()
        return self

    async def __aexit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        if self._cluster.forked:
            return
        self._check_loop()
        if exc is not None:
            self._put_down()
        await self.close()

    def _put_down(self) -> None:
        """Do not count the current message: its handler failed."""
        self._inbox.close(consumed=False)
