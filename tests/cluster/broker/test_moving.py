"""SEAL and ADOPT: a partition moves to another group without a copy, a gap or a doubled message.

What becomes of a seal whose move does not end is in ``test_seals``.
"""

import asyncio
import errno
from typing import Any

import pytest
from support.broker import Client, fetched, message
from support.group_pair import GroupPair

from vq.broker.logs import topics_view
from vq.broker.logs.logs import Logs
from vq.broker.partition.channel import Channel
from vq.broker.partition.partition_state import ChannelState
from vq.errors import (
    Busy,
    DiskFull,
    InternalError,
    InvalidRequest,
    NotMaster,
    PartitionFailed,
    PartitionRangeElsewhere,
    PartitionReadOnly,
    SequenceTaken,
    StorageFailed,
    UnknownTopic,
)
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.store.log.log_config import LogState
from vq.testing.waiting import WAIT_S, until

pytestmark = pytest.mark.virtual_time

#: More than a master makes when it begins to lead.
TRIES = 5
STAMP = {"producer_id": 9, "producer_epoch": 1}


@pytest.fixture
async def pair(cluster):
    """See ``GroupPair``."""
    return await GroupPair(cluster).start()


async def test_a_log_that_two_requests_need_is_opened_once(pair, monkeypatch):
    """A first PUT and a SEAL at the same moment: another log would not know what it took."""
    await pair.until_writable(pair.old)
    logs, runner = pair.cluster.nodes[pair.old].parts.logs, pair.cluster.runners[pair.old]
    open_log, opened = logs.open, []

    def count(*args: Any, **fields: Any) -> Any:
        opened.append(args[0])
        return open_log(*args, **fields)

    monkeypatch.setattr(logs, "open", count)
    with runner.held():
        put = asyncio.create_task(pair.put(pair.old))
        await until(lambda: runner.waiting)
        seal = asyncio.create_task(pair.seal())
        await until(lambda: pair.channel(pair.old).state is ChannelState.SEALED)
        for _ in range(3):
            await asyncio.sleep(0)
    assert (await seal).end_offset == 0
    with pytest.raises(PartitionReadOnly):
        await put
    assert opened == [("t", 0)]


async def test_offsets_go_on_where_the_old_place_ended(pair):
    """The new place takes appends from the end of the old one; both parts stay readable."""
    await pair.put(pair.old)
    end = await pair.move()
    await pair.until_writable(pair.new)
    assert (await pair.put(pair.new)).offset == end + 88
    header, body = await pair.clients[pair.old].get("t", 0, 0)
    assert header.next_offset == end
    assert body
    header, _ = await pair.clients[pair.new].get("t", 0, end)
    assert header.log_start_offset == end


async def test_readers_are_sent_to_the_other_group(pair):
    """Who asks the wrong group for a range is told that it is elsewhere, and where it begins."""
    await pair.put(pair.old)
    end = await pair.move()
    await pair.until_writable(pair.new)
    await pair.until_known(pair.old, pair.new)
    with pytest.raises(PartitionRangeElsewhere) as caught:
        await pair.clients[pair.old].get("t", 0, end)
    assert caught.value.details == {"next_offset": end, "group": pair.new}
    with pytest.raises(PartitionRangeElsewhere):
        await pair.clients[pair.new].get("t", 0, 0)
    with pytest.raises(PartitionReadOnly):
        await pair.put(pair.old)


async def test_a_reader_that_waits_at_the_end_is_told_of_the_move(pair):
    """A parked GET does not sleep through a move."""
    await pair.put(pair.old)
    end = (await pair.clients[pair.old].offsets("t", 0)).latest
    waiting = pair.clients[pair.old].send_get("t", 0, end, max_wait_ms=20_000)
    await pair.move()
    frame = await asyncio.wait_for(waiting, WAIT_S)
    with pytest.raises(PartitionRangeElsewhere):
        decode_reply(frame)


async def test_a_filtered_reader_gets_past_the_end_of_a_range_without_a_match(pair):
    """It is told how far the range was looked through, or it would ask for the same for ever."""
    await pair.put(pair.old)
    tags = {"tags": ["none"], "max_wait_ms": 20_000}
    waiting = pair.clients[pair.old].send_get("t", 0, 0, **tags)
    end = await pair.move()
    await pair.until_known(pair.old, pair.new)
    header = decode_reply(await asyncio.wait_for(waiting, WAIT_S))
    assert (header.next_offset, list(header.offsets)) == (end, [])
    header, _ = await pair.clients[pair.old].get("t", 0, 0, **tags)
    assert header.next_offset == end
    with pytest.raises(PartitionRangeElsewhere):
        await pair.clients[pair.old].get("t", 0, end, **tags)


