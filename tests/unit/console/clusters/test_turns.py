"""Which groups are looked at next: the oldest first, those with members four times as often."""

from vq.console.clusters.lags import SeenGroup, unread
from vq.console.clusters.turns import next_turn
from vq.operations.cluster.bulk import GroupContract

NOW_MS = 1_800_000_000_000


def group(name: str, members: int = 0, topic: str = "t", error: str = "") -> GroupContract:
    return GroupContract(group=name, topics={topic: ""}, members=members, error=error)


def turn(contracts: list[GroupContract], ages_s: dict[str, float], most: int = 100) -> list[str]:
    seen: dict[str, SeenGroup] = {
        name: unread(NOW_MS - round(age * 1000)) for name, age in ages_s.items()
    }
    sizes = {"t": 10, "large": 1_000}
    return next_turn(contracts, sizes, seen, NOW_MS, due_s=15, partitions_max=most)


def test_a_group_that_was_never_seen_is_first_and_one_that_was_just_seen_waits() -> None:
    contracts = [group("old"), group("new"), group("fresh"), group("newer", members=1)]
    assert turn(contracts, {"old": 60, "fresh": 14}) == ["newer", "new", "old"]


def test_groups_with_members_come_four_times_as_often() -> None:
    """A group of 20 s with members is before an idle one of 79 s, and behind one of 81 s."""
    contracts = [group("younger"), group("read", members=2), group("older")]
    ages = {"younger": 79, "read": 20, "older": 81}
    assert turn(contracts, ages) == ["older", "read", "younger"]


def test_a_turn_is_bounded_and_a_large_group_has_one_for_itself() -> None:
    ages = {"a": 90, "large": 80, "b": 70}
    contracts = [group("a"), group("large", topic="large"), group("b")]
    assert turn(contracts, ages) == ["a"]
    assert turn(contracts, {**ages, "a": 1}) == ["large"]
    assert turn(contracts, {**ages, "a": 1, "large": 1}, most=1) == ["b"]


def test_groups_that_cannot_be_read_have_no_turn() -> None:
    assert turn([group("bad", error="denied")], {}) == []


def test_no_group_waits_for_ever() -> None:
    """Twenty groups with members and twenty without, a turn of two each five seconds."""
    contracts = [group(f"g{n:02}", members=n % 2) for n in range(40)]
    ages = dict.fromkeys((each.group for each in contracts), 15.0)
    oldest = dict.fromkeys(ages, 0.0)
    for _ in range(200):
        for name in turn(contracts, ages, most=20):
            oldest[name] = max(oldest[name], ages[name])
            ages[name] = 0.0
        ages = {name: age + 5 for name, age in ages.items()}
    read = max(oldest[f"g{n:02}"] for n in range(1, 40, 2))
    assert read <= 100
    assert max(oldest.values()) <= 4 * read
