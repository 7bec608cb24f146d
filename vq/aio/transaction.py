"""A transaction of the asynchronous producer."""

from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from vq.client.producer.transaction.transaction import TransactionCore
from vq.model import SendResult, TransactionState, check_timeout

T = TypeVar("T")


class Transaction:
    """Messages that are stored together or not at all; see ``vq.Transaction``.

    All that the task which began it sends with its producer meanwhile belongs to it, and what tasks
    send that were begun in it.
    """

    def __init__(self, core: TransactionCore, check_loop: Callable[[], None]) -> None:
        self._core = core
        self._check_loop = check_loop
        self._timeout_s = core.producer.config.send_timeout_s

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

    async def commit(self, timeout: float | None = None) -> list[SendResult]:
        """Have all messages stored; see ``vq.Transaction.commit``.

        Raises:
            TransactionInDoubt: It is unknown whether it is committed.
            VqError: It is rolled back.
        """
        bound = self._timeout_s if timeout is None else check_timeout(timeout)
        return await self._end(self._core.commit(bound))

    async def prepare(self, timeout: float | None = None) -> None:
        """Have all messages wait at the broker, durably, until ``commit`` or ``rollback``.

        Then it takes no messages, its time is over no more, and it is not that of its thread (or
        task) any more. If the producer ends before the decision, ``vq tx commit`` or ``vq tx
        rollback`` takes it. After ``TransactionInDoubt`` it may be called again.

        Raises:
            TransactionInDoubt: It is unknown whether it is prepared; nothing is committed.
            VqError: It is rolled back.
        """
        bound = self._timeout_s if timeout is None else check_timeout(timeout)
        await self._end(self._core.prepare(bound))

    async def rollback(self, timeout: float | None = None) -> None:
        """Have no message stored. It may be called again.

        Raises:
            TransactionRefused: It is committed.
            TransactionInDoubt: It may be committed, and no broker answers.
        """
        bound = self._timeout_s if timeout is None else check_timeout(timeout)
        await self._end(self._core.rollback(bound))

    async def _end(self, end: Coroutine[Any, Any, T]) -> T:
        self._check_loop()
        try:
            return await end
        finally:
            if not self._core.awaits_end:
                self._core.leave()

    async def outcome(self, timeout: float | None = None) -> TransactionState:
        """Return what became of it, as its broker knows.

        Raises:
            VqError: No broker answers.
        """
        self._check_loop()
        return await self._core.outcome(
            self._timeout_s if timeout is None else check_timeout(timeout)
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if not self._core.awaits_end:
            return
        if exc_type is None:
            await self.commit()
        else:
            await self.rollback()
