"""``vq balance``: topics for broker groups by measured load; see ``vq.operations.allocation``."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from vq.cli.base.completion import broker_group_names, topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, having, mapping, maybe, record, shows, some
from vq.cli.base.options import (
    Commands,
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    flag,
    option,
)
from vq.cli.cluster.balance_runs import (
    PLAN_FILE,
    apply,
    cancel,
    document_in,
    progress,
    resume,
)
from vq.errors import InvalidArgument
from vq.model import COMMON_POOL, TopicPartition
from vq.operations.allocation import goals as goal_bounds
from vq.operations.allocation import measuring
from vq.operations.allocation.board import BrokenGoal, GoalScore
from vq.operations.allocation.facts import AllocationFacts, GroupLoad, MeasuredPartition
from vq.operations.allocation.goals import AllocationGoals, LoadGoal, RequiredLabel
from vq.operations.allocation.measuring import group_loads, measure_allocation
from vq.operations.allocation.plan_json import plan_to_json, wanted_moves
from vq.operations.allocation.planning import plan_allocation
from vq.operations.allocation.plans import AllocatedMove, AllocationPlan, GroupSums, KeptLoad
from vq.operations.base.sizes import bytes_text


def _pool(group: GroupLoad) -> str:
    return group.pool or COMMON_POOL


_GROUP: Final = Shape(
    GroupLoad,
    "group pool= labels racks alive draining nodes partitions bytes_per_s messages_per_s "
    "copied_bytes_per_s stored_bytes busy capacity_bytes_per_s flush_s queue_depth disk_bytes_free "
    "disk_bytes_total disk_growth_bytes_per_hour disk_full_in_hours error?",
    pool=_pool,
)
_SUMS: Final = record(
    bytes_per_s=maybe(float),
    messages_per_s=maybe(float),
    stored_bytes=maybe(float),
)
_TOPIC: Final = having(_SUMS, topic=str, pool=str, partitions=int, groups=int)
_PARTITION: Final = Shape(
    MeasuredPartition, "topic partition group bytes_per_s messages_per_s stored_bytes error?"
)

_SCORE: Final = some(Shape(GoalScore))
_BROKEN: Final = some(Shape(BrokenGoal, "goal group topic? partition reason"))
_PLAN: Final = record(
    v=int,
    id=str,
    cluster=str,
    source=str,
    by=str,
    made_s=float,
    measured_s=float,
    window_s=float,
    goals=record(
        soft=some(str),
        skew=float,
        moves_max=int,
        exclude_groups=some(str),
        exclude_topics=some(str),
        pools=mapping(str),
        labels=some(record(topic=maybe(str), label=str, value=str)),
        racks_min=int,
        room_hours=float,
        disk_used_max=float,
    ),
    moves=some(
        Shape(
            AllocatedMove,
            "topic partition from=source to=target bytes_per_s messages_per_s stored_bytes start "
            "version goal reason",
        )
    ),
    topics=some(record(topic=str, id=str, min_insync=int, pool=str, new_pool=str)),
    groups=some(
        record(
            group=str,
            pool=str,
            labels=mapping(str),
            draining=bool,
            version=int,
            counts=bool,
            before=Shape(GroupSums),
            after=Shape(GroupSums),
        )
    ),
    score_before=_SCORE,
    score_after=_SCORE,
    broken_before=_BROKEN,
    broken=_BROKEN,
    refused=_BROKEN,
    kept=some(Shape(KeptLoad)),
    notes=some(str),
)
_NEW_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(cls=Commands)
def balance() -> None:
    """Give topics to broker groups by measured load: plan, apply, watch, cancel."""


# load ---------------------------------------------------------------------------------------------
@balance.command()
@flag("--topics as by", "Measure, and show each topic.", flag_value="topics")
@flag("--partitions as by", "Measure, and show partitions.", flag_value="partitions")
@option(
    "--topic NAME ... as names",
    "Measure only this topic; may be given several times.",
    shell_complete=topic_names,
)
@option(
    "--top N",
    "Show the N that get most bytes.  [20]",
    WholeNumber(min=1, max=1_000_000),
    default=20,
)
@option(
    "--seconds",
    "How long to measure topics and partitions.  [5]",
    Seconds(min=measuring.WINDOW_S_MIN, max=measuring.WINDOW_S_MAX),
    default=measuring.WINDOW_S_DEFAULT,
)
@shows(some(_GROUP), topics=some(_TOPIC), partitions=some(_PARTITION))
@command_options
def load(
    invocation: Invocation, by: str | None, names: Sequence[str], top: int, seconds: float
) -> None:
    """Show the load of broker groups, or measure that of topics or partitions.

    The load of a group is what its master publishes every few seconds; no broker is asked. With
    --topics or --partitions, masters tell twice where their partitions end, --seconds apart.
    """
    if by is None and names:
        raise click.UsageError("--topic needs --topics or --partitions")
    if by is None:
        _show_groups(invocation, invocation.call(group_loads))
        return
    facts = invocation.call(measure_allocation, window_s=seconds, topics=set(names) or None)
    missing = sorted(set(names) - facts.topics.keys())
    if missing:
        raise InvalidArgument(f"there is no topic {missing[0]!r}; see `vq topic list`")
    rows = _topic_rows(facts) if by == "topics" else _PARTITION.all(facts.partitions.values())
    rows.sort(key=lambda row: -(row["bytes_per_s"] or 0.0))
    _show_loads(invocation, rows[:top], by)
    if len(rows) > top and invocation.output.to_terminal:
        invocation.output.remark(f"{len(rows) - top} more; --top N shows more")
    for name, group in facts.groups.items():
        if group.error:
            invocation.output.remark(f"{name}: {group.error}")


def _show_groups(invocation: Invocation, found: Sequence[GroupLoad]) -> None:
    output = invocation.output
    if output.document(_GROUP.all(found)):
        return
    rows = [
        {
            "group": each.group,
            "pool": _pool(each),
            "partitions": each.partitions,
            "bytes": _per_s(each.bytes_per_s),
            "messages": None if each.messages_per_s is None else f"{each.messages_per_s:.1f}/s",
            "stored": bytes_text(each.stored_bytes),
            "free": bytes_text(each.disk_bytes_free),
            "busy": None if each.busy is None else f"{each.busy:.0%}",
            "flush": None if each.flush_ms is None else f"{each.flush_ms:.1f} ms",
            "state": _group_state(each),
        }
        for each in found
    ]
    columns = "group pool partitions bytes messages stored free busy flush state"
    output.table(rows, columns=columns)


def _group_state(group: GroupLoad) -> str:
    if group.error:
        return group.error
    if not group.alive:
        return "no master"
    return "draining" if group.draining else "ok"


def _per_s(rate: float | None) -> str | None:
    return None if rate is None else f"{bytes_text(round(rate))}/s"


def _topic_rows(facts: AllocationFacts) -> list[dict[str, Any]]:
    held: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _PARTITION.all(facts.partitions.values()):
        held[row["topic"]].append(row)
    return [
        {
            "topic": name,
            "pool": topic.pool or COMMON_POOL,
            "partitions": len(held[name]),
            "groups": len({row["group"] for row in held[name]} - {None}),
            **{each: _sum(held[name], each) for each in _SUMS["properties"]},
        }
        for name, topic in facts.topics.items()
    ]


def _sum(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return a sum; None: a part of it is not known."""
    values = [row[name] for row in rows]
    return None if None in values else sum(values)


