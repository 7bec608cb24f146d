"""What becomes of a PUT: checks, append, group commit, acknowledgement, and failures of each."""

import asyncio
import errno
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.broker import message

from vq.broker.connections.broker_session import BrokerSession
from vq.broker.partition.channel import Channel
from vq.coordination.topics.topics import alter_settings, change_settings, describe_topic
from vq.errors import (
    BadChecksum,
    DiskFull,
    InvalidRequest,
    OutcomeUnknown,
    PartitionFailed,
    SequenceGap,
    SequenceStale,
    SequenceTaken,
    StaleEpoch,
    StorageFailed,
    TopicClosed,
    UnknownPartition,
    UnknownProducer,
    UnknownTopic,
    VqError,
)
from vq.model import FlushMode, TopicPartition
from vq.remoting.messages import decode_reply
from vq.store.log.log import Log
from vq.store.records import producers
from vq.store.records.format import CONTROL_BYTES
from vq.store.records.record import decode_records
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time


async def outcome(put: "asyncio.Future[Any]") -> type[Exception] | None:
    """Return the kind of error a PUT ended with, None if it was acknowledged."""
    try:
        decode_reply(await asyncio.wait_for(put, WAIT_S))
    except VqError as error:
        return type(error)
    return None


def channel_of(served: Any, partition: int) -> Channel:
    """Return the node's channel of a partition of topic ``t``."""
    return served.node.parts.partitions.channels[TopicPartition("t", partition)]


async def test_a_batch_is_stored_behind_its_control_record(served):
    """The offset answered is that of the first record, and reading from 0 gives it back."""
    reply = await served.client.put("t", 0, [message(b"one", 1), message(b"two", 2)])
    assert reply.offset == CONTROL_BYTES
    assert reply.epoch == 1
    assert not reply.duplicate
    header, body = await served.client.get("t", 0, 0)
    assert [r.payload for r in decode_records(body, 0)] == [b"one", b"two"]
    assert header.next_offset == header.high_watermark == len(body)


async def test_nothing_is_acknowledged_or_shown_before_it_is_durable(served):
    """While the flush is held back, the sender waits and readers see nothing."""
    await served.client.put("t", 0, [message(b"first")])
    served.flusher.held = True
    waiting = served.client.send_put("t", 0, [message(b"second")])
    await until(lambda: served.flusher.submissions == 2)
    offsets = await served.client.offsets("t", 0)
    assert not waiting.done()
    assert offsets.latest < offsets.log_end_offset
    _, body = await served.client.get("t", 0, offsets.latest)
    assert body == b""
    served.flusher.release()
    decode_reply(await waiting)
    assert (await served.client.offsets("t", 0)).latest == offsets.log_end_offset


async def test_a_lone_put_is_flushed_at_once(served, monkeypatch):
    """The flush has begun when its data was handled, not at the end of the turn."""
    await served.client.put("t", 0, [message(b"first")])
    flushes: list[int] = []  # behind each piece of data
    received = BrokerSession.data_received

    def note(session: BrokerSession, data: bytes) -> None:
        begun = served.flusher.submissions
        received(session, data)
        flushes.append(served.flusher.submissions - begun)

    monkeypatch.setattr(BrokerSession, "data_received", note)
    await served.client.put("t", 0, [message(b"alone")])
    assert flushes == [1]


async def test_what_arrives_during_a_flush_shares_the_next_one(served):
    """Twenty PUTs of two connections behind one flush need one more flush, not twenty."""
    for partition in (0, 1):  # both logs are open: what waits is appended
        await served.client.put("t", partition, [message(b"first")])
    other = await served.connect()
    served.flusher.held = True
    before = served.flusher.submissions
    first = served.client.send_put("t", 0, [message(b"x")])
    await until(lambda: served.flusher.submissions == before + 1)
    waiting = [
        client.send_put("t", partition, [message(b"x")])
        for client in (served.client, other)
        for partition in (0, 1)
        for _ in range(5)
    ]
    await until(lambda: served.node.parts.server.requests_waiting == 21)
    served.flusher.release()
    await asyncio.wait_for(asyncio.gather(first, *waiting), WAIT_S)
    assert served.flusher.submissions == before + 2


