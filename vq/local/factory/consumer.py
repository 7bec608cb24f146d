"""``LocalMessageConsumer``: what reads local queues with the calls of a cluster's consumer."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, Self

from vq import limits
from vq.bounds import check_between
from vq.client.config import ConsumerConfig
from vq.client.consumer.pulling_thread import check_one_thread
from vq.client.kinds import check_function, check_takes_message
from vq.coordination.tree.values.group_terms import OnBadRecord, OnFailure
from vq.errors import InvalidArgument, InvalidState, LeaseLost, VqError
from vq.local.factory.queues import LocalQueues
from vq.local.factory.refused import refuse_name, refuse_settings
from vq.local.items import LocalItem
from vq.local.listeners import ListenerWorkers, as_delivered, passing
from vq.local.queue import LocalQueue
from vq.log_lines import get_logger
from vq.message_filter import Filter, Wanting
from vq.model import Message, check_name, check_timeout
from vq.reserved import Purpose, group_of, is_reserved

logger = get_logger(__name__)
#: A call that waits for messages looks so often whether its consumer was closed.
LOOK_S: Final = 0.5
_monotonic: Final = time.monotonic
#: Settings that would change what a message means, which a local queue does not have.
_NO_CONSUMER_SETTINGS: Final = (
    "offset_store",
    "model",
    "batch_size",
    "listener_timeout_s",
    "restart_s",
    "start_position",
    "window_bytes",
    "read_from",
    "rack",
    "strategy",
)


class LocalMessageConsumer:
    """The part of ``vq.MessageConsumer`` that needs no cluster.

    ``config.workers`` threads call the listener, in the order that ``config.mode`` promises; a
    topic is one partition. What fails is tried again as the settings of the consumer say.
    """

    def __init__(self, queues: LocalQueues, config: ConsumerConfig) -> None:
        """Use ``LocalFactory.consumer``.

        Raises:
            InvalidArgument: A setting needs a cluster.
        """
        refuse_settings(config, _NO_CONSUMER_SETTINGS)
        if not config.group:
            raise InvalidArgument("a consumer of local queues needs group = '...'")
        for name, stop in (("on_failure", OnFailure.STOP), ("on_bad_record", OnBadRecord.STOP)):
            if getattr(config, name) == stop:
                raise InvalidArgument(
                    f"{name} = '{stop}' needs a cluster: here nothing remembers that a group was "
                    "stopped; give 'skip' or 'dead-letter', or leave it out: the message is held"
                )
        self._queues = queues
        self.config = config
        self._listeners: dict[str, Callable[[Message], Any] | None] = {}
        self._filters: dict[str, Filter] = {}
        self._workers: dict[str, ListenerWorkers] = {}
        self._in_hand: list[tuple[LocalQueue, LocalItem]] = []
        self._has_reached = True  # what is in hand has reached the caller of ``get_many``
        self._completing: LocalItem | None = None  # begun to be completed
        self._owner: threading.Thread | None = None  # called get_many last; None: a loop's task
        self._lock = threading.Lock()  # a listener may call close before start has returned
        self._started = False
        self.closed = False

    def subscribe(
        self,
        topic_or_pattern: str,
        length: int = limits.MIB,
        listener: Callable[[Message], Any] | None = None,
        message_filter: Wanting = None,
    ) -> Self:
        """Add a topic, and the listener of its messages, before ``start``.

        What does not pass the filter counts as handled, as in a cluster.
        """
        if self.closed or self._started:
            raise InvalidState("subscribe comes before start")
        group, topic = self.config.group, topic_or_pattern
        wanted = Filter.of(message_filter)
        if isinstance(topic, str) and {"*", "?"} & set(topic):
            raise InvalidArgument(f"the pattern {topic!r} needs a cluster; subscribe to each topic")
        check_name("topic", topic)
        if group_of(topic, Purpose.DEAD_LETTERS) in {None, group} and is_reserved(topic):
            raise InvalidArgument(
                f"group {group!r} cannot read {topic!r}: of topics of vq's own a local queue has "
                "those of dead letters, which another group than theirs reads"
            )
        if listener is not None:
            check_function("listener", listener, "give a plain function of a message")
            check_takes_message("listener", listener)
        if self._listeners and (listener is None) != (None in self._listeners.values()):
            raise InvalidArgument("all topics of a consumer have listeners, or none has")
        self._queues.join(topic, group, wanted)
        self._listeners[topic] = listener
        self._filters[topic] = wanted
        return self

    def start(self) -> Self:
        """Begin to call the listeners.

        Raises:
            InvalidState: It was started or closed before, or has no subscription.
        """
        with self._lock:
            if self.closed or self._started:
                raise InvalidState(
                    "this consumer is closed; make another one"
                    if self.closed
                    else "this consumer runs already: start is called once, or get_many has done it"
                )
            if not self._listeners:
                raise InvalidState("the consumer has no subscription; subscribe to a topic")
            opened = {topic: self._queues.queue(topic) for topic in self._listeners}
            self._started = True
            for topic, listener in self._listeners.items():
                if listener is not None:
                    self._workers[topic] = ListenerWorkers(
                        opened[topic],
                        listener,
                        config=self.config,
                        wanted=self._filters[topic],
                        dead_letters=self._queues.queue,
                        directory=self._queues.directory,
                    )
        return self

    def get_many(self, max_messages: int, timeout: float | None = None) -> list[Message]:
        """Return messages of the one topic; those of the call before count as handled.

        The messages of a call are of the thread that called. If it ends, they are given again.

        Args:
            max_messages: 1 to 100,000.
            timeout: Seconds to wait for the first one; None: without an end.

        Raises:
            InvalidArgument: An argument is unusable.
            InvalidState: It is closed, has no topic without a listener, or another thread has
                messages of a call, or waits for some.
        """
        check_between("max_messages", max_messages, 1, limits.MANY_MAX)
        timeout = None if timeout is None else check_timeout(timeout)
        topic, passes = self.pulled()
        self._enter()
        try:
            messages = self._pull(topic, passes, max_messages, timeout)
        finally:
            if not self._in_hand:  # another thread may go on
                self._owner = None
        self._has_reached = True  # last: behind it, no signal handler runs before the return
        return messages

    def _enter(self) -> None:
        """Let this thread call, and complete what it has from its call before.

        What a call has taken that a signal handler interrupted, its thread has not seen.
        """
        me = threading.current_thread()
        with self._lock:
            owner = self._owner
            check_one_thread(owner, me)
            self._owner = me
            if owner is not None and owner is not me:
                self._has_reached = False
        if not self._has_reached:
            self.put_down()
        self.finish()
        self._has_reached = False

    def _pull(
        self,
        topic: str,
        passes: Callable[[Message], bool],
        max_messages: int,
        timeout: float | None,
    ) -> list[Message]:
        queue = self._queues.queue(topic)
        deadline = None if timeout is None else _monotonic() + timeout
        while not self.closed:
            left_s = LOOK_S if deadline is None else max(deadline - _monotonic(), 0.0)
            items: list[LocalItem] = []
            try:
                while len(items) < max_messages:
                    item = queue.take(0 if items else min(left_s, LOOK_S))
                    if item is None:
                        break
                    items.append(item)
                passing_on = [
                    (item, message) for item in items if passes(message := as_delivered(item))
                ]
                kept = {item for item, _ in passing_on}
                queue.complete_many([item for item in items if item not in kept])
                is_held = self.hold([item for item, _ in passing_on])
            except BaseException:
                for item in reversed(items):
                    queue._core.takes.give_back(item)
                raise
            if not is_held:
                return []
            if kept or (not items and left_s <= LOOK_S and deadline is not None):
                return [message for _, message in passing_on]
        return []

    def pulled(self) -> tuple[str, Callable[[Message], bool]]:
        """Return the one topic that is pulled from, and its filter. For vq only.

        Raises:
            InvalidState: There is none.
        """
        if self.closed:
            raise InvalidState("this consumer is closed")
        if [*self._listeners.values()] != [None]:
            raise InvalidState("get_many needs a consumer with one topic and no listener")
        (topic,) = self._listeners
        return topic, passing(self._filters[topic])

    def hold(self, items: Iterable[LocalItem]) -> bool:
        """Have items count as handled with the next ``finish``. For vq only.

        Returns:
            False: it was closed meanwhile, and they are given to others.
        """
        (topic,) = self._listeners
        held = [(self._queues.queue(topic), item) for item in items]
        with self._lock:
            if not self.closed:
                self._in_hand += held
                return True
        for queue, item in reversed(held):
            queue._core.takes.give_back(item)
        return False

    def commit(self) -> None:
        """Return once it is durable what was handled; what is in hand of ``get_many`` is not."""
        for topic in self._listeners:
            self._queues.queue(topic).flush()

    def finish(self) -> None:
        """Complete what ``get_many`` has returned. For vq only.

        A signal handler may interrupt it; the next call goes on where it was.

        Raises:
            LeaseLost, StorageFailed: As ``LocalQueue.complete``; the others are completed.
        """
        in_hand, self._in_hand = self._in_hand, []
        done = 0
        error: VqError | None = None
        try:
            for queue, item in in_hand:
                is_again, self._completing = self._completing is item, item
                try:
                    queue.complete(item)
                except LeaseLost as found:  # or the call that was interrupted has completed it
                    error = error if is_again else found
                except VqError as found:
                    error = found
                done += 1
        except BaseException:  # no call in here: nothing interrupts it
            self._in_hand = [*in_hand[done:], *self._in_hand]
            raise
        if error is not None:
            raise error

    def put_down(self) -> None:
        """Give to others what ``get_many`` has returned: its handling failed. For vq only."""
        if self._queues.forked:
            return
        in_hand, self._in_hand = self._in_hand, []
        try:
            for queue, item in reversed(in_hand):
                queue._core.takes.give_back(item)
        except BaseException:  # as in ``finish``; what was given back already stays so
            self._in_hand = [*in_hand, *self._in_hand]
            raise

    def close(self) -> None:
        """Wait up to 30 s for listeners that run; the other messages are given to others.

        Messages of ``get_many`` count as handled if this thread has called it. May be called again.
        In the child of a fork it does nothing.

        Raises:
            InvalidState: A listener called it, which would wait for itself. The consumer goes on.
        """
        if self._queues.forked:
            return
        with self._lock:
            self.check_outside()
            if self.closed:
                return
            self.closed = True
        for workers in self._workers.values():
            workers.close()
        if self._owner not in {None, threading.current_thread()} or not self._has_reached:
            self.put_down()
        try:
            self.finish()
        except LeaseLost as error:
            logger.warning("a message is given again", group=self.config.group, error=error)

    def check_outside(self) -> None:
        """Raise ``InvalidState`` if one of the listeners calls it. For vq only."""
        for workers in self._workers.values():
            workers.check_outside()

    def __getattr__(self, name: str) -> NoReturn:
        refuse_name("consumer", name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        if exc is not None:
            self.put_down()
        self.close()
