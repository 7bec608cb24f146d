"""What becomes of a message whose listener failed: tried again, held, skipped, or the group stops.

In here: the decision, from the settings and the number of tries, and its log lines. Not in here:
who waits and for how long (the delivery and its executor).
"""

import enum
from typing import Final, NamedTuple

from vq.backoff import Draws
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tries import Retry
from vq.coordination.tree.values.group_terms import OnFailure
from vq.errors import ListenerFailed, VqError
from vq.log_lines import get_logger
from vq.model import Message, TopicPartition
from vq.shown import shown_raised

logger = get_logger(__name__)
_JITTER: Final = 0.2


class Verdict(enum.Enum):
    """What becomes of a message."""

    AGAIN = "again"
    """It is tried again after a pause."""
    HOLD = "hold"
    """As AGAIN, and it has used up its attempts: what stands behind it is shown as held up."""
    SKIP = "skip"
    """It counts as handled."""
    STOP = "stop"
    """The group stops at it until a reset."""


class Failed(NamedTuple):
    """A try that failed, without its message: what keeps this does not keep that.

    Attributes:
        offset: Of the message.
        attempts: How often it was tried, with this try.
        error: What the listener raised; None: it returned ``retry``.
        retry: What it returned.
    """

    offset: int
    attempts: int
    error: BaseException | None
    retry: Retry | None = None


class Decided(NamedTuple):
    """What becomes of a message, why, and the pause before its next try if there is one."""

    verdict: Verdict
    error: ListenerFailed
    pause_s: float = 0.0


def failed_try(message: Message, result: BaseException | Retry) -> Failed:
    """Return the try that ended with an exception, or with an answer that asks for another one."""
    if isinstance(result, Retry):
        return Failed(message.offset, message.attempts, None, result)
    return Failed(message.offset, message.attempts, result)


class Failures:
    """The policy for one partition."""

    def __init__(
        self, partition: TopicPartition, group: str, policy: PolicyInForce, rng: Draws
    ) -> None:
        self._partition = partition
        self._group = group
        self._policy = policy
        self._rng = rng

    def failed(self, failed: Failed, before: VqError | None) -> Decided:
        """Decide about a message, and log it.

        Args:
            failed: The try.
            before: Why it, or its partition, stands still already; None: it does not.
        """
        decided = self.decide(failed)
        self.tell(decided, before)
        return decided

    def decide(self, failed: Failed) -> Decided:
        """Decide about a message."""
        offset, attempts, error, retry = failed
        said = "asked for another try of" if error is None else "raised for"
        why = "" if error is None else f": {shown_raised(error)}"
        policy = self._policy.now
        verdict = Verdict.AGAIN
        if attempts >= policy.max_attempts:
            verdict = _VERDICTS[OnFailure(policy.on_failure)]
        told = ListenerFailed(
            f"the listener {said} the message at offset {offset}{why}",
            details={"offset": offset, "attempts": attempts, "held": verdict is Verdict.HOLD},
        )
        told.__cause__ = error
        pause_s = retry.after_s if retry is not None else None
        if pause_s is None:
            pause_s = policy.retry_backoff_s[min(attempts, len(policy.retry_backoff_s)) - 1]
            pause_s *= 1 - _JITTER + 2 * _JITTER * self._rng.random()
        return Decided(verdict, told, pause_s)

    def tell(self, decided: Decided, before: VqError | None) -> None:
        """Log what was decided; where the error was raised, once for each cause.

        A listener may fail in another way at a later try.
        """
        verdict, told, _ = decided
        error = told.__cause__
        is_same = before is not None and before.details.get("offset") == told.details["offset"]
        is_told = is_same and before is not None and type(before.__cause__) is type(error)
        was_held = is_same and before is not None and before.details.get("held")
        where_raised = None if is_told else error
        tries = int(told.details["attempts"])
        if verdict is Verdict.SKIP:
            logger.error(
                "listener failed, message skipped",
                partition=self._partition,
                tries=tries,
                error=told,
                exc_info=where_raised,
            )
        elif verdict is Verdict.STOP:
            logger.error(
                "listener failed, the group stops here",
                group=self._group,
                partition=self._partition,
                tries=tries,
                error=told,
                exc_info=where_raised,
            )
        elif verdict is Verdict.HOLD and not was_held:
            logger.error(
                "listener failed, what follows waits for it, trying again",
                partition=self._partition,
                tries=tries,
                error=told,
                exc_info=where_raised,
            )
        else:
            logger.warning(
                "listener failed, trying again",
                partition=self._partition,
                tries=tries,
                error=told,
                exc_info=where_raised,
            )


_VERDICTS: Final = {
    OnFailure.HOLD: Verdict.HOLD,
    OnFailure.RETRY_TOPIC: Verdict.HOLD,  # until its copy is stored, see ``giving_up``
    OnFailure.DEAD_LETTER: Verdict.HOLD,  # likewise
    OnFailure.SKIP: Verdict.SKIP,
    OnFailure.STOP: Verdict.STOP,
}
