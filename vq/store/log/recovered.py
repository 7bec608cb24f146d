"""What a start found of a log: the case, what it means, and what is there."""

import enum
from dataclasses import dataclass, field
from pathlib import Path

from vq.store.log.block import Block
from vq.store.records.scan import LogFacts


class Case(enum.StrEnum):
    """What recovery found at the end of what it could verify."""

    NEW = "new"
    CLEAN = "clean"
    TORN_TAIL = "torn tail"
    UNSYNCED = "unsynced group"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"


@dataclass(slots=True)
class RecoveryReport:
    """What recovery found and did.

    Attributes:
        case: The row of the table.
        offset: X, where the verified part ends.
        checkpoint_offset: Verification began here.
        verified_bytes: How many were.
        batches: In how many batches.
        cut_bytes: Bytes taken off the end.
        cut_files: Where they are kept now.
        cut_messages: How many messages they announced at least; None: not known.
        notes: Sentences for the operator.
    """

    case: Case = Case.NEW
    offset: int = 0
    checkpoint_offset: int = 0
    verified_bytes: int = 0
    batches: int = 0
    cut_bytes: int = 0
    cut_files: list[Path] = field(default_factory=list)
    cut_messages: int | None = None
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Recovered:
    """A log as recovery hands it over."""

    start_offset: int
    end_offset: int
    facts: LogFacts
    start_messages: int = 0
    first_number: int | None = None
    blocks: list[Block] = field(default_factory=list)
    sealed: bool = False
    has_checkpoint: bool = False
    unnamed: bool = False  # there are blocks, and no manifest that names them
    dropped: list[Path] = field(default_factory=list)  # blocks whose retention was interrupted
    discards: list[Path] = field(default_factory=list)  # marks of zips elsewhere, to be removed
    quarantine: str = ""  # why, if it is in quarantine
    lost_from: int | None = None  # then: what is gone begins here and ends at ``start_offset``
    report: RecoveryReport = field(default_factory=RecoveryReport)

    @classmethod
    def failed(cls, start_offset: int) -> "Recovered":
        """Return a log of which nothing could be read."""
        return cls(start_offset, start_offset, LogFacts(), report=RecoveryReport(Case.UNREADABLE))


def classify(
    x: int, *, checkpoint_offset: int, rest_is_zero: bool, claimed_synced: int | None
) -> Case:
    """Return the row of the table for a log whose verified part ends at ``x``.

    Args:
        x: First byte that is no batch.
        checkpoint_offset: Everything before it was durable when the checkpoint was written.
        rest_is_zero: Nothing but zeros, or nothing at all, lies behind x.
        claimed_synced: Highest synced offset that an intact batch behind x tells; None: no batch.
    """
    if x < checkpoint_offset:
        return Case.DAMAGED
    if claimed_synced is not None:
        return Case.DAMAGED if claimed_synced > x else Case.UNSYNCED
    return Case.CLEAN if rest_is_zero else Case.TORN_TAIL
