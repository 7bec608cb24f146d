"""Verifying what lies in the blocks of an open log, in steps small enough to do beside other work.

Recovery reads what lies behind the last checkpoint; this reads anything, changes nothing, and goes
on behind damage. A block may be archived, or restored, at any time. Files are opened anew and read
with ``pread``, so another thread than the log's may take the steps.
"""

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from vq.errors import CorruptData
from vq.limits import KIB, MIB
from vq.store.archive.archive_place import Unreachable
from vq.store.disk.disk import Disk, File
from vq.store.log.piece import Piece
from vq.store.records.format import CONTROL_BYTES, decode_control
from vq.store.records.offset_index import OffsetIndex
from vq.store.records.scan import LogFacts, next_control, verify
from vq.store.records.unreadable import first_unreadable

__all__ = ["Damage", "Scrub"]

#: What one step reads, unless a batch is larger.
STEP_BYTES_MIN: Final = 16 * KIB
STEP_BYTES_MAX: Final = 1 * MIB
#: A step that meets more batches than this is followed by a smaller one: each takes 3 µs, during
#: which the event loop's thread may have to wait for the interpreter.
STEP_BATCHES: Final = 128


class Damage(NamedTuple):
    """A range of offsets ``[start, end)`` that cannot be read, in the block at ``path``."""

    start: int
    end: int
    path: Path
    why: str


@dataclass(slots=True)
class _Bad:
    """Damage whose end is still being looked for."""

    start: int
    why: str


