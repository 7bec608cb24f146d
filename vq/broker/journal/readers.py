"""The readers of a topic on one node: one for each of its partitions that the node leads."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Generic, TypeVar

from vq.broker.base.tasks import Tasks
from vq.broker.journal.notes import NOTE_TAG
from vq.broker.journal.reader import LOOK_S, JournalReader
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.partition.ranges import earliest
from vq.broker.standing.gate import Gate
from vq.clock import Clock
from vq.errors import Busy, InvalidRequest, NotMaster

R = TypeVar("R", bound=JournalReader)


class JournalReaders(Generic[R]):
    """A duty of the master. Loop-bound.

    Args:
        topic: Whose partitions these are.
        make: Makes the reader of a partition.
        partitions: Those of the node.
        gate: Says whether anything may be appended.
        clock: Tells the time.
        kept_ms: A range of a partition that was moved away is kept for so long: longer than
            anything in it is needed.

    Attributes:
        all: The readers that run.
    """

    def __init__(
        self,
        topic: str,
        make: Callable[[Channel], R],
        partitions: Partitions,
        gate: Gate,
        *,
        clock: Clock,
        kept_ms: int,
    ) -> None:
        self.all: Final[dict[Channel, R]] = {}
        self._topic = topic
        self._make = make
        self._channels = partitions.channels
        self._gate = gate
        self._clock = clock
        self._kept_ms = kept_ms
        self._epoch = 0
        self._tasks = Tasks()
        self._running: dict[Channel, asyncio.Task[Any] | None] = {}
        self._again: asyncio.TimerHandle | None = None
        partitions.applied.listen(self._applied)

    def start(self, epoch: int) -> None:
        """See ``mastership.Duty``: what an epoch before read is read again."""
        self.stop()
        self._epoch = epoch
        self.look()

    def stop(self) -> None:
        """See ``mastership.Duty``."""
        self._epoch = 0
        self._look_again(0)
        for channel in list(self._running):
            self._end(channel)

    def _end(self, channel: Channel) -> None:
        task = self._running.pop(channel)
        if task is not None:
            task.cancel()
        self.all.pop(channel, None)
        channel.needed = channel.own_tag = None

    async def close(self) -> None:
        """End all readers."""
        self.stop()
        await self._tasks.close()

    def _applied(self, topic: str) -> None:
        if topic == self._topic:
            self.look()

    def look(self) -> None:
        """Begin the readers that are missing; end those whose partition is not here any more."""
        if not self._epoch:
            return
        channels = [e for e in self._channels.values() if e.partition.topic == self._topic]
        mine = [e for e in channels if e.placement.writer_group == e.context.group]
        for channel in [each for each in self._running if each not in mine]:
            self._end(channel)
        for channel in mine:
            if channel in self._running:
                continue
            channel.needed = earliest(channel)  # until it is known better
            channel.own_tag = NOTE_TAG
            work = partial(self._run, channel)
            self._running[channel] = self._tasks.keep(work, f"reader of {channel}")
        now_ms = self._clock.wall_ms()
        ends_ms = []
        for channel in channels:
            if channel in self._running:
                continue
            end_ms = self._kept_until(channel)  # the group that has the rest reads these, too
            channel.needed = earliest(channel) if now_ms <= end_ms else None
            ends_ms += [end_ms] if now_ms <= end_ms else []
        self._look_again(min(ends_ms, default=now_ms) - now_ms)

    def _kept_until(self, channel: Channel) -> int:
        """Return until when something may be needed of a range that gets nothing more."""
        last_ms = 0 if channel.log is None else channel.log.last_append_time_ms
        return last_ms + self._kept_ms

    def _look_again(self, left_ms: int) -> None:
        """Look when nothing is needed any more of a range that was moved away; 0: there is none."""
        if self._again is not None:
            self._again.cancel()
        self._again = None
        if left_ms:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(left_ms / 1_000 + LOOK_S, self.look)

    async def _run(self, channel: Channel) -> None:
        """Have a partition's reader go on; after an error a new one reads its log again."""
        reader = self.all[channel] = self._make(channel)
        await reader.run()

    # What others ask ----------------------------------------------------------------------------
    def of(self, channel: Channel, epoch: int, what: str) -> R:
        """Return the reader of a partition of which a client asks something.

        Args:
            channel: Of the partition.
            epoch: That of the master, which the client knows; 0: none.
            what: It expects there.

        Raises:
            VqError: This node has none for it, or none that answers now.
        """
        if channel.partition.topic != self._topic:
            raise InvalidRequest(f"{channel} has no {what}")
        if epoch > channel.role.epoch:
            raise channel.stale_epoch(epoch)
        found = self.all.get(channel)
        if found is None:
            raise NotMaster(f"this node does not lead {channel}")
        if not self._gate.serves:
            raise Busy(f"{channel} takes no messages now")
        if not found.is_live:
            raise Busy(f"what waits in {channel} is being read; try again")
        return found

    def problems(self) -> list[str]:
        """Return why something waits that should go on."""
        return [why for reader in self.all.values() for why in reader.problems]
