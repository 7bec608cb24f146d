"""How often somebody may try to log in."""

from vq.console.accounts.attempts import FAILURES_MAX, WINDOW_S, Attempts


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
