"""Many partitions read with few requests: who is asked, what requests say, how much memory."""

import asyncio
import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.timers import NotedTimers
from support.waiting import until

from vq import limits
from vq.backoff import Backoff
from vq.client.consumer import fetch_sessions
from vq.client.consumer.buffer_space import BufferSpace
from vq.client.consumer.fetch_sessions import Fetches, passes
from vq.errors import (
    Busy,
    ConnectionCut,
    FetchSessionLost,
    InternalError,
    InvalidRequest,
    NotMaster,
    OffsetOutOfRange,
    ProtocolError,
    TimedOut,
    UnknownTopic,
    VqError,
)
from vq.model import Address, TopicPartition
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import describe_error, encode_error
from vq.remoting.wire_pb2 import FetchRequest, FetchResponse, FetchResult

HERE, THERE = Address("b1", 1), Address("b2", 1)
KIB, MIB = limits.KIB, limits.MIB


class Connection:
    """Notes requests; the test answers them."""

    def __init__(self, address: Address = HERE) -> None:
        self.address = address
        self.requests: list[FetchRequest] = []
        self.waiting: list[Callable[[Frame | None], None]] = []
        self.closed = False
        self.refuse: VqError | None = None
        self.unflushed = 0

    def send(self, command: int, header: bytes, body: bytes, on_reply: Any) -> int:
        assert command == Command.FETCH
        if self.refuse is not None or self.closed:
            raise self.refuse or ConnectionCut()
        self.requests.append(FetchRequest.FromString(header))
        self.waiting.append(on_reply)
        self.unflushed += 1
        return len(self.requests)

    def flush(self) -> None:
        self.unflushed = 0

    @property
    def last(self) -> FetchRequest:
        return self.requests[-1]

    def answer(self, *results: FetchResult, body: bytes = b"") -> None:
        """Answer the request that has waited longest."""
        header = FetchResponse(results=results).SerializeToString()
        self.waiting.pop(0)(Frame(Command.FETCH, 0, 1, 0, header, body))

    def fail(self, error: VqError) -> None:
        status, header = encode_error(error)
        self.waiting.pop(0)(Frame(Command.FETCH, status, 1, 0, header, b""))

    def close(self) -> None:
        self.closed = True
        waiting, self.waiting = self.waiting, []
        for on_reply in waiting:
            on_reply(None)


class Cluster:
    """What fetches need of a client of the cluster."""

    def __init__(self) -> None:
        self.rng = random.Random(5)
        self.fetch_numbers = itertools.count(1)
        self.connections: dict[Address, Connection | None] = {
            HERE: Connection(HERE),
            THERE: Connection(THERE),
        }
        self.masters: dict[int, tuple[Address, int] | VqError] = {}
        self.listeners: list[Callable[[], None]] = []
        self.routes: object = object()
        self.lookups = 0

    def master_at(self, partition: TopicPartition, offset: int) -> tuple[Address, int]:
        found = self.masters.get(partition.partition, (HERE, 3))
        if isinstance(found, VqError):
            raise found
        return found

    def live_connection(self, address: Address) -> Connection | None:
        self.lookups += 1
        return self.connections[address]

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)

    def change(self) -> None:
        for listener in list(self.listeners):
            listener()


class Partition:
    """One that is read: asks when the test says so."""

    def __init__(self, world: "World", number: int, **fields: Any) -> None:
        self.world = world
        self.partition = TopicPartition("t", number)
        self.position = 0
        self.validate = False
        self.topic_id = "id-1"
        self.tags: list[str] = []
        self.asked = self.buffered = self.missing = 0
        self.went_on = 0
        self.behind = self.at_once = False
        self.took_bodies: list[bytes] = []
        self.errors: list[VqError] = []
        vars(self).update(fields)
        world.fetches.join(self)

    def count(self) -> None:
        self.world.fetches.space.count(self)

    def ask(self, size: int = 1_000) -> None:
        self.asked = size
        self.count()
        self.world.fetches.ask(self)

    def go_on(self) -> None:
        self.went_on += 1
        if self.world.fetches.space.allowance(self) >= self.missing or (
            self.world.fetches.space.may_exceed(self)
        ):
            self.ask(self.missing)

    def took(self, result: FetchResult, body: bytes) -> None:
        self.asked = 0
        self.took_bodies.append(body)
        self.count()

    def failed(self, error: VqError) -> None:
        self.asked = 0
        self.errors.append(error)
        self.count()

    def leave(self) -> None:
        self.world.fetches.leave(self)


