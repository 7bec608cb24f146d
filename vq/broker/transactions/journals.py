"""The journals of a node: one for each partition of the topic of transactions that it leads."""

from collections.abc import Coroutine, Iterator
from functools import partial
from typing import Any, Final

from vq.broker.base.facts import Facts, counter, counters, gauge
from vq.broker.base.runner import Runner
from vq.broker.base.session import Session
from vq.broker.journal.outbox import Outbox
from vq.broker.journal.readers import JournalReaders
from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.security.authority import Authority
from vq.broker.security.request_access import NOT_STORED, StoredTransaction
from vq.broker.standing.gate import Gate
from vq.broker.transactions.journal import Journal, JournalCounts
from vq.broker.transactions.journaled import JournaledTransaction
from vq.clock import Clock
from vq.coordination.tree.coordinator import Coordinator
from vq.model import TransactionState
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.reserved import DELAYED_TOPIC, TRANSACTIONS_TOPIC
from vq.security.rules import ANONYMOUS, Need, Resource, Right

#: A range of a partition that was moved away is kept for so long: longer than anyone asks for what
#: ended there.
KEPT_MS: Final = 86_400_000
_WHAT: Final = "transactions"


class Journals:
    """The transactions of a node. Loop-bound.

    Args:
        partitions: Those of the node.
        outbox: Delivers what is committed.
        gate: Says whether anything may be appended.
        authority: Says whether a producer group is still a user's when a check is handed out.
        coordinator, clock, runner: See ``Journal``.

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
        coordinator: Coordinator,
        clock: Clock,
        runner: Runner,
    ) -> None:
        self._authority = authority
        self.counts: Final = JournalCounts()
        counts = self.counts
        self._clock = clock
        self.readers: Final = JournalReaders[Journal](
            TRANSACTIONS_TOPIC,
            partial(
                Journal,
                outbox=outbox,
                gate=gate,
                clock=clock,
                runner=runner,
                coordinator=coordinator,
                counts=counts,
            ),
            partitions,
            gate,
            clock=clock,
            kept_ms=KEPT_MS,
        )

    def transact(
        self,
        channel: Channel,
        session: Session,
        _id: RequestId,
        header: wire.TransactRequest,
        body: bytes,
    ) -> Coroutine[Any, Any, wire.TransactResponse]:
        """Carry out a TRANSACT. It keeps the body no longer than it needs it.

        Raises:
            VqError: See ``Journal.transact``; or this node has no journal for the partition.
        """
        asker, user = session.principal, ""
        if self._authority.enabled and not asker.proved:
            user = asker.user or ANONYMOUS
        return self.readers.of(channel, header.epoch, _WHAT).transact(header, body, user)

    async def fence(
        self, channel: Channel, _session: Session, _id: RequestId, header: wire.FenceRequest
    ) -> wire.FenceResponse:
        """Carry out a FENCE.

        Raises:
            VqError: See ``Journal.fence``; or this node has no journal for the partition.
        """
        epoch = await self.readers.of(channel, header.epoch, _WHAT).fence(header.client)
        return wire.FenceResponse(client_epoch=epoch)

    async def check(
        self, channel: Channel, session: Session, _id: RequestId, header: wire.CheckRequest
    ) -> tuple[wire.CheckResponse, bytes]:
        """Carry out a CHECK.

        Raises:
            NotAuthorized: The right to the group was withdrawn while it waited.
            VqError: See ``Journal.check``; or this node has no journal for the partition.
        """
        found = await self.readers.of(channel, header.epoch, _WHAT).check(session, header)
        if self._authority.enabled and not header.again:
            self._authority.check(session.principal, Right.WRITE, Resource.GROUP, header.group)
        return found

    def concerned(self, header: wire.TransactRequest) -> StoredTransaction:
        """Return what the journal has of the transaction of a TRANSACT: whose it is, what it needs.

        Its delayed messages are left out: what they need was looked at when they came.
        """
        asked, number = (header.topic, header.partition), header.transaction
        ledgers = [
            journal.ledger
            for channel, journal in self.readers.all.items()
            if channel.partition == asked
        ]
        for each in ledgers:
            user, found = each.user_of(number), each.active.get(number) or each.kept.get(number)
            if found is not None:
                return StoredTransaction(_needs_of(found), user, found.client)
            if user:
                return StoredTransaction((), user)
        return NOT_STORED

    async def listed(
        self, channel: Channel, _session: Session, _id: RequestId, header: wire.TransactionsRequest
    ) -> tuple[wire.TransactionsResponse, bytes]:
        """Carry out a TRANSACTIONS.

        Raises:
            VqError: This node has no journal for the partition; or see ``Journal.messages_of``.
        """
        journal = self.readers.of(channel, header.epoch, _WHAT)
        listed, body = journal.listed(header), b""
        if header.messages and listed.transactions:
            body = await journal.messages_of(listed.transactions[0])
        return listed, body

    def _count(self, state: TransactionState) -> int:
        return sum(each.ledger.counts()[state] for each in self.readers.all.values())

    def _oldest_s(self) -> float:
        begun = [
            each.begun_ms
            for journal in self.readers.all.values()
            for each in journal.ledger.active.values()
            if each.begun_ms
        ]
        return max(0, self._clock.wall_ms() - min(begun)) / 1_000 if begun else 0.0

    def _parked(self) -> int:
        now_ms = self._clock.wall_ms()
        return sum(len(each.ledger.parked(now_ms)) for each in self.readers.all.values())

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[Journals].of(
            self,
            gauge(
                "vq_transactions_open",
                "Transactions of the journals of this node that are not decided, and end in time.",
                lambda _: self._count(TransactionState.OPEN),
            ),
            gauge(
                "vq_transactions_prepared",
                "Transactions of the journals of this node that only a decision ends.",
                lambda _: self._count(TransactionState.PREPARED),
            ),
            gauge(
                "vq_transactions_unstored",
                "Transactions that are committed, and not all of them is stored yet.",
                lambda _: self._count(TransactionState.COMMITTED),
            ),
            gauge(
                "vq_transactions_kept",
                "Transactions whose decision is kept until somebody says to forget it.",
                lambda _: sum(len(each.ledger.kept) for each in self.readers.all.values()),
            ),
            gauge(
                "vq_transactions_oldest_seconds",
                "How long ago the oldest transaction that has not ended began; 0: there is none.",
                lambda _: self._oldest_s(),
            ),
            gauge(
                "vq_transactions_parked",
                "Half messages of which no producer is asked any more: an operator is to decide.",
                lambda _: self._parked(),
            ),
            counter(
                "vq_transaction_checks",
                "Times that this node has asked a producer what is to become of a half message.",
                lambda _: self.counts.checks,
            ),
        )
        yield Facts[JournalCounts].of(
            self.counts,
            *counters(
                "vq_transactions_",
                committed="Transactions that this node has seen committed.",
                rolled_back="Transactions that this node has seen rolled back.",
                undeliverable="Parts of transactions whose topic or partition was gone when they "
                "were committed.",
            ),
        )


def _needs_of(found: JournaledTransaction) -> list[Need]:
    topics = {each.to.topic for each in found.parts} - {DELAYED_TOPIC}
    needs = [Need(Right.WRITE, Resource.TOPIC, topic) for topic in sorted(topics)]
    if found.client:
        needs.append(Need(Right.WRITE, Resource.TRANSACTIONAL_ID, found.client))
    if found.checks is not None:
        needs.append(Need(Right.WRITE, Resource.GROUP, found.checks.group))
    return needs
