"""A disk that is too full: messages go early where topics allow it, here and on copies."""

import asyncio
import logging

import pytest
from support.archive_places import URL, Failing
from support.broker import DATA, Client, message
from support.late_clock import give_clock, later
from support.node_pair import settled

from vq.broker.disks.disk_watch import DiskLevel
from vq.broker.history import relief, retaining
from vq.broker.partition.channel import Channel
from vq.clock import ManualClock
from vq.coordination.topics.topics import change_settings
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import DiskFull
from vq.model import TopicSettings
from vq.testing.waiting import WAIT_S, until, until_true

pytestmark = pytest.mark.virtual_time

KIB = 1024


class Disk:
    """The disk of a node, as full as a test says, plus what the logs of the node have."""

    def __init__(self, node, disk) -> None:
        self._node = node
        self._disk = disk
        self.total = 1_000 * KIB
        self.others = 0
        disk.free_space = lambda path: (self.total - self.used, self.total)

    @property
    def used(self) -> int:
        channels = self._node.parts.partitions.channels.values()
        return self.others + sum(c.log.size_bytes for c in channels if c.log is not None)

    def fill(self, share: float) -> None:
        """Have a stranger take so much that this share is in use now."""
        self.others += round(share * self.total) - self.used
        self._node.parts.disks.main.look_now()


def channel_of(node, topic: str = "t", partition: int = 0) -> Channel:
    return node.parts.partitions.channels[topic, partition]


async def blocks(served, topic: str, count: int, partition: int = 0) -> list[int]:
    """Write so many closed blocks of 10 KiB; return where each ends."""
    ends = []
    for _ in range(count):
        await served.client.put(topic, partition, [message(bytes(10 * KIB))])
        channel = channel_of(served.node, topic, partition)
        channel.log.roll()
        ends.append(channel.log.end_offset)
        await settled(channel)
    return ends


async def alter(served, topic: str, **settings: object) -> None:
    async with served.cluster.admin() as coordinator:
        before = served.node.parts.partitions.view.topics[topic].settings
        wanted = TopicSettings(**{"partitions": before.partitions, **settings})
        await change_settings(coordinator, topic, wanted)
    await until(lambda: channel_of(served.node, topic).settings == wanted)


async def topic(served, name: str, **settings: object) -> None:
    await served.cluster.create_topic(name, partitions=1, **settings)
    await until(lambda: (name, 0) in served.node.parts.partitions.channels)


def passes(node) -> int:
    """Return how many passes of retention have ended."""
    return next(each.runs for each in node.parts.jobs.told() if each.name == "retention")


def starts(served, *topics: str) -> list[int]:
    return [channel_of(served.node, each).start_offset for each in topics]


# Early ------------------------------------------------------------------------------------------
async def test_the_oldest_messages_of_all_topics_go_early_and_no_more_than_needed(served):
    """From 86 % down to 83 %: 30 KiB, of both topics that allow it, whichever are older."""
    disk = Disk(served.node, served.disk)
    for name in ("u", "v"):
        await topic(served, name)
    early: dict[str, list[int]] = {"t": [], "u": [], "v": []}
    for _ in range(4):
        for name in early:
            early[name] += await blocks(served, name, 1)
    await alter(served, "t", retention_early_hours=2)
    await alter(served, "u", retention_early_hours=3)
    disk.fill(0.86)
    await later(served.node, 1.9).look()
    assert starts(served, "t", "u", "v") == [0, 0, 0]
    await later(served.node, 2.1).look()  # only t has messages that are old enough
    assert starts(served, "t", "u", "v") == [early["t"][2], 0, 0]
    assert served.node.parts.disks.main.watch.used_share < 0.87
    served.node.parts.disks.main.look_now()
    assert served.node.parts.disks.main.watch.level is DiskLevel.WARN
    disk.fill(0.86)
    await later(served.node, 3.1).look()
    assert starts(served, "t", "u", "v") == [early["t"][2], early["u"][2], 0]
    counters = served.node.parts.context.counters
    assert counters.deleted_early_bytes == counters.deleted_bytes > 0


