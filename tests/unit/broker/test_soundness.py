"""When a master with damage hands over."""

import pytest

from vq.broker.soundness import HAND_OVER_AFTER_S, RETRY_S, hands_over_at


@pytest.mark.parametrize(
    ("since", "tried", "expected"),
    [
        (100.0, None, 100.0 + HAND_OVER_AFTER_S),
        (100.0, 105.0, 105.0 + RETRY_S),
        (100.0, 40.0, 100.0 + HAND_OVER_AFTER_S),
    ],
)
def test_it_repairs_first_and_tries_again_seldom(
    since: float, tried: float | None, expected: float
) -> None:
    assert hands_over_at(since, tried) == expected