async def test_a_filtered_fetch_gets_past_the_end_of_a_range_without_a_match(pair):
    """It is told how far the range was looked through before it is sent to the next group."""
    await pair.put(pair.old)
    client = pair.clients[pair.old]
    asked = {"handle": 0, "topic": "t", "partition": 0, "max_bytes": 1 << 20}
    waiting = client.send_fetch(0, wire.FetchPartition(tags=["none"], **asked))
    end = await pair.move()
    await pair.until_known(pair.old, pair.new)
    result, body = fetched(await asyncio.wait_for(waiting, WAIT_S))[0]
    assert (result.status, result.next_offset, body) == (0, end, b"")
    again = wire.FetchPartition(handle=0, offset=end, max_bytes=1 << 20)
    result, _ = (await client.fetch(1, again))[0]
    assert result.status == PartitionRangeElsewhere.status


async def test_a_resend_across_the_move_is_recognised(pair):
    """The producer table moves along."""
    first = await pair.put(pair.old, sequence=0, **STAMP)
    await pair.move()
    await pair.until_writable(pair.new)
    again = await pair.put(pair.new, sequence=0, **STAMP)
    assert (again.offset, again.duplicate) == (first.offset, True)
    assert not (await pair.put(pair.new, sequence=1, **STAMP)).duplicate


async def test_another_batch_is_no_resend_across_the_move_either(pair):
    """What the batches hold that the old group remembers moves along."""
    await pair.put(pair.old, sequence=0, **STAMP)
    await pair.move()
    await pair.until_writable(pair.new)
    with pytest.raises(SequenceTaken):
        await pair.clients[pair.new].put("t", 0, [message(b"other")], sequence=0, **STAMP)


async def test_what_was_adopted_survives_a_restart_before_the_placement_changes(pair):
    """The new log's start and producer table are on disk when ADOPT is answered."""
    first = await pair.put(pair.old, sequence=0, **STAMP)
    view = await pair.view()
    sealed = await pair.seal()
    await pair.adopt(sealed.end_offset, sealed.producers)
    await pair.cluster.nodes[pair.new].stop()
    node = await pair.cluster.start(pair.new)
    pair.clients[pair.new] = await Client.connect(pair.cluster.network, node.address)
    await pair.cluster.prove(pair.clients[pair.new])
    await pair.place(view, sealed.end_offset)
    await pair.until_writable(pair.new)
    assert (await pair.put(pair.new, sequence=0, **STAMP)).offset == first.offset


async def test_a_partition_moves_before_anything_was_written(pair):
    """An empty partition has no files, and moves all the same."""
    assert await pair.move() == 0
    await pair.until_writable(pair.new)
    assert (await pair.put(pair.new)).offset == 88
    with pytest.raises((PartitionReadOnly, NotMaster)):
        await pair.put(pair.old)


async def test_a_partition_comes_back(pair):
    """It moves away and, nothing written there, back; then on with the first log."""
    await pair.put(pair.old)
    first, second = pair.old, pair.new
    end = await pair.move()
    pair.old, pair.new = second, first
    await pair.until_writable(second)
    assert await pair.move() == end
    await pair.until_writable(first)
    assert (await pair.put(first)).offset == end + 88


async def test_a_partition_comes_back_to_a_damaged_log_and_takes_messages(pair):
    """The damaged one is put aside, though it ends where the partition comes back."""
    await pair.put(pair.old)
    first, second = pair.old, pair.new
    end = await pair.move()
    pair.old, pair.new = second, first
    await pair.until_writable(second)
    await pair.until_known(first, second)
    channel = pair.channel(first)
    channel.log.status.stop(LogState.QUARANTINED, "its first block is missing")
    channel._look()
    assert await pair.move() == end
    await pair.until_writable(first)
    assert (await pair.put(first)).offset == end + 88
    assert (await pair.clients[first].get("t", 0, 0))[0].next_offset == end


async def test_a_partition_comes_back_with_what_was_written_elsewhere_in_between(pair):
    """Its group then holds two ranges with a gap between them, and serves both."""
    first = pair.old
    end = await pair.move_between_messages()
    back = await pair.move()
    await pair.until_writable(first)
    assert (await pair.put(first)).offset == back + 88
    client = pair.clients[first]
    assert (await client.get("t", 0, 0))[0].next_offset == end
    with pytest.raises(PartitionRangeElsewhere):
        await client.get("t", 0, end)
    assert (await client.get("t", 0, back))[1]
    assert (await client.offsets("t", 0)).earliest == 0
    await pair.cluster.nodes[first].stop()
    node = await pair.cluster.start(first)
    client = await Client.connect(pair.cluster.network, node.address)
    assert (await client.get("t", 0, 0))[0].next_offset == end
    assert (await client.put("t", 0, [message(b"x")])).offset > back


