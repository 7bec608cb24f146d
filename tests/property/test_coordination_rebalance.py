"""Rebalancing: average, sticky, minimal, deterministic, and safe to carry out in parts."""

from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from vq.coordination.groups.rebalance import assign
from vq.model import TopicPartition

TOPICS = ("t1", "t2", "t3")
MEMBERS = st.dictionaries(
    st.sampled_from("abcdefg"),
    st.frozensets(st.sampled_from(TOPICS)),
    min_size=1,
    max_size=7,
)
SIZES = st.fixed_dictionaries({topic: st.integers(0, 12) for topic in TOPICS})


@st.composite
def situations(draw: st.DrawFn):
    """Members, partitions, and holders among whom are members that left."""
    members = draw(MEMBERS)
    partitions = [
        TopicPartition(topic, n) for topic, size in draw(SIZES).items() for n in range(size)
    ]
    holders = st.sampled_from([*members, "gone", ""])
    current = {each: draw(holders) for each in partitions if draw(st.booleans())}
    return members, partitions, current


def eligible(members: Mapping[str, frozenset[str]], topic: str) -> list[str]:
    return [member for member, topics in members.items() if topic in topics]


def shares(result: Mapping[TopicPartition, str], topic: str) -> Counter[str]:
    return Counter(member for each, member in result.items() if each.topic == topic)


@given(situations())
def test_each_topic_is_shared_evenly_by_its_subscribers(situation) -> None:
    """With n partitions and m members each gets ⌊n/m⌋ or ⌈n/m⌉; nobody else gets any."""
    members, partitions, current = situation
    result = assign(members, partitions, current)
    for topic in TOPICS:
        able = eligible(members, topic)
        of_topic = [each for each in partitions if each.topic == topic]
        counts = shares(result, topic)
        assert set(counts) <= set(able)
        if able:
            assert counts.total() == len(of_topic)
            floor = len(of_topic) // len(able)
            assert all(counts[member] in {floor, floor + 1} for member in able)
        else:
            assert not counts


@given(situations(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter(situation, random) -> None:
    """Every member computes the same."""
    members, partitions, current = situation
    shuffled = partitions * 2
    random.shuffle(shuffled)
    names = list(members)
    random.shuffle(names)
    holders = list(current)
    random.shuffle(holders)
    assert assign(members, partitions, current) == assign(
        {name: members[name] for name in names},
        shuffled,
        {each: current[each] for each in holders},
    )


@given(situations())
def test_no_even_sharing_would_move_fewer_partitions(situation) -> None:
    """As many partitions stay as the floors and ceilings allow at all."""
    members, partitions, current = situation
    result = assign(members, partitions, current)
    for topic in TOPICS:
        able = eligible(members, topic)
        of_topic = [each for each in partitions if each.topic == topic]
        if not able:
            continue
        held = Counter(current[each] for each in of_topic if current.get(each) in able)
        floor, larger = divmod(len(of_topic), len(able))
        most_kept = sum(min(held[member], floor) for member in able)
        most_kept += min(larger, sum(held[member] > floor for member in able))
        kept = sum(result[each] == current.get(each) for each in of_topic)
        assert kept == most_kept


@given(situations())
def test_an_even_sharing_is_left_alone(situation) -> None:
    """Computing again after everything was carried out moves nothing."""
    members, partitions, current = situation
    result = assign(members, partitions, current)
    assert assign(members, partitions, result) == result


@given(situations(), st.data())
def test_carrying_out_a_part_does_not_change_the_aim(situation, data) -> None:
    """Members that compute at different moments of one rebalance agree."""
    members, partitions, current = situation
    result = assign(members, partitions, current)
    done = {each for each in result if data.draw(st.booleans())}
    halfway = {**current, **{each: result[each] for each in done}}
    assert assign(members, partitions, halfway) == result


@given(situations())
def test_giving_up_before_taking_over_does_not_change_the_aim(situation) -> None:
    """A partition that its old owner released keeps its new owner."""
    members, partitions, current = situation
    result = assign(members, partitions, current)
    released = {each: m for each, m in current.items() if result.get(each) == m}
    assert assign(members, partitions, released) == result


@given(st.integers(1, 6), st.integers(1, 12))
def test_equal_topics_are_spread_over_all_members(member_count: int, topic_count: int) -> None:
    """From scratch, totals over many topics differ by at most 1 as well."""
    topics = [f"t{n:02}" for n in range(topic_count)]
    members = {f"m{n}": frozenset(topics) for n in range(member_count)}
    result = assign(members, [TopicPartition(topic, 0) for topic in topics], {})
    totals = Counter(result.values())
    assert max(totals[m] for m in members) - min(totals[m] for m in members) <= 1
