"""The terms of a group's contract: changing them, at once or with two versions for a while.

Loop-bound functions on a ``ClusterClient``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from vq.bounds import check_within
from vq.client.cluster import ClusterClient
from vq.coordination.groups import groups
from vq.coordination.groups.rebalance import STRATEGIES
from vq.coordination.tree.values.consumers import ConsumerGroup, Roll
from vq.coordination.tree.values.group_terms import (
    ANY_STORE,
    ZOOKEEPER,
    FailurePolicy,
    GroupModel,
    check_topics,
)
from vq.errors import InvalidArgument, InvalidState
from vq.message_filter import Filter
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import ResetUnknown, unknown_when_cut
from vq.operations.groups.shared import forget_shared_group
from vq.topic_pattern import is_pattern, matching, overlap

#: Longest time for which a group takes members of two versions: seven days.
ROLL_S_MAX: Final = 7 * 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTerms:
    """What all members of a group have in common, beside their topics.

    Attributes:
        model: ``clustering``: each message goes to one member; ``broadcasting``: to each.
        mode: ``orderly``, ``keyed`` or ``concurrent``.
        order: ``strict``, or ``relaxed``: a failed message may come after later ones.
        strategy: How partitions are shared out.
        failure: What follows a failed message.
        offset_store: ``zookeeper``, or the identity of another store that has the group's offsets;
            ``any``: that of the next member.
        roll_until_ms: Until when members of another version are let in, too, in milliseconds since
            1970; None: they are not.
        rolls_to: What that version has and this one has not: ``mode``, ``order``, ``strategy``, and
            ``filter of TOPIC``; empty: there is none.
    """

    model: str
    mode: str
    order: str
    strategy: str
    failure: FailurePolicy
    offset_store: str = ZOOKEEPER
    roll_until_ms: int | None = None
    rolls_to: Mapping[str, str] = field(default_factory=dict)


def terms_of(contract: ConsumerGroup) -> GroupTerms:
    """Return the terms of a contract."""
    return GroupTerms(
        model=str(contract.model),
        mode=str(contract.mode),
        order=str(contract.order),
        strategy=contract.strategy,
        failure=contract.failure,
        offset_store=contract.offset_store,
        roll_until_ms=None if contract.roll is None else contract.roll.until_ms,
        rolls_to={} if contract.roll is None else _differing(contract, contract.roll),
    )


def _differing(contract: ConsumerGroup, roll: Roll) -> dict[str, str]:
    names = ("mode", "order", "strategy")
    new = {name: str(getattr(roll, name)) for name in names}
    differing = {name: new[name] for name in names if new[name] != str(getattr(contract, name))}
    filters = {f"filter of {topic}": each.text or "*" for topic, each in roll.topics.items()}
    return differing | filters


def check_one_progress(group: str, contract: ConsumerGroup, what: str) -> None:
    """Check that the progress of a group is one for all its members.

    Raises:
        InvalidState: Each member has its own.
    """
    if contract.model == GroupModel.SHARED:
        raise InvalidState(
            f"group {group!r} is shared: {what}. Its journal knows what is done of each message; a "
            "group that is deleted and made again begins anew, at its start_position"
        )
    if contract.model == GroupModel.BROADCASTING:
        raise InvalidState(
            f"group {group!r} is broadcasting: {what}. Each member has every partition and keeps "
            "its progress by itself, in a file of its machine: a consumer goes elsewhere with "
            "`seek`, and begins anew without its file"
        )


def given_terms(**given: Any) -> dict[str, Any]:
    """Return those terms that are given: not None."""
    return {name: value for name, value in given.items() if value is not None}


def check_named_store(offset_store: str) -> str:
    """Return the offset store that an operator names for a group.

    Raises:
        InvalidArgument: Only a member can name it.
    """
    if offset_store not in {ANY_STORE, ZOOKEEPER}:
        raise InvalidArgument(
            f"offset_store = {offset_store!r} is not 'any' or 'zookeeper'; with 'any' the next "
            "member says which one it is"
        )
    return offset_store


@audited(About.GROUP)
async def alter_group(
    cluster: ClusterClient,
    group: str,
    *,
    model: str | None = None,
    mode: str | None = None,
    order: str | None = None,
    strategy: str | None = None,
    filters: Mapping[str, str] | None = None,
    offset_store: str | None = None,
    drop_patterns: Sequence[str] = (),
    on_failure: str | None = None,
    max_attempts: int | None = None,
    retry_backoff_s: Sequence[float] | None = None,
    retry_topic_s: Sequence[float] | None = None,
    on_bad_record: str | None = None,
) -> GroupTerms:
    """Change the terms of a group; return them as they are then. May be repeated.

    What follows a failed message, or a bad record, may change while members run: they follow within
    a second, at the latest with their next audit (30 s), and what waits for its next try is tried
    at once. The other terms may only change while there is no member; ``roll_group`` changes them
    while there are.

    Args:
        group: Its name.
        model: As in ``GroupTerms``; None: as it is. The committed offsets stay where they are: a
            group that is ``clustering`` again goes on there, also in its retry topic.
        mode, order, strategy: As in ``GroupTerms``; None: as it is.
        filters: For some of its topics, the filter as text: ``a || b``, ``WHERE price > 10``, or
            ``*``. A pattern of names such as ``orders.*`` is added, if it has not got it; it keeps
            its progress in topics that it had by name.
        drop_patterns: Patterns that it reads no longer.
        offset_store: ``any``: the group takes the store of its next member, ``zookeeper``: its
            offsets are there. It goes on at the last copies of its offsets in ZooKeeper. Those are
            exact if its members were closed; after a kill they may be seconds behind, and messages
            come again.
        on_failure, max_attempts, retry_backoff_s, retry_topic_s, on_bad_record: As in
            ``vq.FailurePolicy``; None: as it is.

    Raises:
        UnknownGroup: There is none of this name.
        InvalidArgument: A value means nothing, or they do not fit together.
        InvalidState: The group has members, and what changes needs that there are none; or it takes
            members of two versions.
        ResetUnknown: ZooKeeper went away; it is changed or not.
    """
    failure = given_terms(
        on_failure=on_failure,
        max_attempts=max_attempts,
        retry_backoff_s=retry_backoff_s,
        retry_topic_s=retry_topic_s,
        on_bad_record=on_bad_record,
    )
    common = given_terms(mode=mode, order=order, strategy=strategy, model=model)
    if offset_store is not None:
        common["offset_store"] = check_named_store(offset_store)
    for each in (on_failure, on_bad_record):
        check_topics(group, each)

    def change(contract: ConsumerGroup) -> ConsumerGroup:
        changed: dict[str, Any] = {**common, "failure": replace(contract.failure, **failure)}
        if filters or drop_patterns:
            changed |= _reads(group, contract, filters or {}, drop_patterns)
        return replace(contract, **changed)

    if common or filters or drop_patterns:
        present = await groups.members(cluster.coordinator, group)
        if present:
            raise InvalidState(
                f"group {group!r} has members, {len(present)} in all: "
                f"{', '.join(list(present)[:5])}; stop them first, or let both versions in for a "
                "while (`vq group roll`)"
            )
        contract = await groups.known_group(cluster.coordinator, group)
        if contract.roll is not None:
            raise _rolls(group, contract.roll)
        if model is not None and GroupModel.SHARED in {model, contract.model} != {model}:
            await forget_shared_group(cluster, group)  # it begins where the offsets are
    terms = await _change(cluster, group, change)
    if offset_store is not None:
        await _take_copies(cluster, group)
    return terms


async def _take_copies(cluster: ClusterClient, group: str) -> None:
    """Make copies of offsets, which another store has, the offsets of a group.

    The contract was changed before, so no member of the old store comes between. May be repeated.
    """
    with unknown_when_cut(f"changing the offset store of group {group}", ResetUnknown):
        topics = await cluster.offsets.topics(group)
        for partition, offset in (await cluster.offsets.read(group, topics)).items():
            if offset.copied:
                await cluster.offsets.reset(group, partition, offset)


@audited(About.GROUP)
async def roll_group(
    cluster: ClusterClient,
    group: str,
    *,
    for_s: float,
    mode: str | None = None,
    order: str | None = None,
    strategy: str | None = None,
    filters: Mapping[str, str] | None = None,
) -> GroupTerms:
    """Let members of another version into a group for a while; return the terms as they are now.

    Until the time is over, members fit that have the terms as they are, and those that have the new
    ones; partitions are shared out by the present strategy. Then, or when ``end_roll`` says so, the
    new terms are those of the group: members of the old version give up what they have in order,
    and end with an error. Members look at the time in their rounds, so that takes up to their audit
    interval (30 s).

    Args:
        group: Its name.
        for_s: How long, in seconds, at most seven days.
        mode, order, strategy: As in ``GroupTerms``; None: as it is.
        filters: For some of its topics, the filter as text: ``a || b``, ``WHERE price > 10``, or
            ``*``.

    Raises:
        UnknownGroup: There is none of this name.
        InvalidArgument: Nothing differs, a value means nothing, or the group has a strategy of its
            application, which the new members would not know.
        InvalidState: It takes members of two versions already.
        ResetUnknown: ZooKeeper went away; it is done or not.
    """
    check_within("for_s", for_s, 0, ROLL_S_MAX, above=True)
    until_ms = cluster.clock.wall_ms() + int(for_s * 1000)
    common = given_terms(mode=mode, order=order, strategy=strategy)

    def change(contract: ConsumerGroup) -> ConsumerGroup:
        if contract.roll is not None:
            raise _rolls(group, contract.roll)
        changed = _filters(group, contract, filters or {})
        aim = replace(contract, **common, topics={**contract.topics, **changed})
        if aim == contract:
            raise InvalidArgument(
                f"group {group!r} has these terms already: there is no roll to do"
            )
        if aim.strategy != contract.strategy and contract.strategy not in STRATEGIES:
            raise InvalidArgument(
                f"group {group!r} has the strategy {contract.strategy!r} of its application, which "
                "the new members would not know; stop its members and use `vq group alter`"
            )
        roll = Roll(
            until_ms=until_ms,
            mode=aim.mode,
            order=aim.order,
            strategy=aim.strategy,
            topics=changed,
        )
        return replace(contract, roll=roll)

    return await _change(cluster, group, change)


@audited(About.GROUP)
async def end_roll(cluster: ClusterClient, group: str, *, cancel: bool = False) -> GroupTerms:
    """End a roll before its time; return the terms as they are then. May be repeated.

    Members of the version that does not count any more give up what they have, and end with an
    error.

    Args:
        group: Its name.
        cancel: The old terms stay. Otherwise the new ones count.

    Raises:
        UnknownGroup: There is none of this name.
        ResetUnknown: ZooKeeper went away; it is ended or not.
    """

    def change(contract: ConsumerGroup) -> ConsumerGroup:
        return replace(contract, roll=None) if cancel else contract.rolled()

    return await _change(cluster, group, change)


async def _change(
    cluster: ClusterClient, group: str, change: Callable[[ConsumerGroup], ConsumerGroup]
) -> GroupTerms:
    with unknown_when_cut(f"changing the terms of group {group}", ResetUnknown):
        return terms_of(await groups.change_contract(cluster.coordinator, group, change))


def _reads(
    group: str, contract: ConsumerGroup, filters: Mapping[str, str], dropped: Sequence[str]
) -> dict[str, dict[str, Filter]]:
    """Return the topics and patterns of a contract with these changes."""
    for each in dropped:
        if each not in contract.patterns:
            raise InvalidArgument(
                f"group {group!r} has no pattern {each!r}; it has "
                f"{', '.join(sorted(contract.patterns)) or 'none'}"
            )
    patterns = {
        name: wanted for name, wanted in contract.patterns.items() if name not in set(dropped)
    }
    new = {name: Filter.of_text(text) for name, text in filters.items() if is_pattern(name)}
    for name in new:
        for other in patterns:
            if other != name and overlap(other, name):
                raise InvalidArgument(
                    f"{name!r} and {other!r}, which group {group!r} reads already, may be the same "
                    "topic, and each topic has one filter; drop that one"
                )
    patterns |= new
    named = {name: text for name, text in filters.items() if not is_pattern(name)}
    topics = {**contract.topics, **_filters(group, contract, named)}
    topics = {name: each for name, each in topics.items() if matching(patterns, name) is None}
    return {"topics": topics, "patterns": patterns}


def _filters(group: str, contract: ConsumerGroup, filters: Mapping[str, str]) -> dict[str, Filter]:
    for topic in filters:
        if is_pattern(topic):
            raise InvalidArgument(
                f"filter of {topic!r}: what a group reads by pattern changes only while it has no "
                "members (`vq group alter`)"
            )
        if topic not in contract.topics:
            raise InvalidArgument(
                f"group {group!r} does not read topic {topic!r}; it reads "
                f"{', '.join(sorted(contract.topics)) or 'none'}"
            )
    parsed = {topic: Filter.of_text(text) for topic, text in filters.items()}
    return {topic: each for topic, each in parsed.items() if each != contract.topics[topic]}


def _rolls(group: str, roll: Roll) -> InvalidState:
    return InvalidState(
        f"group {group!r} takes members of two versions until {roll.until_ms} (milliseconds since "
        "1970); end that first (`vq group roll --end` or `--cancel`)"
    )
