"""A transaction of the blocking producer."""

from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from vq.client.producer.transaction.transaction import TransactionCore
from vq.client.runtime import LoopThread
from vq.errors import InvalidState
from vq.model import SendResult, TransactionState, check_timeout

T = TypeVar("T")


class Transaction:
    """Messages that are stored together or not at all. ``MessageProducer.transaction`` makes it.

    All that the thread which began it sends with its producer meanwhile belongs to it. Other
    threads do not, and their sends go on as always. At the end of the ``with`` block it is
    committed, or rolled back if the block raises.

    In each partition its messages are stored back to back, in the order of the sends. What goes to
    one partition is at most 20,000 messages and 4 MiB; all together 64 MiB and 1,000 partitions.
    They are in memory until the commit. No reader sees any of them before it is durable that all
    are; then all are stored within the time that their brokers need. A reader of two partitions may
    see those of one before those of the other.
    """

    def __init__(self, core: TransactionCore, runtime: LoopThread, timeout_s: float) -> None:
        self._core = core
        self._runtime = runtime
        self._timeout_s = timeout_s

    @property
    def number(self) -> int:
        """The number by which brokers and ``vq tx`` know it; 0 before the commit."""
        return self._core.number

    @property
    def is_open(self) -> bool:
        """Whether it takes messages."""
        return self._core.is_open

    @property
    def decision(self) -> TransactionState | None:
        """``COMMITTED`` or ``ROLLED_BACK``, if this process knows it; None: it does not."""
        return self._core.decision

    def commit(self, timeout: float | None = None) -> list[SendResult]:
        """Have all messages stored; return their places, in the order of the sends.

        An offset of -1 is not known yet: the message is stored soon. After ``TransactionInDoubt``
        it may be called again.

        Raises:
            TransactionInDoubt: It is unknown whether it is committed.
            TransactionRefused: It is rolled back: its time was over, or somebody else did it.
            ProducerFenced: It is rolled back: another producer has the transactional id.
            VqError: It is rolled back.
        """
        bound = self._timeout_s if timeout is None else check_timeout(timeout)
        return self._end(self._core.commit(bound))

    def prepare(self, timeout: float | None = None) -> None:
        """Have all messages wait at the broker, durably, until ``commit`` or ``rollback``.

        Then it takes no messages, its time is over no more, and it is not that of its thread (or
        task) any more. If the producer ends before the decision, ``vq tx commit`` or ``vq tx
        rollback`` takes it. After ``TransactionInDoubt`` it may be called again.

        Raises:
            TransactionInDoubt: It is unknown whether it is prepared; nothing is committed.
            VqError: It is rolled back.
        """
        bound = self._timeout_s if timeout is None else check_timeout(timeout)
        self._end(self._core.prepare(bound))

    def rollback(self, timeout: float | None = None) -> None:
        """Have no message stored. It may be called again.

        Raises:
            TransactionRefused: It is committed.
            TransactionInDoubt: It may be committed, and no broker answers.
        """
        bound = self._timeout_s if timeout is None else check_timeout(timeout)
        self._end(self._core.rollback(bound))

    def _end(self, end: Coroutine[Any, Any, T]) -> T:
        try:
            self._core.check_not_inside()
        except InvalidState:
            end.close()
            raise
        try:
            return self._runtime.run(end)
        finally:
            if not self._core.awaits_end:
                self._core.leave()

    def outcome(self, timeout: float | None = None) -> TransactionState:
        """Return what became of it, as its broker knows.

        Raises:
            VqError: No broker answers.
        """
        bound = self._timeout_s if timeout is None else check_timeout(timeout)
        return self._runtime.run(self._core.outcome(bound))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if not self._core.awaits_end:
            return
        if exc_type is None:
            self.commit()
        else:
            self.rollback()
