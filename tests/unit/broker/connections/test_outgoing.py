"""Answers on their way to a peer: gathered, written, and deferred while it does not read."""

from typing import Any

from vq.broker.connections.outgoing import SLICE_BYTES, Outgoing
from vq.clock import ManualClock

BUFFER_BYTES = 100


class Transport:
    """Keeps what the peer has not read."""

    def __init__(self) -> None:
        self.written: list[list[bytes]] = []
        self.unread = 0

    def writelines(self, buffers: list[bytes]) -> None:
        self.written.append(list(buffers))

    def get_write_buffer_size(self) -> int:
        return self.unread


class Peer:
    def __init__(self) -> None:
        self.transport: Any = Transport()
        self.outgoing = Outgoing(BUFFER_BYTES, ManualClock(monotonic=50.0))
        self.called: list[int] = []

    def congest(self) -> None:
        self.outgoing.add([bytes(BUFFER_BYTES + 1)])
        assert self.outgoing.congested

    def defer(self, number: int, size: int = 0) -> None:
        """Defer an answer of ``size`` bytes."""

        def act() -> None:
            self.called.append(number)
            self.outgoing.add([bytes(size)])

        self.outgoing.defer(act)


def test_answers_of_one_iteration_leave_together() -> None:
    peer = Peer()
    assert peer.outgoing.add([b"1", b"2"])
    assert not peer.outgoing.add([b"3"])
    assert not peer.outgoing.write(peer.transport)
    assert peer.transport.written == [[b"1", b"2", b"3"]]
    assert not peer.outgoing.write(peer.transport)
    assert len(peer.transport.written) == 1, "there is nothing to write"
    assert peer.outgoing.add([b"4"])


def test_answers_to_a_peer_that_is_gone_are_dropped() -> None:
    peer = Peer()
    peer.outgoing.add([b"1"])
    assert not peer.outgoing.write(None)
    peer.outgoing.write(peer.transport)
    assert peer.transport.written == []


def test_a_large_answer_congests_until_the_transport_has_shown_how_much_it_takes() -> None:
    peer = Peer()
    peer.congest()
    peer.transport.unread = BUFFER_BYTES + 1
    assert not peer.outgoing.write(peer.transport)
    peer.outgoing.add([b"more"])
    peer.transport.unread = BUFFER_BYTES
    assert peer.outgoing.write(peer.transport)


def test_while_the_transport_is_paused_a_write_relieves_nobody() -> None:
    peer = Peer()
    peer.outgoing.pause()
    peer.outgoing.add([b"1"])
    assert not peer.outgoing.write(peer.transport)
    peer.outgoing.resume()
    peer.outgoing.add([b"2"])
    assert peer.outgoing.write(peer.transport)


def test_what_was_deferred_is_called_until_the_peer_is_congested_again() -> None:
    peer = Peer()
    peer.congest()
    for number in range(3):
        peer.defer(number, size=60)
    peer.outgoing.write(peer.transport)
    assert not peer.outgoing.relieve()
    assert peer.called == [0, 1]
    peer.outgoing.write(peer.transport)
    assert peer.outgoing.relieve()
    assert peer.called == [0, 1, 2]


def test_nothing_is_called_once_the_connection_has_ended() -> None:
    peer = Peer()
    peer.defer(1)
    peer.outgoing.forget()
    assert peer.outgoing.relieve()
    assert peer.called == []


def test_the_time_counts_from_when_the_peer_read_something_last() -> None:
    peer = Peer()
    peer.congest()
    assert peer.outgoing.unread_for(90, 60.0) == 0.0, "the first look finds how much there is"
    assert peer.outgoing.unread_for(90, 63.0) == 3.0
    assert peer.outgoing.unread_for(80, 65.0) == 0.0
    assert peer.outgoing.unread_for(95, 66.0) == 1.0, "more was written, and none was read"


def test_a_large_answer_is_encrypted_in_slices() -> None:
    """One slice in each iteration, nothing copied, and in order with what comes meanwhile."""
    peer = Peer()
    peer.outgoing.encrypted = True
    body = bytes(range(256)) * (3 * SLICE_BYTES // 256)
    peer.outgoing.add([b"head", memoryview(body)])
    written: list[list[bytes]] = peer.transport.written
    for count in (1, 2, 3):
        peer.outgoing.write(peer.transport)
        assert peer.outgoing.waits
        assert sum(map(len, written[-1])) == SLICE_BYTES
        assert all(getattr(each, "obj", body) is body for each in written[-1][-1:])
        peer.outgoing.add([b"%d" % count])
    peer.outgoing.write(peer.transport)
    assert not peer.outgoing.waits
    assert b"".join(b"".join(each) for each in written) == b"head" + body + b"123"


def test_the_end_of_a_connection_waits_for_no_slice() -> None:
    peer = Peer()
    peer.outgoing.encrypted = True
    peer.outgoing.add([bytes(5 * SLICE_BYTES)])
    peer.outgoing.write(peer.transport, whole=True)
    assert not peer.outgoing.waits
    assert len(peer.transport.written) == 1


def test_without_tls_an_answer_leaves_in_one_write() -> None:
    peer = Peer()
    peer.outgoing.add([bytes(5 * SLICE_BYTES)])
    peer.outgoing.write(peer.transport)
    assert len(peer.transport.written) == 1
