"""Reading the intact batches in blocks, in steps small enough to do beside other work.

Who verifies, searches, or makes a key index takes steps of a ``Walk``, and looks at what each has
read. It changes nothing, and goes on behind damage. A block may be archived, or restored, at any
time. Files are opened anew and read with ``pread``, so another thread than the log's may take the
steps.
"""

import copy
import errno
from pathlib import Path
from typing import Final, NamedTuple, Self

from vq.errors import CorruptData
from vq.limits import KIB
from vq.store.archive.archived_file import place_of_file
from vq.store.disk.disk import Disk, File
from vq.store.log.piece import Piece
from vq.store.records.batches import Order, read_batches
from vq.store.records.format import BatchHeader
from vq.store.records.scan import next_control

#: What one step reads, unless a batch is larger.
STEP_BYTES_MIN: Final = 16 * KIB
STEP_BYTES_MAX: Final = 256 * KIB
#: A step that meets more batches than this is followed by a smaller one: each takes 3 µs, during
#: which the event loop's thread may have to wait for the interpreter.
STEP_BATCHES: Final = 128


class BadRange(NamedTuple):
    """A range of offsets ``[start, end)`` that cannot be read, in the block at ``path``."""

    start: int
    end: int
    path: Path
    why: str


class Run(NamedTuple):
    """What one step has read: intact batches of ``piece``.

    Attributes:
        piece: Where they lie.
        offset: Of the first byte of ``data``.
        data: Begins with them.
        batches: Their headers, one at least.
    """

    piece: Piece
    offset: int
    data: bytes
    batches: list[BatchHeader]

    @property
    def end(self) -> int:
        """Where the last batch ends."""
        return self.batches[-1].end_offset


