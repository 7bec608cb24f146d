"""The advisor's rules hold for any cluster: hard goals, never worse, conservation, determinism."""

from dataclasses import replace
from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st
from support.allocation import DISK_BYTES, group, partition

from vq.model import TopicPartition
from vq.operations.allocation.advisor import judge, propose
from vq.operations.allocation.board import rank
from vq.operations.allocation.changes import changes_since
from vq.operations.allocation.facts import AllocatedTopic, AllocationFacts
from vq.operations.allocation.goals import AllocationGoals, LoadGoal, RequiredLabel
from vq.operations.allocation.plan_json import plan_from_json, plan_to_json

GROUPS = ("b1", "b2", "b3", "b4", "b5")
TOPICS = ("orders", "payments", "logs")
RATES = st.one_of(
    st.none(), st.just(0.0), st.integers(0, 50).map(lambda n: n * 1e6), st.floats(0, 1e9)
)


@st.composite
def clusters(draw: st.DrawFn) -> AllocationFacts:
    """Groups of two pools, some dead, draining or full; some loads are not known."""
    groups = {
        name: group(
            name,
            pool=draw(st.sampled_from((None, None, "p"))),
            alive=draw(st.integers(0, 9)) > 0,
            draining=draw(st.integers(0, 5)) == 0,
            nodes=draw(st.integers(1, 3)),
            labels=draw(st.sampled_from(({}, {"disk": "ssd"}))),
            racks=draw(st.sampled_from(((), ("r1",), ("r1", "r2")))),
            disk_bytes_free=draw(st.sampled_from((DISK_BYTES, DISK_BYTES // 10, None))),
        )
        for name in draw(st.lists(st.sampled_from(GROUPS), min_size=1, unique=True))
    }
    topics, partitions = {}, {}
    for name in TOPICS:
        topics[name] = AllocatedTopic(
            topic=name,
            id=name,
            pool=draw(st.sampled_from((None, "p"))),
            min_insync=draw(st.integers(1, 2)),
            retention_hours=draw(st.sampled_from((None, 1, 72))),
        )
        for number in range(draw(st.integers(0, 6))):
            of = draw(
                st.sampled_from((*groups, None))
                if draw(st.booleans())
                else st.sampled_from(sorted(groups))
            )
            load = partition(name, number, of, draw(RATES))
            partitions[TopicPartition(name, number)] = load
    return AllocationFacts(groups=groups, topics=topics, partitions=partitions, cluster="c")


@st.composite
def goals_of(draw: st.DrawFn) -> AllocationGoals:
    soft = draw(st.sampled_from((*permutations(LoadGoal, 2), tuple(LoadGoal), ())))
    return AllocationGoals(
        soft=soft,
        skew=draw(st.sampled_from((1.0, 1.1, 1.5))),
        moves_max=draw(st.sampled_from((0, 1, 3, 1_000))),
        exclude_topics=draw(st.sampled_from((frozenset(), frozenset({"logs"})))),
        labels=draw(st.sampled_from(((), (RequiredLabel("disk", "ssd", "orders"),)))),
        racks_min=draw(st.sampled_from((0, 0, 2))),
    )


@given(clusters(), goals_of())
def test_a_proposed_plan_breaks_no_hard_goal_and_is_never_worse(facts, goals) -> None:
    plan = propose(facts, goals)
    assert not plan.refused
    assert len(plan.moves) <= goals.moves_max
    before, after = rank(plan.broken_before, plan.before), rank(plan.broken, plan.after)
    assert after <= before
    assert not plan.moves or after < before
    for move in plan.moves:
        load, target = facts.partitions[move.key], facts.groups[move.target]
        topic = facts.topics[move.topic]
        assert move.source == load.group != move.target
        assert load.bytes_per_s is not None
        assert facts.groups[move.source].alive
        assert target.alive
        assert not target.draining
        assert target.pool == topic.pool
        assert target.nodes >= topic.min_insync
        assert move.topic not in goals.exclude_topics
        assert len(set(target.racks)) >= goals.racks_min
        assert target.disk_bytes_free == DISK_BYTES
        assert move.reason
        assert move.goal


@given(clusters(), goals_of())
def test_partitions_are_neither_lost_nor_doubled(facts, goals) -> None:
    plan = propose(facts, goals)
    assert len({move.key for move in plan.moves}) == len(plan.moves)
    opened = [each for each in facts.partitions.values() if each.group is not None]
    for groups in ("before", "after"):
        assert sum(getattr(each, groups).partitions for each in plan.groups) == len(opened)
    for goal in ("bytes_per_s", "stored_bytes"):
        sums = [
            [getattr(getattr(each, when), goal) for each in plan.groups]
            for when in ("before", "after")
        ]
        if None not in sums[0] and None not in sums[1]:
            assert abs(sum(sums[0]) - sum(sums[1])) <= 1e-6 * max(1, sum(sums[0]))


@given(clusters(), goals_of())
def test_equal_facts_in_any_order_give_an_equal_plan(facts, goals) -> None:
    mixed = replace(
        facts,
        groups=dict(reversed(facts.groups.items())),
        topics=dict(reversed(facts.topics.items())),
        partitions=dict(reversed(facts.partitions.items())),
    )
    plan = propose(facts, goals)
    assert propose(mixed, goals) == plan
    assert plan_from_json(plan_to_json(plan)) == plan
    assert changes_since(plan, facts) == []


@given(clusters(), goals_of())
def test_the_same_moves_made_by_hand_have_the_same_score(facts, goals) -> None:
    """What a person drags is judged by the function that judges the advisor's plan."""
    plan = propose(facts, goals)
    by_hand = judge(facts, goals, [(move.key, move.target) for move in plan.moves])
    assert by_hand.after == plan.after
    assert by_hand.broken == plan.broken
    assert by_hand.id == plan.id
    assert not by_hand.refused


@given(clusters(), goals_of())
def test_a_plan_that_was_carried_out_leaves_no_work_of_hard_goals(facts, goals) -> None:
    """A second plan, made of the outcome, does not undo the first one."""
    goals = replace(goals, moves_max=1_000)
    plan = propose(facts, goals)
    partitions = dict(facts.partitions)
    for move in plan.moves:
        partitions[move.key] = replace(partitions[move.key], group=move.target)
    again = propose(replace(facts, partitions=partitions), goals)
    assert rank(again.broken, again.after) <= rank(plan.broken, plan.after)
