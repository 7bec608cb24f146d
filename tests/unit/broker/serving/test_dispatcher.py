"""PUTs that must wait for their topic or their log: in order, each connection for itself."""

import gc
import weakref
from collections.abc import Callable
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import pytest
from support.roles import leading

from vq.broker.serving.dispatcher import Dispatcher, Route
from vq.broker.serving.reasons import Reasons
from vq.broker.standing.gate import Gate
from vq.clock import ManualClock
from vq.errors import InternalError, ShuttingDown, UnknownTopic
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.remoting.format import Command
from vq.remoting.hello import ServerIdentity

KEY = TopicPartition("t", 0)


class Channels:
    """A directory whose look-ups and openings end when the test says so."""

    def __init__(self) -> None:
        self.channels: dict[TopicPartition, Any] = {}
        self.looked_up: list[Callable[[Any], None]] = []
        self.opened: list[Callable[[], None]] = []

    def resolve(self, _where: TopicPartition, then: Callable[[Any], None], _asker: Any) -> None:
        self.looked_up.append(then)

    def open(self, _channel: Any, then: Callable[[], None]) -> None:
        self.opened.append(then)


class Peer:
    """A connection that notes what its requests were told."""

    def __init__(self) -> None:
        self.waiting: dict[Any, None] = {}
        self.address = self.counted_as = "here"
        self.refused: list[tuple[int, type]] = []

    def refuse(self, request_id: RequestId, error: Exception) -> None:
        self.refused.append((request_id.correlation_id, type(error)))

    def end(self) -> None:
        for each in list(self.waiting):
            each.cancel()


class Header:
    """The header of a request, of which it can be told when nobody has it any more."""

    topic, partition, topic_id, epoch = "t", 0, "id", 0


class Board:
    """A dispatcher over ``Channels`` with one channel to be made, which notes its PUTs."""

    def __init__(self) -> None:
        self.directory = Channels()
        self.done: list[tuple[Peer, int]] = []
        self.channel = SimpleNamespace(topic_id="id", log=None, takes_puts=True, goes_on=False)
        self.role = role = leading()
        context = SimpleNamespace(
            call_later=lambda *_: None,
            clock=ManualClock(),
            role=role,
            counters=SimpleNamespace(refused=0),
            group="b1",
        )
        self.gate = Gate(ServerIdentity(cluster="c", group="b1", node="n1"), role)
        nobody: Any = None
        opens = attrgetter("takes_puts")
        why = Reasons(self.gate, context, self.directory, nobody)
        self.dispatcher = Dispatcher(
            {
                Command.PUT: Route(self.put, why.appends, True, opens, appends=True),
                Command.OFFSETS: Route(self.tell, of_partition=True),
            },
            self.directory,
            context,
            gate=self.gate,
            tasks=nobody,
        )

    def put(
        self, channel: Any, peer: Peer, request_id: RequestId, _header: Any, body: bytes
    ) -> None:
        assert channel is self.channel
        self.done.append((peer, request_id.correlation_id))
        if body == b"bug":
            raise RuntimeError("a bug")

    def tell(self, channel: Any, peer: Peer, request_id: RequestId, _header: Any) -> None:
        assert channel is self.channel
        self.done.append((peer, request_id.correlation_id))

    def send(self, peer: Peer, number: int, topic_id: str = "id", body: bytes = b"1") -> None:
        header = wire.PutRequest(topic="t", partition=0, topic_id=topic_id)
        self.take(peer, Command.PUT, number, header, body)

    def ask(self, peer: Peer, number: int) -> None:
        header = wire.OffsetsRequest(topic="t", partition=0, topic_id="id")
        self.take(peer, Command.OFFSETS, number, header, b"")

    def take(self, peer: Any, command: Command, number: int, header: Any, body: bytes) -> None:
        self.dispatcher.take(peer, RequestId(command, number, 0, len(body)), header, body)

    def appear(self) -> None:
        self.directory.channels[KEY] = self.channel

    def open(self) -> None:
        self.channel.log = object()
        opened, self.directory.opened = self.directory.opened, []
        for then in opened:
            then()

    def look_up_ends(self, found: Any = None) -> None:
        looked_up, self.directory.looked_up = self.directory.looked_up, []
        for then in looked_up:
            then(found or self.channel)


