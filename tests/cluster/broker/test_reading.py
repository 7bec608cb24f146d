"""GET and OFFSETS: ranges, long polls, tag filters, boundaries."""

import asyncio

import pytest
from support.broker import Client, message, noted_timers

from vq.broker.partition.channel import Channel
from vq.broker.partition.ranges import add_older
from vq.broker.serving import fetching
from vq.errors import (
    CorruptData,
    InvalidRequest,
    LogTruncated,
    OffsetNotBoundary,
    OffsetOutOfRange,
    PartitionFailed,
    PartitionQuarantined,
    PermissionRefused,
    StaleEpoch,
)
from vq.remoting.messages import decode_reply
from vq.store.log.log_config import LogState
from vq.store.log.log_reader import LogReader
from vq.store.records.record import decode_records
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


async def _fill(served, count: int = 5, **fields) -> int:
    for n in range(count):
        await served.client.put("t", 0, [message(b"m%d" % n, n)], **fields)
    return (await served.client.offsets("t", 0)).latest


# Ranges -------------------------------------------------------------------------------------------
async def test_reading_goes_on_where_the_last_answer_ended(served):
    """Following next_offset with a small max_bytes gives the very bytes of the log."""
    latest = await _fill(served)
    whole = (await served.client.get("t", 0, 0))[1]
    offset, pieces = 0, []
    while offset < latest:
        header, body = await served.client.get("t", 0, offset, max_bytes=70)
        assert len(body) <= 70
        pieces.append(body)
        offset = header.next_offset
    assert b"".join(pieces) == whole


async def test_an_offset_beyond_the_end_is_out_of_range(served):
    """The error carries the valid range; nothing jumps silently."""
    latest = await _fill(served)
    with pytest.raises(OffsetOutOfRange) as caught:
        await served.client.get("t", 0, latest + 1)
    assert caught.value.details == {"earliest": 0, "latest": latest}


async def test_a_reader_that_knows_a_newer_epoch_is_refused(served):
    """GET and OFFSETS carry the epoch the reader knows."""
    with pytest.raises(StaleEpoch):
        await served.client.get("t", 0, 0, epoch=9)
    with pytest.raises(StaleEpoch):
        await served.client.offsets("t", 0, epoch=9)


async def test_a_topic_that_may_not_be_read_is_refused(served):
    """The topic's permissions count for readers and writers."""
    await served.cluster.create_topic("w", readable=False)
    await served.cluster.create_topic("r", writable=False)
    with pytest.raises(PermissionRefused):
        await served.client.get("w", 0, 0)
    with pytest.raises(PermissionRefused):
        await served.client.put("r", 0, [message(b"x")])


async def test_a_partition_never_written_reads_as_empty(served):
    """No log is opened for it, and it answers like an empty one."""
    header, body = await served.client.get("t", 1, 0)
    assert (body, header.next_offset, header.high_watermark) == (b"", 0, 0)
    assert served.node.parts.partitions.channels["t", 1].log is None


async def test_validate_tells_where_the_next_record_starts(served):
    """An offset inside a record is refused with the next one that can be read from."""
    await _fill(served)
    records = decode_records((await served.client.get("t", 0, 0))[1], 0)
    with pytest.raises(OffsetNotBoundary) as caught:
        await served.client.get("t", 0, records[1].offset + 1, validate=True)
    assert caught.value.details["next"] == records[1].next_offset
    await served.client.get("t", 0, records[1].offset, validate=True)


# Long polls ---------------------------------------------------------------------------------------
async def test_a_waiting_get_is_answered_by_the_next_message(served):
    """A reader at the end gets new data without asking again."""
    latest = await _fill(served)
    waiting = served.client.send_get("t", 0, latest, max_wait_ms=60_000)
    await until(lambda: served.node.parts.partitions.channels["t", 0].parked)
    await served.client.put("t", 0, [message(b"new")])
    frame = await asyncio.wait_for(waiting, WAIT_S)
    assert [r.payload for r in decode_records(frame.body, latest)] == [b"new"]