async def test_async_topics_are_acknowledged_before_the_flush(served):
    """With flush async the answer does not wait, and readers see it at once."""
    await served.cluster.create_topic("a", flush="async", flush_interval_messages=3)
    served.flusher.held = True
    before = served.flusher.submissions
    for n in range(2):
        await served.client.put("a", 0, [message(b"x", n)])
    assert (await served.client.offsets("a", 0)).latest > 0
    assert served.flusher.submissions == before
    await served.client.put("a", 0, [message(b"x", 3)])
    await until(lambda: served.flusher.submissions == before + 1)


async def test_async_topics_are_flushed_after_a_time(served, monkeypatch):
    """A lone message of an async topic is flushed when its interval is over, each time again."""
    timers: list[tuple[float, Any]] = []

    at_once = served.node.parts.context.call_later

    def call_later(delay_s: float, then: Any) -> Any:
        if not delay_s:  # the next turn of the loop
            return at_once(delay_s, then)
        timers.append((delay_s, then))
        return SimpleNamespace(cancel=lambda: None)

    await served.cluster.create_topic("a", flush="async", flush_interval_ms=20)
    monkeypatch.setattr(served.node.parts.context, "call_later", call_later)
    for _ in range(2):
        before = served.flusher.submissions
        await served.client.put("a", 0, [message(b"x")])
        await served.client.put("a", 0, [message(b"y")])
        assert served.flusher.submissions == before
        ((delay_s, over),) = timers
        assert delay_s == 0.02
        timers.clear()
        over()
        await until(lambda: served.flusher.submissions > before)  # noqa: B023  awaited right here


# Resends ------------------------------------------------------------------------------------------
STAMP = {"producer_id": 77, "producer_epoch": 1}


async def test_a_resend_gets_the_first_result(served):
    """The second copy of a batch is not stored; its answer has the first one's offset."""
    first = await served.client.put("t", 0, [message(b"x")], sequence=0, **STAMP)
    end = (await served.client.offsets("t", 0)).log_end_offset
    again = await served.client.put("t", 0, [message(b"x")], sequence=0, **STAMP)
    assert (again.offset, again.duplicate) == (first.offset, True)
    assert (await served.client.offsets("t", 0)).log_end_offset == end


async def close(served: Any) -> None:
    async with served.cluster.admin() as coordinator:
        await alter_settings(coordinator, "t", lambda now: replace(now, writable=False))
    await until(lambda: not channel_of(served, 0).takes_puts)


async def fill(served: Any) -> None:
    served.disk.free_space = lambda path: (5, 100)
    served.node.parts.disks.look_now()


@pytest.mark.parametrize(("refuse", "error"), [(close, TopicClosed), (fill, DiskFull)])
async def test_a_resend_gets_the_first_result_where_new_batches_are_refused(served, refuse, error):
    """The answer was lost, then the topic was closed, or the disk is full: it is stored."""
    stamp = {"producer_id": 7, "producer_epoch": 0}
    first = await served.client.put("t", 0, [message(b"a")], **stamp, sequence=0)
    await refuse(served)
    again = await served.client.put("t", 0, [message(b"a")], **stamp, sequence=0, resend=True)
    assert (again.offset, again.duplicate) == (first.offset, True)
    others = ({**stamp, "sequence": 0}, {**stamp, "sequence": 1}, {**stamp, "sequence": 2}, {})
    for fields in others:  # also one that has another content and the same stamp
        with pytest.raises(error):
            await served.client.put("t", 0, [message(b"b")], **fields)
    with pytest.raises(error):
        await served.client.put("t", 1, [message(b"a")], **stamp, sequence=0, resend=True)


