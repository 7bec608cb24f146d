"""An error reaches the partition it is about, and what can be tried again is tried again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from support.fetch_sessions import HERE, Connection, World, refusal, turn
from support.timers import NotedTimers

from vq.client.consumer.fetch import fetch_sessions
from vq.client.consumer.fetch.fetch_sessions import passes
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
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.wire_pb2 import FetchResult
from vq.testing.waiting import until

pytestmark = pytest.mark.usefixtures("quick_fetches")


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

    def stumble(*_: object, **__: object) -> None:
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

    def break_off(*_: object, **__: object) -> None:
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
    monkeypatch.setattr(fetch_sessions, "GRACE_S", 0.01)
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
