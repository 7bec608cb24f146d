"""The asynchronous producer: a thin face of the core, on the caller's loop."""

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from threading import get_ident
from typing import Any, Self

from vq.aio.consumer import MessageConsumer
from vq.aio.transaction import Transaction
from vq.client.cluster import ClusterClient
from vq.client.config import ProducerConfig, WhenFull
from vq.client.exits import LoopExit
from vq.client.future import SendCallback, SendFuture, check_callback
from vq.client.kinds import topic_named
from vq.client.producer.core import ProducerCore, deleted_if_unpublished
from vq.client.producer.intake.batch_send import BatchSend
from vq.client.producer.metrics import ProducerMetrics
from vq.client.producer.transaction.half import HalfMessage
from vq.client.producer.transaction.transaction import TransactionCore
from vq.client.producer.transaction_listener import HalfResult
from vq.client.requests import nobody_reads, reply_to
from vq.errors import (
    BufferFull,
    InvalidArgument,
    InvalidState,
    NotPublished,
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


class MessageProducer:
    """Sends messages from one loop. ``MessageFactory.create_producer`` makes it.

    Every ``timeout`` is as with ``vq.MessageProducer``.
    """

    def __init__(self, core: ProducerCore, cluster: ClusterClient) -> None:
        self._core = core
        self._append = self._append_plain
        self._checked: SendCallback | None = None  # the callback of the last send
        self._cluster = cluster
        self._transactions = core.transactions
        self._check_loop = cluster.check_loop
        self._thread = get_ident()
        self._is_running = asyncio.get_running_loop().is_running
        self._exit = LoopExit(
            core.flush_at_exit, ended=core.give_up_at_exit, timeout_s=core.config.exit_flush_s
        )

    @property
    def config(self) -> ProducerConfig:
        """How this producer batches, waits and tries again."""
        return self._core.config

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._core.closed

    def _here(self) -> ProducerCore:
        """Return the core to a coroutine on the factory's loop."""
        self._check_loop()
        return self._core

    async def publish(self, topic: str) -> None:
        """Fetch a topic's routes and watch them; see ``vq.MessageProducer.publish``.

        Raises:
            InvalidArgument: Its name is not valid, or reserved for vq's own topics.
            UnknownTopic, TopicClosed: The topic is missing or closed for writes.
            CoordinationError: ZooKeeper does not answer. A send raises ``NotSent`` instead.
        """
        await self._here().publish(topic)

    async def send(self, message: Message, timeout: float | None = None) -> SendResult:
        """Send one message and wait until it is stored as its topic's settings promise.

        Many sends may wait at once; those to one partition share batches and keep their order. If
        the task is cancelled, a message that was accepted is sent nevertheless. In a transaction it
        returns at once, and the offset in the result is -1.

        Raises:
            Refused: The message is certainly not stored.
            OutcomeUnknown: It may or may not be stored.
            InvalidArgument: The message is invalid.
        """
        append = self._append  # CPython calls a name quicker than an attribute of an instance
        future = append(message, None, timeout)
        if future is None:
            core = self._core
            transaction = self._transactions.current() if self._transactions.open else None
            if transaction is not None:
                added = await self._accept(message, None, timeout, may_wait=True)
                return transaction.place_of(added)
            began = core.now()
            turn = core.join_line(message, timeout)
            if turn is not None:  # one of perhaps many thousand: no coroutine more than this one
                try:
                    result = await turn
                except BufferFull:
                    core.count_full()
                    raise
                finally:
                    core.space_line.leave(turn)
                if result is not None:
                    return result
                timeout = core.left_of(timeout, began)
            future = await self._accept(message, None, timeout, may_wait=True)
        self._core.hurry()
        return await future

    async def send_async(
        self,
        message: Message,
        callback: SendCallback | None = None,
        timeout: float | None = None,
    ) -> SendFuture:
        """Accept one message; return its future, to be awaited now, later or never.

        While the buffer is full it waits, or raises, as ``config.when_full`` says. ``await`` of the
        future gives the outcome::

            futures = [await producer.send_async(message) for message in messages]
            results = [await future for future in futures]

        The callback runs on this loop. An exception that it raises is logged. Once every message of
        the batch has its outcome, the loop also raises ``SystemExit`` and ``KeyboardInterrupt``, as
        from any of its callbacks.

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
        append = self._append
        future = append(message, callback, timeout)
        if future is not None:
            return future
        may_wait = self.config.when_full is WhenFull.BLOCK
        return await self._accept(message, callback, timeout, may_wait=may_wait)

    async def request(self, message: Message, timeout: float | None = None) -> Message:
        """Send a message and return the reply to it; see ``vq.MessageProducer.request``.

        Any number of requests may wait at once. If the task is cancelled, a reply that comes later
        is counted as late.

        Raises:
            VqError: See there.
        """
        core = self._here()
        deadline = core.deadline_of(message, timeout)
        for topic in core.missing(message):
            left = max(0.0, deadline - core.now())
            await self._publish_for(topic, left, functools.partial(core.check, message))
        request = await core.begin_request(message, deadline)
        try:
            left = max(0.0, deadline - core.now())
            await self.send_async(request.message, request.sent, left)
            core.hurry()
            return await request.reply()
        finally:
            request.close()

    async def reply(
        self,
        request: Message,
        content: bytes | Any,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> SendResult | None:
        """Answer a request that was received; see ``vq.MessageProducer.reply``.

        Raises:
            VqError: See there.
        """
        self._check_loop()
        try:
            return await self.send(reply_to(request, content, headers), timeout)
        except UnknownTopic:
            nobody_reads(request)
            return None

    def _append_beside(
        self, message: Message, callback: SendCallback | None, timeout: float | None
    ) -> SendFuture | None:
        """Append a plain message while a transaction is open, unless it belongs to that."""
        if not self._transactions.open:
            self._append = self._append_plain
        elif self._transactions.current() is not None:
            return None
        return self._append_plain(message, callback, timeout)

    def _append_plain(
        self, message: Message, callback: SendCallback | None, timeout: float | None
    ) -> SendFuture | None:
        """Append a plain message if there is space for it; see ``Appender.append``."""
        # Before Python 3.12 ``get_running_loop`` makes a system call: avoid it for each message.
        is_running, append = self._is_running, self._core.append
        if get_ident() != self._thread or not is_running():
            self._check_loop()
        return append(message, callback, timeout)

    def _accept(
        self,
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
        *,
        may_wait: bool,
    ) -> Coroutine[Any, Any, SendFuture]:
        """Accept a message that ``_append`` did not take; wait for space only with ``may_wait``.

        Many tasks may wait here at once, and the garbage collector visits the objects of all of
        them again and again: so a wait has few coroutines and objects.
        """
        accept = self._accept_any if self._core.interceptors is None else self._accept_intercepted
        return accept(message, callback, timeout, may_wait=may_wait)

    async def _accept_intercepted(
        self,
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
        *,
        may_wait: bool,
    ) -> SendFuture:
        assert self._core.interceptors is not None
        with self._core.interceptors.begin(message, callback) as sending:
            return await self._accept_any(sending.message, sending, timeout, may_wait=may_wait)

    async def _accept_any(
        self,
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
        *,
        may_wait: bool,
    ) -> SendFuture:
        """Accept one message once its topic is published and, with ``may_wait``, there is space."""
        core = self._core
        if self._transactions.open:
            transaction = self._transactions.current()
            if transaction is not None:
                return await self._join(transaction, message, callback, timeout)
        try:
            if not (may_wait and core.is_full_for(message)):  # what must wait is prepared once
                try:
                    return core.append_any(message, callback, timeout, block=False)
                except BufferFull:
                    if not may_wait:
                        raise
                except NotPublished:
                    pass
            loop = asyncio.get_running_loop()
            bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
            deadline = loop.time() + bound
            takes = functools.partial(core.check, message)
            left = bound
            for topic in core.missing(message):
                await self._publish_for(topic, left, takes)
                left = max(0.0, deadline - loop.time())
            if may_wait:
                await core.space_line.wait(deadline - loop.time())
            left = deadline - loop.time()
            future = core.append(message, callback, left)
            if future is not None:
                return future
            with deleted_if_unpublished(message.topic):
                return core.append_any(message, callback, left, block=False)
        except BufferFull:
            core.count_full()
            raise

    async def _join(
        self,
        transaction: TransactionCore | HalfMessage,
        message: Message,
        callback: SendCallback | None,
        timeout: float | None,
    ) -> SendFuture:
        """Add a message to a transaction once its topic is published."""
        core = self._core
        with contextlib.suppress(NotPublished):
            return transaction.add(message, callback)
        left = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        deadline = core.now() + left
        for topic in core.missing(message):
            left = max(0.0, deadline - core.now())
            await self._publish_for(topic, left, functools.partial(core.check, message))
        with deleted_if_unpublished(message.topic):
            return transaction.add(message, callback)

    async def begin_transaction(self) -> Transaction:
        """Begin a transaction of this task; see ``vq.MessageProducer.transaction``.

        ``async with await producer.begin_transaction():`` is a block that commits at its end.

        Raises:
            VqError: See there.
        """
        transactions = self._here().transactions
        if transactions.id.is_to_take:
            await transactions.id.take()
        begun = transactions.begin()
        self._append = self._append_beside
        return Transaction(begun, self._check_loop)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Return a block of a transaction: ``async with producer.transaction() as transaction:``.

        Raises:
            VqError: See ``begin_transaction``, when the block begins.
        """
        async with await self.begin_transaction() as begun:
            yield begun

    async def send_offsets(self, consumer: MessageConsumer) -> None:
        """Have the transaction of this task finish the messages that a consumer has given out.

        In a listener it is for the message, or the list, that the listener was called for. Without
        listeners it is for what the last ``get_many`` has returned, or the present message of an
        ``async for``. See ``vq.MessageProducer.send_offsets``.

        Raises:
            VqError: See there.
        """
        current = self._here().transactions.current()
        if not isinstance(consumer, MessageConsumer):
            raise InvalidArgument(f"consumer {shown(consumer)} is no vq consumer of this API")
        consumer._take(current)

    async def commit(self, timeout: float | None = None) -> list[SendResult]:
        """Commit the transaction of this task; see ``vq.Transaction.commit``.

        Raises:
            InvalidState: It has none.
            VqError: See there.
        """
        return await self._current().commit(timeout)

    async def rollback(self, timeout: float | None = None) -> None:
        """Roll back the transaction of this task; see ``vq.Transaction.rollback``.

        Raises:
            InvalidState: It has none.
            VqError: See there.
        """
        await self._current().rollback(timeout)

    def _current(self) -> Transaction:
        core = self._here().transactions.current()
        if core is None:
            raise InvalidState(
                "this task has no open transaction of this producer; begin_transaction() begins one"
            )
        return Transaction(core, self._check_loop)

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

    async def tpc_begin(self, xid: Xid) -> None:
        """Begin a transaction that another program decides, under its name.

        What this task sends until ``tpc_prepare`` belongs to it, as with ``transaction``.

        Raises:
            TransactionRefused: Another transaction has the name.
            InvalidState: The task has a transaction of this producer already; or the producer
                has a transactional id.
            VqError: The journal does not answer.
        """
        two_phase = self._here().two_phase
        name = check_xid(xid)
        await two_phase.check_free(name, self.config.send_timeout_s)
        two_phase.begin(name)
        self._append = self._append_beside

    async def tpc_prepare(self, timeout: float | None = None) -> None:
        """Have the messages wait at the broker, durably, for the decision.

        Neither time nor a lost connection nor the end of this process ends it; any process may
        decide it, see ``tpc_recover``. What is sent now is not part of it.

        Raises:
            InvalidState: This task has begun none.
            TransactionInDoubt: It is unknown whether it is prepared; nothing is committed.
            VqError: It is rolled back.
        """
        core = self._here().two_phase.chosen(None)
        await self._transaction(core).prepare(timeout)

    async def tpc_commit(self, xid: Xid | None = None, timeout: float | None = None) -> None:
        """Commit the transaction of this task, in one phase if it is not prepared.

        With ``xid``: one that is prepared, by whatever process; if it is committed already, that is
        no error.

        Raises:
            TransactionInDoubt: It is unknown whether it is committed; ``details["xid"]`` names it.
                It may be called again.
            TransactionRefused: It is rolled back; by an operator, perhaps. Or nobody knows it.
            InvalidState: Without ``xid``: this task has begun none.
            VqError: The journal does not answer; nothing has changed.
        """
        await self._tpc_end(xid, TransactionState.COMMITTED, timeout)

    async def tpc_rollback(self, xid: Xid | None = None, timeout: float | None = None) -> None:
        """Roll back the transaction of this task; with ``xid``: see ``tpc_commit``.

        Raises:
            TransactionInDoubt: The broker could not be asked, and it may be committed.
            TransactionRefused: It is committed; by an operator, perhaps. Or nobody knows it.
            InvalidState: Without ``xid``: this task has begun none.
            VqError: The journal does not answer; nothing has changed.
        """
        await self._tpc_end(xid, TransactionState.ROLLED_BACK, timeout)

    async def tpc_recover(self, timeout: float | None = None) -> list[Xid]:
        """Return the names of all transactions that are prepared, whoever did it.

        A program ends its own ones: ``format_id`` tells whose they are.

        Raises:
            VqError: The master of a partition of the journal does not answer.
        """
        two_phase = self._here().two_phase
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        return await two_phase.recover(bound)

    async def _tpc_end(
        self, xid: Xid | None, state: TransactionState, timeout: float | None
    ) -> None:
        two_phase = self._here().two_phase
        name = None if xid is None else check_xid(xid)
        core = two_phase.chosen(name)
        if core is None:
            assert name is not None
            bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
            await two_phase.decide(name, state, bound)
        elif state is TransactionState.COMMITTED:
            await self._transaction(core).commit(timeout)
        else:
            await self._transaction(core).rollback(timeout)

    def _transaction(self, core: TransactionCore | None) -> Transaction:
        assert core is not None
        return Transaction(core, self._check_loop)

    async def send_half(
        self, message: Message | Iterable[Message], arg: Any = None, timeout: float | None = None
    ) -> HalfResult:
        """Send a message that is stored only if the local work of the application is done.

        See ``vq.MessageProducer.send_half``. ``execute`` and ``check`` of the listener may be
        coroutine functions.

        Raises:
            VqError: See there.
        """
        core, transactions = self._here(), self._transactions
        bound = self.config.send_timeout_s if timeout is None else check_timeout(timeout)
        if transactions.id.is_to_take:
            await transactions.id.take()
        half = HalfMessage(transactions, message)
        try:
            for each in half.messages:
                await self._add_half(half, each, bound)
        except BaseException as error:
            half.give_up(error)
            raise
        try:
            await core.prepare(half, bound)
            returned: object = None
            raised: BaseException | None = None
            try:
                returned = half.listener.execute(half.told, arg)
                if inspect.isawaitable(returned):
                    returned = await returned
            except Exception as error:  # noqa: BLE001  the user's code raises anything
                raised = error
                half.failed(error)
            return await half.decide(returned, raised, bound)
        finally:
            half.ended()

    async def _add_half(self, half: HalfMessage, message: Message, timeout: float) -> None:
        if self._core.interceptors is None:
            await self._join(half, message, None, timeout)
            return
        with self._core.interceptors.begin(message) as sending:
            await self._join(half, sending.message, sending, timeout)

    async def cancel(self, result: SendResult, timeout: float | None = None) -> Cancellation:
        """Have a delayed message delivered to nobody; see ``vq.MessageProducer.cancel``.

        Raises:
            InvalidArgument: It is not the result of a delayed message.
        """
        return await self._here().cancel(result, timeout)

    def metrics(self) -> ProducerMetrics:
        """Return what this producer has stored, failed and sent so far, and what waits now.

        The counts are made batch by batch, in any thread; two of one batch may differ by that batch
        for a moment.
        """
        self._cluster.check_parent()  # there a lost thread may hold the lock
        return self._core.metrics()

    async def send_oneway(self, message: Message, timeout: float | None = None) -> None:
        """Accept one message, and only count its outcome. See ``vq.MessageProducer``."""
        ended = self._core.oneway.callback_for(topic_named(message))
        if self._append(message, ended, timeout) is None:
            may_wait = self.config.when_full is WhenFull.BLOCK
            await self._accept(message, ended, timeout, may_wait=may_wait)

    async def send_batch(
        self, messages: Iterable[Message], timeout: float | None = None
    ) -> list[SendResult]:
        """Send messages together and wait until all of them are stored.

        See ``vq.MessageProducer.send_batch``. If the task is cancelled, messages that were accepted
        are sent nevertheless.

        Raises:
            BatchFailed: Some messages are refused or unknown; its ``outcomes`` has each of them.
            InvalidState: The producer is closed; nothing was sent.
        """
        core = self._here()
        transaction = self._transactions.current()
        if transaction is not None:
            given = list(messages)
            if self._core.interceptors is None:
                with contextlib.suppress(NotPublished):  # each is published below
                    return transaction.add_batch(given)
            return [await self.send(each, timeout) for each in given]
        with core.batch_send(messages, timeout) as batch:
            for topic in batch.topics:
                try:
                    await self._append_all(batch, topic)
                except VqError as error:
                    count = batch.refuse(topic, error)
                    if isinstance(error, BufferFull):
                        core.count_full(count)
        await core.ended(batch.accepted())
        return batch.results()

    async def _append_all(self, batch: BatchSend, topic: str) -> None:
        core = self._core
        if not core.is_published(topic):
            takes = functools.partial(batch.check, topic, check=core.check)
            await self._publish_for(topic, core.time_left(batch), takes)
        while True:
            is_full = True
            with contextlib.suppress(BufferFull), deleted_if_unpublished(topic):
                if batch.append(topic, block=False):
                    return
                is_full = False
            if is_full:
                await core.space_line.wait(core.time_left(batch))
            await asyncio.sleep(0)  # let the sender send what was appended

    async def _publish_for(
        self, topic: str, timeout: float, takes: Callable[[TopicSettings], bool]
    ) -> None:
        """Publish a topic as part of a send within ``timeout`` seconds.

        A missing topic is created if a new one with its settings ``takes`` what is sent.
        """
        core = self._core
        with core.publishing(topic, timeout):
            async with asyncio.timeout(timeout):
                settings = await core.publish_existing(topic)
                if settings is not None and takes(settings):
                    await core.publish(topic)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until every message accepted so far has its outcome; see ``vq.MessageProducer``.

        Raises:
            TimedOut: Some have none within ``timeout`` seconds; the sends go on.
        """
        await self._here().flush(timeout)

    async def close(self) -> None:
        """Wait for the outcome of every message, then stop. May be called again."""
        if self._cluster.forked:
            return
        await self._here().close()
        await self._exit.forget()

    async def __aenter__(self) -> Self:
        self._check_loop()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
