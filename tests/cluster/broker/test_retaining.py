"""The master deletes what its topics keep no longer, and its copies follow."""

import asyncio
import logging

import pytest
from support.broker import DATA, Client, message
from support.client import factory_of
from support.coordination import at
from support.late_clock import LateClock, give_wall_clock, later
from support.node_pair import settled

from vq.broker.base.steps import StepPace
from vq.broker.history import retaining
from vq.broker.history.retaining import BLOCKS_AT_A_TIME, Held
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.broker.partition.ranges import earliest
from vq.coordination.groups import groups
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics.topics import change_settings, describe_topic
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup
from vq.errors import OffsetOutOfRange
from vq.message_filter import ALL
from vq.model import TopicPartition, TopicSettings
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.store.log.log import Log
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


def channel_of(node: BrokerNode, partition: int = 0) -> Channel:
    return node.parts.partitions.channels["t", partition]


def log_of(node: BrokerNode, partition: int = 0) -> Log:
    log = channel_of(node, partition).log
    assert log is not None
    return log


async def put(client: Client, count: int = 5, partition: int = 0) -> None:
    for number in range(count):
        await client.put("t", partition, [message(b"%d" % number * 100)])


async def blocks(served, count: int, partition: int = 0) -> list[int]:
    """Write so many closed blocks; return where each begins, and the end."""
    await put(served.client, 1, partition)
    log = log_of(served.node, partition)
    starts = [log.start_offset]
    for number in range(count):
        await put(served.client, 4 if number == 0 else 5, partition)
        log.roll()
        starts.append(log.end_offset)
    await settled(channel_of(served.node, partition))
    return starts


async def alter(served, **settings: object) -> None:
    """Change settings of topic ``t``, and wait until the node has them."""
    wanted = TopicSettings(**{"partitions": 2, **settings})
    async with served.cluster.admin() as coordinator:
        await change_settings(coordinator, "t", wanted)
    await until(lambda: channel_of(served.node).settings == wanted)


def files(served, partition: int = 0) -> list[str]:
    names = served.disk.listdir(DATA / "t" / str(partition))
    return sorted(name for name in names if name != "checkpoint")


# Age and size -----------------------------------------------------------------------------------
async def test_messages_that_are_too_old_are_deleted(served):
    """After 72 hours, without any setting; the log goes on where it was."""
    starts = await blocks(served, 3)
    await later(served.node, 71.9).look()
    assert log_of(served.node).start_offset == 0
    await later(served.node, 72.1).look()
    log = log_of(served.node)
    assert (log.start_offset, channel_of(served.node).start_offset) == (starts[-1], starts[-1])
    assert files(served) == []
    await put(served.client, 1)
    with pytest.raises(OffsetOutOfRange) as caught:
        await served.client.get("t", 0, 0)
    assert caught.value.details["earliest"] == starts[-1]
    answer, body = await served.client.get("t", 0, starts[-1])
    assert answer.log_start_offset == starts[-1]
    assert b"0" * 100 in body


async def test_a_block_that_takes_appends_ends_when_its_first_message_is_too_old(served):
    """The last one may be young: what was sent before goes one retention later."""
    await put(served.client, 3)
    log = log_of(served.node)
    await later(served.node, 50).look()
    assert log.open_block is not None
    give_wall_clock(log, LateClock(served.node.parts.context.clock, 50).wall_ms)
    await put(served.client, 1)
    await later(served.node, 73).look()
    assert (log.open_block, log.start_offset) == (None, 0)
    await later(served.node, 121).look()
    assert log.start_offset == 0
    await later(served.node, 123).look()
    assert log.start_offset == log.end_offset > 0


