"""FETCH: an error of one partition is told, and is nothing to the others."""

import asyncio
from collections import Counter

import pytest
from support.broker import message
from support.fetch_requests import add, again, answer, fill, parked, payloads

from vq.broker.logs.partitions import Partitions
from vq.broker.serving.fetch_answer import FetchAnswer
from vq.broker.serving.fetch_turns import STEPS_PER_TURN
from vq.broker.serving.fetched_partition import FetchedPartition
from vq.broker.serving.fetching import ERRORS_PER_STEP, ServedSession
from vq.coordination.topics.topics import delete_topic
from vq.errors import (
    InvalidRequest,
    OffsetNotBoundary,
    OffsetOutOfRange,
    ShuttingDown,
    StaleEpoch,
    UnknownPartition,
    UnknownTopic,
)
from vq.remoting.messages import described_error
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


async def test_an_error_of_one_partition_leaves_the_others_alone(served):
    """Each has its own status; the request is done, and the handle has left the session."""
    await fill(served.client, [0])
    found = await served.client.fetch(
        0,
        add(1, 99, handle=1),
        add(1, epoch=9, handle=2),
        add(9, handle=3),
        add(0, topic="nobody", handle=4),
        add(0, 3, validate=True, handle=5),
        add(0, topic="..", handle=6),
        add(0, tags=[str(n) for n in range(65)], handle=7),
        add(0, topic_id="other", handle=8),
        again(77, 0),
        add(0),
    )
    sequence = 1
    while len(found) < 10:  # what must be looked up comes in its own time
        found |= await served.client.fetch(sequence)
        sequence += 1
    errors = {
        handle: described_error(result) for handle, (result, _) in found.items() if result.status
    }
    kinds = {handle: type(error) for handle, error in errors.items()}
    assert kinds == {
        1: OffsetOutOfRange,
        2: StaleEpoch,
        3: UnknownPartition,
        4: UnknownTopic,
        5: OffsetNotBoundary,
        6: InvalidRequest,
        7: InvalidRequest,
        8: UnknownTopic,
        77: InvalidRequest,
    }
    assert errors[1].details == {"earliest": 0, "latest": 0}
    assert payloads(found, 0) == [b"0" * 10] * 3


@pytest.mark.parametrize("tags", [[], ["red"]])
async def test_offsets_are_checked_a_few_in_a_turn(wide, monkeypatch, tags):
    """A client that begins names thousands; nobody else must wait for all of them."""
    for number in range(60):
        await wide.client.put("w", number, [message(b"x", 1, "red"), message(b"y", 2, "red")])
    turns: list[int] = []
    check, answer_ = FetchedPartition.check, ServedSession._gather

    def noted_answer(self, waiting) -> None:
        turns.append(0)
        answer_(self, waiting)

    def noted_check(self) -> None:
        turns[-1] += 1
        check(self)

    monkeypatch.setattr(ServedSession, "_gather", noted_answer)
    monkeypatch.setattr(FetchedPartition, "check", noted_check)
    end = (await wide.client.offsets("w", 0)).latest
    asked = [add(n, 3, topic="w", tags=tags, validate=True) for n in range(20)]
    asked += [add(n, 88, topic="w", tags=tags, validate=True) for n in range(20, 40)]
    asked += [add(n, end, topic="w", tags=tags, validate=True) for n in range(40, 60)]
    found, sequence = {}, 0
    while len(found) < 40:
        found |= await wide.client.fetch(sequence, *([] if sequence else asked))
        sequence += 1
    assert [found[n][0].status for n in range(20)] == [OffsetNotBoundary.status] * 20
    assert [payloads(found, n) for n in range(20, 40)] == [[b"x", b"y"]] * 20
    assert await wide.client.fetch(sequence, max_wait_ms=50) == {}
    assert parked(wide) == list(range(40, 60))
    assert sum(turns) == 60
    assert max(turns) == STEPS_PER_TURN


async def errors_in_turns(waiting, monkeypatch) -> Counter[int]:
    """Return how many errors are told of in each turn of the loop until a request is answered."""
    turn, told = 0, Counter[int]()
    add_error = FetchAnswer.add_error
    monkeypatch.setattr(
        FetchAnswer,
        "add_error",
        lambda self, *args: (told.update([turn]), add_error(self, *args))[1],
    )
    while not waiting.done():
        await asyncio.sleep(0)
        turn += 1
    return told