async def test_nothing_goes_early_while_there_is_space(served):
    disk = Disk(served.node, served.disk)
    await blocks(served, "t", 3)
    await alter(served, "t", retention_early_hours=1)
    disk.fill(0.849)
    await later(served.node, 10).look()
    assert starts(served, "t") == [0]


async def test_what_a_group_has_not_read_is_kept_on_a_full_disk_too(served, caplog):
    disk = Disk(served.node, served.disk)
    ends = await blocks(served, "t", 3)
    await alter(served, "t", retention_early_hours=1, retention_policy="keep")
    disk.fill(0.95)
    await later(served.node, 10).look()
    assert starts(served, "t") == [0]
    await later(served.node, 10).look()
    told = [each.getMessage() for each in caplog.records if "stays too full" in each.message]
    assert len(told) == 1
    assert "beyond what may go early; kept of topic t for no consumer group" in told[0]
    assert served.node.parts.upkeep.retainer.held == {}
    await alter(served, "t", retention_early_hours=1)
    await later(served.node, 10).look()
    assert starts(served, "t") == [ends[-1]]


async def test_older_messages_that_are_kept_are_no_reason_to_spare_others(served):
    """What a group needs frees nothing, so the next oldest go instead."""
    disk = Disk(served.node, served.disk)
    await topic(served, "u")
    await blocks(served, "t", 4)
    ends = await blocks(served, "u", 4)
    await alter(served, "t", retention_early_hours=1, retention_policy="keep")
    await alter(served, "u", retention_early_hours=1)
    disk.fill(0.86)
    await later(served.node, 10).look()
    assert starts(served, "t", "u") == [0, ends[2]]


async def test_a_block_that_takes_appends_ends_so_that_it_can_go_early(served):
    disk = Disk(served.node, served.disk)
    await served.client.put("t", 0, [message(bytes(KIB))])
    await alter(served, "t", retention_early_hours=1)
    disk.fill(0.95)
    await later(served.node, 1.1).look()
    log = channel_of(served.node).log
    await later(served.node, 1.1).look()
    assert log.start_offset == log.end_offset > 0


async def test_an_option_that_is_taken_back_between_plan_and_deletion_counts_at_once(
    served, monkeypatch
):
    """Also that of a topic with another limit, which the pass looks at all the same."""
    disk = Disk(served.node, served.disk)
    await blocks(served, "t", 3)
    await alter(served, "t", retention_early_hours=1, retention_hours=500)
    disk.fill(0.95)
    retainer = later(served.node, 10)
    plan = retainer._plan

    async def planned(channels):
        found = await plan(channels)
        assert found
        await alter(served, "t", retention_hours=500)
        return found

    monkeypatch.setattr(retainer, "_plan", planned)
    await retainer.look()
    assert starts(served, "t") == [0]


async def test_an_option_that_is_taken_back_while_disks_are_looked_at_counts_at_once(
    served, monkeypatch
):
    disk = Disk(served.node, served.disk)
    await blocks(served, "t", 3)
    await alter(served, "t", retention_early_hours=1)
    disk.fill(0.95)
    retainer = later(served.node, 10)
    pressed = retainer.relief.pressed

    async def slow():
        await alter(served, "t")
        return await pressed()

    monkeypatch.setattr(retainer.relief, "pressed", slow)
    await retainer.look()
    assert starts(served, "t") == [0]


async def archived(served, count: int, to: str | None) -> list[int]:
    """Write so many blocks that are archives; return where each ends."""
    ends = await blocks(served, "t", count)
    channel = channel_of(served.node)
    for block in list(channel.log.closed_blocks):
        await served.node.parts.partitions.logs.archiving.archive(channel, block, to)
    return ends


