"""One transaction of a producer and of databases, with vq's journal as the place of the decision.

    databases prepared ──▶ vq prepared ──▶ committed in the journal: the decision ──▶ databases
                                                                       committed ──▶ forgotten

Until the decision all of it can be rolled back. From then on nothing can: a database that could not
be told is told by ``vq tx recover``, which finds the prepared branch there and asks the journal.
"""

import time
from typing import Any, Final, Self

from vq.blocking.producer import MessageProducer
from vq.blocking.transaction import Transaction
from vq.branches import FORMAT_ID, Branch, branch_of, global_id
from vq.client.asking import ask_master
from vq.client.cluster import ClusterClient
from vq.errors import BranchesLeft, InvalidState, TransactionInDoubt, TransactionRefused, VqError
from vq.log_lines import get_logger
from vq.model import TransactionState, Xid
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import TransactRequest
from vq.reserved import TRANSACTIONS_TOPIC

logger = get_logger(__name__)

#: From its begin until all of it is prepared: the journal takes no number that is older than 300 s.
PREPARED_WITHIN_S: Final = 240.0
#: To forget a decision that nobody needs any more.
_FORGET_S: Final = 2.0


class DistributedTransaction:
    """Messages and rows that are stored together or not at all; ``vq.distributed`` makes it.

    It belongs to the thread that has made it. Its sends with the producer, and what it does on the
    connections, are part of it.

    Attributes:
        number: The number by which ``vq tx`` knows it.
    """

    def __init__(self, producer: MessageProducer, connections: tuple[Any, ...]) -> None:
        runtime, core = producer._runtime, producer._core
        self._runtime = runtime
        self._cluster: ClusterClient = core.transactions.cluster
        journal_id, self.number = runtime.run(_number(self._cluster))
        gtrid = global_id(journal_id, self.number)
        self._xid = Xid(FORMAT_ID, gtrid, "")
        self._branches: list[Branch] = [
            branch_of(each, Xid(FORMAT_ID, gtrid, f"{index}.{len(connections)}"))
            for index, each in enumerate(connections, 1)
        ]
        self._since = time.monotonic()
        self._prepared = 0  # branches of which a prepare was asked for
        self._ended = False
        self._transaction: Transaction = producer._begin_for(
            self._xid, self.number, keep=bool(self._branches)
        )
        self._producer = producer
        begun = 0
        try:
            for branch in self._branches:
                branch.begin()
                begun += 1
        except BaseException:
            self._branches = self._branches[:begun]
            self.rollback()
            raise

    def prepare(self) -> None:
        """Have all of it durable, and wait for the decision. ``commit`` does it if nobody did.

        Whatever it raises: all is rolled back, but after ``TransactionInDoubt``: then
        ``rollback`` settles it, or ``vq tx recover``.
        """
        if self._prepared or self._ended:
            return
        if time.monotonic() - self._since > PREPARED_WITHIN_S:
            self.rollback()
            raise TransactionRefused(
                f"transaction {self.number} has begun more than {PREPARED_WITHIN_S:.0f} s ago; it "
                "is rolled back"
            )
        try:
            for branch in self._branches:
                self._prepared += 1
                branch.prepare()
            self._prepared = max(1, self._prepared)
            self._transaction.prepare()
        except TransactionInDoubt:
            raise
        except BaseException:
            self.rollback()
            raise

    def commit(self) -> None:
        """Commit all of it. May be called again after ``TransactionInDoubt``.

        Raises:
            TransactionInDoubt: It is unknown whether it is committed. The databases keep what they
                have prepared.
            TransactionRefused: It is rolled back: an operator has done it, say.
            BranchesLeft: It is committed, and a database could not be told.
            Exception: What a database raises that cannot prepare: it is rolled back.
        """
        if self._ended:
            return
        self.prepare()
        try:
            self._transaction.commit()
        except VqError as error:
            if self._transaction.decision is TransactionState.ROLLED_BACK:
                self._end(TransactionState.ROLLED_BACK, error)
            raise
        self._end(TransactionState.COMMITTED)

    def rollback(self) -> None:
        """Roll back all of it. May be called again.

        Raises:
            TransactionInDoubt: It may be committed, by an operator, and no broker answers. The
                databases keep what they have prepared.
            TransactionRefused: It is committed: an operator has done it; the databases, too.
        """
        if self._ended:
            return
        try:
            self._transaction.rollback()
        except VqError as error:
            if self._transaction.decision is TransactionState.COMMITTED:
                self._end(TransactionState.COMMITTED, error)
            if self._transaction.decision is not TransactionState.ROLLED_BACK:
                raise
        self._end(TransactionState.ROLLED_BACK)

    def _end(self, decision: TransactionState, cause: VqError | None = None) -> None:
        """Tell the databases what was decided.

        Raises:
            BranchesLeft: One could not be told of a commit.
        """
        self._ended = True
        left: list[Exception] = []
        is_committed = decision is TransactionState.COMMITTED
        for branch in self._branches:
            try:
                if is_committed:
                    branch.commit()
                else:
                    branch.rollback()
            except Exception as error:  # noqa: BLE001 - drivers raise what they like
                left.append(error)
                logger.warning(
                    "a database was not told what became of its part of a transaction",
                    transaction=self.number,
                    state=decision.word,
                    error=error,
                )
        if not is_committed:
            return
        if left:
            raise BranchesLeft(
                f"transaction {self.number} is committed, and {len(left)} of {len(self._branches)} "
                f"database(s) could not be told: {left[0]}",
                details={"transaction": self.number},
            ) from (cause or left[0])
        if self._branches:
            self._runtime.run(_forget(self._cluster, self._producer, self._xid, self.number))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self.commit()
        else:
            self.rollback()


