"""What a node takes to be missing, and when its next start knows it."""

import asyncio
from pathlib import Path

from vq.broker.base.runner import InlineRunner
from vq.broker.base.tasks import Tasks
from vq.broker.replication.doubt import Doubt
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.unflushed import Unflushed

DATA = Path("/data")


def new_disk() -> MemoryDisk:
    disk = MemoryDisk()
    disk.mkdir(DATA)
    return disk


async def test_a_log_that_is_cut_while_the_last_doubt_ends_is_known_to_the_next_start() -> None:
    disk = new_disk()
    mark = Unflushed.load(DATA, disk)
    mark.doubt()
    doubt = Doubt(mark, InlineRunner(), Tasks())
    doubt.end()  # written on a thread, in a moment
    mark.doubt()  # another thread: a log is about to be cut
    await asyncio.sleep(0.01)
    assert doubt.lost
    assert Unflushed.load(DATA, disk).lost


async def test_a_doubt_that_ended_is_over_for_the_next_start() -> None:
    disk = new_disk()
    doubt = Doubt(Unflushed.load(DATA, disk), InlineRunner(), Tasks())
    doubt.begin_now()
    await asyncio.sleep(0.01)
    assert Unflushed.load(DATA, disk).lost
    doubt.end()
    await asyncio.sleep(0.01)
    assert not Unflushed.load(DATA, disk).lost