@pytest.mark.parametrize("index", ["there", "gone"])
async def test_times_are_known_after_a_restart(served, index):
    starts = await blocks(served, 3)
    await put(served.client, 2)
    await served.node.stop()
    if index == "gone":
        for name in files(served):
            if name.endswith(".index"):
                served.disk.unlink(DATA / "t" / "0" / name)
    node = await served.cluster.start()
    await later(node, 71.9).look()
    assert log_of(node).start_offset == 0
    messages = log_of(node).messages
    await later(node, 72.1).look()
    assert log_of(node).start_offset == log_of(node).end_offset > starts[-1]
    assert (messages, log_of(node).messages) == (17, 0)


async def test_so_many_bytes_stay(served):
    starts = await blocks(served, 4)
    await alter(served, retention_bytes=starts[-1] - starts[2], retention_hours=None)
    await later(served.node, 0).look()
    assert log_of(served.node).start_offset == starts[2]
    assert log_of(served.node).messages == 10
    await alter(served, retention_bytes=None, retention_hours=None)
    await later(served.node, 9_999).look()
    assert log_of(served.node).start_offset == starts[2]


async def test_a_block_as_large_as_what_stays_ends(served):
    await put(served.client, 5)
    await alter(served, retention_bytes=500, retention_hours=None)
    await later(served.node, 0).look()
    log = log_of(served.node)
    assert (log.open_block, log.start_offset) == (None, 0)
    await put(served.client, 5)
    await later(served.node, 0).look()
    assert 0 < log.start_offset < log.end_offset


async def test_a_clock_that_was_set_back_deletes_nothing(served):
    starts = await blocks(served, 2)
    await later(served.node, -500).look()
    assert log_of(served.node).start_offset == 0
    await later(served.node, 72.1).look()
    assert log_of(served.node).start_offset == starts[-1]


async def test_many_blocks_go_a_few_at_a_time(served, monkeypatch):
    """The flusher deletes them, and acknowledgements wait for it."""
    starts = await blocks(served, 2 * BLOCKS_AT_A_TIME + 3)
    tickets, log = [], log_of(served.node)
    real = log.begin_sync

    def begin_sync():
        ticket = real()
        if ticket is not None:
            tickets.append(len(ticket.doomed))
        return ticket

    monkeypatch.setattr(log, "begin_sync", begin_sync)
    await later(served.node, 72.1).look()
    assert log.start_offset == starts[-1]
    assert [each for each in tickets if each] == [BLOCKS_AT_A_TIME, BLOCKS_AT_A_TIME, 3]


async def test_a_pass_comes_by_itself(cluster):
    node = await cluster.start(retention_interval_s=0.05)
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    await put(client)
    later(node, 72.1)
    await until(lambda: log_of(node).start_offset == log_of(node).end_offset)


async def test_one_line_is_logged_for_a_topic(served, caplog):
    caplog.set_level(logging.INFO, logger="vq.broker.history.retaining")
    for partition in (0, 1):
        await blocks(served, 3, partition)
    retainer = later(served.node, 72.1)
    await retainer.look()
    await retainer.look()
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == 1
    assert "topic=t" in lines[0]
    assert "blocks=6" in lines[0]
    counters = served.node.parts.context.counters
    deleted = sum(log_of(served.node, each).start_offset for each in (0, 1))
    assert (counters.deleted_blocks, counters.deleted_bytes) == (6, deleted)


# The policy keep --------------------------------------------------------------------------------
async def commit(served, group: str, offset: int, partition: int = 0) -> None:
    async with served.cluster.admin() as coordinator:
        await groups.ensure_group(coordinator, group, ConsumerGroup(topics={"t": ALL}))
        await ZooKeeperOffsets(coordinator).reset(group, TopicPartition("t", partition), at(offset))


def held_since(log: Log, block: int) -> int:
    """When a block became too old."""
    facts = log.closed_blocks[block].facts
    assert facts is not None
    return facts.last_ms + 72 * 3_600_000


