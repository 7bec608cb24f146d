"""FETCH with tags: what a filter gives, and how far it gets in a turn and in an answer."""

import asyncio
from functools import partial

import pytest
from support.broker import Client, message
from support.fetch_requests import add, again, answer, fill, parked, payloads

from vq import limits
from vq.broker.base.config import ConnectionLimits
from vq.broker.serving import fetching
from vq.broker.serving.fetch_turns import STEPS_PER_TURN
from vq.broker.serving.fetching import SCANS_PER_ANSWER
from vq.broker.serving.reading import FILTER_SCAN_BYTES
from vq.errors import Busy, InvalidRequest
from vq.remoting.messages import decode_error, described_error
from vq.store.records.record import decode_records
from vq.testing.waiting import WAIT_S, until


async def test_a_filter_gives_only_what_matches(served):
    """Beside a partition without one."""
    tags = ["red", "blue", "red"]
    batch = [message(b"%d" % n, n, tag) for n, tag in enumerate(tags)]
    await served.client.put("t", 0, batch)
    await served.client.put("t", 1, batch)
    found = await served.client.fetch(0, add(0, tags=["red", "green"]), add(1))
    assert payloads(found, 0) == [b"0", b"2"]
    assert payloads(found, 1) == [b"0", b"1", b"2"]
    everything = decode_records(found[1][1], 0)
    result = found[0][0]
    assert result.filtered
    assert list(result.offsets) == [everything[0].offset, everything[2].offset]
    assert result.next_offset == result.high_watermark
    waiting = served.client.send_fetch(1, again(0, result.next_offset))
    await until(lambda: parked(served) == [0])
    await served.client.put("t", 0, [message(b"no", 5, "blue")])
    await served.client.status()  # comes behind an answer to the FETCH, if there is one
    await until(lambda: parked(served) == [0])
    assert not waiting.done()
    await served.client.put("t", 0, [message(b"yes", 6, "green")])
    assert payloads(await answer(waiting), 0) == [b"yes"]


async def test_filters_of_reads_that_wait_count_in_the_memory_of_their_connection(cluster):
    """A thousand GETs may wait, each with its tags: they are bounded as those of FETCH are."""
    bounds = ConnectionLimits(sweep_interval_s=0.02, fetch_state_bytes_max=200_000)
    node = await cluster.start(connections=bounds)
    await cluster.create_topic("t")
    await until(lambda: node.parts.partitions.channels)
    client, fetches = await Client.connect(cluster.network, node.address), node.parts.fetches
    tags = [f"{number}".rjust(limits.TAG_BYTES_MAX, "x") for number in range(50)]
    waiting = [client.send_get("t", 0, 0, max_wait_ms=20_000, tags=tags) for _ in range(20)]
    await until(lambda: any(each.done() for each in waiting))
    frames = [each.result() for each in waiting if each.done()]
    assert 0 < len(frames) < len(waiting)
    for frame in frames:
        error = decode_error(frame.status, frame.header, frame.flags)
        assert isinstance(error, Busy)
        assert "200000 bytes are kept for a connection" in str(error)
    kept = len(waiting) - len(frames)
    assert kept * 50 * limits.TAG_BYTES_MAX < fetches.kept_bytes <= 200_000
    await client.put("t", 0, [message(b"yes", 1, tags[0])])
    await asyncio.wait_for(asyncio.gather(*waiting), WAIT_S)
    assert (fetches.kept_bytes, list(fetches.sessions)) == (0, [])


@pytest.mark.parametrize("command", ["get", "fetch"])
async def test_a_tag_that_no_message_can_have_is_refused(served, command):
    """It would cost memory, and nothing would come."""
    tags = ["x" * (limits.TAG_BYTES_MAX + 1)]
    if command == "get":
        frame = await served.client.send_get("t", 0, 0, tags=tags)
        error = decode_error(frame.status, frame.header, frame.flags)
    else:
        result, _ = (await served.client.fetch(0, add(0, tags=tags)))[0]
        error = described_error(result)
    assert isinstance(error, InvalidRequest)
    assert "a tag has 1 to 255 bytes" in str(error)


async def test_a_filter_that_picks_nothing_tells_how_far_it_got(served):
    """When the wait ends; the client goes on there, and commits that."""
    await served.client.put("t", 0, [message(b"no", 1, "blue")])
    found = await served.client.fetch(0, add(0, tags=["red"]), add(1), max_wait_ms=20)
    assert list(found) == [0]
    result, body = found[0]
    assert (result.offset, body) == (0, b"")
    assert result.filtered
    assert result.next_offset == result.high_watermark > 0
    assert await served.client.fetch(1, again(0, result.next_offset), max_wait_ms=20) == {}


