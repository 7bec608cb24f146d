"""Between the executors and a listener: a message that has used up its attempts is copied instead.

    executor ─▶ listener ─▶ fails for the last time ─▶ copy ─▶ handled
                                                        └ not stored: a failed try, and again

So to those who deliver, a message whose copy is stored was handled. The offset behind it is
committed only then, and it holds up what must follow it until then.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tries import Retry
from vq.coordination.tree.values.group_terms import MAX_ATTEMPTS_MAX, OnBadRecord, OnFailure
from vq.errors import ContentUnreadable
from vq.log_lines import get_logger
from vq.model import Message
from vq.reserved import DeliveryFailure
from vq.shown import shown_raised

logger = get_logger(__name__)
#: How many messages that failed are remembered; of others it is not known since when they fail.
_REMEMBERED: Final = 100_000

Copy = Callable[[Message, DeliveryFailure], Awaitable[None]]
"""Returns once a copy is stored; raises what it is not, or may not be, stored for."""


class FailedTries:
    """What the listener made of messages, until they are handled or copied. Any thread.

    Args:
        policy: After how many tries a message is copied; or at once, because nothing can read it.
        now_ms: The time.
    """

    def __init__(self, policy: PolicyInForce, now_ms: Callable[[], int]) -> None:
        self._policy = policy
        self._now_ms = now_ms
        self._since: dict[tuple[str, int, int], DeliveryFailure] = {}

    def _most(self) -> int:
        """Return after how many failed tries a message is copied."""
        policy = self._policy.now
        return (
            policy.max_attempts
            if policy.on_failure == OnFailure.DEAD_LETTER
            else MAX_ATTEMPTS_MAX + 1
        )

    def used_up(self, messages: Sequence[Message]) -> list[tuple[Message, DeliveryFailure]]:
        """Return messages of which only the copy is missing, with why; none: call the listener."""
        if not self._since or messages[0].attempts <= self._most():
            return []
        found = []
        for message in messages:
            known = self._since.get(_place(message))
            if known is None:
                return []
            found.append((message, known))
        return found

    def failed(
        self, messages: Sequence[Message], result: BaseException | Retry
    ) -> list[tuple[Message, DeliveryFailure]]:
        """Note that the listener failed; return those to copy, with why. None: they have tries."""
        why = shown_raised(result) if isinstance(result, BaseException) else "vq.Retry"
        found = []
        is_bad = (
            self._policy.on_bad_record is OnBadRecord.DEAD_LETTER
            and len(messages) == 1
            and isinstance(result, ContentUnreadable)
        )
        for message in messages:
            before = self._since.get(_place(message))
            since = self._now_ms() if before is None else before.first_ms
            failure = DeliveryFailure(message.attempts, since, why)
            self._since[_place(message)] = failure
            if is_bad or message.attempts >= self._most():
                found.append((message, failure))
        while len(self._since) > _REMEMBERED:
            self._since.pop(next(iter(self._since)), None)
        return found

    def over(self, messages: Sequence[Message]) -> None:
        """Forget messages that are handled, or copied."""
        for message in messages if self._since else ():
            self._since.pop(_place(message), None)


def _place(message: Message) -> tuple[str, int, int]:
    return message.topic, message.partition, message.offset


def _not_copied(error: Exception, message: Message) -> None:
    logger.warning(
        "dead letter is not stored, trying again",
        topic=message.topic,
        partition=message.partition,
        offset=message.offset,
        error=error,
    )


def calling(
    listener: Callable[[Any], Any],
    failing: FailedTries,
    copy: Callable[[Message, DeliveryFailure], None],
) -> Callable[[Any], Any]:
    """Return a listener that gives up what has used up its attempts; ``copy`` waits in its thread.

    It takes a message, or a list, as ``listener`` does.
    """

    def call(given: Any) -> Any:
        messages: Sequence[Message] = given if isinstance(given, list) else (given,)
        done = 0
        letters = failing.used_up(messages)
        if not letters:
            try:
                result = listener(given)
            except BaseException as error:
                letters = failing.failed(messages, error)
                if not letters:
                    raise
            else:
                if not isinstance(result, Retry):
                    failing.over(messages)
                    return result
                done = result.done
                letters = failing.failed(messages[done:], result)
                if not letters:
                    return result
        for count, (message, failure) in enumerate(letters, done):
            try:
                copy(message, failure)
            except Exception as error:
                _not_copied(error, message)
                if not count:
                    raise
                return Retry(done=count)
            failing.over((message,))
        failing.over(messages)
        return None

    return call


def awaiting(
    listener: Callable[[Any], Awaitable[Any]], failing: FailedTries, copy: Copy
) -> Callable[[Any], Awaitable[Any]]:
    """Return what ``calling`` does, for a coroutine function."""

    async def call(given: Any) -> Any:
        messages: Sequence[Message] = given if isinstance(given, list) else (given,)
        done = 0
        letters = failing.used_up(messages)
        if not letters:
            try:
                result = await listener(given)
            except BaseException as error:
                letters = failing.failed(messages, error)
                if not letters:
                    raise
            else:
                if not isinstance(result, Retry):
                    failing.over(messages)
                    return result
                done = result.done
                letters = failing.failed(messages[done:], result)
                if not letters:
                    return result
        for count, (message, failure) in enumerate(letters, done):
            try:
                await copy(message, failure)
            except Exception as error:
                _not_copied(error, message)
                if not count:
                    raise
                return Retry(done=count)
            failing.over((message,))
        failing.over(messages)
        return None

    return call
