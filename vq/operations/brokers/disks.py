"""The disks of a broker, as its status tells them. Plain values in and out; no I/O."""

from dataclasses import dataclass
from typing import Final

from vq.model import StatusResult
from vq.operations.base.sizes import bytes_text

#: A disk that is full within this time needs attention.
SOON_HOURS: Final = 24.0
#: What follows from each level beyond ``ok``.
_MEANINGS: Final = {
    "warn": "it fills up",
    "relieve": "messages are deleted early where topics allow it",
    "refuse": "messages are refused",
    "stop": "messages are refused, and nothing is copied to this node",
    "gone": "the directory is gone, messages are refused",
    "silent": "the directory does not answer, messages are refused",
}
#: Of which nobody can say how much is free.
_UNKNOWN: Final = frozenset({"gone", "silent"})


@dataclass(frozen=True, slots=True)
class DiskState:
    """The disk with a data directory of a broker.

    Attributes:
        directory: On the broker's machine.
        bytes_free: Free bytes of the whole file system; None: not known.
        bytes_total: Its size; None: not known.
        level: ``ok``, ``warn``, ``relieve``, ``refuse``, ``stop``; ``gone``: the directory is;
            ``silent``: the directory does not answer.
        growth_bytes_per_hour: How fast the bytes in use grow; None: not known.
        full_in_hours: When messages are refused at that growth, 0: now; None: that is not known, or
            the disk does not fill up.
        excess_bytes: What should be deleted early.
        files_free: Files (inodes) that can still be made there; None: not known, or no bound.
        files_total: How many it can have; None like ``files_free``.
        file_system: Names the file system: data directories with the same name share its space; "":
            the broker is of a version that does not tell it, or the directory is gone.
    """

    directory: str
    bytes_free: int | None
    bytes_total: int | None
    level: str
    growth_bytes_per_hour: int | None
    full_in_hours: float | None
    excess_bytes: int
    files_free: int | None = None
    files_total: int | None = None
    file_system: str = ""

    @property
    def fills_soon(self) -> bool:
        """Whether it is full within a day, and is not yet."""
        return self.full_in_hours is not None and 0 < self.full_in_hours <= SOON_HOURS

    @property
    def needs_attention(self) -> bool:
        """Whether it is too full, or will be soon."""
        return self.level in _MEANINGS or self.fills_soon

    def __str__(self) -> str:
        parts = [f"disk {self.directory}"]
        if self.bytes_total and self.bytes_free is not None and self.level not in _UNKNOWN:
            used = 1 - self.bytes_free / self.bytes_total
            parts[0] += f" is {used:.1%} full, {bytes_text(self.bytes_free)} are free"
            if self.files_total and self.files_free is not None:
                files = 1 - self.files_free / self.files_total
                if files > used:
                    parts[0] += f", and {files:.1%} of its files (inodes) are in use"
        if self.level in _MEANINGS:
            parts.append(_MEANINGS[self.level])
        if self.full_in_hours:
            parts.append(f"full in {self.full_in_hours:.1f} h at its growth of now")
        return ": ".join((parts[0], "; ".join(parts[1:]))) if parts[1:] else parts[0]


def disk_states(status: StatusResult) -> list[DiskState]:
    """Return the disks of a broker; none: it is of a version that does not tell them."""
    return [
        DiskState(
            directory=each["directory"],
            bytes_free=each["bytes_free"] if each["bytes_total"] else None,
            bytes_total=each["bytes_total"] or None,
            level=each["level"],
            growth_bytes_per_hour=each["growth_bytes_per_hour"] if each["growth_known"] else None,
            full_in_hours=round(each["full_in_s"] / 3600, 2) if each["fills"] else None,
            excess_bytes=each["excess_bytes"],
            files_free=each.get("files_free") if each.get("files_total") else None,
            files_total=each.get("files_total") or None,
            file_system=each.get("file_system", ""),
        )
        for each in status.raw.get("disks", ())
    ]
