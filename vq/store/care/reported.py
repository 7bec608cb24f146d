"""Looking at the batch that a reader reports, and at those before it in its piece."""

import contextlib

from vq.errors import CorruptData
from vq.store.care.walk import BadRange, Run, Walk
from vq.store.disk.disk import Disk
from vq.store.log.piece import Piece
from vq.store.records.unreadable import first_unreadable


class ReportedWalk(Walk):
    """Ends with the batch that holds ``offset``, or behind damage there.

    Attributes:
        unreadable: A record at or behind ``offset`` that no reader can read, in an intact batch.
    """

    def __init__(self, disk: Disk, pieces: list[Piece], offset: int) -> None:
        super().__init__(disk, pieces)
        self.unreadable: BadRange | None = None
        self._offset = offset

    def step(self, stop: int | None = None) -> Run | None:
        """See ``Walk.step``."""
        run = super().step(stop)
        if run is not None:
            self._look_into(run)
        if self.at > self._offset and not self.in_damage:
            self.stop()
        return run

    def _look_into(self, run: Run) -> None:
        """Look for a record that a reader stops at."""
        for batch in run.batches:
            start, end = batch.start_offset, batch.end_offset
            if start <= self._offset < end:
                data = run.data[start - run.offset : end - run.offset]
                with contextlib.suppress(CorruptData):  # nothing in it can be told apart
                    found = first_unreadable(data, start, self._offset)
                    if found is not None:
                        why = f"{found[2]}; it was stored so"
                        self.unreadable = BadRange(*found[:2], run.piece.path, why)