class World:
    def __init__(self, *, buffer_bytes: int = MIB) -> None:
        self.cluster = Cluster()
        cluster: Any = self.cluster
        self.fetches = Fetches(cluster, max_wait_s=5.0, buffer_bytes=buffer_bytes)

    @property
    def here(self) -> Connection:
        found = self.cluster.connections[HERE]
        assert found is not None
        return found

    @property
    def there(self) -> Connection:
        found = self.cluster.connections[THERE]
        assert found is not None
        return found

    def partitions(self, count: int) -> list[Partition]:
        return [Partition(self, number) for number in range(count)]


async def turn() -> None:
    """Let what was put off to the end of the turn happen."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def handles(request: FetchRequest) -> list[int]:
    return [item.handle for item in request.partitions]


def refusal(handle: int, error: VqError) -> FetchResult:
    result = FetchResult(handle=handle)
    describe_error(error, result)
    return result


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = Backoff(first_s=0.002, most_s=0.004, jitter=0.5)
    monkeypatch.setattr(fetch_sessions, "_BACKOFF", quick)


# Requests -----------------------------------------------------------------------------------------
async def test_what_is_asked_for_in_one_turn_leaves_in_one_request() -> None:
    world = World()
    one, two = Partition(world, 4, position=70, validate=True, tags=["a"]), Partition(world, 5)
    one.ask(500)
    two.ask(600)
    assert world.here.requests == []
    await turn()
    (request,) = world.here.requests
    assert (request.session, request.sequence, request.max_wait_ms) == (1, 0, 5_000)
    assert request.max_bytes == 2 * MIB
    first, second = request.partitions
    assert (first.topic, first.partition, first.topic_id) == ("t", 4, "id-1")
    assert (first.offset, first.max_bytes, first.epoch) == (70, 500, 3)
    assert (first.validate, list(first.tags), first.at_once) == (True, ["a"], False)
    assert (second.partition, second.max_bytes) == (5, 600)
    assert first.handle != second.handle


async def test_a_request_names_only_what_changed() -> None:
    world = World()
    one, two = world.partitions(2)
    one.ask()
    two.ask()
    await turn()
    handle = world.here.last.partitions[1].handle
    world.here.answer(FetchResult(handle=handle, size=3), body=b"abc")
    assert (one.took_bodies, two.took_bodies) == ([], [b"abc"])
    assert [len(request.partitions) for request in world.here.requests] == [2, 0]
    two.position, two.at_once = 40, True
    two.ask(77)
    await turn()
    assert (world.here.last.sequence, len(world.here.waiting)) == (2, 2)
    (item,) = world.here.last.partitions
    assert (item.handle, item.offset, item.max_bytes, item.epoch) == (handle, 40, 77, 3)
    assert (item.topic, item.topic_id, item.at_once) == ("", "", True)


async def test_what_an_answer_makes_partitions_ask_for_needs_no_turn_of_its_own() -> None:
    """The next request leaves with the answer; a call at the end of the turn would find nothing."""
    world = World()
    (one,) = world.partitions(1)
    one.ask()
    await turn()
    (session,) = world.fetches._sessions.values()
    one.took = lambda result, body: one.ask()  # type: ignore[method-assign]
    calls: list[Any] = []
    loop = asyncio.get_running_loop()
    session._loop = SimpleNamespace(  # type: ignore[assignment]
        call_soon=lambda *call: calls.append(call), call_later=loop.call_later
    )
    world.here.answer(FetchResult(handle=1))
    assert handles(world.here.last) == [1]
    assert (len(world.here.requests), calls) == (2, [])


async def test_changes_gather_while_two_requests_are_under_way() -> None:
    world = World()
    partitions = world.partitions(4)
    for each in partitions:
        each.ask()
        await turn()
    assert [handles(request) for request in world.here.requests] == [[1], [2]]
    world.here.answer()
    assert [handles(request) for request in world.here.requests] == [[1], [2], [3, 4]]
    world.here.answer()
    assert len(world.here.waiting) == 1
    world.here.answer()
    assert handles(world.here.last) == [], "the time was up; ask on"
    assert len(world.here.waiting) == 1


async def test_what_an_answer_leads_to_leaves_at_once() -> None:
    """Not in the next turn: the broker waits for it."""
    world = World()
    (one,) = world.partitions(1)
    took = one.took

    def ask_on(result: FetchResult, body: bytes) -> None:
        took(result, body)
        one.ask()

    one.took = ask_on  # type: ignore[method-assign]
    one.ask()
    await turn()
    world.here.answer(FetchResult(handle=1, size=1), body=b"x")
    assert [handles(request) for request in world.here.requests] == [[1], [1]]
    assert world.here.unflushed == 0
    await turn()
    assert len(world.here.waiting) == 1


async def test_nothing_is_asked_while_nobody_wants_anything() -> None:
    """Partitions that are full rest, here and there."""
    world = World()
    (one,) = world.partitions(1)
    one.ask()
    await turn()
    world.here.answer(FetchResult(handle=1, size=1), body=b"x")
    await turn()
    assert len(world.here.requests) == 1
    assert world.here.waiting == []


async def test_many_partitions_are_named_in_several_requests() -> None:
    """The broker looks at all of a request in one turn of its loop; only the last one waits."""
    world = World()
    for each in world.partitions(2_500):
        each.ask(1)
    await turn()
    while world.here.waiting and len(world.here.requests) < 20:
        world.here.answer()
    counts = [len(request.partitions) for request in world.here.requests[:10]]
    assert counts == [256] * 9 + [196]
    assert max(counts) <= limits.FETCH_PARTITIONS_PER_REQUEST_MAX
    waits = [request.max_wait_ms for request in world.here.requests[:10]]
    assert waits == [0] * 9 + [5_000]
    named = [handle for request in world.here.requests for handle in handles(request)]
    assert named == list(range(1, 2_501))


async def test_long_filters_are_spread_over_requests() -> None:
    """A request fits into a frame's header."""
    world = World()
    tags = [f"{n:0254}" for n in range(64)]
    for number in range(200):
        Partition(world, number, tags=tags).ask(1)
    await turn()
    while sum(len(request.partitions) for request in world.here.requests) < 200:
        world.here.answer()
    assert all(
        request.ByteSize() < limits.FRAME_HEADER_BYTES_MAX for request in world.here.requests
    )
    assert len(world.here.requests) > 5


