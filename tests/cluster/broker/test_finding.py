"""FIND on the wire: what is found, what one request may cost, and what is refused."""

import asyncio
from typing import Any

import pytest
from support.batches import keyed
from support.broker import Client, message

from vq import limits
from vq.broker.serving import finding
from vq.errors import (
    Busy,
    InvalidRequest,
    OffsetOutOfRange,
    PartitionQuarantined,
    PermissionRefused,
    StaleEpoch,
    UnknownTopic,
    VqError,
)
from vq.model import TopicPartition
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.store.log.log_config import LogState
from vq.store.records.format import CONTROL_BYTES
from vq.store.records.record import encode_record
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

TEXT, BYTES, INTEGER = 1, 6, 7


async def find(client: Client, **fields: Any) -> tuple[Any, bytes]:
    request = wire.FindRequest(topic="t", partition=0, **fields)
    return await client.call(Command.FIND, request)


async def fill(client: Client, batches: int = 10) -> list[int]:
    """Put batches of a message with a key and one with a tag; return where the batches begin."""
    return [
        (
            await client.put(
                "t",
                0,
                [
                    encode_record(2 * n + 1, b"x" * 200, None, keyed(f"k{n}")),
                    message(b"y" * 200, 2 * n + 2, "tag"),
                ],
            )
        ).offset
        - CONTROL_BYTES
        for n in range(batches)
    ]


def overwrite(served, offset: int, data: bytes) -> None:
    log = served.node.parts.partitions.channels["t", 0].log
    piece = next(p for p in log.reader.pieces(0, log.end_offset) if p.start <= offset < p.end)
    file = served.cluster.disks["b1"].open(piece.path)
    file.pwrite([data], offset - piece.block_start)
    file.close()


async def test_a_key_is_found_with_its_place_and_time(served):
    """The body is the record as it is stored."""
    starts = await fill(served.client)
    answer, body = await find(served.client, key_kind=TEXT, key=b"k4")
    end = served.node.parts.partitions.channels["t", 0].high_watermark
    assert list(answer.offsets) == [starts[4] + CONTROL_BYTES]
    assert body == encode_record(9, b"x" * 200, None, keyed("k4"))
    assert (answer.offset, answer.next_offset, answer.done) == (0, end, True)
    assert (answer.read_bytes, answer.skipped_bytes) == (end, 0)
    assert answer.first_ms <= answer.append_ms[0] <= answer.last_ms
    assert (answer.high_watermark, answer.log_start_offset, answer.epoch) == (end, 0, 1)


async def test_an_id_and_a_tag_are_found_alone_and_together(served):
    starts = await fill(served.client)
    (at,) = (await find(served.client, message_id=4))[0].offsets
    assert starts[1] < at < starts[2]
    assert len((await find(served.client, tags=["tag", "other"]))[0].offsets) == 10
    assert list((await find(served.client, message_id=4, tags=["tag"]))[0].offsets) == [at]
    assert not (await find(served.client, message_id=3, tags=["tag"]))[0].offsets
    assert len((await find(served.client))[0].offsets) == 20


async def test_a_search_is_of_the_range_that_was_asked_for(served):
    starts = await fill(served.client)
    answer, _ = await find(served.client, offset=starts[2], end_offset=starts[5])
    assert len(answer.offsets) == 6
    assert (answer.offset, answer.next_offset, answer.done) == (starts[2], starts[5], True)
    answer, _ = await find(served.client, offset=starts[5], end_offset=starts[5])
    assert (list(answer.offsets), answer.done) == ([], True)


@pytest.mark.parametrize("bound", [{"max_messages": 3}, {"max_bytes": 700}])
async def test_a_search_goes_on_where_the_answer_says(served, bound):
    await fill(served.client)
    found, offset, done = [], 0, False
    while not done:
        answer, body = await find(served.client, offset=offset, **bound)
        assert len(answer.offsets) <= 3
        assert len(body) <= 700
        found += answer.offsets
        assert answer.next_offset > offset or answer.done
        offset, done = answer.next_offset, answer.done
    assert len(found) == len(set(found)) == 20


async def test_one_request_searches_a_bounded_part(served, monkeypatch):
    """Bytes and time; but it always gets further."""
    await fill(served.client, 200)
    answer, _ = await find(served.client, message_id=399, max_searched_bytes=1)
    assert (list(answer.offsets), answer.done) == ([], False)
    assert 0 < answer.next_offset < 100_000
    monkeypatch.setattr(finding, "ANSWER_S", 0.0)
    steps, offset, done = 0, 0, False
    while not done:
        answer, _ = await find(served.client, message_id=399, offset=offset)
        offset, done, steps = answer.next_offset, answer.done, steps + 1
    assert steps > 1
    assert len(answer.offsets) == 1


async def test_nothing_behind_the_high_watermark_is_found(served):
    """It is not acknowledged yet."""
    await fill(served.client, 1)
    served.flusher.held = True
    waiting = served.client.send_put("t", 0, [message(b"z", 77, "tag")])
    log = served.node.parts.partitions.channels["t", 0].log
    before = log.end_offset
    await until(lambda: log.end_offset > before)
    answer, _ = await find(served.client, tags=["tag"])
    assert len(answer.offsets) == 1
    served.flusher.release()
    decode_reply(await waiting)
    assert len((await find(served.client, tags=["tag"]))[0].offsets) == 2


