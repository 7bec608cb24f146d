"""The level of disk usage, from measurements. The node measures."""

import enum
from dataclasses import dataclass


class DiskLevel(enum.IntEnum):
    """The level of disk usage."""

    OK = 0
    WARN = 1
    REFUSE = 2


@dataclass(slots=True)
class DiskWatch:
    """Turns measurements into a level, with a gap between refusing and resuming.

    Attributes:
        warn, refuse, resume: Shares of the disk in use, in (0, 1]; see ``BrokerConfig``.
        level: After the last measurement.
        free, total: Bytes, of the last measurement; 0 before the first.
        trouble: Why the last measurement failed, as it was logged; "" if it did not.
    """

    warn: float
    refuse: float
    resume: float
    level: DiskLevel = DiskLevel.OK
    free: int = 0
    total: int = 0
    trouble: str = ""

    @property
    def used_share(self) -> float:
        """The share in use; 0 before the first measurement."""
        return 1 - self.free / self.total if self.total else 0.0

    def observe(self, free: int, total: int) -> DiskLevel:
        """Note a measurement and return the new level."""
        self.free, self.total = free, total
        used = self.used_share
        if used >= self.refuse or (self.level is DiskLevel.REFUSE and used >= self.resume):
            self.level = DiskLevel.REFUSE
        else:
            self.level = DiskLevel.WARN if used >= self.warn else DiskLevel.OK
        return self.level
