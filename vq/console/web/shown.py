"""Values as people read them, in a language. What is not known is said to be unknown, never 0."""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeGuard

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Shown:
    """Turns values into texts.

    Args:
        translate: Gives the text of the language for an English one.
    """

    def __init__(self, translate: Callable[[str], str]) -> None:
        self._translate = translate

    @property
    def unknown(self) -> str:
        """The text for what is not known."""
        return self._translate("unknown")

    def bytes(self, value: float | None) -> str:
        """Return a number of bytes, with three digits and a unit."""
        if not _is_number(value):
            return self.unknown
        size = float(value)
        for unit in _UNITS:
            if abs(size) < 1024 or unit == _UNITS[-1]:
                return f"{size:.0f} {unit}" if unit == "B" else f"{_three(size)} {unit}"
            size /= 1024
        raise AssertionError

    def rate(self, value: float | None) -> str:
        """Return bytes per second."""
        return self.unknown if not _is_number(value) else f"{self.bytes(value)}/s"

    def count(self, value: float | None) -> str:
        """Return a number with groups of three digits."""
        if not _is_number(value):
            return self.unknown
        return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"

    def per_s(self, value: float | None) -> str:
        """Return a number per second."""
        return self.unknown if not _is_number(value) else f"{self.count(value)}/s"

    def percent(self, value: float | None) -> str:
        """Return a share of 1 as percent."""
        return self.unknown if not _is_number(value) else f"{value * 100:.0f} %"

    def duration(self, seconds: float | None) -> str:
        """Return a time in its one or two largest units."""
        if not _is_number(seconds):
            return self.unknown
        if seconds == 0:
            return "0 s"
        if seconds < 1:
            return f"{seconds * 1000:.0f} ms"
        if seconds < 60:
            return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
        minutes, rest = divmod(int(seconds), 60)
        if minutes < 60:
            return f"{minutes} min {rest} s" if rest and minutes < 10 else f"{minutes} min"
        hours, minutes = divmod(minutes, 60)
        if hours < 48:
            return f"{hours} h {minutes} min" if minutes else f"{hours} h"
        return f"{hours // 24} d {hours % 24} h" if hours % 24 else f"{hours // 24} d"

    def setting(self, name: str, value: object) -> str:
        """Return the value of a setting with the unit that its name says; not None."""
        if isinstance(value, bool):
            return self._translate("yes") if value else self._translate("no")
        if not isinstance(value, int | float):
            return str(value)
        if name.endswith("_hours"):
            return f"{value:,g} h"
        if name.endswith("_ms"):
            return self.duration(value / 1000)
        return self.bytes(value) if name.endswith(("_bytes", "_threshold")) else self.count(value)

    def moment(self, time_ms: int | None) -> str:
        """Return a time in UTC, to the second."""
        if not time_ms:
            return self.unknown
        try:
            found = datetime.fromtimestamp(time_ms / 1000, UTC)
        except (OverflowError, ValueError, OSError):
            return str(time_ms)
        return found.strftime("%Y-%m-%d %H:%M:%S")


def _is_number(value: float | None) -> TypeGuard[float]:
    """Return whether a value is one that was measured: brokers may publish what is no number."""
    return value is not None and math.isfinite(value)


def _three(size: float) -> str:
    return f"{size:.2f}" if size < 10 else f"{size:.1f}" if size < 100 else f"{size:.0f}"
