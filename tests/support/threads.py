"""Calls in threads of their own, for tests of what several threads do at once."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TypeVar

from vq.testing.waiting import WAIT_S

T = TypeVar("T")


def spawn(work: Callable[[], T]) -> "Future[T]":
    """Run ``work`` in a thread; its result or exception is in the future."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done


@contextmanager
def in_thread(work: Callable[[], T]) -> "Iterator[Future[T]]":
    """Run ``work`` in a thread, and have it ended before the block is left."""
    done = spawn(work)
    yield done
    done.exception(WAIT_S)
