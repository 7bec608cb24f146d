"""Between the executors and a listener: a message that has used up its attempts is copied instead.

Into a reserved topic, or, with ``on_failure = "skip"``, into a file of the member's machine.

    executor ─▶ listener ─▶ fails for the last time ─▶ copy ─▶ handled
                                                        └ not stored: a failed try, and again

So to those who deliver, a message whose copy is stored was handled. The offset behind it is
committed only then, and it holds up what must follow it until then.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from vq.client.consumer.deliver.hands import is_finished
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.redelivered import NoListener
from vq.client.consumer.deliver.tries import NotCopied, Retry, retry_of
from vq.coordination.tree.values.group_terms import FailurePolicy, OnBadRecord, OnFailure
from vq.errors import ContentUnreadable
from vq.log_lines import get_logger
from vq.model import Message
from vq.reserved import DeliveryFailure
from vq.shown import shown_raised
from vq.tasks import cancellation_of

logger = get_logger(__name__)
#: How many messages that failed are remembered; of others it is not known since when they fail.
_REMEMBERED: Final = 100_000
#: What follows the last try is a copy.
COPIED: Final = frozenset({OnFailure.RETRY_TOPIC, OnFailure.DEAD_LETTER, OnFailure.SKIP})
#: What failed is remembered without its content.
_NO_MESSAGE: Final = Message("", b"")


class Spent(NamedTuple):
    """A message of which only the copy is missing.

    Attributes:
        message: The message, as it was delivered.
        failure: What the listener made of this delivery.
        after_s: The pause that the listener asked for; None: it did not.
        is_bad: Nothing can read it, so there is no use in another try.
        passes_on: This member has no listener for it, and another one may have.
        error: What the listener raised, for the log; None: it did not, or the try before ended so.
    """

    message: Message
    failure: DeliveryFailure
    after_s: float | None
    is_bad: bool = False
    passes_on: bool = False
    error: BaseException | None = None


class Called(NamedTuple):
    """What an executor calls.

    Attributes:
        listener: The listener.
        giving_up: Its twin, which has messages copied that have used up their attempts.
    """

    listener: Any
    giving_up: Any


Copied = tuple[int, Exception | None]
"""Of so many messages, from the first one on, the copies are stored; why the next one is not."""


class FailedTries:
    """What the listener made of messages, until they are handled or copied. Any thread.

    A message is also copied, to the retry topic, when the listener asks for a pause that is longer
    than all of the policy's, and when it came from there and this member has no listener for it.

    Args:
        policy: After how many tries a message is copied; or at once, because nothing can read it.
        now_ms: The time.

    Attributes:
        remembered: Since when messages fail, and why they did last, by their places.
    """

    def __init__(self, policy: PolicyInForce, now_ms: Callable[[], int]) -> None:
        self._policy = policy
        self._now_ms = now_ms
        self.remembered: Final[dict[tuple[str, int, int], tuple[int, str]]] = {}
        self._spent: dict[tuple[str, int, int], tuple[FailurePolicy, Spent]] = {}

    def _most(self) -> float:
        """Return after how many failed tries a message is copied; infinite: never."""
        policy = self._policy.now
        return policy.max_attempts if policy.on_failure in COPIED else math.inf

    def knows(self, given: Any) -> bool:
        """Whether a message failed before, or one of a list."""
        messages = given if isinstance(given, list) else (given,)
        return not self.remembered.keys().isdisjoint(map(_place, messages))

    def used_up(self, messages: Sequence[Message]) -> list[Spent]:
        """Return messages of which only the copy is missing, with why; none: call the listener.

        What was decided by another policy counts no more: the message is tried once more.
        """
        found: list[Spent] = []
        for message in messages if self._spent else ():
            decided = self._spent.get(_place(message))
            if decided is None:
                return []
            policy, spent = decided
            if message.attempts <= spent.failure.attempts:  # delivered anew
                return []
            if policy != self._policy.now:
                return []
            found.append(spent._replace(message=message))
        return found

    def failed(self, messages: Sequence[Message], result: BaseException | Retry) -> list[Spent]:
        """Note that the listener failed; return those to copy, with why. None: they have tries."""
        why, after_s = "vq.Retry", None
        if isinstance(result, Retry):
            after_s = result.after_s
        else:
            why = shown_raised(result)
        policy = self._policy.now
        is_long = (
            policy.on_failure == OnFailure.RETRY_TOPIC
            and after_s is not None
            and after_s > policy.retry_backoff_s[-1]
        )
        found: list[Spent] = []
        is_bad = len(messages) == 1 and isinstance(result, ContentUnreadable)
        if is_bad and policy.on_bad_record != OnBadRecord.DEAD_LETTER:
            return found  # skipped, or the group stops: whoever delivers it decides that
        passes_on = isinstance(result, NoListener)
        is_over = is_bad or is_long or passes_on
        for message in messages:
            place = _place(message)
            since, why_before = self.remembered.get(place, (self._now_ms(), ""))
            self.remembered[place] = since, why
            if is_over or message.attempts >= self._most():
                failure = DeliveryFailure(message.attempts, since, why)
                error = None if isinstance(result, Retry) or why == why_before else result
                spent = Spent(_NO_MESSAGE, failure, after_s, is_bad, passes_on)
                self._spent[place] = policy, spent
                found.append(spent._replace(message=message, error=error))
        while len(self.remembered) > _REMEMBERED:
            oldest = next(iter(self.remembered))
            self.remembered.pop(oldest, None)
            self._spent.pop(oldest, None)
        return found

    def over(self, messages: Sequence[Message]) -> None:
        """Forget messages that are handled, or copied."""
        for message in messages if self.remembered else ():
            self.remembered.pop(_place(message), None)
            self._spent.pop(_place(message), None)


_place: Final[Callable[[Message], tuple[str, int, int]]] = itemgetter(
    *(Message._fields.index(each) for each in ("topic", "partition", "offset"))
)


def _not_copied(error: Exception, message: Message) -> None:
    logger.warning(
        "copy of a failed message is not stored, trying again",
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        error=error,
    )


class _Try:
    """One call of a listener: of its messages, which are copied instead, and what that makes of it.

    Nothing is made of a call that goes well, for messages that have not failed before.

    Args:
        failing: What the listener made of them before.
        given: A message, or a list.

    Attributes:
        spent: Messages to copy now. Some before the call: the listener is not called.
    """

    __slots__ = ("_done", "_failing", "_messages", "spent")

    def __init__(self, failing: FailedTries, given: Any) -> None:
        self._failing = failing
        self._messages: Sequence[Message] = given if isinstance(given, list) else (given,)
        self._done = 0  # so many from the first one on are handled
        self.spent = failing.used_up(self._messages)

    def is_raised(self, error: BaseException) -> bool:
        """Whether what the listener raised is a failed try; if not, there is something to copy."""
        self.spent = self._failing.failed(self._messages, error)
        return not self.spent

    def is_answer(self, result: Any) -> bool:
        """Whether what the listener returned is the answer; if not, there is something to copy."""
        retry = retry_of(result)
        if retry is None:
            self._failing.over(self._messages)
            return True
        self._done = retry.done
        self.spent = self._failing.failed(self._messages[self._done :], retry)
        return not self.spent

    def copied(self, copied: Copied) -> Retry | None:
        """Return the answer: what is handled and copied is done; None: that is all.

        Raises:
            NotCopied: Nothing is.
        """
        count, error = copied
        self._done += count
        if error is None:
            self._failing.over(self._messages)
            return None
        self._failing.over([each.message for each in self.spent[:count]])
        _not_copied(error, self.spent[count].message)
        if not self._done:
            raise NotCopied(f"its copy is not stored: {error}") from error
        return Retry(done=self._done)


def calling(
    listener: Callable[[Any], Any],
    failing: FailedTries,
    copy: Callable[[Sequence[Spent]], Copied],
) -> Callable[[Any], Any]:
    """Return a listener that gives up what has used up its attempts; ``copy`` waits in its thread.

    It takes a message, or a list, as ``listener`` does.
    """

    remembered = failing.remembered

    def call(given: Any) -> Any:
        this = _Try(failing, given) if remembered and failing.knows(given) else None
        if this is None or not this.spent:
            try:
                result = listener(given)
            except BaseException as error:
                if is_finished():
                    raise
                this = this or _Try(failing, given)
                if this.is_raised(error):
                    raise
            else:
                if this is None and (result is None or retry_of(result) is None):
                    return result
                this = this or _Try(failing, given)
                if this.is_answer(result):
                    return result
        return this.copied(copy(this.spent))

    return call


def awaiting(
    listener: Callable[[Any], Awaitable[Any]],
    failing: FailedTries,
    copy: Callable[[Sequence[Spent]], Awaitable[Copied]],
) -> Callable[[Any], Awaitable[Any]]:
    """Return what ``calling`` does, for a coroutine function."""

    remembered = failing.remembered

    async def call(given: Any) -> Any:
        this = _Try(failing, given) if remembered and failing.knows(given) else None
        if this is None or not this.spent:
            try:
                result = await listener(given)
            except BaseException as error:
                # If it was cancelled, the listener has not failed.
                if cancellation_of(error) is not None or is_finished():
                    raise
                this = this or _Try(failing, given)
                if this.is_raised(error):
                    raise
            else:
                if this is None and (result is None or retry_of(result) is None):
                    return result
                this = this or _Try(failing, given)
                if this.is_answer(result):
                    return result
        return this.copied(await copy(this.spent))

    return call
