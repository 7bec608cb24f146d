"""One call of ``send_batch``: its messages, and the outcome of each.

Messages are prepared in chunks and appended a chunk at a time, as far as the buffer has space; so a
call takes the accumulator's lock once for a chunk, and may have more messages than the buffer. A
chunk is what fits into one batch.

With ``config.ordered``, no message is appended behind one of the same call and partition that was
appended and failed: the application could not stop the call in between.
"""

from collections.abc import Callable, Iterable
from typing import Any, Self

from vq.client.config import ProducerConfig
from vq.client.future import SendFuture
from vq.client.producer.intake.accumulator import Accumulator
from vq.client.producer.intake.delays import is_delayed
from vq.client.producer.interceptors import Interceptors, Sending, outcome_of
from vq.client.producer.queue.futures import COMPILED, bytes_of, last_waiting, outcomes
from vq.client.producer.queue.partition_queue import BatchLeader
from vq.client.producer.queue.topic_queues import TopicQueues
from vq.errors import BatchFailed, InvalidArgument, NotSent, VqError
from vq.model import Message, SendResult, TopicPartition, TopicSettings
from vq.reserved import DELAYED_TOPIC
from vq.shown import shown


class BatchSend:
    """The messages of one call, in order. One thread or task uses it.

    Args:
        accumulator: Takes the messages.
        config: How large a batch is.
        messages: The messages, of any topics.
        deadline: Monotonic time by which each of them must have its outcome.
        interceptors: Those of the producer.

    Attributes:
        topics: The topics of the messages, each once.
        deadline: See above.
    """

    def __init__(
        self,
        accumulator: Accumulator,
        config: ProducerConfig,
        messages: Iterable[Message],
        deadline: float,
        interceptors: Interceptors | None = None,
    ) -> None:
        self.deadline = deadline
        self._config = config
        self._interceptors = interceptors
        self._accumulator = accumulator
        self._messages: list[Any] = _listed(messages)
        self._sends: list[SendFuture | VqError | None] = [None] * len(self._messages)
        self._rests: dict[str, list[int]] = {}  # places of messages not yet prepared, last first
        self._places: list[int] = []  # of messages of one topic, prepared and not yet appended
        self._prepared: list[SendFuture] = []  # their futures
        self._last: dict[int, SendFuture] = {}  # of this topic, appended, by partition
        self._begun: tuple[int, Sending] | None = None  # its ``before_send`` ran, not prepared
        self._target: tuple[TopicQueues, int] | None = None  # of this topic, where no key decides
        one = None if interceptors else accumulator.appender.one_topic(self._messages)
        if one is None:
            self._sort()
        else:
            self._rests[one] = list(range(len(self._messages) - 1, -1, -1))
        self.topics = list(self._rests)

    def _sort(self) -> None:
        """Find the messages of each topic; refuse what is no message."""
        delayed: list[int] = []
        for place in range(len(self._messages) - 1, -1, -1):
            message = self._messages[place]
            if isinstance(message, Message) and isinstance(message.topic, str):
                rest = self._rests.setdefault(message.topic, [])
                (delayed if is_delayed(message) else rest).append(place)
            else:
                self._sends[place] = InvalidArgument(
                    f"message {place} of the batch is not a vq.Message with a topic: "
                    f"{shown(message)}"
                )
        if delayed:  # behind their own topics, which must be known
            self._rests[DELAYED_TOPIC] = delayed

    def check(
        self,
        topic: str,
        settings: TopicSettings,
        check: Callable[[Message, TopicSettings], bool],
    ) -> bool:
        """Refuse messages before the first one that a new topic could take.

        Args:
            topic: Their topic, which is missing.
            settings: Those of the new topic.
            check: See ``ProducerCore.check``.

        Returns:
            Whether there is such a message, for which the topic is to be created.
        """
        rest = self._rests[topic]
        while rest:
            place = rest[-1]
            try:
                self._check_one(place, settings, check)
            except VqError as error:
                self._sends[place] = error
                rest.pop()
            else:
                return True
        return False

    def _check_one(
        self,
        place: int,
        settings: TopicSettings,
        check: Callable[[Message, TopicSettings], bool],
    ) -> None:
        message = self._messages[place]
        if self._interceptors is None:
            check(message, settings)
            return
        with self._interceptors.begin(message) as sending:
            check(sending.message, settings)
            self._begun = (place, sending)  # before_send runs once

    def append(self, topic: str, *, block: bool, leader: BatchLeader | None = None) -> bool:
        """Append messages of a topic, one chunk at most; return whether it was the last one.

        A message that a stage refuses has its error, and the others go on. Call it for one topic
        until it returns true or raises, then for the next one. ``leader``, the caller's thread, may
        get the queue of the last chunk of a call to lead, see ``Accumulator.append_many``.

        Raises:
            BufferFull: There is no space until the deadline, or now without ``block``.
            NotPublished, InvalidState: See ``Accumulator.append_any``.
        """
        accumulator, rest = self._accumulator, self._rests[topic]
        if not rest and not self._prepared:
            return True  # all were refused
        if self._target is None:
            self._target = accumulator.target(topic)
        queues, partition = self._target
        if not self._prepared:
            self._prepare(queues, partition, rest)
        if self._prepared:
            # Behind it come more messages, which go on while it is under way; callbacks are the
            # loop's.
            is_last = not rest and topic == self.topics[-1] and self._interceptors is None
            count = accumulator.append_many(
                self._prepared,
                queues,
                self.deadline,
                block=block,
                may_follow=self._may_follow if self._config.ordered else None,
                leader=leader if is_last else None,
            )
            self._note(self._places[:count], self._prepared[:count])
            del self._places[:count], self._prepared[:count]
            if not count:
                self._refuse_behind(topic)
        if rest or self._prepared:
            return False
        self._target = None
        self._last.clear()
        return True

    def _note(self, places: list[int], futures: list[SendFuture]) -> None:
        """Note the futures of messages that were appended; places rise."""
        if places and places[-1] - places[0] == len(places) - 1:
            self._sends[places[0] : places[-1] + 1] = futures
        else:
            for place, future in zip(places, futures, strict=True):
                self._sends[place] = future
        if self._config.ordered:
            for future in futures:
                self._last[future.partition] = future

    def _may_follow(self) -> bool:
        """Return whether no prepared message is behind a failed one.

        A failure takes along what was appended behind it, so the last message of each partition
        tells. The sender drains under the accumulator's lock after it has failed messages: under
        this lock, either the failure is seen here or what is appended now fails with it.
        """
        return not any(map(self._is_behind_failed, self._prepared))

    def _is_behind_failed(self, future: SendFuture) -> bool:
        last = self._last.get(future.partition)
        return last is not None and isinstance(last.outcome, VqError)

    def _refuse_behind(self, topic: str) -> None:
        """Refuse the prepared messages that are behind a failed one; the others stay."""
        places: list[int] = []
        futures: list[SendFuture] = []
        for place, future in zip(self._places, self._prepared, strict=True):
            if self._is_behind_failed(future):
                where = TopicPartition(topic, future.partition)
                error = NotSent(
                    f"{where}: not sent, because an earlier message of this call failed and the "
                    "producer is ordered; send all failed messages again in their order"
                )
                self._sends[place] = error
                future.fail(error)
            else:
                places.append(place)
                futures.append(future)
        self._places, self._prepared = places, futures

    def _prepare(self, queues: TopicQueues, partition: int, rest: list[int]) -> None:
        config, size = self._config, 0
        prepare = self._accumulator.prepare
        # The appender in Python prepares none.
        is_plain = COMPILED and self._interceptors is None and self._accumulator.pass_plain
        while rest and len(self._prepared) < config.batch_records and size < config.batch_bytes:
            before = len(self._prepared)
            if is_plain and self._prepare_plain(queues, partition, rest, size):
                size += bytes_of(self._prepared[before:])
                continue
            place = rest.pop()
            try:
                if self._interceptors is None:
                    future = prepare(self._messages[place], None, queues, self.deadline)
                else:
                    with self._begin(place, self._interceptors) as sending:
                        future = prepare(sending.message, sending, queues, self.deadline)
            except VqError as error:
                self._sends[place] = error
                continue
            if future.partition < 0:
                future.partition = partition
                future.dealt = True
            size += future.size
            self._places.append(place)
            self._prepared.append(future)

    def _prepare_plain(
        self, queues: TopicQueues, partition: int, rest: list[int], size: int
    ) -> bool:
        """Prepare the next messages as long as they are plain; return whether there are any."""
        config = self._config
        futures = self._accumulator.appender.prepare(
            self._messages,
            rest,
            config.batch_records - len(self._prepared),
            config.batch_bytes - size,
            self.deadline,
            queues,
            partition,
        )
        if not futures:
            return False
        self._places += rest[: -len(futures) - 1 : -1]
        self._prepared += futures
        del rest[-len(futures) :]
        return True

    def _begin(self, place: int, interceptors: Interceptors) -> Sending:
        """Return the send of a message whose ``before_send`` has run, now or before."""
        begun, self._begun = self._begun, None
        return (
            begun[1] if begun and begun[0] == place else interceptors.begin(self._messages[place])
        )

    def refuse(self, topic: str, error: VqError) -> int:
        """Give ``error`` to the messages of a topic that were not appended; return how many."""
        count = len(self._prepared) + len(self._rests[topic])
        for place, future in zip(self._places, self._prepared, strict=True):
            self._sends[place] = error
            future.fail(error)
        for place in self._rests[topic]:
            self._sends[place] = error
        self._end_begun(error)
        self._places.clear()
        self._prepared.clear()
        self._rests[topic].clear()
        self._last.clear()
        self._target = None
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        """Tell interceptors of messages that an interrupted call has prepared and not appended."""
        if exc is None:
            return
        error = outcome_of(exc)
        self._end_begun(error)
        for future in self._prepared:
            if future.callback is not None:
                future.callback(None, error)

    def _end_begun(self, error: VqError) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun[1].ended(None, error)

    def last_waiting(self) -> SendFuture | None:
        """Return the last accepted message without an outcome; None: each has one."""
        return last_waiting(self._sends)

    def accepted(self) -> list[SendFuture]:
        """Return the futures of the messages that were appended, in order."""
        return [each for each in self._sends if isinstance(each, SendFuture)]

    def results(self) -> list[SendResult]:
        """Return the place of each message; every accepted one has its outcome.

        Raises:
            BatchFailed: Some are refused or unknown.
        """
        found, are_stored = outcomes(self._sends, SendResult)
        if not are_stored:
            raise BatchFailed([each for each in found if each is not None])
        return found


def _listed(messages: object) -> list[object]:
    """Return the messages of a call as a list.

    Raises:
        InvalidArgument: One message, which would be taken apart, or nothing to iterate over.
    """
    if type(messages) is list:
        return messages[:]
    if isinstance(messages, Message):
        raise InvalidArgument("messages is one vq.Message; give a list of them: [message]")
    if isinstance(messages, str | bytes) or not isinstance(messages, Iterable):
        raise InvalidArgument(
            f"messages = {shown(messages)} is {type(messages).__name__}; give a list of vq.Message"
        )
    return list(messages)