async def test_a_resend_to_a_closed_topic_waits_until_the_first_copy_is_durable(served):
    stamp = {"producer_id": 7, "producer_epoch": 0, "sequence": 0}
    await served.client.put("t", 0, [message(b"x")])
    served.flusher.held = True
    first = served.client.send_put("t", 0, [message(b"a")], **stamp)
    await until(lambda: channel_of(served, 0).acks.waiting)
    await close(served)
    again = served.client.send_put("t", 0, [message(b"a")], **stamp, resend=True)
    await until(lambda: len(channel_of(served, 0).acks.waiting) == 2)
    served.flusher.release()
    assert [await outcome(each) for each in (first, again)] == [None, None]


async def test_a_resend_is_not_acknowledged_before_the_first_copy_is_durable(served):
    """A resend that overtakes the flush of its first copy waits for that flush."""
    await served.client.put("t", 0, [message(b"x")], sequence=0, **STAMP)
    served.flusher.held = True
    first = served.client.send_put("t", 0, [message(b"y")], sequence=1, **STAMP)
    other = await served.connect()
    again = other.send_put("t", 0, [message(b"y")], sequence=1, **STAMP)
    await until(lambda: served.node.parts.context.counters.duplicates == 1)
    await other.offsets("t", 0)
    assert not first.done()
    assert not again.done()
    served.flusher.release()
    one, two = decode_reply(await first), decode_reply(await again)
    assert one.offset == two.offset
    assert (one.duplicate, two.duplicate) == (False, True)


async def test_a_gap_in_the_sequence_is_refused(served):
    """A batch whose predecessor is missing is not stored."""
    await served.client.put("t", 0, [message(b"x")], sequence=0, **STAMP)
    with pytest.raises(SequenceGap):
        await served.client.put("t", 0, [message(b"x")], sequence=2, **STAMP)


async def test_an_unknown_producer_must_begin_with_sequence_0(served):
    """A broker that does not remember the producer cannot vouch for its earlier batches."""
    with pytest.raises(UnknownProducer):
        await served.client.put("t", 0, [message(b"x")], sequence=5, **STAMP)


async def test_a_first_batch_is_not_stored_again_once_its_producer_is_forgotten(
    served, monkeypatch
):
    """Sent again after more producers than are remembered: its outcome is unknown, not doubled."""
    monkeypatch.setattr(producers, "PRODUCERS_PER_PARTITION_MAX", 8)

    async def put(producer: int, **fields):
        return await client.put("t", 0, [message(b"x")], producer_id=producer, **fields)

    client = served.client
    for producer in range(1, 10):
        await put(producer)
    end = (await served.client.offsets("t", 0)).log_end_offset
    for restart in (False, True):
        if restart:
            await served.node.stop()
            served.node = await served.cluster.start()
            client = await served.connect()
        with pytest.raises(SequenceStale):
            await put(1, resend=True)
        assert (await client.offsets("t", 0)).log_end_offset == end
        assert (await put(9, resend=True)).duplicate
    assert not (await put(100)).duplicate


async def test_another_batch_with_the_next_sequence_is_no_resend(served):
    """Whoever may read learns a producer's stamp, and sends its next one: nothing is swallowed."""
    client, foreign = served.client, message(b"foreign", 8)
    await client.put("t", 0, [message(b"mine", 1)], sequence=0, **STAMP)
    taken = await client.put("t", 0, [foreign], sequence=1, **STAMP)
    for restart in (False, True):
        if restart:
            await served.node.stop()
            served.node = await served.cluster.start()
            client = await served.connect()
        end = (await client.offsets("t", 0)).log_end_offset
        for mine in ([message(b"mine", 2)], [foreign, foreign]):
            for resend in (False, True):
                with pytest.raises(SequenceTaken, match="another batch has sequence 1"):
                    await client.put("t", 0, mine, sequence=1, resend=resend, **STAMP)
        again = await client.put("t", 0, [foreign], sequence=1, **STAMP)
        assert (again.offset, again.duplicate) == (taken.offset, True)
        assert (await client.offsets("t", 0)).log_end_offset == end


