"""Where a log begins, its state, and what one process may tune about its logs."""

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from vq import limits
from vq.errors import InvalidArgument


def partition_of(directory: Path) -> str:
    """Return the partition whose log lies in ``directory``, as log lines name it."""
    return f"{directory.parent.name}-{directory.name}"


class LogBegin(NamedTuple):
    """Where a log begins: what it has to know of the messages of its partition before it.

    Attributes:
        offset: Of its first byte.
        producers: Who wrote before, as ``ProducerTable.to_bytes`` gives it; empty: not known.
        number: Of its first message: so many the partition had before. None: not known, unless the
            log begins at offset 0.
    """

    offset: int = 0
    producers: bytes = b""
    number: int | None = None


#: A partition that has no messages yet begins so.
FROM_THE_FIRST: Final = LogBegin()


class LogState(enum.StrEnum):
    """Whether a log takes appends, and why not."""

    OK = "ok"
    SEALED = "sealed"  # its span ended: readable, no appends
    FAILED = "failed"  # an I/O error ended writing until the broker restarts
    QUARANTINED = "quarantined"  # damage was found when it was opened; readable below it
    CLOSED = "closed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """What one process may tune about its logs.

    Attributes:
        block_bytes: Size at which a block is closed, 4 KiB to 4 GiB. 128 MiB: retention frees space
            in such steps, and a terabyte is 8 192 files. A larger batch gets a block of its own.
        checkpoint_bytes: A checkpoint is written after so many bytes, >= 4 KiB. 64 MiB take well
            under 0.1 s to verify after a crash.
        checkpoint_batches: … or after so many batches, >= 1; small batches take longer to verify.
        allocate_bytes_min: First step in which space is taken ahead of appends; it doubles …
        allocate_bytes_max: … up to this. Large steps save metadata writes per fdatasync.
    """

    block_bytes: int = 128 * limits.MIB
    checkpoint_bytes: int = 64 * limits.MIB
    checkpoint_batches: int = 100_000
    allocate_bytes_min: int = 64 * limits.KIB
    allocate_bytes_max: int = 16 * limits.MIB

    def __post_init__(self) -> None:
        if not 4 * limits.KIB <= self.block_bytes <= 4 * limits.GIB:
            raise InvalidArgument(f"block_bytes = {self.block_bytes} is outside [4 KiB, 4 GiB]")
        if self.checkpoint_bytes < 4 * limits.KIB or self.checkpoint_batches < 1:
            raise InvalidArgument(
                f"checkpoint_bytes = {self.checkpoint_bytes} is below 4 KiB or checkpoint_batches "
                f"= {self.checkpoint_batches} below 1"
            )
        if not 4 * limits.KIB <= self.allocate_bytes_min <= self.allocate_bytes_max:
            raise InvalidArgument(
                f"allocate_bytes_min = {self.allocate_bytes_min} is outside [4 KiB, "
                f"allocate_bytes_max = {self.allocate_bytes_max}]"
            )