async def test_what_a_group_has_not_read_is_kept(served):
    starts = await blocks(served, 4)
    await alter(served, retention_policy="keep")
    retainer, log = later(served.node, 72.1), log_of(served.node)
    await retainer.look()
    whole = starts[-1] - starts[0]
    assert retainer.held[channel_of(served.node)] == Held(
        "no consumer group", 0, whole, held_since(log, 0)
    )
    await commit(served, "slow", starts[1] + 10)
    await commit(served, "fast", starts[-1])
    await retainer.look()
    assert log.start_offset == starts[1]
    held = retainer.held[channel_of(served.node)]
    assert held == Held("group slow", starts[1], starts[-1] - starts[1], held_since(log, 0))
    told = (await served.client.status(with_partitions=True)).partitions[0]
    assert (told.held_by, told.held_from, told.held_bytes) == held[:3]
    await commit(served, "slow", starts[-1])
    await retainer.look()
    assert (log.start_offset, retainer.held) == (starts[-1], {})


async def test_a_young_message_is_kept_although_all_have_read_it(served):
    starts = await blocks(served, 2)
    await alter(served, retention_policy="keep")
    await commit(served, "fast", starts[-1])
    await later(served.node, 71.9).look()
    assert log_of(served.node).start_offset == 0


async def test_a_group_that_comes_during_a_long_pass_keeps_what_is_left(served, monkeypatch):
    """A pass over many blocks takes minutes; what groups need is read again meanwhile."""
    starts = await blocks(served, 5)
    await alter(served, retention_policy="keep")
    await commit(served, "fast", starts[-1])
    monkeypatch.setattr(retaining, "BLOCKS_AT_A_TIME", 1)
    retainer = later(served.node, 72.1)
    drop_before = served.node.parts.partitions.logs.drop_before

    async def drop(channel, offset, still):
        freed = await drop_before(channel, offset, still)
        await commit(served, "late", starts[1])
        retainer._clock.monotonic = lambda: (
            served.node.parts.context.clock.monotonic() + retaining.NEEDS_S + 1
        )
        return freed

    monkeypatch.setattr(served.node.parts.partitions.logs, "drop_before", drop)
    await retainer.look()
    assert log_of(served.node).start_offset == starts[1]
    assert retainer.held[channel_of(served.node)].by == "group late"


async def test_nothing_is_deleted_while_it_is_not_known_who_needs_it(served, caplog):
    await blocks(served, 2)
    await alter(served, retention_policy="keep")
    await commit(served, "broken", 10)
    async with served.cluster.admin() as coordinator:
        await coordinator.set(CommittedOffset.path("broken", "t", 0), b"nonsense")
    retainer = later(served.node, 72.1)
    await retainer.look()
    await retainer.look()
    assert log_of(served.node).start_offset == 0
    lines = [each.getMessage() for each in caplog.records if "retention cannot" in each.message]
    assert len(lines) == 1


# Readers ----------------------------------------------------------------------------------------
async def test_a_reader_whose_block_goes_is_told_the_valid_range(served):
    """One that waits for more bytes than there are, below the new start."""
    starts = await blocks(served, 3)
    waiting = served.client.send_get(
        "t", 0, starts[1], max_wait_ms=15_000, min_bytes=1_000_000, max_bytes=2_000_000
    )
    await later(served.node, 72.1).look()
    with pytest.raises(OffsetOutOfRange) as caught:
        decode_reply(await asyncio.wait_for(waiting, 10))
    assert caught.value.details["earliest"] == starts[-1]


async def test_bytes_that_were_read_stay_valid(served):
    starts = await blocks(served, 3)
    log = log_of(served.node)
    view = log.reader.read(starts[0], 1 << 20, log.end_offset)
    before = bytes(view)
    await later(served.node, 72.1).look()
    assert files(served) == []
    assert bytes(view) == before


