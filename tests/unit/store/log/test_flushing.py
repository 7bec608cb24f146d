"""What the next flush of a log takes along."""

import pytest
from support.store import DIRECTORY, SMALL, memory_disk

from vq.errors import InvalidState
from vq.store.disk.memory_disk import MemoryDisk
from vq.store.log.block import Block, BlockCache
from vq.store.log.blocks import Blocks
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.flushing import Flushing
from vq.store.log.log_config import LogState
from vq.store.log.log_status import LogStatus
from vq.store.log.recovered import Recovered
from vq.store.log.ticket import SyncTicket
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.scan import LogFacts

CHECKPOINT = Checkpoint(topic_id="t1", start_offset=0, offset=0)


def make(disk: MemoryDisk | None = None, **fields: int) -> tuple[Flushing, LogStatus, BlockCache]:
    """The flushing of a log that ends at 0, or as ``fields`` say."""
    cache = BlockCache()
    recovered = Recovered(0, 0, LogFacts())
    status = LogStatus(directory=DIRECTORY, start_offset=0, **fields)
    flushing = Flushing(
        recovered,
        status=status,
        blocks=Blocks(),
        config=SMALL,
        disk=disk or memory_disk(),
        cache=cache,
    )
    return flushing, status, cache


def begin(flushing: Flushing) -> SyncTicket | None:
    """Begin a flush."""
    return flushing.begin(lambda: CHECKPOINT)


def open_block(disk: MemoryDisk, cache: BlockCache) -> Block:
    """A block that takes appends, with its index."""
    disk.mkdir(DIRECTORY)
    block = Block(DIRECTORY, 0, disk=disk, cache=cache)
    block.open(create=True)
    block.index, block.messages = OffsetIndex(0, messages_before=0), 0
    block.index_saved = False
    return block


def test_nothing_new_needs_no_flush() -> None:
    """Nor does a log whose flush is under way get a second one."""
    flushing, _, _ = make(end_offset=0)
    assert begin(flushing) is None
    flushing.checkpoint_wanted = True
    ticket = begin(flushing)
    assert ticket is not None
    flushing.checkpoint_wanted = True
    assert flushing.under_way
    assert begin(flushing) is None
    flushing.take_back(ticket)
    assert begin(flushing) is not None


def test_a_ticket_of_nobody_is_refused() -> None:
    """Only the one that is out comes back, and once."""
    flushing, _, _ = make(end_offset=0)
    flushing.checkpoint_wanted = True
    ticket = begin(flushing)
    assert ticket is not None
    flushing.take_back(ticket)
    with pytest.raises(InvalidState):
        flushing.take_back(ticket)


def test_a_log_that_failed_is_flushed_no_more() -> None:
    """And the ticket that was out proves nothing any more."""
    flushing, status, _ = make(end_offset=50)
    flushing.synced_offset = 0
    flushing.checkpoint_wanted = True
    ticket = begin(flushing)
    assert ticket is not None
    status.state = LogState.FAILED
    flushing.take_back(ticket)
    assert flushing.synced_offset == 0
    flushing.checkpoint_wanted = True
    assert begin(flushing) is None


@pytest.mark.parametrize(
    ("end_offset", "batches", "due"),
    [
        (SMALL.checkpoint_bytes - 1, SMALL.checkpoint_batches - 1, False),
        (SMALL.checkpoint_bytes, 1, True),
        (1, SMALL.checkpoint_batches, True),
    ],
)
def test_a_checkpoint_is_due_after_so_many_bytes_or_batches(
    end_offset: int, batches: int, due: bool
) -> None:
    """The next one is due as far behind this one."""
    disk = memory_disk()
    flushing, status, cache = make(disk, end_offset=end_offset)
    block = open_block(disk, cache)
    block.length = end_offset
    flushing.note_dirty(block)
    flushing.batches = batches
    ticket = begin(flushing)
    assert ticket is not None
    assert (ticket.checkpoint is CHECKPOINT) is due
    flushing.take_back(ticket)
    flushing.note_dirty(block)
    status.end_offset += 1
    ticket = begin(flushing)
    assert ticket is not None
    if due:
        assert ticket.checkpoint is None


def test_what_a_ticket_took_along_is_forgotten_when_it_succeeded() -> None:
    """An index goes with the first checkpoint that was written, and not with one that was not."""
    disk = memory_disk()
    flushing, _, cache = make(disk, end_offset=50, messages=3)
    block = open_block(disk, cache)
    block.length = 50
    flushing.note_dirty(block)
    flushing.note_dirty(block)
    flushing.note_ended(block)
    for written in (False, True):
        ticket = begin(flushing)
        assert ticket is not None
        assert [each for each, _ in ticket.indexes] == [block]
        assert len(ticket.files) == (not written)
        ticket.checkpoint_written = written
        flushing.take_back(ticket)
        assert (flushing.synced_offset, flushing.messages_synced) == (50, 3)
        assert block.index_saved is written
        flushing.checkpoint_wanted = True
    ticket = begin(flushing)
    assert ticket is not None
    assert ticket.indexes == []


def test_a_dropped_block_is_deleted_by_a_later_ticket_if_one_could_not() -> None:
    """Its index is not saved any more."""
    disk = memory_disk()
    flushing, _, cache = make(disk, end_offset=50)
    block = open_block(disk, cache)
    flushing.note_ended(block)
    flushing.note_dropped(block)
    for _ in range(2):
        ticket = begin(flushing)
        assert ticket is not None
        assert (ticket.indexes, ticket.doomed) == ([], [block.path])
        flushing.take_back(ticket)
        flushing.checkpoint_wanted = True
    ticket = begin(flushing)
    assert ticket is not None
    ticket.doomed = []
    flushing.take_back(ticket)
    assert flushing.doomed == []
