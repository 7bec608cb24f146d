"""Allocation by hand: tables of groups and what each partition gets."""

import re

import pytest

from vq.coordination.topics.allocation import allocate, missing_pool
from vq.errors import CoordinationError, InvalidArgument
from vq.model import GroupView


def groups(**held: int) -> list[GroupView]:
    return [GroupView(name, partitions=count) for name, count in held.items()]


@pytest.mark.parametrize(
    ("count", "held", "expected"),
    [
        (4, {"a": 0, "b": 0}, "abab"),
        (5, {"a": 4, "b": 1, "c": 1}, "bcabc"),
        (1, {"a": 1, "b": 0}, "b"),
        (3, {"a": 9}, "aaa"),
        (2, {"c": 0, "b": 0, "a": 0}, "ab"),
    ],
)
def test_partitions_go_round_the_least_loaded_first(
    count: int, held: dict[str, int], expected: str
) -> None:
    """Even within the topic; by load, then by name among equals."""
    assert "".join(allocate(count, groups(**held))) == expected


def test_dead_and_draining_groups_and_other_pools_are_left_out() -> None:
    """Only a live group of the wanted pool that is not draining takes new partitions."""
    views = [
        GroupView("dead", alive=False, pool="p"),
        GroupView("draining", draining=True, pool="p"),
        GroupView("other", pool="q"),
        GroupView("good", pool="p", partitions=100),
        GroupView("common"),
    ]
    assert allocate(2, views, pool="p") == ["good", "good"]


def test_a_topic_without_a_pool_stays_off_groups_that_have_one() -> None:
    """None is a pool like any other: groups set apart for some topics get no others."""
    views = [GroupView("apart", pool="p"), GroupView("common", partitions=100)]
    assert allocate(2, views) == ["common", "common"]
    with pytest.raises(CoordinationError, match=r"the common pool; the pools are p \(apart\): "):
        allocate(1, views[:1])
    with pytest.raises(
        CoordinationError, match=r"pool 'p'; .* common \(common\): .*`vq broker --pool p`"
    ):
        allocate(1, views[1:], pool="p")


def test_a_pool_of_no_group_is_refused_with_those_that_exist() -> None:
    groups = [GroupView(f"b{n}", pool=f"p{n % 12:02}") for n in range(13)]
    assert missing_pool(groups, "p01") == ""
    assert re.search(r"p00 \(b0, b12\), .*p09 \(b9\), and 2 more: ", missing_pool(groups, None))
    assert "no broker has registered yet: start" in missing_pool([], "p")


def test_groups_that_lack_only_nodes_are_told_apart() -> None:
    """Another group with one node would not help; the advice is a hint, too."""
    with pytest.raises(CoordinationError, match="start more nodes of a group, or set") as refused:
        allocate(1, [GroupView("b1", nodes=1), GroupView("b2", alive=False)], min_insync=2)
    assert refused.value.hint.startswith("start more nodes of a group")
    with pytest.raises(CoordinationError, match="start a broker: `vq broker`") as refused:
        allocate(1, [GroupView("b2", alive=False)], min_insync=2)
    assert refused.value.hint.startswith("start a broker: `vq broker`")


def test_no_usable_group_is_refused_with_reasons() -> None:
    """The error says why each group was left out and what to do."""
    views = [
        GroupView("b1", alive=False, pool="p"),
        GroupView("b2", draining=True, pool="p"),
        GroupView("b3"),
    ]
    said = r"pool 'p'.*b1 has no live master.*b2 is draining.*b3 is in the common pool"
    with pytest.raises(CoordinationError, match=said):
        allocate(1, views, pool="p")
    many = [GroupView(f"b{n:02}", alive=False) for n in range(13)]
    with pytest.raises(CoordinationError, match=r"b09 has no live master; and 3 more\); start"):
        allocate(1, many)
    with pytest.raises(CoordinationError, match=r"no broker has registered yet.*vq broker"):
        allocate(1, [])


@pytest.mark.parametrize("count", [0, -1, 4097])
def test_the_number_of_partitions_has_bounds(count: int) -> None:
    """0 and 4097 are refused, and the message shows the bounds."""
    with pytest.raises(InvalidArgument, match="4096"):
        allocate(count, groups(a=0))


def test_a_new_group_with_one_node_draws_nothing_that_needs_two() -> None:
    """It has the fewest partitions, and would refuse every message of the topic."""
    views = [GroupView("b1", partitions=9, nodes=2), GroupView("b2")]
    assert allocate(2, views, min_insync=2) == ["b1", "b1"]
    assert allocate(1, views) == ["b2"]
    with pytest.raises(CoordinationError, match=r"b2 has 1 node\(s\)"):
        allocate(1, views, min_insync=3)
