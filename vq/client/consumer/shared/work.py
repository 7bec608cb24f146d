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
from typing import Any, Final, NamedTuple

from vq import limits
from vq.backoff import Draws
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tries import Retry, TriedMessage
from vq.client.consumer.shared.handles import MessageHandle, SettleKind
from vq.client.consumer.shared.receiver import HeldMessage, SharedReceiver
from vq.client.copies import MessageCopies, origin_of
from vq.client.kinds import check_number
from vq.clock import Clock
from vq.coordination.tree.values.group_terms import FailurePolicy, OnBadRecord, OnFailure
from vq.errors import ContentUnreadable, InvalidArgument, LeaseLost, VqError
from vq.log_lines import get_logger
from vq.model import Message
from vq.reserved import DeliveryFailure
from vq.shown import shown_raised
from vq.tasks import begin_task, cancellation_of

__all__ = ["Outcome", "SharedMessage", "SharedWork", "outcome_of"]

logger = get_logger(__name__)

#: How long one try to copy a message waits for the broker.
_COPY_S: Final = 10.0
#: For so long the message is held meanwhile.
_HELD_S: Final = 2 * _COPY_S
_JITTER: Final = 0.2
#: Where a parent counts which message ends processes, so many deliveries are taken for one try
#: before a listener is called: what the processes had besides was delivered, too, and not tried.
WATCHED_DELIVERIES_EACH: Final = 3
#: What a listener is when its message was delivered too often before.
_TOO_OFTEN: Final = "it was delivered so often, and nobody has said what became of it"

#: Settles a message: its handle, what becomes of it, and a time in ms.
Settle = Callable[[MessageHandle, SettleKind, int], Any]


