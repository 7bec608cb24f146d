"""The blocking producer: what waits for the core on the factory's loop."""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from vq.blocking.consumer import MessageConsumer
from vq.blocking.transaction import Transaction
from vq.client.config import ProducerConfig
from vq.client.future import SendCallback, SendFuture, check_callback
from vq.client.kinds import topic_named
from vq.client.loop_calls import call_soon
from vq.client.producer.core import ProducerCore, deleted_if_unpublished
from vq.client.producer.intake.shortcut import send_async_shortcut, send_oneway_shortcut
from vq.client.producer.metrics import ProducerMetrics
from vq.client.producer.transaction.half import HalfMessage
from vq.client.producer.transaction.transaction import TransactionCore
from vq.client.producer.transaction_listener import HalfResult
from vq.client.requests import nobody_reads, reply_to
from vq.client.runtime import LoopThread
from vq.errors import (
    BufferFull,
    InvalidArgument,
    InvalidState,
    NotPublished,
    TimedOut,
    UnknownTopic,
    VqError,
)
from vq.model import (
    Cancellation,
    Message,
    SendResult,
    TopicSettings,
    TransactionState,
    Xid,
    check_timeout,
    check_xid,
)
from vq.shown import shown

SEND_SYNC_S = 3.0
ANSWER_S = 1.0  # added to the caller's time-out: the loop's thread may be in a callback


