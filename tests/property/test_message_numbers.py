"""Message numbers of a partition against a list: over moves, copies, archives, cuts, restarts."""

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.store import append, archive, flush, memory_disk, open_log, restore

from vq.store.care.divergence import cut_back
from vq.store.disk.memory_disk import keep_all, keep_none
from vq.store.log.block import BlockCache
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.store.records.format import CHECKPOINT_NAME, CONTROL_BYTES

shares = st.floats(0, 1)


class NumbersAgainstList(RuleBasedStateMachine):
    """The model: where each message of the partition that ever was begins, by its number.

    Each span is a log in a directory of its own; the last one takes appends.
    """

    @initialize()
    def begin(self) -> None:
        self.disk = memory_disk()
        self.messages: list[int] = []
        self.batches: list[tuple[int, int]] = []  # where each begins and ends
        self.spans: list[Path] = []
        self.copies = 0
        self.logs: list[Log] = []
        self.add(Path("/data/orders/0"), 0, None)

    def add(self, directory: Path, start: int, number: int | None) -> None:
        self.spans.append(directory)
        self.logs.append(self.open(directory, start, number))

    def open(self, directory: Path, start: int = 0, number: int | None = None) -> Log:
        cache = BlockCache(16, waits=True)
        return open_log(self.disk, directory, start_offset=start, number=number, cache=cache)

    @property
    def log(self) -> Log:
        return self.logs[-1]

    # What can happen ----------------------------------------------------------------------------
    @rule(sizes=st.lists(st.integers(0, 700), min_size=1, max_size=5))
    def append(self, sizes: list[int]) -> None:
        start = append(self.log, *map(bytes, sizes))
        self.batches.append((start, self.log.end_offset))
        at = start + CONTROL_BYTES
        for size in sizes:
            self.messages.append(at)
            at += 20 + size
        assert at == self.log.end_offset

    @rule()
    def flush(self) -> None:
        flush(self.log)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(clean=st.booleans(), power=st.booleans())
    def restart(self, clean: bool, power: bool) -> None:
        if clean:
            for log in self.logs:
                log.close()
        self.disk = self.disk.crash(keep_none if power else keep_all)
        starts = [log.start_offset for log in self.logs]
        self.logs = [self.open(path) for path in self.spans]
        assert [log.start_offset for log in self.logs] == starts
        self.forget(self.log.end_offset)

    def forget(self, end: int) -> None:
        """What lies behind ``end`` is gone, and its numbers are given again."""
        self.messages = [at for at in self.messages if at < end]
        self.batches = [each for each in self.batches if each[1] <= end]

    @rule(share=shares, span=shares)
    def retention(self, share: float, span: float) -> None:
        log = self.logs[int(span * (len(self.logs) - 1))]
        flush(log)
        log.drop_before(log.start_offset + int((log.end_offset - log.start_offset) * share))
        flush(log)

    @rule(share=shares, span=shares)
    def archive_a_block(self, share: float, span: float) -> None:
        log = self.logs[int(span * (len(self.logs) - 1))]
        log.roll()
        flush(log)
        blocks = [each for each in log.closed_blocks if each.length and not each.is_archived]
        if blocks:
            archive(self.disk, log, blocks[int(share * (len(blocks) - 1))], chunk_bytes=700)

    @rule(share=shares)
    def restore_a_block(self, share: float) -> None:
        blocks = [each for each in self.log.closed_blocks if each.is_archived]
        if blocks:
            block = blocks[int(share * (len(blocks) - 1))]
            self.log.check_restorable(block)
            restore(self.disk, self.log, block)
            flush(self.log)

    @rule()
    def an_index_is_lost(self) -> None:
        """It is only made again when somebody needs it."""
        for log in self.logs:
            log.close()
        for directory in self.spans:
            names = self.disk.listdir(directory) if self.disk.exists(directory) else []
            for name in [each for each in names if each.endswith(".index")][:1]:
                self.disk.unlink(directory / name)
        self.logs = [self.open(path) for path in self.spans]

    @precondition(lambda self: len(self.spans) < 4)
    @rule()
    def move(self) -> None:
        """To another group; an empty span is not kept."""
        begin = self.log.successor
        if begin.offset == self.log.start_offset:
            return
        flush(self.log)
        self.log.seal()
        self.log.save_seal()
        self.add(Path(f"/data/orders/0-{len(self.spans)}"), begin.offset, begin.number)

    @rule(share=shares)
    def cut(self, share: float) -> None:
        """A master that returns cuts what the others do not have."""
        log = self.log
        ends = [end for _, end in self.batches if end >= log.start_offset]
        flush(log)
        log.close()
        if ends and self.disk.exists(self.spans[-1] / CHECKPOINT_NAME):
            cut = ends[int(share * (len(ends) - 1))]
            cut_back(self.spans[-1], cut, topic_id="t1", disk=self.disk)
            self.forget(cut)
        self.logs[-1] = self.open(self.spans[-1])

    @rule(fresh=st.booleans())
    def a_copy_takes_over(self, fresh: bool) -> None:
        """It begins where its master begins now, which may be in the middle of the span."""
        log = self.log
        self.copies += 1
        directory = Path(f"/data/orders/0.copy-{self.copies}")
        begin = log.start_offset
        copy = self.open(directory, begin, log.reader.number_at(begin))
        while (offset := copy.end_offset) < log.end_offset:
            copy.append_framed(bytes(log.reader.read(offset, 1 << 20, log.end_offset)))
        flush(copy)
        self.spans[-1], self.logs[-1] = directory, copy

    @rule(share=shares)
    def damage_and_repair(self, share: float) -> None:
        """While a log is damaged it may not know a number, and never tells a wrong one."""
        log, path = self.log, self.spans[-1]
        blocks = [each for each in log.closed_blocks if each.length and not each.is_archived]
        if not blocks:
            return
        block = blocks[int(share * (len(blocks) - 1))]
        log.close()
        whole = self.disk.read_bytes(block.path)
        self.disk.unlink(block.path)
        self.logs[-1] = self.open(path)
        assert self.log.state is LogState.QUARANTINED
        self.check(self.log, knows=False)
        self.log.close()
        self.disk.write_atomic(block.path, whole)
        self.logs[-1] = self.open(path)

    @rule()
    def a_checkpoint_is_lost(self) -> None:
        """Then a log that begins later may not know its numbers; the master tells them again."""
        path, first = self.spans[-1], self.log.status.first_number
        begin = self.log.start_offset
        flush(self.log)
        self.log.close()
        if not self.disk.exists(path / CHECKPOINT_NAME) or not self.batches[-1:]:
            self.logs[-1] = self.open(path, begin, first)
            return
        kept = self.disk.read_bytes(path / CHECKPOINT_NAME)
        before = self.disk.listdir(path)
        self.disk.unlink(path / CHECKPOINT_NAME)
        if self.batches[-1][1] > begin:
            without = self.open(path)
            self.check(without, knows=begin == 0)
            without.close()
        # What was made without it counts from another begin, and goes: no checkpoint comes back.
        for name in {*self.disk.listdir(path)} - {*before, CHECKPOINT_NAME}:
            self.disk.unlink(path / name)
        self.disk.write_atomic(path / CHECKPOINT_NAME, kept)
        self.logs[-1] = self.open(path)

    # What must be the same ----------------------------------------------------------------------
    @invariant()
    def every_number_is_right(self) -> None:
        for log in self.logs:
            self.check(log, knows=True)

    def check(self, log: Log, *, knows: bool) -> None:
        reader, start, end = log.reader, log.start_offset, log.end_offset
        if log.state is LogState.QUARANTINED:
            end -= 1
        inside = [at for at in self.messages if start <= at < end]
        for offset in {start, end, *inside, *(at + 1 for at in inside[:3]), (start + end) // 2}:
            if start <= offset <= end:
                right = sum(at < offset for at in self.messages)
                found = reader.number_at(offset)
                assert found == right or (found is None and not knows), offset
        for offset in inside:
            number = self.messages.index(offset)
            found = reader.offset_at_number(number)
            assert found == offset or (found is None and not knows), number
        if knows:
            below = sum(at < start for at in self.messages)
            first = inside[0] if inside else end
            assert reader.offset_at_number(max(0, below - 1)) == first
            assert reader.offset_at_number(below + len(inside) + 1) == end


NumbersAgainstList.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
TestNumbersAgainstList = NumbersAgainstList.TestCase


@pytest.mark.parametrize("number", [0, 7, 2**40])
def test_a_log_that_begins_later_goes_on_with_its_number(number: int) -> None:
    """Told once, when it begins."""
    disk = memory_disk()
    log = open_log(disk, start_offset=5000, number=number)
    append(log, b"a", b"b")
    flush(log)
    disk = disk.crash(keep_all)
    again = open_log(disk)
    assert again.reader.number_at(5000) == number
    assert again.reader.number_at(again.end_offset) == number + 2