def _show_loads(invocation: Invocation, rows: list[dict[str, Any]], by: str) -> None:
    output = invocation.output
    if output.document(rows):
        return
    shown = [
        {
            **row,
            "bytes": _per_s(row["bytes_per_s"]),
            "messages": None if row["messages_per_s"] is None else f"{row['messages_per_s']:.1f}/s",
            "stored": bytes_text(row["stored_bytes"]),
        }
        for row in rows
    ]
    first = "topic pool partitions groups"
    if by == "partitions":
        first = "topic partition group error"
    output.table(shown, columns=f"{first} bytes messages stored", optional="error")


# plan ---------------------------------------------------------------------------------------------
@balance.command()
@option(
    "--goal ... as soft",
    "A soft goal, the most important one first; may be given several times.  [all]",
    LoadGoal,
)
@option(
    "--skew",
    "The most that a group may have, as a multiple of the mean of its pool.  [1.1]",
    Seconds(min=1, max=goal_bounds.SKEW_MAX),
    default=1.1,
)
@option(
    "--max-moves N",
    "The plan has at most N moves.  [1000]",
    WholeNumber(min=0, max=goal_bounds.PLAN_MOVES_MAX),
    default=1_000,
)
@option(
    "--exclude-group GROUP ... as exclude_groups",
    "Move nothing to or from it; may be given several times.",
    shell_complete=broker_group_names,
)
@option(
    "--exclude-topic NAME ... as exclude_topics",
    "Leave its partitions where they are; may be given several times.",
    shell_complete=topic_names,
)
@option(
    "--isolate TOPIC=POOL ... as pools",
    "Give a topic to the groups of a pool; may be given several times.",
)
@option(
    "--require [TOPIC:]LABEL=VALUE ... as labels",
    "Only groups with this label hold partitions, or those of a topic.",
)
@option(
    "--racks N as racks_min",
    "Only groups whose nodes are in at least N racks.  [0]",
    WholeNumber(min=0, max=100),
    default=0,
)
@option(
    "--room-hours",
    "A disk must have room for what comes in so many hours.  [24]",
    Seconds(min=0, max=10_000),
    default=24.0,
)
@option(
    "--disk-used as disk_used_max",
    "And not be fuller then than this share.  [0.85]",
    Seconds(min=0.01, max=1),
    default=0.85,
)
@option(
    "--seconds",
    "How long to measure.  [5]",
    Seconds(min=measuring.WINDOW_S_MIN, max=measuring.WINDOW_S_MAX),
    default=measuring.WINDOW_S_DEFAULT,
)
@option(
    "--move TOPIC-PARTITION=GROUP ... as moves",
    "Judge this move in place of proposing some; may be given several times.",
)
@option(
    "--from FILE as source",
    "Judge the moves in the JSON of `vq report capacity`, `vq topic move` or a plan.",
    PLAN_FILE,
)
@option("--save FILE", "Write the plan for `vq balance apply`.", _NEW_FILE)
@shows(_PLAN)
@command_options
def plan(
    invocation: Invocation,
    soft: Sequence[str],
    pools: Sequence[str],
    labels: Sequence[str],
    seconds: float,
    moves: Sequence[str],
    source: Path | None,
    save: Path | None,
    max_moves: int,
    **bounds: Any,
) -> None:
    """Propose which partitions should be on which broker groups; changes nothing.

    Hard goals are kept: no partition goes to a group that is draining, has no master, is in another
    pool, has too few nodes or no room, or lacks a required label. Soft goals are improved in their
    order until the highest group of each pool has at most --skew times the mean: bytes and messages
    per second, stored bytes, number of partitions, and the spread of each topic. With --move or
    --from, those moves are judged instead.

    Exit code 1 if a move breaks a hard goal.
    """
    if moves and source is not None:
        raise click.UsageError("give --move or --from, not both")
    goals = AllocationGoals(
        soft=tuple(LoadGoal(each) for each in soft) or tuple(LoadGoal),
        moves_max=max_moves,
        pools={topic: pool for topic, _, pool in map(_pair, pools)},
        labels=tuple(map(_label, labels)),
        **{
            **bounds,
            "exclude_groups": frozenset(bounds["exclude_groups"]),
            "exclude_topics": frozenset(bounds["exclude_topics"]),
        },
    )
    wanted = [_move(each) for each in moves] or None
    if source is not None:
        wanted = wanted_moves(document_in(source))
    found = invocation.call(
        plan_allocation,
        goals,
        wanted=wanted,
        source="" if source is None else str(source.name),
        window_s=seconds,
    )
    if save is not None:
        save.write_text(json.dumps(plan_to_json(found)) + "\n", "utf-8")
    _show_plan(invocation, found)
    if found.refused:
        raise CommandFailed(f"{len(found.refused)} move(s) break a hard goal, see above")
    if found.has_work:
        where = "--save FILE writes it" if save is None else f"`vq balance apply {save}` does it"
        invocation.output.remark(f"nothing was changed; {where}")


