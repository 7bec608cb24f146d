"""One call of ``send_half``: prepared, then the local work of the application, then the decision.

add ──▶ prepare ──▶ execute ──┬──▶ commit, roll back
                              └──▶ unknown: the broker asks a producer of the group later
"""

import inspect
from collections.abc import Iterable
from typing import Final

from vq.client.config import ProducerConfig
from vq.client.future import SendCallback, SendFuture
from vq.client.producer.transaction.transaction import Transactions
from vq.client.producer.transaction_listener import (
    COMMIT,
    UNKNOWN,
    HalfResult,
    TransactionListener,
    TransactionResolution,
)
from vq.client.raised import forget_locals
from vq.errors import InvalidArgument, InvalidState, OutcomeUnknown, TransactionRefused, VqError
from vq.log_lines import get_logger
from vq.model import Message, TransactionState
from vq.remoting.wire_pb2 import TransactionChecks
from vq.shown import shown, shown_error

logger = get_logger(__name__)


class HalfMessage:
    """See the module. ``prepare``, ``decide`` and ``let_go`` are loop-bound.

    Args:
        transactions: Of the producer.
        given: The message, or several of them.

    Attributes:
        messages: What is to be added.
        listener: Of the producer.

    Raises:
        InvalidArgument: There are none.
        InvalidState: The producer has no listener, or see ``Transactions.begin_apart``.
    """

    def __init__(self, transactions: Transactions, given: Message | Iterable[Message]) -> None:
        config = transactions.config
        if config.transaction_listener is None or config.producer_group is None:
            raise InvalidState(
                "this producer has no transaction_listener: give ProducerConfig(producer_group="
                "..., transaction_listener=vq.TransactionListener(execute, check))"
            )
        self._many = not isinstance(given, Message)
        self.messages: Final = _listed(given)
        self.listener: Final[TransactionListener] = config.transaction_listener
        self._ids: list[int] = []
        self._group = config.producer_group
        self._core: Final = transactions.begin_apart()

    def add(
        self, message: Message, callback: SendCallback | None = None, timeout: float | None = None
    ) -> SendFuture:
        """Add a message; see ``TransactionCore.add``."""
        future = self._core.add(message, callback, timeout)
        self._ids.append(self._core.place_of(future).id)
        return future

    async def prepare(self, timeout_s: float) -> None:
        """Have the messages kept by the broker until a decision.

        Raises:
            TransactionInDoubt: It is unknown whether they are.
            VqError: They are not.
        """
        checks = _checks_of(self._core.producer.config, many=self._many)
        try:
            await self._core.prepare(timeout_s, checks=checks)
        except OutcomeUnknown:
            self._core.let_go()  # the broker asks the listener, and that knows of no local work
            raise

    def give_up(self, error: BaseException) -> None:
        """Roll it back: not all of its messages could be added."""
        self._core.give_up_open(f"not all of it could be sent: {shown_error(error)}")

    @property
    def told(self) -> Message | list[Message]:
        """What the listener gets."""
        told = [e._replace(id=id) for e, id in zip(self.messages, self._ids, strict=True)]
        return told if self._many else told[0]

    def failed(self, error: BaseException) -> None:
        """Log what ``execute`` has raised."""
        logger.warning(
            "execute raised, the half message is checked later",
            transaction=self._core.number,
            producer_group=self._group,
            exc_info=error,
        )
        forget_locals(error)

    def ended(self) -> None:
        """Have the producer keep nothing of it, whatever has ended the call. Any thread."""
        self._core.producer.known(self._core)

    async def decide(
        self, returned: object, error: BaseException | None, timeout_s: float
    ) -> HalfResult:
        """Carry out what ``execute`` has returned; ``error``: or what it has raised.

        Raises:
            TransactionRefused: Somebody else has decided otherwise.
        """
        core = self._core
        resolution = UNKNOWN
        if error is None:
            try:
                resolution = resolution_of(returned, "execute")
            except InvalidArgument as why:
                error = why
                logger.error(
                    "execute returned no decision, the half message is checked later",
                    transaction=core.number,
                    producer_group=self._group,
                    error=why,
                )
        if resolution is UNKNOWN:
            core.let_go()
            return HalfResult(core.number, TransactionState.PREPARED, error=error)
        try:
            if resolution is COMMIT:
                results = tuple(await core.commit(timeout_s))
                return HalfResult(core.number, TransactionState.COMMITTED, results)
            await core.rollback(timeout_s)
        except TransactionRefused:
            raise
        except VqError as why:  # the local work is done: that stops nobody
            core.let_go()
            is_unknown = isinstance(why, OutcomeUnknown)
            state = TransactionState.UNKNOWN if is_unknown else TransactionState.PREPARED
            logger.warning(
                "a half message is not decided yet, it is checked later",
                transaction=core.number,
                wanted=resolution.value,
                error=why,
            )
            return HalfResult(core.number, state, error=why)
        return HalfResult(core.number, TransactionState.ROLLED_BACK)


def resolution_of(returned: object, what: str) -> TransactionResolution:
    """Return what a listener has returned.

    Raises:
        InvalidArgument: It is something else, and counts as unknown.
    """
    if isinstance(returned, TransactionResolution):
        return returned
    if inspect.iscoroutine(returned):
        returned.close()
    raise InvalidArgument(
        f"{what} of the transaction_listener returned {shown(returned)}; it counts as vq.UNKNOWN: "
        "return vq.COMMIT, vq.ROLLBACK or vq.UNKNOWN"
    )


def _listed(given: object) -> list[Message]:
    if isinstance(given, Message):
        return [given]
    if isinstance(given, Iterable):
        messages = list(given)
        if messages:
            return messages
    raise InvalidArgument(
        f"{shown(given)} is no message and no list of messages; give a vq.Message, or several"
    )


def _checks_of(config: ProducerConfig, *, many: bool) -> TransactionChecks:
    return TransactionChecks(
        group=config.producer_group or "",
        after_ms=int(config.check_after_s * 1_000),
        interval_ms=int(config.check_interval_s * 1_000),
        most=config.checks_max,
        many=many,
    )
