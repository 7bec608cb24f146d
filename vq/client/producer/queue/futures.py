"""What is done to all futures of a batch, or of a topic, at once.

Each function exists twice, like the record codec: in Python, the reference, and compiled in
``_future.h``. The compiled ones are used where ``_accumulator.c`` was compiled.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final

from vq.client.future import FailureCallback, SendFuture, accumulator, report
from vq.client.producer.spread.spread import Shares, shares_of
from vq.model import SendResult
from vq.store.records.codec import places

#: Whether the compiled functions are in use.
COMPILED: Final = accumulator is not None
#: The outcome of a stored message whose future nobody has.
UNASKED: Final = SendResult(-1, -1, 0)

_content = attrgetter("content")
_deadline = attrgetter("deadline")
_head = attrgetter("head")
_size = attrgetter("size")


def python_bytes_of(items: Sequence[SendFuture]) -> int:
    """Return the bytes of messages, a list: payloads and encoded tags, keys and headers."""
    return sum(map(_size, items))


def python_columns(
    items: list[SendFuture],
) -> tuple[list[bytes], list[tuple[int, bytes] | None], float]:
    """Return the payloads of messages, their heads, and their earliest deadline."""
    deadline = min(map(_deadline, items), default=math.inf)
    return list(map(_content, items)), list(map(_head, items)), deadline


def python_fitting(items: Sequence[SendFuture], most: int, more: int) -> int:
    """Return how many of the first messages, a list, fit into ``most`` bytes; at least 1, if any.

    ``more``: bytes that each of them takes beside its own.
    """
    count = len(items)
    if sum(map(_size, items)) + count * more <= most:  # all of them, in most cases
        return count
    ends = list(accumulate(item.size + more for item in items))
    return max(min(1, count), bisect_right(ends, most))


def python_divide(items: list[SendFuture]) -> Shares[SendFuture] | None:
    """Return which messages go to which partition; None if one has no partition yet."""
    chosen = [item.partition for item in items]
    return None if min(chosen, default=0) < 0 else shares_of(chosen, items)


def python_last_waiting(sends: list[Any]) -> SendFuture | None:
    """Return the last future of a list that has no outcome; None: there is none."""
    for each in reversed(sends):
        if isinstance(each, SendFuture) and each.outcome is None:
            return each
    return None


def python_outcomes(sends: list[Any], kind: type[Any]) -> tuple[list[Any], bool]:
    """Return the outcome of each future, and whatever else is in the list as it is.

    And whether all of them are of a kind.
    """
    found = [each.outcome if isinstance(each, SendFuture) else each for each in sends]
    return found, all(isinstance(each, kind) for each in found)


def python_tell(
    items: list[SendFuture], partition: int, offset: int, sizes: list[int], ids: list[int]
) -> None:
    """Give every future without an outcome its result, and run its callback.

    The first record is at ``offset``. What a callback raises is reported; whatever else is raised,
    as by a signal handler, is passed on, and then some futures have no outcome yet. The compiled
    function makes no result that nobody gets: a future that nothing but ``items`` has gets
    ``UNASKED``.

    Raises:
        ValueError: The lists differ in length.
    """
    results = places(partition, offset, sizes, ids)
    for item, result in zip(items, results, strict=True):
        if item.outcome is not None:
            continue
        item.outcome = result
        callback = item.callback
        if callback is not None:
            item.callback = None  # it may refer to this future
            if type(callback) is not FailureCallback:
                try:
                    callback(result, None)
                except BaseException as error:  # noqa: BLE001 - user code may raise anything
                    report("a send callback", error)
        if item.waiters is not None:
            item.wake()


def _report(error: BaseException) -> None:
    report("a send callback", error)


def _compiled_tell(
    items: list[SendFuture], partition: int, offset: int, sizes: list[int], ids: list[int]
) -> None:
    accumulator.tell(
        items,
        partition,
        offset,
        sizes,
        ids,
        SendResult,
        FailureCallback,
        UNASKED,
        _report,
    )


bytes_of = accumulator.bytes_of if COMPILED else python_bytes_of
columns = accumulator.columns if COMPILED else python_columns
divide = accumulator.divide if COMPILED else python_divide
fitting = accumulator.fitting if COMPILED else python_fitting
last_waiting = accumulator.last_waiting if COMPILED else python_last_waiting
outcomes = accumulator.outcomes if COMPILED else python_outcomes
tell = _compiled_tell if COMPILED else python_tell
