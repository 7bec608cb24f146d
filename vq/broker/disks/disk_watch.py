"""The level of disk usage, from measurements. The node measures.

    level     from        and then, until usage has fallen by the gap below its mark
    WARN      warn        it is told
    RELIEVE   relieve     messages are deleted early, of topics that allow it
    REFUSE    refuse      PUTs are refused; up to ``resume``
    STOP      stop        a copy takes nothing more from its master

A file system with a bound for the number of its files (inodes) can be full of files, too: what
counts is the larger one of the two shares. Deletions write a checkpoint first, which is a new file;
so a file system without one left would be full for ever.

The gap is the one between ``refuse`` and ``resume``, for all levels, so that none of them flaps.
``refuse`` is the mark that counts: another one on its wrong side counts as equal to it.

Beyond ``stop``, a node still reads, deletes, and writes what is small and must be: epochs, lists of
its logs, checkpoints. PUTs and moves to the node are refused from ``refuse`` on, so what copies
append is all that is left to stop. The rest of the disk is for what recovery and deletion write.
"""

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

#: No disk counts as larger: some file systems over a network have as much as their fields hold, and
#: numbers of several directories are added.
_BYTES_MAX: Final = 1 << 58


class DiskLevel(enum.IntEnum):
    """The level of disk usage."""

    OK = 0
    WARN = 1
    RELIEVE = 2
    REFUSE = 3
    STOP = 4


class Marks(NamedTuple):
    """Shares of the disk in use, in (0, 1]; see ``BrokerConfig``."""

    warn: float = 0.75
    relieve: float = 0.85
    refuse: float = 0.90
    resume: float = 0.88
    stop: float = 0.97

    def of(self, level: DiskLevel) -> float:
        """Return from which share on there is this level."""
        return {
            DiskLevel.OK: 0.0,
            DiskLevel.WARN: min(self.warn, self.refuse),
            DiskLevel.RELIEVE: min(self.relieve, self.refuse),
            DiskLevel.REFUSE: self.refuse,
            DiskLevel.STOP: max(self.stop, self.refuse),
        }[level]

    def until(self, level: DiskLevel) -> float:
        """Return down to which share the level stays once it was there."""
        if level is DiskLevel.REFUSE:
            return self.resume
        return max(0.0, self.of(level) - (self.refuse - self.resume))


@dataclass(slots=True)
class DiskWatch:
    """Turns measurements into a level, with a gap between each step up and down.

    Attributes:
        marks: Where the levels begin.
        level: After the last measurement.
        free, total: Bytes, of the last measurement; 0 before the first.
        files_free, files_total: Files likewise; 0, 0: there is no bound for them.
        trouble: Why the last measurement failed, as it was logged; "" if it did not.
    """

    marks: Marks
    level: DiskLevel = DiskLevel.OK
    free: int = 0
    total: int = 0
    files_free: int = 0
    files_total: int = 0
    trouble: str = ""

    @property
    def used_share(self) -> float:
        """The share of the bytes in use; 0 before the first measurement."""
        return 1 - self.free / self.total if self.total else 0.0

    @property
    def files_share(self) -> float:
        """The share of the files in use; 0 without a bound."""
        return 1 - self.files_free / self.files_total if self.files_total else 0.0

    @property
    def fullness(self) -> str:
        """How full it is, by what it is fuller of."""
        if self.files_share > self.used_share:
            return f"{self.files_share:.1%} full of files (inodes)"
        return f"{self.used_share:.1%} full"

    @property
    def excess_bytes(self) -> int:
        """How many bytes must go before nothing needs to go early any more; 0: nothing needs to.

        1 where it is full of files alone: so the oldest block goes, and it is looked at again.
        """
        return max(1, self.size_excess) if self.level >= DiskLevel.RELIEVE else 0

    @property
    def size_excess(self) -> int:
        """The same where only bytes count."""
        if self.level < DiskLevel.RELIEVE:
            return 0
        until = int(self.marks.until(DiskLevel.RELIEVE) * self.total)
        return max(0, self.total - self.free - until)

    def observe(
        self, free: int, total: int, files_free: int = 0, files_total: int = 0
    ) -> DiskLevel:
        """Note a measurement and return the new level.

        More free than there is: a negative number, as some file systems have it for what only root
        may use, came without its sign. So nothing is free.
        """
        self.free, self.total = _bounded(free, total)
        self.files_free, self.files_total = _bounded(files_free, files_total)
        used, marks, was = max(self.used_share, self.files_share), self.marks, self.level
        self.level = max(
            level
            for level in DiskLevel
            if used >= marks.of(level) or (was >= level and used >= marks.until(level))
        )
        return self.level


def _bounded(free: int, total: int) -> tuple[int, int]:
    total_ = min(max(0, total), _BYTES_MAX)
    return (0 if free > total else min(max(0, free), total_)), total_
