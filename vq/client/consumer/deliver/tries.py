"""The tries of a message: what a listener returns to have it again, and what it gets then. Pure."""

from dataclasses import dataclass
from typing import Final

from vq import limits
from vq.errors import InvalidArgument, VqError
from vq.model import Message
from vq.shown import shown


class NotCopied(VqError):
    """The copy of a message that is to be copied is not stored, or may not be: it is held."""


class TriedMessage(Message):
    """A message that is given to a listener again; otherwise the same as any ``Message``."""

    attempts = 1  # of the class; each has its own


def tried_again(message: Message, attempts: int) -> Message:
    """Return a message for another try, of which it tells the number."""
    tried = tuple.__new__(TriedMessage, message)
    tried.attempts = attempts
    return tried


@dataclass(frozen=True, slots=True)
class Retry:
    """What a listener returns to have its message again; ``vq.RETRY`` is one without arguments.

    It counts as a failed try, as if the listener had raised. The class itself, without
    parentheses, is taken for ``vq.RETRY``.

    Attributes:
        after_s: The pause before the next try; None: as ``retry_backoff`` says.
        done: Of a list: so many of its first messages are handled, and only the others are tried
            again.
    """

    after_s: float | None = None
    done: int = 0

    def __post_init__(self) -> None:
        after_s = self.after_s
        if after_s is not None and not (
            isinstance(after_s, int | float)
            and not isinstance(after_s, bool)
            and 0 <= after_s <= limits.TIMEOUT_S_MAX
        ):
            raise InvalidArgument(
                f"after_s = {shown(after_s)} is outside [0, {limits.TIMEOUT_S_MAX:.0f}] seconds"
            )
        if not isinstance(self.done, int) or isinstance(self.done, bool) or self.done < 0:
            raise InvalidArgument(
                f"done = {shown(self.done)} is no number of messages; give 0 or more"
            )


#: A listener returns it to have its message again, after a pause by ``retry_backoff``.
RETRY: Final = Retry()


def retry_of(answer: object) -> Retry | None:
    """Return the try that a listener asks for by what it returned; None: its message is handled.

    The class itself, without parentheses, is such an answer, too: what else could be meant?
    """
    if answer is Retry:
        return RETRY
    return answer if isinstance(answer, Retry) else None
