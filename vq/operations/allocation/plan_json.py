"""A plan as JSON, and moves that other commands have told as JSON. No I/O."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from vq.errors import InvalidArgument
from vq.model import COMMON_POOL, TopicPartition, check_pool
from vq.operations.allocation.board import BrokenGoal, GoalScore
from vq.operations.allocation.goals import AllocationGoals, HardGoal, LoadGoal
from vq.operations.allocation.plans import (
    AllocatedGroup,
    AllocatedMove,
    AllocationPlan,
    GroupSums,
    KeptLoad,
    PlannedTopic,
    id_of,
)
from vq.shown import shown, shown_error

#: Version of the JSON of a plan.
PLAN_VERSION: Final = 1


def plan_to_json(plan: AllocationPlan) -> dict[str, Any]:
    """Return a plan as JSON, which ``plan_from_json`` reads."""
    return {
        "v": PLAN_VERSION,
        "id": plan.id,
        "cluster": plan.cluster,
        "source": plan.source,
        "by": plan.by,
        "made_s": plan.made_ms / 1_000,
        "measured_s": plan.measured_ms / 1_000,
        "window_s": plan.window_s,
        "goals": plan.goals.to_json(),
        "moves": [_move_json(each) for each in plan.moves],
        "topics": [_topic_json(each) for each in plan.topics],
        "groups": [_group_json(each) for each in plan.groups],
        "score_before": [asdict(each) for each in plan.before],
        "score_after": [asdict(each) for each in plan.after],
        "broken_before": [_broken_json(each) for each in plan.broken_before],
        "broken": [_broken_json(each) for each in plan.broken],
        "refused": [_broken_json(each) for each in plan.refused],
        "kept": [asdict(each) for each in plan.kept],
        "notes": list(plan.notes),
    }


def _move_json(move: AllocatedMove) -> dict[str, Any]:
    values = asdict(move)
    return {
        "topic": values.pop("topic"),
        "partition": values.pop("partition"),
        "from": values.pop("source"),
        "to": values.pop("target"),
        **values,
    }


def _topic_json(topic: PlannedTopic) -> dict[str, Any]:
    pools = {"pool": topic.pool or COMMON_POOL, "new_pool": topic.new_pool or COMMON_POOL}
    return {**asdict(topic), **pools}


def _group_json(group: AllocatedGroup) -> dict[str, Any]:
    return {**asdict(group), "pool": group.pool or COMMON_POOL}


def _broken_json(broken: BrokenGoal) -> dict[str, Any]:
    return {**asdict(broken), "topic": broken.topic or None}


def plan_from_json(document: object) -> AllocationPlan:
    """Return the plan that a JSON document has.

    Raises:
        InvalidArgument: It is no plan, or of a newer version of vq.
    """
    if not isinstance(document, dict) or "v" not in document or "score_after" not in document:
        raise InvalidArgument(
            f"{shown(document, 80)} is not an allocation plan; `vq balance plan --save "
            "FILE` makes one"
        )
    if document["v"] != PLAN_VERSION:
        raise InvalidArgument(
            f"the plan has the version {shown(document['v'])}, and this vq reads {PLAN_VERSION}; "
            "make it again with `vq balance plan`"
        )
    try:
        plan = _plan(document)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(
            f"the plan is damaged: {shown_error(error)}; make it again"
        ) from error
    if plan.id != id_of(plan):
        raise InvalidArgument(
            f"the plan {shown(plan.id)} was changed by hand: its moves do not belong to that id; "
            "`vq balance plan --from FILE` judges its moves and makes a new plan"
        )
    return plan


def _plan(document: Mapping[str, Any]) -> AllocationPlan:
    return AllocationPlan(
        id=_text(document["id"]),
        cluster=_text(document["cluster"]),
        source=_text(document["source"]),
        by=_text(document["by"]),
        made_ms=round(document["made_s"] * 1_000),
        measured_ms=round(document["measured_s"] * 1_000),
        window_s=document["window_s"],
        goals=AllocationGoals.from_json(document["goals"]),
        moves=tuple(_read_move(each) for each in document["moves"]),
        topics=tuple(
            PlannedTopic(
                **{
                    **each,
                    "pool": check_pool(each["pool"]),
                    "new_pool": check_pool(each["new_pool"]),
                }
            )
            for each in document["topics"]
        ),
        groups=tuple(_read_group(each) for each in document["groups"]),
        before=tuple(_read_score(each) for each in document["score_before"]),
        after=tuple(_read_score(each) for each in document["score_after"]),
        broken_before=tuple(_read_broken(each) for each in document["broken_before"]),
        broken=tuple(_read_broken(each) for each in document["broken"]),
        refused=tuple(_read_broken(each) for each in document["refused"]),
        kept=tuple(KeptLoad(**each) for each in document["kept"]),
        notes=tuple(_text(each) for each in document["notes"]),
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shown(value)} is not text")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{shown(value)} is not a whole number")
    return value


def _read_move(document: Mapping[str, Any]) -> AllocatedMove:
    values = dict(document)
    return AllocatedMove(
        topic=_text(values.pop("topic")),
        partition=_whole(values.pop("partition")),
        source=_text(values.pop("from")),
        target=_text(values.pop("to")),
        start=_whole(values.pop("start")),
        version=_whole(values.pop("version")),
        **values,
    )


def _read_group(document: Mapping[str, Any]) -> AllocatedGroup:
    sums = {name: GroupSums(**document[name]) for name in ("before", "after")}
    return AllocatedGroup(**{**document, "pool": check_pool(document["pool"]), **sums})


def _read_score(document: Mapping[str, Any]) -> GoalScore:
    return GoalScore(**{**document, "goal": LoadGoal(document["goal"])})


def _read_broken(document: Mapping[str, Any]) -> BrokenGoal:
    goal, topic = HardGoal(document["goal"]), document["topic"] or ""
    return BrokenGoal(**{**document, "goal": goal, "topic": topic})


def wanted_moves(document: object) -> list[tuple[TopicPartition, str]]:
    """Return the moves of a document: of a plan, of ``vq topic move``, of ``vq report capacity``.

    Any JSON object with ``moves``, or with a ``plan`` that has some; each with ``topic``,
    ``partition`` and ``to``.

    Raises:
        InvalidArgument: It is something else.
    """
    if isinstance(document, dict) and isinstance(document.get("plan"), dict):
        document = document["plan"]
    moves = document.get("moves") if isinstance(document, dict) else None
    if not isinstance(moves, list):
        raise InvalidArgument(
            f"{shown(document, 80)} has no moves; give the JSON of `vq balance plan`, "
            "`vq topic move` or `vq report capacity`"
        )
    found = []
    for each in moves:
        try:
            key = TopicPartition(_text(each["topic"]), _whole(each["partition"]))
            found.append((key, _text(each["to"])))
        except (KeyError, TypeError) as error:
            raise InvalidArgument(
                f"{shown(each, 80)} is not a move: {shown_error(error)}; a move has topic, "
                "partition and to"
            ) from error
    return found