async def test_archives_that_lie_elsewhere_do_not_go_early(served):
    """They would free nothing, one after the other; the next oldest that do go instead."""
    disk = Disk(served.node, served.disk)
    await topic(served, "u")
    Failing.reset()
    await archived(served, 3, URL)
    ends = await blocks(served, "u", 3)
    settings = {"retention_policy": "archive", "archive_to": URL}
    await alter(served, "t", retention_early_hours=1, **settings)
    await alter(served, "u", retention_early_hours=1)
    disk.fill(0.95)
    await later(served.node, 10).look()
    assert starts(served, "t", "u") == [0, ends[-1]]


async def test_only_archives_go_early_where_blocks_become_archives(served):
    """Blocks that are not archives yet stay, although the disk stays too full."""
    disk = Disk(served.node, served.disk)
    ends = await archived(served, 3, None)
    log = channel_of(served.node).log
    assert sum(each.archive.zip_bytes for each in log.closed_blocks) < 30 * KIB / 5
    await blocks(served, "t", 2)
    await alter(served, "t", retention_early_hours=1, retention_policy="archive")
    disk.fill(0.95)
    await later(served.node, 10).look()
    assert starts(served, "t") == [ends[-1]]


async def test_under_pressure_a_pass_follows_soon_and_not_again_in_vain(served):
    """Five seconds, not a minute; one that frees nothing waits for the usual time."""
    later(served.node, 10)
    disk = Disk(served.node, served.disk)
    await blocks(served, "t", 3)
    await alter(served, "t", retention_early_hours=1)
    disk.fill(0.86)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await until(lambda: channel_of(served.node).start_offset > 0)
    assert loop.time() - begin <= 6
    disk.fill(0.95)
    await asyncio.sleep(4 * retaining.PRESSED_S)  # what can go has gone, and one pass was in vain
    last = passes(served.node)
    await asyncio.sleep(5 * retaining.PRESSED_S)
    assert passes(served.node) == last


# Levels -----------------------------------------------------------------------------------------
async def test_every_step_is_told_once_in_log_status_and_metrics(served, caplog):
    caplog.set_level(logging.INFO)
    disk = Disk(served.node, served.disk)
    client = served.client
    seen = []
    for share in (0.5, 0.8, 0.8, 0.86, 0.92, 0.92, 0.98, 0.96, 0.94, 0.89, 0.87, 0.84, 0.82, 0.5):
        disk.fill(share)
        told = (await client.status()).disks[0]
        families = {each.name: each for each in await served.node.families()}
        [sample] = families["vq_disk_level"].samples
        assert DiskLevel(int(sample.value)).name.lower() == told.level
        assert (told.directory, told.bytes_total) == (str(DATA), disk.total)
        seen.append(told.level)
        refuses = told.level in {"refuse", "stop"}
        if refuses:
            with pytest.raises(DiskFull):
                await client.put("t", 0, [message(b"x")])
        else:
            await client.put("t", 0, [message(b"x")])
    levels = "ok warn warn relieve refuse refuse stop stop refuse refuse relieve relieve warn ok"
    assert " ".join(seen) == levels
    lines = [each for each in caplog.records if "crossed a watermark" in each.getMessage()]
    assert len(lines) == 8


async def test_a_status_names_the_file_system_of_a_data_directory_that_is_there(served):
    """So that a reader counts the space of two brokers on one disk once."""
    watch = served.node.parts.disks.main
    served.disk.file_system_id = lambda path: "boot 8:1"
    watch.look_now()
    assert (await served.client.status()).disks[0].file_system == "boot 8:1"
    own_id, watch.own_id = watch.own_id, "another"  # as of what was mounted there
    watch.look_now()
    assert (await served.client.status()).disks[0].file_system == ""
    watch.own_id = own_id
    watch.look_now()
    assert (await served.client.status()).disks[0].file_system == "boot 8:1"


