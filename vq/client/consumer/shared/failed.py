"""What becomes of messages of a shared group that were not handled. Loop-bound.

has deliveries left: released, for a pause of the policy, or as its taker said
has none left: what the policy says, such as a dead letter
"""

import asyncio
from dataclasses import dataclass
from typing import Final, NamedTuple

from vq import limits
from vq.backoff import Draws
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tracebacks import Tracebacks
from vq.client.consumer.deliver.tries import Retry
from vq.client.consumer.shared.handles import SettleKind
from vq.client.consumer.shared.sources import HeldMessage, SharedSources
from vq.client.copies import MessageCopies, origin_of
from vq.clock import Clock
from vq.coordination.tree.values.group_terms import FailurePolicy, OnBadRecord, OnFailure
from vq.errors import ContentUnreadable, VqError
from vq.log_lines import get_logger
from vq.reserved import DeliveryFailure
from vq.shown import shown_raised

logger = get_logger(__name__)

#: How long one try to copy a message waits for the broker.
_COPY_S: Final = 10.0
#: For so long the message is held meanwhile.
_HELD_S: Final = 2 * _COPY_S
_JITTER: Final = 0.2
#: Why a message failed that was delivered too often before, and given to nobody this time: only
#: the journal knows how each delivery ended.
TOO_OFTEN: Final = "each delivery was given back, or ended with its lease: nobody acknowledged it"
_GIVEN_BACK: Final = "given back (nack)"


@dataclass(frozen=True, slots=True)
class GivenBack(Retry):
    """What ``nack`` says of a message."""


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
    why = TOO_OFTEN
    if isinstance(result, GivenBack):
        why = _GIVEN_BACK
    elif isinstance(result, Retry):
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


def is_last(policy: FailurePolicy, deliveries: int) -> bool:
    """Whether a message that was delivered so often, with this time, is not delivered again. Pure.

    If this delivery fails, that is: what becomes of it then is said at once.
    """
    return deliveries >= policy.max_attempts and policy.on_failure != OnFailure.HOLD


def is_spent(policy: FailurePolicy, deliveries: int, deliveries_each: int = 1) -> bool:
    """Whether nobody gets a message any more that was delivered so often, with this time. Pure.

    ``deliveries_each``: so many of them count as one try. With "hold" it is tried for ever.
    """
    most = policy.max_attempts * deliveries_each
    return deliveries > most and policy.on_failure != OnFailure.HOLD


class FailedDeliveries:
    """See the module.

    Args:
        sources: Have the messages.
        group: Of the member.
        policy: What follows a failure.
        copier: Makes dead letters.
        rng, clock: For pauses and times.
    """

    def __init__(
        self,
        sources: SharedSources,
        group: str,
        policy: PolicyInForce,
        copier: MessageCopies,
        *,
        rng: Draws,
        clock: Clock,
    ) -> None:
        self._sources = sources
        self._group = group
        self._policy = policy
        self._copier = copier
        self._rng = rng
        self._clock = clock
        self._tracebacks = Tracebacks(clock.wall_ms)

    async def end(
        self, item: HeldMessage, result: BaseException | Retry | None
    ) -> "asyncio.Future[None] | None":
        """Settle a message that was not handled.

        Args:
            item: It.
            result: What its listener has raised or returned; None: it was delivered too often.

        Returns:
            See ``SharedSources.settle``; None: it is not with this member any more.
        """
        outcome = outcome_of(self._policy.now, item.deliveries, result, self._rng.random())
        error = result if isinstance(result, BaseException) else None
        if outcome.is_copied and not await self._is_held(item):
            return None
        tries = item.deliveries - (result is None)
        return await self._carry_out(item, outcome, error, tries)

    def is_last(self, item: HeldMessage) -> bool:
        """Whether ``given_back`` is to be called if somebody gives a message back."""
        return is_last(self._policy.now, item.deliveries)

    async def given_back(self, item: HeldMessage) -> None:
        """End a message that is given back by ``nack`` and ``is_last``. Return once that is so.

        Raises:
            LeaseLost: It is not with this member any more; nothing has changed.
            OutcomeUnknown: There was no answer.
            InvalidState: The member is closed.
        """
        outcome = outcome_of(self._policy.now, item.deliveries, GivenBack(), self._rng.random())
        if outcome.is_copied:
            try:
                await self._hold(item)
            except VqError:
                self._sources.drop(item.handle)
                raise
        await (await self._carry_out(item, outcome, None, item.deliveries))

    async def _carry_out(
        self, item: HeldMessage, outcome: Outcome, error: BaseException | None, tries: int
    ) -> "asyncio.Future[None]":
        if outcome.is_copied and not await self._is_dead(item, tries, outcome.why, error):
            outcome = Outcome(SettleKind.RELEASE, self._policy.now.retry_backoff_s[-1])
        elif outcome.kind is SettleKind.RELEASE:
            logger.warning(
                "listener failed, message is delivered again",
                group=self._group,
                message=origin_of(item.message),
                deliveries=item.deliveries,
                delay_s=round(outcome.delay_s, 1),
                error=outcome.why,
                exc_info=self._tracebacks.new(error),
            )
        elif not outcome.is_copied:
            logger.error(
                "listener failed, message skipped",
                group=self._group,
                message=origin_of(item.message),
                tries=tries,
                error=outcome.why,
                exc_info=self._tracebacks.new(error),
            )
        delay_ms = round(outcome.delay_s * 1_000)
        return self._sources.settle(item.handle, outcome.kind, delay_ms)

    async def _hold(self, item: HeldMessage) -> None:
        """Have a message with this member until its dead letter is stored.

        Raises:
            VqError: Another one has it, or will: it makes the dead letter, or has the message done.
        """
        await self._sources.settle(item.handle, SettleKind.EXTEND, round(_HELD_S * 1_000))

    async def _is_held(self, item: HeldMessage) -> bool:
        try:
            await self._hold(item)
        except VqError as error:
            logger.warning(
                "lease ended before a dead letter was made, message is delivered again",
                group=self._group,
                message=origin_of(item.message),
                deliveries=item.deliveries,
                error=error,
            )
            self._sources.drop(item.handle)
            return False
        return True

    async def _is_dead(
        self, item: HeldMessage, tries: int, why: str, error: BaseException | None
    ) -> bool:
        """Whether a message is a dead letter now."""
        failure = DeliveryFailure(tries, self._clock.wall_ms(), why)
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
            exc_info=self._tracebacks.new(error),
        )
        return True
