"""Whether an append may still be acknowledged."""

from types import SimpleNamespace

from vq.broker.replication.lease import Lease
from vq.clock import ManualClock


def _lease(reply: float) -> tuple[Lease, ManualClock]:
    clock = ManualClock(monotonic=100.0)
    coordinator = SimpleNamespace(session_timeout_s=9.0, last_reply_monotonic=reply)
    return Lease(coordinator, clock), clock


def test_a_lease_ends_a_third_before_the_session_can():
    """Six of nine seconds after the last reply was sent for."""
    lease, clock = _lease(100.0)
    clock.advance(5.9)
    assert lease.holds()
    clock.advance(0.1)
    assert not lease.holds()


def test_a_node_alone_needs_no_lease():
    """Nobody else can have been elected."""
    lease, clock = _lease(float("-inf"))
    assert not lease.holds()
    lease.alone = True
    clock.advance(1_000)
    assert lease.holds()


def test_a_revoked_lease_does_not_hold():
    """Whatever the clock says, and alone or not."""
    lease, _ = _lease(100.0)
    lease.alone = lease.revoked = True
    assert not lease.holds()
    assert not lease.goes_on()


def test_no_clock_ends_what_the_copies_confirm():
    """A node in sync that is silent does, until it is back."""
    lease, clock = _lease(float("-inf"))
    clock.advance(1_000_000)
    assert lease.goes_on()
    lease.silent = "n2"
    assert not lease.goes_on()