async def test_a_resend_is_recognised_after_its_first_batch_was_deleted(served):
    await served.client.put("t", 0, [message(b"x")], producer_id=7, sequence=0)
    first = await served.client.put("t", 0, [message(b"y")], producer_id=7, sequence=1)
    await later(served.node, 72.1).look()
    assert log_of(served.node).start_offset > first.offset
    for _ in range(2):
        again = await served.client.put("t", 0, [message(b"y")], producer_id=7, sequence=1)
        assert (again.duplicate, again.offset) == (True, first.offset)
        await served.node.stop()
        served.node = await served.cluster.start()
        served.client = await served.connect()


# What goes on at the same time --------------------------------------------------------------------
async def test_a_verification_leaves_out_what_is_deleted_meanwhile(cluster):
    """It finds no damage, and says that it read all."""
    node = await cluster.start(verify_bytes_per_s=2_000)
    await cluster.create_topic("t", partitions=1)
    await until(lambda: ("t", 0) in node.parts.partitions.channels)
    client = await Client.connect(cluster.network, node.address)
    channel, log = channel_of(node), None
    for _ in range(4):
        await put(client)
        log = log_of(node)
        log.roll()
    await settled(channel)

    async def verify(**fields: object) -> wire.VerifyResponse:
        request = wire.VerifyRequest(
            topic="t", partition=0, whole=True, topic_id=channel.topic_id, **fields
        )
        answer: wire.VerifyResponse = (await client.call(Command.VERIFY, request))[0]
        return answer

    begun = await verify(begin=True)
    while not begun.verified_bytes:
        await asyncio.sleep(0.01)
        begun = await verify()
    await later(node, 72.1).look()
    assert log_of(node).start_offset == log_of(node).end_offset
    while (ended := await verify()).running:
        await asyncio.sleep(0.01)
    assert (list(ended.damage), ended.unverified) == ([], "")
    assert ended.verified_bytes == ended.total_bytes


async def test_a_scrub_goes_past_what_is_deleted(served):
    """Its place in the partition may be gone."""
    starts = await blocks(served, 4)
    node, read, ends = served.node, [], []
    verifier = node.parts.verifier

    async def scrub() -> None:
        end: int | None = 0
        while end is not None:
            ends.append(end)
            end = await verifier.scrub(channel_of(node), end, StepPace(20_000), read.append)

    task = asyncio.create_task(scrub())
    await until(lambda: read)
    await later(node, 72.1).look()
    await asyncio.wait_for(task, 10)
    assert ends[-1] < starts[-1], "what is gone is not read"
    assert not verifier.any_damage()


# Copies, moves ----------------------------------------------------------------------------------
async def test_copies_follow_and_do_not_decide(node_pair):
    end = node_pair.log("n1").end_offset
    await later(node_pair.nodes["n2"], 100).look()
    assert node_pair.log("n2").start_offset == 0
    await later(node_pair.nodes["n1"], 100).look()
    await until(lambda: node_pair.log("n2").start_offset == end)
    assert node_pair.nodes["n2"].parts.context.counters.deleted_bytes == end
    await node_pair.put(3)
    await until(node_pair.same)


async def test_a_copy_with_more_is_told_when_its_master_has_nothing_left(node_pair):
    """The master was restarted meanwhile, and has no block that could tell anything."""
    await node_pair.stop("n2")
    await node_pair.drop("n1", node_pair.log("n1").end_offset)
    await node_pair.start("n2")
    await until(node_pair.same)
    assert node_pair.log("n2").start_offset == 0
    await later(node_pair.nodes["n1"], 1).look()
    await until(lambda: node_pair.log("n2").start_offset == node_pair.log("n2").end_offset)


