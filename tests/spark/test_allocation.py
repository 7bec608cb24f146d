"""A plan evens out how fast disks fill, with few moves, and says what it would do."""

import random
import shlex

import pytest
from click.testing import CliRunner

from pyspark_vq.reports.allocation import (
    GAIN_MIN,
    Group,
    Placed,
    commands,
    plan,
    plan_document,
)
from vq.cli.topics.topic import move

GB = 10**9


def placed(group: str, *rates: float, topic: str = "t", first: int = 0) -> list[Placed]:
    return [Placed(topic, first + n, group, rate * GB) for n, rate in enumerate(rates)]


def test_the_example_of_the_module() -> None:
    found = plan(
        [Group("b1", None, 100 * GB), Group("b2", None, 100 * GB)], placed("b1", 10, 10, 10)
    )
    [move_] = found.moves
    assert (move_.topic, move_.partition, move_.source, move_.target) == ("t", 0, "b1", "b2")
    assert found.before == pytest.approx({"b1": 0.3, "b2": 0.0})
    assert found.after == pytest.approx({"b1": 0.2, "b2": 0.1})
    assert (move_.source_before, move_.source_after) == pytest.approx((0.3, 0.2))
    assert (move_.target_before, move_.target_after) == pytest.approx((0.0, 0.1))
    assert "30.0%" in move_.reason


def test_a_group_with_more_space_takes_more() -> None:
    """b2 has three times the space of b1: of four equal partitions it gets three."""
    found = plan(
        [Group("b1", None, 100 * GB), Group("b2", None, 300 * GB)], placed("b1", 9, 9, 9, 9)
    )
    assert len(found.moves) == 3
    assert found.after == pytest.approx({"b1": 0.09, "b2": 0.09})


def test_pools_are_kept_apart() -> None:
    groups = [Group("b1", None, GB), Group("b2", "fast", GB), Group("b3", "fast", GB)]
    found = plan(groups, [*placed("b1", 5), *placed("b2", 4, 4, topic="u")])
    assert [(each.source, each.target) for each in found.moves] == [("b2", "b3")]


def test_what_is_even_already_stays() -> None:
    groups = [Group("b1", None, GB), Group("b2", None, GB)]
    assert plan(groups, [*placed("b1", 3), *placed("b2", 3, first=1)]).moves == ()
    assert plan(groups, placed("b1", 7)).moves == ()  # to swap places helps nobody
    assert plan(groups, []).moves == ()
    assert plan([], placed("b1", 7)).moves == ()


def test_a_plan_is_bounded_and_does_not_depend_on_order() -> None:
    rng = random.Random(5)
    groups = [Group(f"b{n}", None, rng.randint(50, 500) * GB) for n in range(6)]
    every = [Placed("t", n, f"b{rng.randrange(3)}", rng.random() * 10 * GB) for n in range(100)]
    found = plan(groups, every, moves_max=7)
    assert len(found.moves) == 7
    assert len({(each.topic, each.partition) for each in found.moves}) == 7
    rng.shuffle(every)
    rng.shuffle(groups)
    assert plan(groups, every, moves_max=7) == found


def test_every_move_lowers_the_higher_of_its_two_loads() -> None:
    """By the least share that counts, over many random clusters."""
    rng = random.Random(11)
    for _ in range(50):
        groups = [Group(f"b{n}", None, rng.randint(10, 500) * GB) for n in range(4)]
        every = [Placed("t", n, f"b{rng.randrange(4)}", rng.random() * GB) for n in range(20)]
        found = plan(groups, every)
        for each in found.moves:
            higher = max(each.source_after, each.target_after)
            assert higher <= each.source_before * (1 - GAIN_MIN) + 1e-12
        assert max(found.after.values()) <= max(found.before.values()) + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_loads_before_and_after_each_move_are_those_worked_out_by_hand(seed: int) -> None:
    """By carrying the moves out one by one on a plain table of partitions."""
    rng = random.Random(seed)
    pools = [None, None, "ssd"]
    groups = [Group(f"b{n}", rng.choice(pools), rng.randint(1, 500) * GB) for n in range(6)]
    every = [Placed("t", n, f"b{rng.randrange(7)}", rng.random() * GB) for n in range(40)]
    found = plan(groups, every)
    free = {each.name: each.free_bytes for each in groups}
    pool = {each.name: each.pool for each in groups}
    place = {(each.topic, each.partition): each.group for each in every}
    rate = {(each.topic, each.partition): each.bytes_per_day for each in every}

    def load(name: str) -> float:
        return sum(rate[key] for key, group in place.items() if group == name) / free[name]

    assert found.before == pytest.approx({name: load(name) for name in free})
    for each in found.moves:
        key = each.topic, each.partition
        assert (place[key], pool[each.source]) == (each.source, pool[each.target])
        assert each.bytes_per_day == rate[key]
        before = load(each.source), load(each.target)
        assert (each.source_before, each.target_before) == pytest.approx(before)
        place[key] = each.target
        after = load(each.source), load(each.target)
        assert (each.source_after, each.target_after) == pytest.approx(after)
    assert found.after == pytest.approx({name: load(name) for name in free})


def test_nothing_is_moved_to_a_closed_group() -> None:
    groups = [Group("b1", None, 100 * GB), Group("b2", None, 100 * GB, "it refuses messages")]
    assert plan(groups, placed("b1", 10, 10, 10)).moves == ()
    away = plan(groups, placed("b2", 10, 10, 10)).moves
    assert [(each.source, each.target) for each in away] == [("b2", "b1")]
    third = plan([*groups, Group("b3", None, 100 * GB)], placed("b1", 10, 10, 10)).moves
    assert {each.target for each in third} == {"b3"}


def test_a_group_too_small_for_any_partition_does_not_stand_in_the_way_of_others() -> None:
    groups = [Group("b1", None, 100 * GB), Group("b2", None, 0), Group("b3", None, 100 * GB)]
    found = plan(groups, placed("b1", 10, 10, 10))
    assert [each.target for each in found.moves] == ["b3"]


def test_a_name_that_looks_like_an_option_is_none_in_the_commands() -> None:
    groups = [Group("b1", None, 100 * GB), Group("-b", None, 100 * GB)]
    [line] = commands(plan(groups, placed("b1", 10, 10, 10, topic="-t")).moves)
    parsed = move.make_context("move", shlex.split(line)[3:], resilient_parsing=False)
    assert (parsed.params["name"], parsed.params["group"]) == ("-t", "-b")
    assert parsed.params["partitions"] == (0,)


def test_the_document_has_the_fields_of_topic_move_and_commands_it_takes() -> None:
    groups = [Group("b1", None, 100 * GB), Group("b 2", None, 100 * GB)]
    found = plan(groups, [*placed("b1", 10, 10, 10, 10), *placed("b1", 9, topic="o'k")])
    document = plan_document(found)
    moves = document["moves"]
    assert isinstance(moves, list)
    for each in moves:
        assert {"topic", "partition", "from", "to", "at_offset"} <= set(each)
        assert each["at_offset"] is None
    assert document["done"] is False
    assert set(document["load_before"]) == {"b1", "b 2"}  # type: ignore[call-overload]
    for line in commands(found.moves):
        words = shlex.split(line)
        assert words[:3] == ["vq", "topic", "move"]
        parsed = move.make_context("move", words[3:], resilient_parsing=False)
        assert parsed.params["yes"] is True
        assert parsed.params["group"] == "b 2"
    assert CliRunner().invoke(move, ["--help"]).exit_code == 0
