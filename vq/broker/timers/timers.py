"""The timers of a node: one for each partition of delayed messages that it leads."""

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from vq import limits
from vq.broker.base.facts import Facts, counters, gauge
from vq.broker.base.runner import Runner
from vq.broker.base.session import Session
from vq.broker.journal.outbox import Outbox
from vq.broker.journal.readers import JournalReaders
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.security.authority import Authority
from vq.broker.standing.gate import Gate
from vq.broker.timers.timer import Counts, Timer
from vq.clock import Clock
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.reserved import DELAYED_TOPIC
from vq.security.rules import Resource, Right

#: A range of a partition that was moved away is kept for so long: longer than anything waits.
KEPT_MS: Final = (limits.DELAY_S_MAX + 86_400) * 1_000


class Timers:
    """What a node delivers later. Loop-bound.

    Args:
        partitions: Those of the node.
        outbox: Sends what is due.
        gate: Says whether anything may be appended.
        authority: Says whose messages a user may recall.
        clock, runner: See ``Timer``.

    Attributes:
        counts: What the timers have done.
        readers: The timers: a duty of the master.
    """

    def __init__(
        self,
        partitions: Partitions,
        outbox: Outbox,
        gate: Gate,
        authority: Authority,
        *,
        clock: Clock,
        runner: Runner,
    ) -> None:
        self._authority = authority
        self.counts: Final = Counts()
        counts = self.counts
        self.readers: Final = JournalReaders[Timer](
            DELAYED_TOPIC,
            partial(Timer, outbox=outbox, gate=gate, clock=clock, runner=runner, counts=counts),
            partitions,
            gate,
            clock=clock,
            kept_ms=KEPT_MS,
        )

    async def cancel(
        self, channel: Channel, session: Session, _id: RequestId, header: wire.CancelRequest
    ) -> wire.CancelResponse:
        """Carry out a CANCEL.

        Raises:
            NotAuthorized: The user may not write where the message goes.
            VqError: See ``Timer.cancel``; or this node has no timer for the partition.
        """
        found = self.readers.of(channel, header.epoch, "delayed messages")

        def check(topic: str) -> None:
            if self._authority.enabled:
                self._authority.check(session.principal, Right.WRITE, Resource.TOPIC, topic)

        outcome = await found.cancel(header.offset, header.message_id, check)
        return wire.CancelResponse(outcome=outcome)

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Timers].of(
            self,
            gauge(
                "vq_delayed_messages",
                "Delayed messages that wait on this node, or are due and not delivered yet.",
                lambda _: sum(map(len, self.readers.all.values())),
            ),
        )
        yield Facts[Counts].of(
            self.counts,
            *counters(
                "vq_delayed_",
                delivered="Delayed messages that this node has delivered.",
                cancelled="Delayed messages that this node has seen cancelled.",
                undeliverable="Delayed messages whose topic or partition was gone when they were "
                "due.",
            ),
        )