class MessageProducer:
    """Sends messages. ``MessageFactory.create_producer`` makes it; many threads may use it.

    Messages that one thread sends to one partition keep their order, also sync and async ones
    mixed.

    Every ``timeout`` is in seconds. A negative one counts as 0, and one above 1,000,000 as
    1,000,000. NaN, a ``bool`` and what is no number raise ``InvalidArgument``. With 0, a send waits
    neither for routes nor for space: publish the topic first. An accepted message is sent if its
    broker takes it at once, and has its outcome within about a second.
    """

    def __init__(self, core: ProducerCore, runtime: LoopThread) -> None:
        self._core = core
        self._checked: SendCallback | None = None  # the callback of the last send
        self._append = core.append
        self._transactions = core.transactions
        self._switching = threading.RLock()
        self._interceptors = core.interceptors
        self._runtime = runtime
        self._forget = runtime.on_loss(
            forked=core.abandon_in_child,
            ended=core.abandon,
            exiting=(core.flush_at_exit, core.config.exit_flush_s),
        )

    @property
    def config(self) -> ProducerConfig:
        """How this producer batches, waits and tries again."""
        return self._core.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    def publish(self, topic: str) -> None:
        """Fetch a topic's routes and watch them. The first send to a topic does it by itself.

        A missing topic is created if an operator allowed it (``vq cluster settings``). A send also
        creates it, if the new topic could take the message.

        Raises:
            InvalidArgument: Its name is not valid, or reserved for vq's own topics.
            UnknownTopic: There is no such topic, and the cluster does not let producers create it.
            TopicClosed: The topic is closed for writes.
            CoordinationError: ZooKeeper does not answer, the connection to it ended
                (``ConnectionLost``), or no broker group can take the partitions of the new topic.
                Try again later. A send raises ``NotSent`` instead.
        """
        self._runtime.run(self._core.publish(topic))

    def send_sync(self, message: Message, timeout: float | None = SEND_SYNC_S) -> SendResult:
        """Send one message and wait until it is stored as its topic's settings promise.

        ``timeout`` bounds all attempts together, by default 3 s; None: ``config.send_timeout_s``.
        In a transaction it returns at once, and the offset in the result is -1.

        Raises:
            Refused: The message is certainly not stored.
            OutcomeUnknown: It may or may not be stored; sending it again may store it twice.
            InvalidArgument: The message is invalid.
        """
        self._runtime.check()
        if self._transactions.open:
            transaction = self._transactions.current()
            if transaction is not None:
                return transaction.place_of(self._send(message, None, timeout))
        try:
            if self._interceptors is None:
                return self._accept(self._core.send_blocking, message, timeout).result()
            with self._interceptors.begin(message) as sending:
                accepted = self._accept(self._core.send_blocking, sending.message, timeout)
                result = accepted.result()
                sending.ended(result, None)
        except BufferFull:
            self._core.count_full()
            raise
        return result

    def _accept(
        self, accept: Callable[..., SendFuture], message: Message, timeout: float | None
    ) -> SendFuture:
        """Have the core accept a message; publish its topic first, if this is its first use.

        Args:
            accept: ``send_blocking`` or ``append_any`` of the core.
            message: What it accepts.
            timeout: Of the whole send, as the application gave it.
        """
        try:
            return accept(message, timeout=timeout)
        except NotPublished:
            pass  # it is published below: an error there has nothing to do with this one

        left = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        takes = functools.partial(self._core.check, message)
        for topic in self._core.missing(message):
            left = self._publish_for(topic, max(0.0, left), takes)
        with deleted_if_unpublished(message.topic):
            return accept(message, timeout=left)

    def _publish_for(
        self, topic: str, bound: float, takes: Callable[[TopicSettings], bool]
    ) -> float:
        """Publish a topic as part of a send within ``bound`` seconds; return the time left.

        A missing topic is created if a new one with its settings ``takes`` what is sent.
        """
        core, deadline = self._core, time.monotonic() + bound
        with core.publishing(topic, bound):
            settings = self._runtime.run(core.publish_existing(topic), bound)
            if settings is not None and takes(settings):
                left = max(0.0, deadline - time.monotonic())
                self._runtime.run(core.publish(topic), left)
        return deadline - time.monotonic()

    @send_async_shortcut
    def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
    ) -> SendFuture:
        """Accept one message and return at once.

        While the buffer is full it waits, or raises, as ``config.when_full`` says.

        ``callback(result, error)`` runs on the factory's thread: it must be short, and may call
        ``send_async`` but nothing that waits. Every exception that it raises is logged, also
        ``SystemExit`` and ``KeyboardInterrupt``: it ends neither the sending nor the program.
        ``timeout`` bounds all attempts together, by default ``config.send_timeout_s``.

        Raises:
            BufferFull: The buffer stayed full until the deadline, or is full with
                ``when_full="raise"``.
            NotSent: The topic could not be published until the deadline.
            InvalidArgument, MessageTooLarge, InvalidState, UnknownTopic, TopicClosed: The
                message was not accepted.
        """
        if callback is not self._checked:
            check_callback(callback)
            self._checked = callback
        return self._append(message, callback, timeout) or self._send(message, callback, timeout)

    def _send(
        self, message: Message, callback: SendCallback | None, timeout: float | None
    ) -> SendFuture:
        append = self._core.append_any
        if self._transactions.open:
            transaction = self._transactions.current()
            if transaction is not None:
                append = transaction.add
        return self._add(append, message, callback, timeout)

    def _add(
        self,
        append: Callable[..., SendFuture],
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
    ) -> SendFuture:
        """Append a message with ``append``, behind the interceptors."""
        try:
            if self._interceptors is None:
                accept = functools.partial(append, callback=callback)
                return self._accept(accept, message, timeout)
            with self._interceptors.begin(message, callback) as sending:
                accept = functools.partial(append, callback=sending)
                return self._accept(accept, sending.message, timeout)
        except BufferFull:
            self._core.count_full()
            raise

    def request(self, message: Message, timeout: float | None = None) -> Message:
        """Send a message and return the reply to it, which a reader sends with ``reply``.

        The first request to a topic makes the topic of its replies, if there is none, and begins to
        read there; many threads may wait at once. The message is stored and delivered as any other:
        at least once, also after this call has ended. A reply that comes too late, and a second one
        to the same request, reach nobody and are counted (``metrics().requests``).

        Args:
            message: Any; ``headers`` of the reply are those that the answering side gave.
            timeout: Seconds for everything, by default ``config.send_timeout_s``.

        Returns:
            The reply: ``content`` is bytes.

        Raises:
            TimedOut: No reply came in time. ``details`` has what is known: ``partition``,
                ``offset`` and ``id`` of the request if it is stored. It may be handled all the
                same.
            Refused: The request is certainly not stored.
            InvalidState: The producer was closed, or this thread has a transaction, before whose
                commit nobody gets the request.
            InvalidArgument: The message is invalid, or the name of its topic is too long.
        """
        self._runtime.check()
        core = self._core
        deadline = core.deadline_of(message, timeout)
        takes = functools.partial(core.check, message)
        for topic in core.missing(message):
            self._publish_for(topic, max(0.0, deadline - core.now()), takes)
        request = self._runtime.run(core.begin_request(message, deadline))
        try:
            self.send_async(request.message, request.sent, max(0.0, deadline - core.now()))
            core.hurry()
            return self._runtime.run(request.reply())
        finally:  # also when a signal handler raises
            call_soon(self._runtime.loop, request.close)

    def reply(
        self,
        request: Message,
        content: bytes | Any,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult | None:
        """Answer a request that was received: ``request`` of who sent it returns the reply.

        It returns once the reply is stored, as ``send_sync`` does. In a transaction the reply is
        sent with its commit. Who asked may wait no more: that is no error, and where the topic of
        replies was deleted, nothing is sent and None is returned.

        Args:
            request: As a listener gets it; ``request.reply_to`` is not None. Also one that was sent
                on to another topic, or that came from a retry topic.
            content: As of a ``Message``.
            headers: Of the reply.
            timeout: In seconds, by default ``config.send_timeout_s``.

        Raises:
            InvalidArgument: The message is no request.
            VqError: See ``send_sync``.
        """
        try:
            return self.send_sync(reply_to(request, content, headers), timeout)
        except UnknownTopic:
            nobody_reads(request)
            return None

    @send_oneway_shortcut
    def send_oneway(self, message: Message, timeout: float | None = None) -> None:
        """Accept one message, and only count its outcome.

        The message is batched and sent again until its deadline, as any other. If it is refused or
        its outcome is unknown, the application is not told: ``metrics`` counts it as any other, and
        a line at WARNING is logged for each topic and cause, with the number of messages, at most
        every 10 s. What is accepted and not sent is lost without a trace when the process is
        killed.

        While the buffer is full it waits, or raises, as ``config.when_full`` says.

        Raises:
            BufferFull, NotSent: The message was not accepted in time, see ``send_async``.
            InvalidArgument, MessageTooLarge, InvalidState, UnknownTopic, TopicClosed: The
                message was not accepted.
        """
        core = self._core
        if self._append is core.append:  # no transaction is open
            future = core.append_unheard(message, core.oneway.callbacks, timeout)
            if future is not None:
                return
        self._send_unheard(message, timeout)

    def _send_unheard(self, message: Message, timeout: float | None) -> None:
        oneway = self._core.oneway
        self._unheard = oneway.callbacks  # see ``shortcut``
        ended = oneway.callback_for(topic_named(message))
        if self._append(message, ended, timeout) is None:
            self._send(message, ended, timeout)

    def send_batch(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages together and wait until all of them are stored.

        Messages to the same partition keep the order of the call. Those of one topic without a key
        go to one partition, so that they make as few batches as possible; those with a key go
        where their key says, and a partitioner function is asked for each message. A call may have
        more messages than the buffer holds: it waits for space, also with ``when_full="raise"``.
        One deadline bounds the whole call. A message that cannot be accepted does not stop the
        others. If a signal handler interrupts the call, messages that were accepted are sent
        nevertheless.

        Args:
            messages: Messages of any topics; all are read before the first one is sent.
            timeout: Seconds until each message must have its outcome, by default
                ``config.send_timeout_s``.

        Returns:
            The place of each message, in the order of the call.

        Raises:
            BatchFailed: Some messages are refused or unknown; its ``outcomes`` has each of them.
            InvalidState: The producer is closed; nothing was sent.
        """
        self._runtime.check()
        core = self._core
        transaction = self._transactions.current() if self._transactions.open else None
        if transaction is not None:
            given = list(messages)
            if self._interceptors is None:
                with contextlib.suppress(NotPublished):  # each is published below
                    return transaction.add_batch(given)
            return [self.send_sync(each, timeout) for each in given]
        with core.batch_send(messages, timeout) as batch:
            for topic in batch.topics:
                try:
                    if not core.is_published(topic):
                        takes = functools.partial(batch.check, topic, check=core.check)
                        self._publish_for(topic, core.time_left(batch), takes)
                    while not core.append_batch(batch, topic):
                        pass
                except VqError as error:
                    count = batch.refuse(topic, error)
                    if isinstance(error, BufferFull):
                        core.count_full(count)
        while future := batch.last_waiting():  # it is mostly the last one to be stored
            future.exception()
        return batch.results()

    def transaction(self) -> Transaction:
        """Begin a transaction of this thread, for a ``with`` block; see ``Transaction``.

        The first one of a producer with a ``transactional_id`` takes that id from whoever has it.

        Raises:
            InvalidState: The thread has one of this producer already.
            ProducerFenced: Another producer has taken its transactional id.
            VqError: The transactional id cannot be taken now.
        """
        self._runtime.check()
        transactions = self._transactions
        if transactions.id.is_to_take:
            self._runtime.run(transactions.id.take())
        with self._switching:
            core = transactions.begin()
            self._append = self._append_beside
        return Transaction(core, self._runtime, self.config.send_timeout_s)

    def _begin_for(self, xid: Xid, number: int, *, keep: bool) -> Transaction:
        """Begin a transaction with a name and a number; for vq only.

        Args:
            xid, number: Those.
            keep: Databases follow its commit, so that is kept until it is forgotten.
        """
        self._runtime.check()
        with self._switching:
            core = self._transactions.begin(xid, number=number, keep=keep)
            self._append = self._append_beside
        return Transaction(core, self._runtime, self.config.send_timeout_s)

    def _append_beside(
        self, message: Message, callback: SendCallback | None, timeout: float | None, /
    ) -> SendFuture | None:
        """Append a plain message while a transaction is open, unless it belongs to that."""
        if not self._transactions.open:
            if self._switching.acquire(blocking=False):  # another thread may begin one just now
                if not self._transactions.open:
                    self._append = self._core.append
                self._switching.release()
        elif self._transactions.current() is not None:
            return None
        return self._core.append(message, callback, timeout)

    def begin_transaction(self) -> Transaction:
        """Begin a transaction of this thread; ``commit`` or ``rollback`` ends it.

        Raises:
            VqError: See ``transaction``.
        """
        return self.transaction()

    def send_offsets(self, consumer: MessageConsumer) -> None:
        """Have the transaction of this thread finish the messages that a consumer has given out.

        Their offsets are committed with its messages, or neither. In a listener it is for the
        message, or the list, that the listener was called for: commit before it returns. Without
        listeners it is for what the last ``get_many`` has returned: the next call comes after the
        end of the transaction. If that is rolled back, or this call raises, the messages are
        delivered again. So begin the transaction, get the messages, call this, then send.

        ``commit`` then returns when it is decided, with offsets of -1; called again, it waits until
        the messages are stored.

        Args:
            consumer: Of the same factory; a started member of a group with its offsets in
                ZooKeeper.

        Raises:
            InvalidArgument: It is no consumer of this API.
            InvalidState: This thread has no transaction, or another consumer's offsets in it; or
                the consumer cannot be part of it.
            GenerationStale: A message is of a partition that another member has now.
            TransactionRefused: Its time is over.
        """
        current = self._transactions.current()
        if not isinstance(consumer, MessageConsumer):
            raise InvalidArgument(f"consumer {shown(consumer)} is no vq consumer of this API")
        consumer._take(current)

    def commit(self, timeout: float | None = None) -> list[SendResult]:
        """Commit the transaction of this thread; see ``Transaction.commit``.

        Raises:
            InvalidState: It has none.
            VqError: See there.
        """
        return self._current().commit(timeout)

    def rollback(self, timeout: float | None = None) -> None:
        """Roll back the transaction of this thread; see ``Transaction.rollback``.

        Raises:
            InvalidState: It has none.
            VqError: See there.
        """
        self._current().rollback(timeout)

    def _current(self) -> Transaction:
        core = self._transactions.current()
        if core is None:
            raise InvalidState(
                "this thread has no open transaction of this producer; begin_transaction() "
                "begins one"
            )
        return Transaction(core, self._runtime, self.config.send_timeout_s)

    # Two phases, as in PEP 249 --------------------------------------------------------------------
    def xid(self, format_id: int, gtrid: str, bqual: str) -> Xid:
        """Return the name of a transaction for ``tpc_begin``: a tuple of the three.

        Args:
            format_id: Who makes such names: 0 to 2**31 - 1.
            gtrid: Of the whole transaction; 1 to 64 bytes in UTF-8.
            bqual: Of its part here; up to 64 bytes.

        Raises:
            InvalidArgument: Something is outside these bounds.
        """
        return check_xid((format_id, gtrid, bqual))

    def tpc_begin(self, xid: Xid) -> None:
        """Begin a transaction that another program decides, under its name.

        What this thread sends until ``tpc_prepare`` belongs to it, as with ``transaction``.

        Raises:
            TransactionRefused: Another transaction has the name.
            InvalidState: The thread has a transaction of this producer already; or the producer
                has a transactional id.
            VqError: The journal does not answer.
        """
        self._runtime.check()
        name = check_xid(xid)
        timeout_s = self.config.send_timeout_s
        self._runtime.run(self._core.two_phase.check_free(name, timeout_s))
        with self._switching:
            self._core.two_phase.begin(name)
            self._append = self._append_beside

    def tpc_prepare(self, timeout: float | None = None) -> None:
        """Have the messages wait at the broker, durably, for the decision.

        Neither time nor a lost connection nor the end of this process ends it; any process may
        decide it, see ``tpc_recover``. What is sent now is not part of it.

        Raises:
            InvalidState: This thread has begun none.
            TransactionInDoubt: It is unknown whether it is prepared; nothing is committed.
            VqError: It is rolled back.
        """
        core = self._core.two_phase.chosen(None)
        self._transaction(core).prepare(timeout)

    def tpc_commit(self, xid: Xid | None = None, timeout: float | None = None) -> None:
        """Commit the transaction of this thread, in one phase if it is not prepared.

        With ``xid``: one that is prepared, by whatever process; if it is committed already, that is
        no error.

        Raises:
            TransactionInDoubt: It is unknown whether it is committed; ``details["xid"]`` names it.
                It may be called again.
            TransactionRefused: It is rolled back; by an operator, perhaps. Or nobody knows it.
            InvalidState: Without ``xid``: this thread has begun none.
            VqError: The journal does not answer; nothing has changed.
        """
        self._tpc_end(xid, TransactionState.COMMITTED, timeout)

    def tpc_rollback(self, xid: Xid | None = None, timeout: float | None = None) -> None:
        """Roll back the transaction of this thread; with ``xid``: see ``tpc_commit``.

        Raises:
            TransactionInDoubt: The broker could not be asked, and it may be committed.
            TransactionRefused: It is committed; by an operator, perhaps. Or nobody knows it.
            InvalidState: Without ``xid``: this thread has begun none.
            VqError: The journal does not answer; nothing has changed.
        """
        self._tpc_end(xid, TransactionState.ROLLED_BACK, timeout)

    def tpc_recover(self, timeout: float | None = None) -> list[Xid]:
        """Return the names of all transactions that are prepared, whoever did it.

        A program ends its own ones: ``format_id`` tells whose they are.

        Raises:
            VqError: The master of a partition of the journal does not answer.
        """
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        return self._runtime.run(self._core.two_phase.recover(bound))

    def _tpc_end(self, xid: Xid | None, state: TransactionState, timeout: float | None) -> None:
        name = None if xid is None else check_xid(xid)
        core = self._core.two_phase.chosen(name)
        if core is None:
            assert name is not None
            bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
            self._runtime.run(self._core.two_phase.decide(name, state, bound))
        elif state is TransactionState.COMMITTED:
            self._transaction(core).commit(timeout)
        else:
            self._transaction(core).rollback(timeout)

    def _transaction(self, core: TransactionCore | None) -> Transaction:
        assert core is not None
        return Transaction(core, self._runtime, self.config.send_timeout_s)

    def send_half(
        self, message: Message | Iterable[Message], arg: Any = None, timeout: float | None = None
    ) -> HalfResult:
        """Send a message that is stored only if the local work of the application is done.

        The broker keeps the message, shown to nobody. Then ``execute`` of the listener runs here
        with the message, or the list, and ``arg``; what it returns is carried out. If that is
        ``vq.UNKNOWN``, if it raises, or if this process ends, the broker asks the ``check`` of any
        producer of the same ``producer_group``, see ``ProducerConfig``.

        Args:
            message: One, or several that have one decision, of 3,670,016 bytes together.
            arg: For ``execute``.
            timeout: Seconds for the message to be kept, and once more for the decision; by default
                ``config.send_timeout_s``.

        Raises:
            InvalidState: The producer has no listener; or this thread has a transaction of it.
            TransactionInDoubt: It is unknown whether the message is kept. ``execute`` did not run,
                and ``check`` will be asked.
            TransactionRefused: Somebody else has decided otherwise than ``execute``.
            VqError: The message is refused, and ``execute`` did not run.
        """
        self._runtime.check()
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        transactions, core = self._transactions, self._core
        if transactions.id.is_to_take:
            self._runtime.run(transactions.id.take())
        half = HalfMessage(transactions, message)
        try:
            for each in half.messages:
                self._add(half.add, each, None, bound)
        except BaseException as error:
            self._runtime.call(functools.partial(half.give_up, error))
            raise
        try:
            self._runtime.run(core.prepare(half, bound))
            returned: object = None
            raised: Exception | None = None
            try:
                returned = half.listener.execute(half.told, arg)
            except Exception as error:  # noqa: BLE001  the user's code raises anything
                raised = error
                half.failed(error)
            return self._runtime.run(half.decide(returned, raised, bound))
        finally:
            half.ended()

    def cancel(self, result: SendResult, timeout: float | None = None) -> Cancellation:
        """Have a delayed message delivered to nobody, and say what became of it.

        A message that is due, or was delivered, stays. Asked again, it answers the same for as long
        as the broker remembers.

        Args:
            result: What the send of the message returned.
            timeout: Seconds for all attempts together, by default ``config.send_timeout_s``.

        Returns:
            ``UNKNOWN`` if the broker was asked and did not answer in time.

        Raises:
            InvalidArgument: It is not the result of a delayed message.
            VqError: The broker could not be asked; the message is certainly not cancelled.
        """
        return self._runtime.run(self._core.cancel(result, timeout))

    def metrics(self) -> ProducerMetrics:
        """Return what this producer has stored, failed and sent so far, and what waits now.

        The counts are made batch by batch, in any thread; two of one batch may differ by that batch
        for a moment.
        """
        self._runtime.check_parent()
        return self._core.metrics()

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every message accepted so far has its outcome.

        With None it waits as long as it takes: each message has a deadline. With 0 it only looks.

        Raises:
            TimedOut: Some have none in time, ``details["open"]`` of them. The sends go on.
            InvalidState: The handler of a signal, or a finalizer, called it at a moment at which
                its thread is inside this producer, so that it would wait for itself.
        """
        self._core.accumulator.check_not_inside()
        bound = None if timeout is None else check_timeout(timeout)
        answer_s = None if bound is None else bound + ANSWER_S
        try:
            self._runtime.run(self._core.flush(bound), answer_s)
        except TimedOut as error:
            if "open" in error.details:
                raise
            raise TimedOut(
                f"a callback keeps the factory's thread busy for more than {bound:g} s",
                hint="the sends go on; callbacks must be short",
            ) from None

    def close(self) -> None:
        """Wait for the outcome of every message (each has a deadline), then stop.

        It may be called again.

        Raises:
            InvalidState: A callback called it, or the handler of a signal at a moment at which its
                thread is inside this producer; it would wait for itself. The producer goes on.
            TimedOut: A callback kept the factory's thread for 30 s and does not return.
        """
        if not self._runtime.gone:
            self._core.accumulator.check_not_inside()
            self._runtime.finish(self._core.close)
            self._forget()  # last: if ``close`` is interrupted, the end of the loop cleans up

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
