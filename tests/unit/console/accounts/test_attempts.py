"""How often somebody may try to log in."""

import pytest

from vq.console.accounts.attempts import FAILURES_MAX, WINDOW_S, Attempts, counted_address


def test_failures_of_a_name_or_an_address_make_both_wait() -> None:
    now = [0.0]
    attempts = Attempts(lambda: now[0])
    for _ in range(FAILURES_MAX):
        assert attempts.wait_s("a@1", "1") == 0
        attempts.failed("a@1", "1")
    assert attempts.wait_s("a@1", "1") == WINDOW_S
    assert attempts.wait_s("b@1", "1") == WINDOW_S
    assert attempts.wait_s("a@2", "2") == 0
    now[0] = WINDOW_S
    assert attempts.wait_s("a@1", "1") == 0


def test_a_success_is_no_failure() -> None:
    attempts = Attempts(lambda: 0.0)
    for _ in range(5 * FAILURES_MAX):
        attempts.failed("a@1", "1")
        attempts.succeeded("a@1", "1")
        assert attempts.wait_s("a@1", "1") == 0


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("203.0.113.5", "203.0.113.5"),
        ("::ffff:203.0.113.5", "203.0.113.5"),
        ("2001:db8:0:1::5", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::5", "2001:db8:0:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_attempts_of_ipv6_are_counted_for_the_network_of_a_subscriber(address, counted) -> None:
    """Whoever has one address of IPv6 has 2 to the power of 64 of them."""
    assert counted_address(address) == counted
