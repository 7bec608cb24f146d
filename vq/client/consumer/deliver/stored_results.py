"""Between a listener and those who deliver: results that are stored already are a message handled.

A listener whose transaction was committed, and which failed behind that, gets its message again.
``commit_in`` then raises ``AlreadyHandled``, the transaction is rolled back, and the message counts
as handled. Of a list, the first of them: the others are given to the listener at once, since it has
not failed for them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from vq.client.consumer.deliver.tries import retry_of
from vq.errors import AlreadyHandled
from vq.model import Message


def _left(given: Any, error: AlreadyHandled) -> tuple[int, list[Message]]:
    """Return how many of what was given are handled, and the others."""
    done = int(error.details["done"])
    return done, given[done:] if isinstance(given, list) else []


def _of_all(done: int, result: Any) -> Any:
    """Return an answer about the others of a list as one about the whole list."""
    retry = retry_of(result)
    return result if retry is None else replace(retry, done=done + retry.done)


def passing(listener: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a listener that takes ``AlreadyHandled`` for what it says."""

    def call(given: Any) -> Any:
        try:
            return listener(given)
        except AlreadyHandled as error:
            done, others = _left(given, error)
        return _of_all(done, listener(others)) if others else None

    return call


def passing_async(listener: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """Return what ``passing`` does, for a coroutine function."""

    async def call(given: Any) -> Any:
        try:
            return await listener(given)
        except AlreadyHandled as error:
            done, others = _left(given, error)
        return _of_all(done, await listener(others)) if others else None

    return call
