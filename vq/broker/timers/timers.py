"""The timers of a node: one for each partition of delayed messages that it leads."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from vq import limits
from vq.broker.base.facts import Facts, counter, gauge
from vq.broker.base.runner import Runner
from vq.broker.base.session import Session
from vq.broker.base.tasks import Tasks
from vq.broker.journal.notes import NOTE_TAG
from vq.broker.journal.outbox import Outbox
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.partition.ranges import earliest
from vq.broker.standing.gate import Gate
from vq.broker.timers.timer import LOOK_S, Counts, Timer
from vq.clock import Clock
from vq.errors import Busy, InvalidRequest, NotMaster
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.reserved import DELAYED_TOPIC

__all__ = ["Timers"]


#: A range of a partition that was moved away is kept for so long: longer than anything waits.
KEPT_MS: Final = (limits.DELAY_S_MAX + 86_400) * 1_000


class Timers:
    """A duty of the master. Loop-bound.

    Args:
        partitions: Those of the node.
        outbox: Sends what is due.
        gate: Says whether anything may be appended.
        clock, runner: See ``Timer``.

    Attributes:
        counts: What the timers have done.
    """

    def __init__(
        self,
        partitions: Partitions,
        outbox: Outbox,
        gate: Gate,
        *,
        clock: Clock,
        runner: Runner,
    ) -> None:
        self.counts: Final = Counts()
        self._channels = partitions.channels
        self._outbox = outbox
        self._gate = gate
        self._clock = clock
        self._runner = runner
        self._epoch = 0
        self._tasks = Tasks()
        self._running: dict[Channel, asyncio.Task[Any] | None] = {}
        self._timers: dict[Channel, Timer] = {}
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
        self._timers.pop(channel, None)
        channel.needed = channel.own_tag = None

    async def close(self) -> None:
        """End all timers, and the connections."""
        self.stop()
        await self._tasks.close()
        await self._outbox.close()

    def _applied(self, topic: str) -> None:
        if topic == DELAYED_TOPIC:
            self.look()

    def look(self) -> None:
        """Begin the timers that are missing, and end those whose partition is not here any more."""
        if not self._epoch:
            return
        channels = [e for e in self._channels.values() if e.partition.topic == DELAYED_TOPIC]
        mine = [e for e in channels if e.placement.writer_group == e.context.group]
        for channel in [each for each in self._running if each not in mine]:
            self._end(channel)
        for channel in mine:
            if channel in self._running:
                continue
            channel.needed = earliest(channel)  # until it is known better
            channel.own_tag = NOTE_TAG
            work = partial(self._run, channel)
            self._running[channel] = self._tasks.keep(work, f"timer of {channel}")
        now_ms = self._clock.wall_ms()
        ends_ms = []
        for channel in channels:
            if channel in self._running:
                continue
            end_ms = _kept_until(channel)  # the group that has the rest of it delivers these, too
            channel.needed = earliest(channel) if now_ms <= end_ms else None
            ends_ms += [end_ms] if now_ms <= end_ms else []
        self._look_again(min(ends_ms, default=now_ms) - now_ms)

    def _look_again(self, left_ms: int) -> None:
        """Look when nothing can wait any more in a range that was moved away; 0: there is none."""
        if self._again is not None:
            self._again.cancel()
        self._again = None
        if left_ms:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(left_ms / 1_000 + LOOK_S, self.look)

    async def _run(self, channel: Channel) -> None:
        """Have a partition's timer go on; after an error a new one reads its log again."""
        timer = self._timers[channel] = Timer(
            channel,
            self._outbox,
            self._gate,
            clock=self._clock,
            runner=self._runner,
            counts=self.counts,
        )
        await timer.run()

    # What others ask ----------------------------------------------------------------------------
    async def cancel(
        self, channel: Channel, _session: Session, _id: RequestId, header: wire.CancelRequest
    ) -> wire.CancelResponse:
        """Carry out a CANCEL.

        Raises:
            VqError: See ``Timer.cancel``; or this node has no timer for the partition.
        """
        if channel.partition.topic != DELAYED_TOPIC:
            raise InvalidRequest(
                f"{channel} has no delayed messages; give the result of their send"
            )
        if header.epoch > channel.role.epoch:
            raise channel.stale_epoch(header.epoch)
        found = self._timers.get(channel)
        if found is None:
            raise NotMaster(f"this node does not lead {channel}")
        if not self._gate.serves:
            raise Busy(f"{channel} takes no messages now")
        outcome = await found.cancel(header.offset, header.message_id)
        return wire.CancelResponse(outcome=outcome)

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Timers].of(
            self,
            gauge(
                "vq_delayed_messages",
                "Delayed messages that wait on this node, or are due and not delivered yet.",
                lambda _: sum(map(len, self._timers.values())),
            ),
            counter(
                "vq_delayed_delivered",
                "Delayed messages that this node has delivered.",
                lambda _: self.counts.delivered,
            ),
            counter(
                "vq_delayed_cancelled",
                "Delayed messages that this node has seen cancelled.",
                lambda _: self.counts.cancelled,
            ),
            counter(
                "vq_delayed_undeliverable",
                "Delayed messages whose topic or partition was gone when they were due.",
                lambda _: self.counts.undeliverable,
            ),
        )

    def told_problems(self) -> list[str]:
        """Return why messages wait that are due."""
        return [why for timer in self._timers.values() for why in timer.problems]


def _kept_until(channel: Channel) -> int:
    """Return until when something may wait in a range that gets nothing more."""
    return (0 if channel.log is None else channel.log.last_append_time_ms) + KEPT_MS
