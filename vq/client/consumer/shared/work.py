"""Listeners of a shared group, and what becomes of a message by what they make of it.

    take ──▶ delivered too often? ──▶ listener ──▶ returns: acknowledged
                      │                  │ raises, or asks for another try
                      │                  ▼
                      │       has deliveries left: released, for a pause of the policy
                      └────────────────▶ none left: what the policy says, such as a dead letter

Loop-bound. So many tasks are at one message each. A message that was delivered more often than the
policy allows never gets to a listener: perhaps it is what has ended the processes before.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from vq import limits
from vq.backoff import Draws
from vq.bounds import check_within
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tries import Retry, TriedMessage
from vq.client.consumer.shared.failed import FailedDeliveries, is_spent
from vq.client.consumer.shared.handles import MessageHandle, SettleKind
from vq.client.consumer.shared.receiver import SharedReceiver
from vq.client.consumer.shared.sources import HeldMessage
from vq.client.copies import MessageCopies, origin_of
from vq.clock import Clock
from vq.errors import LeaseLost, OutcomeUnknown
from vq.log_lines import get_logger
from vq.model import Message
from vq.tasks import begin_task, cancellation_of

logger = get_logger(__name__)

#: Where a parent counts which message ends processes, so many deliveries are taken for one try
#: before a listener is called: what the processes had besides was delivered, too, and not tried.
WATCHED_DELIVERIES_EACH: Final = 3
#: Settles a message: it, what becomes of it, and a time in ms.
Settle = Callable[[HeldMessage, SettleKind, int], Any]


class SharedMessage(TriedMessage):
    """A message of a shared group, which is settled by itself.

    In threads the methods wait for the answer. With ``vq.aio`` they return it, to be awaited; what
    they say is sent in any case. They raise ``LeaseLost`` if the member does not have the message
    any more: then nothing has changed; and ``InvalidState`` if the consumer is closed. A message
    whose listener returns is acknowledged, and one whose listener raises is released, unless the
    listener has settled it. A message of ``get_many`` or an iteration is settled by these methods
    alone.

    Attributes:
        attempts: How often it was delivered to the group, with this time.
    """

    _handle: Any
    _say: Callable[..., Any]
    _is_settled = False
    _answer: "asyncio.Future[None] | None" = None  # in threads it was waited for

    def ack(self) -> Any:
        """Be done with it."""
        return self._settled(SettleKind.ACK, 0)

    def nack(self, delay_s: float = 0.0) -> Any:
        """Have it delivered again, to any member, after so many seconds, 0 to 40 days.

        It counts as a failed delivery: the last one that the group allows ends at once as
        ``on_failure`` says, such as with a dead letter.

        Raises:
            InvalidArgument: ``delay_s`` is out of its bounds.
        """
        time_ms = _checked_ms("delay_s", delay_s, 0, limits.DELAY_S_MAX)
        return self._settled(SettleKind.RELEASE, time_ms)

    def reject(self) -> Any:
        """Give it up: nobody gets it any more, and it is no dead letter."""
        return self._settled(SettleKind.REJECT, 0)

    def extend(self, s: float) -> Any:
        """Have it for so many seconds from now on, 0.1 s to 12 h.

        Raises:
            InvalidArgument: ``s`` is out of its bounds.
        """
        least, most = limits.SHARED_LEASE_MS_MIN / 1_000, limits.SHARED_LEASE_MS_MAX / 1_000
        return self._say(SettleKind.EXTEND, _checked_ms("s", s, least, most))

    def _settled(self, kind: int, time_ms: int) -> Any:
        self._is_settled = True
        self._answer = self._say(kind, time_ms)
        return self._answer


def _checked_ms(name: str, seconds: float, least: float, most: float) -> int:
    check_within(name, seconds, least, most)
    return round(seconds * 1_000)


def shared_message(item: HeldMessage, settle: Settle) -> SharedMessage:
    """Return a message as its listener gets it."""
    made = tuple.__new__(SharedMessage, item.message)
    made.attempts, made._handle = item.deliveries, item.handle
    made._say = partial(settle, item)
    return made


class SharedWork:
    """See the module.

    Args:
        receiver: Has the messages.
        group: Of the member.
        policy: What follows a failure.
        copier: Makes dead letters.
        listener_of: Returns what is awaited for a message of a topic.
        settle: What the methods of messages call.
        workers: So many messages are in hand at a time.
        rng, clock: For pauses and times.
        context: Listeners run in copies of it.
    """

    def __init__(
        self,
        receiver: SharedReceiver,
        group: str,
        policy: PolicyInForce,
        copier: MessageCopies,
        listener_of: Callable[[str], Callable[[Message], Awaitable[Any]]],
        settle: Settle,
        *,
        workers: int,
        rng: Draws,
        clock: Clock,
        context: contextvars.Context,
    ) -> None:
        self._receiver = receiver
        self._group = group
        self._policy = policy
        self._listener_of = listener_of
        self._settle = settle
        self._workers = workers
        self._failed = FailedDeliveries(receiver, group, policy, copier, rng=rng, clock=clock)
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self._at: dict[MessageHandle, SharedMessage] = {}  # listeners are at them
        self._keeping: asyncio.Task[None] | None = None
        self._deliveries_each = 1  # are taken for a try

    def start(self) -> None:
        """Begin to call listeners, unless calls take the messages."""
        if not self._receiver.is_pulled:
            self._tasks = {begin_task(self._work(), self._context) for _ in range(self._workers)}

    def be_watched(self, lease_s: float) -> None:
        """See ``ConsumerCore.be_watched``."""
        self._deliveries_each = WATCHED_DELIVERIES_EACH
        self._keeping = begin_task(self._keep_leases(lease_s))

    async def _keep_leases(self, lease_s: float) -> None:
        while True:
            await asyncio.sleep(lease_s / 4)  # a message waits half of its lease at most
            for handle, message in self._at.items():
                if not message._is_settled:
                    self._receiver.settle(handle, SettleKind.EXTEND, round(lease_s * 1_000))

    async def take_many(self, most: int) -> list[SharedMessage]:
        """Return up to so many messages, waiting for a first one; none: this was closed.

        Those that were delivered too often are not among them; it is done about them what the
        policy says.

        Raises:
            VqError: No message follows.
        """
        while items := await self._receiver.take_many(most):
            found = []
            for item in items:
                if self._is_tried(item):
                    found.append(shared_message(item, self._settle))
                else:
                    task = begin_task(self._not_tried(item), self._context)
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
            if found:
                return found
        return []

    async def close(self, timeout_s: float) -> None:
        """Wait for what listeners are at; what is not done in time is cancelled and released.

        May be called again with less time.
        """
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)
        if self._keeping is not None:
            self._keeping.cancel()

    async def _work(self) -> None:
        while (item := await self._receiver.take()) is not None:
            try:
                await self._handle(item)
            except Exception:  # of the application's logging, or of vq
                logger.exception("delivery failed, others continue", group=self._group)

    def _is_tried(self, item: HeldMessage) -> bool:
        return not is_spent(self._policy.now, item.deliveries, self._deliveries_each)

    async def _not_tried(self, item: HeldMessage) -> None:
        try:
            await self._end(item, None)
        except Exception:  # of the application's logging, or of vq
            logger.exception("delivery failed, others continue", group=self._group)

    def settle(self, item: HeldMessage, kind: SettleKind, time_ms: int) -> "asyncio.Future[None]":
        """Say what becomes of a message; see ``SharedMember.settle``."""
        if kind is not SettleKind.RELEASE or not self._failed.is_last(item):
            return self._receiver.settle(item.handle, kind, time_ms)
        task = begin_task(self._given_back(item), self._context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _given_back(self, item: HeldMessage) -> None:
        try:
            await self._failed.given_back(item)
        except asyncio.CancelledError:  # whoever said it may wait for the answer
            told = "the consumer was closed before the message that was given back had ended"
            raise OutcomeUnknown(told) from None

    async def _handle(self, item: HeldMessage) -> None:
        message = shared_message(item, self._settle)
        result: BaseException | Retry | None = None
        if self._is_tried(item):
            self._at[item.handle] = message
            try:
                result = await self._listener_of(message.topic)(message)
            except BaseException as raised:  # noqa: BLE001 - the user's code raises anything
                result = raised
            finally:
                # A journal that has lost its end may give it twice with one grant.
                if self._at.get(item.handle) is message:
                    del self._at[item.handle]
            if not isinstance(result, BaseException | Retry):
                if not message._is_settled:
                    self._told(item, self._receiver.settle(item.handle, SettleKind.ACK))
                elif message._answer is not None and not message._answer.done():
                    self._told(item, message._answer)  # the listener has not waited for it
                return
        if message._is_settled:
            return
        cancelled = None if result is None or isinstance(result, Retry) else cancellation_of(result)
        if cancelled is not None:  # at its end, or with the loop
            self._told(item, self._receiver.settle(item.handle, SettleKind.RELEASE))
            raise cancelled
        await self._end(item, result)

    async def _end(self, item: HeldMessage, result: BaseException | Retry | None) -> None:
        settled = await self._failed.end(item, result)
        if settled is not None:
            self._told(item, settled)

    def _told(self, item: HeldMessage, settled: "asyncio.Future[None]") -> None:
        """Log it if a message was not with this member any more when its listener had returned."""

        def tell(done: "asyncio.Future[None]") -> None:
            if not done.cancelled() and isinstance(done.exception(), LeaseLost):
                logger.warning(
                    "lease ended before the listener, message is delivered again",
                    group=self._group,
                    message=origin_of(item.message),
                    deliveries=item.deliveries,
                )

        settled.add_done_callback(tell)
