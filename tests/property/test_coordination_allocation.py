"""Allocation of partitions to broker groups: even, fair to the loaded, the same everywhere."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from vq.coordination.topics.allocation import allocate
from vq.model import GroupView

POOLS = st.sampled_from([None, "red", "blue"])
GROUPS = st.lists(
    st.builds(
        GroupView,
        group=st.sampled_from("abcdefgh"),
        alive=st.booleans(),
        draining=st.booleans(),
        pool=POOLS,
        partitions=st.integers(0, 20),
    ),
    max_size=8,
    unique_by=lambda group: group.group,
)
COUNTS = st.integers(1, 40)


def usable(groups: list[GroupView], pool: str | None) -> list[GroupView]:
    return [group for group in groups if group.alive and not group.draining and pool == group.pool]


@given(GROUPS, COUNTS, POOLS)
def test_only_usable_groups_get_partitions_and_evenly(
    groups: list[GroupView], count: int, pool: str | None
) -> None:
    """Counts of one topic differ by at most 1 over all groups that may be used."""
    able = usable(groups, pool)
    if not able:
        return
    given_out = Counter(allocate(count, groups, pool=pool))
    assert given_out.total() == count
    assert set(given_out) <= {group.group for group in able}
    shares = [given_out[group.group] for group in able]
    assert max(shares) - min(shares) <= 1


@given(GROUPS, COUNTS, st.randoms(use_true_random=False))
def test_the_order_of_groups_does_not_matter(groups, count, random) -> None:
    """Every machine computes the same from the same facts."""
    if not usable(groups, None):
        return
    shuffled = groups.copy()
    random.shuffle(shuffled)
    assert allocate(count, groups) == allocate(count, shuffled)


@given(GROUPS, COUNTS)
def test_the_larger_shares_go_to_the_least_loaded(groups: list[GroupView], count: int) -> None:
    """A group with a larger share held no more partitions before than one with a smaller one."""
    able = usable(groups, None)
    if not able:
        return
    shares = Counter(allocate(count, groups))
    least = min(shares[group.group] for group in able)
    larger = [group.partitions for group in able if shares[group.group] > least]
    smaller = [group.partitions for group in able if shares[group.group] == least]
    if larger and smaller:
        assert max(larger) <= min(smaller)
