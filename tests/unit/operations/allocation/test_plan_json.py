"""A plan as JSON: read again as it was; what is none, or was changed, is refused with its place."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from support.allocation import MB, facts

from vq.errors import InvalidArgument
from vq.model import TopicPartition
from vq.operations.allocation.advisor import judge, propose
from vq.operations.allocation.goals import AllocationGoals, LoadGoal, RequiredLabel
from vq.operations.allocation.plan_json import plan_from_json, plan_to_json, wanted_moves

FACTS = facts(
    {"b1": {"t-0": 10 * MB, "t-1": 10 * MB}, "b2": {}, "b4": {"u-0": None}},
    groups={"b3": {"draining": True, "pool": "p"}},
)
GOALS = AllocationGoals(
    soft=(LoadGoal.BYTES, LoadGoal.TOPICS),
    exclude_groups={"b3"},
    labels=(RequiredLabel("disk", "ssd", "u"),),
)


def document() -> dict[str, Any]:
    plan = propose(FACTS, GOALS, made_ms=1_234, by="me@host")
    assert plan.broken
    assert plan.notes
    made: dict[str, Any] = json.loads(json.dumps(plan_to_json(plan)))
    assert plan_from_json(made) == plan
    return made


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda made: made.clear(), r"\{\} is not an allocation plan"),
        (lambda made: made.update(v=2), "version 2, and this vq reads 1"),
        (lambda made: made.pop("moves"), "damaged: KeyError"),
        (lambda made: made["moves"][0].update(to="b3"), "was changed by hand"),
        (lambda made: made["moves"][0].update(partition="0"), "damaged: TypeError"),
        (lambda made: made["moves"][0].update(more=1), "damaged: TypeError"),
        (lambda made: made.update(made_s="x"), "damaged: TypeError"),
        (lambda made: made["goals"].update(skew=0), r"skew = 0 is outside \[1, 100.0\]"),
        (lambda made: made["score_after"][0].update(goal="luck"), "damaged: ValueError"),
    ],
)
def test_what_is_no_plan_is_refused(change: Callable[[dict[str, Any]], None], text: str) -> None:
    made = document()
    change(made)
    with pytest.raises(InvalidArgument, match=text):
        plan_from_json(made)


def test_any_field_that_is_missing_or_of_another_type_is_refused_and_raises_nothing_else() -> None:
    for name in document():
        for value in (None, [], {}, "x", 7, [7], {"x": 7}):
            made = copy.deepcopy(document())
            if made[name] == value:
                continue
            made[name] = value
            try:
                plan_from_json(made)
            except InvalidArgument:
                pass


@pytest.mark.parametrize(
    "wrong", [None, [], "x", {}, {"moves": 3}, {"moves": [{}]}, {"moves": [7]}]
)
def test_what_has_no_moves_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match=r"has no moves|is not a move"):
        wanted_moves(wrong)


def test_moves_of_a_capacity_report_are_judged() -> None:
    """The file of ``vq report capacity --plan``, whose other fields are of no account here."""
    report = {
        "done": False,
        "moves": [
            {
                "topic": "t",
                "partition": 1,
                "from": "b1",
                "to": "b2",
                "at_offset": None,
                "reason": "b1 fills",
                "bytes_per_day": 7,
                "load": {"from": [1, 0]},
            }
        ],
        "commands": ["vq topic move t --partition 1 --to b2 --yes"],
    }
    wanted = wanted_moves(report)
    assert wanted == [(TopicPartition("t", 1), "b2")]
    plan = judge(FACTS, None, wanted, source="capacity.json")
    assert (plan.source, plan.moves[0].reason) == ("capacity.json", "chosen by capacity.json")
    assert plan.skew(LoadGoal.PARTITIONS) == 1.0
    assert wanted_moves(document()) == [
        (TopicPartition(each["topic"], each["partition"]), each["to"])
        for each in document()["moves"]
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"soft": ("luck",)}, "goal = 'luck'; give 'bytes' or"),
        ({"soft": ("bytes", "bytes")}, "name one twice"),
        ({"skew": float("nan")}, r"skew = nan is outside \[1, 100.0\]"),
        ({"moves_max": 10_001}, r"moves_max = 10001 is outside \[0, 10000\]"),
        ({"moves_max": True}, "moves_max = True is outside"),
        ({"disk_used_max": 0}, r"disk_used_max = 0 is outside \[0.01, 1\]"),
        ({"pools": {"t": ""}}, "pool = '' is not the name of a pool"),
        ({"pools": {"a/b": "p"}}, "a/b"),
    ],
)
def test_goals_out_of_bounds_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        AllocationGoals(**values)
