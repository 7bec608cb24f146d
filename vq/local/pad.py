"""Completions that are in no note yet, in a small mapped file: a killed process loses none of them.

A note waits for the next commit; the pad takes a completion at once, by a store into memory that
the kernel writes back (0.3 µs, where a ``pwrite`` costs some µs and a hand-over of the
interpreter). It adds nothing that a note does not say soon after, so a loss of power may lose it.

A slot has the code of a completed message and, to tell it from torn or foreign bytes, the same code
combined with the secret of the queue. Numbers are never used twice, so what a slot says stays true
for ever: slots need not be cleared.
"""

import itertools
import mmap
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final

from vq.store.disk.local_files import flush_directory

__all__ = ["SLOTS", "DonePad"]

#: Before so many completions are in no note, the next one waits for a commit.
SLOTS: Final = 65_536
_SLOT: Final = struct.Struct(">QQ")
_MODE: Final = 0o640


class DonePad:
    """The mapped file. ``note`` may be called by any thread.

    Attributes:
        note: Store the code of a message that was completed.
    """

    def __init__(self, path: Path, secret: int) -> None:
        """Map the file, which is made with all its bytes if it is missing.

        They are written, not reserved: a store into a page without space would be SIGBUS.

        Raises:
            OSError: It cannot be made or mapped.
        """
        size = SLOTS * _SLOT.size
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, 0)
                written = 0
                while written < size:
                    written += os.pwrite(fd, bytes(size - written), written)
                os.fsync(fd)
                flush_directory(path.parent)
            self._map = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._secret = secret
        self.note: Callable[[int], None] = self._writer()

    def _writer(self) -> Callable[[int], None]:
        pack, mapped, secret = _SLOT.pack_into, self._map, self._secret
        following, last, size = itertools.count().__next__, SLOTS - 1, _SLOT.size

        def note(code: int) -> None:
            pack(mapped, (following() & last) * size, code, code ^ secret)

        return note

    def codes(self) -> set[int]:
        """Return what the slots say."""
        secret = self._secret
        return {code for code, check in _SLOT.iter_unpack(self._map[:]) if code ^ secret == check}

    def forget(self, codes: set[int]) -> None:
        """Empty the slots with these codes. Before any use."""
        for number, (code, _) in enumerate(_SLOT.iter_unpack(self._map[:])):
            if code in codes:
                _SLOT.pack_into(self._map, number * _SLOT.size, 0, 0)

    def close(self) -> None:
        """Give the mapping back."""
        self._map.close()
