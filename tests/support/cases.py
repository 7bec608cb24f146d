"""Many small cases of one claim in one test; a failure names its case.

A test of its own costs pytest milliseconds in each process, more than most small cases take.
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*of: object) -> Iterator[None]:
    """Name the case to whatever fails inside."""
    try:
        yield
    except BaseException as failure:  # pytest.fail is no Exception
        failure.add_note(f"case: {', '.join(map(repr, of))}")
        raise
