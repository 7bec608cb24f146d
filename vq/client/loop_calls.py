"""Calls of the event loop from other threads, which may outlive it."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any


def call_soon(
    loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: Any
) -> None:
    """Call back on the loop, from any thread; do nothing if the loop was closed."""
    with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
        loop.call_soon_threadsafe(callback, *arguments)
