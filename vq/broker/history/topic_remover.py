"""Removes deleted topics for good once their time is up.

In here: when to count, and what to do when the time of a topic is up. Not in here: how time is
counted and what a removal is (``coordination.topics.grace``), and what becomes of data
(``partitions``).

Every broker does it. The one whose step was added to the count looks at the topics; if it dies
meanwhile, another one goes on at its own next step. So a removal that was begun, also by an
operator, is finished.
"""

from contextlib import suppress
from typing import Final

from vq.broker.base.jobs import Every, Jobs
from vq.broker.logs.topics_view import TopicsView
from vq.clock import Clock
from vq.coordination.topics import grace
from vq.coordination.topics.grace import Counted, GraceCounter
from vq.coordination.tree.coordinator import (
    BadVersion,
    Coordinator,
    NodeExists,
    NoNode,
)
from vq.coordination.tree.reading import TopicView
from vq.coordination.tree.values.topics import IN_GRACE, GraceClock
from vq.errors import UnknownTopic, VqError
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: How far the pauses of brokers are spread.
_JITTER: Final = 0.1


class TopicRemover:
    """Counts the time of deleted topics, and removes those whose time is up. Loop-bound.

    Args:
        jobs: Has this done.
        coordinator: Where the topics are.
        view: The topics as this broker knows them.
        clock: Its monotonic time is counted.
        interval_s: The pause between two looks; a step of the count is about as long.
    """

    def __init__(
        self,
        jobs: Jobs,
        coordinator: Coordinator,
        view: TopicsView,
        clock: Clock,
        *,
        interval_s: float,
    ) -> None:
        self._coordinator = coordinator
        self._view = view
        self._clock = clock
        self._counter = GraceCounter()
        jobs.add("topic removal", self.look, Every(interval_s, _JITTER))

    async def look(self) -> None:
        """Count, and if this broker's step was added, remove the topics whose time is up.

        Raises:
            VqError: Time cannot be counted, or a topic cannot be removed: the others are.
        """
        waiting = [each for each in self._view.topics.values() if each.phase == IN_GRACE]
        removing = sorted(self._view.removing)
        if not waiting and not removing:
            self._counter.forget()
            return
        try:
            count = await self._count(waiting)
        except VqError:
            self._counter.forget()
            raise
        if count is None:
            return
        due = [
            (view.name, view.id)
            for view in waiting
            if view.deletion is not None and not grace.left_ms(view.deletion, count.ms)
        ]
        failed: VqError | None = None
        for name, topic_id in [*due, *((name, "") for name in removing)]:
            try:
                await self._remove(name, topic_id)
            except VqError as error:
                failed = failed or error
        if failed is not None:
            raise failed

    async def _count(self, waiting: list[TopicView]) -> Counted | None:
        """Add the time that passed to the count; return the new one, None if nothing was added.

        Raises:
            VqError: The count cannot be read, or it is not known whether it was written.
        """
        asked_s = self._clock.monotonic()
        found = await grace.read_count(self._coordinator)
        path = GraceClock.path()
        if found.version < 0:
            # It was lost. A count that began at 0 would have topics wait far too long.
            first = max((each.deletion.counted_ms for each in waiting if each.deletion), default=0)
            try:
                await self._coordinator.create(path, GraceClock(counted_ms=first).encode())
            except NodeExists:
                pass
            return None
        step_ms = self._counter.step_ms(found, asked_s=asked_s, answered_s=self._clock.monotonic())
        if not step_ms:
            return None
        value = GraceClock(counted_ms=found.ms + step_ms)
        try:
            stat = await self._coordinator.set(path, value.encode(), version=found.version)
        except (BadVersion, NoNode):
            self._counter.forget()
            return None
        after = Counted(value.counted_ms, stat.czxid, stat.version)
        self._counter.added(after, answered_s=self._clock.monotonic())
        return after

    async def _remove(self, name: str, topic_id: str) -> None:
        with suppress(UnknownTopic):  # another broker was faster
            if await grace.remove_when_due(self._coordinator, name, topic_id):
                logger.info("deleted topic is removed for good", topic=name)
