"""Where a log begins and ends, and whether it can be read and written. Values only, no I/O.

The log writes a ``LogStatus``; its reader, its flushing and the broker only read it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vq.errors import (
    OffsetOutOfRange,
    PartitionFailed,
    PartitionQuarantined,
    PartitionReadOnly,
    ShuttingDown,
    VqError,
)
from vq.log_lines import get_logger
from vq.store.log.log_config import LogState, partition_of

logger = get_logger(__name__)

_FLUSHED_STATES: Final = (LogState.OK, LogState.SEALED)


@dataclass(slots=True, kw_only=True)
class LogStatus:
    """What a log and its reader share.

    Attributes:
        directory: Where the log lies.
        start_offset: The oldest byte kept.
        lost_from: In quarantine only: what lies from here to ``start_offset`` is lost, and no
            retention took it. None: nothing is.
        start_messages: Messages before it, since the log's first byte; control records not counted.
        first_number: Number of the log's first message ever, in its partition; None: not known.
        end_offset: Where the next batch goes. Invariant: ``start_offset <= end_offset``.
        messages: Messages before the end, since the log's first byte.
        epoch: Master epoch of the last batch; 0: there never was one.
        append_time_ms: Append time of the last batch; 0: there never was one.
        state, reason: Whether the log takes appends; if not, why.
        readable: False: it is closed, or opening it failed.
    """

    directory: Path
    start_offset: int
    start_messages: int = 0
    first_number: int | None = None
    lost_from: int | None = None
    end_offset: int
    messages: int = 0
    epoch: int = 0
    append_time_ms: int = 0
    state: LogState = LogState.OK
    reason: str = ""
    readable: bool = True

    @property
    def can_flush(self) -> bool:
        """Whether what was appended can still become durable."""
        return self.state in _FLUSHED_STATES

    def stop(self, state: LogState, reason: str) -> None:
        """Take no more appends."""
        self.state, self.reason = state, reason

    def fail(self, error: BaseException) -> None:
        """End writing for good after an I/O error; the outcome of unflushed batches is unknown.

        Reading goes on. The files are not written again, not even to close the log properly: only
        a new start, which reads what the medium really holds, can tell what is stored.
        """
        if self.can_flush:
            logger.error(
                "writing ends after an error", partition=partition_of(self.directory), error=error
            )
            self.stop(LogState.FAILED, f"{type(error).__name__}: {error}")

    def refusal(self) -> VqError:
        """Return the error for a call that the state forbids."""
        text = f"{self.directory} takes no messages: {self.reason}"
        if self.state is LogState.SEALED:
            return PartitionReadOnly(text)
        if self.state is LogState.QUARANTINED:
            return PartitionQuarantined(text)
        if self.state is LogState.CLOSED:
            return ShuttingDown(text)
        return PartitionFailed(text)

    def check_readable(self) -> None:
        """Check that the log was opened and is not closed.

        Raises:
            PartitionFailed: It could not be opened, so what it holds is unknown.
            ShuttingDown: It is closed.
        """
        if not self.readable:
            raise self.refusal()

    @property
    def promised_start(self) -> int:
        """Where the log begins, whether that is still here or not."""
        return self.start_offset if self.lost_from is None else self.lost_from

    def is_lost(self, offset: int) -> bool:
        """Whether ``offset``, behind damage or in lost blocks, is never served."""
        if self.state is not LogState.QUARANTINED:
            return False
        return offset >= self.end_offset or self.promised_start <= offset < self.start_offset

    def check_more(self, offset: int) -> None:
        """Check that ``offset`` does not lie where nothing is ever served.

        Raises:
            PartitionQuarantined: It lies at or behind the damage, or in lost blocks.
        """
        if self.is_lost(offset):
            self.check_range(offset)

    def check_range(self, offset: int) -> None:
        """Check that ``offset`` is in ``[start_offset, end_offset]`` and not behind damage.

        Raises:
            OffsetOutOfRange: It is not; the details carry the valid range.
            PartitionQuarantined: It lies at or behind the damage, or in lost blocks.
            PartitionFailed, ShuttingDown: As ``check_readable``.
        """
        self.check_readable()
        range_ = {"earliest": self.start_offset, "latest": self.end_offset}
        if self.is_lost(offset):
            raise PartitionQuarantined(self.reason, details=range_)
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRange(
                f"offset {offset} is outside [{self.start_offset}, {self.end_offset}]",
                details=range_,
            )