async def test_a_waiting_get_comes_back_empty_when_its_time_is_up(served):
    """Nothing is lost by that: next_offset is where it began."""
    latest = await _fill(served)
    begin = asyncio.get_running_loop().time()
    header, body = await served.client.get("t", 0, latest, max_wait_ms=30)
    assert asyncio.get_running_loop().time() - begin == pytest.approx(0.03)
    assert (body, header.next_offset) == (b"", latest)


async def test_a_get_waits_for_min_bytes_or_its_time(served):
    """Too little data is held back until there is enough; or given when the time is up."""
    before = await _fill(served)
    await served.client.put("t", 0, [message(b"nil")])
    latest = (await served.client.offsets("t", 0)).latest
    exactly = 2 * (latest - before)
    waiting = served.client.send_get("t", 0, latest, max_wait_ms=20_000, min_bytes=exactly)
    more = served.client.send_get("t", 0, latest, max_wait_ms=20_000, min_bytes=10_000)
    await until(lambda: len(served.node.parts.partitions.channels["t", 0].parked) == 2)
    await served.client.put("t", 0, [message(b"one")])
    assert not waiting.done()
    await served.client.put("t", 0, [message(b"two")])
    frame = await asyncio.wait_for(waiting, WAIT_S)
    assert len(decode_records(frame.body, latest)) == 2
    assert not more.done()
    there = served.client.send_get("t", 0, latest, max_wait_ms=20_000, min_bytes=exactly)
    assert (await asyncio.wait_for(there, WAIT_S)).body == frame.body
    begin = asyncio.get_running_loop().time()
    short = served.client.send_get("t", 0, latest, max_wait_ms=30, min_bytes=10_000)
    frame = await asyncio.wait_for(short, WAIT_S)
    assert asyncio.get_running_loop().time() - begin == pytest.approx(0.03)
    assert len(decode_records(frame.body, latest)) == 2


@pytest.mark.parametrize("tags", [[], ["x"]])
async def test_the_time_of_a_get_ends_with_its_answer(served, monkeypatch, tags):
    """It would be answered a second time."""
    latest = await _fill(served)
    timers = noted_timers(served.node, monkeypatch)
    waiting = served.client.send_get("t", 0, latest, max_wait_ms=20_000, tags=tags)
    await until(lambda: len(timers) == 1)
    await served.client.put("t", 0, [message(b"one", tag="x")])
    assert (await asyncio.wait_for(waiting, WAIT_S)).body
    assert timers[0].cancelled()


async def test_a_closed_connection_leaves_nothing_parked(served):
    """The requests of a client that goes away are forgotten at once."""
    other = await served.connect()
    for partition in (0, 1):
        other.send_get("t", partition, 0, max_wait_ms=20_000)
    channels = served.node.parts.partitions.channels
    await until(lambda: channels["t", 0].parked and channels["t", 1].parked)
    other.close()
    await until(lambda: not channels["t", 0].parked and not channels["t", 1].parked)
    assert served.node.parts.server.reads_waiting == 0


async def test_min_bytes_counts_where_max_bytes_is_left_out(served):
    """A max_bytes of 0 stands for the largest answer, not for an empty one."""
    latest = await _fill(served, 1)
    waiting = served.client.send_get(
        "t", 0, 0, max_bytes=0, min_bytes=latest + 1, max_wait_ms=5_000
    )
    await served.client.status()  # comes behind an answer to the GET, if there is one
    assert not waiting.done()
    await _fill(served, 1)
    assert len((await asyncio.wait_for(waiting, WAIT_S)).body) > latest


# Tag filters --------------------------------------------------------------------------------------
async def test_a_tag_filter_gives_only_matching_records_with_their_offsets(served):
    """The body holds the matching records whole, and each one's offset is told."""
    tags = ["red", "blue", None, "red", "green"]
    await served.client.put("t", 0, [message(b"%d" % n, n, tag) for n, tag in enumerate(tags)])
    everything = decode_records((await served.client.get("t", 0, 0))[1], 0)
    header, body = await served.client.get("t", 0, 0, tags=["red", "green"])
    assert header.filtered
    assert [r.payload for r in decode_records(body, 0)] == [b"0", b"3", b"4"]
    assert list(header.offsets) == [everything[n].offset for n in (0, 3, 4)]
    assert header.next_offset == header.high_watermark