async def test_a_partition_that_leaves_is_taken_out_and_the_last_one_ends_the_session() -> None:
    world = World()
    one, two = world.partitions(2)
    one.ask()
    two.ask()
    await turn()
    one.leave()
    await turn()
    assert list(world.here.last.removed) == [1]
    world.here.answer(FetchResult(handle=1, size=1), body=b"x")
    assert one.took_bodies == [], "it was on its way"
    two.leave()
    two.leave()
    await turn()
    assert world.here.last.close
    assert world.cluster.listeners == []
    while world.here.waiting:
        world.here.answer()
    await turn()
    assert len(world.here.requests) == 3
    three = Partition(world, 3)
    three.ask()
    await turn()
    assert (world.here.last.sequence, world.here.last.session) == (0, 1)


async def test_consumers_of_a_factory_have_sessions_of_their_own() -> None:
    world = World()
    cluster: Any = world.cluster
    other = Fetches(cluster, max_wait_s=1.0, buffer_bytes=MIB)
    assert (world.fetches.number, other.number) == (1, 2)


# Errors -------------------------------------------------------------------------------------------
async def test_an_error_of_a_partition_is_its_own() -> None:
    """The broker has taken it out of the session: it is added again, under another handle."""
    world = World()
    one, two = world.partitions(2)
    one.ask()
    two.ask()
    await turn()
    world.here.answer(refusal(1, OffsetOutOfRange("gone", details={"earliest": 5})))
    (error,) = one.errors
    assert isinstance(error, OffsetOutOfRange)
    assert error.details == {"earliest": 5}
    assert two.errors == []
    one.ask()
    await turn()
    (item,) = world.here.last.partitions
    assert (item.handle, item.topic) == (3, "t")
    assert list(world.here.last.removed) == []


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_an_answer_that_fails_is_an_error_of_its_own_partition(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The others have their answers, and what all of them ask for next leaves."""
    world = World()
    partitions = world.partitions(3)

    def stumble(*_: object) -> None:
        raise KeyError("a bug")

    vars(partitions[number])["took"] = stumble
    for each in partitions:
        each.ask()
    await turn()
    world.here.answer(*(FetchResult(handle=handle, size=1) for handle in (1, 2, 3)), body=b"abc")
    assert [each.took_bodies for each in partitions] == [
        [] if each is partitions[number] else [body]
        for each, body in zip(partitions, (b"a", b"b", b"c"), strict=True)
    ]
    (error,) = partitions[number].errors
    assert isinstance(error, InternalError)
    assert caplog.text.count("handling an answer to FETCH failed") == 1
    for each in partitions:
        each.ask()
    await turn()
    assert [item.partition for item in world.here.last.partitions if item.topic] == [number]
    assert len(world.here.last.partitions) == 3


async def test_an_answer_that_is_broken_off_is_asked_for_anew() -> None:
    """By a ``KeyboardInterrupt`` on the application's own loop, say."""
    world = World()
    one, two = world.partitions(2)

    def break_off(*_: object) -> None:
        del vars(one)["took"]
        raise KeyboardInterrupt

    vars(one)["took"] = break_off
    one.ask()
    two.ask()
    await turn()
    with pytest.raises(KeyboardInterrupt):
        world.here.answer(*(FetchResult(handle=handle, size=1) for handle in (1, 2)), body=b"ab")
    await until(lambda: len(world.here.requests) == 2)
    assert [item.partition for item in world.here.last.partitions] == [0, 1]


@pytest.mark.parametrize("error", [Busy(), FetchSessionLost("no"), TimedOut()])
async def test_a_session_that_is_refused_is_begun_again(error: VqError) -> None:
    """With everything that was asked for; nobody need know."""
    world = World()
    one, two, three = world.partitions(3)
    for each in (one, two, three):
        each.ask()
    await turn()
    world.here.answer(FetchResult(handle=3, size=1), body=b"x")
    world.here.fail(error)
    await until(lambda: len(world.here.requests) == 3)
    request = world.here.last
    assert (request.sequence, request.session) == (0, 1)
    assert [(item.partition, item.topic) for item in request.partitions] == [(0, "t"), (1, "t")]
    three.ask()
    await turn()
    assert [item.topic for item in world.here.last.partitions] == ["t"]
    assert one.errors == two.errors == []


async def test_a_session_that_fails_for_good_is_told_to_all_who_wait() -> None:
    world = World()
    one, two, three = world.partitions(3)
    for each in (one, two, three):
        each.ask()
    await turn()
    world.here.answer(FetchResult(handle=3, size=1), body=b"x")
    world.here.fail(InvalidRequest("a bug"))
    assert [type(each) for each in one.errors + two.errors] == [InvalidRequest] * 2
    assert three.errors == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda world: world.here.answer(FetchResult(handle=1, size=5), body=b"four"),
        lambda world: world.here.waiting.pop(0)(Frame(Command.FETCH, 0, 1, 0, b"\xff\xff", b"")),
        lambda world: world.here.answer(
            FetchResult(handle=1, size=1), FetchResult(handle=1, size=1), body=b"ab"
        ),
    ],
)
async def test_an_answer_that_is_none_is_told(damage: Callable[[World], None]) -> None:
    """Bytes of one partition must never be taken for those of another."""
    world = World()
    (one,) = world.partitions(1)
    one.ask()
    await turn()
    damage(world)
    assert [type(error) for error in one.errors] == [ProtocolError]
    assert one.took_bodies in ([], [b"a"])


