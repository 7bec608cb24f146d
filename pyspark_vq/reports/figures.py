"""Numbers, times and texts of others as a person reads them; pure functions. None is unknown."""

import math
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

UNKNOWN: Final = "unknown"
_SIZES: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_UNIT: Final = 1_024
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
#: Characters that act on a reader's screen instead of being seen, and those that are no characters.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Return a text of others in which each character that cannot be seen is ``\\u`` and a number.

    Control characters, marks that turn the direction of writing, and surrogates are such.
    """
    return "".join(
        each if unicodedata.category(each) not in _UNSEEN else f"\\u{ord(each):04x}"
        for each in text
    )


def count_text(number: float | None) -> str:
    """Return a number with thin groups of three: ``1 234 567``."""
    if number is None:
        return UNKNOWN
    if isinstance(number, int):  # all its digits: a float has 53 bits
        shown = f"{number:,}"
    else:
        shown = f"{number:,.0f}" if number.is_integer() else f"{number:,.2f}"
    return shown.replace(",", "\u202f")


def size_text(size: float | None) -> str:
    """Return bytes in the unit that keeps three digits: ``1.50 MiB``."""
    if size is None:
        return UNKNOWN
    sign, rest, unit = ("-" if size < 0 else ""), abs(float(size)), 0
    while rest >= 1_000 and unit < len(_SIZES) - 1:
        rest, unit = rest / _UNIT, unit + 1
    digits = 0 if unit == 0 or rest >= 100 else 1 if rest >= 10 else 2
    return f"{sign}{rest:.{digits}f} {_SIZES[unit]}"


def axis_texts(values: Sequence[float], base: int) -> list[str]:
    """Return the marks of one axis: all in the unit of the largest, all with as many digits.

    ``base``: 1024 for bytes, 10 for counts. Marks 0, 256 MiB, 512 MiB, 0.75 GiB and 1 GiB of
    ``size_text`` are ``0 GiB``, ``0.25 GiB``, ``0.50 GiB``, ``0.75 GiB`` and ``1.00 GiB`` here.
    """
    most = max(map(abs, values), default=0.0)
    unit = 0
    if base == _UNIT and most >= 1:
        unit = min(int(math.log(most, _UNIT) + 1e-9), len(_SIZES) - 1)
    scaled = [value / _UNIT**unit for value in values]
    exact = (digits for digits in range(3) if all(_has_digits(each, digits) for each in scaled))
    digits = next(exact, 2)
    name = f" {_SIZES[unit]}" if base == _UNIT else ""
    return [f"{value:,.{digits}f}".replace(",", "\u202f") + name for value in scaled]


def _has_digits(value: float, digits: int) -> bool:
    """Return whether so many digits behind the point tell a value."""
    return math.isclose(round(value, digits), value, rel_tol=1e-6, abs_tol=1e-9)


def seconds_text(seconds: float | None) -> str:
    """Return a time span by its two largest units: ``2 h 5 min``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 0:
        return f"-{seconds_text(-seconds)}"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds == 0 else f"{seconds:.1f} s"
    whole = int(seconds)
    for size, name, next_size, next_name in (
        (_DAY, "d", _HOUR, "h"),
        (_HOUR, "h", _MINUTE, "min"),
        (_MINUTE, "min", 1, "s"),
    ):
        if whole >= size:
            rest = whole % size // next_size
            return f"{whole // size} {name}" + (f" {rest} {next_name}" if rest else "")
    raise AssertionError(seconds)


def moment_text(seconds: float | None) -> str:
    """Return a moment since 1970 in UTC: ``2026-11-26 13:45:10 UTC``."""
    if seconds is None:
        return UNKNOWN
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # any number may be in the tree
        return f"{seconds:.0f} s"