def distributed(producer: MessageProducer, *connections: Any) -> DistributedTransaction:
    """Begin a transaction of this thread with databases, for a ``with`` block.

    The end of the block commits all of it, and one that raises rolls all of it back. The commit in
    vq's journal is the decision; the databases follow it. Where a crash comes between, ``vq tx
    recover`` has them follow. From the begin to the end it may take 240 s.

    Args:
        producer: Its sends by this thread belong to it. It has no ``transactional_id``.
        connections: Each of psycopg, or of PyMySQL or mysqlclient to MariaDB or MySQL; in no
            transaction now. What is done on them belongs to it.

    Raises:
        InvalidArgument: A connection cannot take part.
        InvalidState: The thread has a transaction of the producer already.
        VqError: No broker answers.
        Exception: What a database raises that cannot begin.
    """
    if not isinstance(producer, MessageProducer):
        raise InvalidState(f"{type(producer).__name__} is no vq.MessageProducer")
    return DistributedTransaction(producer, connections)


async def _number(cluster: ClusterClient) -> tuple[str, int]:
    """Return the id of the journal, and a new number."""
    await cluster.lease_slot()
    routes = await cluster.track_internal(TRANSACTIONS_TOPIC)
    number = cluster.take_unforeseen_id()  # databases know it, so it cannot be changed later
    return routes.topic(TRANSACTIONS_TOPIC).id, number


async def _forget(cluster: ClusterClient, producer: MessageProducer, xid: Xid, number: int) -> None:
    """Have a decision that all databases know kept no longer; if that fails, it is kept."""
    try:
        journal = await producer._core.transactions.journal_of(None, xid)
        request = TransactRequest(
            topic=journal.topic,
            partition=journal.partition,
            transaction=number,
            state=int(TransactionState.FORGOTTEN),
        )
        deadline = cluster.clock.monotonic() + _FORGET_S
        await ask_master(
            cluster, journal, Command.TRANSACT, request, deadline=deadline, what="if it is kept"
        )
    except VqError as error:
        logger.warning("a decision is kept that nobody needs", transaction=number, error=error)