async def test_a_filtered_get_waits_past_records_that_do_not_match(served, monkeypatch):
    """What does not match neither wakes the client nor is looked at twice."""
    looked_from: list[int] = []
    look = fetching.scan

    def scan(channel, position, *more):
        looked_from.append(position)
        return look(channel, position, *more)

    monkeypatch.setattr(fetching, "scan", scan)
    waiting = served.client.send_get("t", 0, 0, tags=["red"], max_wait_ms=60_000)
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: channel.parked)
    await served.client.put("t", 0, [message(b"no", 1, "blue")])
    await until(lambda: len(looked_from) == 1)
    await served.client.status()  # comes behind an answer to the GET, if there is one
    assert channel.parked
    assert not waiting.done()
    end = (await served.client.offsets("t", 0)).latest
    await served.client.put("t", 0, [message(b"yes", 2, "red")])
    frame = await asyncio.wait_for(waiting, WAIT_S)
    assert [r.payload for r in decode_records(frame.body, 0)] == [b"yes"]
    assert looked_from == [0, end]


async def test_a_filtered_get_without_a_match_moves_on_in_time(served):
    """When its time is up it says how far it looked, so that the client need not look again."""
    await served.client.put("t", 0, [message(b"no", 1, "blue")])
    begin = asyncio.get_running_loop().time()
    header, body = await served.client.get("t", 0, 0, tags=["red"], max_wait_ms=20)
    assert asyncio.get_running_loop().time() - begin == pytest.approx(0.02)
    assert body == b""
    assert header.next_offset == header.high_watermark > 0


async def test_a_rare_tag_in_a_long_log_is_found_in_steps(served):
    """More than one scan step lies before the match; other clients are answered meanwhile."""
    many = [message(b"x" * 1000, n, "blue") for n in range(200)]
    for _ in range(4):
        await served.client.put("t", 0, many)
    await served.client.put("t", 0, [message(b"here", 1, "red")])
    header, body = await served.client.get("t", 0, 0, tags=["red"], max_wait_ms=2_000)
    assert [r.payload for r in decode_records(body, 0)] == [b"here"]
    assert header.next_offset == header.high_watermark


async def test_a_filtered_get_in_a_long_log_is_answered_when_its_time_is_up(served):
    """It tells how far it looked; who reads on from there comes to the match."""
    many = [message(b"x" * 1000, n, "blue") for n in range(200)]
    for _ in range(4):
        await served.client.put("t", 0, many)
    await served.client.put("t", 0, [message(b"here", 1, "red")])
    offset, answers = 0, []
    while not answers or not answers[-1]:
        header, body = await served.client.get("t", 0, offset, tags=["red"], max_wait_ms=0)
        assert header.next_offset > offset
        offset = header.next_offset
        answers.append(body)
    assert [r.payload for r in decode_records(answers[-1], 0)] == [b"here"]
    assert len(answers) > 2


async def test_a_filtered_get_passes_a_record_larger_than_a_step(served):
    """A record that does not fit into one scan step is looked at whole."""
    await served.client.put("t", 0, [message(b"x" * 400_000, 1, "blue")])
    await served.client.put("t", 0, [message(b"y" * 400_000, 2, "red")])
    _, body = await served.client.get("t", 0, 0, tags=["red"], max_wait_ms=2_000)
    assert [r.id for r in decode_records(body, 0)] == [2]


@pytest.mark.parametrize("max_bytes", [1, 19, 20, 100])
async def test_a_filtered_get_gives_the_first_match_whole_however_little_is_asked_for(
    served, max_bytes
):
    """Also when that is less than the header of a record."""
    await served.client.put("t", 0, [message(b"no", 1, "blue"), message(b"y" * 200, 2, "red")])
    await served.client.put("t", 0, [message(b"more", 3, "red")])
    header, body = await served.client.get("t", 0, 0, tags=["red"], max_bytes=max_bytes)
    assert [r.id for r in decode_records(body, 0)] == [2]
    header, body = await served.client.get(
        "t", 0, header.next_offset, tags=["red"], max_bytes=max_bytes
    )
    assert [r.id for r in decode_records(body, 0)] == [3]


async def test_a_filtered_get_inside_a_record_is_refused(served):
    """A filter parses records, so it must begin at one."""
    await _fill(served)
    with pytest.raises(OffsetNotBoundary):
        await served.client.get("t", 0, 3, tags=["red"])