class Walk:
    """Reads the batches of pieces, one step after the other; ``close`` it.

    Attributes:
        at: Where the next step begins: a batch begins there, or damage goes on.
        damage: What was found so far, in rising order.
        unreachable: Of which nothing can be told now: it lies in a place that cannot be reached.
        read_bytes: How many bytes were looked at.
        batches: How many were found intact.
    """

    def __init__(
        self, disk: Disk, pieces: list[Piece], *, step_messages: int | None = None
    ) -> None:
        """Prepare to read ``pieces``.

        ``step_messages``: a step that meets more messages than this is followed by a smaller one.
        """
        self.damage: list[BadRange] = []
        self.unreachable: list[BadRange] = []
        self.read_bytes = 0
        self.batches = 0
        self.at = pieces[0].start if pieces else 0
        self._disk = disk
        self._pieces = list(reversed(pieces))
        self._step_messages = step_messages
        self._file: File | None = None
        self._step_bytes = STEP_BYTES_MIN
        self._bad: tuple[int, str] | None = None  # where damage begins whose end is not known
        self._order = Order()

    @property
    def done(self) -> bool:
        """Whether there is nothing more to look at."""
        return not self._pieces

    @property
    def in_damage(self) -> bool:
        """Whether the next step looks for the end of damage."""
        return self._bad is not None

    @property
    def piece(self) -> Piece:
        """What the next step reads; there is no other way to ask that when it is ``done``."""
        return self._pieces[-1]

    @property
    def waits_for(self) -> str:
        """The place, which may not answer for ever, that the next step reads from; "": none."""
        return self._pieces[-1].place if self._pieces else ""

    def open(self) -> File | None:
        """Return the file of the piece; None: it cannot be opened, or the next step will.

        A piece that lies elsewhere since a moment ago is opened by the next step.
        """
        try:
            file = self._file
            if file is None:
                file = self._file = self.piece.open(self._disk)
                place = place_of_file(file)
                if place and not self.piece.place:
                    self._pieces[-1] = self.piece._replace(place=place)
                    self.close()
                    return None
        except OSError as error:
            self._fail(error)
            return None
        return file

    def step(self, stop: int | None = None) -> Run | None:
        """Read the next batches, none of which ends behind ``stop``; blocks for one read, or two.

        None: nothing was found intact. Do not call it when it is ``done``.
        """
        piece, begin = self.piece, self.at
        file = self.open()
        if file is None:
            return None
        run = None
        try:
            if self._bad is None:
                end = piece.end if stop is None else min(stop, piece.end)
                run = self._read(file, piece, end)
            else:
                self._look_behind(file, piece, self._bad[0])
        except OSError as error:
            self._fail(error)
            return None
        self.read_bytes += self.at - begin
        self._maybe_end_piece()
        return run

    def skip(self, offset: int) -> None:
        """Go to where a batch of the piece begins, or where the piece ends, without reading."""
        self.at = offset
        self._maybe_end_piece()

    def leave(self, why: str) -> None:
        """Go past the rest of a piece of which nothing can be told now; that is no damage."""
        self.end()
        piece = self.piece
        self.unreachable.append(BadRange(self.at, piece.end, piece.path, why))
        self.at = piece.end
        self._maybe_end_piece()

    def end(self) -> None:
        """Note damage the end of which was not found yet, up to here."""
        if self._bad is not None:
            start, why = self._bad
            if self.damage and self.damage[-1][1:3] == (start, self.piece.path):  # side by side
                start, _, _, why = self.damage.pop()
            self.damage.append(BadRange(start, self.at, self.piece.path, why))
            self._bad = None

    def stop(self) -> None:
        """End here; what is left is not looked at."""
        if self._pieces:
            self.end()
            self._pieces.clear()
        self.close()

    def fork(self) -> Self:
        """Return a walk that is where this one is, and shares nothing with it.

        For the case that a step of this one does not end.
        """
        other = copy.copy(self)
        other.damage, other.unreachable = list(self.damage), list(self.unreachable)
        other._pieces = list(self._pieces)
        other._order = copy.copy(self._order)
        other._file = None
        return other

    def close(self) -> None:
        """Give the file back. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _read(self, file: File, piece: Piece, end: int) -> Run | None:
        begin, size = self.at, self._step_bytes
        try:
            data, found = read_batches(file.pread, piece.block_start, begin, size, end, self._order)
        except CorruptData as error:
            self._bad = (begin, str(error.details["why"]))
            return None
        run = Run(piece, begin, data, found)
        self.at = run.end
        self.batches += len(found)
        few = len(found) < STEP_BATCHES
        if self._step_messages is not None:
            few = few and sum(each.record_count for each in found) < self._step_messages
        wish = size * 2 if few else size // 2
        self._step_bytes = min(max(wish, STEP_BYTES_MIN), STEP_BYTES_MAX)
        return run

    def _look_behind(self, file: File, piece: Piece, start: int) -> None:
        """Look for the next control record that is intact and in its place."""
        begin = max(self.at, start + 1)
        stop = min(begin + STEP_BYTES_MAX, piece.end)
        found = next_control(file, piece.block_start, begin, stop, piece.end)
        self.at = stop if found is None else found
        if found is not None:
            self.end()
            self._order = Order()  # what the damaged batches said is unknown

    def _fail(self, error: OSError) -> None:
        """Give up some bytes that the medium does not deliver, or the rest of a lost file."""
        piece, begin = self.piece, self.at
        if error.errno == errno.EHOSTUNREACH:
            self.leave(str(error.strerror))
            return
        if self._bad is None:
            self._bad = (begin, f"it cannot be read: {error.strerror or error}")
        lost = self._file is None or error.errno == errno.ENOENT
        self.at = piece.end if lost else min(begin + STEP_BYTES_MIN, piece.end)
        self.read_bytes += self.at - begin
        self._maybe_end_piece()

    def _maybe_end_piece(self) -> None:
        if self.at < self.piece.end:
            return
        self.end()
        self.close()
        self._pieces.pop()
        if self._pieces:
            self.at = self._pieces[-1].start
