"""The errors that stop partitions of a consumer: kept, logged once, published in the group.

Loop-bound, except ``present`` and the attributes, which any thread may read. Nothing here decides
anything: fetchers and deliveries try again by themselves.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from vq.clock import Clock
from vq.errors import ListenerFailed, VqError
from vq.log_lines import get_logger
from vq.model import PartitionTrouble, TopicPartition

logger = get_logger(__name__)
#: What is published changes no more often than this,
PUBLISH_S: Final = 1.0
#: and the tries of a message that is held no more often than this.
_RENEW_S: Final = 5.0

#: The offset of a trouble in a partition of which no offset is known.
UNKNOWN_OFFSET: Final = -1

Report = Callable[[Mapping[TopicPartition, PartitionTrouble | None]], Awaitable[None]]


class Troubles:
    """The troubles of one consumer.

    Attributes:
        last_error: The last error, also if the partition goes on since.
        bad_reads: How often bytes failed a check and were fetched again.
    """

    def __init__(self, group: str, member: str, clock: Clock) -> None:
        self.last_error: VqError | None = None
        self.bad_reads = 0
        self._group = group
        self._member = member
        self._clock = clock
        self._present: dict[TopicPartition, PartitionTrouble] = {}
        self._delayed: set[TopicPartition] = set()  # present, with an error that passes
        self._published: dict[TopicPartition, tuple[PartitionTrouble, float]] = {}  # what and when
        self._changed: set[TopicPartition] = set()
        self._wake = asyncio.Event()
        self._ended = False

    def present(self) -> dict[TopicPartition, PartitionTrouble]:
        """Return the partitions that do not go on now, with their troubles."""
        return dict(self._present)

    def failed(
        self,
        partition: TopicPartition,
        offset: int,
        error: VqError,
        *,
        delayed_s: float | None = None,
    ) -> None:
        """A partition does not go on at ``offset``; noted at every try, logged once per cause.

        Not logged for a listener's error: the delivery logs each of its tries.

        Args:
            partition: The partition.
            offset: Where it is.
            error: Of the last try.
            delayed_s: The error passes by itself, and has lasted so long. A broker that is away or
                refuses concerns all its partitions, so this is logged once for all of them, and
                not published.
        """
        if self._ended:
            return
        self.last_error = error
        before = self._present.get(partition)
        if delayed_s is not None:
            self._delay(partition, offset, error, delayed_s)
            return
        self._delayed.discard(partition)
        if isinstance(error, ListenerFailed):
            self._present[partition] = self._of_listener(error, offset)
            self._publish_soon(partition)
            return  # the delivery logs each try
        if before is not None and before.offset == offset and type(before.error) is type(error):
            self._present[partition] = before._replace(error=error, tries=before.tries + 1)
            return
        now = self._clock.wall_ms()
        self._present[partition] = PartitionTrouble(error, offset, now, 1)
        self._publish_soon(partition)
        logger.error(
            "partition does not go on, trying again without skipping",
            group=self._group,
            member=self._member,
            partition=partition,
            offset=offset,
            error=error,
        )

    def _of_listener(self, error: ListenerFailed, offset: int) -> PartitionTrouble:
        """Return what its error tells of a message; of one that takes too long, it is the first."""
        told = error.details
        if "attempts" not in told:
            return PartitionTrouble(error, offset, self._clock.wall_ms(), 1)
        return PartitionTrouble(
            error,
            offset,
            int(told["since_ms"]),
            int(told["attempts"]),
            int(told["message_id"]) or None,
            int(told["next_try_ms"]),
            int(told["held"]),
        )

    def _delay(
        self, partition: TopicPartition, offset: int, error: VqError, delayed_s: float
    ) -> None:
        before = self._present.get(partition)
        if before is not None and partition in self._delayed and before.offset == offset:
            self._present[partition] = before._replace(error=error, tries=before.tries + 1)
            return
        since_ms = self._clock.wall_ms() - int(delayed_s * 1000)
        self._present[partition] = PartitionTrouble(error, offset, since_ms, 1)
        is_first = not self._delayed
        self._delayed.add(partition)
        self._publish_soon(partition)  # what was published before is over
        if is_first:
            logger.warning(
                "partitions do not go on, trying again",
                group=self._group,
                member=self._member,
                partition=partition,
                error=error,
            )

    def over(self, partition: TopicPartition) -> None:
        """A partition goes on."""
        if self._ended:
            return
        trouble = self._present.pop(partition, None)
        if trouble is None:
            return
        was_delayed = partition in self._delayed
        self._delayed.discard(partition)
        self._publish_soon(partition)
        if isinstance(trouble.error, ListenerFailed) or (was_delayed and self._delayed):
            return
        logger.warning(
            "partition goes on",
            group=self._group,
            member=self._member,
            partition=partition,
            tries=trouble.tries,
            seconds=round((self._clock.wall_ms() - trouble.since_ms) / 1000, 1),
        )

    def forget(self, partition: TopicPartition) -> None:
        """A partition is given up, or begins anew; its report goes with that."""
        if not self._ended and self._present.pop(partition, None) is not None:
            self._delayed.discard(partition)
            self._publish_soon(partition)

    def end(self, positions: Mapping[TopicPartition, int], error: VqError) -> None:
        """No partition goes on any more: keep the troubles as they are now.

        Args:
            positions: The partitions that were consumed, and how far.
            error: Why.
        """
        if self._ended:
            return
        self._ended, self.last_error = True, error
        now = self._clock.wall_ms()
        for partition, offset in positions.items():
            self._present[partition] = PartitionTrouble(error, offset, now, 1)
        logger.error(
            "consumer has ended, no partition goes on",
            group=self._group,
            member=self._member,
            partitions=",".join(map(str, sorted(positions))),
            error=error,
        )

    def _publish_soon(self, partition: TopicPartition) -> None:
        self._changed.add(partition)
        self._wake.set()

    async def publish(self, report: Report) -> None:
        """Publish what changes, without end; at most once per second.

        A message that has tries left is not published, nor what passes by itself.
        """
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            due: dict[TopicPartition, PartitionTrouble | None] = {}
            for partition in sorted(changed):
                trouble = self._to_publish(partition)
                last = self._published.get(partition)
                if trouble is None and last is None:
                    continue  # over before it was published
                if trouble is not None and last is not None and self._waits(trouble, *last):
                    self._publish_soon(partition)
                else:
                    due[partition] = trouble
            if due:
                await self._report(report, due)
            await asyncio.sleep(PUBLISH_S)

    def _to_publish(self, partition: TopicPartition) -> PartitionTrouble | None:
        trouble = self._present.get(partition)
        if trouble is None or partition in self._delayed:
            return None
        has_tries = isinstance(trouble.error, ListenerFailed) and "held" in trouble.error.details
        return None if has_tries and not trouble.held else trouble

    def _waits(self, trouble: PartitionTrouble, last: PartitionTrouble, at: float) -> bool:
        """Whether only the tries of a message have changed, and that was published just now."""
        is_same = last.offset == trouble.offset and type(last.error) is type(trouble.error)
        return is_same and self._clock.monotonic() < at + _RENEW_S

    async def _report(
        self, report: Report, due: Mapping[TopicPartition, PartitionTrouble | None]
    ) -> None:
        try:
            await report(due)
        except VqError as error:
            logger.info(
                "errors of partitions cannot be published, trying again later",
                group=self._group,
                partitions=",".join(map(str, due)),
                error=error,
            )
            for partition in due:
                self._publish_soon(partition)
        except Exception:
            logger.exception(
                "publishing the errors of partitions failed",
                group=self._group,
                partitions=",".join(map(str, due)),
            )
        else:
            now = self._clock.monotonic()
            for partition, trouble in due.items():
                self._published.pop(partition, None)
                if trouble is not None:
                    self._published[partition] = trouble, now