async def test_an_empty_batch_of_somebody_else_hides_no_first_batch(served):
    """It begins an epoch of which the producer does not know."""
    await served.client.put("t", 0, [], sequence=0, **STAMP)
    assert (await served.client.put("t", 0, [], sequence=0, **STAMP)).duplicate
    with pytest.raises(SequenceTaken):
        await served.client.put("t", 0, [message(b"mine")], sequence=0, **STAMP)


async def test_resends_are_recognised_after_a_restart(served):
    """The producer table is rebuilt from the log."""
    first = await served.client.put("t", 0, [message(b"x")], sequence=0, **STAMP)
    await served.node.stop()
    served.node = await served.cluster.start()
    client = await served.connect()
    again = await client.put("t", 0, [message(b"x")], sequence=0, **STAMP)
    assert (again.offset, again.duplicate) == (first.offset, True)


# Refusals -----------------------------------------------------------------------------------------
async def test_a_damaged_body_is_refused(served):
    """A body whose CRC is not that of the header is not stored."""
    with pytest.raises(BadChecksum):
        await served.client.put("t", 0, [message(b"x")], crc=1)
    assert (await served.client.offsets("t", 0)).log_end_offset == 0


async def test_a_client_that_knows_a_newer_master_is_refused(served):
    """A broker that lags behind the client's epoch must not act."""
    with pytest.raises(StaleEpoch) as caught:
        await served.client.put("t", 0, [message(b"x")], epoch=2)
    assert caught.value.details["epoch"] == 1


async def test_unknown_topics_and_partitions_are_told_apart(served):
    """Each has its own error, for PUT, GET and OFFSETS."""
    with pytest.raises(UnknownTopic, match="vq topic create nowhere"):
        await served.client.put("nowhere", 0, [message(b"x")])
    with pytest.raises(UnknownTopic):
        await served.client.get("nowhere", 0, 0)
    with pytest.raises(UnknownPartition, match="0 to 1, not 2"):
        await served.client.offsets("t", 2)


@pytest.mark.parametrize("name", ["../up", "a/b", "", "x" * 300])
async def test_names_that_no_topic_can_have_are_refused_here(served, name):
    """They are neither looked up in ZooKeeper nor used as a path."""
    with pytest.raises(InvalidRequest, match="is not a valid name"):
        await served.client.put(name, 0, [message(b"x")])


async def test_invented_names_leave_no_watch_behind(served):
    """A client that asks for a thousand topics costs nothing that stays."""
    coordinator = served.cluster.coordinators["b1"]
    before = {len(table) for table in (coordinator.watches.data, coordinator.watches.children)}
    for n in range(20):
        with pytest.raises(UnknownTopic):
            await served.client.put(f"invented-{n}", 0, [message(b"x")])
    after = {len(table) for table in (coordinator.watches.data, coordinator.watches.children)}
    assert after == before


async def test_a_producer_epoch_that_does_not_fit_is_refused(served):
    """The log keeps two bytes of it."""
    with pytest.raises(InvalidRequest, match="65535"):
        await served.client.put(
            "t", 0, [message(b"x")], producer_id=1, producer_epoch=65_536, sequence=0
        )


async def test_readers_stop_at_what_is_durable_also_while_the_next_flush_runs(served):
    """After every settle: high watermark <= synced offset, whatever was appended meanwhile."""
    await served.client.put("t", 0, [message(b"first")])
    channel = channel_of(served, 0)
    log = channel.log
    assert log is not None
    served.flusher.held = True
    before = served.flusher.submissions
    put = served.client.send_put("t", 0, [message(b"0")])
    await until(lambda: served.flusher.submissions == before + 1)
    for number in range(1, 4):
        flushing = log.end_offset
        following = served.client.send_put("t", 0, [message(b"%d" % number)])
        await until(lambda: len(channel.acks.waiting) == 2)
        served.flusher.release_one()
        assert await outcome(put) is None
        assert served.flusher.submissions == before + number + 1
        assert channel.flushing, "the next flush is running"
        assert channel.high_watermark == log.synced_offset == flushing < log.end_offset
        header, body = await served.client.get("t", 0, 0)
        assert header.high_watermark == len(body) == flushing
        assert not following.done()
        put = following
    served.flusher.release()
    assert await outcome(put) is None
    assert channel.high_watermark == log.synced_offset == log.end_offset