async def test_too_many_tags_are_refused(served):
    """A filter is bounded."""
    with pytest.raises(InvalidRequest, match="64"):
        await served.client.get("t", 0, 0, tags=[str(n) for n in range(65)])


# OFFSETS ------------------------------------------------------------------------------------------
async def test_offsets_tell_range_count_and_time(served):
    """Earliest, latest, a count of messages without control records, and a search by time."""
    latest = await _fill(served, 5)
    answer = await served.client.offsets("t", 0, count=True, from_offset=0, to_offset=latest)
    assert (answer.earliest, answer.latest, answer.log_end_offset) == (0, latest, latest)
    assert (answer.count, answer.count_exact) == (5, True)
    assert (await served.client.offsets("t", 0, by_time=True, time_ms=1)).offset == 0
    assert (await served.client.offsets("t", 0, by_time=True, time_ms=1 << 50)).offset == latest


async def test_a_get_answered_while_the_log_failed_says_so(served):
    """Bytes the medium cannot deliver are an error, never an empty answer."""
    await _fill(served)
    served.disk.fail("view")
    with pytest.raises(PartitionFailed):
        await served.client.get("t", 0, 0)
    decode_reply(await served.client.send_get("t", 1, 0))


async def test_a_log_that_could_not_be_read_at_the_start_has_no_range(served):
    """What it holds is unknown: nothing may be said to be out of range, nor the range be 0 to 0."""
    latest = await _fill(served)
    await served.node.stop()
    served.disk.fail("read_bytes", name="checkpoint")
    node = await served.cluster.start()
    await until(lambda: node.parts.partitions.channels.get(("t", 0)))
    client = await Client.connect(served.cluster.network, node.address)
    for call in (
        client.get("t", 0, 0),
        client.get("t", 0, latest),
        client.get("t", 0, latest + 1),
        client.get("t", 0, 0, tags=["x"]),
        client.offsets("t", 0),
    ):
        with pytest.raises(PartitionFailed, match="read_bytes was told to fail"):
            await call
    status = await client.status(with_partitions=True)
    assert status.partitions[0].state == "failed"


@pytest.mark.parametrize("tags", [[], ["a"]])
async def test_a_reader_does_not_wait_at_damage(served, tags):
    """What lies there comes by no waiting; below it reading goes on."""
    latest = await _fill(served)
    channel = served.node.parts.partitions.channels[("t", 0)]
    channel.log.status.stop(LogState.QUARANTINED, "a damaged batch")
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(PartitionQuarantined, match="a damaged batch"):
            await served.client.get("t", 0, latest, max_wait_ms=30_000, tags=tags)
        assert (await served.client.get("t", 0, 0, tags=tags))[0].next_offset == latest


@pytest.mark.parametrize(("at", "byte"), [(24, b"b"), (19, b"\0"), (19, b"\4")])
async def test_a_filter_does_not_pass_a_damaged_record(served, at, byte):
    """Not even one whose tag, as it is now, nobody asks for; what lies before it is told first."""
    await served.client.put("t", 0, [message(b"m", n, "a") for n in (1, 2)])
    log = served.node.parts.partitions.channels[("t", 0)].log
    where = log.end_offset - len(message(b"m", 2, "a"))
    file = served.disk.open(log.reader.block_at(0).path)
    file.pwrite([byte], where + at)  # its tag, or its flag
    file.close()
    header, body = await served.client.get("t", 0, 0, tags=["a"])
    assert (header.next_offset, list(header.offsets)) == (where, [88])
    assert body == message(b"m", 1, "a")
    with pytest.raises(PartitionQuarantined, match=f"the record at offset {where}"):
        await served.client.get("t", 0, where, tags=["a"])


async def test_damage_that_a_check_of_the_offset_meets_is_told_as_damage(served, monkeypatch):
    """Not as a bug of the broker."""
    await _fill(served)
    monkeypatch.setattr(LogReader, "check_boundary", lambda *_: _raise(CorruptData("a bad header")))
    with pytest.raises(PartitionQuarantined, match="t-0: a bad header"):
        await served.client.get("t", 0, 0, validate=True)


def _raise(error: Exception) -> None:
    raise error


