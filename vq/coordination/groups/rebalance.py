"""Chooses the member for each partition of a group: pure functions, equal in every member.

Each strategy shares out the partitions of each topic among the members that subscribe to it. With n
partitions of a topic and m such members, all but ``hash`` give each ⌊n/m⌋ or ⌈n/m⌉:

    sticky    members keep what they have as far as that allows: no even division moves fewer
    average   in runs, in order of names: a: 0 1 2   b: 3 4
    circle    in turns: a: 0 2 4   b: 1 3
    rack      in the rack of the partition's master first, as far as even shares allow
    hash      by points on a ring: a member that comes or leaves moves only its own partitions; even
              only roughly

Example of ``sticky`` with partitions 0 to 4::

    held before     a: 0 1 2 3 4
    b joins         a: 0 1 2     b: 3 4      (only 3 and 4 move)
    c joins         a: 0 1       b: 3 4      c: 2
    a leaves        b: 3 4 0     c: 2 1

Each member computes this for itself, at a different time of one rebalance, while others already act
on it. That is safe because the result is a fixed point: after any part of it is carried out, a new
computation gives the same result. Of ``sticky`` two rules ensure this. The larger shares go first
to members that already hold that many, *in order of names* (not in order of how many they hold). A
member with too many keeps its lowest partitions. The others do not look at who holds what.
"""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Protocol, TypeAlias

from vq.coordination.tree.values.group_terms import STICKY
from vq.errors import InvalidArgument
from vq.model import TopicPartition, check_name
from vq.shown import shown, shown_raised

#: Points of each member on the ring of ``hash``: with 100, shares differ by a tenth or so.
RING_POINTS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupBalance:
    """What a strategy shares out, and among whom.

    Attributes:
        members: Each live member's subscribed topics.
        partitions: All partitions to share, each once.
        current: The member that holds a partition or held it last; it may have left.
        member_racks: Where members run, as far as they say it.
        partition_racks: Where the master of a partition runs, as far as it is known.
    """

    members: Mapping[str, frozenset[str]]
    partitions: Sequence[TopicPartition]
    current: Mapping[TopicPartition, str] = field(default_factory=dict)
    member_racks: Mapping[str, str] = field(default_factory=dict)
    partition_racks: Mapping[TopicPartition, str] = field(default_factory=dict)


#: Which member gets which partition. Partitions of topics without subscribers are left out.
Shares: TypeAlias = Mapping[TopicPartition, str]
Assign: TypeAlias = Callable[[GroupBalance], Shares]


class GroupStrategy(Protocol):
    """A strategy of one's own.

    Attributes:
        name: Stands in the contract of the group: members with another name are refused.
    """

    name: str

    def assign(self, balance: GroupBalance) -> Shares:
        """Return the member for every partition that a member subscribes to.

        Every member calls this for itself, so it must depend on ``balance`` alone; and it must
        return the same again after some of what it returned is carried out and so stands in
        ``balance.current``. It is called on the thread that serves the consumer: it must be quick.
        """
        ...


# The strategies -----------------------------------------------------------------------------------
def sticky(balance: GroupBalance) -> dict[TopicPartition, str]:
    """Share evenly, and move as few partitions as that allows."""
    result: dict[TopicPartition, str] = {}
    for members, partitions in _topics(balance):
        result |= _stick(members, partitions, balance.current)
    return result


def average(balance: GroupBalance) -> dict[TopicPartition, str]:
    """Give each member a run of neighbours."""
    result: dict[TopicPartition, str] = {}
    for members, partitions in _topics(balance):
        base, larger = divmod(len(partitions), len(members))
        rest = iter(partitions)
        for number, member in enumerate(members):
            for _ in range(base + (number < larger)):
                result[next(rest)] = member
    return result


def circle(balance: GroupBalance) -> dict[TopicPartition, str]:
    """Deal the partitions in turns."""
    return {
        partition: members[number % len(members)]
        for members, partitions in _topics(balance)
        for number, partition in enumerate(partitions)
    }


def rack(balance: GroupBalance) -> dict[TopicPartition, str]:
    """Share evenly, and in the rack of each partition's master as far as that allows."""
    result: dict[TopicPartition, str] = {}
    for members, partitions in _topics(balance):
        result |= _near(members, partitions, balance)
    return result


def hash_ring(balance: GroupBalance) -> dict[TopicPartition, str]:
    """Give each partition to the member whose point on the ring follows that of the partition."""
    result: dict[TopicPartition, str] = {}
    rings: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    for members, partitions in _topics(balance):
        names = tuple(sorted(members))
        if names not in rings:
            rings[names] = sorted((point, name) for name in names for point in _points(name))
        ring = rings[names]
        for each in partitions:
            found = bisect_left(ring, (_point(f"{each.topic}-{each.partition}"), ""))
            result[each] = ring[found % len(ring)][1]
    return result


STRATEGIES: Final[Mapping[str, Assign]] = {
    STICKY: sticky,
    "average": average,
    "circle": circle,
    "hash": hash_ring,
    "rack": rack,
}


def group_strategy_of(given: "str | GroupStrategy") -> tuple[str, Assign]:
    """Return the name and the function of a strategy that a consumer is configured with.

    Raises:
        InvalidArgument: It is neither the name of one nor one of one's own.
    """
    known = ", ".join(repr(name) for name in STRATEGIES)
    if isinstance(given, str):
        if given not in STRATEGIES:
            raise InvalidArgument(
                f"strategy = {shown(given)}; give {known}, or an object with a name and a method "
                "assign"
            )
        return given, STRATEGIES[given]
    if isinstance(given, type):
        raise InvalidArgument(
            f"strategy = {given.__name__} is a class; give an instance of it: {given.__name__}(...)"
        )
    name, assign = getattr(given, "name", None), getattr(given, "assign", None)
    if not isinstance(name, str) or not callable(assign):
        raise InvalidArgument(
            f"strategy = {shown(given)} has no name or no method assign; give {known}, or an "
            "object with both"
        )
    if check_name("strategy", name) in STRATEGIES:
        raise InvalidArgument(f"a strategy of one's own cannot have the name {name!r}")
    return name, checked(name, assign)