async def test_after_a_cut_everything_is_asked_for_again() -> None:
    """On the next connection, once there is one."""
    world = World()
    one, two = world.partitions(2)
    one.ask()
    two.ask()
    await turn()
    world.cluster.connections[HERE], cut = None, world.here
    cut.close()
    world.cluster.change()
    lookups = world.cluster.lookups
    await until(lambda: world.cluster.lookups > lookups)
    new = world.cluster.connections[HERE] = Connection()
    world.cluster.change()
    await until(lambda: new.requests)
    assert [item.partition for item in new.last.partitions] == [0, 1]
    assert new.last.sequence == 0
    assert one.errors == two.errors == []


async def test_a_connection_that_takes_no_more_is_tried_again() -> None:
    world = World()
    (one,) = world.partitions(1)
    world.here.refuse = Busy()
    one.ask()
    await turn()
    lookups = world.cluster.lookups
    await until(lambda: world.cluster.lookups > lookups + 2)
    world.here.refuse = None
    await until(lambda: world.here.requests)
    one.leave()
    assert world.fetches._timer is None


async def test_a_broker_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "_GRACE_S", 0.01)
    world = World()
    world.fetches.max_wait_s = 0.01
    (one,) = world.partitions(1)
    one.ask()
    await until(lambda: world.here.closed)


