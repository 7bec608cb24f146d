"""Threads that call a listener of ``vq.ConsumerConfig`` for the messages of a local queue.

The same policy decides as in a cluster: what a failed try is, the pauses, what follows the last
try. What differs is where copies go:

    retry-topic   the lane of messages that wait for a time; behind the last delay: as below
    dead-letter   the local queue of the group's dead-letter topic
    skip          the member's failed file, below the directory of the queues
"""

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.failures import Failures, Verdict, failed_try
from vq.client.consumer.deliver.giving_up import COPIED, Copied, FailedTries, Spent, calling
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.tries import Retry, retry_of, tried_again
from vq.client.failed_file import FailedFile
from vq.clock import SystemClock
from vq.coordination.tree.values.group_terms import OnFailure, WorkingMode
from vq.errors import LeaseLost, VqError
from vq.local.items import LATER, LocalItem
from vq.local.queue import LocalQueue
from vq.local.workers import LocalWorkers, NotHandled
from vq.log_lines import get_logger
from vq.message_filter import Filter
from vq.model import Message, TopicPartition
from vq.reserved import MessageOrigin, Purpose, headers_of_copy, own_headers, topic_of
from vq.store.records.copies import encode_copy

logger = get_logger(__name__)
#: Below the directory of the queues; ``VQ_FAILED_DIR=<directory> vq group failed list GROUP
#: --cluster _vq.failed`` reads it. No topic of a user has such a name.
FAILED_DIRECTORY: Final = "_vq.failed"
#: What a listener of coroutines answers that was cancelled: its message was not handled.
CANCELLED: Final = object()
_WINDOW: Final = 1_000
_DELAY_S_MIN: Final = 0.001


def as_delivered(item: LocalItem) -> Message:
    """Return the message of an item with its place, which is that of its ``SendResult``.

    Raises:
        CorruptData: Its key or headers cannot be parsed.
    """
    return item.message._replace(partition=item.lane, offset=item.offset)


def passing(wanted: Filter) -> Callable[[Message], bool]:
    """Return what says whether a message passes a filter; it may raise ``FilterFailed``."""
    tags, check = frozenset(wanted.tags), wanted.check

    def passes(message: Message) -> bool:
        return (not tags or message.tag in tags) and (check is None or check(message))

    return passes


