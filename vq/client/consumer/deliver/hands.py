"""What a listener has in hand while it runs, and the transaction that is to finish it.

A listener that calls ``send_offsets`` gives no message: the thread, or the task, knows for which
one it was called. Nothing is done for a message whose listener does not call it.
"""

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final, Protocol

from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.sliding import Sliding
from vq.errors import AlreadyHandled
from vq.log_lines import get_logger
from vq.model import Message

logger = get_logger(__name__)


class Finisher(Protocol):
    """What finishes messages in place of the return of their listener."""

    @property
    def is_done(self) -> bool:
        """Whether the messages are finished: their offsets are committed."""
        ...

    def let_go(self) -> Exception:
        """The listener has ended before that: return why its messages are not finished."""
        ...


class Hand:
    """What a thread, or a task, has in hand of one partition.

    Attributes:
        delivery: Of the partition.
        messages: What its listener was called for; where one is handled after the other, the
            window of the delivery knows.
        taken: What is to finish it; None: the listener, by its return.
    """

    __slots__ = ("delivery", "messages", "taken")

    def __init__(self, delivery: InTurn | Sliding) -> None:
        self.delivery = delivery
        self.messages: Message | Sequence[Message] = ()
        self.taken: Finisher | None = None

    def in_hand(self) -> Sequence[Message]:
        """Return the messages for which the listener was called; none: it has returned."""
        if isinstance(self.delivery, InTurn):
            window = self.delivery.window
            return list(window.messages[window.finished :][:1])
        return [self.messages] if isinstance(self.messages, Message) else self.messages

    def is_failed(self, error: BaseException) -> bool:
        """Whether the try has failed, since the listener has raised."""
        if self.put_down() is not None:
            return True
        if not isinstance(error, AlreadyHandled):
            logger.warning(
                "listener failed behind its transaction, its messages are handled",
                partition=self.delivery.partition,
                exc_info=error,
            )
        return False

    def put_down(self) -> Exception | None:
        """The listener has ended, and it had called ``send_offsets``.

        Returns:
            None: the messages are finished, whatever the listener has answered or raised.
            Otherwise the error of this try.
        """
        taken, self.taken = self.taken, None
        return None if taken is None or taken.is_done else taken.let_go()


_PRESENT: Final[ContextVar[Hand | None]] = ContextVar("vq_hand", default=None)


def hand_of(delivery: InTurn | Sliding) -> Hand:
    """Return the hand of this thread, or task, in which the listeners of a partition run now."""
    hand = Hand(delivery)
    _PRESENT.set(hand)
    return hand


def present_hand() -> Hand | None:
    """Return the hand of the listener that runs; None: no listener does."""
    return _PRESENT.get()


def is_finished() -> bool:
    """Whether the messages of the listener that runs are finished, whatever it raises."""
    hand = _PRESENT.get()
    return hand is not None and hand.taken is not None and hand.taken.is_done
