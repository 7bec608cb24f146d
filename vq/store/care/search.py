"""Searching the blocks of a log for messages, in steps small enough to do beside other work.

Every batch that is read is verified before it counts as searched; what the key index of a block
rules out is not read. Damage is noted, and the search goes on behind it (``walk``). It writes
nothing.
"""

import copy
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from vq.errors import CorruptData
from vq.store.archive.archive_place import ZipUnreachable
from vq.store.care.key_index import KeyIndex, Probe
from vq.store.care.walk import BadRange, Run, Walk
from vq.store.care.wanted import Wanted, matches
from vq.store.disk.disk import Disk, File
from vq.store.log.piece import Piece
from vq.store.records.format import CONTROL_BYTES, BatchHeader, keys_name

#: Damaged ranges that are told apart; the last one goes on to the end of what was searched.
DAMAGE_MAX: Final = 64


class FoundRecord(NamedTuple):
    """A message that was found: where, when its batch was appended, and its whole record."""

    offset: int
    append_time_ms: int
    record: bytes


@dataclass(slots=True)
class Covered:
    """How much of a log was searched.

    Attributes:
        read_bytes: Bytes of batches that were read.
        skipped_bytes: Bytes of batches that key indexes ruled out.
        first_ms, last_ms: Append times of the first and last batch searched; 0: there was none.
    """

    read_bytes: int = 0
    skipped_bytes: int = 0
    first_ms: int = 0
    last_ms: int = 0

    @property
    def size(self) -> int:
        """Bytes of batches, read or ruled out."""
        return self.read_bytes + self.skipped_bytes

    def add(self, first_ms: int, last_ms: int) -> None:
        """Note batches that were searched, from the one appended first to the last one."""
        self.first_ms = self.first_ms or first_ms
        self.last_ms = last_ms


class _Found:
    """The messages found, within a bound."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.records: list[FoundRecord] = []
        self._messages_left = messages_max
        self._bytes_left = bytes_max

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another message."""
        return self._messages_left <= 0

    def add(self, offset: int, time_ms: int, record: bytes) -> bool:
        """Add a message if there is room for it; there is for the first one, however large."""
        if self.is_full or (self.records and len(record) > self._bytes_left):
            return False
        self.records.append(FoundRecord(offset, time_ms, record))
        self._messages_left -= 1
        self._bytes_left -= len(record)
        return True


