"""One step of an iteration over messages: the message at hand, or else what waits for one.

It exists twice: here in Python, the reference, and in ``_asking.c``, which replaces it where a C
compiler was found at installation: a coroutine for each message costs more than all else of it. A
test compares them.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self

from vq.client.consumer.deliver.permit import Permit
from vq.model import Message

try:
    from vq.client.consumer.deliver import _asking
except ImportError:  # nothing compiled it
    _asking = None  # type: ignore[assignment]


class _AtHand(Protocol):
    """Messages of which the next one may be taken."""

    @property
    def left(self) -> Iterator[Message]: ...


class _Source(Protocol):
    """Where messages come from."""

    @property
    def at_hand(self) -> _AtHand: ...


class PythonAsking:
    """An iteration, as far as it is at every message. Loop-bound.

    ``_following`` of a subclass is awaited for a message that is not at hand, or that another task
    asks for than the one before. A step takes its message when it is awaited, not before.

    Args:
        inbox: Where messages come from; the next one is taken from what it has at hand.
        permit: To take one without a further look.
        loop: The running one.
        task_of: Returns the task that it runs now.

    Attributes:
        task: The one that may take messages; None: another iteration is in charge.
    """

    __slots__ = ("_inbox", "_loop", "_permit", "_task_of", "task")

    def __init__(
        self,
        inbox: _Source,
        permit: Permit,
        loop: asyncio.AbstractEventLoop,
        task_of: Callable[[asyncio.AbstractEventLoop], asyncio.Task[Any] | None],
    ) -> None:
        self._inbox = inbox
        self._permit = permit
        self._loop = loop
        self._task_of = task_of
        self.task: asyncio.Task[Any] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        permit = self._permit
        if self._task_of(self._loop) is self.task and permit.now() < permit.until:
            for message in self._inbox.at_hand.left:
                return message
        following = self._following()
        del self  # see there
        return await following

    async def _following(self) -> Message:
        raise NotImplementedError


if TYPE_CHECKING or _asking is None:  # noqa: SIM108  a base class for type checkers
    Asking = PythonAsking
else:
    Asking = _asking.Asking
