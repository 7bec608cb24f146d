"""``get_many`` of the blocking API: one thread at a time takes messages through the loop.

The messages of a call belong to the thread that called. A call's result may not reach it: a signal
handler raised while the thread waited. Then the next call takes the messages back first. Calls have
numbers, so that it takes back no messages of an earlier call, which did reach the thread.
"""

import threading
from collections.abc import Callable, Coroutine
from typing import Any

from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.inbox import Inbox
from vq.client.consumer.pull import Pull
from vq.client.consumer.workers import Listener
from vq.client.runtime import LoopThread
from vq.errors import InvalidArgument, InvalidState
from vq.model import Message


class ThreadPull:
    """The calls of one consumer, from any thread.

    Attributes:
        inbox: Where the messages come.
    """

    def __init__(self, core: ConsumerCore, inbox: Inbox, runtime: LoopThread) -> None:
        self.inbox = inbox
        self._pull = Pull(inbox, core.ensure_started)
        self._runtime = runtime
        self._lock = threading.Lock()  # guards the three below
        self._owner: threading.Thread | None = None  # has the messages of its call, or waits
        self._call = 0  # number of the last one
        self._received = 0  # number of the last one whose result reached the owner; -1: none counts
        self._has_listeners: bool | None = None  # None: nothing was subscribed

    def check_subscription(self, listener: Listener | None) -> None:
        """Check that all topics have listeners, or none has.

        Raises:
            InvalidArgument: This one differs from those before.
        """
        if self._has_listeners is not None and self._has_listeners is (listener is None):
            raise InvalidArgument(
                "some topics of this consumer have a listener and some have none; give all of them "
                "one, or none and call get_many, or make two consumers"
            )

    def subscribed(self, listener: Listener | None) -> None:
        """Note that a topic was subscribed."""
        self._has_listeners = listener is not None

    def get_many(self, max_messages: int, timeout: float | None) -> list[Message]:
        """See ``MessageConsumer.get_many``."""
        if self._has_listeners:
            raise InvalidState(
                "the topics of this consumer have listeners, which get the messages; subscribe "
                "without a listener to call get_many"
            )
        call, received = self._enter()
        messages = self._runtime.run(
            self._pull.get_many(max_messages, timeout, call=call, received=received)
        )
        if not messages:
            with self._lock:  # nothing is in hand: another thread may go on
                self._owner, self._received = None, call
            return messages
        self._received = call  # last: behind it, no signal handler runs before the return
        return messages

    def _enter(self) -> tuple[int, int]:
        """Let this thread call; return the number of the call, and of the last received one.

        Raises:
            InvalidState: Another thread has messages, or waits for some.
        """
        me = threading.current_thread()
        with self._lock:
            owner = self._owner
            if owner is not None and owner is not me and owner.is_alive():
                raise InvalidState(
                    f"thread {owner.name!r} has messages of get_many or waits for some, and "
                    f"{me.name!r} asks for more; hand the messages of one thread to others, or "
                    "make several consumers"
                )
            if owner not in {None, me}:
                self._received = -1  # it ended with messages in hand
            self._owner, self._call = me, self._call + 1
            return self._call, self._received

    def put_down(self) -> None:
        """Do not count what is in hand as consumed."""
        with self._lock:
            self._received = -1

    def closing(
        self, close: Callable[[], Coroutine[Any, Any, None]]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return ``close`` preceded by the end of the inbox.

        What is in hand counts as consumed if this thread has it.
        """
        with self._lock:
            is_ours = self._owner in {None, threading.current_thread()}
            received = self._received if is_ours else -1

        async def closed() -> None:
            self._pull.take_back(received)  # a call that another thread waits for gets nothing
            self._pull.warn_if_left()
            self.inbox.close()
            await close()

        return closed
