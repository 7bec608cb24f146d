"""Rebalancing: even, deterministic, and safe to carry out in parts; ``sticky`` moves least."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cases import case

from vq.coordination.groups.rebalance import STRATEGIES, Assign, GroupBalance, sticky
from vq.model import TopicPartition

TOPICS = ("t1", "t2", "t3")
MEMBERS = st.dictionaries(
    st.sampled_from("abcdefg"),
    st.frozensets(st.sampled_from(TOPICS)),
    min_size=1,
    max_size=7,
)
SIZES = st.fixed_dictionaries({topic: st.integers(0, 12) for topic in TOPICS})


RACKS = st.sampled_from(["", "x", "y", "z"])
#: Those that share each topic evenly.
EVEN = {name: assign for name, assign in STRATEGIES.items() if name != "hash"}
Claim = Callable[[Assign], None]


def check(claim: Claim, strategies: Mapping[str, Assign] = STRATEGIES) -> None:
    """See that each strategy keeps the claim: in one situation, since to draw it takes longest."""
    for name, assign in strategies.items():
        with case(name):
            claim(assign)


@st.composite
def situations(draw: st.DrawFn) -> GroupBalance:
    """Members, partitions, racks, and holders among whom are members that left."""
    members = draw(MEMBERS)
    partitions = [
        TopicPartition(topic, n) for topic, size in draw(SIZES).items() for n in range(size)
    ]
    holders = st.sampled_from([*members, "gone", ""])
    return GroupBalance(
        members=members,
        partitions=partitions,
        current={each: draw(holders) for each in partitions if draw(st.booleans())},
        member_racks={member: draw(RACKS) for member in members},
        partition_racks={each: draw(RACKS) for each in partitions if draw(st.booleans())},
    )


def eligible(members: Mapping[str, frozenset[str]], topic: str) -> list[str]:
    return [member for member, topics in members.items() if topic in topics]


def shares(result: Mapping[TopicPartition, str], topic: str) -> Counter[str]:
    return Counter(member for each, member in result.items() if each.topic == topic)


@given(situations())
def test_each_topic_is_shared_evenly_by_its_subscribers(balance: GroupBalance) -> None:
    """With n partitions and m members each gets ⌊n/m⌋ or ⌈n/m⌉."""

    def claim(assign: Assign) -> None:
        result = assign(balance)
        for topic in TOPICS:
            able = eligible(balance.members, topic)
            of_topic = [each for each in balance.partitions if each.topic == topic]
            if able:
                counts, floor = shares(result, topic), len(of_topic) // len(able)
                assert all(counts[member] in {floor, floor + 1} for member in able)

    check(claim, EVEN)


@given(situations())
def test_every_partition_goes_to_one_subscriber(balance: GroupBalance) -> None:
    """If its topic has any; nobody else gets any."""

    def claim(assign: Assign) -> None:
        result = assign(balance)
        for each in balance.partitions:
            able = eligible(balance.members, each.topic)
            assert (result[each] in able) if able else each not in result
        assert set(result) <= set(balance.partitions)

    check(claim)


@given(balance=situations(), random=st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(balance: GroupBalance, random) -> None:
    """Every member computes the same."""

    def shuffled(given: Mapping) -> dict:
        items = list(given.items())
        random.shuffle(items)
        return dict(items)

    partitions = [*balance.partitions] * 2
    random.shuffle(partitions)
    other = GroupBalance(
        members=shuffled(balance.members),
        partitions=partitions,
        current=shuffled(balance.current),
        member_racks=shuffled(balance.member_racks),
        partition_racks=shuffled(balance.partition_racks),
    )

    def claim(assign: Assign) -> None:
        assert assign(balance) == assign(other)

    check(claim)


@given(situations())
def test_no_even_sharing_would_move_fewer_partitions(balance: GroupBalance) -> None:
    """As many partitions stay as the floors and ceilings allow at all."""
    result, current = sticky(balance), balance.current
    for topic in TOPICS:
        able = eligible(balance.members, topic)
        of_topic = [each for each in balance.partitions if each.topic == topic]
        if not able:
            continue
        held = Counter(current[each] for each in of_topic if current.get(each) in able)
        floor, larger = divmod(len(of_topic), len(able))
        most_kept = sum(min(held[member], floor) for member in able)
        most_kept += min(larger, sum(held[member] > floor for member in able))
        kept = sum(result[each] == current.get(each) for each in of_topic)
        assert kept == most_kept


@given(situations())
def test_what_was_carried_out_is_left_alone(balance: GroupBalance) -> None:
    """Computing again after everything was carried out moves nothing."""

    def claim(assign: Assign) -> None:
        result = assign(balance)
        assert assign(replace(balance, current=result)) == result

    check(claim)


@given(balance=situations(), data=st.data())
def test_carrying_out_a_part_does_not_change_the_aim(balance: GroupBalance, data) -> None:
    """Members that compute at different moments of one rebalance agree."""
    done = {each for each in balance.partitions if data.draw(st.booleans())}

    def claim(assign: Assign) -> None:
        result = assign(balance)
        carried_out = {each: result[each] for each in done if each in result}
        assert assign(replace(balance, current={**balance.current, **carried_out})) == result

    check(claim)


@given(situations())
def test_giving_up_before_taking_over_does_not_change_the_aim(balance: GroupBalance) -> None:
    """A partition that its old owner released keeps its new owner."""

    def claim(assign: Assign) -> None:
        result = assign(balance)
        released = {each: m for each, m in balance.current.items() if result.get(each) == m}
        assert assign(replace(balance, current=released)) == result

    check(claim)


@given(situations())
def test_on_the_ring_a_member_that_comes_or_leaves_moves_only_its_own(
    balance: GroupBalance,
) -> None:
    """What moves goes to the new one, and nothing between others."""
    assign = STRATEGIES["hash"]
    without = assign(balance)
    topics = frozenset(TOPICS)
    with_it = assign(replace(balance, members={**balance.members, "new": topics}))
    for each, member in with_it.items():
        assert member == "new" or without[each] == member


@given(situations())
def test_a_rack_that_has_room_takes_its_partitions(balance: GroupBalance) -> None:
    """A partition is far from its master only if all members of that rack have their share."""
    result = STRATEGIES["rack"](balance)
    for each, member in result.items():
        where = balance.partition_racks.get(each, "")
        able = eligible(balance.members, each.topic)
        near = [one for one in able if where and balance.member_racks[one] == where]
        if near and member not in near:
            count = sum(one.topic == each.topic for one in balance.partitions)
            floor = count // len(able)
            assert all(shares(result, each.topic)[one] >= floor for one in near)


@pytest.mark.parametrize("assign", [STRATEGIES[name] for name in ("sticky", "average", "circle")])
@given(member_count=st.integers(1, 6), topic_count=st.integers(1, 12))
def test_equal_topics_are_spread_over_all_members(
    assign: Assign, member_count: int, topic_count: int
) -> None:
    """From scratch, totals over many topics differ by at most 1 as well."""
    topics = [f"t{n:02}" for n in range(topic_count)]
    members = {f"m{n}": frozenset(topics) for n in range(member_count)}
    partitions = [TopicPartition(topic, 0) for topic in topics]
    result = assign(GroupBalance(members=members, partitions=partitions))
    totals = Counter(result.values())
    assert max(totals[m] for m in members) - min(totals[m] for m in members) <= 1
