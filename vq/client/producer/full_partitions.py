"""Partitions that refused messages lately because their disk is full; the spread passes them by.

The published load tells of a broker that is full, and only to producers that follow the load. A
broker with several data directories may be full for some of its partitions alone.

A partition counts as full for ``FULL_S`` from its last refusal on. While messages wait for it, they
are sent again and again, so it counts until their end; then a few messages try it again.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from vq.model import TopicPartition

__all__ = ["FULL_S", "FullPartitions"]

#: Longer than the usual pauses between the tries of a batch that is refused.
FULL_S: Final = 5.0


class FullPartitions:
    """Loop-bound.

    Args:
        now: Returns the monotonic time.
        show: Called with a topic and its full partitions when these have changed.
    """

    def __init__(
        self, now: Callable[[], float], show: Callable[[str, frozenset[int]], None]
    ) -> None:
        self._now = now
        self._show = show
        self._until: dict[TopicPartition, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def note(self, partition: TopicPartition) -> None:
        """Take that a partition has refused messages for a full disk."""
        is_new = partition not in self._until
        self._until[partition] = self._now() + FULL_S
        if is_new:
            self._show_topic(partition.topic)
        self._wait()

    def stop(self) -> None:
        """Forget all of them."""
        self._until.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._timer is None and self._until:
            pause_s = max(0.0, min(self._until.values()) - self._now())
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now = self._now()
        over = [partition for partition, until in self._until.items() if until <= now]
        for partition in over:
            del self._until[partition]
        for topic in {partition.topic for partition in over}:
            self._show_topic(topic)
        self._wait()

    def _show_topic(self, topic: str) -> None:
        self._show(topic, frozenset(each.partition for each in self._until if each.topic == topic))
