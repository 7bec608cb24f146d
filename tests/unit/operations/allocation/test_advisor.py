"""What the advisor proposes, case by case: few moves, the reason of each, and why things stay."""

import pytest
from support.allocation import DISK_BYTES, FREE_BYTES, MB, facts, facts_of
from support.large_tree import TreeSize, drawn

from vq.errors import InvalidArgument
from vq.model import TopicPartition
from vq.operations.allocation.advisor import judge, propose
from vq.operations.allocation.facts import AllocationFacts
from vq.operations.allocation.goals import AllocationGoals, HardGoal, LoadGoal, RequiredLabel
from vq.operations.allocation.plans import AllocationPlan

BYTES = AllocationGoals(soft=(LoadGoal.BYTES,))


def moves(plan: AllocationPlan) -> list[tuple[str, str, str]]:
    return [(str(each.key), each.source, each.target) for each in plan.moves]


def three_on_one(**groups: dict[str, object]) -> AllocationFacts:
    """b1 gets 30 MB/s in three partitions, b2 and b3 get nothing."""
    held = {"t-0": 10 * MB, "t-1": 10 * MB, "t-2": 10 * MB}
    return facts({"b1": held, "b2": {}, "b3": {}}, groups=groups)


def test_the_example_of_the_module() -> None:
    plan = propose(three_on_one(), BYTES)
    assert sorted(target for _, _, target in moves(plan)) == ["b2", "b3"]
    assert (plan.skew(LoadGoal.BYTES, after=False), plan.skew(LoadGoal.BYTES)) == (3.0, 1.0)
    assert plan.is_better
    assert not plan.kept
    assert {each.reason for each in plan.moves} == {
        "b1 has 28.6 MiB/s, 3.00 times the mean of pool common; b2 has 0 B/s, 0.00 times",
        "b1 has 19.1 MiB/s, 2.00 times the mean of pool common; b3 has 0 B/s, 0.00 times",
    }


def test_even_groups_stay_as_they_are() -> None:
    plan = propose(facts({"b1": {"t-0": 10 * MB}, "b2": {"t-1": 10.5 * MB}}))
    assert not plan.has_work
    assert not plan.is_better


def test_one_partition_that_suffices_moves_rather_than_several() -> None:
    """The lightest that suffices; the many small ones stay."""
    held = {"t-0": 40 * MB, "t-1": 30 * MB, **{f"s-{n}": 1 * MB for n in range(10)}}
    plan = propose(facts({"b1": held, "b2": {"t-2": 30 * MB}}), BYTES)
    assert plan.skew(LoadGoal.BYTES) <= 1.1
    assert len(plan.moves) <= 7


def test_a_partition_that_is_too_large_is_told() -> None:
    plan = propose(facts({"b1": {"t-0": 50 * MB, "t-1": 1 * MB}, "b2": {"t-2": 1 * MB}}), BYTES)
    assert moves(plan) == [("t-1", "b1", "b2")]
    (kept,) = plan.kept
    assert (kept.group, kept.goal) == ("b1", "bytes")
    assert "t-0 alone has 47.7 MiB/s, more than the limit" in kept.reason


def test_two_groups_swap_where_no_single_partition_fits() -> None:
    held = {"b1": {"t-0": 30 * MB, "t-1": 30 * MB}, "b2": {"t-2": 20 * MB, "t-3": 20 * MB}}
    plan = propose(facts(held), BYTES)
    assert plan.skew(LoadGoal.BYTES) == 1.0
    assert len(plan.moves) == 2


def test_a_new_group_gets_its_share_although_the_others_are_within_the_limit() -> None:
    held = {f"b{n}": {f"t-{10 * n + i}": 2 * MB for i in range(10)} for n in range(1, 12)}
    plan = propose(facts({**held, "b12": {}}), BYTES)
    assert len(plan.moves) >= 8
    assert {each.target for each in plan.moves} == {"b12"}
    assert plan.skew(LoadGoal.BYTES) <= 1.1


