"""The log against a list: whatever is done in whatever order, both tell the same."""

import google_crc32c
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.store import (
    DIRECTORY,
    blocks_of,
    memory_disk,
    open_log,
    records,
    restore,
    write_archive,
)

from vq.clock import ManualClock
from vq.errors import Busy, DiskFull, InvalidState, OffsetNotBoundary, OffsetOutOfRange
from vq.model import ProducerStamp
from vq.store.disk.memory_disk import keep_all, keep_none
from vq.store.log.block import Block, BlockCache
from vq.store.log.log_config import LogState
from vq.store.records.format import CONTROL_BYTES
from vq.store.records.record import encode_record


class LogAgainstList(RuleBasedStateMachine):
    """The model: a list of batches (start, end, time, payloads, epoch), how many are durable."""

    @initialize()
    def begin(self) -> None:
        self.disk = memory_disk()
        self.clock = ManualClock(wall_ms=1_000)
        self.open()
        self.batches: list[tuple[int, int, int, list[bytes], int]] = []
        self.epoch = 1
        self.synced = 0
        self.last_time = 0
        self.ticket = None
        self.ticket_covers = 0
        self.sequence = 0
        self.maybe_dropped = False

    def open(self) -> None:
        # Whoever reads here may wait until an archive is decompressed.
        self.log = open_log(self.disk, clock=self.clock, cache=BlockCache(16, waits=True))

    # What can happen ----------------------------------------------------------------------------
    @rule(payloads=st.lists(st.binary(max_size=900), min_size=1, max_size=4))
    def append(self, payloads: list[bytes]) -> None:
        body = b"".join(encode_record(1, p) for p in payloads)
        end = self.log.end_offset
        start = self.log.append(
            body,
            record_count=len(payloads),
            records_crc=google_crc32c.value(body),
            epoch=self.epoch,
            stamp=ProducerStamp(7, 0, self.sequence),
        )
        assert start == end
        self.sequence += 1
        self.last_time = max(self.last_time, self.clock.wall_ms())
        end = start + CONTROL_BYTES + len(body)
        self.batches.append((start, end, self.last_time, payloads, self.epoch))

    @rule(room=st.integers(0, 300))
    def append_to_a_full_disk(self, room: int) -> None:
        free, total = self.disk.free_space(DIRECTORY.parent)
        self.disk.capacity_bytes = total - free + room
        try:
            self.append([bytes(700)])
        except DiskFull:
            pass
        self.disk.capacity_bytes = None

    @rule(seconds=st.integers(-3, 10))
    def time_passes_or_is_set_back(self, seconds: int) -> None:
        self.clock.step_wall_ms(seconds * 1000)

    @rule(step=st.integers(1, 3))
    def another_master(self, step: int) -> None:
        self.epoch += step

    @precondition(lambda self: self.ticket is None)
    @rule()
    def begin_flush(self) -> None:
        self.ticket = self.log.begin_sync()
        self.ticket_covers = self.log.end_offset

    @precondition(lambda self: self.ticket is not None)
    @rule()
    def end_flush(self) -> None:
        self.ticket.run()
        self.log.finish_sync(self.ticket)
        self.ticket = None
        self.synced = self.ticket_covers
        assert self.log.synced_offset == self.synced
        self.forget_dropped()

    def forget_dropped(self) -> None:
        self.maybe_dropped = False

    @precondition(lambda self: self.ticket is None)
    @rule(clean=st.booleans(), power=st.booleans())
    def restart(self, clean: bool, power: bool) -> None:
        """Stop or kill the process, or cut the power and lose all that was not synced."""
        if clean:
            self.log.close()
            self.synced = self.log.end_offset
        lose = power and not self.maybe_dropped
        self.disk = self.disk.crash(keep_none if lose else keep_all)
        start = self.log.start_offset
        self.open()
        if lose:  # what was written between the ticket and its fdatasync may be there all the same
            assert self.log.end_offset >= self.synced
            self.batches = [b for b in self.batches if b[1] <= self.log.end_offset]
            self.sequence = len(self.batches)
        self.synced = self.log.end_offset
        # A start that moved without a flush may have moved back.
        assert self.log.start_offset <= start
        self.last_time = self.batches[-1][2] if self.batches else 0

    @rule(share=st.floats(0, 1), roll=st.booleans())
    def retention(self, share: float, roll: bool) -> None:
        if roll:
            self.log.roll()
        target = int(self.log.end_offset * share)
        before = self.log.start_offset
        freed = self.log.drop_before(target)
        assert self.log.start_offset == before + freed <= max(before, min(target, self.synced))
        self.maybe_dropped = self.maybe_dropped or freed > 0

    @rule()
    def seal_and_unseal(self) -> None:
        assert self.log.seal() == self.log.end_offset
        assert self.log.state is LogState.SEALED
        self.log.unseal()

    @rule(share=st.floats(0, 1), at_once=st.booleans())
    def archive_a_block(self, share: float, at_once: bool) -> None:
        if self.ticket is None:
            self.log.roll()
            self.begin_flush()
            if self.ticket is not None:
                self.end_flush()
        blocks = [block for block in blocks_of(self.log) if self.is_archivable(block)]
        if blocks:
            block = blocks[int(share * (len(blocks) - 1))]
            stub = write_archive(self.disk, block, chunk_bytes=700)
            if at_once or share < 0.8:  # otherwise the process dies, or gives it up
                self.log.use_archive(block, stub.archive)

    def is_archivable(self, block: Block) -> bool:
        try:
            self.log.check_archivable(block)
        except (Busy, InvalidState):
            return False
        return True

    @rule(share=st.floats(0, 1))
    def restore_a_block(self, share: float) -> None:
        blocks = [block for block in blocks_of(self.log) if block.is_archived]
        if blocks:
            block = blocks[int(share * (len(blocks) - 1))]
            try:
                self.log.check_restorable(block)
            except Busy:
                return
            restore(self.disk, self.log, block)

    # What must be the same ----------------------------------------------------------------------
    def kept(self) -> list[tuple[int, int, int, list[bytes], int]]:
        return [b for b in self.batches if b[0] >= self.log.start_offset]

    @invariant()
    def same_records(self) -> None:
        log = self.log
        assert [r.payload for r in records(log)] == [p for b in self.kept() for p in b[3]]
        assert log.end_offset == (self.batches[-1][1] if self.batches else 0)
        assert log.messages == sum(len(b[3]) for b in self.kept())
        assert log.start_offset <= log.synced_offset <= log.end_offset

    @invariant()
    def same_producer(self) -> None:
        for back, batch in enumerate(reversed(self.batches[-5:])):
            stamp = ProducerStamp(7, 0, self.sequence - 1 - back)
            assert self.log.producers.check(stamp) == batch[0]

    @rule(at=st.integers(-50, 20_000))
    def same_boundaries(self, at: int) -> None:
        edges = {self.log.end_offset}
        for start, _, _, payloads, _ in self.kept():
            edges.add(start)
            start += CONTROL_BYTES
            for payload in payloads:
                edges.add(start)
                start += 20 + len(payload)
        if at in edges:
            self.log.reader.check_boundary(at)
        elif self.log.start_offset <= at <= self.log.end_offset:
            with pytest.raises(OffsetNotBoundary) as caught:
                self.log.reader.check_boundary(at)
            assert caught.value.details["next"] == min(e for e in edges if e > at)
        else:
            with pytest.raises(OffsetOutOfRange):
                self.log.reader.check_boundary(at)

    @rule(time=st.integers(-10_000, 60_000))
    def same_times(self, time: int) -> None:
        young = [b[0] for b in self.kept() if b[2] >= time]
        assert self.log.reader.offset_at_time(time) == min(young, default=self.log.end_offset)

    @rule(epoch=st.integers(0, 30))
    def same_epochs(self, epoch: int) -> None:
        ends = [(b[4], b[1]) for b in self.kept() if b[4] <= epoch]
        if self.kept():
            assert self.log.reader.epoch_end(epoch) == max(ends, default=None)

    @rule()
    def same_copy(self) -> None:
        """Another log that is fed with the framed bytes."""
        log = self.log
        copy = open_log(memory_disk(), start_offset=log.start_offset)
        while (offset := copy.end_offset) < log.end_offset:
            view = log.reader.read(offset, 1 << 20, log.end_offset)
            assert copy.append_framed(bytes(view)) == offset + len(view)
        assert records(copy) == records(log)
        for epoch in {b[4] for b in self.kept()}:
            assert copy.reader.epoch_end(epoch) == log.reader.epoch_end(epoch)

    @rule(low=st.integers(0, 20_000), size=st.integers(0, 20_000))
    def same_counts(self, low: int, size: int) -> None:
        expected = 0
        for start, _, _, payloads, _ in self.kept():
            at = start + CONTROL_BYTES
            for payload in payloads:
                expected += low <= at < low + size
                at += 20 + len(payload)
        inside = self.log.start_offset <= low and low + size <= self.log.end_offset
        assert self.log.reader.count(low, low + size) == (expected, inside)


LogAgainstList.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestLogAgainstList = LogAgainstList.TestCase