async def test_a_range_is_not_searched_to_its_end_while_the_end_is_not_committed(served):
    """The master before may have served it; this one will in a moment."""
    await fill(served.client, 1)
    served.flusher.held = True
    waiting = served.client.send_put("t", 0, [message(b"z", 77, "tag")])
    log = served.node.parts.partitions.channels["t", 0].log
    before = log.end_offset
    await until(lambda: log.end_offset > before)
    for offset in (0, before):
        answer, _ = await find(served.client, offset=offset, end_offset=log.end_offset)
        assert (answer.next_offset, answer.done) == (before, False)
    served.flusher.release()
    decode_reply(await waiting)
    answer, _ = await find(served.client, offset=before, end_offset=log.end_offset)
    assert (answer.next_offset, answer.done) == (log.end_offset, True)


async def test_an_empty_partition_is_searched_at_once(served):
    answer, body = await find(served.client, message_id=1)
    assert (answer.next_offset, answer.done, body) == (0, True, b"")


@pytest.mark.parametrize(
    "fields",
    [
        {"message_id": 1 << 63},
        {"key_kind": 0, "key": b"k"},
        {"key_kind": 2, "key": b"k"},
        {"key_kind": TEXT},
        {"key_kind": TEXT, "key": b"\xff"},
        {"key_kind": INTEGER, "key": b"1234567"},
        {"key_kind": INTEGER, "key": b"123456789"},
        {"key_kind": BYTES, "key": b"k" * (limits.PROPERTIES_BYTES_MAX + 1)},
        {"key_kind": 2**32 - 1},
        {"tags": ["t"] * (limits.FILTER_TAGS_MAX + 1)},
        {"tags": [""]},
        {"tags": ["t" * 256]},
        {"tags": ["漢" * 86]},
    ],
)
async def test_what_no_message_can_have_is_refused(served, fields):
    await fill(served.client, 1)
    with pytest.raises(InvalidRequest):
        await find(served.client, **fields)
    assert (await find(served.client, key_kind=BYTES))[0].done  # an empty key of bytes is one


async def test_numbers_of_all_sizes_are_answered(served):
    """No field takes more than there is, and none stops the broker."""
    await fill(served.client)
    numbers = [0, 1, 87, 88, 10_000, 2**31, 2**32 - 1, 2**63, 2**64 - 1]
    for offset in numbers:
        for end in numbers:
            for bound in (0, 1, 2**32 - 1):
                try:
                    answer, body = await find(
                        served.client,
                        offset=offset,
                        end_offset=end,
                        max_messages=bound,
                        max_bytes=bound,
                        max_searched_bytes=numbers[-1] if bound > 1 else bound,
                    )
                except OffsetOutOfRange:
                    assert offset >= 10_000
                else:
                    assert len(answer.offsets) <= limits.FIND_MESSAGES_MAX
                    assert len(body) <= limits.FIND_BYTES_MAX
                    assert answer.done or answer.next_offset > offset


async def test_who_knows_a_newer_epoch_or_another_topic_is_refused(served):
    await fill(served.client, 1)
    with pytest.raises(StaleEpoch):
        await find(served.client, epoch=99)
    with pytest.raises(UnknownTopic):
        await find(served.client, topic_id="another")


async def test_a_topic_that_is_not_readable_is_not_searched(served):
    await fill(served.client, 1)
    channel = served.node.parts.partitions.channels["t", 0]
    settings = type(channel.settings)(partitions=2, readable=False)
    channel.apply(settings, channel.placement, channel.placement_version)
    with pytest.raises(PermissionRefused):
        await find(served.client)


async def test_damage_is_told_and_looked_into(served):
    """The rest of the range is searched; the broker verifies the place by itself."""
    starts = await fill(served.client)
    overwrite(served, starts[4] + 100, b"damage")
    answer, _ = await find(served.client)
    ((start, end, reason),) = [(each.start, each.end, each.reason) for each in answer.damage]
    assert (start, end) == (starts[4], starts[5])
    assert "CRC" in reason
    assert len(answer.offsets) == 18
    assert answer.done
    verifier = served.node.parts.verifier
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: verifier.known_damage(channel, starts[4]))


async def test_the_end_of_a_quarantined_log_is_not_the_end_of_the_search(served):
    """Who goes on there learns why nothing is served."""
    await fill(served.client)
    channel = served.node.parts.partitions.channels["t", 0]
    channel.log.status.state, channel.log.status.reason = LogState.QUARANTINED, "a block is gone"
    channel.apply(channel.settings, channel.placement, channel.placement_version)
    answer, _ = await find(served.client)
    assert (len(answer.offsets), answer.done) == (20, False)
    with pytest.raises(PartitionQuarantined):
        await find(served.client, offset=answer.next_offset)