def checked(name: str, assign: Assign) -> Assign:
    """Return a strategy of one's own whose answers are checked.

    It raises InvalidArgument if the answer does not have every partition once with a member that
    subscribes to its topic, or if there is none.
    """

    def call(balance: GroupBalance) -> Shares:
        given = replace(  # a strategy may deal from what it is given
            balance, members=dict(balance.members), partitions=list(balance.partitions)
        )
        try:
            found = assign(given)
        except Exception as error:
            raise InvalidArgument(f"strategy {name!r} raised {shown_raised(error)}") from error
        if not isinstance(found, Mapping):
            raise InvalidArgument(
                f"strategy {name!r} returned {shown(found)}; it has to return a mapping of "
                "partitions to members"
            )
        try:
            _check(name, balance, found)
        except InvalidArgument:
            raise
        except Exception as error:  # of keys and values that are something else
            raise InvalidArgument(
                f"strategy {name!r} gave a wrong answer: {shown_raised(error)}"
            ) from error
        return dict(found)  # the strategy may go on with its own

    return call


def _check(name: str, balance: GroupBalance, found: Shares) -> None:
    wanted = {
        each
        for each in balance.partitions
        if any(each.topic in topics for topics in balance.members.values())
    }
    wrong = [f"{each} is missing" for each in sorted(wanted - found.keys())]
    for each, member in found.items():
        if each not in wanted:
            wrong.append(f"{shown(each)} is no partition that a member subscribes to")
        elif member not in balance.members:
            wrong.append(f"{each} is given to {shown(member)}, which is no live member")
        elif each.topic not in balance.members[member]:
            wrong.append(f"{each} is given to {member!r}, which does not subscribe to its topic")
    if wrong:
        raise InvalidArgument(f"strategy {name!r} gave a wrong answer: {'; '.join(wrong[:3])}")


# Their parts --------------------------------------------------------------------------------------
def _topics(balance: GroupBalance) -> Iterator[tuple[list[str], list[TopicPartition]]]:
    """Yield each topic's subscribers, in the order to share in, and its partitions.

    The order begins at another member for each topic: otherwise the first names get all larger
    shares. The order of what is given does not matter.
    """
    by_topic: dict[str, list[TopicPartition]] = {}
    for each in sorted(set(balance.partitions)):
        by_topic.setdefault(each.topic, []).append(each)
    extra = 0
    for topic, of_topic in by_topic.items():
        eligible = sorted(member for member, topics in balance.members.items() if topic in topics)
        if not eligible:
            continue
        start = extra % len(eligible)
        yield eligible[start:] + eligible[:start], of_topic
        extra += len(of_topic) % len(eligible)


def _stick(
    members: list[str], partitions: list[TopicPartition], current: Mapping[TopicPartition, str]
) -> dict[TopicPartition, str]:
    held: dict[str, list[TopicPartition]] = {member: [] for member in members}
    for each in partitions:
        holder = current.get(each)
        if holder in held:
            held[holder].append(each)
    shares = _shares(members, {member: len(held[member]) for member in members}, len(partitions))
    result = {each: member for member, share in shares.items() for each in held[member][:share]}
    free = iter([each for each in partitions if each not in result])
    for member, share in shares.items():
        for _ in range(share - len(held[member])):
            result[next(free)] = member
    return result


def _shares(members: list[str], held: Mapping[str, int], total: int) -> dict[str, int]:
    """Return how many partitions each member gets, in the order of ``members``."""
    base, larger = divmod(total, len(members))
    first = [member for member in members if held[member] > base]
    rest = [member for member in members if held[member] <= base]
    with_larger = set((first + rest)[:larger])
    return {member: base + (member in with_larger) for member in members}


def _near(
    members: list[str], partitions: list[TopicPartition], balance: GroupBalance
) -> dict[TopicPartition, str]:
    """Give each partition to the member with the fewest in its rack, the rest to who has room."""
    base, larger = divmod(len(partitions), len(members))
    counts: Counter[str] = Counter()
    left = larger  # members that may still get one more than ``base``
    order = {member: number for number, member in enumerate(members)}
    by_rack: dict[str, list[str]] = {}
    for member in members:
        by_rack.setdefault(balance.member_racks.get(member, ""), []).append(member)
    result: dict[TopicPartition, str] = {}

    def give(partition: TopicPartition, able: Sequence[str]) -> bool:
        nonlocal left
        member = min(able, key=lambda each: (counts[each], order[each]), default=None)
        if member is None or counts[member] >= base + (left > 0):
            return False
        left -= counts[member] == base
        counts[member] += 1
        result[partition] = member
        return True

    far = []
    for each in partitions:
        where = balance.partition_racks.get(each, "")
        if not where or not give(each, by_rack.get(where, ())):
            far.append(each)
    for each in far:
        given = give(each, members)
        assert given, f"no room for {each}"
    return result


@lru_cache(maxsize=4096)
def _points(member: str) -> tuple[int, ...]:
    return tuple(_point(f"{member}#{number}") for number in range(RING_POINTS))


def _point(text: str) -> int:
    """Return a place on the ring: the first 8 bytes of the SHA-256 of a text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
