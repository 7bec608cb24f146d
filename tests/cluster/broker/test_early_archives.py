"""A disk that is too full: blocks become archives early, of topics whose blocks become archives."""

import asyncio
import errno
import logging
import random

import pytest
from support.archive_places import URL, Failing
from support.broker import DATA, message
from support.late_clock import LateClock, give_clock
from support.node_pair import settled

from vq.broker.disks.disk_watch import DiskLevel, DiskWatch, Marks
from vq.broker.history import early_archives
from vq.broker.history.early_archives import EarlyArchiver, fits
from vq.broker.partition.channel import Channel
from vq.coordination.topics.topics import change_settings
from vq.errors import Busy
from vq.model import TopicSettings
from vq.store.archive import archive_writer
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

KIB = 1024


@pytest.fixture(autouse=True)
def place() -> None:
    """Empty the place elsewhere, and have it answer."""
    Failing.reset()


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disks, blocks and chunks are small here."""
    monkeypatch.setattr(early_archives, "ROOM_BYTES", 10 * KIB)
    monkeypatch.setattr(archive_writer, "CHUNK_BYTES", 2 * KIB)


class Disk:
    """The disk of a node, as full as a test says, plus what the logs of the node have there."""

    def __init__(self, node, disk) -> None:
        self._node = node
        self.total = 1_000 * KIB
        self.others = 0
        disk.free_space = lambda path: (self.total - self.used, self.total)

    @property
    def used(self) -> int:
        used = self.others
        for channel in self._node.parts.partitions.channels.values():
            log = channel.log
            for block in () if log is None else [*log.closed_blocks, log.open_block]:
                if block is not None and block.archive is None:
                    used += block.length
                elif block is not None and not block.archive.url:
                    used += block.archive.zip_bytes
        return used

    def fill(self, share: float) -> None:
        """Have a stranger take so much that this share is in use now."""
        self.others += round(share * self.total) - self.used
        self._node.parts.disks.main.look_now()


def channel_of(served, topic: str = "t", partition: int = 0) -> Channel:
    return served.node.parts.partitions.channels[topic, partition]


async def blocks(served, count: int, topic: str = "t", content: bytes = bytes(10 * KIB)) -> None:
    """Write so many closed blocks of 10 KiB."""
    for _ in range(count):
        await served.client.put(topic, 0, [message(content)])
        channel_of(served, topic).log.roll()
        await settled(channel_of(served, topic))


async def alter(served, topic: str, **settings: object) -> None:
    async with served.cluster.admin() as coordinator:
        before = served.node.parts.partitions.view.topics[topic].settings
        wanted = TopicSettings(**{"partitions": before.partitions, **settings})
        await change_settings(coordinator, topic, wanted)
    await until(lambda: channel_of(served, topic).settings == wanted)


def archiver(served) -> EarlyArchiver:
    return served.node.parts.upkeep.early_archiver


def archived(served, topic: str = "t") -> list[bool]:
    return [each.is_archived for each in channel_of(served, topic).log.closed_blocks]


async def test_blocks_become_archives_beside_the_log_until_the_disk_has_space(served, caplog):
    """From 86 % down to 83 %: some 30 KiB, the oldest blocks; nothing is deleted."""
    caplog.set_level(logging.INFO)
    disk = Disk(served.node, served.disk)
    await blocks(served, 6)
    await alter(served, "t", retention_policy="archive")
    await archiver(served).look()
    assert not any(archived(served)), "there is space"
    disk.fill(0.86)
    await archiver(served).look()
    assert archived(served) == [True] * 4 + [False] * 2
    assert served.node.parts.disks.main.watch.level is DiskLevel.WARN
    counters = served.node.parts.context.counters
    assert counters.archived_early_bytes == counters.archived_bytes > 40 * KIB
    assert (counters.archived_blocks, counters.deleted_bytes) == (4, 0)
    _, body = await served.client.get("t", 0, 0)
    assert len(body) > 10 * KIB
    [line] = [each.getMessage() for each in caplog.records if "archived early" in each.message]
    assert "topic=t blocks=4" in line
    families = {each.name: each for each in await served.node.families()}
    [sample] = families["vq_archived_early_bytes"].samples
    assert sample.value == counters.archived_early_bytes


async def test_only_blocks_of_topics_with_archives_become_archives(served):
    """The oldest of these first, over all topics."""
    disk = Disk(served.node, served.disk)
    for name in ("keeps", "new"):
        await served.cluster.create_topic(name, partitions=1)
    await until(lambda: ("new", 0) in served.node.parts.partitions.channels)
    await blocks(served, 2)
    await blocks(served, 2, "keeps")
    await blocks(served, 4, "new")
    await alter(served, "keeps", retention_policy="keep", archive_after_hours=1)
    await alter(served, "new", retention_policy="archive")
    disk.fill(0.86)
    await archiver(served).look()
    found = [archived(served, each) for each in ("t", "keeps", "new")]
    assert found == [[False] * 2, [True] * 2, [True] * 2 + [False] * 2]


async def test_archives_elsewhere_are_made_at_any_level_and_free_whole_blocks(served):
    """Also of noise, and where there is no space for a zip."""
    disk = Disk(served.node, served.disk)
    await blocks(served, 5, content=random.Random(5).randbytes(10 * KIB))
    await alter(served, "t", retention_policy="archive", archive_to=URL)
    disk.fill(0.99)
    await archiver(served).look()
    assert archived(served) == [True] * 5
    assert disk.used < 0.95 * disk.total


async def test_nothing_is_made_beside_the_log_that_may_not_fit(served):
    disk = Disk(served.node, served.disk)
    await blocks(served, 3)
    await alter(served, "t", retention_policy="archive")
    disk.fill(0.969)
    await archiver(served).look()
    assert not any(archived(served))
    disk.fill(0.95)
    await archiver(served).look()
    assert all(archived(served))


async def test_a_zip_beside_the_log_is_given_up_when_the_disk_fills_up_meanwhile(
    served, monkeypatch
):
    """Nothing of it is left, and it is not tried again before there was space."""
    disk = Disk(served.node, served.disk)
    await blocks(served, 2, content=random.Random(5).randbytes(10 * KIB))
    await alter(served, "t", retention_policy="archive")
    early, tries = archiver(served), 0
    logs = served.node.parts.partitions.logs
    archive = logs.archiving.archive

    async def filled(channel, block, to, still):
        nonlocal tries
        tries += 1
        asked = 0

        def fill_up() -> bool:
            nonlocal asked
            asked += 1
            if asked == 3:
                disk.fill(0.965)
            return still()

        return await archive(channel, block, to, fill_up)

    monkeypatch.setattr(logs.archiving, "archive", filled)
    disk.fill(0.95)
    for _ in range(2):
        await early.look()
    assert (tries, archived(served)) == (1, [False] * 2)
    assert not [name for name in served.disk.listdir(DATA / "t" / "0") if "zip" in name]
    monkeypatch.setattr(logs.archiving, "archive", archive)
    for share, count in ((0.95, 0), (0.5, 0), (0.95, 1)):
        disk.fill(share)
        await early.look()
        assert sum(archived(served)) == count


async def test_blocks_that_hardly_get_smaller_are_left_alone_until_there_was_space(served):
    """Noise: one is tried, and costs time and space in vain."""
    disk = Disk(served.node, served.disk)
    await blocks(served, 4, content=random.Random(5).randbytes(10 * KIB))
    await alter(served, "t", retention_policy="archive")
    for share, count in ((0.9, 1), (0.9, 1), (0.5, 1), (0.9, 2)):
        disk.fill(share)
        await archiver(served).look()
        assert sum(archived(served)) == count


async def test_a_place_on_the_same_disk_counts_as_beside_the_log(served, tmp_path, monkeypatch):
    """What lies at a file URL takes space, too; where that cannot be told, it may."""
    disk = Disk(served.node, served.disk)
    await blocks(served, 2)
    await alter(served, "t", retention_policy="archive", archive_to=f"file://{tmp_path}/archives")
    disk.fill(0.99)
    await archiver(served).look()
    assert not any(archived(served))
    monkeypatch.setattr(early_archives, "lies_on_disk", lambda url, directory: False)
    await archiver(served).look()
    assert all(archived(served))


async def test_the_block_that_takes_messages_ends_once_it_is_an_hour_old(served):
    disk = Disk(served.node, served.disk)
    await served.client.put("t", 0, [message(bytes(KIB))])
    await alter(served, "t", retention_policy="archive")
    disk.fill(0.9)
    early = archiver(served)
    await early.look()
    assert archived(served) == []
    give_clock(early, LateClock(served.node.parts.context.clock, 1.1))
    await early.look()
    await settled(channel_of(served))
    await early.look()
    assert archived(served) == [True]


async def test_a_block_that_cannot_be_archived_stops_no_other_topic_and_is_told_once(
    served, caplog, monkeypatch
):
    disk = Disk(served.node, served.disk)
    await served.cluster.create_topic("u", partitions=1)
    await until(lambda: ("u", 0) in served.node.parts.partitions.channels)
    for name in ("t", "u"):
        await blocks(served, 2, name)
        await alter(served, name, retention_policy="archive")
    early = archiver(served)
    logs = served.node.parts.partitions.logs
    archive = logs.archiving.archive

    async def fail(channel, *given):
        if channel.partition.topic == "t":
            raise OSError(errno.EIO, "Input/output error")
        return await archive(channel, *given)

    monkeypatch.setattr(logs.archiving, "archive", fail)
    disk.fill(0.95)
    for _ in range(2):
        await early.look()
    assert (archived(served), archived(served, "u")) == ([False] * 2, [True] * 2)
    told = [each for each in caplog.records if "cannot be archived early" in each.getMessage()]
    assert len(told) == 1


async def test_a_topic_that_is_altered_meanwhile_is_left_alone(served, monkeypatch):
    """No archive of it is made once its blocks are to stay blocks."""
    disk = Disk(served.node, served.disk)
    await blocks(served, 3)
    await alter(served, "t", retention_policy="archive")
    early = archiver(served)
    logs = served.node.parts.partitions.logs
    archive = logs.archiving.archive

    async def altered(channel, block, to, still):
        await alter(served, "t")
        return await archive(channel, block, to, still)

    monkeypatch.setattr(logs.archiving, "archive", altered)
    disk.fill(0.95)
    await early.look()
    assert not any(archived(served))


async def test_the_disks_are_looked_at_again_and_again(served):
    disk = Disk(served.node, served.disk)
    await blocks(served, 3)
    await alter(served, "t", retention_policy="archive")
    disk.fill(0.95)
    begun = asyncio.get_running_loop().time()
    await until(lambda: all(archived(served)))
    assert asyncio.get_running_loop().time() - begun < 10


async def test_a_disk_where_nothing_is_left_is_looked_at_less_often(served, monkeypatch):
    """A look reads the times of the blocks of all partitions."""
    disk = Disk(served.node, served.disk)
    await alter(served, "t", retention_policy="archive")
    early, looks = archiver(served), []
    relieve = early._relieve

    async def noted(disk):
        looks.append(asyncio.get_running_loop().time())
        return await relieve(disk)

    monkeypatch.setattr(early, "_relieve", noted)
    disk.fill(0.95)
    await asyncio.sleep(305)
    assert 5 <= len(looks) <= 6
    disk.fill(0.5)
    await asyncio.sleep(6)
    await blocks(served, 1)
    disk.fill(0.95)
    await asyncio.sleep(6)
    assert archived(served) == [True]


async def test_a_place_that_does_not_answer_is_waited_for_once(served, monkeypatch, caplog):
    """Not once for each partition: a step may wait a minute."""
    disk = Disk(served.node, served.disk)
    await blocks(served, 2)
    await served.client.put("t", 1, [message(bytes(KIB))])
    channel_of(served, "t", 1).log.roll()
    await settled(channel_of(served, "t", 1))
    await alter(served, "t", retention_policy="archive", archive_to=URL)
    early, tries = archiver(served), 0

    async def silent(*given):
        nonlocal tries
        tries += 1
        raise Busy("the place of an archive cannot be reached")

    monkeypatch.setattr(served.node.parts.partitions.logs.archiving, "archive", silent)
    disk.fill(0.95)
    await early.look()
    assert tries == 1
    assert "cannot be archived early" in caplog.text


def test_a_zip_fits_below_the_mark_at_which_copies_stop():
    watch = DiskWatch(Marks())
    watch.observe(100, 1_000)
    assert [fits(watch, size) for size in (0, 69, 70, 71)] == [True, True, False, False]


async def test_a_copy_archives_the_end_of_a_quiet_partition_early(node_pair):
    """It has to ask its master whether that is committed."""
    wanted = TopicSettings(partitions=1, retention_policy="archive")
    async with node_pair.cluster.admin() as coordinator:
        await change_settings(coordinator, "t", wanted)
    await until(lambda: node_pair.channel("n2").settings == wanted)
    node, channel, log = node_pair.nodes["n2"], node_pair.channel("n2"), node_pair.log("n2")
    log.roll()
    await settled(channel)
    channel.high_watermark = channel.copies.told = 0
    node_pair.disk("n2").free_space = lambda path: (150, 1000)
    node.parts.disks.main.look_now()
    early = node.parts.upkeep.early_archiver
    logs = node.parts.partitions.logs
    monkey = logs.archiving.archive
    done = []

    async def archive(channel, block, to, still):
        done.append(block.start_offset)
        return await monkey(channel, block, None, still)

    logs.archiving.archive = archive
    await early.look()
    assert done == [0]
