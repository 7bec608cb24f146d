"""The blocking consumer: reads, membership, and the end of its listeners' threads."""

from collections.abc import Sequence
from typing import Self

from vq import limits
from vq.client.config import ConsumerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.giving_up import Called, Copied, Spent, calling
from vq.client.consumer.deliver.hands import present_hand
from vq.client.consumer.deliver.redelivered import redelivering
from vq.client.consumer.deliver.stored_results import passing
from vq.client.consumer.deliver.time_limit import Watched
from vq.client.consumer.deliver.workers import Listener, Workers
from vq.client.consumer.group.taken import TakenMessages
from vq.client.consumer.pull import ThreadPull, ThreadSharedPull
from vq.client.consumer.shared.handles import SettleKind
from vq.client.consumer.shared.sources import HeldMessage
from vq.client.kinds import check_function, check_takes_message
from vq.client.producer.transaction.transaction import TransactionCore
from vq.client.reading.positions import Moment, Position
from vq.client.runtime import LoopThread
from vq.errors import InvalidState, VqError
from vq.message_filter import Wanting
from vq.model import (
    Message,
    MessageList,
    OffsetBounds,
    PartitionTrouble,
    TopicPartition,
    check_timeout,
)

_GET_S = 30.0  # added to the caller's time-out: connecting, a move, ZooKeeper
_WORKERS_S = 5.0