async def test_a_file_system_without_files_fills_in_the_same_steps(served):
    """A broker that can make no file can write no checkpoint, and so delete nothing."""
    files = [50]
    served.disk.free_files = lambda path: (files[0], 100)
    watch = served.node.parts.disks.main
    for left, level in ((50, "ok"), (20, "warn"), (14, "relieve"), (10, "refuse"), (13, "relieve")):
        files[0] = left
        watch.look_now()
        told = (await served.client.status()).disks[0]
        assert (told.level, told.files_free, told.files_total) == (level, left, 100)
        if level == "refuse":
            with pytest.raises(DiskFull, match=r"90\.0% full of files \(inodes\)"):
                await served.client.put("t", 0, [message(b"x")])
        else:
            await served.client.put("t", 0, [message(b"x")])
    families = {each.name: each for each in await served.node.families()}
    assert families["vq_disk_free_files"].samples[0].value == 13
    assert families["vq_disk_files"].samples[0].value == 100


async def test_one_block_at_a_time_goes_early_for_files(served):
    """How many bytes must go nobody can say, so it is looked again after each."""
    files = [10]
    served.disk.free_files = lambda path: (files[0], 100)
    ends = await blocks(served, "t", 3)
    await alter(served, "t", retention_early_hours=1)
    for number in range(2):
        await later(served.node, 2).look()
        assert starts(served, "t") == [ends[number]]
    files[0] = 50
    await later(served.node, 2).look()
    assert starts(served, "t") == [ends[1]]


async def test_a_disk_that_fills_within_a_day_is_told_once(served, caplog):
    disk = Disk(served.node, served.disk)
    watch = served.node.parts.disks.main
    clock = ManualClock(monotonic=served.node.parts.context.clock.monotonic())
    give_clock(watch, clock)
    for _ in range(40):
        clock.advance(120)
        disk.others += KIB  # 30 KiB an hour, of 900
        watch.look_now()
    assert watch.full_in_s == pytest.approx(29 * 3_600, rel=0.05)
    for _ in range(300):
        clock.advance(120)
        disk.others += KIB
        watch.look_now()
    assert watch.full_in_s == pytest.approx(18.6 * 3_600, rel=0.05)
    told = (await served.client.status()).disks[0]
    assert (told.growth_known, told.fills) == (True, True)
    assert told.growth_bytes_per_hour == pytest.approx(30 * KIB, rel=0.05)
    lines = [each.getMessage() for each in caplog.records if "disk fills up" in each.getMessage()]
    assert len(lines) == 1


# Copies -----------------------------------------------------------------------------------------
async def pair_blocks(pair, count: int) -> list[int]:
    ends = []
    for _ in range(count):
        await pair.put(5)
        await until(pair.same)
        for name in pair.nodes:
            pair.log(name).roll()
            await settled(pair.channel(name))
        ends.append(pair.log("n1").end_offset)
    return ends


async def status(pair, name: str):
    client = await Client.connect(pair.cluster.network, pair.nodes[name].address)
    try:
        return await client.status()
    finally:
        client.close()


async def allow_early(pair, hours: int = 1) -> None:
    wanted = TopicSettings(partitions=1, retention_early_hours=hours)
    async with pair.cluster.admin() as coordinator:
        await change_settings(coordinator, "t", wanted)
    await until(lambda: pair.channel("n1").settings == wanted)


async def test_a_master_deletes_early_for_the_full_disk_of_a_copy_once(node_pair, monkeypatch):
    """The copy publishes how much; until it had time to follow, nothing more goes for it."""
    pair = node_pair
    ends = await pair_blocks(pair, 4)
    await allow_early(pair)
    excess = ends[1] - 100
    async with pair.cluster.admin() as coordinator:
        path = BrokerLoad.path("b1", "n2")
        load = BrokerLoad(disk_excess_bytes=excess).encode()
        async with asyncio.timeout(WAIT_S):
            while await coordinator.exists(path) is None:
                await asyncio.sleep(0.001)
        await coordinator.set(path, load)
        retainer = later(pair.nodes["n1"], 2)
        await retainer.look()
        assert pair.log("n1").start_offset == ends[1]
        await until(lambda: pair.log("n2").start_offset == ends[1])
        await coordinator.set(path, load)
        await retainer.look()
        assert pair.log("n1").start_offset == ends[1]
        monkeypatch.setattr(relief, "FOLLOW_S", 0.0)
        retainer.relief.copies_wait_until = 0.0
        await coordinator.set(path, load)
        await retainer.look()
        assert pair.log("n1").start_offset == ends[3]