async def test_changed_settings_show_nothing_that_is_not_durable(served):
    """Readers of a sync topic still stop at the flushed end of the log."""
    await served.client.put("t", 0, [message(b"first")])
    channel = channel_of(served, 0)
    served.flusher.held = True
    put = served.client.send_put("t", 0, [message(b"second")])
    await until(lambda: channel.acks.waiting)
    async with served.cluster.admin() as admin:
        view = await describe_topic(admin, "t")
        await change_settings(admin, "t", replace(view.settings, max_message_bytes=1_000))
    await until(lambda: channel.settings.max_message_bytes == 1_000)
    assert channel.high_watermark == channel.log.synced_offset < channel.log.end_offset
    served.flusher.release()
    assert await outcome(put) is None


# I/O errors ---------------------------------------------------------------------------------------
async def test_after_a_failed_flush_waiting_sends_are_unknown_and_later_ones_refused(served):
    """The first I/O error ends the partition: no second fsync, no acknowledgement, no silence."""
    await served.client.put("t", 0, [message(b"kept")])
    kept = (await served.client.offsets("t", 0)).latest
    served.disk.fail("datasync")
    with pytest.raises(StorageFailed) as caught:
        await served.client.put("t", 0, [message(b"lost?")])
    assert isinstance(caught.value, OutcomeUnknown)
    with pytest.raises(PartitionFailed):
        await served.client.put("t", 0, [message(b"later")])
    header, body = await served.client.get("t", 0, 0)
    assert header.high_watermark == kept
    assert [r.payload for r in decode_records(body, 0)] == [b"kept"]


async def test_changed_settings_do_not_show_what_a_failed_flush_left(served):
    """Whether those bytes are stored only the next start can tell; a reader must not see them."""
    await served.client.put("t", 0, [message(b"kept")])
    kept = (await served.client.offsets("t", 0)).latest
    served.disk.fail("datasync")
    with pytest.raises(StorageFailed):
        await served.client.put("t", 0, [message(b"lost?")])
    async with served.cluster.admin() as admin:
        view = await describe_topic(admin, "t")
        await change_settings(admin, "t", replace(view.settings, flush=FlushMode.ASYNC))
    await until(lambda: not channel_of(served, 0).sync)
    assert (await served.client.offsets("t", 0)).latest == kept


async def test_a_failed_flush_gives_the_bytes_of_its_puts_back(served):
    """To the session and to the node: otherwise neither reads on after enough failures."""
    (session,) = served.node.parts.server.sessions
    server = served.node.parts.server
    served.flusher.held = True
    puts = [served.client.send_put("t", 0, [message(bytes(1_000))]) for _ in range(5)]
    puts.append(served.client.send_put("t", 1, [message(bytes(1_000))]))
    await until(lambda: session.put_bytes == server.put_bytes > 6_000)
    served.disk.fail("datasync", name=f"/0/{0:016d}.block")
    served.flusher.release()
    assert [await outcome(put) for put in puts] == [StorageFailed] * 5 + [None]
    assert session.put_bytes == server.put_bytes == 0


@pytest.mark.parametrize("where", ["begin_sync", "finish_sync"])
async def test_a_bug_while_one_log_is_flushed_fails_that_partition_only(served, where, monkeypatch):
    """Neither an I/O error nor one of ours: the others go on, nobody waits for ever."""
    await served.client.put("t", 0, [message(b"x")])
    await served.client.put("t", 1, [message(b"x")])
    struck = channel_of(served, 0).log

    def broken(log: Log, *args: Any) -> Any:
        if log is struck:
            raise RuntimeError("a bug")
        return whole(log, *args)

    whole = getattr(Log, where)
    monkeypatch.setattr(Log, where, broken)
    for expected in (StorageFailed, PartitionFailed):
        puts = [served.client.send_put("t", partition, [message(b"y")]) for partition in (0, 1)]
        assert [await outcome(put) for put in puts] == [expected, None]
    status = await served.client.status(with_partitions=True)
    assert [p.state for p in status.partitions] == ["failed", "rw"]
    assert served.node.parts.server.put_bytes == 0


