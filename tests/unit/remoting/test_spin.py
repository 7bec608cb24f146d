"""When a wait looks again and again before it sleeps, and what that costs nobody."""

import select
import signal
import socket
import time
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace

import pytest
from support.interrupts import Interrupted, Interrupter

from vq.remoting import transport
from vq.remoting.spin import ANSWER_SPIN_S, SHORT_BEFORE, SHORT_BEFORE_MAX, Spin
from vq.remoting.transport import TcpStream
from vq.testing.waiting import WAIT_S

LOOK_S = 1e-6
SHORT_S = ANSWER_SPIN_S / 2


class Line:
    """A stream whose peer answers after a time of the clock that only looks and sleeps move.

    Attributes:
        now: The clock.
        looks, sleeps: How often the stream asked without and with a time-out.
        answer_at: When there are bytes.
        look_s: How long a look takes.
        interrupt: Raised in a look, as a signal handler would.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.looks = self.sleeps = 0
        self.answer_at = 0.0
        self.look_s = LOOK_S
        self.interrupt: BaseException | None = None
        poll = SimpleNamespace(register=lambda *_: None, poll=self._poll)
        made = SimpleNamespace(poll=lambda: poll, POLLIN=select.POLLIN)
        monkeypatch.setattr(transport, "select", made)
        monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(transport, "has_cores", lambda: True)
        self.ours, self.peer = socket.socketpair()
        self.stream = TcpStream(self.ours)

    def _poll(self, milliseconds: float) -> list[object]:
        if self.interrupt is not None:
            raise self.interrupt
        if milliseconds:
            self.sleeps += 1
            self.now = min(max(self.now, self.answer_at), self.now + milliseconds / 1e3)
        else:
            self.looks += 1
            self.now += self.look_s
        return [object()] if self.now >= self.answer_at else []

    def receive(self, after_s: float, timeout_s: float = 10.0) -> bytes:
        """Have the peer answer after so long, and receive that."""
        self.looks = self.sleeps = 0
        self.answer_at = self.now + after_s
        if after_s <= timeout_s:
            self.peer.send(b"answer")
        return self.stream.receive(self.now + timeout_s)

    def warm(self) -> None:
        """Have some answers come soon."""
        for _ in range(SHORT_BEFORE):
            assert self.receive(SHORT_S) == b"answer"


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """A stream without a peer in another thread."""
    made = Line(monkeypatch)
    yield made
    made.stream.close()
    made.peer.close()


def test_a_thread_spins_for_an_answer_after_some_that_came_soon(line: Line) -> None:
    for _ in range(SHORT_BEFORE):
        assert line.receive(SHORT_S) == b"answer"
        assert (line.looks, line.sleeps) == (0, 1)
    assert line.receive(SHORT_S) == b"answer"
    assert line.looks == pytest.approx(SHORT_S / LOOK_S, rel=0.1)
    assert line.sleeps == 0


def test_a_thread_that_waits_for_long_sleeps_and_the_next_waits_do_not_spin(line: Line) -> None:
    """A slow disk costs one spin; an idle peer costs that once, too."""
    line.warm()
    assert line.receive(5.0) == b"answer"
    assert line.looks <= ANSWER_SPIN_S / LOOK_S + 1
    assert line.sleeps == 1
    for _ in range(2 * SHORT_BEFORE):
        assert line.receive(SHORT_S) == b"answer"
        assert line.looks == 0


def test_every_other_answer_late_never_spins(line: Line) -> None:
    for number in range(4 * SHORT_BEFORE):
        assert line.receive(SHORT_S if number % 2 else 2 * ANSWER_SPIN_S) == b"answer"
        assert line.looks == 0


def test_spins_that_lose_the_core_become_rare(line: Line) -> None:
    """Others need it: the scheduler would make a thread wait that has used its time up."""
    line.look_s = 5e-3
    spins = 0
    for _ in range(1_000):
        assert line.receive(SHORT_S) == b"answer"
        assert line.looks <= 1
        spins += line.looks
    assert 1 <= spins <= 5
    line.look_s = LOOK_S
    for _ in range(SHORT_BEFORE_MAX):
        assert line.receive(1e-5) == b"answer"
    assert line.looks, "nobody else needs it any more"


def test_spins_that_find_nothing_become_rare(line: Line) -> None:
    """A peer that pauses after each few requests costs little."""
    spins = 0
    for number in range(100 * SHORT_BEFORE):
        late = number % (SHORT_BEFORE + 2) == 0
        assert line.receive(2 * ANSWER_SPIN_S if late else 1e-5) == b"answer"
        spins += late and bool(line.looks)
    assert spins <= 8


def test_a_spin_ends_with_the_deadline(line: Line) -> None:
    line.warm()
    begun = line.now
    with pytest.raises(TimeoutError):
        line.receive(SHORT_S, SHORT_S / 2)
    assert line.now - begun <= SHORT_S / 2 + 2 * LOOK_S


def test_a_process_with_one_core_does_not_spin(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "has_cores", lambda: False)
    line.stream = TcpStream(line.ours)
    for _ in range(3 * SHORT_BEFORE):
        assert line.receive(SHORT_S) == b"answer"
        assert line.looks == 0


def test_an_exception_anywhere_in_a_spin_leaves_the_answer_where_it_is(line: Line) -> None:
    """A signal handler raised. The caller closes the connection; nothing was taken from it."""
    place, reached = 0, True
    while reached:
        line.warm()
        line.answer_at = line.now + 3 * LOOK_S
        line.peer.send(b"answer")
        interrupter = Interrupter(place, "vq/remoting/spin.py", "vq/remoting/transport.py")
        deadline = line.now + 1.0
        try:
            assert interrupter.run(lambda until=deadline: line.stream.receive(until)) == b"answer"
        except Interrupted:
            if "_wait" in interrupter.reached or "Spin" in interrupter.reached:
                assert line.stream.receive(line.now + 1.0) == b"answer"
            else:
                line.ours.setblocking(False)
                try:
                    line.ours.recv(100)
                except BlockingIOError:
                    pass  # it came when the answer was read
        reached = bool(interrupter.reached)
        place += 1
    assert place > 10


@pytest.fixture
def alarm() -> Iterator[Callable[[float], None]]:
    """Has a signal handler raise ``Interrupted`` after so many seconds."""

    def ring(_: int, __: FrameType | None) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, ring)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_is_handled_during_a_spin(
    monkeypatch: pytest.MonkeyPatch, alarm: Callable[[float], None]
) -> None:
    """Here the spin would last much longer than the test, and nothing else ends it."""
    monkeypatch.setattr(transport, "ANSWER_SPIN_S", 10 * WAIT_S)
    monkeypatch.setattr(transport, "has_cores", lambda: True)
    ours, peer = socket.socketpair()
    with ours, peer:
        stream = TcpStream(ours)
        for _ in range(SHORT_BEFORE):
            peer.send(b"x")
            assert stream.receive(time.monotonic() + WAIT_S) == b"x"
        begun = time.monotonic()
        alarm(0.01)
        with pytest.raises(Interrupted):
            stream.receive(begun + 20 * WAIT_S)
        assert time.monotonic() - begun < WAIT_S


def test_a_thread_that_waits_uses_no_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real wait, after short ones: it spins for its bound, and then it sleeps."""
    monkeypatch.setattr(transport, "has_cores", lambda: True)
    ours, peer = socket.socketpair()
    with ours, peer:
        stream = TcpStream(ours)
        for _ in range(SHORT_BEFORE):
            peer.send(b"x")
            assert stream.receive(time.monotonic() + WAIT_S) == b"x"
        begun = time.thread_time()
        with pytest.raises(TimeoutError):
            stream.receive(time.monotonic() + 0.1)
        assert time.thread_time() - begun < 0.05


def test_what_a_spin_costs_at_most_is_its_bound() -> None:
    waits = Spin(ANSWER_SPIN_S)
    for _ in range(SHORT_BEFORE):
        waits.note(0.0)
    waited_s = 0.0
    while waits.goes_on(waited_s):
        waited_s += LOOK_S
    assert waited_s <= ANSWER_SPIN_S + LOOK_S
