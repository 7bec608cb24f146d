"""FETCH: one request waits for many partitions; a session remembers them."""

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from support.broker import Client, message, noted_timers
from support.fetch_requests import MIB, add, again, answer, fill, parked, payloads

from vq import limits
from vq.broker.base.config import ConnectionLimits
from vq.broker.serving import fetch_answer
from vq.broker.serving.fetch_turns import STEPS_PER_TURN
from vq.broker.serving.fetched_partition import FetchedPartition
from vq.broker.serving.fetching import NAMED_PER_STEP, ServedSession
from vq.errors import (
    Busy,
    FetchSessionLost,
    InvalidRequest,
    LogTruncated,
)
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply, described_error
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


# Waiting and waking -------------------------------------------------------------------------------
async def test_one_request_waits_for_many_partitions(wide):
    """It is answered by those that move, and by them only."""
    waiting = wide.client.send_fetch(0, *(add(n, topic="w") for n in range(200)))
    await until(lambda: len(parked(wide)) == 200)
    assert wide.node.parts.server.reads_waiting == 1
    await wide.client.put("w", 7, [message(b"here")])
    found = await answer(waiting)
    assert list(found) == [7]
    assert payloads(found, 7) == [b"here"]
    result = found[7][0]
    assert (result.offset, result.next_offset) == (0, result.high_watermark)
    assert (result.log_start_offset, result.epoch, result.filtered) == (0, 1, False)


async def test_idle_partitions_cost_no_work(wide, monkeypatch):
    """Neither a request, nor its time-out, nor an answer looks at one that did not move."""
    looks: list[int] = []
    look = FetchedPartition.look
    monkeypatch.setattr(
        FetchedPartition, "look", lambda self: (looks.append(self.handle), look(self))[1]
    )
    await wide.client.fetch(0, *(add(n, topic="w") for n in range(200)), max_wait_ms=0)
    assert len(looks) == 200
    looks.clear()
    for sequence in range(1, 20):
        await wide.client.fetch(sequence, max_wait_ms=1)
    assert looks == []
    waiting = wide.client.send_fetch(20)
    await until(lambda: wide.node.parts.server.reads_waiting == 1)
    await wide.client.put("w", 5, [message(b"x")])
    await answer(waiting)
    assert set(looks) == {5}


async def test_a_partition_is_answered_once_and_rests_until_it_is_asked_for_again(served):
    """The client decides what it has room for."""
    await fill(served.client, [0])
    found = await served.client.fetch(0, add(0), add(1))
    end = found[0][0].next_offset
    await served.client.put("t", 0, [message(b"more")])
    assert await served.client.fetch(1, max_wait_ms=20) == {}
    found = await served.client.fetch(2, again(0, end))
    assert payloads(found, 0) == [b"more"]


async def test_what_moves_in_one_flush_is_told_in_one_answer(wide):
    """The session answers at the end of the turn."""
    waiting = wide.client.send_fetch(0, *(add(n, topic="w") for n in range(10)))
    await until(lambda: len(parked(wide)) == 10)
    wide.flusher.held = True
    first = wide.client.send_put("w", 1, [message(b"x")])
    await until(lambda: wide.flusher.submissions)
    others = [wide.client.send_put("w", n, [message(b"x")]) for n in (4, 2, 9)]
    await until(lambda: wide.node.parts.context.counters.batches_in == 4)
    wide.flusher.release()
    await asyncio.wait_for(asyncio.gather(first, *others), WAIT_S)
    found = await answer(waiting)
    rest = await wide.client.fetch(1) if len(found) == 1 else {}
    assert list(found) + list(rest) == [1, 4, 2, 9]
    assert len(found) == 4 or len(rest) == 3