async def test_earlier_ranges_of_a_moved_partition_are_deleted(served):
    """On the group that holds nothing else of it, and on the one that has it again."""
    await served.cluster.start("b2")
    await put(served.client)
    one = log_of(served.node).end_offset
    await move(served.cluster, "b2")
    other = served.cluster.nodes["b2"]
    await until(
        lambda: ("t", 0) in other.parts.partitions.channels and channel_of(other).takes_puts
    )
    client = await Client.connect(served.cluster.network, other.address)
    await put(client)
    two = log_of(other).end_offset
    await move(served.cluster, "b1")
    await until(lambda: channel_of(served.node).older and channel_of(served.node).takes_puts)
    served.client = await served.connect()
    await put(served.client)
    channel = channel_of(served.node)
    assert [each.start_offset for each in (*channel.older, channel)] == [0, two]

    late = LateClock(served.node.parts.context.clock, 10)
    give_wall_clock(log_of(served.node), late.wall_ms)
    await put(served.client)
    await later(served.node, 72.1).look()
    assert await earliest_of(served.cluster) == {one}
    await later(other, 72.1).look()
    assert await earliest_of(served.cluster) == {two}
    assert (channel.older, earliest(channel), channel.start_offset) == ([], two, two)
    assert log_of(other).start_offset == two
    assert one < two
    names = served.disk.listdir(DATA / "t")
    assert [name for name in names if name.startswith("0")] == ["0"]
    await later(served.node, 82.2).look()
    assert earliest(channel) == log_of(served.node).end_offset


async def earliest_of(cluster) -> set[int]:
    """Where the partition begins, as an operator and a consumer are told."""
    async with factory_of(cluster) as factory:
        described = await factory.admin.describe_topic("t")
        async with await factory.create_consumer() as consumer:
            bounds = await consumer.get_bounds("t", 0)
    return {described.partitions[0].ends.earliest, bounds.earliest}


async def move(cluster, group: str) -> None:
    async with factory_of(cluster) as factory:
        await factory.admin.move(await factory.admin.plan_moves("t", [0], group))
    async with cluster.admin() as coordinator:
        assert (await describe_topic(coordinator, "t")).partitions[0].writer_group == group


async def test_who_does_not_lead_any_more_deletes_nothing(served):
    """What was decided waits for the log, which may be another one afterwards."""
    await blocks(served, 3)
    channel, retainer = channel_of(served.node), later(served.node, 72.1)
    async with served.node.parts.partitions.logs.changes.lock(channel.partition):
        task = asyncio.create_task(retainer.look())
        await asyncio.sleep(0.05)
        channel.role.epoch += 1
    await task
    assert log_of(served.node).start_offset == 0


async def test_settings_that_change_meanwhile_count(served):
    """Somebody is about to lose messages, and has them kept for ever in the last moment."""
    await blocks(served, 3)
    channel, retainer = channel_of(served.node), later(served.node, 72.1)
    async with served.node.parts.partitions.logs.changes.lock(channel.partition):
        task = asyncio.create_task(retainer.look())
        await asyncio.sleep(0.05)
        await alter(served, retention_hours=None)
    await task
    assert log_of(served.node).start_offset == 0


async def test_a_partition_that_fails_keeps_no_other_from_its_retention(served, monkeypatch):
    for partition in (0, 1):
        await blocks(served, 2, partition)
    retainer, bad = later(served.node, 72.1), channel_of(served.node, 0)
    real = retainer._decide

    def decide(channel, *about):
        if channel is bad:
            raise ZeroDivisionError
        return real(channel, *about)

    monkeypatch.setattr(retainer, "_decide", decide)
    await retainer.look()
    assert log_of(served.node, 0).start_offset == 0
    assert log_of(served.node, 1).start_offset == log_of(served.node, 1).end_offset


async def test_the_loop_runs_other_things_during_a_pass(cluster):
    """Also with many topics of one partition each."""
    node = await cluster.start()
    for number in range(200):
        await cluster.create_topic(f"t{number}", partitions=1)
    await until(lambda: len(node.parts.partitions.channels) == 200)
    client = await Client.connect(cluster.network, node.address)
    for number in range(200):
        await client.put(f"t{number}", 0, [message(b"x")])
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await later(node, 0).look()
    counting.cancel()
    assert turns >= 3
