"""Rebalancing by hand: the example in the module's text, step by step."""

from vq.coordination.groups.rebalance import assign
from vq.model import TopicPartition

PARTITIONS = [TopicPartition("t", n) for n in range(5)]


def shares(members: str, current: dict[TopicPartition, str]) -> dict[TopicPartition, str]:
    return assign({member: frozenset("t") for member in members}, PARTITIONS, current)


def shown(result: dict[TopicPartition, str]) -> str:
    members = sorted(set(result.values()))
    return " ".join(
        f"{m}:{''.join(str(p.partition) for p, o in sorted(result.items()) if o == m)}"
        for m in members
    )


def test_a_group_grows_and_shrinks() -> None:
    """One member has all; others join and the first leaves; only what must move moves."""
    alone = shares("a", {})
    assert shown(alone) == "a:01234"
    two = shares("ab", alone)
    assert shown(two) == "a:012 b:34"
    three = shares("abc", two)
    assert shown(three) == "a:01 b:34 c:2"
    assert shown(shares("bc", three)) == "b:034 c:12"


def test_more_members_than_partitions_leave_some_idle() -> None:
    """With n < m the rest idle; nobody has two."""
    result = shares("abcdefg", {})
    assert sorted(result.values()) == list("abcde")


def test_only_subscribers_of_a_topic_share_it() -> None:
    """A topic nobody subscribes to is left out."""
    partitions = [TopicPartition("x", 0), TopicPartition("y", 0), TopicPartition("z", 0)]
    result = assign({"a": frozenset("x"), "b": frozenset("xy")}, partitions, {})
    assert result[TopicPartition("y", 0)] == "b"
    assert TopicPartition("z", 0) not in result


def test_nothing_to_share_is_fine() -> None:
    """No members or no partitions: an empty answer."""
    assert assign({}, PARTITIONS, {}) == {}
    assert assign({"a": frozenset("t")}, [], {}) == {}
