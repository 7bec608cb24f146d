"""Taking from a local queue, as most of its tests do."""

from vq.local import LocalItem, LocalQueue
from vq.testing.waiting import WAIT_S


def taken(queue: LocalQueue) -> LocalItem:
    """Take the next message, which comes in time."""
    item = queue.take(WAIT_S)
    assert item is not None
    return item


def contents(queue: LocalQueue) -> list[bytes]:
    """Take and complete all that waits in line."""
    found = []
    while (item := queue.take(0)) is not None:
        found.append(item.content)
        queue.complete(item)
    return found