async def test_a_search_begins_at_the_first_offset_that_is_kept(served):
    """What is not kept any more is no error: the answer tells where the search began."""
    await fill(served.client, 20)
    channel = served.node.parts.partitions.channels["t", 0]
    channel.log.roll()
    end = channel.log.end_offset
    await fill(served.client, 5)
    await served.node.parts.partitions.logs.drop_before(channel, end)
    answer, _ = await find(served.client)
    assert (answer.offset, answer.log_start_offset, len(answer.offsets)) == (end, end, 10)
    answer, _ = await find(served.client, end_offset=end - 100)
    assert (answer.next_offset, answer.done, list(answer.offsets)) == (end - 100, True, [])


async def test_what_retention_took_during_a_search_is_no_damage(served):
    await fill(served.client, 20)
    channel = served.node.parts.partitions.channels["t", 0]
    channel.log.roll()
    end = channel.log.end_offset
    await fill(served.client, 5)
    runner = served.cluster.runners["b1"]
    with runner.held():
        waiting = served.client.send(Command.FIND, wire.FindRequest(topic="t"))
        await until(lambda: runner.waiting > 0)
        freed = channel.log.drop_before(end)
        assert freed == end
        for name in served.disk.listdir(channel.log.directory):
            if name == f"{0:016d}.block":
                served.disk.unlink(channel.log.directory / name)
        channel.take_start(channel.log)
    answer: Any = decode_reply(await waiting)
    assert list(answer.damage) == []
    assert len(answer.offsets) == 10


async def test_few_searches_of_one_connection_go_on_at_a_time(served):
    """More are refused at once, and may be tried again."""
    await fill(served.client)
    runner = served.cluster.runners["b1"]
    with runner.held():
        most = limits.FINDS_PER_CONNECTION_MAX
        request = wire.FindRequest(topic="t")
        waiting = [served.client.send(Command.FIND, request) for _ in range(most)]
        await until(lambda: runner.waiting >= most)
        with pytest.raises(Busy):
            await find(served.client)
        other = await served.connect()
        later = other.send(Command.FIND, request)
        await until(lambda: runner.waiting > most)
    for each in (*waiting, later):
        assert decode_reply(await each).done
    assert not served.node.parts.finder.under_way


async def test_few_searches_of_a_node_go_on_at_a_time(served, monkeypatch):
    await fill(served.client)
    monkeypatch.setattr(limits, "FINDS_MAX", 2)
    runner = served.cluster.runners["b1"]
    clients = [served.client, await served.connect(), await served.connect()]
    with runner.held():
        waiting = [each.send(Command.FIND, wire.FindRequest(topic="t")) for each in clients[:2]]
        await until(lambda: runner.waiting >= 2)
        with pytest.raises(Busy):
            await find(clients[2])
    for each in waiting:
        assert decode_reply(await each).done


async def test_a_search_ends_with_its_connection(served):
    """Nobody waits for it any more."""
    await fill(served.client, 100)
    other = await served.connect()
    runner = served.cluster.runners["b1"]
    with runner.held():
        other.send(Command.FIND, wire.FindRequest(topic="t", message_id=7))
        await until(lambda: runner.waiting > 0)
        other.close()
        await until(lambda: len(served.node.parts.server.sessions) == 1)
    await until(lambda: not served.node.parts.finder.under_way)
    assert len((await find(served.client, message_id=7))[0].offsets) == 1


async def test_a_log_that_is_replaced_during_a_search_is_not_answered_for(served):
    """Half of the answer could be of another log."""
    await fill(served.client)
    channel = served.node.parts.partitions.channels["t", 0]
    runner = served.cluster.runners["b1"]
    with runner.held():
        waiting = served.client.send(Command.FIND, wire.FindRequest(topic="t"))
        await until(lambda: runner.waiting > 0)
        log = channel.log
        channel.detach()
    with pytest.raises(Busy):
        decode_reply(await waiting)
    channel.attach(log)
    assert len((await find(served.client))[0].offsets) == 20


async def test_a_search_that_fails_is_answered(served, monkeypatch, caplog):
    """A bug must not leave its client waiting."""
    await fill(served.client)

    def broken(self):
        raise RuntimeError("a bug")

    monkeypatch.setattr(finding.Search, "step", broken)
    with pytest.raises(VqError, match="a bug"):
        await find(served.client)
    assert "request failed" in caplog.text


async def test_a_node_that_does_not_lead_sends_a_search_on(node_pair):
    """Only the master knows what is committed."""
    copy = node_pair.nodes["n2"]
    client = await Client.connect(node_pair.cluster.network, copy.address)
    with pytest.raises(VqError) as raised:
        await find(client)
    assert raised.value.retriable
    master = await Client.connect(node_pair.cluster.network, node_pair.nodes["n1"].address)
    assert len((await find(master))[0].offsets) == 5


async def test_sends_go_on_during_searches(served):
    await fill(served.client, 100)
    searches = [find(await served.connect(), message_id=5) for _ in range(4)]
    sends = [served.client.put("t", 1, [message(b"x", n)]) for n in range(20)]
    done = await asyncio.gather(*searches, *sends)
    assert [len(answer.offsets) for answer, _ in done[:4]] == [1] * 4
    assert TopicPartition("t", 1) in served.node.parts.partitions.channels
