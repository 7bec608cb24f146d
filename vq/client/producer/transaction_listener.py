"""What an application gives and gets with half messages: its listener, the answers, the result."""

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from vq.client.kinds import check_function
from vq.errors import InvalidArgument
from vq.model import SendResult, TransactionState
from vq.shown import shown


class TransactionResolution(enum.Enum):
    """What a listener says of a half message; ``vq.COMMIT`` and its like are these."""

    COMMIT = "commit"  # the local work is done: the message is to be stored
    ROLLBACK = "roll back"  # it is not, and never will be: the message is to be dropped
    UNKNOWN = "unknown"  # it is not known yet: the listener is asked again later


COMMIT: Final = TransactionResolution.COMMIT
ROLLBACK: Final = TransactionResolution.ROLLBACK
UNKNOWN: Final = TransactionResolution.UNKNOWN

_Answer = TransactionResolution | Awaitable[TransactionResolution]


@dataclass(frozen=True, slots=True)
class TransactionListener:
    """The code of an application beside its half messages.

    With ``vq.aio`` both may be coroutine functions, and plain ones keep the loop busy.

    Attributes:
        execute: Called by ``send_half`` with its message (or list) and its argument, once the
            message is kept by the broker. It does the local work, such as a transaction of a
            database, and returns what is to become of the message.
        check: Called with the message (or list) if it is not known what became of the work: by
            any producer of the same producer group, in any process, perhaps at the same time as
            ``execute`` still runs. It changes nothing, and returns what it finds. It runs in a
            thread of its own, with ``vq.aio`` on the loop; for ``check_timeout_s`` at most.

    Both get messages with their ``id``, which is the same in both. What they raise counts as
    ``vq.UNKNOWN``, and is logged.
    """

    execute: Callable[[Any, Any], _Answer]
    check: Callable[[Any], _Answer]

    def __post_init__(self) -> None:
        for name in ("execute", "check"):
            function = getattr(self, name)
            if not callable(function):
                raise InvalidArgument(
                    f"{name} = {shown(function)} of a TransactionListener cannot be called; give a "
                    "function that returns vq.COMMIT, vq.ROLLBACK or vq.UNKNOWN"
                )


def check_listener(listener: TransactionListener | None) -> None:
    """Refuse a listener that nothing in a blocking producer awaits.

    Raises:
        InvalidArgument: One of its functions is a coroutine function.
    """
    if listener is not None:
        for name in ("execute", "check"):
            what = f"{name} of the transaction_listener"
            check_function(what, getattr(listener, name), "use vq.aio, or make it a plain function")


@dataclass(frozen=True, slots=True)
class HalfResult:
    """What became of a half message when ``send_half`` returned.

    Attributes:
        number: Of its transaction, as ``vq tx`` knows it.
        state: ``COMMITTED``, ``ROLLED_BACK``, or not decided yet: ``PREPARED``, or ``UNKNOWN`` if
            a decision was sent and nobody has answered. Then producers of the group are asked.
        results: Where the messages are, in their order, if it is committed. An offset of -1 is not
            known yet: the message is stored soon.
        error: Why it is not decided: what ``execute`` raised, or the broker's error; None: it is
            decided, or ``execute`` has returned ``vq.UNKNOWN``.
    """

    number: int
    state: TransactionState
    results: tuple[SendResult, ...] = ()
    error: BaseException | None = None

    @property
    def is_decided(self) -> bool:
        """Whether the message is stored, or never will be."""
        return self.state in {TransactionState.COMMITTED, TransactionState.ROLLED_BACK}