class MessageConsumer:
    """Receives messages, by position or as a member of a group.

    A member gives its messages to listeners, or to a thread that calls ``get_many``. Any thread may
    call the methods, also a listener, except ``close``.
    """

    def __init__(
        self, core: ConsumerCore, runtime: LoopThread, workers: Workers, pull: ThreadPull
    ) -> None:
        self._core = core
        self._pull = pull
        self._runtime = runtime
        self._shared = ThreadSharedPull(core, self._settle, runtime) if core.is_shared else None
        self._workers = workers
        self._listeners: dict[str, Listener] = {}  # by topic or pattern
        self._redelivered = redelivering(self._listeners, in_lists=core.config.batch_size > 1)
        self._forget = runtime.on_loss(forked=workers.forsake, ended=lambda _: None)

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

    def get(
        self,
        topic: str,
        partition: int,
        offset: int,
        length: int,
        timeout: float | None = None,
        message_filter: Wanting = None,
    ) -> MessageList:
        """Read messages from ``offset`` on, at least one if there is any, about ``length`` bytes.

        It needs no group and changes no committed offset. With ``timeout`` it waits so many seconds
        for a first message; without, it returns an empty list at the end of the partition.
        Compressed messages may be far larger than the bytes read: the list ends after 4 MiB of
        them. Continue at ``next_offset`` of the list, also of an empty one: a partition has records
        that are no messages, and may end with them.

        With ``message_filter`` (see ``subscribe``) the list may be empty before the end of the
        partition, once the time is over: go on at its ``next_offset``, until that does not move.

        Raises:
            OffsetOutOfRange: The offset is not in the valid range, which is in ``details``.
            OffsetNotBoundary: No record starts there; ``details["next"]`` is the next start.
            UnknownTopic, UnknownPartition: There is no such topic or partition.
        """
        bound = None if timeout is None else check_timeout(timeout)
        return self._runtime.run(
            self._core.reader.get(topic, partition, offset, length, bound, message_filter),
            _GET_S + (bound or 0.0),
        )

    def subscribe(
        self,
        topic_or_pattern: str,
        length: int = limits.MIB,
        listener: Listener | None = None,
        message_filter: Wanting = None,
    ) -> Self:
        """Add a topic, or those of a pattern, and the listener of their messages, before ``start``.

        All topics of a consumer have listeners, or none has and ``get_many`` returns the messages.

        Args:
            topic_or_pattern: A topic, which must exist when ``start`` is called. Or a pattern of
                names, such as ``"orders.*"``: ``*`` stands for any characters, ``?`` for one. The
                consumer follows topics that come and go: a new one is read from its start, within a
                second; if a hint of ZooKeeper is lost, within ``config.audit_interval_s``.
                ``message.topic`` tells which one it is. Topics of vq's own never match, and no two
                subscriptions may be of one topic. All members of a group have the same patterns.
            length: Bytes fetched at a time, 1 to 8 MiB.
            listener: Called on a thread of this consumer for each message, or with
                ``config.batch_size`` for lists of them; ``config.mode`` says in which order, and
                ``config.workers`` how many run at a time. A message counts as consumed when it
                returns. If it raises, or returns ``vq.RETRY`` or ``vq.Retry(after_s=...)``, the try
                has failed: it is called again after a pause (``retry_backoff``), and after
                ``max_attempts`` tries ``on_failure`` says what happens. A list fails as a whole,
                unless it returns ``vq.Retry(done=...)``; its messages are then tried one by one.
                None: call ``get_many``.
            message_filter: A tag, or several as ``"a || b"``; brokers send only messages with one
                of them. There are no patterns: a tag with one of ``, && * >`` stands between double
                quotes. Or ``vq.Where("price > 10")``: brokers send only messages of which the
                expression over headers is true. Or a ``vq.MessageFilter``, which this consumer
                calls. ``"*"`` or None: all messages. All members of a group have the same filter.

        Returns:
            This consumer.
        """
        self._pull.check_subscription(listener)
        if listener is None:
            self._core.subscribe(topic_or_pattern, length, message_filter, self._pull.inbox)
        else:
            check_function(
                "listener",
                listener,
                "give a plain function of the message, or iterate over a consumer of vq.aio",
            )
            check_takes_message("listener", listener)
            self._core.subscribe(
                topic_or_pattern,
                length,
                message_filter,
                self._workers,
                self._called(listener),
                self._called(self._redelivered),
            )
            self._listeners[topic_or_pattern] = listener
        self._pull.subscribed(listener)
        return self

    def _called(self, listener: Listener) -> Called:
        """Return what the executor calls for a listener."""
        called = listener if self.config.offset_store is None else passing(listener)
        called = called if self.config.listener_timeout_s is None else Watched(called)
        return Called(called, calling(called, self._core.failed.tries, self._copy))

    def _copy(self, spent: Sequence[Spent]) -> Copied:
        """Have messages copied; a thread of a listener waits for it."""
        try:
            return self._runtime.run(self._core.copy(spent))
        except Exception as error:  # noqa: BLE001 - the loop may have ended
            return 0, error

    def start(self) -> Self:
        """Join the group and begin to receive.

        Raises:
            InvalidState: No topic was subscribed, or the configuration has no group.
            UnknownTopic: A subscribed topic does not exist.
            NotAuthenticated: The brokers do not take the user of the factory.
        """
        self._runtime.run(self._core.start(self._settle))
        return self

    def _settle(self, item: HeldMessage, kind: SettleKind, time_ms: int) -> None:
        """See ``ConsumerCore.settle``; for the methods of messages of a shared group."""
        self._runtime.run(self._core.settled(item, kind, time_ms))

    def get_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """Return up to ``max_messages`` messages that have arrived, waiting for a first one.

        For topics that were subscribed without a listener. It waits ``timeout`` seconds, without
        one as long as it takes, and returns an empty list if none came; 0 only looks. The first
        call joins the group, which the time-out does not bound.

        The messages of a call count as consumed when the same thread calls again, or by ``close``
        in that thread: all of them or none. After an exception leaves ``with``, or if the thread
        ends, they are delivered again. If a signal handler interrupts a call, the next one returns
        what it would have returned. A partition that another member is to get waits for the next
        call. Hand the messages of one thread to others, or make several consumers.

        So catch the error of a handler inside the loop over the messages. If a loop around it
        catches it and calls again, the group passes by all that were not handled; they are
        committed with the next commit. A warning in the log says once that the loop was left.

        With ``model="shared"`` this is otherwise: any number of threads may call, and a call
        settles nothing that an earlier one has returned. Call ``ack``, ``nack``, ``reject`` or
        ``extend`` of each message. What is not settled when its lease is over is delivered again;
        ``close`` gives back the rest.

        Args:
            max_messages: 1 to 100,000.
            timeout: Seconds.

        Raises:
            InvalidState: The consumer is closed, its topics have listeners, or another thread has
                messages of a call, or waits for some.
            CoordinationError: The session with ZooKeeper has ended for good; no message follows.
        """
        if self._shared is not None:
            self._pull.check_pulled()
            return self._shared.get_many(max_messages, timeout)
        return self._pull.get_many(max_messages, timeout)

    def _take(self, transaction: TransactionCore | None) -> TakenMessages | None:
        """See ``ConsumerCore.take``; for a producer."""
        hand, inbox = present_hand(), None if self._listeners else self._pull.inbox

        def take() -> TakenMessages | None:
            if inbox is not None:
                self._pull.drop_unreceived()
            return self._core.take(transaction, hand, inbox)

        return self._runtime.call(take)

    def get_offset(self, topic: str) -> dict[TopicPartition, int]:
        """Return the committed offset of the group in every partition that has one."""
        return self._runtime.run(self._core.committed(topic))

    def get_bounds(self, topic: str, partition: int) -> OffsetBounds:
        """Ask the partition's broker for the range of offsets that can be read now.

        Raises:
            UnknownTopic, UnknownPartition: There is no such topic or partition.
        """
        return self._runtime.run(self._core.reader.bounds(topic, partition))

    def offset_at(self, topic: str, partition: int, moment: Moment) -> int:
        """Return the offset where the messages of a time begin, or an end of what can be read.

        With a time it is the first batch that the broker stored at that time or later, by
        ``append_time``; the end of the partition if none is that young. No message stored at that
        time or later lies before it. Those of the same millisecond may be earlier: append times
        are whole milliseconds, rounded down. Needs no group.

        Args:
            topic: Its name.
            partition: Its number.
            moment: A ``datetime`` with its zone, ``"earliest"`` or ``"latest"``.

        Raises:
            UnknownTopic, UnknownPartition: There is no such topic or partition.
            InvalidArgument: The time has no zone.
        """
        return self._runtime.run(self._core.reader.offset_at(topic, partition, moment), _GET_S)

    def offsets_at(self, topic: str, moment: Moment) -> dict[TopicPartition, int]:
        """Return ``offset_at`` of every partition of a topic."""
        return self._runtime.run(self._core.reader.offsets_at(topic, moment), _GET_S)

    def get_last(
        self,
        topic: str,
        count: int,
        partition: int | None = None,
        message_filter: Wanting = None,
    ) -> list[Message]:
        """Return the last ``count`` messages of a partition, oldest first. Needs no group.

        Without a partition: those of the topic, in the order of ``append_time``; messages of one
        partition keep their order. There are fewer if no more are stored, or if more would take
        over 64 MiB for a partition.

        Args:
            topic: Its name.
            count: 1 to 10,000.
            partition: Its number; None: all of the topic.
            message_filter: Which messages count, see ``subscribe``. Where few pass, much is read.

        Raises:
            UnknownTopic, UnknownPartition: There is no such topic or partition.
        """
        return self._runtime.run(
            self._core.reader.last(topic, count, partition, message_filter), _GET_S
        )

    def seek(self, where: TopicPartition | str, position: Position) -> None:
        """Let the group go on at another place, in a partition or all partitions of a topic.

        This member must hold them. A listener that runs finishes its message; the next one comes
        from the new place. Nothing is skipped or repeated besides. A listener may call it.

        The new place is this member's progress from now on: the next commit writes it, as long as
        no other member has claimed the partition. So after a seek back the group gets again what it
        has handled, also in a later process.

        Args:
            where: A partition, or the name of a topic: what this member holds of it.
            position: An offset where a message begins, such as ``Message.offset`` or
                ``next_offset``; a ``datetime`` with its zone (see ``offset_at``); ``"earliest"`` or
                ``"latest"``.

        Raises:
            InvalidState: This member does not hold that now; see ``assignment``.
            OffsetOutOfRange: The valid range is in ``details``. Nothing was changed.
            OffsetNotBoundary: No message begins there; ``details["next"]`` is the next start.
            GroupStopped: Messages were lost there; only ``vq group reset`` lets the group go on.
        """
        self._runtime.run(self._core.steering.seek(where, position), _GET_S)

    def pause(self, *where: TopicPartition | str) -> None:
        """Deliver nothing of some partitions until ``resume``; without one, of all held now.

        A listener that runs finishes its message. The member keeps the partitions and commits what
        was handled. A partition that leaves this member, also because its session ended, is not
        paused when it comes back: see ``paused``. A listener may call it.

        Raises:
            InvalidState: This member does not hold one of them now.
        """
        self._runtime.call(lambda: self._core.steering.pause(where))

    def resume(self, *where: TopicPartition | str) -> None:
        """Go on after ``pause``; without a partition, with all held now. See ``pause``."""
        self._runtime.call(lambda: self._core.steering.resume(where))

    def paused(self) -> list[TopicPartition]:
        """Return the partitions that are paused now, sorted."""
        return self._runtime.call(lambda: self._core.steering.paused())

    def commit(self) -> None:
        """Commit the handled messages now instead of at the next interval."""
        self._runtime.run(self._core.commit())

    def assignment(self) -> list[TopicPartition]:
        """Return the partitions that this member holds now."""
        return self._core.held()

    def close(self) -> None:
        """Wait for running listeners, commit, leave the group. May be called again.

        Messages of ``get_many`` count as consumed if this thread has called it.

        Raises:
            InvalidState: A listener or a callback called it, which would wait for itself. The
                consumer goes on.
            TimedOut: A callback kept the factory's thread for 30 s and does not return.
        """
        if self._runtime.forked:
            return
        self.check_outside()
        self._runtime.check_outside()  # raise in a callback before anything is closed
        try:
            if not self._runtime.gone:
                self._runtime.finish(self._pull.closing(self._core.close))
        finally:
            self._workers.close(_WORKERS_S)
            self._forget()

    def _forsake(self, timeout: float) -> None:
        """Commit what is handled, without a wait for listeners: this process ends. For vq only.

        Raises:
            TimedOut, CoordinationError: It is not known to be committed.
        """
        self._runtime.run(self._core.commit_and_forsake(), timeout)

    def _be_watched(self) -> None:
        """See ``ConsumerCore.be_watched``; for vq only."""
        self._core.be_watched()

    @property
    def _attempts_max(self) -> int:
        """The ``max_attempts`` that count in the group now; for vq only."""
        return self._core.policy.now.max_attempts

    def check_outside(self) -> None:
        """Raise ``InvalidState`` if one of this consumer's listeners calls it. For vq only."""
        if self._workers.is_current:
            raise InvalidState(
                "closing a consumer inside its own listener would wait for itself; "
                "close it from another thread"
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        if exc is not None:
            self._put_down()
        self.close()

    def _put_down(self) -> None:
        """Do not count the messages of ``get_many``: what handles them failed."""
        self._pull.put_down()