@pytest.fixture
def board() -> Board:
    return Board()


def test_nothing_overtakes_a_put_whose_topic_is_looked_up(board: Board) -> None:
    """The channel appears, and even its log, before the look-up ends."""
    peer = Peer()
    board.send(peer, 0)
    board.appear()
    board.send(peer, 1)
    board.open()
    board.send(peer, 2)
    assert board.done == []
    board.look_up_ends()
    assert board.done == [(peer, 0), (peer, 1), (peer, 2)]
    board.send(peer, 3)
    assert board.done[-1] == (peer, 3)
    assert peer.waiting == {}


def test_nothing_overtakes_a_put_whose_log_is_opened(board: Board) -> None:
    """Also when somebody else opened the log meanwhile."""
    peer = Peer()
    board.appear()
    board.send(peer, 0)
    board.channel.log = object()
    board.send(peer, 1)
    assert board.done == []
    board.open()
    assert board.done == [(peer, 0), (peer, 1)]


def test_another_connection_does_not_wait_for_a_look_up(board: Board) -> None:
    """Whoever names a topic that must be looked up delays nobody else."""
    stranger, peer = Peer(), Peer()
    board.appear()
    board.open()
    board.send(stranger, 0, topic_id="of another topic")
    board.send(peer, 1)
    assert board.done == [(peer, 1)]
    board.look_up_ends(UnknownTopic("made anew"))
    assert stranger.refused == [(0, UnknownTopic)]


def test_a_put_that_is_refused_lets_those_behind_it_pass(board: Board) -> None:
    """Each is looked at by itself."""
    peer = Peer()
    board.appear()
    board.open()
    board.send(peer, 0, topic_id="of another topic")
    board.send(peer, 1)
    board.look_up_ends(UnknownTopic("gone"))
    assert peer.refused == [(0, UnknownTopic)]
    assert board.done == [(peer, 1)]


def test_one_look_up_answers_all_that_stood_in_line_when_it_began(board: Board) -> None:
    """Those of another topic id, and those that came later, are looked up for themselves."""
    peer = Peer()
    board.send(peer, 0)
    board.send(peer, 1)
    board.send(peer, 2, topic_id="other")
    board.send(peer, 3)
    board.look_up_ends(UnknownTopic("not there"))
    assert peer.refused == [(0, UnknownTopic)]
    board.send(peer, 4)
    board.look_up_ends(UnknownTopic("not there"))
    assert peer.refused[1:] == [(1, UnknownTopic), (3, UnknownTopic)]
    board.look_up_ends(UnknownTopic("not there"))
    assert peer.refused[3:] == [(2, UnknownTopic)]
    board.appear()
    board.open()
    board.look_up_ends()
    assert board.done == [(peer, 4)]


def test_those_that_a_failed_look_up_passes_over_keep_their_order(board: Board) -> None:
    """They name another topic of that name, which is there when they are looked up."""
    peer = Peer()
    board.send(peer, 0, topic_id="other")
    board.send(peer, 1)
    board.send(peer, 2, topic_id="other")
    board.send(peer, 3, topic_id="other")
    board.look_up_ends(UnknownTopic("not there"))
    board.send(peer, 4, topic_id="other")
    board.look_up_ends(UnknownTopic("not there"))
    assert peer.refused == [(0, UnknownTopic), (1, UnknownTopic)]
    board.channel.topic_id = "other"
    board.appear()
    board.open()
    board.look_up_ends()
    assert board.done == [(peer, 2), (peer, 3), (peer, 4)]


def test_a_log_that_cannot_be_opened_is_told_to_each(board: Board) -> None:
    """The channel says why; nothing waits for ever."""
    peer = Peer()
    board.appear()
    board.send(peer, 0)
    board.send(peer, 1)
    board.channel.takes_puts = False
    opened, board.directory.opened = board.directory.opened, []
    for then in opened:
        then()
    assert board.done == [(peer, 0), (peer, 1)]
    assert peer.waiting == {}


