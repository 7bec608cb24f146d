"""What becomes of a message whose listener failed: tried again, held, skipped, or the group stops.

In here: the decision, from the settings and the number of tries, and its log lines. Not in here:
who waits and for how long (the delivery and its executor), and copies (``giving_up``). That one is
called first: a message whose copy is stored was handled, and is not decided here.
"""

import enum
from collections.abc import Callable
from typing import Final, NamedTuple, TypeGuard

from vq.backoff import Draws
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tracebacks import Tracebacks
from vq.client.consumer.deliver.tries import NotCopied, Retry
from vq.coordination.tree.values.group_terms import OnBadRecord, OnFailure
from vq.errors import ContentUnreadable, ListenerFailed, VqError
from vq.log_lines import get_logger
from vq.model import Message, TopicPartition
from vq.shown import shown_raised

logger = get_logger(__name__)
_JITTER: Final = 0.2
#: So many messages of a partition that are tried again are logged in a second, each by a line: a
#: line takes longer than all else about a failure. The next line tells how many had none.
LINES_PER_S: Final = 50


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
        offset, message_id: Of the message.
        attempts: How often it was tried, with this try.
        error: What the listener raised; None: it returned ``retry``.
        retry: What it returned.
    """

    offset: int
    message_id: int
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
        return Failed(message.offset, message.id, message.attempts, None, result)
    return Failed(message.offset, message.id, message.attempts, result)


class Failures:
    """The policy for one partition."""

    def __init__(
        self,
        partition: TopicPartition,
        group: str,
        policy: PolicyInForce,
        rng: Draws,
        now_ms: Callable[[], int],
    ) -> None:
        self._partition = partition
        self._group = group
        self._policy = policy
        self._rng = rng
        self._now_ms = now_ms
        self._tracebacks = Tracebacks(now_ms)
        self._second_ms = 0  # when the present second began,
        self._lines = 0  # how many lines it has,
        self._left_out = 0  # and how many messages had none since the last one

    def failed(self, failed: Failed, before: VqError | None) -> Decided:
        """Decide about a message, and log it.

        Args:
            failed: The try.
            before: Why it, or its partition, stands still already; None: it does not.
        """
        decided = self.decide(failed, before)
        self.tell(decided, before)
        return decided

    def decide(self, failed: Failed, before: VqError | None, *, is_alone: bool = True) -> Decided:
        """Decide about a message; ``is_alone``: the listener was given no other one with it.

        The error has in its ``details`` what there is to know: of which message, how often and
        since when it was tried, when it is again, and with ``held`` that it is.
        """
        offset, message_id, attempts, error, retry = failed
        said = "asked for another try of" if error is None else "raised for"
        why = "" if error is None else f": {shown_raised(error)}"
        policy = self._policy.now
        verdict = Verdict.AGAIN
        if is_alone and isinstance(error, ContentUnreadable):  # no further try reads it
            verdict = _VERDICTS_ON_BAD[OnBadRecord(policy.on_bad_record)]
        elif isinstance(error, NotCopied):  # what it is copied for may be another policy's business
            verdict = Verdict.HOLD
        elif attempts >= policy.max_attempts:
            verdict = _VERDICTS[OnFailure(policy.on_failure)]
        pause_s = retry.after_s if retry is not None else None
        if pause_s is None:
            pause_s = policy.retry_backoff_s[min(attempts, len(policy.retry_backoff_s)) - 1]
            pause_s *= 1 - _JITTER + 2 * _JITTER * self._rng.random()
        now_ms = self._now_ms()
        told = ListenerFailed(
            f"the listener {said} the message at offset {offset}{why}",
            details={
                "offset": offset,
                "message_id": message_id,
                "attempts": attempts,
                "since_ms": before.details["since_ms"] if _is_of(before, offset) else now_ms,
                "next_try_ms": now_ms + round(pause_s * 1000),
                "held": int(verdict is Verdict.HOLD),
            },
        )
        told.__cause__ = error
        return Decided(verdict, told, pause_s)

    def tell(self, decided: Decided, before: VqError | None) -> None:
        """Log what was decided; where the error was raised, once for each cause.

        A listener may fail in another way at a later try. A message that is tried again has no
        traceback if another one showed it lately, and no line if many others have one.
        """
        verdict, told, _ = decided
        error = told.__cause__
        last = before if _is_of(before, int(told.details["offset"])) else None
        where_raised = None if last and type(last.__cause__) is type(error) else error
        tries = int(told.details["attempts"])
        if verdict is Verdict.SKIP:
            logger.error(
                "listener failed, message skipped",
                partition=self._partition,
                tries=tries,
                error=told,
                exc_info=self._tracebacks.new(where_raised),
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
        elif verdict is Verdict.HOLD and not (last and last.details["held"]):
            logger.error(
                "listener failed, what follows waits for it, trying again",
                partition=self._partition,
                id=told.details["message_id"],
                tries=tries,
                pause_s=round(decided.pause_s, 1),
                error=told,
                exc_info=where_raised,
            )
        elif self._has_line():
            left_out, self._left_out = self._left_out, 0
            logger.warning(
                "listener failed, trying again",
                partition=self._partition,
                tries=tries,
                error=told,
                exc_info=self._tracebacks.new(where_raised),
                left_out=left_out,
            )

    def _has_line(self) -> bool:
        """Whether another message that is tried again is logged in this second."""
        now_ms = self._now_ms()
        if not 0 <= now_ms - self._second_ms < 1000:
            self._second_ms, self._lines = now_ms, 0
        self._lines += 1
        if self._lines <= LINES_PER_S:
            return True
        self._left_out += 1
        return False


class FailingMessages(dict[int, ListenerFailed]):
    """The messages of a partition that failed and are not finished; under its delivery's lock.

    By offset why each of them failed last. Whether there are any is asked for each message, so it
    is a dictionary, which tells it without a call.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held: set[int] = set()  # those that have used up their attempts,
        self._first: int | None = None  # and the first of them

    def note(self, offset: int, error: ListenerFailed) -> None:
        """A message failed, and is tried again."""
        self[offset] = error
        if error.details["held"]:
            self._held.add(offset)
            self._first = offset if self._first is None else min(self._first, offset)
        else:  # the group may have another policy
            self._let_go(offset)

    def finish(self, offset: int) -> None:
        """A message is finished."""
        if self.pop(offset, None) is not None:
            self._let_go(offset)

    def _let_go(self, offset: int) -> None:
        if offset in self._held:
            self._held.remove(offset)
            if offset == self._first:
                self._first = min(self._held, default=None)

    def first_held(self) -> ListenerFailed | None:
        """Return why the first message is held, and how many are; None: none is."""
        if self._first is None:
            return None
        error = self[self._first]
        error.details["held"] = len(self._held)
        return error


def _is_of(error: VqError | None, offset: int) -> TypeGuard[ListenerFailed]:
    """Whether an error is that of a listener for the message at an offset."""
    return isinstance(error, ListenerFailed) and error.details.get("offset") == offset


_VERDICTS: Final = {
    OnFailure.HOLD: Verdict.HOLD,
    OnFailure.RETRY_TOPIC: Verdict.HOLD,  # until its copy is stored, see ``giving_up``
    OnFailure.DEAD_LETTER: Verdict.HOLD,  # likewise
    OnFailure.SKIP: Verdict.HOLD,  # likewise, in a file
    OnFailure.STOP: Verdict.STOP,
}
_VERDICTS_ON_BAD: Final = {
    OnBadRecord.STOP: Verdict.STOP,
    OnBadRecord.SKIP: Verdict.SKIP,
    OnBadRecord.DEAD_LETTER: Verdict.HOLD,  # as above
}