async def test_tries_on_a_full_disk_hold_no_file_of_earlier_ranges(pair, monkeypatch):
    """The partition is served with all of its ranges once there is space."""
    monkeypatch.setattr(topics_view, "PROBLEM_RETRY_S", 0.01)
    first = pair.old
    await pair.move_between_messages()
    await pair.move()
    await pair.until_writable(first)
    for _ in range(2):  # the second one lies behind the checkpoint, so a start must flush it
        await pair.put(first)
    cluster, disk = pair.cluster, pair.cluster.disks[first]
    cluster.ensemble.crash(cluster.coordinators[first])
    cluster.network.kill(first)
    disk.release_locks()
    held = disk.open_files
    for _ in range(1_000):
        disk.fail("datasync", error=errno.ENOSPC, name=".block")
    node = await cluster.start(first, refresh_interval_s=60.0)
    client = await Client.connect(cluster.network, node.address)
    for _ in range(3):
        with pytest.raises(DiskFull, match="no space to open"):
            await client.put("t", 0, [message(b"x")])
    assert disk.open_files == held
    disk.forget_faults()
    await pair.until_writable(first)
    assert (await client.offsets("t", 0)).earliest == 0
    assert (await client.get("t", 0, 0))[1]


async def test_an_offset_by_time_is_never_the_end_of_an_earlier_range(pair):
    """The next range here begins later than that end, and holds the next message."""
    first = pair.old
    end = await pair.move_between_messages()
    back = await pair.move()
    await pair.until_writable(first)
    clock = pair.cluster.nodes[first].parts.context.clock
    moved_ms = clock.wall_ms()
    await until(lambda: clock.wall_ms() > moved_ms)
    time_ms = clock.wall_ms()
    await pair.put(first)
    assert end < back
    client = pair.clients[first]
    assert (await client.offsets("t", 0, by_time=True, time_ms=time_ms)).offset == back
    assert (await client.offsets("t", 0, by_time=True, time_ms=1)).offset == 0


async def test_an_outdated_or_foreign_request_is_refused(pair):
    """SEAL names the placement it knows, ADOPT the topic's id; neither acts on another one."""
    with pytest.raises(PartitionReadOnly, match="not 41"):
        await pair.seal(41)
    with pytest.raises(UnknownTopic):
        await pair.adopt(0, topic_id="another")
    request = wire.AdoptRequest(topic="t", partition=0, topic_id=(await pair.view()).id)
    with pytest.raises(InvalidRequest, match="already"):
        await pair.clients[pair.old].call(Command.ADOPT, request)
    await pair.put(pair.old)


async def test_an_adopt_without_space_may_be_repeated(pair):
    """A full disk is no failure of the log: once there is space, the move goes on."""
    await pair.put(pair.old)
    view, sealed = await pair.view(), await pair.seal()
    pair.cluster.disks[pair.new].fail("pwrite", error=errno.ENOSPC, name="checkpoint.tmp")
    with pytest.raises(DiskFull):
        await pair.adopt(sealed.end_offset, sealed.producers)
    await pair.adopt(sealed.end_offset, sealed.producers)
    await pair.place(view, sealed.end_offset)
    await pair.until_writable(pair.new)
    assert (await pair.put(pair.new)).offset == sealed.end_offset + 88


# Movers that sleep ------------------------------------------------------------------------------
async def test_a_mover_that_sleeps_before_adopt_is_refused(cluster):
    """Its seal has ended and the old place went on: no log may begin at the end it knows."""
    pair = await GroupPair(cluster).start(seal_timeout_s=0.05)
    await pair.put(pair.old)
    version = (await pair.view()).partition_versions[0]
    sealed = await pair.seal(version)
    await pair.until_writable(pair.old)
    await pair.put(pair.old)
    with pytest.raises(PartitionReadOnly, match=f"not {version}"):
        await pair.adopt(sealed.end_offset, sealed.producers, version=version)
    assert ("t", 0) not in pair.cluster.nodes[pair.new].parts.partitions.channels