async def test_errors_are_told_of_a_few_in_a_turn(served, monkeypatch):
    """Also where all of them are there when the request comes, which names nothing."""
    count = 900  # fewer than are owed before one has to wait
    named = [add(n, topic=f"no-{n}", handle=n) for n in range(count)]
    assert await served.client.fetch(0, *named, max_wait_ms=0) == {}
    (session,) = served.node.parts.fetches.sessions
    await until(lambda: all(each.failure for each in session.partitions.values()))
    waiting = served.client.send_fetch(1)
    told = await errors_in_turns(waiting, monkeypatch)
    found = await answer(waiting)
    assert {result.status for result, _ in found.values()} == {UnknownTopic.status}
    assert len(found) == told.total() == count
    assert max(told.values()) <= (STEPS_PER_TURN + 1) * ERRORS_PER_STEP


async def test_what_ends_many_reads_at_once_is_told_of_a_few_in_a_turn(served, monkeypatch):
    """As when another node leads: nobody looked at them before."""
    count = 900
    waiting = served.client.send_fetch(0, *(add(0, handle=n) for n in range(count)))
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: len(channel.parked) == count)
    channel.close(ShuttingDown("it is over"))
    told = await errors_in_turns(waiting, monkeypatch)
    found = await answer(waiting)
    assert {result.status for result, _ in found.values()} == {ShuttingDown.status}
    assert len(found) == told.total() == count
    assert max(told.values()) <= (STEPS_PER_TURN + 1) * ERRORS_PER_STEP


async def test_a_handle_that_failed_can_be_added_again(served):
    """Under the same number."""
    found = await served.client.fetch(0, add(0, 99))
    assert found[0][0].status == OffsetOutOfRange.status
    assert (await served.client.fetch(1, again(0, 0)))[0][0].status == InvalidRequest.status
    await fill(served.client, [0])
    assert payloads(await served.client.fetch(2, add(0)), 0) == [b"0" * 10] * 3


async def test_a_look_up_that_failed_while_nobody_waited_is_told(served):
    """To the next request that names the handle; the client adds the partition again then."""
    assert await served.client.fetch(0, add(0, topic="late", handle=3), max_wait_ms=0) == {}
    fetches = served.node.parts.fetches
    (session,) = fetches.sessions
    await until(lambda: session.partitions[3].failure)
    await served.cluster.create_topic("late")
    await until(lambda: ("late", 0) in served.node.parts.partitions.channels)
    await served.client.put("late", 0, [message(b"x")])
    found = await answer(served.client.send_fetch(1, again(3, 0)))
    assert found[3][0].status == UnknownTopic.status
    found = await answer(served.client.send_fetch(2, add(0, topic="late", handle=3)))
    assert payloads(found, 3) == [b"x"]


async def test_a_late_look_up_answers_nothing_for_the_next_owner_of_its_handle(served, monkeypatch):
    """The handle was given to another partition while the topic was looked up."""
    await fill(served.client, [0, 1])
    found = []
    monkeypatch.setattr(
        Partitions, "resolve", lambda _self, _where, then, _asker: found.append(then)
    )
    served.client.send_fetch(0, add(0, topic="later"))
    await until(lambda: found)
    end = (await served.client.fetch(1, add(1, handle=0)))[0][0].next_offset
    waiting = served.client.send_fetch(2, again(0, end))
    await until(lambda: parked(served))
    found[0](served.node.parts.partitions.channels["t", 0])
    served.client.send_fetch(3)
    assert await answer(waiting) == {}


async def test_who_waits_for_a_topic_that_is_deleted_is_told(served):
    """The others of the session go on."""
    await served.cluster.create_topic("gone")
    await until(lambda: ("gone", 0) in served.node.parts.partitions.channels)
    waiting = served.client.send_fetch(0, add(0), add(0, topic="gone", handle=5))
    await until(lambda: served.node.parts.partitions.channels["gone", 0].parked)
    async with served.cluster.admin() as admin:
        await delete_topic(admin, "gone")
    found = await answer(waiting)
    assert list(found) == [5]
    assert found[5][0].status == UnknownTopic.status
    await fill(served.client, [0])
    assert list(await served.client.fetch(1)) == [0]


async def test_who_waits_at_a_stop_is_told(served):
    """So that the client looks elsewhere; those it did not wait for any more as well."""
    waiting = served.client.send_fetch(0, add(0), add(1))
    await until(lambda: parked(served) == [0, 1])
    await served.node.stop()
    statuses = {result.status for result, _ in (await answer(waiting)).values()}
    assert statuses == {ShuttingDown.status}


async def test_bytes_that_the_medium_cannot_give_fail_their_partition_only(served):
    """As they fail a GET."""
    await fill(served.client, [0, 1])
    served.disk.fail("view")
    found = await served.client.fetch(0, add(0), add(1))
    assert [bool(result.status) for result, _ in found.values()] == [True, False]
