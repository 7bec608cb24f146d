"""Opening a log after a clean stop, a crash or damage: one entry point, one table of cases.

The passes of ``recover``:

1. Remove leftovers of interrupted writes, finish repairs (``repair_file``), read the checkpoint,
   list the blocks.
2. Finish an interrupted retention; find out which files hold the blocks (``holdings``); compare the
   blocks with the checkpoint's manifest; compare those before the checkpoint with each other by
   name and length (their bytes were verified before the checkpoint was written).
3. Flush what lies behind the checkpoint and read it from the medium: what a killed process had
   written is made durable before anybody can see it, and what a failed flush left in the page
   cache alone is not believed.
4. Verify it batch by batch, up to the first byte that is no batch: X.
5. Decide by ``classify`` what X is; act.

    | case       | X < checkpoint | behind X        | a batch behind X says   | what is done       |
    |            |                |                 | "synced beyond X"       |                    |
    | CLEAN      | no             | zeros or nothing| –                       | nothing            |
    | TORN_TAIL  | no             | no batch        | –                       | cut, keep aside    |
    | UNSYNCED   | no             | intact batches  | no                      | cut, keep aside    |
    | DAMAGED    | no             | intact batches  | yes                     | quarantine below X |
    | DAMAGED    | yes            | anything        | –                       | quarantine below X |

   A block that the manifest names and that is not there is DAMAGED, too: below it the log is
   served, or above it when it was the first. Only a mark of retention, ``<block>.drop``, excuses
   it. So is a log that was begun and has no files at all.

UNSYNCED is a group of appends of which a power cut kept some sectors: none was acknowledged, since
the later ones say that nothing from X on was flushed when they were appended. Nothing is ever cut
below an offset that some record says was flushed; a quarantined log is served below X, takes no
appends, and its files are left as they are. Cut bytes go to ``<block>.cut-<X>`` beside the block,
and the report says how many, from where on, and what they held.

Recovery can be interrupted after any step: the next one then does the rest.
"""

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path

from vq.errors import CorruptData
from vq.store.archive.archive import Archive
from vq.store.disk.disk import Disk
from vq.store.log import lookup
from vq.store.log.beside_blocks import (
    facts_of,
    first_number_of,
    marked,
    read_checkpoint,
    remove_leftovers,
)
from vq.store.log.block import Block, BlockCache
from vq.store.log.blocks import Blocks
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.holdings import Holdings
from vq.store.log.log_config import FROM_THE_FIRST, LogBegin
from vq.store.log.missing import NAMED_MAX, missing_ranges, missing_text
from vq.store.log.recovered import Case, Recovered, RecoveryReport, classify
from vq.store.log.repair_file import finish_repairs
from vq.store.records.format import (
    CUT_MARK,
    DROPPED_SUFFIX,
    OFFSET_DIGITS,
    block_name,
)
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.producers import ProducerTable
from vq.store.records.scan import (
    Behind,
    LogFacts,
    is_zero,
    look_behind,
    pass_damage,
    verify,
)


def recover(
    directory: Path,
    *,
    topic_id: str,
    disk: Disk,
    cache: BlockCache,
    begin: LogBegin = FROM_THE_FIRST,
    begun_at: int | None = None,
    before_cut: Callable[[], None] = lambda: None,
    keeps_damage: bool = False,
) -> Recovered:
    """Open what is in ``directory`` (which need not exist) and bring it into order.

    Args:
        directory: The partition's directory.
        topic_id: Must be the one in the checkpoint.
        disk: The disk.
        cache: For the blocks.
        begin: Where a log without any files begins.
        begun_at: The first offset of a log that was begun here, if one is known (``begun``): that
            there are no files is damage then.
        before_cut: Called before something is taken off the end: whoever has another copy of the
            log must not lead with this one, since it may have been acknowledged. What it raises
            keeps all as it is.
        keeps_damage: Whoever reads the log sets aside what is damaged. So damaged batches stay in
            it, without a quarantine, if it is known how many messages they have: from the
            checkpoint, or from their control records, if later ones say they were flushed.

    Raises:
        DirectoryRefused: The files belong to another topic of this name.
        CorruptData: ``begin`` has no producer table.
        OSError: The medium failed; nothing was cut because of that.
    """
    if not disk.exists(directory):
        return _no_log(directory, begin, begun_at)
    names = remove_leftovers(disk, directory)
    repaired = finish_repairs(disk, directory, names)
    checkpoint, notes = read_checkpoint(disk, directory, topic_id)
    notes = [*repaired, *notes]
    holdings = Holdings(disk, directory, names)
    if not holdings.starts and checkpoint is None:
        return _no_log(directory, begin, begun_at)
    run = _Recovery(directory, disk, checkpoint, holdings)
    run.marked = marked(names)
    run.before_cut = before_cut
    run.keeps_damage = keeps_damage
    run.report.notes += notes
    try:
        log = run.run(holdings.starts)
    finally:
        run.cache.close_all()
    for block in log.blocks:
        block.cache = cache
    log.unnamed |= holdings.changed
    log.discards = holdings.discards
    return log


