"""What a producer does with its messages when the program ends before they are sent.

    the program ends ─▶ a bounded flush ─▶ the rest gets its outcome ─▶ one line at ERROR

In here: the last flush of one producer, and the line that counts what is not stored. Not in here:
who notices that the program ends (``client/exits.py``).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from vq.client.future import SendFuture
from vq.errors import OutcomeUnknown, VqError
from vq.log_lines import get_logger

logger = get_logger(__name__)
#: A last flush that takes longer than this says so: somebody waits for the program to end.
_SAY_AFTER_S: Final = 1.0
AT_EXIT: Final = "the program ended before they were sent"


async def flush_or_give_up(
    futures: Sequence[SendFuture],
    *,
    timeout_s: float,
    ended: Callable[[list[SendFuture]], Awaitable[None]],
    give_up: Callable[[], None],
) -> None:
    """Wait a last time for messages, give up what is left, and log how many are not stored.

    A cancellation ends the wait early; what is left is given up and logged nevertheless.

    Args:
        futures: The messages without an outcome, oldest first.
        timeout_s: How long they are waited for; 0: not at all.
        ended: Waits until all messages given to it have their outcome.
        give_up: Gives each message that has none its outcome.
    """
    say = asyncio.get_running_loop().call_later(_SAY_AFTER_S, _say, futures, timeout_s)
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await ended(list(futures))
    finally:
        say.cancel()
        give_up()
        log_lost(futures, AT_EXIT)


def log_lost(futures: Iterable[SendFuture], reason: str) -> None:
    """Log how many of these messages have an error for an outcome, if any has."""
    errors = [each.outcome for each in futures if isinstance(each.outcome, VqError)]
    if errors:
        unknown = sum(isinstance(each, OutcomeUnknown) for each in errors)
        logger.error(
            "messages are not stored",
            reason=reason,
            refused=len(errors) - unknown,
            unknown=unknown,
            first_error=errors[0],
        )


def nobody_learns(future: SendFuture) -> bool:
    """Whether neither a callback nor a waiting caller gets the outcome of a message."""
    return future.callback is None and not future.waiters


def _say(futures: Sequence[SendFuture], timeout_s: float) -> None:
    logger.warning(
        "the program ends, waiting for messages to be sent",
        messages=sum(not each.done() for each in futures),
        timeout_s=timeout_s,
    )