async def test_small_archives_of_the_master_are_no_reason_to_delete_more_for_a_copy(node_pair):
    """Its blocks need not be archives; one that frees too little says so once it has followed."""
    pair = node_pair
    ends = await pair_blocks(pair, 4)
    await allow_early(pair)
    channel = pair.channel("n1")
    for block in list(channel.log.closed_blocks):
        await pair.nodes["n1"].parts.partitions.logs.archiving.archive(channel, block)
    async with pair.cluster.admin() as coordinator:
        load = BrokerLoad(disk_excess_bytes=ends[1] - 100).encode()
        await coordinator.create(BrokerLoad.path("b1", "n3"), load, ephemeral=True)
        await later(pair.nodes["n1"], 2).look()
    assert pair.log("n1").start_offset == ends[1]


async def test_a_master_deletes_early_for_a_copy_that_is_not_in_sync(node_pair):
    """A full disk may have taken it out of the set, and nothing else would bring it back."""
    pair = node_pair
    ends = await pair_blocks(pair, 2)
    await allow_early(pair)
    async with pair.cluster.admin() as coordinator:
        load = BrokerLoad(disk_excess_bytes=1).encode()
        await coordinator.create(BrokerLoad.path("b1", "n3"), load, ephemeral=True)
        await later(pair.nodes["n1"], 2).look()
    assert pair.log("n1").start_offset == ends[0]


async def test_a_node_publishes_how_much_must_go(node_pair):
    pair = node_pair
    disk = Disk(pair.nodes["n2"], pair.disk("n2"))
    disk.fill(0.95)
    path = BrokerLoad.path("b1", "n2")
    async with pair.cluster.admin() as coordinator:

        async def told() -> bool:
            load = BrokerLoad.decode(path, (await coordinator.get(path)).data)
            return load.disk_excess_bytes == round(0.12 * disk.total)

        await until_true(told)


@pytest.mark.slow
async def test_a_copy_takes_nothing_beyond_the_last_mark_and_deletes_like_its_master(node_pair):
    """It leaves the set, sends go on, and it comes back by itself once there is space."""
    pair = node_pair
    ends = await pair_blocks(pair, 3)
    disk = Disk(pair.nodes["n2"], pair.disk("n2"))
    disk.fill(0.98)
    await pair.put(5)
    await until(lambda: pair.nodes["n1"].parts.context.role.named == 1)
    assert pair.log("n2").end_offset == ends[-1]
    told = (await status(pair, "n2")).problems
    assert any("nothing is copied from 97%" in each for each in told), told
    await pair.delete(ends[1])
    await until(lambda: pair.log("n2").start_offset == ends[1])
    assert pair.log("n2").end_offset == ends[-1]
    disk.others = 0
    pair.nodes["n2"].parts.disks.main.look_now()
    await until(pair.same)
    await pair.in_sync()


async def test_a_copy_goes_on_between_refusing_messages_and_the_last_mark(node_pair):
    """Whether messages are taken is for the master and min_insync to say."""
    pair = node_pair
    disk = Disk(pair.nodes["n2"], pair.disk("n2"))
    disk.fill(0.93)
    node = pair.nodes["n2"]
    assert isinstance(node.parts.disks.main.place.refusal, DiskFull)
    end = pair.log("n2").end_offset
    await pair.put(5)
    await until(pair.same)
    assert pair.log("n2").end_offset > end
    assert pair.nodes["n1"].parts.context.role.named == 2