class ListenerWorkers(LocalWorkers):
    """Calls a listener as ``ConsumerConfig`` says.

    A box is the whole topic (``orderly``), a key (``keyed``), or one message (``concurrent``).

    Args:
        queue: Of the topic.
        listener: As of ``MessageConsumer.subscribe``.
        config: Has the mode, the workers and the policy.
        wanted: Messages that do not pass are completed without a call.
        dead_letters: Returns the queue of a topic of dead letters.
        directory: Of the queues; has the failed files.
    """

    def __init__(
        self,
        queue: LocalQueue,
        listener: Callable[[Message], Any],
        *,
        config: ConsumerConfig,
        wanted: Filter,
        dead_letters: Callable[[str], LocalQueue],
        directory: Path,
    ) -> None:
        clock = SystemClock()
        self._config = config
        self._listener = listener
        self._passes = passing(wanted)
        self._dead_letters = dead_letters
        self._policy = PolicyInForce(config)
        self._now_ms = clock.wall_ms
        member = f"{config.member_id or 'local'}.failed"
        self._file = FailedFile(directory / FAILED_DIRECTORY / config.group / member)
        self._in_hand: dict[tuple[int, int], LocalItem] = {}
        self._deciding = threading.Lock()
        self._failures = Failures(
            TopicPartition(queue.name, 0),
            config.group,
            self._policy,
            random.Random(),  # nosec B311
            clock.wall_ms,
        )
        self._called = calling(
            self._listen, FailedTries(self._policy, clock.wall_ms), self._copy_all
        )
        window = min(config.window_messages, _WINDOW)
        by_key = config.mode is WorkingMode.KEYED
        super().__init__(queue, self._listen, workers=config.workers, by_key=by_key, window=window)

    def _box_key(self, item: LocalItem) -> object:
        if self._config.mode is WorkingMode.ORDERLY:
            return self
        found = item.key if self._config.mode is WorkingMode.KEYED else None
        return item if found is None else found

    def _pause_after_crashes(self, item: LocalItem) -> float:
        crashes = _crashes(item)
        pauses = self._policy.now.retry_backoff_s
        return pauses[min(crashes, len(pauses)) - 1] if crashes else 0.0

    def _is_spent(self, item: LocalItem, tries: int) -> bool:
        """Whether crashes have used up the tries of a message, so nobody is called any more."""
        policy = self._policy.now
        if policy.on_failure not in COPIED:
            return False
        if policy.on_failure == OnFailure.RETRY_TOPIC and item.lane == LATER:
            return _redelivery(item) >= len(policy.retry_topic_s) + policy.max_attempts
        return (item.attempts if item.lane == LATER else tries + 1) > policy.max_attempts

    def _listen(self, message: Message) -> Any:
        item = self._in_hand[message.partition, message.offset]
        if self._is_spent(item, message.attempts - 1):
            raise VqError(
                f"its process ended before the listener returned, {item.attempts - 1} times; it is "
                "not called again"
            )
        earlier = _redelivery(item)
        if earlier:
            before = earlier * self._policy.now.max_attempts
            message = tried_again(message, before + message.attempts)
        return self._listener(message)

    def _handle(self, item: LocalItem, tries: int) -> float | None:
        place = item.lane, item.offset
        self._in_hand[place] = item
        if item.lane == LATER:
            self._queue._core.base.note_given(item, keeps_place=True)
        else:
            self._queue._core.base.note_given(item, tries, keeps_place=True)
            tries += _crashes(item)
        try:
            message = as_delivered(item)
            if self._is_spent(item, tries):
                tries = max(tries, self._policy.now.max_attempts)
            if tries:
                message = tried_again(message, tries + 1)
            return self._deliver(item, message)
        except LeaseLost:  # it waits for its next time, or another taker has it
            return None
        except VqError as error:
            logger.warning(
                "message cannot be handled, trying again",
                queue=self._queue.name,
                id=item.id,
                error=error,
            )
            return self._policy.now.retry_backoff_s[-1]
        finally:
            del self._in_hand[place]

    def _deliver(self, item: LocalItem, message: Message) -> float | None:
        if not self._passes(message):
            self._queue.complete(item)
            return None
        result: BaseException | Retry | None
        try:
            answer = self._called(message)
            if answer is CANCELLED:
                raise NotHandled(self._policy.now.retry_backoff_s[-1])
            result = retry_of(answer)
        except NotHandled:
            raise
        except BaseException as error:  # noqa: BLE001  also SystemExit: others wait for the thread
            result = error
        if result is not None:
            with self._deciding:
                decided = self._failures.failed(failed_try(message, result), None)
            if decided.verdict is Verdict.STOP:  # of a content that cannot be read
                return self._policy.now.retry_backoff_s[-1]
            if decided.verdict is not Verdict.SKIP:
                return decided.pause_s
        self._queue.complete(item)
        return None

    # Messages that are given up -------------------------------------------------------------------
    def _copy_all(self, spent: Sequence[Spent]) -> Copied:
        for count, each in enumerate(spent):
            try:
                self._give_up(each)
            except Exception as error:  # noqa: BLE001  it is told to the policy, which holds it
                return count, error
        return len(spent), None

    def _give_up(self, spent: Spent) -> None:
        message, policy = spent.message, self._policy.now
        item = self._in_hand[message.partition, message.offset]
        redelivery = _redelivery(item)
        origin = message.origin or MessageOrigin(message.topic, message.partition, message.offset)
        told = headers_of_copy(origin, spent.failure)
        if not spent.is_bad and policy.on_failure == OnFailure.SKIP:
            self._file.add(encode_copy(message, told), self._now_ms())
            to = str(self._file.path)
        elif (
            not spent.is_bad
            and policy.on_failure == OnFailure.RETRY_TOPIC
            and redelivery < len(policy.retry_topic_s)
        ):
            delay_s = policy.retry_topic_s[redelivery] if spent.after_s is None else spent.after_s
            delay_s = max(delay_s, _DELAY_S_MIN)  # it waits for a time, so it is counted
            self._queue.fail(item, delay_s=delay_s)
            to = f"redelivery {redelivery + 1} after {delay_s:g} s"
        else:
            topic = topic_of(Purpose.DEAD_LETTERS, self._config.group)
            # A crash before the completion gives it up once more; the key recognises that.
            key = f"{self._queue.name}/{item.id}"
            copy = message._replace(headers=own_headers(message.headers) or None)
            self._dead_letters(topic)._put_copy(copy, told, key)
            to = topic
        logger.error(
            "listener failed, message given up",
            group=self._config.group,
            message=origin,
            tries=spent.failure.attempts,
            error=spent.failure.reason,
            to=to,
            exc_info=spent.error,
        )


def _crashes(item: LocalItem) -> int:
    """Return how often a message in line was in hand when its process ended.

    In the lane of those that wait, a crash counts as one more redelivery.
    """
    return 0 if item.lane == LATER else item.attempts - 1


def _redelivery(item: LocalItem) -> int:
    """Return how often a message waited for a time because it failed.

    A message in the lane of those was given once more than that.
    """
    return max(item.attempts - 1, 0) if item.lane == LATER else 0
