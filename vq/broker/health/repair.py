"""One repair: the damage, and where intact bytes come from."""

from dataclasses import dataclass
from pathlib import Path

from vq.model import Address


@dataclass(frozen=True, slots=True)
class Repair:
    """A range that was repaired.

    Attributes:
        partition: Of which partition.
        start, end: The range of offsets.
        source: The node that had the bytes.
        reason: What was wrong.
        kept: The file that has the damaged bytes; None: nothing was there.
        time_ms: When, by the wall clock.
    """

    partition: tuple[str, int]
    start: int
    end: int
    source: str
    reason: str
    kept: Path | None
    time_ms: int


@dataclass(frozen=True, slots=True)
class RepairSource:
    """A node that may have the bytes.

    Attributes:
        node: Its name.
        address: Where it is.
        trusted_to: Its log is known to be equal to this one's up to here.
    """

    node: str
    address: Address
    trusted_to: int
