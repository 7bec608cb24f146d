"""``get_many`` of the blocking API: one thread at a time takes messages through the loop.

The messages of a call belong to the thread that called. A call's result may not reach it: a signal
handler raised while the thread waited. Then the next call takes the messages back first.
"""

import threading
from collections.abc import Callable, Coroutine
from typing import Any

from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.delivery import Listener
from vq.client.consumer.inbox import Inbox
from vq.client.consumer.pull import Pull
from vq.client.runtime import LoopThread
from vq.errors import InvalidArgument, InvalidState, VqError
from vq.model import Message


class ThreadPull:
    """The calls of one consumer, from any thread."""

    def __init__(self, core: ConsumerCore, inbox: Inbox, runtime: LoopThread) -> None:
        self._inbox = inbox
        self._pull = Pull(inbox, core.ensure_started)
        self._runtime = runtime
        self._lock = threading.Lock()  # guards the two below
        self._owner: threading.Thread | None = None  # has the messages of its call, or waits
        self._has_received = True  # the last call's result reached its thread
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
        lost = self._enter()
        try:
            messages = self._runtime.run(self._pull.get_many(max_messages, timeout, lost=lost))
        except VqError:  # it has taken nothing
            with self._lock:
                self._has_received = not lost
            raise
        with self._lock:
            self._has_received = True
            if not messages:
                self._owner = None  # nothing is in hand: another thread may go on
        return messages

    def _enter(self) -> bool:
        """Let this thread call; return whether what was taken before did not reach anybody.

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
            lost = not self._has_received or owner not in {None, me}
            self._owner, self._has_received = me, False
            return lost

    def put_down(self) -> None:
        """Do not count what is in hand as consumed."""
        with self._lock:
            self._has_received = False

    def closing(
        self, close: Callable[[], Coroutine[Any, Any, None]]
    ) -> Callable[[], Coroutine[Any, Any, None]]:
        """Return ``close`` preceded by the end of the inbox.

        What is in hand counts as consumed if this thread has it.
        """
        with self._lock:
            consumed = self._has_received and self._owner in {None, threading.current_thread()}

        async def closed() -> None:
            self._inbox.close(consumed=consumed)
            await close()

        return closed