def _pair(text: str) -> tuple[str, str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(f"{text!r} is not TOPIC=POOL")
    return name, equals, value


def _label(text: str) -> RequiredLabel:
    left, equals, value = text.partition("=")
    topic, _, label = left.rpartition(":")
    if not (label and equals and value):
        raise click.UsageError(f"{text!r} is not LABEL=VALUE or TOPIC:LABEL=VALUE")
    return RequiredLabel(label, value, topic)


def _move(text: str) -> tuple[TopicPartition, str]:
    place, _, group = text.partition("=")
    topic, _, number = place.rpartition("-")
    if not (topic and group and number.isascii() and number.isdecimal()):
        raise click.UsageError(f"{text!r} is not TOPIC-PARTITION=GROUP, such as orders-3=b2")
    return TopicPartition(topic, int(number)), group


def _show_plan(invocation: Invocation, found: AllocationPlan) -> None:
    output = invocation.output
    if output.document(plan_to_json(found)):
        return
    after = {(each.goal, each.pool): each for each in found.after}
    scores = [
        {
            "goal": str(each.goal),
            "pool": each.pool,
            "groups": each.groups,
            "before": _score_text(each.skew, each.excess),
            "after": _score_text(
                after[each.goal, each.pool].skew, after[each.goal, each.pool].excess
            ),
            "highest": after[each.goal, each.pool].group,
        }
        for each in found.before
    ]
    output.title(f"Plan {found.id}: the highest group as a multiple of the mean")
    output.table(
        scores,
        columns="goal pool groups before after highest",
        optional="highest",
    )
    if found.moves:
        output.title("")
        output.title(f"{len(found.moves)} move(s)")
        output.table(
            [
                {
                    "topic": each.topic,
                    "partition": each.partition,
                    "from": each.source,
                    "to": each.target,
                    "bytes": _per_s(each.bytes_per_s),
                    "reason": each.reason,
                }
                for each in found.moves
            ],
            columns="topic partition from to bytes reason",
        )
    for topic in found.topics:
        if topic.pool != topic.new_pool:
            output.remark(f"topic {topic.topic} gets the pool {topic.new_pool or COMMON_POOL}")
    for each in found.broken:
        name = each.group if each.partition is None else f"{each.topic}-{each.partition}"
        output.remark(f"hard goal {each.goal} is broken for {name}: {each.reason}")
    for kept in found.kept:
        output.remark(f"{kept.goal}: {kept.reason}")
    for note in found.notes:
        output.remark(note)
    if not found.has_work:
        output.remark("nothing needs to be moved")


def _score_text(skew: float | None, excess: float) -> str | None:
    if skew is not None:
        return f"{skew:.2f}"
    return f"{excess:.0f} beyond even shares" if excess or skew is None else None


balance.add_command(apply)
balance.add_command(progress)
balance.add_command(cancel)
balance.add_command(resume)