async def test_how_far_a_filter_got_is_told_beside_the_data_of_others(served):
    """A busy neighbour does not keep it back for ever."""
    await served.client.put("t", 0, [message(b"no", 1, "blue")])
    found = await served.client.fetch(0, add(0, tags=["red"]), add(1), max_wait_ms=1)
    found.pop(1, None)
    sequence, offset = 1, 0
    async with asyncio.timeout(WAIT_S):
        while 0 not in found:
            await fill(served.client, [1])
            found = await served.client.fetch(sequence, again(1, offset), max_wait_ms=50)
            offset = found[1][0].next_offset if 1 in found else offset
            sequence += 1
    assert found[0][0].next_offset > 0


async def test_rare_tags_in_long_logs_are_found_in_steps(served):
    """No turn of the loop scans more than one step, and no filter waits for the end of another."""
    many = [message(b"x" * 1000, n, "blue") for n in range(200)]
    for number in (0, 1):
        for _ in range(4):
            await served.client.put("t", number, many)
        await served.client.put("t", number, [message(b"here", 1, "red")])
    found = await served.client.fetch(0, add(0, tags=["red"]), add(1, tags=["red"]))
    found |= await served.client.fetch(1) if len(found) < 2 else {}
    assert payloads(found, 0) == payloads(found, 1) == [b"here"]


async def test_requests_that_replace_each_other_do_not_multiply_scans(served, monkeypatch):
    """One step a turn, however many requests of a session come meanwhile."""
    turns = [0]

    def endless(part, position, tags, max_bytes):
        turns[-1] += 1
        return [], [], position

    monkeypatch.setattr(fetching, "scan", endless)
    await fill(served.client, [0])
    waiting = [served.client.send_fetch(0, add(0, tags=["rare"]))]
    await until(lambda: turns[-1])
    waiting += [served.client.send_fetch(sequence) for sequence in range(1, 101)]
    await asyncio.gather(*waiting[:-1])
    for _ in range(5):
        turns.append(0)
        await asyncio.sleep(0)
    assert max(turns[1:]) <= 2
    assert not waiting[-1].done()


async def test_reads_with_filters_share_the_steps_of_a_turn(served, monkeypatch):
    """Hundreds that look through a log at once hold up no other client for long."""
    turns, scan = [0], fetching.scan

    def noted(*given):
        turns[-1] += 1
        return scan(*given)

    monkeypatch.setattr(fetching, "scan", noted)
    loop = asyncio.get_running_loop()

    def count_turns():
        turns.append(0)
        if not ended:
            loop.call_soon(count_turns)

    ended: list[bool] = []
    await served.client.put("t", 0, [message(b"x" * 1000, n, "blue") for n in range(400)])
    await served.client.put("t", 0, [message(b"here", 1, "red")])
    count_turns()
    get = partial(served.client.get, "t", 0, 0, tags=["red"])
    reads = [get(max_wait_ms=wait_ms) for wait_ms in [0, 9000] * 50]
    found = await asyncio.gather(*reads)
    ended.append(True)
    assert max(turns) == STEPS_PER_TURN
    assert all(header.next_offset >= FILTER_SCAN_BYTES for header, _ in found[::2])
    assert [len(decode_records(body, 0)) for _, body in found[1::2]] == [1] * 50


async def test_filters_with_much_to_give_share_an_answer(served, cluster):
    """An answer gathers several steps, but not without end."""
    await cluster.create_topic("f", partitions=10)
    await until(lambda: len(served.node.parts.partitions.channels) == 12)
    for number in range(10):
        batch = [message(b"x" * 1_000, n, "red") for n in range(1_000)]
        await served.client.put("f", number, batch)
    found = await served.client.fetch(0, *(add(n, topic="f", tags=["red"]) for n in range(10)))
    assert len(found) == SCANS_PER_ANSWER
    found |= await served.client.fetch(1)
    assert sorted(found) == list(range(10))


async def test_a_filter_keeps_to_the_bytes_that_were_asked_for(served):
    """One record is always given whole."""
    batch = [message(b"x" * 1_000, n, "red") for n in range(20)]
    await served.client.put("t", 0, batch)
    await served.client.put("t", 1, [message(b"x" * 9_000, 1, "red")])
    found = await served.client.fetch(
        0, *(add(n, tags=["red"], max_bytes=5_000) for n in range(2)), max_bytes=9_000
    )
    found |= await served.client.fetch(1) if len(found) < 2 else {}
    assert 3_000 < len(found[0][1]) <= 5_000
    assert len(payloads(found, 0)) == len(found[0][0].offsets)
    assert found[0][0].next_offset < found[0][0].high_watermark
    assert payloads(found, 1) == [b"x" * 9_000]
    header, body = await served.client.get("t", 0, 0, tags=["red"], max_bytes=5_000)
    assert (body, list(header.offsets)) == (found[0][1], list(found[0][0].offsets))