async def test_an_answer_ends_the_watch_for_a_silent_broker() -> None:
    """It would cut a connection that works."""
    world = World()
    timers: Any = NotedTimers(asyncio.get_running_loop())
    world.fetches._loop = timers
    (one,) = world.partitions(1)
    one.ask()
    await turn()
    (session,) = world.fetches._sessions.values()
    assert timers.left(session._no_answer) == 1
    world.here.answer(FetchResult(handle=world.here.last.partitions[0].handle))
    assert timers.left(session._no_answer) == 0


async def test_a_bug_of_the_broker_is_told_and_what_passes_is_not() -> None:
    for error in (Busy(), NotMaster("x"), ConnectionCut(), TimedOut(), UnknownTopic("x")):
        assert passes(error)
    for error in (InternalError("x"), ProtocolError("x"), OffsetOutOfRange("x")):
        assert not passes(error)


# Following the cluster ----------------------------------------------------------------------------
async def test_every_broker_has_its_own_session() -> None:
    world = World()
    one, two = world.partitions(2)
    world.cluster.masters[1] = (THERE, 9)
    one.ask()
    two.ask()
    await turn()
    assert [item.partition for item in world.here.last.partitions] == [0]
    assert [(i.partition, i.epoch) for i in world.there.last.partitions] == [(1, 9)]


async def test_a_partition_that_moves_is_asked_for_at_its_new_place_at_once() -> None:
    """Without waiting for an answer of the old one, which may never have anything to tell."""
    world = World()
    one, two = world.partitions(2)
    one.ask()
    two.ask()
    await turn()
    world.cluster.masters[1] = (THERE, 9)
    world.cluster.routes = object()
    world.cluster.change()
    await turn()
    await turn()
    assert list(world.here.last.removed) == [2]
    assert [(i.partition, i.epoch) for i in world.there.last.partitions] == [(1, 9)]
    requests = len(world.here.requests)
    world.cluster.change()
    await turn()
    assert len(world.here.requests) == requests, "nothing changed"


