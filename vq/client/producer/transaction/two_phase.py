"""The two-phase methods of PEP 249 on a producer: transactions that another program decides.

A transaction is found by its xid in the journal of its gtrid, by whatever process: so one that its
producer has prepared is ended by any other one.
"""

from collections.abc import Iterable
from contextvars import ContextVar
from typing import Final

from vq.client.asking import ask_master
from vq.client.producer.transaction.transaction import TransactionCore, Transactions
from vq.errors import InvalidState, OutcomeUnknown, TransactionInDoubt, TransactionRefused
from vq.model import TopicPartition, TransactionState, Xid
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import TransactionsRequest, TransactionStatus, TransactRequest
from vq.reserved import TRANSACTIONS_TOPIC

#: Transactions that one answer has at most.
_PAGE: Final = 1_000


class TwoPhase:
    """Those of one producer. ``begin`` and ``chosen`` are for the thread, or task, that calls."""

    def __init__(self, transactions: Transactions) -> None:
        self._of = transactions
        self._own: dict[str, TransactionCore] = {}  # by xid: of this process, and not ended

    async def check_free(self, xid: Xid, timeout_s: float) -> None:
        """Return if no transaction has a name; the journal checks it again at the first request.

        Raises:
            TransactionRefused: One has it.
            VqError: The journal does not answer.
        """
        cluster = self._of.cluster
        deadline = cluster.clock.monotonic() + timeout_s
        await cluster.lease_slot()  # its number is made of that
        for found in await self._find(xid, deadline):
            if found.state in _UNDECIDED or found.kept:
                state = TransactionState(found.state)
                raise TransactionRefused(
                    f"xid {xid.text} is in use: transaction {found.transaction} has it, and is "
                    f"{state.word}",
                    details={"transaction": found.transaction},
                )

    def begin(self, xid: Xid) -> TransactionCore:
        """Begin a transaction with a name.

        Raises:
            VqError: See ``Transactions.begin``; or this producer has one of that name.
        """
        self._own = {name: each for name, each in self._own.items() if each.decision is None}
        if xid.text in self._own:
            raise TransactionRefused(f"xid {xid.text} is in use: this producer has begun it")
        begun = self._own[xid.text] = self._of.begin(xid)
        others = (each for each in _CURRENT.get() if each.producer is not self._of)
        _CURRENT.set((*others, begun))
        return begun

    def chosen(self, xid: Xid | None) -> TransactionCore | None:
        """Return the transaction with a name if this process has it; without: the caller's.

        Raises:
            InvalidState: The caller has begun none that has not ended.
        """
        if xid is not None:
            found = self._own.get(xid.text)
            return None if found is None or found.decision is not None else found
        for each in _CURRENT.get():
            if each.producer is self._of and each.decision is None:
                return each
        raise InvalidState(
            "this thread, or task, has no two-phase transaction of this producer; tpc_begin(xid) "
            "begins one, and tpc_commit(xid) or tpc_rollback(xid) ends that of a program that is "
            "gone"
        )

    async def decide(self, xid: Xid, state: TransactionState, timeout_s: float) -> None:
        """Commit or roll back a transaction that another process has prepared; again is no error.

        Raises:
            TransactionRefused: It was decided in another way, or nobody knows it.
            TransactionInDoubt: The journal did not answer in time.
            VqError: It cannot be asked.
        """
        cluster = self._of.cluster
        deadline = cluster.clock.monotonic() + timeout_s
        known = await self._find(xid, deadline, ended=True)
        if not known:
            raise TransactionRefused(
                f"xid {xid.text} is not known: nothing was prepared under that name, or it ended "
                "long ago",
                details={"state": int(TransactionState.UNKNOWN)},
            )
        found = next((each for each in known if each.state in _UNDECIDED), known[-1])
        journal = await self._of.journal_of(None, xid)
        request = TransactRequest(
            topic=journal.topic,
            partition=journal.partition,
            transaction=found.transaction,
            state=int(state),
            max_wait_ms=int(min(timeout_s / 2, cluster.config.request_timeout_s / 2) * 1_000),
        )
        try:
            await ask_master(
                cluster,
                journal,
                Command.TRANSACT,
                request,
                deadline=deadline,
                what=f"what became of xid {xid.text}",
            )
        except OutcomeUnknown as error:
            raise TransactionInDoubt(
                f"it is unknown whether transaction {found.transaction}, xid {xid.text}, is "
                f"{state.word}: {error}",
                details={"transaction": found.transaction, "xid": xid.text},
            ) from error

    async def recover(self, timeout_s: float) -> list[Xid]:
        """Return the names of all that is prepared, whoever did it.

        Raises:
            VqError: The master of a partition of the journal does not answer.
        """
        cluster = self._of.cluster
        deadline = cluster.clock.monotonic() + timeout_s
        routes = await cluster.track_internal(TRANSACTIONS_TOPIC)
        names: list[str] = []
        for number in range(len(routes.topic(TRANSACTIONS_TOPIC).partitions)):
            journal = TopicPartition(TRANSACTIONS_TOPIC, number)
            names += [
                each.xid
                for each in await self._listed(journal, "", deadline)
                if each.xid and each.state == TransactionState.PREPARED
            ]
        return [Xid.of(each) for each in names]

    async def _find(
        self, xid: Xid, deadline: float, *, ended: bool = False
    ) -> list[TransactionStatus]:
        journal = await self._of.journal_of(None, xid)
        return await self._listed(journal, xid.text, deadline, ended=ended)

    async def _listed(
        self, journal: TopicPartition, xid: str, deadline: float, *, ended: bool = False
    ) -> list[TransactionStatus]:
        found: list[TransactionStatus] = []
        while True:
            request = TransactionsRequest(
                topic=journal.topic,
                partition=journal.partition,
                after=found[-1].transaction if found else 0,
                max_count=_PAGE,
                ended=ended,
                kept=True,
                xid=xid,
            )
            answer = await ask_master(
                self._of.cluster,
                journal,
                Command.TRANSACTIONS,
                request,
                deadline=deadline,
                what="what its transactions are",
            )
            listed: Iterable[TransactionStatus] = answer.transactions
            found += listed
            if not answer.more or not answer.transactions:
                return found


_UNDECIDED: Final = frozenset((TransactionState.OPEN, TransactionState.PREPARED))
_CURRENT: ContextVar[tuple[TransactionCore, ...]] = ContextVar("vq_two_phase", default=())