async def test_a_request_answers_the_one_that_waits_and_takes_its_place(served):
    """So that the client can change what it waits for at any time."""
    first = served.client.send_fetch(0, add(0))
    await until(lambda: parked(served) == [0])
    second = served.client.send_fetch(1, add(1))
    assert await answer(first) == {}
    assert not second.done()
    await fill(served.client, [0])
    assert list(await answer(second)) == [0]
    third = served.client.send_fetch(2, removed=[1])
    await until(lambda: parked(served) == [])
    await fill(served.client, [1])
    assert await served.client.fetch(3, close=True) == {}
    assert await answer(third) == {}


async def test_a_wait_ends_in_time_and_empty(served):
    """Nothing is lost: the partitions stay in the session."""
    begin = asyncio.get_running_loop().time()
    assert await served.client.fetch(0, add(0), max_wait_ms=20) == {}
    assert asyncio.get_running_loop().time() - begin == pytest.approx(0.02)
    waiting = served.client.send_fetch(1)
    await until(lambda: served.node.parts.server.reads_waiting == 1)
    await fill(served.client, [0])
    assert payloads(await answer(waiting), 0) == [b"0" * 10] * 3


async def test_the_time_of_a_request_ends_with_its_answer(served, monkeypatch):
    """It does not cut the wait of the next one short, although one timer serves both."""
    timers = noted_timers(served.node, monkeypatch)
    first = served.client.send_fetch(0, add(0), max_wait_ms=20)
    await until(lambda: len(timers) == 1)
    second = served.client.send_fetch(1, max_wait_ms=20_000)
    assert await answer(first) == {}
    await until(lambda: len(timers) == 2)
    assert not second.done(), "the time of the first one is up"
    await fill(served.client, [0])
    assert list(await answer(second)) == [0]


async def test_a_request_with_less_time_than_the_one_before_has_its_own(served):
    first = served.client.send_fetch(0, add(0), max_wait_ms=20_000)
    second = served.client.send_fetch(1, max_wait_ms=20)
    assert await answer(first) == {}
    assert await answer(second) == {}


async def test_reads_that_wait_do_not_take_the_place_of_puts(cluster):
    """A connection whose reads are at their bound sends as before; one more read is refused."""
    bounds = ConnectionLimits(requests_in_flight_max=4, sweep_interval_s=0.02)
    node = await cluster.start(connections=bounds)
    await cluster.create_topic("t", partitions=2)
    client = await Client.connect(cluster.network, node.address)
    waiting = [client.send_get("t", 1, 0, max_wait_ms=20_000) for _ in range(3)]
    waiting.append(client.send_fetch(0, add(1)))
    await until(lambda: node.parts.server.reads_waiting == 4)
    for _ in range(10):
        await client.put("t", 0, [message(b"x")])
    with pytest.raises(Busy, match="4 reads"):
        client.send_get("t", 0, 0)
    await client.put("t", 1, [message(b"y")])
    await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    assert node.parts.server.reads_waiting == 0


async def test_reads_that_wait_on_a_node_do_not_stop_it(cluster):
    """Beyond the node's bound a read is refused; PUTs of everybody go on."""
    bounds = ConnectionLimits(reads_waiting_max=3, sweep_interval_s=0.02)
    node = await cluster.start(connections=bounds)
    await cluster.create_topic("t", partitions=2)
    clients = [await Client.connect(cluster.network, node.address) for _ in range(4)]
    for client in clients[:3]:
        client.send_get("t", 1, 0, max_wait_ms=20_000)
    await until(lambda: node.parts.server.reads_waiting == 3)
    with pytest.raises(Busy, match="at most reads_waiting_max = 3"):
        await clients[3].get("t", 1, 0)
    for client in clients:
        await client.put("t", 0, [message(b"x")])
    clients[0].close()
    await until(lambda: node.parts.server.reads_waiting == 2)
    await clients[3].get("t", 0, 0)


