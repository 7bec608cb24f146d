"""What an allocation must keep to, and what makes one better than another. Plain values, no I/O."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vq.errors import InvalidArgument
from vq.model import COMMON_POOL, check_name, check_pool, choice_of
from vq.shown import shown

#: A plan is not larger, whatever is asked for.
PLAN_MOVES_MAX: Final = 10_000
#: The most that a goal lets one group have, as a multiple of the mean.
SKEW_MAX: Final = 100.0


class LoadGoal(enum.StrEnum):
    """A soft goal: something that all groups of a pool should have equally much of.

    ``topics`` counts, of each topic, the partitions that a group has beyond an even share.
    """

    BYTES = "bytes"
    MESSAGES = "messages"
    STORED = "stored"
    PARTITIONS = "partitions"
    TOPICS = "topics"


class HardGoal(enum.StrEnum):
    """A hard goal: a rule that no proposed move breaks."""

    OPEN = "open"  # only an open partition moves, and only from a group with a master
    ALIVE = "alive"  # the target has a master
    DRAINING = "draining"  # nothing is on a group that is draining
    EXCLUDED = "excluded"  # excluded groups and topics stay as they are
    POOL = "pool"  # the group is in the pool of the topic
    NODES = "nodes"  # the group has as many nodes as the topic's min_insync
    LABEL = "label"  # the group has the labels that are required
    RACKS = "racks"  # its nodes are in so many racks
    DISK = "disk"  # the group has room for what it will get


@dataclass(frozen=True, slots=True)
class RequiredLabel:
    """A label that groups must have which hold partitions of a topic; "": of any topic."""

    label: str
    value: str
    topic: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationGoals:
    """Hard and soft goals, and bounds of a plan.

    Attributes:
        soft: The soft goals, the most important one first. None is made worse for one behind it.
        skew: A goal is met where the highest group of each pool has at most so many times the mean,
            >= 1; of partitions also the next whole number above the mean.
        moves_max: A plan has at most so many moves, 0 to 10 000.
        exclude_groups: Nothing is moved to or from these, and they do not count.
        exclude_topics: Their partitions stay where they are, and count.
        pools: Topics to be isolated, and where: the plan sets their pool. None: the common pool.
        labels: Labels that groups must have.
        racks_min: In how many racks the nodes of a group must be; 0: in any.
        room_hours: A group must have room for what it gets in so many hours.
        disk_used_max: And its disk must not be fuller then than this share, in (0, 1].
    """

    soft: tuple[LoadGoal, ...] = tuple(LoadGoal)
    skew: float = 1.1
    moves_max: int = 1_000
    exclude_groups: frozenset[str] = frozenset()
    exclude_topics: frozenset[str] = frozenset()
    pools: Mapping[str, str | None] = field(default_factory=dict)
    labels: tuple[RequiredLabel, ...] = ()
    racks_min: int = 0
    room_hours: float = 24.0
    disk_used_max: float = 0.85

    def __post_init__(self) -> None:
        soft = tuple(choice_of(LoadGoal, "goal", each) for each in self.soft)
        if len(set(soft)) < len(soft):
            raise InvalidArgument(f"goals = {', '.join(soft)} name one twice; name each once")
        object.__setattr__(self, "soft", soft)
        for name in ("exclude_groups", "exclude_topics"):
            object.__setattr__(self, name, frozenset(getattr(self, name)))
        object.__setattr__(self, "labels", tuple(self.labels))
        pools = {check_name("topic", topic): check_pool(pool) for topic, pool in self.pools.items()}
        object.__setattr__(self, "pools", pools)
        _check("skew", self.skew, 1, SKEW_MAX)
        _check("moves_max", self.moves_max, 0, PLAN_MOVES_MAX)
        _check("racks_min", self.racks_min, 0, 100)
        _check("room_hours", self.room_hours, 0, 10_000)
        _check("disk_used_max", self.disk_used_max, 0.01, 1)

    def to_json(self) -> dict[str, Any]:
        """Return the goals as JSON."""
        return {
            "soft": [str(each) for each in self.soft],
            "skew": self.skew,
            "moves_max": self.moves_max,
            "exclude_groups": sorted(self.exclude_groups),
            "exclude_topics": sorted(self.exclude_topics),
            "pools": {topic: pool or COMMON_POOL for topic, pool in sorted(self.pools.items())},
            "labels": [
                {"topic": each.topic or None, "label": each.label, "value": each.value}
                for each in self.labels
            ],
            "racks_min": self.racks_min,
            "room_hours": self.room_hours,
            "disk_used_max": self.disk_used_max,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "AllocationGoals":
        """Return what ``to_json`` gave; what is missing has its default.

        Raises:
            InvalidArgument, TypeError, KeyError, AttributeError: It is something else.
        """
        values = {name: document[name] for name in _PLAIN if name in document}
        if "labels" in document:
            values["labels"] = tuple(
                RequiredLabel(each["label"], each["value"], each["topic"] or "")
                for each in document["labels"]
            )
        return cls(**values)


_PLAIN: Final = (
    "soft",
    "skew",
    "moves_max",
    "exclude_groups",
    "exclude_topics",
    "pools",
    "racks_min",
    "room_hours",
    "disk_used_max",
)


def _check(name: str, given: object, least: float, most: float) -> None:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not math.isfinite(given) or not least <= given <= most:  # type: ignore[arg-type,operator]
        raise InvalidArgument(f"{name} = {shown(given)} is outside [{least}, {most}]")
