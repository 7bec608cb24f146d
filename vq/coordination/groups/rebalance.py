"""Chooses the member for each partition of a group: a pure function, equal in every member.

The partitions of a topic are divided evenly among the members that subscribe to it: with n
partitions and m members each gets ⌊n/m⌋ or ⌈n/m⌉. Members keep their partitions as far as that
allows (no other even division moves fewer partitions). Example with partitions 0 to 4::

    held before     a: 0 1 2 3 4
    b joins         a: 0 1 2     b: 3 4      (only 3 and 4 move)
    c joins         a: 0 1       b: 3 4      c: 2
    a leaves        b: 3 4 0     c: 2 1

Each member computes this for itself, at a different time of one rebalance, while others already act
on it. That is safe because the result is a fixed point: after any part of it is carried out, a new
computation gives the same result. Two rules ensure this. The larger shares go first to members that
already hold that many, *in order of names* (not in order of how many they hold). A member with too
many keeps its lowest partitions.
"""

from collections.abc import Mapping, Sequence

from vq.model import TopicPartition


def assign(
    members: Mapping[str, frozenset[str]],
    partitions: Sequence[TopicPartition],
    current: Mapping[TopicPartition, str],
) -> dict[TopicPartition, str]:
    """Return the member of every partition.

    Args:
        members: Each member's subscribed topics.
        partitions: All partitions to share; any order.
        current: The member that holds a partition or held it last; unknown members are ignored.

    Partitions of topics without subscribers are left out. The order of the arguments' items does
    not matter.
    """
    by_topic: dict[str, list[TopicPartition]] = {}
    for each in sorted(set(partitions)):
        by_topic.setdefault(each.topic, []).append(each)
    result: dict[TopicPartition, str] = {}
    extra = 0
    for topic, of_topic in by_topic.items():
        eligible = sorted(member for member, topics in members.items() if topic in topics)
        if not eligible:
            continue
        # Start at another member for each topic: otherwise the first names get all larger shares.
        start = extra % len(eligible)
        result |= _assign_topic(eligible[start:] + eligible[:start], of_topic, current)
        extra += len(of_topic) % len(eligible)
    return result


def _assign_topic(
    members: list[str],
    partitions: list[TopicPartition],
    current: Mapping[TopicPartition, str],
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