async def test_a_new_epoch_of_the_same_broker_is_told_to_it() -> None:
    """It refuses, if it does not know of it: then it is no longer the master."""
    world = World()
    (one,) = world.partitions(1)
    one.ask()
    await turn()
    world.cluster.masters[0] = (HERE, 4)
    world.cluster.routes = object()
    world.cluster.change()
    await turn()
    await turn()
    (item,) = world.here.last.partitions
    assert (item.handle, item.epoch, list(world.here.last.removed)) == (2, 4, [1])
    world.here.answer(FetchResult(handle=1, size=1), body=b"x")
    assert one.took_bodies == [], "asked for once, taken once"
    world.here.answer(FetchResult(handle=2, size=1), body=b"y")
    assert one.took_bodies == [b"y"]


async def test_a_partition_without_a_master_is_told_so() -> None:
    world = World()
    (one,) = world.partitions(1)
    world.cluster.masters[0] = NotMaster("none now")
    one.ask()
    assert [type(error) for error in one.errors] == [NotMaster]
    world.cluster.masters.clear()
    one.ask()
    await turn()
    world.cluster.masters[0] = NotMaster("none now")
    world.cluster.routes = object()
    world.cluster.change()
    await turn()
    assert len(one.errors) == 1, "who waits goes on to wait: nobody else is known"


async def test_without_a_connection_it_waits_for_one() -> None:
    world = World()
    (one,) = world.partitions(1)
    connection, world.cluster.connections[HERE] = world.here, None
    one.ask()
    await turn()
    world.cluster.connections[HERE] = connection
    world.cluster.change()
    await turn()
    await turn()
    assert handles(connection.last) == [1]


# Memory -------------------------------------------------------------------------------------------
async def test_every_partition_has_its_share_whatever_the_others_do() -> None:
    """Half is divided; the other half is for those that are known to have more."""
    world = World(buffer_bytes=8 * MIB)
    partitions = world.partitions(16)
    assert world.fetches.space.share_bytes == 4 * MIB // 16
    assert [world.fetches.space.allowance(each) for each in partitions] == [256 * KIB] * 16
    for each in partitions[:4]:
        each.behind = True
        each.buffered = world.fetches.space.allowance(each)
        each.count()
    assert partitions[0].buffered == 4 * MIB + 256 * KIB
    assert sum(each.buffered for each in partitions) == 4 * MIB + 4 * 256 * KIB
    assert [world.fetches.space.allowance(each) for each in partitions] == [0] * 4 + [
        256 * KIB
    ] * 12
    partitions[0].buffered = 100 * KIB
    partitions[0].count()
    assert world.fetches.space.allowance(partitions[1]) == 4 * MIB
    partitions[15].behind = True
    assert world.fetches.space.allowance(partitions[15]) == 4 * MIB + 256 * KIB