async def test_a_connection_that_cannot_be_answered_stops_no_other(served, monkeypatch):
    """Its neighbours in the same flush, and in the same partition, get their answers."""
    other = await served.connect()
    (first, _) = served.node.parts.server.sessions
    acks = [channel_of(served, partition).acks.waiting for partition in (0, 1)]
    served.flusher.held = True
    before = served.flusher.submissions
    puts = [other.send_put("t", 1, [message(b"x")])]  # the flush of the others is the next one
    await until(lambda: served.flusher.submissions == before + 1)
    doomed = served.client.send_put("t", 0, [message(b"x")])
    await until(lambda: len(acks[0]) == 1)
    puts += [other.send_put("t", partition, [message(b"x")]) for partition in (0, 1)]
    await until(lambda: [len(each) for each in acks] == [2, 2])

    def broken(session: object, *args: Any) -> Any:
        if session is first:
            raise RuntimeError("a bug")
        return whole(session, *args)

    whole = type(first).reply
    monkeypatch.setattr(type(first), "reply", broken)
    served.flusher.release()
    assert [await outcome(put) for put in puts] == [None] * 3
    assert not doomed.done()
    monkeypatch.undo()
    await served.client.put("t", 0, [message(b"y")])


async def test_a_failed_partition_leaves_the_others_alone(served):
    """The other partition of the topic goes on, and STATUS tells which one failed."""
    await served.client.put("t", 0, [message(b"x")])
    served.disk.fail("datasync")
    with pytest.raises(StorageFailed):
        await served.client.put("t", 0, [message(b"x")])
    await served.client.put("t", 1, [message(b"x")])
    status = await served.client.status(with_partitions=True)
    assert [p.state for p in status.partitions] == ["failed", "rw"]
    assert "datasync was told to fail" in status.partitions[0].reason


async def test_a_failed_write_makes_the_send_unknown(served):
    """An EIO of the append itself is treated as one of the flush."""
    await served.client.put("t", 0, [message(b"x")])
    served.disk.fail("pwrite")
    with pytest.raises(OutcomeUnknown):
        await served.client.put("t", 0, [message(b"x")])
    with pytest.raises(PartitionFailed):
        await served.client.put("t", 0, [message(b"x")])


async def test_a_full_disk_refuses_and_the_partition_recovers(served):
    """ENOSPC in the middle of an append is a definite refusal; the next append succeeds."""
    await served.client.put("t", 0, [message(b"x")])
    end = (await served.client.offsets("t", 0)).latest
    served.disk.fail("pwrite", error=errno.ENOSPC)
    with pytest.raises(DiskFull):
        await served.client.put("t", 0, [message(b"x")])
    assert (await served.client.put("t", 0, [message(b"y")])).offset == end + CONTROL_BYTES


async def test_a_failed_partition_works_again_after_a_restart(served):
    """A restart reads what the medium holds and takes appends again."""
    await served.client.put("t", 0, [message(b"x")])
    served.disk.fail("datasync")
    with pytest.raises(StorageFailed):
        await served.client.put("t", 0, [message(b"x")])
    await served.node.stop()
    served.node = await served.cluster.start()
    client = await served.connect()
    await client.put("t", 0, [message(b"x")])


async def test_a_full_directory_keeps_no_put_that_it_refuses(served):
    """The error is the same as long as it is full. Raised, it would keep the batch."""
    place = channel_of(served, 0).place
    place.refusal = DiskFull("the disk is full")
    for _ in range(3):
        with pytest.raises(DiskFull):
            await served.client.put("t", 0, [message(b"x")])
    assert place.refusal.__traceback__ is None