async def test_an_adopt_is_checked_against_the_newest_placement(cluster):
    """Also while the events that would tell the new group of it are on their way."""
    pair = await GroupPair(cluster).start(refresh_interval_s=60.0)
    version = (await pair.view()).partition_versions[0]
    sealed = await pair.seal(version)
    await pair.touch()
    cluster.ensemble.hold_events(cluster.coordinators[pair.new])
    with pytest.raises(PartitionReadOnly, match=f"not {version}"):
        await pair.adopt(sealed.end_offset, sealed.producers, version=version)
    cluster.ensemble.release_events(cluster.coordinators[pair.new])


async def test_an_adopt_that_waited_while_the_move_ended_changes_nothing(pair):
    """Sent twice: the second one must not put the log aside that takes appends meanwhile."""
    await pair.put(pair.old)
    view = await pair.view()
    sealed = await pair.seal()
    end = sealed.end_offset
    await pair.adopt(end, sealed.producers)
    version = view.partition_versions[0]
    async with pair.files(pair.new):
        again = asyncio.ensure_future(pair.adopt(end, sealed.producers, version=version))
        await until(lambda: pair.files(pair.new)._waiters)
        await pair.place(view, end)
        await pair.until_writable(pair.new)
        stored = await pair.put(pair.new)
    with pytest.raises(PartitionReadOnly):
        await again
    assert (await pair.clients[pair.new].get("t", 0, end))[0].next_offset > stored.offset
    assert (await pair.put(pair.new)).offset > stored.offset


async def test_an_adopt_whose_placement_changes_while_the_log_is_flushed_is_refused(
    pair, monkeypatch
):
    """The log that would be put aside is left where it is."""
    first, second = pair.old, pair.new
    await pair.move_between_messages()
    await pair.until_known(first, second)
    sealed = await pair.seal()
    channel, partitions = pair.channel(first), pair.cluster.nodes[first].parts.partitions
    log, version, settle = channel.log, channel.placement_version, partitions.logs.settle

    async def settle_slowly(settling: Channel) -> None:
        await settle(settling)
        await pair.touch()
        await until(lambda: channel.placement_version != version)

    monkeypatch.setattr(partitions.logs, "settle", settle_slowly)
    with pytest.raises(PartitionReadOnly):
        await pair.adopt(sealed.end_offset, sealed.producers)
    assert channel.log is log


async def test_a_partition_that_moved_away_names_the_group_that_takes_its_messages(pair):
    """Its log stays sealed; the move is over all the same."""
    await pair.put(pair.old)
    await pair.move()
    await pair.until_known(pair.old, pair.new)
    assert pair.channel(pair.old).state is ChannelState.READS
    with pytest.raises(PartitionReadOnly, match=f"go to {pair.new}"):
        await pair.put(pair.old)


async def test_a_partition_that_failed_is_not_prepared_for_a_move(pair):
    """ADOPT says what ended it, and does not touch its log."""
    end = await pair.move_between_messages()
    await pair.until_known(pair.new, pair.old)
    sealed = await pair.seal()
    assert sealed.end_offset > end
    channel = pair.channel(pair.new)
    log = channel.log
    channel.fail(OSError(errno.EIO, "the disk is broken"))
    with pytest.raises(StorageFailed, match="the disk is broken"):
        await pair.adopt(sealed.end_offset, sealed.producers)
    assert channel.state is ChannelState.FAILED
    assert channel.log is log


async def test_nothing_is_appended_before_the_span_begins(pair):
    """A log that was not prepared for its span takes nothing until it begins where that does."""
    await pair.put(pair.old)
    view = await pair.view()
    sealed = await pair.seal()
    await pair.adopt(sealed.end_offset, sealed.producers)
    begin = sealed.end_offset + 1_000
    async with pair.files(pair.new):
        await pair.place(view, begin)
        await pair.until_known(pair.new, pair.new)
        with pytest.raises(PartitionReadOnly, match="prepared"):
            await pair.put(pair.new)
        with pytest.raises(Busy, match="prepared"):
            await pair.clients[pair.new].get("t", 0, begin)
    await pair.until_writable(pair.new)
    assert (await pair.put(pair.new)).offset == begin + 88
    assert pair.channel(pair.new).start_offset == begin


async def test_a_log_not_opened_yet_begins_where_its_span_does(pair):
    """Whatever opens it first: a PUT may come while the ADOPT that should have is on its way."""
    await pair.put(pair.old)
    view = await pair.view()
    sealed = await pair.seal()
    end, version = sealed.end_offset, view.partition_versions[0]
    async with pair.files(pair.new):
        adopting = asyncio.ensure_future(pair.adopt(end, sealed.producers, version=version))
        await until(lambda: ("t", 0) in pair.cluster.nodes[pair.new].parts.partitions.channels)
        await pair.place(view, end)
        await pair.until_known(pair.new, pair.new)
    with pytest.raises(PartitionReadOnly):
        await adopting
    assert (await pair.put(pair.new)).offset == end + 88


