"""What follows a failed message: the values of a policy, and what is refused."""

from typing import Any

import pytest

from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import InvalidArgument


def test_the_defaults_are_what_a_consumer_did_before_there_was_a_policy() -> None:
    """Its partition waits, with pauses that double from 0.1 to 30 s."""
    policy = FailurePolicy()
    assert policy.on_failure == "hold"
    pauses = policy.retry_backoff_s
    assert pauses == tuple(min(30.0, 0.1 * 2**number) for number in range(len(pauses)))
    assert pauses[-1] == 30.0


def test_the_retry_topic_delivers_16_times_by_default() -> None:
    """With growing delays, of 4 h 45 min and 40 s in all."""
    delays = FailurePolicy().retry_topic_s
    assert (len(delays), sum(delays)) == (16, 4 * 3600 + 46 * 60 - 20)
    assert list(delays) == sorted(delays)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"on_failure": "drop"}, "'drop'.*'hold'"),
        ({"on_bad_record": "hold"}, "'hold'.*'stop'"),
        ({"max_attempts": 0}, r"0 is not .* \[1, 1000\]"),
        ({"max_attempts": True}, "True is not"),
        ({"max_attempts": 1001}, "1001 is not"),
        ({"retry_backoff_s": ()}, "0 pauses; give 1 to 64"),
        ({"retry_backoff_s": (1,) * 65}, "65 pauses"),
        ({"retry_backoff_s": 5}, "give the pauses in seconds"),
        ({"retry_backoff_s": "5"}, "give the pauses in seconds"),
        ({"retry_topic_s": (0,)}, r"retry_topic_s has 0; .* \(0, 3456000\]"),
        ({"retry_topic_s": (float("nan"),)}, "nan"),
        ({"retry_topic_s": (3_456_001,)}, "3456001"),
        ({"retry_topic_s": ("1",)}, "'1'"),
    ],
)
def test_policies_that_mean_nothing_are_refused(options: dict[str, Any], told: str) -> None:
    """With the value, the bound and what to do."""
    with pytest.raises(InvalidArgument, match=told):
        FailurePolicy(**options)


def test_a_policy_of_an_earlier_vq_stops_at_bad_records() -> None:
    """It was stored without that field."""
    stored = FailurePolicy(on_failure="skip", on_bad_record="skip").to_json()
    assert FailurePolicy.from_json(stored).on_bad_record == "skip"
    del stored["on_bad_record"]
    assert FailurePolicy.from_json(stored) == FailurePolicy(on_failure="skip")


def test_pauses_are_numbers_in_any_form() -> None:
    """Whole ones, and lists of them, too."""
    assert FailurePolicy(retry_backoff_s=[1, 5.5]).retry_backoff_s == (1.0, 5.5)  # type: ignore[arg-type]
