"""What the members of a group must agree on, and how they differ: pure functions on contracts."""

from dataclasses import replace

from vq.coordination.tree.values.consumers import ConsumerGroup
from vq.coordination.tree.values.group_terms import ANY_STORE, ZOOKEEPER, GroupModel
from vq.errors import InvalidArgument
from vq.message_filter import ALL, Filter
from vq.reserved import Purpose, group_of
from vq.topic_pattern import matching

#: Terms that all members have in common. Their failure policy and start are those of the group,
#: whatever a member was configured with.
_COMMON = ("model", "mode", "order", "strategy")


class MemberDiffers(InvalidArgument):
    """A member differs from its group in a term that all members have in common."""


def check_own_topics(group: str, contract: ConsumerGroup) -> None:
    """Check what a group reads of its own reserved topics, whoever writes the contract.

    Raises:
        InvalidArgument: Some of its retry topic, and not all; or its own dead letters.
    """
    for name, wanted in contract.rolled().topics.items():
        if group_of(name, Purpose.DEAD_LETTERS) == group:
            raise InvalidArgument(
                f"group {group!r} would copy its dead letters into topic {name!r}, which it "
                "reads; read them with another group"
            )
        if group_of(name, Purpose.RETRY) == group and wanted != ALL:
            raise InvalidArgument(
                f"topic {name!r} is the retry topic of group {group!r}, with the filter "
                f"{wanted.text!r}: its members read all of it, and a message that it leaves out "
                "would never be tried again. The filter of the topic that a message comes from "
                "has let it through already"
            )


def merge(
    group: str, present: ConsumerGroup, wanted: ConsumerGroup, now_ms: int = 0
) -> ConsumerGroup:
    """Return the contract of a group once a member that wants ``wanted`` is in it.

    While the group rolls, a member of either version fits, and the terms stay; from ``now_ms`` on
    at which the roll is over, they are those of its end.

    Topics are added, unless a pattern matches them, and ``by_stream`` becomes that of the member. A
    stream shares out its partitions itself: it takes the terms as they are, and the first member
    sets those of a group that only a stream has had. A group that takes any offset store has that
    of the member from then on.

    Raises:
        MemberDiffers: They differ.
    """
    if present.roll is not None and present.roll.until_ms <= now_ms:
        present = present.rolled()
    differing = differences(present, wanted)
    if differing and (present.roll is None or differences(present.rolled(), wanted)):
        raise MemberDiffers(
            f"this member does not fit into group {group!r}: {'; '.join(differing)}; give all "
            "members the same values, or this one another group name. `vq group alter` changes a "
            "group without members, `vq group roll` lets both versions in for a while"
        )
    terms = wanted if present.by_stream and not wanted.by_stream else present
    if terms.offset_store == ANY_STORE:
        terms = replace(terms, offset_store=wanted.offset_store)
    named = {**wanted.topics, **present.topics}
    topics = {each: named[each] for each in named if matching(terms.patterns, each) is None}
    return replace(terms, start=present.start, topics=topics, by_stream=wanted.by_stream)


def differences(present: ConsumerGroup, wanted: ConsumerGroup) -> list[str]:
    """Return in which terms a member differs from its group, with the values of both sides."""
    found = []
    if wanted.by_stream and present.model == GroupModel.BROADCASTING:
        found.append(
            "each member of the group keeps its own progress, and a stream needs one of the group"
        )
    if not present.by_stream and not wanted.by_stream:
        for name in _COMMON:
            theirs, ours = str(getattr(present, name)), str(getattr(wanted, name))
            if theirs != ours:
                found.append(f"the group has {name} = {theirs!r}, this member {ours!r}")
        for pattern in sorted({*present.patterns, *wanted.patterns}):
            theirs, ours = (
                _what(each.patterns[pattern]) if pattern in each.patterns else "none"
                for each in (present, wanted)
            )
            if theirs != ours:
                found.append(
                    f"of the topics {pattern!r} the group reads {theirs}, this member {ours}"
                )
    theirs, ours = present.offset_store, wanted.offset_store
    # A stream has its offsets in ZooKeeper; members that follow it may take them elsewhere.
    if theirs not in {ours, ANY_STORE} and not (present.by_stream and theirs == ZOOKEEPER):
        found.append(f"the group has offset_store = {theirs!r}, this member {ours!r}")
    for topic, read in sorted(wanted.topics.items()):
        before = present.topics.get(topic, read)
        if before != read:
            found.append(
                f"the group reads {_what(before)} of topic {topic!r}, this member {_what(read)}"
            )
    return found


def _what(message_filter: Filter) -> str:
    """Return which messages a filter lets through, for people."""
    return "all messages" if message_filter == ALL else repr(message_filter.text)