def test_a_later_goal_does_not_make_an_earlier_one_worse() -> None:
    """b1 has one busy partition, b2 many that get nothing: the numbers differ, the bytes do not."""
    held = {"b1": {"t-0": 10 * MB}, "b2": {"t-1": 10 * MB, **{f"s-{n}": 0.0 for n in range(9)}}}
    goals = AllocationGoals(soft=(LoadGoal.BYTES, LoadGoal.PARTITIONS))
    plan = propose(facts(held), goals)
    assert plan.skew(LoadGoal.BYTES) == 1.0
    assert plan.skew(LoadGoal.PARTITIONS) <= 1.1
    assert {each.topic for each in plan.moves} == {"s"}
    assert len(plan.moves) == 4


def test_a_topic_is_spread_as_the_only_goal() -> None:
    held = {"b1": {"t-0": 0.0, "t-1": 0.0, "t-2": 0.0}, "b2": {}, "b3": {}}
    plan = propose(facts(held), AllocationGoals(soft=(LoadGoal.TOPICS,)))
    assert sorted(target for _, _, target in moves(plan)) == ["b2", "b3"]
    assert plan.before[0].excess == 2
    assert plan.after[0].excess == 0


@pytest.mark.parametrize(
    ("more", "goal", "text"),
    [
        ({"draining": True}, HardGoal.DRAINING, "b1 is draining"),
        ({"pool": "p"}, HardGoal.POOL, "b1 is in pool 'p', topic t in the common pool"),
        ({"nodes": 0}, HardGoal.NODES, "has 0 node(s), and the topic's min_insync is 1"),
    ],
)
def test_partitions_leave_a_group_that_must_not_have_them(
    more: dict[str, object], goal: HardGoal, text: str
) -> None:
    plan = propose(three_on_one(b1=more), BYTES)
    assert {each.goal for each in plan.broken_before} == {goal}
    assert len(plan.moves) == 3
    assert all(each.goal == goal and text in each.reason for each in plan.moves)
    assert not plan.broken