class Search:
    """Searches ``[begin, end)`` of one log, one step after the other.

    Attributes:
        position: Everything before it was searched, is damaged, or cannot be reached.
        covered: How much was searched.
        unfit: Start offsets of blocks whose key index is damaged or does not fit.
        bare: Start offsets of blocks without a key index.
        is_full: As much was found as may be; it ends there.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        pieces: Sequence[Piece],
        wanted: Wanted,
        *,
        begin: int,
        end: int,
        messages_max: int,
        bytes_max: int,
    ) -> None:
        """Prepare a search.

        Args:
            disk: The disk.
            directory: That of the log, with the key indexes.
            pieces: Where the batches of the range lie, without gaps; the first one may begin
                earlier, the last one end later.
            wanted: What is looked for.
            begin: Messages that start before it do not count.
            end: Nor do those from here on.
            messages_max: Ends with so many messages, >= 1.
            bytes_max: Ends before their records take more, but not before the first one.
        """
        self.position = begin
        self.covered = Covered()
        self.unfit: list[int] = []
        self.bare: list[int] = []
        self.is_full = False
        self._disk = disk
        self._directory = directory
        self._walk = Walk(disk, list(pieces))
        self._wanted = wanted
        self._needles = wanted.needles
        self._probe = Probe(wanted)
        self._begin = begin
        self._end = end
        self._found = _Found(messages_max, bytes_max)
        self._indexed = -1  # the block whose index was looked for last,
        self._index: KeyIndex | None = None  # and that

    @property
    def found(self) -> list[FoundRecord]:
        """The messages found so far, in rising order of offsets."""
        return self._found.records

    @property
    def done(self) -> bool:
        """Whether there is nothing more to do."""
        return self.is_full or self._walk.done

    @property
    def damage(self) -> list[BadRange]:
        """Ranges that could not be searched, in rising order; those side by side are one."""
        found: list[BadRange] = []
        for each in self._within(self._walk.damage):
            if found and (found[-1].end == each.start or len(found) >= DAMAGE_MAX):
                found[-1] = found[-1]._replace(end=each.end)
            else:
                found.append(each)
        return found

    @property
    def unreachable(self) -> list[BadRange]:
        """Ranges of which nothing is known: they lie in a place that cannot be reached now."""
        return self._within(self._walk.unreachable)

    def _within(self, ranges: Sequence[BadRange]) -> list[BadRange]:
        """Return what of these lies in the range that is searched."""
        clipped = (
            each._replace(start=max(each.start, self._begin), end=min(each.end, self._end))
            for each in ranges
        )
        return [each for each in clipped if each.start < each.end]

    def step(self) -> None:
        """Search the next bytes. Blocks for a few reads."""
        if self.done:
            return
        walk = self._walk
        file = walk.open()
        if file is not None and (walk.in_damage or self._skip(file)):
            run = walk.step(self._part_end())
            if run is not None:
                self._take(run)
        if self.is_full:
            self.close()
            return
        self._pass()

    def _pass(self) -> None:
        """Note how far it is, and end there if that is all."""
        walk = self._walk
        self.position = max(self.position, min(walk.at, self._end))
        if walk.at >= self._end:
            walk.stop()

    @property
    def waits_for(self) -> str:
        """The place, which may not answer for ever, that the next step reads from; "": none."""
        return "" if self.done else self._walk.waits_for

    def fork(self) -> "Search":
        """Return a search that is where this one is, and shares nothing with it.

        For the case that a step of this one does not end.
        """
        other = copy.copy(self)
        other._walk = self._walk.fork()
        other.unfit, other.bare = list(self.unfit), list(self.bare)
        other.covered = replace(self.covered)
        other._found = copy.copy(self._found)
        other._found.records = list(self._found.records)
        return other

    def give_up(self, why: str) -> None:
        """Go past the rest of a block in a place that does not answer."""
        self._walk.leave(why)
        self._pass()

    def end(self) -> None:
        """Note damage the end of which was not found yet: nothing before ``position`` is silent."""
        if not self.done:
            self._walk.end()

    def close(self) -> None:
        """Give the file back. May be called twice."""
        self._walk.close()

    # The key index ------------------------------------------------------------------------------
    def _load_index(self, piece: Piece, file: File) -> KeyIndex | None:
        """Return the key index of a block if there is one that fits it."""
        path = self._directory / keys_name(piece.block_start)
        if self._probe.is_idle:
            return None
        if not self._disk.exists(path):
            self.bare.append(piece.block_start)
            return None
        try:
            index = KeyIndex(self._disk.read_bytes(path))
            last = file.pread(index.last_batch - piece.block_start, CONTROL_BYTES)
        except FileNotFoundError:  # it was just deleted, with its block
            return None
        except ZipUnreachable:  # nothing is known of the block, so nothing of the index
            return None
        except (CorruptData, OSError, OverflowError):
            self.unfit.append(piece.block_start)
            return None
        fits = index.start_offset == piece.block_start and index.end_offset >= piece.end
        if not fits or google_crc32c.value(last) != index.last_crc:
            self.unfit.append(piece.block_start)
            return None
        return index

    def _skip(self, file: File) -> bool:
        """Go past the parts that have nothing; return whether something is left to read."""
        walk, piece = self._walk, self._walk.piece
        if self._indexed != piece.block_start:
            self._indexed = piece.block_start
            self._index = self._load_index(piece, file)
        index, at, end = self._index, walk.at, min(piece.end, self._end)
        if index is None:
            return True
        while at < end:
            number = index.part_at(at)
            if index.may_have(number, self._probe):
                break
            part = index.part(number)
            following = min(part.end, piece.end)
            self.covered.add(part.first_ms, part.last_ms)
            self.covered.skipped_bytes += following - at
            at = following
        walk.skip(at)
        return at < end

    def _part_end(self) -> int | None:
        """Return where the part of the index ends that is read; None: there is no index."""
        index, at = self._index, self._walk.at
        return None if index is None else index.part(index.part_at(at)).end

    # Reading ------------------------------------------------------------------------------------
    def _take(self, run: Run) -> None:
        """Take what is wanted of intact batches."""
        begin, end = self._begin, self._end
        batches = [e for e in run.batches if e.end_offset > begin and e.start_offset < end]
        for batch in _candidates(run, batches, self._needles):
            try:
                self._take_of(run, batch)
            except CorruptData as error:
                damage = BadRange(batch.start_offset, batch.end_offset, run.piece.path, str(error))
                self._walk.damage.append(damage)
            if self.is_full:
                self.covered.add(batches[0].append_time_ms, batch.append_time_ms)
                self.covered.read_bytes += batch.end_offset - run.offset
                return
        if batches:
            self.covered.add(batches[0].append_time_ms, batches[-1].append_time_ms)
        self.covered.read_bytes += run.end - run.offset

    def _take_of(self, run: Run, batch: BatchHeader) -> None:
        for start, end in matches(run.data, run.offset, batch, self._wanted):
            offset = run.offset + start
            if not self._begin <= offset < self._end:
                continue
            if not self._found.add(offset, batch.append_time_ms, run.data[start:end]):
                self._fill(offset)
                return
            if self._found.is_full:
                self._fill(run.offset + end)
                return

    def _fill(self, position: int) -> None:
        """End the search: a later one goes on at ``position``, the start of a record."""
        self.is_full = True
        self.position = position


def _candidates(
    run: Run, batches: list[BatchHeader], needles: Sequence[bytes]
) -> Iterator[BatchHeader]:
    """Yield the batches that may have a message with one of the needles; all without any."""
    if not needles or not batches:
        yield from batches
        return
    starts = [batch.start_offset - run.offset for batch in batches]
    end = batches[-1].end_offset - run.offset
    hits: set[int] = set()
    for needle in needles:
        at = run.data.find(needle, starts[0])
        while 0 <= at < end:
            number = bisect_right(starts, at) - 1
            hits.add(number)
            at = run.data.find(needle, batches[number].end_offset - run.offset)
    for number in sorted(hits):
        yield batches[number]
