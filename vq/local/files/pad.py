"""What a killed process must not forget, in small mapped files: completions, and who was given.

A note waits for the next commit; the pad takes a completion at once, by a store into memory that
the kernel writes back (0.3 µs, where a ``pwrite`` costs some µs and a hand-over of the
interpreter). It adds nothing that a note does not say soon after, so a loss of power may lose it.

A slot has the code of a completed message and, to tell it from torn or foreign bytes, the same code
combined with the secret of the queue. Numbers are never used twice, so what a slot says stays true
for ever: slots need not be cleared.

A second pad has the messages that were handed out, each with how often: so the count goes on over a
crash, and a message that ends its process each time does not begin with 1 for ever.
"""

import itertools
import mmap
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from vq.store.disk.local_files import flush_directory

#: Before so many completions are in no note, the next one waits for a commit.
SLOTS: Final = 65_536
#: A message that is in hand is forgotten once so many others were handed out behind it.
GIVEN_SLOTS: Final = 16_384
_SLOT: Final = struct.Struct(">QQ")
_MODE: Final = 0o640


class Given(NamedTuple):
    """How a message was handed out last.

    Attributes:
        times: For the so manieth time.
        keeps_place: Whoever had it decides what follows its tries, and its order matters.
    """

    times: int
    keeps_place: bool


_TIMES_AT: Final = 48  # bits: the code, whether it keeps its place, the times
_PLACE_AT: Final = 47
_TIMES_MAX: Final = (1 << 16) - 1


def given_of(code: int, times: int, keeps_place: bool) -> int:
    """Return what the pad has of a message with this code, below 2**47; see ``Given``."""
    if times > _TIMES_MAX:
        times = _TIMES_MAX
    return times << _TIMES_AT | keeps_place << _PLACE_AT | code


def given_in(values: Iterable[int]) -> dict[int, Given]:
    """Return how messages were handed out last, by their codes."""
    found: dict[int, Given] = {}
    for value in sorted(values):  # a later time is greater
        code = value & ((1 << _PLACE_AT) - 1)
        found[code] = Given(value >> _TIMES_AT, bool(value >> _PLACE_AT & 1))
    return found


class CodePad:
    """A mapped file. ``note`` may be called by any thread.

    Attributes:
        note: Store a code: 64 bits.
    """

    def __init__(self, path: Path, secret: int, slots: int = SLOTS) -> None:
        """Map the file, which is made with all its bytes if it is missing.

        They are written, not reserved: a store into a page without space would be SIGBUS.

        Raises:
            OSError: It cannot be made or mapped.
        """
        self._slots = slots  # a power of 2
        size = slots * _SLOT.size
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

    def _writer(self, first: int = 0) -> Callable[[int], None]:
        pack, mapped, secret = _SLOT.pack_into, self._map, self._secret
        following, last, size = itertools.count(first).__next__, self._slots - 1, _SLOT.size

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

    def keep(self, codes: Sequence[int]) -> None:
        """Have these codes only, at most as many as there are slots; what comes goes behind them.

        Not while others note.
        """
        data = b"".join(_SLOT.pack(code, code ^ self._secret) for code in codes)
        self._map[:] = data.ljust(len(self._map), b"\0")
        self.note = self._writer(len(codes))

    def close(self) -> None:
        """Give the mapping back."""
        self._map.close()
