"""The application's values and exceptions as text: short, and whatever their code does."""

from typing import Final

_VALUE_MAX: Final = 60  # characters
_ERROR_MAX: Final = 500
#: An integer with more bits is not written out: Python refuses many decimal digits.
_BITS_MAX: Final = 128


def shown(value: object, most: int = _VALUE_MAX) -> str:
    """Return the beginning of a value's ``repr``, at most ``most`` characters of it.

    What has none, because it is nested too deep or its own code raises, is shown by its type.
    """
    try:
        if isinstance(value, int) and value.bit_length() > _BITS_MAX:
            return f"an {type(value).__name__} of {value.bit_length()} bits"
        return _cut(repr(value), most)
    except Exception:  # noqa: BLE001 - the user's code raises anything
        return f"a {type(value).__name__}"


def shown_error(error: BaseException) -> str:
    """Return the type and the text of an exception, at most 500 characters."""
    try:
        return _cut(f"{type(error).__name__}: {error}", _ERROR_MAX)
    except Exception:  # noqa: BLE001 - the user's code raises anything
        return f"{type(error).__name__} (its text raises, too)"


def shown_raised(error: BaseException) -> str:
    """Return the ``repr`` of an exception, at most 500 characters; for logs.

    It never raises: where an exception is logged, nobody is left to take another one.
    """
    try:
        return _cut(repr(error), _ERROR_MAX)
    except BaseException:  # noqa: BLE001 - the user's code raises anything
        return f"{type(error).__name__} (its repr raises, too)"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + "…"
