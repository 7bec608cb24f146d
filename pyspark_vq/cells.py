"""Values that a cell of Spark holds, made of those that others have written. Pure.

Numbers of ZooKeeper and of brokers may be any, and a BIGINT ends below 2**63: a file system in the
network may say that it has 16 EiB, which are 2**64 bytes. A text may have lone surrogates, which
UTF-8 has not. One such value would fail the whole task. So a number that does not fit is null, as
one that is not known, and a text shows its surrogates.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

#: Numbers lie in [-NUMBER_END, NUMBER_END).
NUMBER_END: Final = 1 << 63
#: Digits of a number that are shown.
_SHOWN: Final = 40


def number(value: int | None) -> int | None:
    """Return a number; None if it does not fit."""
    return value if value is not None and -NUMBER_END <= value < NUMBER_END else None


def text(value: str) -> str:
    """Return a text without lone surrogates."""
    return value.encode(errors="backslashreplace").decode()


def moment(time_ms: int) -> datetime | None:
    """Return a time in milliseconds since 1970; None: it is not known, or no date."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC) if time_ms else None
    except (OverflowError, ValueError, OSError):
        return None


def fitting(row: Sequence[Any], names: Sequence[str]) -> tuple[Any, ...]:
    """Return a row that fits; its cell ``error`` also names the numbers that do not."""
    wrong: list[str] = []

    def fit(name: str, value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, int) and number(value) is None:
            wrong.append(f"{name} = {str(value)[:_SHOWN]} is outside [-2**63, 2**63)")
            return None
        if isinstance(value, Mapping):
            return {fit(name, each): fit(name, one) for each, one in value.items()}
        if isinstance(value, tuple | list):
            return type(value)(fit(name, each) for each in value)
        return value

    cells = [fit(name, value) for name, value in zip(names, row, strict=True)]
    if wrong:
        error = names.index("error")
        cells[error] = "; ".join([cells[error], *wrong] if cells[error] else wrong)
    return tuple(cells)


def twice(names: Sequence[str]) -> str:
    """Return what is wrong with a schema that has a column more than once."""
    doubled = next(each for each in names if names.count(each) > 1)
    return f"the schema names column {doubled!r} more than once; copy it with select instead"
