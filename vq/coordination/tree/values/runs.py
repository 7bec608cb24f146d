"""Values below ``archive/runs``: a run of the archive, and what each node has done of it.

A run says: archive what was closed and is old enough as of a time. Runs never change; a node writes
its result while it works and when it has ended.
"""

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from vq.coordination.tree.coordinator import join
from vq.coordination.tree.paths import ARCHIVE
from vq.coordination.tree.values.value import Value

#: Runs that are remembered: the newest ones, and earlier ones that a node is still to do.
RUNS_KEPT: Final = 30
#: Nobody but the daily job makes a run while there are so many.
RUNS_MAX: Final = 500
#: Topics in the result of one node, those with failures and the most bytes first.
RESULT_TOPICS_MAX: Final = 50
ERROR_CHARACTERS_MAX: Final = 300
_RUNS: Final = join(ARCHIVE, "runs")
#: No group or node has it in its name.
_SEPARATOR: Final = ":"


class RunState(enum.StrEnum):
    """How far a node is with a run."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"  # not all that was due could be archived
    COVERED = "covered"  # a later run does its work
    REFUSED = "refused"  # it was made under a lease that had ended


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounter(Value):
    """``archive/runs``: ``next`` is the number of the next run.

    ``since_ms`` is when a node first held the lease: a daily run that was due earlier was not
    missed. ``daily_ms`` is when the last daily run was due, which may be forgotten; 0: there was
    none.
    """

    _what = "counter of runs"
    _omits = ("daily_ms",)
    next: int = 0
    since_ms: int = 0
    daily_ms: int = 0

    @staticmethod
    def path() -> str:
        """Return the path of the counter, and the parent of the runs."""
        return _RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder(Value):
    """``archive/runs/<n>``: what every node is to archive.

    Attributes:
        as_of_ms: Blocks are as old as at this time.
        started_ms: When the run was made, by the clock of who made it.
        by: Who: a node, or an operator.
        nonce: Identifies the run of its maker after a lost reply.
        topic: Only this one; None, and left out: all topics.
        dry_run: Nodes say what they would do.
        due_ms: Of a daily run: when it was due. None, and left out: an operator wanted the run.
        fence: The lease under which a daily run was made; None, and left out, like ``due_ms``.
    """

    _what = "run of the archive"
    _omits = ("topic", "due_ms", "fence")
    as_of_ms: int
    started_ms: int
    by: str = ""
    nonce: str = ""
    topic: str | None = None
    dry_run: bool = False
    due_ms: int | None = None
    fence: int | None = None

    @staticmethod
    def path(number: int) -> str:
        """Return the path of a run."""
        return join(_RUNS, str(number))

    def covers(self, earlier: "RunOrder") -> bool:
        """Whether a node that does this run need not do an earlier one."""
        if self.dry_run or earlier.dry_run:
            return False
        return self.as_of_ms >= earlier.as_of_ms and self.topic in {None, earlier.topic}


@dataclass(frozen=True, slots=True)
class ArchiveTopicRun:
    """What a node, or all of them, have done of a topic in a run.

    Attributes:
        blocks: That became archives; in a dry run: that would.
        size_bytes: Of these blocks.
        archive_bytes: Of the archives.
        failed: Blocks that are due and could not be archived.
        error: Why, of the first of them; "": all could.
        later: Blocks that are due, and are not committed or not durable yet, or in use at this
            moment: the next run takes them.
    """

    blocks: int = 0
    size_bytes: int = 0
    archive_bytes: int = 0
    failed: int = 0
    error: str = ""
    later: int = 0

    def plus(self, other: "ArchiveTopicRun") -> "ArchiveTopicRun":
        """Return both together; the first error counts."""
        return ArchiveTopicRun(
            self.blocks + other.blocks,
            self.size_bytes + other.size_bytes,
            self.archive_bytes + other.archive_bytes,
            self.failed + other.failed,
            self.error or other.error,
            self.later + other.later,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult(Value):
    """``archive/runs/<n>/<group>:<node>``: what a node has done of a run.

    Attributes:
        state: How far it is.
        begun_ms, ended_ms: When, by the clock of the node; ``ended_ms`` is 0 while it works.
        total: Of all topics.
        topics: By name; not all if they are too many.
        omitted: How many topics are left out.
    """

    _what = "result of a run"
    state: RunState
    begun_ms: int = 0
    ended_ms: int = 0
    total: ArchiveTopicRun = field(default_factory=ArchiveTopicRun)
    topics: Mapping[str, ArchiveTopicRun] = field(default_factory=dict)
    omitted: int = 0

    @staticmethod
    def path(number: int, group: str, node: str) -> str:
        """Return the path of a node's result."""
        return join(RunOrder.path(number), f"{group}{_SEPARATOR}{node}")

    @staticmethod
    def node_of(name: str) -> tuple[str, str]:
        """Return group and node that the name of a znode says."""
        group, _, node = name.partition(_SEPARATOR)
        return group, node

    @property
    def has_ended(self) -> bool:
        """Whether the node does no more of the run."""
        return self.state is not RunState.RUNNING

    def bounded(self) -> Self:
        """Return the result with so few topics and so short errors that a znode takes it."""
        order = sorted(
            self.topics, key=lambda name: (-self.topics[name].failed, -self.topics[name].size_bytes)
        )
        kept = {name: _short(self.topics[name]) for name in sorted(order[:RESULT_TOPICS_MAX])}
        omitted = self.omitted + len(order) - len(kept)
        return replace(self, total=_short(self.total), topics=kept, omitted=omitted)

    def _to_json(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "begun_ms": self.begun_ms,
            "ended_ms": self.ended_ms,
            "total": _topic_json(self.total),
            "topics": {name: _topic_json(each) for name, each in self.topics.items()},
            "omitted": self.omitted,
        }

    @classmethod
    def _from_json(cls, document: Mapping[str, Any]) -> Self:
        return cls(
            state=RunState(document["state"]),
            begun_ms=int(document["begun_ms"]),
            ended_ms=int(document["ended_ms"]),
            total=_topic_result(document["total"]),
            topics={name: _topic_result(each) for name, each in document["topics"].items()},
            omitted=int(document.get("omitted", 0)),
        )


def refused(runs: Mapping[int, RunOrder], number: int) -> bool:
    """Whether a run was made under a lease that had ended: an earlier run has a higher fence."""
    fence = runs[number].fence
    earlier = (each.fence for at, each in runs.items() if at < number and each.fence is not None)
    return fence is not None and fence < max(earlier, default=0)


def covering(runs: Mapping[int, RunOrder], number: int) -> int | None:
    """Return a later run that does the work of a run; None: there is none."""
    for at, each in runs.items():
        if at > number and each.covers(runs[number]) and not refused(runs, at):
            return at
    return None


def _short(result: ArchiveTopicRun) -> ArchiveTopicRun:
    return replace(result, error=result.error[:ERROR_CHARACTERS_MAX])


def _topic_json(result: ArchiveTopicRun) -> dict[str, Any]:
    return {name: value for name, value in asdict(result).items() if name != "later" or value}


def _topic_result(document: Mapping[str, Any]) -> ArchiveTopicRun:
    return ArchiveTopicRun(
        blocks=int(document["blocks"]),
        size_bytes=int(document["size_bytes"]),
        archive_bytes=int(document["archive_bytes"]),
        failed=int(document["failed"]),
        error=str(document.get("error", "")),
        later=int(document.get("later", 0)),
    )
