"""The load of a partition, as strategies and an application's partitioner see it."""

from dataclasses import dataclass, fields
from typing import Final

#: Largest number that counts as a load; with larger ones sums might overflow.
NUMBER_MAX: Final = 1e18


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLoad:
    """The load of a partition and of its broker. Invariant: numbers are in [0, ``NUMBER_MAX``].

    Attributes:
        broker: Which partitions share a broker.
        known: Whether the load of the broker is known; if not, the fields from
            ``disk_used_ratio`` on mean nothing.
        stored_bytes: Bytes of the partition at its broker; None: not known.
        disk_used_ratio: The share of the broker's disk in use; None: not known.
        bytes_per_s: What comes in at the broker, also for other topics.
        capacity_bytes_per_s: What could come in; 0: not known.
        busy: The share of time, in [0, 1], in which the broker is busy.
        queue_depth: Requests that wait at the broker.
        flush_ms: How long one flush takes there.
    """

    broker: str = ""
    known: bool = False
    stored_bytes: float | None = None
    disk_used_ratio: float | None = None
    bytes_per_s: float = 0.0
    capacity_bytes_per_s: float = 0.0
    busy: float = 0.0
    queue_depth: float = 0.0
    flush_ms: float = 0.0

    def __post_init__(self) -> None:
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= NUMBER_MAX:
                raise ValueError(f"{name} = {value} is outside [0, {NUMBER_MAX:g}]")


_NUMBERS: Final = tuple(
    field.name for field in fields(PartitionLoad) if field.name not in {"broker", "known"}
)