class Scrub:
    """Verifies pieces one step after the other.

    Attributes:
        damage: What was found so far, in rising order.
        read_bytes: How many bytes were looked at.
        total_bytes: How many there are to look at.
        unreachable: Why some were not: their archive cannot be reached now. "": there were none.
        unreadable: A record at or behind ``until`` that no reader can read, in an intact batch.
    """

    def __init__(self, disk: Disk, pieces: list[Piece], *, until: int | None = None) -> None:
        """Prepare to verify ``pieces``; ``until``: no further than the batch that holds it."""
        self.damage: list[Damage] = []
        self.read_bytes = 0
        self.unreachable = ""
        self.unreadable: Damage | None = None
        self.total_bytes = sum(piece.end - piece.start for piece in pieces)
        self._disk = disk
        self._pieces = list(reversed(pieces))
        self._until = until
        self._file: File | None = None
        self._step_bytes = STEP_BYTES_MIN
        self._position = pieces[0].start if pieces else 0
        self._bad: _Bad | None = None
        self._facts = LogFacts()
        self._batches_before = 0

    @property
    def done(self) -> bool:
        """Whether there is nothing more to look at."""
        return not self._pieces

    @property
    def batches(self) -> int:
        """How many batches were found intact."""
        return self._batches_before + self._facts.batches

    def step(self) -> int:
        """Look at the next bytes; return how many. Blocks for one read, or two."""
        if not self._pieces:
            return 0
        piece, before = self._pieces[-1], self._position
        try:
            if self._file is None:
                self._file = piece.open(self._disk)
            if self._bad is None:
                self._verify(self._file, piece)
            else:
                self._look_behind(self._file, piece, self._bad)
        except Unreachable as error:
            self._leave(piece, error)
            return 0
        except OSError as error:
            self._unreadable(piece, error)
        looked_at = self._position - before
        self.read_bytes += looked_at
        past = self._until is not None and self._position > self._until and self._bad is None
        if past and self._file is not None:
            self._look_for_unreadable(self._file, piece)
        if past or self._position >= piece.end:
            self._end_piece(piece)
        if past:
            self._pieces.clear()
        return looked_at

    def close(self) -> None:
        """Give the file back. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _look_for_unreadable(self, file: File, piece: Piece) -> None:
        """Look for a record that a reader stops at; not where batches are damaged."""
        assert self._until is not None
        if any(each.end > piece.start for each in self.damage):
            return
        try:
            found = first_unreadable(file, piece.block_start, piece.start, self._until)
        except (CorruptData, OSError):
            return
        if found is not None:
            start, end, why = found
            self.unreadable = Damage(start, end, piece.path, f"{why}; it was stored so")

    def _verify(self, file: File, piece: Piece) -> None:
        before, begin = self._facts.batches, self._position
        self._verify_up_to(file, piece, begin + self._step_bytes)
        if self._position == begin and begin + self._step_bytes < piece.end:
            # Perhaps a batch that is larger than a step: that one, and not all that fits into the
            # largest batch, which would be thousands of small ones.
            self._verify_up_to(file, piece, begin + self._batch_bytes(file, piece))
        if self._position == begin:
            self._bad = _Bad(begin, self._why(file, piece))
            return
        few = self._facts.batches - before < STEP_BATCHES
        wish = self._step_bytes * 2 if few else self._step_bytes // 2
        self._step_bytes = min(max(wish, STEP_BYTES_MIN), STEP_BYTES_MAX)

    def _verify_up_to(self, file: File, piece: Piece, stop: int) -> None:
        """Verify the batches that end at or before ``stop``."""
        self._position = verify(
            file,
            piece.block_start,
            self._position,
            min(stop, piece.end),
            self._facts,
            OffsetIndex(self._position),
        )

    def _batch_bytes(self, file: File, piece: Piece) -> int:
        """Return how long the batch at the position says to be; 0: it says nothing."""
        try:
            header = decode_control(file.pread(self._position - piece.block_start, CONTROL_BYTES))
        except CorruptData:
            return 0
        return 0 if header is None else header.byte_length

    def _why(self, file: File, piece: Piece) -> str:
        """Return what is wrong with the batch that should be at the position."""
        head = file.pread(self._position - piece.block_start, CONTROL_BYTES)
        try:
            header = decode_control(head)
        except CorruptData:
            return "its control record is damaged"
        if header is None:
            return "the file ends before it"
        if header.start_offset != self._position:
            return f"its control record is that of offset {header.start_offset}"
        if header.end_offset > piece.end:
            return f"it should end at {header.end_offset}, the block ends at {piece.end}"
        return "its records or its header fail their CRC, or contradict the batches before it"

    def _look_behind(self, file: File, piece: Piece, bad: _Bad) -> None:
        """Look for the next control record that is intact and in its place."""
        begin = max(self._position, bad.start + 1)
        stop = min(begin + STEP_BYTES_MAX, piece.end)
        found = next_control(file, piece.block_start, begin, stop, piece.end)
        if found is None:
            self._position = stop
        else:
            self._position = found
            self._end_damage(piece, bad)
            self._batches_before += self._facts.batches
            self._facts = LogFacts()  # what the damaged batches said is unknown

    def _end_damage(self, piece: Piece, bad: _Bad) -> None:
        start, why = bad.start, bad.why
        if self.damage and self.damage[-1][1:3] == (start, piece.path):  # damaged side by side
            start, _, _, why = self.damage.pop()
        self.damage.append(Damage(start, self._position, piece.path, why))
        self._bad = None

    def _leave(self, piece: Piece, error: Unreachable) -> None:
        """Go past a piece of which nothing can be told now; that is no damage."""
        self.unreachable = str(error)
        if self._bad is not None:
            self._end_damage(piece, self._bad)
        self._position = piece.end
        self._end_piece(piece)

    def _unreadable(self, piece: Piece, error: OSError) -> None:
        """Give up a step's bytes that the medium does not deliver, or the rest of a lost file."""
        if self._bad is None:
            self._bad = _Bad(self._position, f"it cannot be read: {error.strerror or error}")
        lost = self._file is None or error.errno == errno.ENOENT
        self._position = piece.end if lost else min(self._position + STEP_BYTES_MIN, piece.end)

    def _end_piece(self, piece: Piece) -> None:
        if self._bad is not None:
            self._end_damage(piece, self._bad)
        self.close()
        self._pieces.pop()
        if self._pieces:
            self._position = self._pieces[-1].start
