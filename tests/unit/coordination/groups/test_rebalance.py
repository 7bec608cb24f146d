"""Rebalancing by hand: the example in the module's text, step by step."""

from typing import Any

import pytest

from vq.coordination.groups.rebalance import (
    STRATEGIES,
    GroupBalance,
    Shares,
    group_strategy_of,
    sticky,
)
from vq.errors import InvalidArgument
from vq.model import TopicPartition

PARTITIONS = [TopicPartition("t", n) for n in range(5)]


def shares(members: str, current: dict[TopicPartition, str]) -> dict[TopicPartition, str]:
    return sticky(balance_of(members, current=current))


def balance_of(members: str, **more: Any) -> GroupBalance:
    subscribed = {member: frozenset("t") for member in members}
    return GroupBalance(**{"members": subscribed, "partitions": PARTITIONS, **more})


def shown(result: Shares) -> str:
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
    subscribed = {"a": frozenset("x"), "b": frozenset("xy")}
    result = sticky(GroupBalance(members=subscribed, partitions=partitions))
    assert result[TopicPartition("y", 0)] == "b"
    assert TopicPartition("z", 0) not in result


def test_nothing_to_share_is_fine() -> None:
    """No members or no partitions: an empty answer."""
    for assign in STRATEGIES.values():
        assert assign(balance_of("")) == {}
        assert assign(balance_of("a", partitions=[])) == {}


def test_average_gives_runs_and_circle_deals() -> None:
    """Whoever holds what."""
    current = dict.fromkeys(PARTITIONS, "b")
    assert shown(STRATEGIES["average"](balance_of("ab", current=current))) == "a:012 b:34"
    assert shown(STRATEGIES["circle"](balance_of("ab", current=current))) == "a:024 b:13"


def test_rack_gives_partitions_to_members_that_are_near_their_masters() -> None:
    """As far as even shares allow; a member or master without a rack is near nobody."""
    racks = dict(zip(PARTITIONS, ["y", "y", "x", "x", "x"], strict=True))
    near = balance_of("ab", member_racks={"a": "x", "b": "y"}, partition_racks=racks)
    assert shown(STRATEGIES["rack"](near)) == "a:234 b:01"
    crowded = balance_of(
        "ab", member_racks={"a": "x", "b": "y"}, partition_racks=dict.fromkeys(PARTITIONS, "x")
    )
    assert shown(STRATEGIES["rack"](crowded)) == "a:012 b:34"
    unknown = balance_of("ab", member_racks={"a": "", "b": ""}, partition_racks={})
    assert shown(STRATEGIES["rack"](unknown)) == "a:024 b:13"


class Own:
    """A strategy that answers as it is told."""

    name = "mine"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def assign(self, balance: GroupBalance) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


ALL_TO_A = dict.fromkeys(PARTITIONS, "a")
GONE = TopicPartition("t", 9)


def test_a_strategy_of_ones_own_counts_if_its_answer_is_right() -> None:
    """It need not be even."""
    name, assign = group_strategy_of(Own(ALL_TO_A))
    assert name == "mine"
    assert assign(balance_of("ab")) == ALL_TO_A


def test_a_strategy_of_ones_own_may_deal_from_what_it_is_given() -> None:
    """It is checked by what there was, and what it does later to its answer changes nothing."""

    class Dealer(Own):
        def assign(self, balance: GroupBalance) -> Any:
            while balance.partitions:
                self.answer[balance.partitions.pop()] = "a"  # type: ignore[attr-defined]
            return self.answer

    dealer = Dealer({})
    _, assign = group_strategy_of(dealer)
    found = assign(balance_of("ab"))
    dealer.answer.clear()
    assert found == ALL_TO_A


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (RuntimeError("no idea"), r"'mine' raised RuntimeError\('no idea'\)"),
        (None, "returned None; it has to return a mapping"),
        ({**dict.fromkeys(PARTITIONS[1:], "a")}, "t-0 is missing"),
        ({}, "t-0 is missing; t-1 is missing; t-2 is missing$"),
        ({**ALL_TO_A, PARTITIONS[0]: "x"}, "t-0 is given to 'x', which is no live member"),
        ({**ALL_TO_A, PARTITIONS[0]: "c"}, "t-0 is given to 'c', which does not subscribe"),
        ({**ALL_TO_A, GONE: "a"}, "t.*9.* is no partition that a member subscribes to"),
        ({**ALL_TO_A, PARTITIONS[0]: ["a"]}, "'mine' gave a wrong answer: TypeError"),
    ],
)
def test_a_wrong_answer_is_refused_with_what_is_wrong(answer: Any, told: str) -> None:
    """Every partition goes to one live member that subscribes to its topic."""
    _, assign = group_strategy_of(Own(answer))
    subscribed = {"a": frozenset("t"), "c": frozenset("u")}
    with pytest.raises(InvalidArgument, match=told):
        assign(GroupBalance(members=subscribed, partitions=PARTITIONS))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("even", "'even'; give 'sticky', 'average'"),
        (Own, "Own is a class; give an instance"),
        (5, "no name or no method assign"),
        (type("Named", (), {"name": "x"})(), "no name or no method assign"),
        (type("Sticky", (Own,), {"name": "sticky"})({}), "cannot have the name 'sticky'"),
        (type("Blank", (Own,), {"name": "a b"})({}), "strategy name 'a b'"),
    ],
)
def test_what_is_no_strategy_is_refused(given: Any, told: str) -> None:
    """With what may be given."""
    with pytest.raises(InvalidArgument, match=told):
        group_strategy_of(given)


def test_the_known_strategies_have_their_names() -> None:
    """As they stand in the contract of a group."""
    assert list(STRATEGIES) == ["sticky", "average", "circle", "hash", "rack"]
    for name, assign in STRATEGIES.items():
        assert group_strategy_of(name) == (name, assign)