def _no_log(directory: Path, begin: LogBegin, begun_at: int | None) -> Recovered:
    """There are no files: a new log, or one that is lost."""
    if begun_at is not None:
        return _lost_log(directory, begun_at)
    start_offset = begin.offset
    table = ProducerTable.from_bytes(begin.producers)
    if not begin.producers:
        table.forgot = start_offset > 0  # who wrote before it is not known here
    facts = LogFacts(producers=table)
    report = RecoveryReport(offset=start_offset, checkpoint_offset=start_offset)
    number = begin.number if start_offset else 0
    return Recovered(start_offset, start_offset, facts, first_number=number, report=report)


def _lost_log(directory: Path, begun_at: int) -> Recovered:
    why = (
        f"{directory} is gone or empty, but a log was begun there at offset {begun_at} and held "
        "messages. Nothing was begun anew. If something is to be mounted there, mount it; or "
        'restore the directory from a copy; or see "A partition\'s directory is gone" in '
        "docs/howto/bring-back-a-partition.md. Start the broker again then"
    )
    facts = LogFacts(producers=ProducerTable(forgot=True))
    report = RecoveryReport(Case.DAMAGED, begun_at, begun_at, notes=[why])
    return Recovered(begun_at, begun_at, facts, quarantine=why, report=report)