@pytest.mark.parametrize(
    "more",
    [
        {"draining": True},
        {"alive": False},
        {"pool": "p"},
        {"disk_bytes_free": DISK_BYTES // 10},
        {"disk_bytes_free": None},
        {"disk_growth_bytes_per_hour": FREE_BYTES},
        {"error": "its master does not answer"},
    ],
    ids=lambda more: next(iter(more)),
)
def test_nothing_goes_to_a_group_that_cannot_take_it(more: dict[str, object]) -> None:
    plan = propose(three_on_one(b2=more), BYTES)
    assert {target for _, _, target in moves(plan)} == {"b3"}


def test_nothing_leaves_a_group_without_a_master_and_the_reason_is_told() -> None:
    plan = propose(three_on_one(b1={"alive": False}), BYTES)
    assert not plan.moves
    assert {each.goal for each in plan.broken} == {HardGoal.ALIVE}
    assert "t-0 stays: b1 has no live master to end t-0 there" in plan.kept[0].reason
    assert "group b1 has no live master: nothing moves to or from it" in plan.notes


def test_a_group_whose_disk_fills_gives_away_what_it_gets_most_of() -> None:
    held = {"b1": {"t-0": 9 * MB, "t-1": 1 * MB}, "b2": {"t-2": 10 * MB}}
    tight = {"disk_growth_bytes_per_hour": (FREE_BYTES - DISK_BYTES * 15 // 100) // 24 + 10}
    plan = propose(facts(held, groups={"b1": tight}), AllocationGoals(soft=()))
    assert moves(plan) == [("t-0", "b1", "b2")]
    assert plan.moves[0].goal == HardGoal.DISK
    assert not plan.broken


def test_what_is_not_known_is_not_moved_and_not_counted_as_nothing() -> None:
    held = {"b1": {"t-0": 30 * MB, "t-1": 30 * MB}, "b2": {"t-2": None, "t-3": 1 * MB}, "b3": {}}
    plan = propose(facts(held), BYTES)
    assert moves(plan) == [("t-0", "b1", "b3")]
    (score,) = plan.after
    assert (score.groups, score.unknown) == (2, 1)
    assert any("t-2" in note for note in plan.notes)
    b2 = next(each for each in plan.groups if each.group == "b2")
    assert b2.before.bytes_per_s is None
    assert b2.before.partitions == 2


def test_excluded_groups_and_topics_stay() -> None:
    goals = AllocationGoals(soft=(LoadGoal.BYTES,), exclude_groups={"b2"}, exclude_topics={"fixed"})
    held = {"b1": {"fixed-0": 10 * MB, "t-0": 10 * MB, "t-1": 10 * MB}, "b2": {}, "b3": {}}
    plan = propose(facts(held), goals)
    assert {target for _, _, target in moves(plan)} == {"b3"}
    assert {each.topic for each in plan.moves} == {"t"}


def test_labels_and_racks_are_kept() -> None:
    groups = {"b2": {"labels": {"disk": "ssd"}}, "b3": {"racks": ("r1", "r2")}}
    goals = AllocationGoals(soft=(), labels=(RequiredLabel("disk", "ssd"),))
    assert {target for _, _, target in moves(propose(three_on_one(**groups), goals))} == {"b2"}
    goals = AllocationGoals(soft=(), racks_min=2)
    assert {target for _, _, target in moves(propose(three_on_one(**groups), goals))} == {"b3"}
    goals = AllocationGoals(soft=(), labels=(RequiredLabel("disk", "ssd", "t"),), racks_min=2)
    plan = propose(three_on_one(**groups), goals)
    assert not plan.moves
    assert len(plan.broken) == 3
    assert (
        "b1 has not the label disk=ssd; t-0 stays: the nodes of b2 are in 0" in plan.kept[0].reason
    )
    assert "(1 other groups cannot, either)" in plan.kept[0].reason


def test_a_topic_is_isolated_into_a_pool() -> None:
    plan = propose(three_on_one(b3={"pool": "fast"}), AllocationGoals(pools={"t": "fast"}))
    assert {target for _, _, target in moves(plan)} == {"b3"}
    (topic,) = plan.topics
    assert (topic.pool, topic.new_pool) == (None, "fast")


def test_a_plan_has_no_more_moves_than_it_may_and_says_so() -> None:
    plan = propose(three_on_one(), AllocationGoals(soft=(LoadGoal.BYTES,), moves_max=1))
    assert len(plan.moves) == 1
    assert any("the most moves that it may have, 1" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("goals", "text"),
    [
        (AllocationGoals(exclude_topics={"nope"}), "there is no topic 'nope'"),
        (
            AllocationGoals(exclude_groups={"b9"}),
            "there is no broker group 'b9'; known: b1, b2, b3",
        ),
        (AllocationGoals(pools={"t": "fast"}), "no broker group is in the pool 'fast'"),
    ],
)
def test_goals_of_what_is_not_there_are_refused(goals: AllocationGoals, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        propose(three_on_one(), goals)


def test_a_move_by_hand_is_judged_with_the_reason_why_not() -> None:
    there = TopicPartition("t", 0), "b2"
    good = judge(three_on_one(), BYTES, [there, there, (TopicPartition("t", 1), "b1")])
    assert moves(good) == [("t-0", "b1", "b2")]
    assert not good.refused
    assert good.is_better
    for more, goal in (
        ({"draining": True}, HardGoal.DRAINING),
        ({"pool": "p"}, HardGoal.POOL),
        ({"disk_bytes_free": DISK_BYTES // 10}, HardGoal.DISK),
    ):
        bad = judge(three_on_one(b2=more), BYTES, [there])
        assert [each.goal for each in bad.refused] == [goal]
        assert bad.refused[0].reason
    for key, group in ((TopicPartition("t", 7), "b2"), (TopicPartition("t", 0), "b9")):
        with pytest.raises(InvalidArgument, match=r"there is no (partition t-7|broker group 'b9')"):
            judge(three_on_one(), BYTES, [(key, group)])


@pytest.mark.slow
def test_a_large_cluster_becomes_even_with_few_moves() -> None:
    """200 groups, 20,000 partitions: three in a hundred partitions move, and skew is 1.1."""
    known = facts_of(drawn(TreeSize(busy_shape=3.0)))
    plan = propose(known, AllocationGoals())
    assert plan.skew(LoadGoal.BYTES, after=False) > 1.3
    for goal in (LoadGoal.BYTES, LoadGoal.MESSAGES, LoadGoal.STORED, LoadGoal.PARTITIONS):
        assert plan.skew(goal) <= 1.1 + 1e-6
    assert len(plan.moves) < 600
    assert not plan.kept
