"""Times of filters that Python's ``datetime`` does not reach: before the year 1, after 9999.

Spark has years up to 294247. It hands a source its filters as Python values, and where one cannot
be made the whole query fails, inside Spark, before the source is asked. With ``tolerate`` the value
is ``BEYOND``: a filter with it is not handled by vq, so Spark checks it, and the answer is right.
"""

from functools import wraps
from typing import Any, Final

from pyspark.sql.types import VariantVal


class _Beyond:
    """A value that Python cannot hold."""

    def __repr__(self) -> str:
        return "a time beyond the years of Python"


BEYOND: Final = _Beyond()


def tolerate() -> None:
    """Have this process read such values of filters; once is enough.

    To be called where Spark plans a read: in a process of its own, just before it makes the filters
    of a query. Any other value is read as before.
    """
    read = VariantVal.toPython
    if getattr(read, "tolerates", False):
        return

    @wraps(read)
    def tolerant(value: VariantVal) -> Any:
        try:
            return read(value)
        except OverflowError:
            return BEYOND

    tolerant.tolerates = True  # type: ignore[attr-defined]
    VariantVal.toPython = tolerant  # type: ignore[assignment, method-assign]
