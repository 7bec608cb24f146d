"""An error of vq comes to Spark with its text and its hint, and without vq's own calls."""

import logging
import traceback
from collections.abc import Callable, Iterator

import pytest

from pyspark_vq.errors import untraced
from vq.errors import CorruptData, TopicClosed, VqError


class Reader:
    """Fails in its depth."""

    def _deep(self, error: Exception) -> None:
        try:
            raise KeyError("cause")
        except KeyError as cause:
            raise error from cause

    @untraced
    def plan(self, error: Exception) -> None:
        """Fail at once."""
        self._deep(error)

    @untraced
    def read(self, error: Exception) -> Iterator[int]:
        """Fail behind a row."""
        yield 1
        self._deep(error)


def told(error: BaseException) -> list[str]:
    """Return what Spark's worker sends of an error, which it caught one call above."""
    lines = "".join(traceback.format_exception(error)).splitlines()
    return [each for each in lines if set(each) - set(" ^~")]


def fail_in_plan(error: VqError) -> None:
    Reader().plan(error)


def fail_in_read(error: VqError) -> None:
    rows = Reader().read(error)
    assert next(rows) == 1
    next(rows)


@pytest.mark.parametrize("fail", [fail_in_plan, fail_in_read])
@pytest.mark.parametrize("error", [TopicClosed, CorruptData])
def test_its_calls_and_causes_are_left_out(
    fail: Callable[[VqError], None], error: type[VqError], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "pyspark_vq")
    made = error("what is wrong")
    with pytest.raises(error) as raised:
        fail(made)
    assert raised.value is made
    lines = told(made)
    assert not any("_deep" in line or "KeyError" in line for line in lines)
    assert str(made) in lines[-1 - bool(made.hint)]
    assert lines.count(f"what to do: {made.hint}") == bool(made.hint)
    assert "_deep" in caplog.text


def test_a_defect_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError) as raised:
        Reader().plan(ZeroDivisionError("a defect"))
    assert any("_deep" in line for line in told(raised.value))