# The limit for readers ----------------------------------------------------------------------------
async def test_one_limit_holds_for_all_ways_of_reading(served, monkeypatch):
    """GET, with and without tags, a search by time and a count end at ``read_limit``."""
    for n in range(4):
        await served.client.put("t", 0, [message(b"m%d" % n, n, "red")])
        if n == 1:
            limit = (await served.client.offsets("t", 0)).latest
    monkeypatch.setattr(Channel, "read_limit", property(lambda self: limit))
    for tags in ([], ["red"]):
        header, body = await served.client.get("t", 0, 0, tags=tags)
        assert [r.payload for r in decode_records(body, 0)] == [b"m0", b"m1"]
        assert header.next_offset == limit
        header, body = await served.client.get("t", 0, limit, tags=tags)
        assert (body, header.next_offset) == (b"", limit)
    found = await served.client.offsets("t", 0, by_time=True, time_ms=1 << 50)
    assert found.offset == limit
    found = await served.client.offsets("t", 0, count=True, from_offset=0, to_offset=limit)
    assert (found.count, found.count_exact) == (2, True)


async def test_a_waiting_get_waits_for_the_limit_of_readers(served, monkeypatch):
    """A high watermark that moves beyond it brings nothing that could be answered with."""
    latest = await _fill(served)
    limit = latest
    monkeypatch.setattr(Channel, "read_limit", property(lambda self: limit))
    waiting = served.client.send_get("t", 0, latest, max_wait_ms=60_000)
    channel = served.node.parts.partitions.channels["t", 0]
    await until(lambda: channel.parked)
    await served.client.put("t", 0, [message(b"new")])
    await served.client.status()  # comes behind an answer to the GET, if there is one
    assert channel.parked
    limit = channel.high_watermark
    channel.wake()
    frame = await asyncio.wait_for(waiting, WAIT_S)
    assert [r.payload for r in decode_records(frame.body, latest)] == [b"new"]


# Epochs of what was read --------------------------------------------------------------------------
async def test_an_answer_tells_in_which_epoch_the_last_batch_was_written(served):
    """Also one without bytes, and none of a log without batches."""
    latest = await _fill(served)
    for offset in (0, latest):
        header, _ = await served.client.get("t", 0, offset)
        assert (header.next_offset, header.last_epoch) == (latest, 1)
    assert (await served.client.get("t", 1, 0))[0].last_epoch == 0


async def test_a_reader_that_has_read_what_the_log_has_goes_on(served):
    latest = await _fill(served)
    header, _ = await served.client.get("t", 0, latest, last_epoch=1)
    assert header.next_offset == latest


@pytest.mark.parametrize(("beyond", "last_epoch"), [(0, 2), (50, 1), (50, 2)])
async def test_a_reader_that_was_ahead_of_a_truncation_is_told(served, beyond, last_epoch):
    """It has read a batch that the log has not; what is there, or will be, is something else."""
    latest = await _fill(served)
    with pytest.raises(LogTruncated) as caught:
        await served.client.get("t", 0, latest + beyond, last_epoch=last_epoch)
    assert caught.value.details == {
        "topic": "t",
        "partition": 0,
        "offset": latest + beyond,
        "parts_at": latest,
        "last_epoch": last_epoch,
        "found_epoch": 1,
        "epoch": 1,
    }


@pytest.mark.parametrize("tags", [[], ["red"]])
async def test_a_get_that_waits_reads_the_range_that_was_put_aside(served, tags):
    """The partition came back to this group meanwhile: its next range is another log."""
    await served.client.put("t", 0, [message(b"first", tag="red")])
    channel: Channel = served.node.parts.partitions.channels["t", 0]
    end = channel.high_watermark
    channel.high_watermark = 0  # as a node shows it that has just begun to lead
    waiting = served.client.send_get("t", 0, 0, max_wait_ms=200, tags=tags)
    await until(lambda: channel.parked)
    log = channel.log
    channel.put_aside()
    add_older(channel, 0, log)
    channel.start_offset = channel.high_watermark = end + 1_000
    frame = await asyncio.wait_for(waiting, WAIT_S)
    channel.older.clear()
    channel.attach(log)
    assert b"first" in frame.body, decode_reply(frame)
