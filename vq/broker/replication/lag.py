"""How far the nodes that copy the logs of this one are behind, in bytes and in time.

The time is the age of the oldest batch that a node has not stored. A job reads it from the header
of that batch, once a second and for the partitions in which the node lacks most; a header that is
not in memory is fetched on a lane first.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from vq.broker.base.facts import Facts, gauge
from vq.broker.base.jobs import Every, Jobs, While
from vq.broker.base.runner import Lane, Runner
from vq.broker.partition.channel import Channels
from vq.broker.partition.cold_reads import threads_of
from vq.clock import Clock
from vq.errors import VqError
from vq.store.log.log import Log

#: How often the oldest batch that a node lacks is looked up.
TICK_S: Final = 1.0
#: In so many partitions of each node.
PARTITIONS_MAX: Final = 32


@dataclass(slots=True)
class Lag:
    """How far a node is behind.

    Attributes:
        partitions: That it copies.
        size: Bytes of all logs that it has not stored.
        ms: Age of the oldest batch that it has not stored; 0: there is none.
    """

    partitions: int
    size: int
    ms: int


class Lags:
    """The lags of all nodes that copy. Loop-bound.

    Args:
        channels: Those of the node.
        clock: For ages.
        runner: For what is not in memory.
        jobs: Has the nodes looked at while this one leads.
    """

    def __init__(
        self,
        channels: Channels,
        clock: Clock,
        runner: Runner,
        jobs: Jobs,
    ) -> None:
        self._channels = channels
        self._epoch = 0
        self._clock = clock
        self._runner = runner
        # By node: since when it lacks something at the latest, in ms of the wall clock.
        self._since: dict[str, int] = {}
        jobs.add("lags", self.look, Every(TICK_S), While.LEADING)

    def start(self, epoch: int) -> None:
        """See ``mastership.Duty``."""
        self._epoch = epoch

    def stop(self) -> None:
        """See ``mastership.Duty``."""
        self._epoch = 0
        self._since = {}

    async def look(self) -> None:
        """Look since when each node lacks something."""
        since: dict[str, int] = {}
        for node, lag in self.told().items():
            now = self._clock.wall_ms()
            since[node] = now
            if lag.size:
                worst = heapq.nlargest(PARTITIONS_MAX, self._behind(node), key=lambda each: each[0])
                since[node] = min(
                    [await self._appended_ms(log, offset) or now for _, log, offset in worst],
                    default=now,
                )
        if self._epoch:
            self._since = since

    def told(self) -> dict[str, Lag]:
        """Return how far each node is behind, by its name; none while this node does not lead."""
        total = 0  # bytes of all logs
        stored: dict[str, tuple[int, int]] = {}  # by node: in how many of them it has how much
        for channel in self._channels.values() if self._epoch else ():
            log = channel.log
            total += log.size_bytes if log is not None else 0
            for node, position in channel.copies.positions.items():
                partitions, size = stored.get(node, (0, 0))
                size += max(0, position.offset - channel.start_offset)
                stored[node] = partitions + 1, size
        now = self._clock.wall_ms()
        found: dict[str, Lag] = {}
        for node, (partitions, size) in sorted(stored.items()):
            lacks = max(0, total - size)
            # Without a look so far it came a moment ago.
            ms = max(1, now - self._since.get(node, now)) if lacks else 0
            found[node] = Lag(partitions, lacks, ms)
        return found

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what they tell."""
        yield Facts[Lag](
            labels=("node",),
            things=lambda: {(node,): lag for node, lag in self.told().items()},
            status="copies",
            facts=(
                gauge(
                    "vq_copy_partitions",
                    "Partitions that another node of the group copies from this one.",
                    lambda lag: lag.partitions,
                    status="partitions",
                ),
                gauge(
                    "vq_copy_lag_bytes",
                    "Bytes that the node has not stored.",
                    lambda lag: lag.size,
                    status="bytes_behind",
                ),
                gauge(
                    "vq_copy_lag_seconds",
                    "Age of the oldest batch that the node has not stored; 0 if it has all.",
                    lambda lag: lag.ms,
                    status="ms_behind",
                    ms=True,
                ),
            ),
        )

    def _behind(self, node: str) -> list[tuple[int, Log, int]]:
        """Return the logs of which a node lacks something, with how much, and where that begins."""
        found = []
        for channel in self._channels.values():
            log, position = channel.log, channel.copies.positions.get(node)
            if log is None or not log.size_bytes or channel.place.silent:
                continue
            offset = max(log.start_offset, 0 if position is None else position.offset)
            if offset < log.end_offset:
                found.append((log.end_offset - offset, log, offset))
        return found

    async def _appended_ms(self, log: Log, offset: int) -> int | None:
        """Return when the batch at an offset was appended; None: nobody can tell."""
        try:
            fetch = log.reader.cold(offset, 1, log.end_offset)
            if fetch is not None and threads_of(fetch)[1]:
                return None  # in an archive elsewhere, which may not answer
            if fetch is not None:
                await self._runner.run(fetch, Lane.READ)
            return log.reader.appended_ms(offset)
        except (OSError, VqError):  # the medium, or damage: who reads there is told
            return None
