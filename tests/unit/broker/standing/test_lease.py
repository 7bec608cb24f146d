"""For how long a reply of ZooKeeper vouches for a master."""

from types import SimpleNamespace
from typing import Any

from vq.broker.standing.lease import Lease
from vq.clock import ManualClock


def _lease(reply: float) -> tuple[Lease, ManualClock]:
    clock = ManualClock(monotonic=100.0)
    coordinator: Any = SimpleNamespace(session_timeout_s=9.0, last_reply_monotonic=reply)
    return Lease(coordinator, clock), clock


def test_a_lease_ends_a_third_before_the_session_can() -> None:
    """Six of nine seconds after the last reply was sent for."""
    lease, clock = _lease(100.0)
    clock.advance(5.9)
    assert lease.lasts()
    clock.advance(0.1)
    assert not lease.lasts()


def test_there_is_none_before_the_first_reply() -> None:
    lease, _ = _lease(float("-inf"))
    assert not lease.lasts()
