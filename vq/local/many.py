"""Several messages in one call, whatever takes and completes one: a queue, or a client of it."""

from collections.abc import Callable, Iterable

from vq.bounds import check_between, check_whole
from vq.local.items import LocalItem
from vq.local.settings import COUNT_MAX, several


def taken(
    take: Callable[[float | None], LocalItem | None],
    give_back: Callable[[LocalItem], object],
    count: int,
    timeout: float | None,
) -> list[LocalItem]:
    """Return up to ``count`` messages: what is there once the first one is; [] in vain.

    What a call has taken that ends with an error or an interrupt is given back.

    Raises:
        InvalidArgument: The count is no number in [1, 2^31].
    """
    check_between("count", count, 1, COUNT_MAX)
    items: list[LocalItem] = []
    try:
        while len(items) < count:
            item = take(0 if items else timeout)
            if item is None:
                break
            items.append(item)
    except BaseException:
        for each in reversed(items):
            give_back(each)
        raise
    return items


def complete_each(
    complete: Callable[[LocalItem], None],
    items: Iterable[LocalItem],
    flush: Callable[[], None] | None,
) -> None:
    """Complete all of them, then flush; raise the last error."""
    error = None
    for item in several("items", items):
        try:
            complete(item)
        except Exception as found:  # noqa: BLE001  the others are completed all the same
            error = found
    if flush is not None:
        flush()
    if error is not None:
        raise error


def whole_numbers(name: str, given: Iterable[int]) -> list[int]:
    """Return numbers that an application gave.

    Raises:
        InvalidArgument: They cannot be iterated over, or one is no whole number.
    """
    found = [*several(name, given)]
    for each in found:
        check_whole(name, each)
    return found
