"""Numbers that applications and operators give: whether they are some, and in their range.

The error shows the number and its bounds.
"""

from vq import limits
from vq.errors import InvalidArgument
from vq.shown import shown


def check_whole(what: str, number: object) -> None:
    """Refuse what is not a whole number; ``bool`` is none.

    Raises:
        InvalidArgument: It is not.
    """
    if not isinstance(number, int) or isinstance(number, bool):
        raise InvalidArgument(
            f"{what} = {shown(number)} is {type(number).__name__}; give a whole number"
        )


def check_number(what: str, number: object) -> None:
    """Refuse what is no number; ``bool`` is none.

    Raises:
        InvalidArgument: It is not.
    """
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise InvalidArgument(f"{what} = {shown(number)} is {type(number).__name__}; give a number")


def check_between(what: str, number: int, least: int, most: int, unit: str = "") -> None:
    """Refuse what is no whole number in a range, both ends included.

    Raises:
        InvalidArgument: It is not.
    """
    check_whole(what, number)
    if not least <= number <= most:
        raise _outside(what, number, f"[{least}, {most}]", unit)


def check_within(
    what: str,
    number: float,
    least: float,
    most: float,
    unit: str = "seconds",
    *,
    above: bool = False,
) -> None:
    """Refuse what is no number in a range, both ends included; NaN is in none.

    Args:
        what: Its name.
        number: The number.
        least, most: The ends.
        unit: Of the ends, as the error shows them; "": none.
        above: It must be above ``least``.

    Raises:
        InvalidArgument: It is not.
    """
    check_number(what, number)
    if not least <= number <= most or (above and number == least):
        range_ = f"{'(' if above else '['}{_text(least)}, {_text(most)}]"
        raise _outside(what, number, range_, unit)


def check_positive(what: str, seconds: float) -> None:
    """Refuse what is no time of more than 0 seconds.

    Raises:
        InvalidArgument: It is not, or it is longer than any time-out.
    """
    check_within(what, seconds, 0, limits.TIMEOUT_S_MAX, above=True)


def _outside(what: str, number: float, range_: str, unit: str) -> InvalidArgument:
    return InvalidArgument(f"{what} = {shown(number)} is outside {range_} {unit}".rstrip())


def _text(end: float) -> str:
    return f"{end:.15g}" if isinstance(end, float) else str(end)
