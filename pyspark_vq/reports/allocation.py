"""Which partitions should be written elsewhere, so that disks fill evenly: pure functions.

A move copies nothing: the new group takes what is appended from then on (`vq topic move`). So a
plan is about growth, not about what is stored. A group's *load* is what it gets in a day for each
byte that its smallest disk still has: two groups with the same load are full on the same day.

In each step the partition moves that lowers the larger of the two loads most, from the group with
the highest load to the one with the lowest load of the same pool; to the one with the next lowest
if no partition fits there, and never to one that is closed. It ends when the loads differ by less
than ``EVEN`` of the higher one, when the best move lowers that by less than ``GAIN_MIN``, or after
``moves_max`` moves.

*Example*: b1 has 100 GB free and gets 30 GB a day in three partitions of 10; b2 has 100 GB free and
gets nothing. The loads are 0.3 and 0. One move makes them 0.2 and 0.1; a second one would only swap
them.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

#: A plan has at most so many moves unless the caller says otherwise.
MOVES_MAX: Final = 20
#: Loads that differ by less than this share of the higher one are even.
EVEN: Final = 0.1
#: A move counts only if it lowers the higher load of its two groups by this share.
GAIN_MIN: Final = 0.01


@dataclass(frozen=True, slots=True)
class Group:
    """A broker group that takes new partitions.

    Attributes:
        name: Of the group.
        pool: Its pool; None: the common one.
        free_bytes: Of the fullest disk of its nodes: when that one is full, messages are refused.
        closed: Why nothing may be moved to it; "": it may.
    """

    name: str
    pool: str | None
    free_bytes: int
    closed: str = ""


@dataclass(frozen=True, slots=True)
class Placed:
    """A partition that takes messages, with what it gets in a day."""

    topic: str
    partition: int
    group: str
    bytes_per_day: float


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """One move, with its reason.

    Attributes:
        topic, partition: Of what.
        source, target: From which broker group to which.
        bytes_per_day: What the partition gets.
        source_before, source_after, target_before, target_after: Loads: the share of the free
            space that a day takes.
        reason: For people.
    """

    topic: str
    partition: int
    source: str
    target: str
    bytes_per_day: float
    source_before: float
    source_after: float
    target_before: float
    target_after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What is proposed.

    Attributes:
        moves: In the order in which they are to be made.
        before, after: The load of each group.
        notes: Why groups or partitions were left out.
    """

    moves: tuple[PlannedMove, ...]
    before: dict[str, float]
    after: dict[str, float]
    notes: tuple[str, ...] = ()


def plan(
    groups: Iterable[Group],
    placed: Iterable[Placed],
    *,
    moves_max: int = MOVES_MAX,
    notes: Sequence[str] = (),
) -> Plan:
    """Return the moves that even out the loads; equal for equal arguments, in any order."""
    by_name = {each.name: each for each in sorted(groups, key=lambda each: each.name)}
    held: dict[str, list[Placed]] = {name: [] for name in by_name}
    for each in sorted(placed, key=lambda each: (each.topic, each.partition)):
        if each.group in held and each.bytes_per_day > 0:
            held[each.group].append(each)
    before = _loads(by_name, held)
    moves: list[PlannedMove] = []
    moved: set[tuple[str, int]] = set()
    for _ in range(moves_max):
        found = _best(by_name, held, moved)
        if found is None:
            break
        moves.append(found)
        moved.add((found.topic, found.partition))
        [partition] = [
            each
            for each in held[found.source]
            if (each.topic, each.partition) == (found.topic, found.partition)
        ]
        held[found.source].remove(partition)
        held[found.target].append(replace(partition, group=found.target))
    return Plan(tuple(moves), before, _loads(by_name, held), tuple(notes))


def _best(
    groups: dict[str, Group], held: dict[str, list[Placed]], moved: set[tuple[str, int]]
) -> PlannedMove | None:
    """Return the move that lowers the higher load of its two groups most, over all pools."""
    loads = _loads(groups, held)
    best: tuple[float, PlannedMove] | None = None
    for pool in sorted({each.pool or "" for each in groups.values()}):
        names = [name for name, each in groups.items() if (each.pool or "") == pool]
        source = max(names, key=lambda name: (loads[name], name))
        movable = [each for each in held[source] if (each.topic, each.partition) not in moved]
        for target in sorted(names, key=lambda name: (loads[name], name)):
            if loads[source] - loads[target] < EVEN * loads[source] or source == target:
                break
            if groups[target].closed:
                continue
            found = _best_between(groups[source], groups[target], loads, movable)
            if found is not None:
                best = found if best is None or found[0] > best[0] else best
                break
    return None if best is None else best[1]


def _best_between(
    source: Group, target: Group, loads: dict[str, float], movable: Sequence[Placed]
) -> tuple[float, PlannedMove] | None:
    """Return the move between two groups that lowers the load of the first most, and by what."""
    best: tuple[float, PlannedMove] | None = None
    high, low = loads[source.name], loads[target.name]
    for each in movable:
        source_after = high - _share(each.bytes_per_day, source)
        target_after = low + _share(each.bytes_per_day, target)
        gain = (high - max(source_after, target_after)) / high if high else 0.0
        if gain < GAIN_MIN or (best is not None and gain <= best[0]):
            continue
        move = PlannedMove(
            topic=each.topic,
            partition=each.partition,
            source=source.name,
            target=target.name,
            bytes_per_day=each.bytes_per_day,
            source_before=high,
            source_after=source_after,
            target_before=low,
            target_after=target_after,
            reason=(
                f"{source.name} gets {high:.1%} of its free space in a day and {target.name} "
                f"{low:.1%}; afterwards {source_after:.1%} and {target_after:.1%}"
            ),
        )
        best = (gain, move)
    return best


def _loads(groups: dict[str, Group], held: dict[str, list[Placed]]) -> dict[str, float]:
    return {
        name: _share(sum(each.bytes_per_day for each in held[name]), group)
        for name, group in groups.items()
    }


def _share(bytes_per_day: float, group: Group) -> float:
    return bytes_per_day / max(1, group.free_bytes)


def plan_document(found: Plan) -> dict[str, Any]:
    """Return a plan as JSON: what ``vq topic move --json`` shows of planned moves, and reasons.

    ``moves`` has the fields of that command; ``commands`` are those that carry the plan out.
    """
    return {
        "done": False,
        "moves": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "from": each.source,
                "to": each.target,
                "at_offset": None,
                "reason": each.reason,
                "bytes_per_day": round(each.bytes_per_day),
                "load": {
                    "from": [round(each.source_before, 6), round(each.source_after, 6)],
                    "to": [round(each.target_before, 6), round(each.target_after, 6)],
                },
            }
            for each in found.moves
        ],
        "commands": commands(found.moves),
        "load_before": {name: round(load, 6) for name, load in found.before.items()},
        "load_after": {name: round(load, 6) for name, load in found.after.items()},
        "notes": list(found.notes),
    }


def commands(moves: Sequence[PlannedMove]) -> list[str]:
    """Return the commands that carry moves out, one for each topic and target, in order."""
    together: dict[tuple[str, str], list[int]] = {}
    for each in moves:
        together.setdefault((each.topic, each.target), []).append(each.partition)
    return [
        " ".join(
            ["vq topic move"]
            + ([] if topic.startswith("-") else [shlex.quote(topic)])
            + [f"--partition {number}" for number in sorted(numbers)]
            + [f"--to {shlex.quote(target)} --yes"]
            + ([f"-- {shlex.quote(topic)}"] if topic.startswith("-") else [])
        )
        for (topic, target), numbers in together.items()
    ]