class _Recovery:
    """One run over one directory; ``run`` is called once."""

    def __init__(
        self, directory: Path, disk: Disk, checkpoint: Checkpoint | None, holdings: Holdings
    ) -> None:
        self.directory = directory
        self.disk = disk
        # Its own: this may run on another thread than the node's, and may wait.
        self.cache = BlockCache(waits=True)
        self.checkpoint = checkpoint
        self.holdings = holdings
        self.report = RecoveryReport()
        self.marked: set[int] = set()  # blocks whose deletion by retention was begun
        self.before_cut: Callable[[], None] = lambda: None
        self.keeps_damage = False
        self.gone: list[int] = []  # blocks that should be there and are not
        self.sizes: dict[int, int] = {}  # start offset → length of the file

    def run(self, starts: list[int]) -> Recovered:
        """Carry out passes 2 to 5."""
        starts = self._compare_with_manifest(self._finish_retention(starts))
        self.sizes = {s: self.holdings.size(s) for s in starts}
        self._remove_idle_marks(starts)
        checkpoint = self.checkpoint
        if not starts:
            return self._without_blocks(checkpoint)
        log = self._begin(starts, checkpoint)
        first = self._first_to_verify(starts)
        broken = self._check_lengths(starts, first)
        closed = starts[: (first if broken is None else broken) + 1]
        for start, following in itertools.pairwise(closed):
            log.blocks.append(self._block(start, following - start))
        try:
            if broken is not None:
                log.facts = LogFacts()  # those of the checkpoint lie ahead of what is left
                x = self._verify_from(log, starts[: broken + 1], broken)
                return self._quarantine(
                    log, x, self._what_is_gone() or f"{block_name(starts[broken])} is too short"
                )
            if checkpoint is not None and starts[0] > checkpoint.offset:
                return self._quarantine(log, starts[0], f"everything below {starts[0]} is gone")
            x = self._verify_from(log, starts, first)
        except CorruptData as error:
            x = int(error.details["offset"])
            return self._quarantine(log, x, f"below the checkpoint there is {error}")
        if self.gone:
            return self._quarantine(log, x, self._what_is_gone())
        return self._decide(log, starts, x)

    def _remove_idle_marks(self, starts: list[int]) -> None:
        """Remove marks beside blocks that are there: somebody put the block back."""
        for start in self.marked & set(starts):
            mark = self._path(start).with_suffix(DROPPED_SUFFIX)
            self.disk.unlink(mark)
            self.report.notes.append(f"{mark} was removed: its block is there")

    # Pass 2 ---------------------------------------------------------------------------------------
    def _finish_retention(self, starts: list[int]) -> list[int]:
        """Delete blocks that lie wholly below the log's start: their deletion was interrupted."""
        checkpoint = self.checkpoint
        if checkpoint is None:
            return starts
        keep = 0
        for at, start in enumerate(starts):
            end = starts[at + 1] if at + 1 < len(starts) else checkpoint.offset
            if start >= checkpoint.start_offset or end > checkpoint.start_offset:
                break
            self.holdings.remove(start)
            keep = at + 1
        return starts[keep:]

    def _compare_with_manifest(self, starts: list[int]) -> list[int]:
        """Note which blocks are gone; return those that belong to the log."""
        checkpoint = self.checkpoint
        manifest = None if checkpoint is None else checkpoint.manifest
        kinds = None if manifest is None else {each.start_offset: each.kind for each in manifest}
        self.holdings.settle(kinds)
        self.report.notes += self.holdings.notes
        present = self.holdings.present() & set(starts)
        if checkpoint is None or kinds is None:
            self.gone = [start for start in starts if start not in present]
            return [start for start in starts if start in present]
        starts, named = sorted(present), list(kinds)
        while named and named[0] in self.marked and named[0] not in present:
            del named[0]
        self.gone = [start for start in named if start not in present]
        known = set(named)
        strangers = [s for s in starts if s < checkpoint.offset and s not in known]
        if strangers:
            names = ", ".join(map(block_name, strangers))
            self.report.notes.append(
                f"{self.directory}: {names} is not in the log's manifest and is left alone"
            )
        return [start for start in starts if start not in strangers]

    def _what_is_gone(self) -> str:
        if not self.gone:
            return ""
        names = self.holdings.names_of(self.gone[:NAMED_MAX])
        names += " and more" if self.gone[NAMED_MAX:] else ""
        who = "the log's manifest" if self.checkpoint is not None else "what is left of archives"
        return f"{who} names {names}, which is not there"

    def _how_to_go_on(self, log: Recovered) -> str:
        if self.gone and log.blocks and self.gone[-1] < log.start_offset:
            marks = ", ".join(f"{start:0{OFFSET_DIGITS}d}{DROPPED_SUFFIX}" for start in self.gone)
            return f"make empty files {marks} beside the others to go on without these messages"
        return "without one, docs/howto/bring-back-a-partition.md says how to go on"

    def _without_blocks(self, checkpoint: Checkpoint | None) -> Recovered:
        """The checkpoint stands alone: an empty log, or one whose blocks are gone."""
        if checkpoint is None:  # and there are stubs of archives that cannot be used
            start = self.gone[0]
            log = Recovered(start, start, LogFacts(producers=ProducerTable(forgot=True)))
            return self._quarantine(log, start, self._what_is_gone())
        log = Recovered(checkpoint.start_offset, checkpoint.offset, facts_of(checkpoint))
        log.start_messages = checkpoint.start_messages
        log.first_number = first_number_of(checkpoint)
        log.sealed, log.has_checkpoint = checkpoint.sealed, True
        if self.gone or checkpoint.start_offset != checkpoint.offset:
            why = self._what_is_gone() or "its blocks are gone"
            return self._quarantine(log, checkpoint.start_offset, why)
        return self._finish(log, Case.CLEAN, checkpoint.offset)

    def _begin(self, starts: list[int], checkpoint: Checkpoint | None) -> Recovered:
        # Without a checkpoint, nobody knows who wrote below the first block that is left.
        facts = LogFacts(producers=ProducerTable(forgot=starts[0] > 0))
        log = Recovered(starts[0], starts[0], facts)
        log.unnamed = checkpoint is None or checkpoint.manifest is None
        log.start_messages = self._messages_before(starts)
        if checkpoint is None:
            facts.messages = log.start_messages
            log.first_number = None if starts[0] else 0
        else:
            log.facts = facts_of(checkpoint)
            log.first_number = first_number_of(checkpoint)
            log.sealed, log.has_checkpoint = checkpoint.sealed, True
            log.dropped = [self._path(s) for s in sorted(self.marked) if s not in starts]
            if starts[0] > checkpoint.start_offset and not self.gone:
                self.report.notes.append(
                    f"the log begins at {starts[0]}; its last checkpoint said "
                    f"{checkpoint.start_offset}: the blocks between were deleted"
                )
        return log

    def _messages_before(self, starts: list[int]) -> int:
        """Return the messages before the first block, since the log's first byte; 0: not known."""
        checkpoint, start = self.checkpoint, starts[0]
        if checkpoint is not None and start <= checkpoint.start_offset:
            return checkpoint.start_messages
        end = starts[1] if len(starts) > 1 else start + self.sizes[start]
        index = self._block(start, end - start).kept_index() if start else None
        return 0 if index is None else max(0, index.messages_before)

    def _first_to_verify(self, starts: list[int]) -> int:
        """Return the index of the block that holds the checkpoint's offset."""
        if self.checkpoint is None:
            return 0
        offset = self.checkpoint.offset
        return max(0, sum(1 for start in starts if start <= offset) - 1)

    def _check_lengths(self, starts: list[int], first: int) -> int | None:
        """Return the index of the first block whose file is shorter than it was, or None."""
        for at in range(first):
            start, size = starts[at], self.sizes[starts[at]]
            length = starts[at + 1] - start
            if size < length or (start in self.holdings.archives and size != length):
                return at
        if self.checkpoint is not None:
            start = starts[first]
            if self.sizes[start] < self.checkpoint.offset - start:
                return first
        return None

    # Passes 3 and 4 -------------------------------------------------------------------------------
    def _verify_from(self, log: Recovered, starts: list[int], first: int) -> int:
        """Verify from block ``first`` on, appending blocks to the log; return X."""
        x = starts[first]
        for at in range(first, len(starts)):
            start = starts[at]
            end = start + self.sizes[start]
            if at + 1 < len(starts):
                end = min(end, starts[at + 1])
            if self._is_verified_archive(start, end):
                log.blocks.append(self._block(start, end - start))
                known = self.checkpoint.offset if self.checkpoint is not None else 0
                _take_archive(log.facts, self.holdings.archives[start], is_counted=end <= known)
                x = end
            else:
                x = self._verify_block(log, start, end)
            if at + 1 < len(starts) and x != starts[at + 1]:
                break
        return x

    def _is_verified_archive(self, start: int, end: int) -> bool:
        """Whether an archived block need not be read: it ended before the checkpoint, as a whole.

        One that lies elsewhere is believed without one: its place may not answer.
        """
        known = self.checkpoint.offset if self.checkpoint is not None else 0
        archive = self.holdings.archives.get(start)
        return archive is not None and (end <= known or bool(archive.url))

    def _verify_block(self, log: Recovered, start: int, end: int) -> int:
        block = self._block(start, 0)
        block.allocated = self.sizes[start]
        block.index_saved = False
        facts = log.facts
        offset, index = self._where_to_begin(block, facts)
        x = self._verify_tail(block, index, offset)
        if x < offset:
            block.length, block.index_saved = x - start, True
            log.blocks.append(block)
            raise CorruptData(f"no batch at offset {x} of {block.path.name}", details={"offset": x})
        block.index = index
        self._secure_names(start)
        x = offset
        # Space taken ahead and never used is no reason to make the disk work, once per partition.
        if offset < end and not is_zero(block.open(), offset - start, end - start):
            file = block.open()
            file.datasync()
            file.forget_cache()
            x = verify(file, start, offset, end, facts, index)
            if self.keeps_damage:
                x = pass_damage(file, start, x, end, facts, index)
        block.length = block.synced_length = x - start
        block.messages = facts.messages - index.messages_before
        log.blocks.append(block)
        return x

    def _verify_tail(self, block: Block, index: OffsetIndex, offset: int) -> int:
        """Return where what lies right before the checkpoint is damaged; ``offset`` if it is not.

        What was verified before the checkpoint was written may be gone since: most often the end.
        """
        start = block.start_offset
        if offset == start or self.keeps_damage:
            return offset
        begin = index.at_offset(offset - 1).offset
        return verify(block.open(), start, begin, offset, LogFacts(), OffsetIndex(begin))

    def _secure_names(self, start: int) -> None:
        """Make durable the name of a block that may be younger than the checkpoint."""
        checkpoint = self.checkpoint
        if checkpoint is None or start >= checkpoint.offset:
            self.disk.sync_directory(self.directory)
        if checkpoint is None or checkpoint.offset == checkpoint.start_offset:
            self.disk.sync_directory(self.directory.parent)

    def _where_to_begin(self, block: Block, facts: LogFacts) -> tuple[int, OffsetIndex]:
        """Return the first offset to verify in a block, and its index up to there.

        Raises:
            CorruptData: The index must be built, and a batch below the checkpoint is damaged.
        """
        checkpoint = self.checkpoint
        start = block.start_offset
        end = start + self.sizes[start]
        if checkpoint is None or facts.batches or not start <= checkpoint.offset <= end:
            return start, OffsetIndex(start, messages_before=facts.messages)
        with contextlib.suppress(CorruptData):
            index, covered, messages = OffsetIndex.from_bytes(checkpoint.index)
            if (index.start_offset, covered) == (start, checkpoint.offset):
                index.messages_before = checkpoint.messages - messages
                return checkpoint.offset, index
        # The checkpoint speaks of another block: the one behind was made and lost again.
        block.length = checkpoint.offset - start
        index = block.load_index()
        index.messages_before = checkpoint.messages - block.messages
        return checkpoint.offset, index

    # Pass 5 ---------------------------------------------------------------------------------------
    def _decide(self, log: Recovered, starts: list[int], x: int) -> Recovered:
        """Decide what X is and act."""
        later = [s for s in starts if s > log.blocks[-1].start_offset]
        rest_is_zero, behind = self._look_behind(log.blocks[-1], later, x)
        case = classify(
            x,
            checkpoint_offset=self.checkpoint.offset if self.checkpoint else 0,
            rest_is_zero=rest_is_zero,
            claimed_synced=behind.synced_offset,
        )
        if case is Case.DAMAGED:
            return self._quarantine(
                log,
                x,
                f"the batch at offset {x} is damaged, and later ones say it was flushed"
                if behind.synced_offset is not None
                else f"the log ends at {x}, before its checkpoint",
            )
        if case is not Case.CLEAN:
            self.before_cut()
        if later or case is not Case.CLEAN:
            self._cut(log.blocks[-1], later, x)
        if self.report.cut_bytes:
            self._tell_cut(case, x, behind)
        if self.checkpoint is not None and starts[0] > self.checkpoint.start_offset:
            try:
                log.start_messages = lookup.before_block(
                    Blocks(log.blocks), 0, messages_appended=log.facts.messages
                )
            except CorruptData:
                log.first_number = None
        return self._finish(log, case, x)

    def _look_behind(self, block: Block, later: list[int], x: int) -> tuple[bool, Behind]:
        """Return whether all behind X is zeros, and what control records there tell."""
        zero = True
        behind = Behind()
        start = block.start_offset
        archives = self.holdings.archives.values()
        archived = max((each.end_offset for each in archives), default=0)
        if archived > x:  # it had been flushed before it was archived, and so had what precedes it
            return False, Behind(archived, batches=1)
        for begin, offset in [(start, x), *((s, s) for s in later)]:
            size = self.sizes[begin]
            if size <= max(0, offset - begin):
                continue
            file = block.open() if begin == start else self._block(begin, 0).open()
            if is_zero(file, max(0, offset - begin), size):
                continue
            zero = False
            behind.add(look_behind(file, begin, offset, begin + size, x))
        return zero, behind

    def _tell_cut(self, case: Case, x: int, behind: Behind) -> None:
        report = self.report
        held = "it is unknown what they held"
        if behind.batches:
            report.cut_messages = behind.messages
            held = f"they announce at least {behind.messages} messages"
        files = ", ".join(path.name for path in report.cut_files)
        report.notes.append(
            f"{self.directory}: {report.cut_bytes} bytes from offset {x} on were cut off ({case}) "
            f"and are kept in {files}; {held}. With flush = sync none of these was acknowledged, "
            "unless the medium lost what it had flushed"
        )

    def _cut(self, block: Block, later: list[int], x: int) -> None:
        """Take everything behind X off the log and keep it aside, last block first."""
        for start in reversed(later):
            path = self._path(start)
            size = self.sizes[start]
            if is_zero(self._block(start, 0).open(), 0, size):
                self.disk.unlink(path)
            else:
                self.disk.rename(path, self._aside(start, start))
                self.report.cut_bytes += size
            self.disk.sync_directory(self.directory)
        file = block.open()
        rest = file.pread(block.length, self.sizes[block.start_offset] - block.length)
        rest = rest.rstrip(b"\0")
        if rest:
            target = self._aside(block.start_offset, x, rest)
            self.disk.write_atomic(target, rest)
            self.report.cut_bytes += len(rest)
        file.truncate(block.length)
        file.datasync()
        block.allocated = block.length

    def _aside(self, start: int, x: int, content: bytes | None = None) -> Path:
        """Return the name for cut bytes: a free one, or the one that holds them already."""
        base = f"{start:0{OFFSET_DIGITS}d}{CUT_MARK}{x}"
        number = 0
        while True:
            path = self.directory / (f"{base}-{number}" if number else base)
            if not self.disk.exists(path):
                break
            if content is not None and self.disk.read_bytes(path) == content:
                break
            number += 1
        self.report.cut_files.append(path)
        return path

    def _quarantine(self, log: Recovered, x: int, why: str) -> Recovered:
        """Leave every file as it is; the log ends at X and takes no appends."""
        missing = missing_ranges(self.checkpoint, self.sizes, self.gone, x)
        if missing and missing[0][0] < log.start_offset:
            log.lost_from = missing[0][0]
        log.quarantine = (
            f"{self.directory}: {why}.{missing_text(missing)} Nothing was cut; the log is served "
            f"in [{log.start_offset}, {x}) and takes no messages. Restore the partition's files "
            f"from a copy, or {self._how_to_go_on(log)}"
        )
        self.report.notes.append(log.quarantine)
        log.end_offset = x
        self._count_anew(log)
        return self._finish(log, Case.DAMAGED, x)

    def _count_anew(self, log: Recovered) -> None:
        """Count the messages of a damaged log; what the checkpoint tells lies behind the damage."""
        checkpoint = self.checkpoint
        begins = checkpoint is None or log.start_offset <= checkpoint.start_offset
        if not begins and not log.start_messages:  # how many the lost blocks had is not known
            log.first_number = None
        log.facts.messages = log.start_messages
        try:
            for block in log.blocks:
                index = block.load_index() if block.archive is None else block.kept_index()
                if index is not None:
                    index.messages_before = log.facts.messages
                log.facts.messages += block.messages
        except CorruptData:
            log.first_number = None

    def _finish(self, log: Recovered, case: Case, x: int) -> Recovered:
        report = self.report
        report.case = case
        report.offset = log.end_offset = x
        report.checkpoint_offset = self.checkpoint.offset if self.checkpoint else log.start_offset
        report.verified_bytes = log.facts.verified_bytes
        report.batches = log.facts.batches
        log.report = report
        return log

    def _path(self, start: int) -> Path:
        return self.directory / block_name(start)

    def _block(self, start: int, length: int) -> Block:
        return Block(
            self.directory,
            start,
            disk=self.disk,
            cache=self.cache,
            length=length,
            allocated=length,
            archive=self.holdings.archives.get(start),
        )


def _take_archive(facts: LogFacts, archive: Archive, *, is_counted: bool) -> None:
    """Take up what an archived block, which is not read, tells of its batches."""
    if not is_counted:
        facts.messages += archive.messages
        facts.producers.forgot = True  # who wrote there is not known
    facts.epoch = max(facts.epoch, archive.epochs[-1][0])
    facts.append_time_ms = max(facts.append_time_ms, archive.last_ms)
