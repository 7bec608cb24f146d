"""How far many consumer groups are behind, as one look found it. ``cluster.lag_looks`` looks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from vq.operations.groups.groups import GroupDescription

#: Partitions of all groups together that one look asks brokers about.
PARTITIONS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class GroupLags:
    """What one look at groups found.

    Attributes:
        time_ms: When the look ended, in milliseconds since 1970; 0: there was none.
        took_s: How long it took.
        groups: Each group by name, with its progress in the partitions within the bound.
        failed: How many groups could not be read this time.
        left_out: By group, how many of its partitions are beyond the bound.
        names: All groups that there were, sorted; some are not in ``groups``.
    """

    time_ms: int = 0
    took_s: float = 0.0
    groups: dict[str, GroupDescription] = field(default_factory=dict)
    failed: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    names: Sequence[str] = ()
