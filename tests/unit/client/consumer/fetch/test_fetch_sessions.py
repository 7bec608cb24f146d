"""Many partitions are read with few requests, of the broker that holds each."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.fetch_sessions import HERE, MIB, THERE, Partition, World, handles, turn

from vq import limits
from vq.client.consumer.fetch.fetch_sessions import Fetches
from vq.errors import NotMaster
from vq.message_filter import Filter
from vq.remoting.wire_pb2 import FetchResult

pytestmark = pytest.mark.usefixtures("quick_fetches")


async def test_what_is_asked_for_in_one_turn_leaves_in_one_request() -> None:
    world = World()
    one, two = (
        Partition(world, 4, position=70, validate=True, wanted=Filter(("a",))),
        Partition(world, 5),
    )
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
    one.took = lambda *_, **__: one.ask()  # type: ignore[method-assign]
    calls: list[Any] = []
    loop = asyncio.get_running_loop()
    session._loop = SimpleNamespace(  # type: ignore[assignment]
        call_soon=lambda *call: calls.append(call), call_later=loop.call_later, time=loop.time
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

    def ask_on(result: FetchResult, body: bytes, **options: bool) -> None:
        took(result, body, **options)
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
    wanted = Filter(tuple(f"{n:0254}" for n in range(64)))
    for number in range(200):
        Partition(world, number, wanted=wanted).ask(1)
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


async def test_a_broker_is_asked_whether_it_has_what_was_read_when_that_may_be_new() -> None:
    """In a new session, in a new epoch, and when the partition asks for it; not each time."""
    world = World()
    (one,) = world.partitions(1)
    one.last_epoch = 2

    async def told() -> int:
        one.ask()
        await turn()
        item = world.here.last.partitions[0]
        while world.here.waiting:
            world.here.answer(FetchResult(handle=item.handle, size=1), body=b"x")
        return item.last_epoch

    assert [await told(), await told()] == [2, 0]
    one.unsure = True
    assert await told() == 2
    one.unsure = False
    world.cluster.masters[0] = (HERE, 4)
    assert [await told(), await told()] == [2, 0]
    one.leave()
