"""Between a listener and those who deliver: results that are stored already are a message handled.

A listener whose transaction was committed, and which failed behind that, gets its message again.
``commit_in`` then raises ``AlreadyHandled``, the transaction is rolled back, and the message counts
as handled. Of a list, the first of them.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from vq.client.consumer.deliver.tries import Retry
from vq.errors import AlreadyHandled


def _answer(given: Any, error: AlreadyHandled) -> Retry | None:
    """Return what the listener would have returned."""
    done = int(error.details["done"])
    of_all = len(given) if isinstance(given, list) else 1
    return None if done >= of_all else Retry(after_s=0, done=done)


def passing(listener: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a listener that takes ``AlreadyHandled`` for what it says."""

    def call(given: Any) -> Any:
        try:
            return listener(given)
        except AlreadyHandled as error:
            return _answer(given, error)

    return call


def passing_async(listener: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Return what ``passing`` does, for a coroutine function."""

    async def call(given: Any) -> Any:
        try:
            return await listener(given)
        except AlreadyHandled as error:
            return _answer(given, error)

    return call
