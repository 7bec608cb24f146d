"""How long the console waits between two looks at a cluster."""

import pytest

from vq.console.clusters.site import pause_after


@pytest.mark.parametrize(
    ("least_s", "took_s", "silent", "pause_s"),
    [
        (2.0, 0.01, False, 2.0),
        (2.0, 1.0, False, 19.0),
        (2.0, 9.0, False, 30.0),
        (2.0, 3.0, True, 10.0),  # it has waited for a broker that hangs
        (2.0, 0.01, True, 2.0),
        (15.0, 3.0, True, 15.0),
    ],
)
def test_a_look_takes_a_twentieth_of_the_time_and_a_broker_that_hangs_is_soon_looked_at_again(
    least_s, took_s, silent, pause_s
) -> None:
    assert pause_after(least_s, took_s, 0.05, silent=silent) == pytest.approx(pause_s)