# Bounded and fair answers -------------------------------------------------------------------------
async def test_every_partition_gets_its_turn(served, cluster):
    """However much one has to give, the others are in the next answer."""
    await cluster.create_topic("f", partitions=5)
    await until(lambda: len(served.node.parts.partitions.channels) == 7)
    for number in range(5):
        for _ in range(4):
            await served.client.put("f", number, [message(b"x" * 1_000, n) for n in range(10)])
    offsets = dict.fromkeys(range(5), 0)
    found = await served.client.fetch(
        0, *(add(n, topic="f", max_bytes=4_000) for n in range(5)), max_bytes=9_000
    )
    turns = list(found)
    for sequence in range(1, 10):
        for handle, (result, body) in found.items():
            assert len(body) <= 4_000
            offsets[handle] = result.next_offset
        asked = [again(handle, offsets[handle], max_bytes=4_000) for handle in found]
        found = await served.client.fetch(sequence, *asked, max_bytes=9_000)
        assert sum(len(body) for _, body in found.values()) <= 9_000
        assert len(found) == 2
        turns += found
    assert turns == [n % 5 for n in range(20)]


async def test_one_that_is_larger_than_an_answer_is_given_in_pieces(served):
    """The first one in line gets the whole answer."""
    await served.client.put("t", 0, [message(b"x" * 30_000)])
    whole = (await served.client.get("t", 0, 0))[1]
    pieces, sequence, asked = [], 0, add(0)
    while sum(map(len, pieces)) < len(whole):
        found = await served.client.fetch(sequence, asked, max_bytes=4_000)
        pieces.append(found[0][1])
        asked = again(0, found[0][0].next_offset)
        sequence += 1
    assert b"".join(pieces) == whole
    assert len(pieces) == -(-len(whole) // 4_000)


async def test_an_answer_waits_for_a_peer_that_does_not_take_the_last_one(cluster):
    """And is given once it does. Requests that came meanwhile are answered behind it."""
    bounds = ConnectionLimits(write_buffer_bytes=10_000, sweep_interval_s=0.02)
    node = await cluster.start(connections=bounds)
    await cluster.create_topic("t", partitions=2)
    client = await Client.connect(cluster.network, node.address)
    await client.put("t", 0, [message(b"x" * 500_000)])
    other = await Client.connect(cluster.network, node.address)
    session = next(iter(node.parts.server.sessions))
    waiting = client.send_fetch(0, add(1))
    await until(lambda: session.reads == 1)
    client.transport.pause_reading()
    first = client.send_get("t", 0, 0)
    await until(lambda: session.congested)
    later = [client.send_fetch(n) for n in (1, 2)]
    before = node.parts.context.counters.bytes_out
    await other.put("t", 1, [message(b"y")])  # now there is something to tell
    assert (session.reads, node.parts.context.counters.bytes_out) == (1, before)
    client.transport.resume_reading()
    await asyncio.wait_for(first, WAIT_S)
    found = await answer(waiting)
    assert list(found) == [1]
    assert await answer(later[0]) == {}
    assert node.parts.context.counters.bytes_out - before == len(found[1][1])


# Sessions -----------------------------------------------------------------------------------------
async def test_a_session_that_is_not_there_says_so(served):
    """The client begins it again; a gap in the sequence ends it."""
    with pytest.raises(FetchSessionLost, match="unknown"):
        await served.client.fetch(1, add(0))
    waiting = served.client.send_fetch(0, add(0))
    with pytest.raises(FetchSessionLost, match="at sequence 0, the request has sequence 2"):
        await served.client.fetch(2)
    assert await answer(waiting) == {}
    assert parked(served) == []
    with pytest.raises(FetchSessionLost):
        await served.client.fetch(1)


async def test_sequence_zero_begins_anew(served):
    """What the broker had under that number is forgotten."""
    first = served.client.send_fetch(0, add(0), add(1))
    await until(lambda: parked(served) == [0, 1])
    second = served.client.send_fetch(0, add(1))
    assert await answer(first) == {}
    await until(lambda: parked(served) == [1])
    second.cancel()


async def test_sessions_of_a_connection_do_not_meet(served):
    """Each has its own partitions, handles and sequence."""
    one = served.client.send_fetch(0, add(0), session=1)
    two = served.client.send_fetch(0, add(1, handle=0), session=2)
    await until(lambda: parked(served) == [0, 1])
    await fill(served.client, [1])
    assert payloads(await answer(two), 0) == [b"1" * 10] * 3
    await served.client.status()  # comes behind an answer to the other one, if there is one
    assert not one.done()
    assert parked(served) == [0]


async def test_nothing_is_left_of_a_connection_that_ends(served):
    """Whatever its sessions were doing."""
    other = await served.connect()
    fetches = served.node.parts.fetches
    other.send_fetch(0, add(0), add(1, tags=["a"]), add(0, topic="unknown", handle=9))
    other.send_fetch(0, add(0), session=2)
    await until(lambda: parked(served) == [0, 1])
    assert fetches.kept_bytes > 5 * 512
    other.close()
    await until(lambda: not fetches.sessions)
    assert parked(served) == []
    assert fetches.kept_bytes == 0
    assert served.node.parts.server.reads_waiting == 0


async def test_what_is_remembered_is_bounded_per_connection_and_per_node(cluster):
    """What does not fit is told per partition; the rest works, and room given back is used.

    Both connections come from one address, which has half of what the node remembers.
    """
    bounds = ConnectionLimits(
        sweep_interval_s=0.02, fetch_state_bytes_max=3_000, fetch_state_bytes_total_max=9_000
    )
    node = await cluster.start(connections=bounds)
    await cluster.create_topic("t", partitions=8)
    await until(lambda: len(node.parts.partitions.channels) == 8)
    one = await Client.connect(cluster.network, node.address)
    two = await Client.connect(cluster.network, node.address)
    found = await one.fetch(0, *(add(n) for n in range(6)))
    assert {handle: result.status for handle, (result, _) in found.items()} == dict.fromkeys(
        [4, 5], Busy.status
    )
    found = await one.fetch(1, add(6), removed=[0, 1], max_wait_ms=20)
    assert found == {}
    found = await one.fetch(2, add(7, tags=["x" * 200] * 3 + ["y" * 255]))
    assert found[7][0].status == Busy.status, "tags count, too"
    found = await two.fetch(0, *(add(n) for n in range(6)))
    assert {result.status for result, _ in found.values()} == {Busy.status}
    assert len(found) == 3
    with pytest.raises(Busy):
        await two.fetch(0, session=2)
    one.close()
    await until(lambda: len(node.parts.server.sessions) == 1)
    await two.fetch(0, session=9, max_wait_ms=1)


async def test_a_request_names_a_bounded_number_of_partitions(served):
    """So that what is wrong with each always fits into the answer."""
    count = limits.FETCH_PARTITIONS_PER_REQUEST_MAX
    with pytest.raises(InvalidRequest, match="1024"):
        await served.client.fetch(0, *(again(n, 0) for n in range(count + 1)))
    found = await served.client.fetch(0, *(again(n, 0) for n in range(count)))
    assert len(found) == count


def looked_at(monkeypatch) -> list[int]:
    """How many partitions that requests name are looked at in each turn; the last is this one."""
    looked = [0]
    ask = ServedSession._ask

    def noted(self, item) -> None:
        looked[-1] += 1
        ask(self, item)

    monkeypatch.setattr(ServedSession, "_ask", noted)
    return looked


async def turns_until(looked: list[int], *waiting: asyncio.Future) -> None:
    while not all(each.done() for each in waiting):
        await asyncio.sleep(0)
        looked.append(0)


async def test_a_request_that_names_many_partitions_leaves_turns_for_others(served, monkeypatch):
    """It is looked at in slices, all before its answer; the next request finishes it at once."""
    looked = looked_at(monkeypatch)
    count = limits.FETCH_PARTITIONS_PER_REQUEST_MAX
    named = [add(n) for n in range(count)]
    await turns_until(looked, served.client.send_fetch(0, *named, max_wait_ms=0))
    assert sum(looked) == count
    assert max(looked) <= STEPS_PER_TURN * NAMED_PER_STEP

    first = served.client.send_fetch(0, *named, session=2)
    await served.client.fetch(1, session=2, max_wait_ms=0)
    assert sum(looked) == 2 * count
    await answer(first)


async def test_requests_that_name_many_partitions_share_what_a_turn_has(served, monkeypatch):
    looked = looked_at(monkeypatch)
    count = limits.FETCH_PARTITIONS_PER_REQUEST_MAX
    named = [add(n % 2, handle=n) for n in range(count)]
    many = [served.client.send_fetch(0, *named, session=n, max_wait_ms=0) for n in range(8)]
    await turns_until(looked, *many)
    assert sum(looked) == len(many) * count
    assert max(looked) <= STEPS_PER_TURN * NAMED_PER_STEP


# What an answer has -------------------------------------------------------------------------------
@pytest.mark.parametrize("tags", [[], ["red"]])
async def test_an_answer_can_be_had_at_once(served, tags):
    """Also where there is nothing to read: the client learns the range, and that it may read."""
    await served.client.put("t", 0, [message(b"no", 1, "blue")])
    end = (await served.client.offsets("t", 0)).latest
    found = await served.client.fetch(
        0, add(0, end, tags=tags, at_once=True), add(1, tags=tags, at_once=True)
    )
    found |= await served.client.fetch(1, max_wait_ms=10)
    assert {n: (r.next_offset, r.high_watermark, b) for n, (r, b) in found.items()} == {
        0: (end, end, b""),
        1: (0, 0, b""),
    }
    assert await served.client.fetch(2, again(0, end), max_wait_ms=10) == {}


async def test_an_answer_counts_its_own_header_only(served, monkeypatch):
    """Answers that were sent make no later answer full."""
    monkeypatch.setattr(fetch_answer, "HEADER_BYTES_MAX", 1_000)
    await fill(served.client, [0])
    await served.client.fetch(0, add(0))
    for sequence in range(1, 10):
        found = await served.client.fetch(sequence, again(0, 0), max_wait_ms=1_000)
        assert payloads(found, 0) == [b"0" * 10] * 3


# Whatever comes -----------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(5))
async def test_a_client_that_follows_the_rules_reads_every_byte_once(served, cluster, seed):
    """Adding, removing, asking again, interrupting: in any order, with small answers."""
    rng = random.Random(seed)
    await cluster.create_topic("r", partitions=6)
    await until(lambda: len(served.node.parts.partitions.channels) == 8)
    logs = {number: bytearray() for number in range(6)}
    asked: set[int] = set()
    inside: set[int] = set()
    sequence = 0
    waiting: list = []
    puts = 0

    def take(found: dict) -> None:
        for handle, (result, body) in found.items():
            if handle not in asked:
                continue  # removed while the answer was on its way
            assert result.status == 0
            assert result.offset == len(logs[handle])
            logs[handle] += body
            assert result.next_offset == len(logs[handle])
            asked.discard(handle)

    async def request(**fields) -> None:
        nonlocal sequence
        changes = []
        for number in rng.sample(range(6), rng.randrange(4)):
            if number not in asked:
                bound = rng.choice([100, 1_000, MIB])
                item = add if number not in inside else again
                fields_of = {"topic": "r"} if number not in inside else {}
                changes.append(item(number, len(logs[number]), max_bytes=bound, **fields_of))
                inside.add(number)
                asked.add(number)
        removed = [n for n in rng.sample(range(6), rng.randrange(2)) if n in inside]
        removed = [n for n in removed if n not in {item.handle for item in changes}]
        # What is removed may be in an answer already: take that first, as a client must.
        if removed:
            while waiting:
                interrupt = served.client.send_fetch(sequence, max_wait_ms=1)
                sequence += 1
                take(await answer(waiting.pop(0)))
                take(await answer(interrupt))
            inside.difference_update(removed)
            asked.difference_update(removed)
        values = {"max_wait_ms": rng.choice([0, 5, 20_000]), "max_bytes": rng.choice([500, MIB])}
        waiting.append(
            served.client.send_fetch(sequence, *changes, removed=removed, **{**values, **fields})
        )
        sequence += 1

    for _ in range(150):
        if puts < 60 and rng.random() < 0.5:
            puts += 1
            size = rng.randrange(1, 2_000)
            await served.client.put("r", rng.randrange(6), [message(b"z" * size)])
        if rng.random() < 0.7 or len(waiting) > 1:
            await request()
        while len(waiting) > 1:
            take(await answer(waiting.pop(0)))
    while waiting:
        await request(max_wait_ms=1)
        take(await answer(waiting.pop(0)))
        if len(waiting) == 1:
            take(await answer(waiting.pop(0)))
    whole = {}
    for number in range(6):
        whole[number] = (await served.client.get("r", number, 0))[1]
    async with asyncio.timeout(WAIT_S):
        while any(len(logs[n]) < len(whole[n]) for n in logs):
            await request(max_wait_ms=1)
            while waiting:
                take(await answer(waiting.pop(0)))
    assert {n: bytes(log) for n, log in logs.items()} == whole


@pytest.mark.parametrize("seed", range(5))
async def test_hostile_requests_harm_nobody(served, seed, caplog):
    """Any numbers in any fields: each request is answered, and nothing is left behind."""
    rng = random.Random(seed)
    await fill(served.client, [0, 1])
    other = await served.connect()
    fetches = served.node.parts.fetches

    def number(most: int) -> int:
        return rng.choice([0, 0, 1, 2, 3, rng.randrange(300), most])

    def partition() -> wire.FetchPartition:
        return wire.FetchPartition(
            handle=rng.choice([0, 1, 2, 2**32 - 1]),
            offset=number(2**64 - 1),
            max_bytes=number(2**32 - 1),
            epoch=rng.choice([0, 0, 0, 1, 2**32 - 1]),
            validate=rng.random() < 0.3,
            topic=rng.choice(["t", "t", "t", "", "", "..", "none", "x" * 300, "ü\0"]),
            partition=rng.choice([0, 0, 1, 2**32 - 1]),
            topic_id=rng.choice(["", "", "", "other"]),
            at_once=rng.random() < 0.2,
            tags=["t"] * rng.choice([0, 0, 0, 1, 64, 65, 1_000]),
        )

    waiting = []
    sequences = [0] * 4
    for _ in range(300):
        session = rng.randrange(4)
        if rng.random() < 0.1:
            sequences[session] = number(2**32 - 1)
        request = wire.FetchRequest(
            session=session,
            sequence=sequences[session],
            max_bytes=number(2**32 - 1),
            max_wait_ms=rng.choice([0, 0, 1, 20_000, 2**32 - 1]),
            partitions=[partition() for _ in range(rng.randrange(8))],
            removed=[rng.choice([0, 1, 2, 9]) for _ in range(rng.randrange(3))],
            close=rng.random() < 0.05,
        )
        sequences[session] = (sequences[session] + 1) % 2**32
        waiting.append(other.send(Command.FETCH, request))
        if rng.random() < 0.2:
            await fill(served.client, [rng.randrange(2)], count=1)
    closing = [wire.FetchRequest(session=session, close=True) for session in range(4)]
    waiting += [other.send(Command.FETCH, request) for request in closing]
    async with asyncio.timeout(WAIT_S):
        for frame in await asyncio.gather(*waiting):
            assert frame.status in (0, InvalidRequest.status, FetchSessionLost.status)
    assert not fetches.sessions
    assert (fetches.kept_bytes, parked(served)) == (0, [])
    assert served.node.parts.server.reads_waiting == 0
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_bug_in_here_ends_the_request_and_the_session(served, monkeypatch):
    """And is told as one: nobody waits for ever."""

    def fail(*_) -> None:
        raise ZeroDivisionError("a bug")

    waiting = served.client.send_fetch(0, add(0))
    await until(lambda: parked(served) == [0])
    monkeypatch.setattr(ServedSession, "_read", fail)
    await fill(served.client, [0])
    frame = await asyncio.wait_for(waiting, WAIT_S)
    with pytest.raises(Exception, match="a bug"):
        decode_reply(frame)
    with pytest.raises(FetchSessionLost):
        await served.client.fetch(1)
    frame = await asyncio.wait_for(served.client.send_fetch(0, add(0)), WAIT_S)
    with pytest.raises(Exception, match="a bug"):
        decode_reply(frame)
    assert parked(served) == []
    monkeypatch.undo()
    assert payloads(await served.client.fetch(0, add(0)), 0) == [b"0" * 10] * 3


@pytest.fixture
def further(monkeypatch) -> list[bool]:
    """Whether each answer to a FETCH that takes several of them was followed by another one."""
    found: list[bool] = []
    send_again = fetch_answer.FetchAnswer.send_again

    def noted(self: fetch_answer.FetchAnswer, *given: Any) -> bool:
        found.append(send_again(self, *given))
        return found[-1]

    monkeypatch.setattr(fetch_answer.FetchAnswer, "send_again", noted)
    return found


@pytest.mark.parametrize("kind", [{"watch_above": 1}, {"at_once": True}], ids=str)
async def test_what_is_told_without_bytes_is_told_once(served, further, kind):
    """Else one request had thousands of answers, all in the same turn of the loop."""
    await fill(served.client, [0])
    end = (await served.client.offsets("t", 0)).latest
    asked = add(0, end, max_bytes=limits.FETCH_BYTES_MAX, **kind)
    found = await served.client.fetch(0, asked, again=True)
    assert (found[0][0].next_offset, found[0][1]) == (end, b"")
    assert further == [False]


async def test_a_request_has_one_answer_while_there_is_more_to_read(served, further):
    """However little of it the client takes at a time."""
    await fill(served.client, [0], count=100)
    asked = add(0, max_bytes=limits.FETCH_BYTES_MAX)
    await served.client.fetch(0, asked, again=True, max_bytes=1)
    assert further == [False]


def test_the_defaults_hold_a_topic_of_the_largest_size() -> None:
    """On one connection, with a tag or two; and many such connections on a node."""
    bounds = ConnectionLimits()
    each = limits.FETCH_STATE_ENTRY_BYTES + 2 * (limits.FETCH_STATE_TAG_BYTES + 30)
    assert limits.PARTITIONS_PER_TOPIC_MAX * each < bounds.fetch_state_bytes_max
    assert replace(bounds).fetch_state_bytes_total_max >= 16 * bounds.fetch_state_bytes_max


# Epochs of what was read --------------------------------------------------------------------------
@pytest.mark.parametrize("tags", [[], ["a"]])
async def test_a_fetch_tells_and_checks_the_epoch_of_what_was_read(served, tags):
    """A reader that was ahead of a truncation gets an error, also at the end and beyond it."""
    client = served.client
    await client.put("t", 0, [message(b"m", 1, tag="a")])
    found = await client.fetch(0, add(0, tags=tags))
    result, _ = found[0]
    assert result.last_epoch == 1
    end = result.next_offset
    found = await client.fetch(1, again(0, end, last_epoch=1, at_once=True))
    assert (found[0][0].status, found[0][0].next_offset) == (0, end)
    for offset, epoch in ((end, 2), (end + 9, 1)):
        item = add(0, offset, last_epoch=epoch, tags=tags)
        found = await client.fetch(0, item)
        error = described_error(found[0][0])
        assert isinstance(error, LogTruncated)
        assert (error.details["offset"], error.details["parts_at"]) == (offset, end)


async def test_a_fetch_that_is_checked_waits_for_bytes_then(served):
    """The check alone is no answer."""
    client = served.client
    await client.put("t", 0, [message(b"m", 1)])
    end = (await client.offsets("t", 0)).latest
    item = add(0, end, last_epoch=1)
    waiting = asyncio.ensure_future(client.fetch(0, item, max_wait_ms=10_000))
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: len(channel.parked) == 1)
    await client.put("t", 0, [message(b"n", 2)])
    assert payloads(await waiting, 0) == [b"n"]