class SharedMessage(TriedMessage):
    """A message of a shared group, which is settled by itself.

    With ``vq.aio`` the methods return what is to be awaited, in threads they wait. They raise
    ``LeaseLost`` if the member does not have the message any more: then nothing has changed; and
    ``InvalidState`` if the consumer is closed. A message whose listener returns is acknowledged,
    and one whose listener raises is released, unless the listener has settled it. A message of
    ``get_many`` or an iteration is settled by these methods alone.

    Attributes:
        attempts: How often it was delivered to the group, with this time.
    """

    _handle: Any
    _say: Callable[..., Any]
    _is_settled = False

    def ack(self) -> Any:
        """Be done with it."""
        return self._settled(SettleKind.ACK, 0)

    def nack(self, delay_s: float = 0.0) -> Any:
        """Have it delivered again, to any member, after so many seconds, 0 to 40 days.

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
        return self._say(kind, time_ms)


def _checked_ms(name: str, seconds: float, least: float, most: float) -> int:
    check_number(name, seconds)
    if not least <= seconds <= most:  # NaN is not, either
        raise InvalidArgument(f"{name} = {seconds} is outside [{least:g}, {most:g}] seconds")
    return round(seconds * 1_000)


def shared_message(item: HeldMessage, settle: Settle) -> SharedMessage:
    """Return a message as its listener gets it."""
    made = tuple.__new__(SharedMessage, item.message)
    made.attempts, made._handle = item.deliveries, item.handle
    made._say = partial(settle, item.handle)
    return made


class Outcome(NamedTuple):
    """What becomes of a message.

    Attributes:
        kind: What.
        delay_s: Of a release: the pause.
        is_copied: Before that it becomes a dead letter.
        why: Why it failed.
    """

    kind: SettleKind
    delay_s: float = 0.0
    is_copied: bool = False
    why: str = ""


def outcome_of(
    policy: FailurePolicy, deliveries: int, result: BaseException | Retry | None, draw: float
) -> Outcome:
    """Return what becomes of a message that was not handled. Pure.

    Args:
        policy: Of the group.
        deliveries: How often it was delivered, with this time.
        result: What its listener has raised or returned; None: it was not called.
        draw: A random number in [0, 1), for the pause.
    """
    why = _TOO_OFTEN
    if isinstance(result, Retry):
        why = "vq.Retry"
    elif result is not None:
        why = shown_raised(result)
    pauses = policy.retry_backoff_s
    pause_s = pauses[min(deliveries, len(pauses)) - 1] * (1 - _JITTER + 2 * _JITTER * draw)
    if isinstance(result, Retry) and result.after_s is not None:
        pause_s = min(result.after_s, limits.DELAY_S_MAX)
    if isinstance(result, ContentUnreadable) and policy.on_bad_record != OnBadRecord.STOP:
        is_copied = policy.on_bad_record == OnBadRecord.DEAD_LETTER
        return Outcome(SettleKind.REJECT, is_copied=is_copied, why=why)
    if result is not None and deliveries < policy.max_attempts:
        return Outcome(SettleKind.RELEASE, pause_s, why=why)
    if policy.on_failure == OnFailure.DEAD_LETTER:
        return Outcome(SettleKind.REJECT, is_copied=True, why=why)
    if policy.on_failure == OnFailure.SKIP:
        return Outcome(SettleKind.REJECT, why=why)
    return Outcome(SettleKind.RELEASE, max(pause_s, pauses[-1]), why=why)  # it is held


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
        self._copier = copier
        self._listener_of = listener_of
        self._settle = settle
        self._workers = workers
        self._rng = rng
        self._clock = clock
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
        """Whether a message may be tried (again); with "hold" it is tried for ever."""
        policy = self._policy.now
        most = policy.max_attempts * self._deliveries_each
        return item.deliveries <= most or policy.on_failure == OnFailure.HOLD

    async def _not_tried(self, item: HeldMessage) -> None:
        try:
            await self._failed(item, None)
        except Exception:  # of the application's logging, or of vq
            logger.exception("delivery failed, others continue", group=self._group)

    async def _handle(self, item: HeldMessage) -> None:
        message = shared_message(item, self._settle)
        result: BaseException | Retry | None = None
        if item.deliveries > 1:  # perhaps it ends the process: what is handled is told before
            await self._receiver.settled()
        if self._is_tried(item):
            self._at[item.handle] = message
            try:
                result = await self._listener_of(message.topic)(message)
            except BaseException as raised:  # noqa: BLE001 - the user's code raises anything
                result = raised
            finally:
                del self._at[item.handle]
            if not isinstance(result, BaseException | Retry):
                if not message._is_settled:
                    self._told(item, self._receiver.settle(item.handle, SettleKind.ACK))
                return
        if message._is_settled:
            return
        cancelled = None if result is None or isinstance(result, Retry) else cancellation_of(result)
        if cancelled is not None:  # at its end, or with the loop
            self._told(item, self._receiver.settle(item.handle, SettleKind.RELEASE))
            raise cancelled
        await self._failed(item, result)

    async def _failed(self, item: HeldMessage, result: BaseException | Retry | None) -> None:
        """Do what the policy says about a message that failed; None: it was not tried."""
        outcome = outcome_of(self._policy.now, item.deliveries, result, self._rng.random())
        error = result if isinstance(result, BaseException) else None
        if outcome.is_copied and not await self._is_held(item):
            return
        if outcome.is_copied and not await self._is_dead(item, outcome.why, error):
            outcome = Outcome(SettleKind.RELEASE, self._policy.now.retry_backoff_s[-1])
        elif outcome.kind is SettleKind.RELEASE:
            logger.warning(
                "listener failed, message is delivered again",
                group=self._group,
                message=origin_of(item.message),
                deliveries=item.deliveries,
                delay_s=round(outcome.delay_s, 1),
                error=outcome.why,
                exc_info=error,
            )
        elif not outcome.is_copied:
            logger.error(
                "listener failed, message skipped",
                group=self._group,
                message=origin_of(item.message),
                tries=item.deliveries,
                error=outcome.why,
                exc_info=error,
            )
        delay_ms = round(outcome.delay_s * 1_000)
        self._told(item, self._receiver.settle(item.handle, outcome.kind, delay_ms))

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

    async def _is_held(self, item: HeldMessage) -> bool:
        """Whether a message is with this member until its dead letter is stored.

        Otherwise another one has it, or will: it makes the dead letter, or has the message done.
        """
        held = self._receiver.settle(item.handle, SettleKind.EXTEND, round(_HELD_S * 1_000))
        try:
            await held
        except VqError as error:
            logger.warning(
                "lease ended before a dead letter was made, message is delivered again",
                group=self._group,
                message=origin_of(item.message),
                deliveries=item.deliveries,
                error=error,
            )
            self._receiver.drop(item.handle)
            return False
        return True

    async def _is_dead(self, item: HeldMessage, why: str, error: BaseException | None) -> bool:
        """Whether a message is a dead letter now."""
        failure = DeliveryFailure(item.deliveries, self._clock.wall_ms(), why)
        try:
            await self._copier.give_up(item.message, failure, timeout=_COPY_S)
        except VqError as not_copied:
            logger.warning(
                "dead letter is not stored, message is delivered again",
                group=self._group,
                message=origin_of(item.message),
                error=not_copied,
            )
            return False
        logger.error(
            "message is a dead letter now",
            group=self._group,
            message=origin_of(item.message),
            error=why,
            exc_info=error,
        )
        return True
