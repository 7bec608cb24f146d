"""Each thing that failed has pauses of its own, and each failure is told once."""

import random

from vq.backoff import Backoff
from vq.broker.base.retries import Retries

BACKOFF = Backoff(first_s=1.0, most_s=3.0)


def test_what_never_failed_is_due() -> None:
    retries: Retries[str] = Retries(BACKOFF, random.Random(1))
    assert retries.is_due("a", 0.0)


def test_the_pauses_of_one_thing_rise_and_end_with_it() -> None:
    """Another one that fails for the first time has the first pause."""
    retries: Retries[str] = Retries(BACKOFF, random.Random(1))
    for now, until in (10.0, 11.0), (11.0, 13.0), (13.0, 16.0), (16.0, 19.0):
        retry, _ = retries.note("a", OSError("away"), now)
        assert (retry.at, retry.pause_s) == (until, until - now)
        assert (retries.is_due("a", until - 0.1), retries.is_due("a", until)) == (False, True)
    assert retries.note("b", OSError("away"), 16.0)[0].at == 17.0
    del retries.failed["a"]
    assert retries.is_due("a", 16.0)
    assert retries.note("a", OSError("away"), 16.0)[0].at == 17.0


def test_the_same_failure_is_told_once() -> None:
    """Until it is another one; its class and text are kept."""
    retries: Retries[str] = Retries(BACKOFF, random.Random(1))
    errors = [OSError("away"), OSError("away"), ValueError("odd"), OSError("away")]
    noted = [retries.note("a", error, 0.0) for error in errors]
    assert [is_new for _, is_new in noted] == [True, False, True, True]
    last = retries.failed["a"]
    assert (last.kind, last.told, last.failures) == (OSError, "away", 4)
