"""Searching the blocks of a log for messages, in steps small enough to do beside other work.

Every batch that is read is verified before it counts as searched; what the key index of a block
rules out is not read. Damage is noted, and the search goes on behind it. Like ``scrub``, this opens
files anew and reads them with ``pread``, so another thread than the log's takes the steps. It
writes nothing.
"""

import copy
import errno
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import google_crc32c

from vq.errors import CorruptData
from vq.limits import KIB
from vq.store.archive.archive_place import Unreachable
from vq.store.archive.archived_file import place_of_file
from vq.store.care.key_index import KeyIndex, Probe
from vq.store.care.scrub import Damage
from vq.store.care.wanted import Wanted, matches
from vq.store.disk.disk import Disk, File
from vq.store.log.piece import Piece
from vq.store.records.batches import Batch, read_batches
from vq.store.records.format import CONTROL_BYTES, decode_control, keys_name
from vq.store.records.scan import next_control

__all__ = ["Covered", "FoundRecord", "Search"]

#: What one step reads, unless a batch is larger; see ``scrub``.
STEP_BYTES_MIN: Final = 16 * KIB
STEP_BYTES_MAX: Final = 256 * KIB
#: A step that meets more batches than this is followed by a smaller one.
STEP_BATCHES: Final = 128
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
        damage: Ranges that could not be searched, in rising order.
        unreachable: Ranges whose bytes lie in a place that cannot be reached now; nothing is known
            of them.
        position: Everything before it was searched, or is in one of these.
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
        self.damage: list[Damage] = []
        self.unreachable: list[Damage] = []
        self.position = begin
        self.covered = Covered()
        self.unfit: list[int] = []
        self.bare: list[int] = []
        self.is_full = False
        self._disk = disk
        self._directory = directory
        self._pieces = list(reversed(pieces))
        self._wanted = wanted
        self._needles = wanted.needles
        self._probe = Probe(wanted)
        self._begin = begin
        self._end = end
        self._found = _Found(messages_max, bytes_max)
        self._file: File | None = None
        self._index: KeyIndex | None = None
        self._step_bytes = STEP_BYTES_MIN
        self._at = pieces[0].start if pieces else end  # a batch begins here, or damage goes on
        self._bad: tuple[int, str] | None = None  # damage whose end is not known: start and why

    @property
    def found(self) -> list[FoundRecord]:
        """The messages found so far, in rising order of offsets."""
        return self._found.records

    @property
    def done(self) -> bool:
        """Whether there is nothing more to do."""
        return self.is_full or not self._pieces

    def step(self) -> None:
        """Search the next bytes. Blocks for a few reads."""
        if self.done:
            return
        piece = self._pieces[-1]
        try:
            if self._file is None:
                self._file = piece.open(self._disk)
                place = place_of_file(self._file)
                if place and not piece.place:  # since a moment ago
                    self._pieces[-1] = piece._replace(place=place)
                    self.close()
                    return
                self._index = self._load_index(piece, self._file)
            if self._bad is not None:
                self._look_behind(self._file, piece, self._bad)
            elif self._skip(piece):
                self._scan(self._file, piece)
        except OSError as error:
            self._unreadable(piece, error)
        if self.is_full:
            self.close()
            return
        self._pass(piece)

    def _pass(self, piece: Piece) -> None:
        """Note how far it is, and end the piece there."""
        if self._at >= min(piece.end, self._end):
            self._end_piece(piece)
        self.position = max(self.position, min(self._at, self._end))

    @property
    def waits_for(self) -> str:
        """The place, which may not answer for ever, that the next step reads from; "": none."""
        return "" if self.done else self._pieces[-1].place

    def fork(self) -> "Search":
        """Return a search that is where this one is, and shares nothing with it.

        For the case that a step of this one does not end.
        """
        other = copy.copy(self)
        other.damage, other.unreachable = list(self.damage), list(self.unreachable)
        other.unfit, other.bare = list(self.unfit), list(self.bare)
        other.covered = replace(self.covered)
        other._pieces = list(self._pieces)
        other._found = copy.copy(self._found)
        other._found.records = list(self._found.records)
        other._file, other._index = None, None
        return other

    def give_up(self, why: str) -> None:
        """Go past the rest of a block in a place that does not answer."""
        piece = self._pieces[-1]
        self._leave(piece, why)
        self._pass(piece)

    def end(self) -> None:
        """Note damage the end of which was not found yet: nothing before ``position`` is silent."""
        if self._pieces and not self.is_full:
            self._end_damage(self._pieces[-1])

    def close(self) -> None:
        """Give the file back. May be called twice."""
        file, self._file = self._file, None
        self._index = None
        if file is not None:
            file.close()

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
        except Unreachable:  # nothing is known of the block, so nothing of the index
            return None
        except (CorruptData, OSError, OverflowError):
            self.unfit.append(piece.block_start)
            return None
        fits = index.start_offset == piece.block_start and index.end_offset >= piece.end
        if not fits or google_crc32c.value(last) != index.last_crc:
            self.unfit.append(piece.block_start)
            return None
        return index

    def _skip(self, piece: Piece) -> bool:
        """Go past the parts that have nothing; return whether something is left to read."""
        index, end = self._index, min(piece.end, self._end)
        if index is None:
            return True
        while self._at < end:
            number = index.part_at(self._at)
            if index.may_have(number, self._probe):
                return True
            part = index.part(number)
            following = min(part.end, piece.end)
            self.covered.add(part.first_ms, part.last_ms)
            self.covered.skipped_bytes += following - self._at
            self._at = following
        return False

    # Reading ------------------------------------------------------------------------------------
    def _scan(self, file: File, piece: Piece) -> None:
        most = piece.end
        if self._index is not None:
            most = min(most, self._index.part(self._index.part_at(self._at)).end)
        data, batches = read_batches(
            file.pread, piece.block_start, self._at, self._step_bytes, most
        )
        if not batches:
            self._bad = (self._at, self._why(data, piece))
            return
        few = len(batches) < STEP_BATCHES
        wish = self._step_bytes * 2 if few else self._step_bytes // 2
        self._step_bytes = min(max(wish, STEP_BYTES_MIN), STEP_BYTES_MAX)
        self._take(data, batches, piece)

    def _take(self, data: bytes, batches: list[Batch], piece: Piece) -> None:
        """Take what is wanted of intact batches, the first of which starts at the position."""
        base, read_end = self._at, batches[-1].end
        begin, end = self._begin - base, self._end - base
        batches = [each for each in batches if each.end > begin and each.start < end]
        for batch in _candidates(data, batches, self._needles):
            try:
                self._take_of(data, batch, base)
            except CorruptData as error:
                self._note(Damage(base + batch.start, base + batch.end, piece.path, str(error)))
            if self.is_full:
                self.covered.add(batches[0].append_time_ms, batch.append_time_ms)
                self.covered.read_bytes += batch.end
                return
        if batches:
            self.covered.add(batches[0].append_time_ms, batches[-1].append_time_ms)
        self.covered.read_bytes += read_end
        self._at = base + read_end

    def _take_of(self, data: bytes, batch: Batch, base: int) -> None:
        for start, end in matches(data, batch, self._wanted):
            offset = base + start
            if not self._begin <= offset < self._end:
                continue
            if not self._found.add(offset, batch.append_time_ms, data[start:end]):
                self._fill(offset)
                return
            if self._found.is_full:
                self._fill(base + end)
                return

    def _fill(self, position: int) -> None:
        """End the search: a later one goes on at ``position``, the start of a record."""
        self.is_full = True
        self.position = position

    # Damage -------------------------------------------------------------------------------------
    def _why(self, data: bytes, piece: Piece) -> str:
        """Return what is wrong with the batch that should be at the position."""
        try:
            header = decode_control(data)
        except CorruptData:
            return "its control record is damaged"
        if header is None:
            return "the file ends before it"
        if header.start_offset != self._at or header.end_offset > piece.end:
            return "its control record says that it lies elsewhere"
        return "its records or its header fail their CRC"

    def _look_behind(self, file: File, piece: Piece, bad: tuple[int, str]) -> None:
        """Look for the next control record that is intact and in its place."""
        begin = max(self._at, bad[0] + 1)
        stop = min(begin + STEP_BYTES_MAX, piece.end)
        found = next_control(file, piece.block_start, begin, stop, piece.end)
        self._at = stop if found is None else found
        if found is not None:
            self._end_damage(piece)

    def _unreadable(self, piece: Piece, error: OSError) -> None:
        """Give up some bytes that the medium does not deliver, or the rest of a lost file."""
        if error.errno == errno.EHOSTUNREACH:
            self._leave(piece, str(error.strerror))
            return
        if self._bad is None:
            self._bad = (self._at, f"it cannot be read: {error.strerror or error}")
        lost = self._file is None or error.errno == errno.ENOENT
        self._at = piece.end if lost else min(self._at + STEP_BYTES_MIN, piece.end)

    def _leave(self, piece: Piece, why: str) -> None:
        """Go past the rest of a block that lies in a place that cannot be reached."""
        self._end_damage(piece)
        start, end = max(self._at, self._begin), min(piece.end, self._end)
        if start < end:
            self.unreachable.append(Damage(start, end, piece.path, why))
        self._at = piece.end

    def _end_damage(self, piece: Piece) -> None:
        if self._bad is not None:
            start, why = self._bad
            self._note(Damage(start, self._at, piece.path, why))
            self._bad = None

    def _note(self, damage: Damage) -> None:
        """Note damage within the range, joined to that before it if it follows on it."""
        start, end = max(damage.start, self._begin), min(damage.end, self._end)
        if start >= end:
            return
        last = self.damage[-1] if self.damage else None
        if last is not None and (last.end == start or len(self.damage) >= DAMAGE_MAX):
            self.damage[-1] = last._replace(end=end)
        else:
            self.damage.append(damage._replace(start=start, end=end))

    def _end_piece(self, piece: Piece) -> None:
        self._end_damage(piece)
        self.close()
        self._pieces.pop()
        if self._at >= self._end:
            self._pieces.clear()
        if self._pieces:
            self._at = self._pieces[-1].start


def _candidates(data: bytes, batches: list[Batch], needles: Sequence[bytes]) -> Iterator[Batch]:
    """Yield the batches that may have a message with one of the needles; all without any."""
    if not needles or not batches:
        yield from batches
        return
    starts = [batch.start for batch in batches]
    hits: set[int] = set()
    for needle in needles:
        at = data.find(needle, starts[0])
        while 0 <= at < batches[-1].end:
            number = bisect_right(starts, at) - 1
            hits.add(number)
            at = data.find(needle, batches[number].end)
    for number in sorted(hits):
        yield batches[number]
