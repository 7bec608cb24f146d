"""vq in transactions of the package ``transaction``, as Pyramid and Zope use it.

    import transaction
    import vq.datamanager

    vq.datamanager.join(producer, connection)
    producer.send_sync(vq.Message("orders", b"one"))
    connection.execute("INSERT INTO orders VALUES (1)")
    transaction.commit()

All that can fail is done in the vote: then messages and rows are durable, and wait for the
decision, which is the commit in vq's journal. Other resources of the transaction are committed
before it. A crash between their commits and vq's leaves a prepared transaction, which no time-out
ends: ``vq tx recover`` rolls it back, and with it the databases that were given to ``join``.

Needs the extra ``transaction``.
"""

from typing import Any

from vq.blocking.distributed import DistributedTransaction, distributed
from vq.blocking.producer import MessageProducer
from vq.errors import BranchesLeft, InvalidState
from vq.extras import install_command
from vq.log_lines import get_logger

try:
    import transaction
except ImportError as error:
    raise InvalidState(
        f"vq.datamanager needs the package transaction: {install_command('transaction')}"
    ) from error

__all__ = ["DataManager", "join"]

logger = get_logger(__name__)


def join(
    producer: MessageProducer, *connections: Any, transaction_manager: Any = None
) -> "DataManager":
    """Have what this thread sends, and does on connections, be part of its current transaction.

    Args:
        producer, connections: See ``vq.distributed``.
        transaction_manager: Whose transaction; by default that of the thread.

    Raises:
        VqError, Exception: See ``vq.distributed``; nothing has joined.
    """
    current = (transaction_manager or transaction.manager).get()
    made = DataManager(distributed(producer, *connections), transaction_manager)
    try:
        current.join(made)
    except BaseException:
        made.abort(current)
        raise
    return made


class DataManager:
    """What the package asks in each step; ``join`` makes it. It has no savepoints.

    ``transaction.savepoint()`` raises ``TypeError`` where vq has joined: messages and prepared
    branches are rolled back as a whole. ``savepoint(optimistic=True)`` can be made, and not rolled
    back to.
    """

    def __init__(self, both: DistributedTransaction, transaction_manager: Any = None) -> None:
        self.transaction_manager = transaction_manager or transaction.manager
        self._both = both

    def sortKey(self) -> str:
        """Return what sorts behind all others: the decision is the last commit."""
        return "~~vq"

    def abort(self, _transaction: Any) -> None:
        """Roll back; again is no error."""
        self._both.rollback()

    def tpc_begin(self, _transaction: Any) -> None:
        """Begin to commit: nothing is to be done."""

    def commit(self, _transaction: Any) -> None:
        """Do what ``tpc_vote`` is to find done: nothing."""

    def tpc_vote(self, _transaction: Any) -> None:
        """Prepare the databases and the messages; what it raises has all rolled back."""
        self._both.prepare()

    def tpc_finish(self, _transaction: Any) -> None:
        """Commit. A database that cannot be told is left to ``vq tx recover``.

        Raises:
            TransactionInDoubt: No broker answers in time; see ``DistributedTransaction.commit``.
        """
        try:
            self._both.commit()
        except BranchesLeft as error:
            logger.error("a database is to be told by vq tx recover", error=error)

    def tpc_abort(self, _transaction: Any) -> None:
        """Roll back, also what has voted; again is no error."""
        self._both.rollback()