@pytest.mark.parametrize("seed", range(10))
async def test_all_partitions_together_keep_to_the_bound(seed: int) -> None:
    """Whoever asks, gets, is slow, leaves; and nobody is ever without its share."""
    rng = random.Random(seed)
    bound = 4 * MIB
    world = World(buffer_bytes=bound)
    partitions = world.partitions(100)
    share = world.fetches.space.share_bytes
    for _ in range(3_000):
        each = rng.choice(partitions)
        each.behind = rng.random() < 0.7
        if each.asked:
            got = rng.randrange(each.asked + 1)
            each.buffered += got
            each.asked = 0
        elif rng.random() < 0.5:
            each.asked = min(MIB, world.fetches.space.allowance(each))
            assert each.asked or each.buffered >= share
        else:
            each.buffered = rng.choice([each.buffered, each.buffered // 2, 0])
        each.count()
        assert sum(each.asked + each.buffered for each in partitions) <= bound
    for each in partitions:
        each.leave()
    assert world.fetches.space._extra_sum == 0


async def test_shares_are_of_all_partitions_that_will_be_there() -> None:
    """What comes one by one must not be asked for with shares that exceed the bound together."""
    world = World(buffer_bytes=8 * MIB)
    one, two = world.partitions(2)
    for each in (one, two):
        each.go_on = lambda each=each: each.ask(world.fetches.space.share_bytes)  # type: ignore[method-assign]
        each.go_on()
    two.behind = True
    await turn()
    world.fetches.expect(16)
    await turn()
    assert world.fetches.space.share_bytes == 4 * MIB // 16
    assert (one.asked, two.asked) == (4 * MIB // 16, 2 * MIB)
    assert world.fetches.space._extra_sum == 2 * MIB - 4 * MIB // 16
    request = world.here.last
    assert list(request.removed) == [1]
    assert [item.max_bytes for item in request.partitions] == [4 * MIB // 16]
    world.here.answer(FetchResult(handle=1, size=3), body=b"old")
    assert one.took_bodies == []
    world.fetches.expect(2)
    assert world.fetches.space.share_bytes == 2 * MIB


def starved(world: World, count: int) -> list[Partition]:
    """Partitions that hold all memory, each with half of a record."""
    partitions = world.partitions(count)
    for each in partitions:
        each.buffered = 2 * world.fetches.space.share_bytes + 1  # more than the bound, by a little
        each.missing = 600 * KIB
        each.count()
    assert [world.fetches.space.allowance(each) for each in partitions] == [0] * count
    return partitions


async def test_one_partition_at_a_time_goes_beyond_the_bound_in_the_order_of_their_need() -> None:
    world = World()
    partitions = starved(world, 3)
    first, second = partitions[:2]
    for each in partitions:
        each.go_on()
    assert [each.asked for each in partitions] == [600 * KIB, 0, 0]
    first.asked, first.buffered = 0, first.buffered + 600 * KIB
    first.count()
    await turn()
    assert second.asked == 0, "its record is whole, and still there"
    first.buffered = first.missing = 0
    first.count()
    await turn()
    assert [each.asked for each in partitions] == [0, 600 * KIB, 0]
    assert world.fetches.space._grower is second


async def test_who_stands_in_line_goes_on_as_soon_as_there_is_room() -> None:
    world = World()
    first, second = starved(world, 2)
    first.go_on()
    second.missing = 50 * KIB
    second.go_on()
    assert second.asked == 0
    second.buffered = 100 * KIB
    world.fetches.space.count(second)
    await turn()
    assert (first.asked, second.asked) == (600 * KIB, 50 * KIB)
    assert (world.fetches.space._grower, world.fetches.space._queue) == (first, {})


async def test_the_permit_comes_back_however_its_holder_ends() -> None:
    """An error, a cut, no connection, the partition's end."""
    world = World()
    first, second, third, fourth, fifth = partitions = starved(world, 5)
    for each in partitions:
        each.go_on()
    await turn()
    world.here.answer(refusal(1, OffsetOutOfRange("no")))
    await turn()
    assert [type(each) for each in first.errors] == [OffsetOutOfRange]
    assert world.fetches.space._grower is second
    world.cluster.connections[HERE], before = None, world.here
    before.close()
    assert [type(each) for each in second.errors] == [ConnectionCut]
    await turn()
    assert world.fetches.space._grower is None, "without a connection nobody keeps it"
    assert [type(each) for each in fifth.errors] == [ConnectionCut]
    world.cluster.connections[HERE] = Connection()
    third.go_on()
    fourth.go_on()
    fifth.go_on()
    fourth.leave()
    third.leave()
    await turn()
    assert (world.fetches.space._grower, world.fetches.space._queue) == (fifth, {})


def test_the_default_leaves_four_thousand_partitions_something() -> None:
    """As the documents say."""
    space: Any = SimpleNamespace(_shared=32 * MIB, _expected=0, _extra=dict.fromkeys(range(4_096)))
    assert BufferSpace.share_bytes.fget(space) == 8 * KIB  # type: ignore[attr-defined]


async def test_a_partition_that_leaves_while_it_asks_again_is_removed_at_the_broker() -> None:
    """Its next request has not been sent, but the session still holds the partition."""
    world = World()
    first, second = world.partitions(2)
    first.ask()
    second.ask()
    await turn()
    first.ask()
    first.leave()
    await turn()
    assert list(world.here.last.removed) == [1]
    assert not world.here.last.partitions
