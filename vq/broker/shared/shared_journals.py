"""The shared groups of a node: those of the partitions of their topic that it leads."""

from collections.abc import Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Final

from vq.broker.base.facts import Facts, counters, gauge
from vq.broker.base.runner import Runner
from vq.broker.base.session import Session
from vq.broker.journal.outbox import Outbox
from vq.broker.journal.readers import JournalReaders
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.security.authority import Authority
from vq.broker.shared.ledger import SharedGroup
from vq.broker.shared.notes import SourceKey
from vq.broker.shared.shared_journal import SharedCounts, SharedJournal
from vq.broker.standing.gate import Gate
from vq.clock import Clock
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.reserved import SHARED_TOPIC

#: A range of a partition that was moved away is kept for so long: by then all that is needed of it
#: is noted again in the next one.
KEPT_MS: Final = 86_400_000
_WHAT: Final = "shared groups"


class SharedJournals:
    """The shared groups of a node. Loop-bound.

    Args:
        partitions: Those of the node.
        outbox: Reads what another group of nodes has of a log.
        gate: Says whether anything may be appended.
        authority: See ``Receivers``.
        clock, runner: See ``SharedJournal``.

    Attributes:
        counts: What the journals have done.
        readers: The journals: a duty of the master.
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
        leftovers = partitions.leftovers

        async def gone(topics: Iterable[SourceKey]) -> list[SourceKey]:
            told = list(topics)
            ids = await leftovers.gone(each.topic_id for each in told)
            return [each for each in told if each.topic_id in ids]

        self.counts: Final = SharedCounts()
        counts = self.counts
        self.readers: Final = JournalReaders[SharedJournal](
            SHARED_TOPIC,
            partial(
                SharedJournal,
                outbox=outbox,
                gate=gate,
                clock=clock,
                runner=runner,
                counts=counts,
                authority=authority,
                gone=gone,
            ),
            partitions,
            gate,
            clock=clock,
            kept_ms=KEPT_MS,
        )

    def receive(
        self, channel: Channel, session: Session, _id: RequestId, header: wire.ReceiveRequest
    ) -> Coroutine[Any, Any, wire.ReceiveResponse]:
        """Carry out a RECEIVE.

        Raises:
            VqError: See ``SharedJournal.receive``; or this node does not lead the partition.
        """
        return self.readers.of(channel, header.epoch, _WHAT).receive(session, header)

    def settle(
        self, channel: Channel, _session: Session, _id: RequestId, header: wire.SettleRequest
    ) -> Coroutine[Any, Any, wire.SettleResponse]:
        """Carry out a SETTLE.

        Raises:
            VqError: See ``SharedJournal.settle``; or this node does not lead the partition.
        """
        return self.readers.of(channel, header.epoch, _WHAT).settle(header)

    def describe(
        self, channel: Channel, _session: Session, _id: RequestId, header: wire.SharedRequest
    ) -> Coroutine[Any, Any, wire.SharedResponse]:
        """Carry out a SHARED.

        Raises:
            VqError: See ``SharedJournal.describe``; or this node does not lead the partition.
        """
        return self.readers.of(channel, header.epoch, _WHAT).describe(header)

    def _groups(self) -> Iterable[SharedGroup]:
        return [
            each for reader in self.readers.all.values() for each in reader.ledger.groups.values()
        ]

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[SharedJournals].of(
            self,
            gauge(
                "vq_shared_groups",
                "Shared groups whose journal this node leads.",
                lambda _: len(list(self._groups())),
            ),
            gauge(
                "vq_shared_open",
                "Messages that were delivered to members of these shared groups and are not done.",
                lambda _: sum(each.open for each in self._groups()),
            ),
            gauge(
                "vq_shared_receiving",
                "Members of these shared groups that wait for messages.",
                lambda _: sum(len(each.receivers) for each in self.readers.all.values()),
            ),
        )
        yield Facts[SharedCounts].of(
            self.counts,
            *counters(
                "vq_shared_",
                delivered="Messages that this node has given to members of shared groups.",
                redelivered="Of these, messages that were delivered before.",
                acked="Messages that members of shared groups have acknowledged.",
                released="Messages that members of shared groups have given back.",
                rejected="Messages that members of shared groups have given up.",
                extended="Messages whose lease members of shared groups have made longer.",
                lost="Messages that members wanted to settle after their lease had ended.",
            ),
        )