def test_one_failed_opening_answers_all_that_stood_in_line_when_it_began(board: Board) -> None:
    """A full disk is not tried again for each of them; those that came later try again."""
    peer = Peer()
    board.send(peer, 9, topic_id="other")
    board.appear()
    board.send(peer, 0)
    board.send(peer, 1)
    board.send(peer, 2, topic_id="other")
    board.look_up_ends(UnknownTopic("not there"))
    assert len(board.directory.opened) == 1
    board.send(peer, 3)
    opened, board.directory.opened = board.directory.opened, []
    opened[0]()
    assert board.done == [(peer, 0), (peer, 1)]
    board.look_up_ends(UnknownTopic("not there"))
    assert peer.refused == [(9, UnknownTopic), (2, UnknownTopic)]
    board.open()
    assert board.done[2:] == [(peer, 3)]


def test_a_connection_that_ends_takes_its_puts_along(board: Board) -> None:
    """Its line is forgotten when the look-up ends."""
    peer = Peer()
    board.send(peer, 0)
    board.send(peer, 1)
    peer.end()
    assert peer.waiting == {}
    board.appear()
    board.open()
    board.look_up_ends()
    assert (board.done, peer.refused) == ([], [])
    board.send(other := Peer(), 2)
    assert board.done == [(other, 2)]


def test_what_waited_is_forgotten_with_its_connection(board: Board) -> None:
    """During a slow look-up, who sends, hangs up and comes again must not fill the memory."""
    headers: list[weakref.ref[Any]] = []
    for number in range(3):
        peer = Peer()
        for _ in range(2):
            header = Header()
            headers.append(weakref.ref(header))
            board.take(peer, Command.PUT, number, header, b"1")
            board.take(peer, Command.OFFSETS, number, header, b"")
            del header
        peer.end()
    gc.collect()
    assert [each() for each in headers if each() is not None] == []
    board.look_up_ends(UnknownTopic("not there"))
    assert board.done == []


def test_a_put_that_is_held_is_forgotten_with_its_connection(board: Board) -> None:
    """While the group is handed over."""
    board.appear()
    board.open()
    board.role.hold()
    header, peer = Header(), Peer()
    board.take(peer, Command.PUT, 1, header, b"1")
    gone = weakref.ref(header)
    del header
    peer.end()
    gc.collect()
    assert gone() is None
    board.send(other := Peer(), 2)
    board.role.let_go()
    assert board.done == [(other, 2)]


def test_a_put_that_fails_keeps_nobody_waiting(board: Board) -> None:
    """Whatever its channel raises."""
    peer = Peer()
    board.send(peer, 0, body=b"bug")
    board.send(peer, 1)
    board.appear()
    board.open()
    board.look_up_ends()
    assert board.done == [(peer, 0), (peer, 1)]
    assert peer.refused == [(0, InternalError)]


def test_what_waited_is_refused_when_the_node_takes_no_puts_any_more(board: Board) -> None:
    """The reason is looked at when its turn comes, not when it arrived."""
    peer = Peer()
    board.send(peer, 0)
    board.gate.stop()
    board.appear()
    board.open()
    board.look_up_ends()
    assert (board.done, peer.refused) == ([], [(0, ShuttingDown)])


def test_other_requests_wait_for_their_channel_in_the_same_line(board: Board) -> None:
    """One look-up for all; what needs no log does not wait for one that PUTs wait for."""
    peer = Peer()
    board.ask(peer, 0)
    board.send(peer, 1)
    board.ask(peer, 1)
    assert len(board.directory.looked_up) == 1
    board.look_up_ends(UnknownTopic("not there"))
    assert len(board.directory.looked_up) == 1
    board.look_up_ends(UnknownTopic("not there"))
    assert peer.refused == [(0, UnknownTopic), (1, UnknownTopic), (1, UnknownTopic)]
    board.appear()
    board.send(peer, 2)
    board.ask(peer, 3)
    assert board.done == [(peer, 3)]
    board.open()
    assert board.done == [(peer, 3), (peer, 2)]


def test_a_request_of_which_an_error_is_raised_is_answered_with_it(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handlers need not answer themselves."""

    def refuses(*_: object) -> None:
        raise UnknownTopic("gone")

    monkeypatch.setitem(board.dispatcher.routes, Command.OFFSETS, Route(refuses))
    board.ask(peer := Peer(), 0)
    assert peer.refused == [(0, UnknownTopic)]