async def test_readers_are_told_while_a_log_is_put_aside(pair):
    """Filtered or not, they neither spin nor are told that nothing is there; then they read on."""
    first, second = pair.old, pair.new
    await pair.move_between_messages()
    await pair.until_known(first, second)
    sealed = await pair.seal()
    runner, client = pair.cluster.runners[first], pair.clients[first]
    adopting = asyncio.ensure_future(pair.adopt(sealed.end_offset, sealed.producers))
    with runner.held():
        await until(lambda: runner.waiting)
        assert pair.channel(first).log is None
        for tags in (["none"], []):
            with pytest.raises(Busy, match="being opened"):
                await client.get("t", 0, 0, tags=tags, max_wait_ms=20_000)
    await adopting
    assert (await client.get("t", 0, 0))[1]


async def test_a_log_that_cannot_be_put_aside_is_read_on_and_put_aside_later(pair, monkeypatch):
    """A directory that was read-only for a while, and a group that takes appends unprepared."""
    monkeypatch.setattr(topics_view, "PROBLEM_RETRY_S", 0.01)
    first, second = pair.old, pair.new
    await pair.move_between_messages()
    await pair.until_known(first, second)
    disk, partitions = pair.cluster.disks[first], pair.cluster.nodes[first].parts.partitions
    for _ in range(1_000):
        disk.fail("rename", error=errno.EROFS, name="/t/0")
    sealed = await pair.seal()
    await pair.place(await pair.view(), sealed.end_offset)  # without an ADOPT
    await until(lambda: "t" in partitions.view.problems)
    client = pair.clients[first]
    assert (await client.get("t", 0, 0))[1], "what is there is read on"
    with pytest.raises(PartitionReadOnly, match="being"):
        await pair.put(first)
    disk.forget_faults()
    await pair.until_writable(first)
    assert (await pair.put(first)).offset == sealed.end_offset + 88
    assert (await client.get("t", 0, 0))[1]


@pytest.mark.parametrize("error", [OSError(errno.EROFS, "read-only"), ZeroDivisionError()])
async def test_a_new_master_whose_log_cannot_be_put_aside_tries_again(pair, monkeypatch, error):
    """Its placement changed while it was down, and its first tries fail: nothing else comes."""
    monkeypatch.setattr(topics_view, "PROBLEM_RETRY_S", 0.01)
    first, second = pair.old, pair.new
    await pair.move_between_messages()
    await pair.until_known(first, second)
    sealed = await pair.seal()
    await pair.cluster.nodes[first].stop()
    await pair.place(await pair.view(), sealed.end_offset)  # without an ADOPT
    failed: list[object] = []
    put_aside = Logs.put_aside

    def fail_at_first(logs: Logs, *args: Any) -> Any:
        if len(failed) < TRIES:
            failed.append(args)
            logs._disk.fail("rename", error=errno.EROFS, name="/t/0")
            if not isinstance(error, OSError):
                raise error
        return put_aside(logs, *args)

    monkeypatch.setattr(Logs, "put_aside", fail_at_first)
    node = await pair.cluster.start(first)
    pair.clients[first] = await Client.connect(pair.cluster.network, node.address)
    await pair.until_writable(first)
    assert len(failed) == TRIES
    assert (await pair.put(first)).offset == sealed.end_offset + 88
    assert not node.parts.partitions.view.problems


async def test_an_adopt_that_meets_a_bug_is_answered(pair, monkeypatch):
    """The mover does not wait until its own time is up."""

    async def stumble(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(pair.cluster.nodes[pair.new].parts.partitions.logs, "adopt_log", stumble)
    with pytest.raises(InternalError, match="ZeroDivisionError"):
        await pair.adopt(0)


async def test_readers_are_told_of_a_log_that_cannot_be_opened(pair, monkeypatch):
    """What lies there is unknown; a filtered reader does not look for it for ever."""
    first, second = pair.old, pair.new
    await pair.move_between_messages()
    await pair.until_known(first, second)
    sealed = await pair.seal()

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EMFILE, "no")

    monkeypatch.setattr(pair.cluster.nodes[first].parts.logs, "open", refuse)
    with pytest.raises(StorageFailed):
        await pair.adopt(sealed.end_offset, sealed.producers)
    for tags in (["none"], []):
        with pytest.raises(PartitionFailed):
            await pair.clients[first].get("t", 0, 0, tags=tags, max_wait_ms=20_000)
