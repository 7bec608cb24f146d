"""An event loop that looks again for a moment after an answer; idle, it sleeps."""

import asyncio
import time
from collections.abc import Callable

from vq.broker.connections.loop_spin import LoopSpin
from vq.remoting.spin import REQUEST_SPIN_S, SHORT_BEFORE
from vq.testing.waiting import until

LOOK_S = 1e-6
SOON_S = REQUEST_SPIN_S / 2


class Loop:
    """A loop that goes round while something is to be called; each round takes ``LOOK_S``."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[Callable[[], None]] = []
        self.rounds = 0
        self.flushes = False
        self.round_s = LOOK_S
        self.spin = LoopSpin(self.calls.append, lambda: self.flushes, lambda: self.now)

    def until(self, when: float) -> int:
        """Return how often it went round before ``when``, where it may sleep the rest."""
        rounds = 0
        while self.calls and self.now < when:
            self.now += self.round_s
            calls = self.calls[:]
            self.calls.clear()
            for call in calls:
                call()
            rounds += 1
        self.now = max(self.now, when)
        return rounds

    def serve(self, peer: str, after_s: float = SOON_S) -> int:
        """Answer a peer, whose next request comes after so long; return how often it went round."""
        self.spin.answered(peer)
        rounds = self.until(self.now + after_s)
        self.spin.heard(peer)
        return rounds

    def warm(self, peer: str) -> None:
        """Have a peer send some requests, one at a time."""
        for _ in range(SHORT_BEFORE + 1):  # the first gap is not known
            self.serve(peer)


def test_a_loop_spins_for_the_next_request_after_some_that_came_soon() -> None:
    loop = Loop()
    loop.spin.heard("a")
    assert [loop.serve("a") for _ in range(SHORT_BEFORE)] == [0] * SHORT_BEFORE
    assert loop.serve("a") >= SOON_S / LOOK_S - 1


def test_an_idle_loop_sleeps() -> None:
    """It spins once, for its bound, and nothing is called any more."""
    loop = Loop()
    loop.warm("a")
    loop.spin.answered("a")
    assert loop.until(loop.now + 60) <= REQUEST_SPIN_S / LOOK_S + 2
    assert not loop.calls
    loop.spin.heard("a")
    assert loop.serve("a") == 0


def test_a_request_ends_the_spin() -> None:
    """A second look would keep the loop awake beside the work."""
    loop = Loop()
    loop.warm("a")
    loop.serve("a")
    assert loop.until(loop.now + 1) <= 1
    assert not loop.calls


def test_two_peers_in_turn_have_no_spin() -> None:
    """Many connections keep a loop busy anyway."""
    loop = Loop()
    for _ in range(4 * SHORT_BEFORE):
        assert loop.serve("a") == 0
        loop.spin.heard("b")
        assert loop.serve("b") == 0
        loop.spin.heard("a")


def test_a_peer_that_is_answered_beside_gets_the_core() -> None:
    """A consumer gets what a producer has sent, and has nothing to ask for."""
    loop = Loop()
    loop.warm("a")
    for _ in range(2 * SHORT_BEFORE):
        loop.spin.answered("a")
        loop.spin.answered("consumer")
        assert loop.until(loop.now + SOON_S) <= 1
        loop.spin.heard("a")
    loop.warm("a")
    assert loop.serve("a") > 1


def test_no_loop_spins_while_a_flush_runs() -> None:
    """The flusher may need the core."""
    loop = Loop()
    loop.warm("a")
    loop.flushes = True
    assert loop.serve("a") <= 1
    assert not loop.calls
    loop.flushes = False
    assert loop.serve("a") > 1


def test_spins_that_lose_the_core_become_rare() -> None:
    loop = Loop()
    loop.warm("a")
    loop.round_s = 5e-3
    rounds = sum(loop.serve("a") for _ in range(1_000))
    assert 1 <= rounds <= 5


def test_a_peer_that_is_gone_is_not_waited_for() -> None:
    loop = Loop()
    loop.warm("a")
    loop.spin.answered("a")
    loop.spin.forget("a")
    assert loop.until(loop.now + 60) <= 1


async def test_a_real_loop_goes_to_sleep_after_a_spin() -> None:
    """It makes no more rounds, however long it waits for the next request."""
    looks = 0

    def look() -> bool:
        nonlocal looks
        looks += 1
        return False

    now = time.monotonic()
    spin = LoopSpin(asyncio.get_running_loop().call_soon, look, lambda: now)
    peer = object()
    for _ in range(SHORT_BEFORE + 1):
        spin.answered(peer)
        spin.heard(peer)
    spin.answered(peer)
    await until(lambda: looks > 10)
    now += REQUEST_SPIN_S * 1.01
    await asyncio.sleep(0)
    ended = looks
    for _ in range(100):
        await asyncio.sleep(0)
    assert looks == ended
