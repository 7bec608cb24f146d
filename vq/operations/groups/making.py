"""Making a group before its first member comes: empty, as another one, or from an exported file.

Loop-bound functions on a ``ClusterClient``. The offsets are written first and the contract last: a
group counts from its contract on, and what ended half-way may be done again.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from vq.bounds import check_whole
from vq.client.cluster import ClusterClient
from vq.coordination.groups import groups
from vq.coordination.groups.contract import check_own_topics
from vq.coordination.topics import topics
from vq.coordination.tree.reading import TopicView, gather_all
from vq.coordination.tree.values import group_terms
from vq.coordination.tree.values.consumers import AHEAD_MAX, CommittedOffset, ConsumerGroup
from vq.coordination.tree.values.group_terms import (
    ZOOKEEPER,
    FailurePolicy,
    GroupModel,
    usual_on_failure,
)
from vq.errors import InvalidArgument, InvalidState
from vq.message_filter import Filter
from vq.model import TopicPartition, check_name
from vq.operations.base.acts import audited
from vq.operations.base.changes import ResetUnknown, unknown_when_cut
from vq.operations.groups.resets import (
    Goal,
    Planner,
    Reset,
    Target,
    check_topics,
    plan_places,
    reset,
)
from vq.operations.groups.terms import (
    GroupTerms,
    check_named_store,
    check_one_progress,
    given_terms,
    terms_of,
)
from vq.reserved import Purpose, group_of
from vq.shown import shown
from vq.topic_pattern import is_pattern, overlap

T = TypeVar("T")
#: Goals that say where a group is now: a new one is nowhere yet.
_OF_THE_GROUP: Final = (Goal.COMMITTED, Goal.PAST_DAMAGE, Goal.SHIFT)


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group as it is to be; nothing has happened yet.

    Attributes:
        group: Its name.
        is_new: It is to be made. Otherwise it is there, and only its offsets are set.
        start: ``earliest`` or ``latest``: where it begins without an offset.
        topics: Each topic that it will read, with its filter; "": all messages. Patterns of names
            are among them.
        terms: What its members have in common.
        offsets: Where it will go on.
    """

    group: str
    is_new: bool
    start: str
    topics: Mapping[str, str]
    terms: GroupTerms
    offsets: tuple[Reset, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedOffset:
    """Where a group is in one partition; a field that is not known is None.

    Attributes:
        topic, partition: The partition.
        offset: Where it goes on.
        topic_id: Of the topic; another one of its name has other messages.
        message_id, epoch: What is before the offset.
        ahead: The offset and the id of each message behind it that is handled, too: 200 at most.
    """

    topic: str
    partition: int
    offset: int
    topic_id: str | None = None
    message_id: int | None = None
    epoch: int | None = None
    ahead: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupExport:
    """A group and where it is, to be kept elsewhere and imported again.

    Attributes:
        group: Its name.
        time_ms: When that was, in milliseconds since 1970.
        start: ``earliest`` or ``latest``: where it begins without an offset.
        topics: Each topic it reads, with its filter; "": all messages. Patterns of names are
            among them.
        offsets: By topic and partition; those without a commit are left out.
        terms: What its members have in common; a roll is not in it. If ``offset_store`` in there
            is not ``zookeeper``, the offsets are copies, which are seconds behind it at most.
    """

    group: str
    time_ms: int
    start: str
    topics: Mapping[str, str]
    offsets: tuple[ExportedOffset, ...]
    terms: GroupTerms = field(default_factory=lambda: terms_of(ConsumerGroup()))


async def plan_create_group(
    cluster: ClusterClient,
    group: str,
    filters: Mapping[str, str],
    target: Target,
    *,
    start: str = "earliest",
    model: str = "clustering",
    mode: str = "orderly",
    order: str = "strict",
    strategy: str = "sticky",
    offset_store: str = ZOOKEEPER,
    on_failure: str | None = None,
    max_attempts: int | None = None,
    retry_backoff_s: Sequence[float] | None = None,
    retry_topic_s: Sequence[float] | None = None,
    on_bad_record: str | None = None,
) -> PlannedGroup:
    """Return what making an empty group with chosen offsets would do; changes nothing.

    Args:
        group: Its name.
        filters: The topics it reads, and patterns of names such as ``orders.*``, each with its
            filter as text: ``a || b``, ``WHERE price > 10``, or ``*`` for all.
        target: Where it is to begin in each partition that there is now.
        start: ``earliest`` or ``latest``: where it begins in partitions that come later.
        model, mode, order, strategy: Its terms; members must have the same. Members of a
            ``broadcasting`` group begin where each of them says: there the target is ``earliest``.
        offset_store: ``zookeeper``, or ``any``: where the first member keeps them.
        on_failure, max_attempts, retry_backoff_s, retry_topic_s, on_bad_record: As in
            ``vq.FailurePolicy``; None: as a first member has it that does not say it.

    Raises:
        InvalidArgument: No topic is named, the target says where a group is now, or terms do not
            fit together.
        InvalidState: There is a group of this name.
        UnknownTopic: There is no such topic.
        NotMaster: A broker that must be asked does not answer.
        OffsetOutOfRange, OffsetNotBoundary: The partition has no such offset.
    """
    if not filters:
        raise InvalidArgument("filters names no topic; name what the group is to read")
    if target.goal in _OF_THE_GROUP:
        raise InvalidArgument(
            f"goal = {str(target.goal)!r} says where a group is, and a new one is nowhere yet; "
            "give 'earliest', 'latest', 'time' or 'offset'"
        )
    if model == GroupModel.SHARED and target.goal is not Goal.EARLIEST:
        raise InvalidArgument(
            f"goal = {str(target.goal)!r} says where the group begins, and a shared group begins "
            "in each partition where its start says; give start = 'latest', or leave goal out"
        )
    if model == GroupModel.BROADCASTING and target.goal is not Goal.EARLIEST:
        raise InvalidArgument(
            f"goal = {str(target.goal)!r} says where the group begins, and members of a "
            "broadcasting group begin where start_position of each of them says; give 'earliest'"
        )
    failure = given_terms(
        on_failure=usual_on_failure(mode, model) if on_failure is None else on_failure,
        max_attempts=max_attempts,
        retry_backoff_s=retry_backoff_s,
        retry_topic_s=retry_topic_s,
        on_bad_record=on_bad_record,
    )
    contract = ConsumerGroup(
        model=model,
        mode=mode,
        order=order,
        strategy=strategy,
        offset_store=check_named_store(offset_store),
        start=start,
        failure=FailurePolicy(**failure),
        **_reads(filters),
    )
    await _check_new(cluster, group)
    if not GroupModel(contract.model).claims:
        return _planned(group, contract, [], is_new=True)
    matched = (await groups.with_matches(cluster.coordinator, contract)).topics
    offsets = await plan_places(
        cluster,
        group,
        target,
        start=start,
        topics_needed=contract.topics,
        topics_else=matched.keys() - contract.topics.keys(),
    )
    return _planned(group, contract, offsets, is_new=True)


async def plan_clone_group(cluster: ClusterClient, source: str, group: str) -> PlannedGroup:
    """Return what making a group as another one is now would do; changes nothing.

    The new group has the topics, terms and committed offsets of the other one. The retry topic of
    that one stays its own: what it has not handled there is no business of the new one.

    Args:
        source: The group that there is.
        group: The name of the new one.

    Raises:
        UnknownGroup: There is no group ``source``.
        InvalidState: There is one ``group``.
    """
    contract = await groups.known_group(cluster.coordinator, source)
    contract = replace(contract, topics=_without_retries(source, contract.topics))
    await _check_new(cluster, group)
    reads = await groups.with_matches(cluster.coordinator, contract)
    found = await cluster.offsets.read(source, sorted(reads.topics))
    now_ms = cluster.clock.wall_ms()
    offsets = [
        Reset(partition, None, replace(each, member="", time_ms=now_ms))
        for partition, each in sorted(found.items())
    ]
    made = replace(contract, roll=None, by_stream=False)
    return _planned(group, made, offsets, is_new=True)


async def export_group(cluster: ClusterClient, group: str) -> GroupExport:
    """Return a group and where it is, to be imported again; nothing is changed.

    What members have handled and not yet committed is not in it.

    Raises:
        InvalidState: It is broadcasting: each member has its own progress.
        UnknownGroup: There is none of this name.
    """
    contract = await groups.known_group(cluster.coordinator, group)
    check_one_progress(group, contract, "there is nothing to export")
    reads = await groups.with_matches(cluster.coordinator, contract)
    found = await cluster.offsets.read(group, sorted(reads.topics))
    return GroupExport(
        group=group,
        time_ms=cluster.clock.wall_ms(),
        start=contract.start,
        topics=_texts(contract),
        offsets=tuple(
            ExportedOffset(
                topic=partition.topic,
                partition=partition.partition,
                offset=each.offset,
                topic_id=each.topic_id or None,
                message_id=each.message_id,
                epoch=each.epoch or None,
                ahead=each.ahead,
            )
            for partition, each in sorted(found.items())
        ),
        terms=terms_of(replace(contract, roll=None)),
    )


def exported_of(group: str, contract: ConsumerGroup, time_ms: int) -> GroupExport:
    """Return a group without its offsets, to be made again elsewhere.

    Without a roll, which is of its present members, and its retry topic, which they make.
    """
    reads = {**contract.topics, **contract.patterns}
    return GroupExport(
        group=group,
        time_ms=time_ms,
        start=contract.start,
        topics={name: each.text for name, each in sorted(_without_retries(group, reads).items())},
        offsets=(),
        terms=terms_of(replace(contract, roll=None)),
    )


def plan_defined_group(wanted: GroupExport) -> PlannedGroup:
    """Return what making a group without offsets would do.

    Raises:
        InvalidArgument: Its terms do not fit together.
    """
    return _planned(wanted.group, contract_of(wanted), [], is_new=True)


async def plan_import_group(
    cluster: ClusterClient, exported: GroupExport, group: str
) -> PlannedGroup:
    """Return what importing offsets into a group would do; changes nothing.

    A group that is not there is made, with the topics and terms of the export. Of one that is
    there, only the offsets are set. A group of another name does not get those of the exported
    one's retry topic.

    Args:
        exported: As ``export_group`` returned it.
        group: The group; it may have another name.

    Raises:
        InvalidArgument: The group is there and does not read such a topic; or the terms of the
            export do not fit together.
        InvalidState: A topic was deleted and made anew since the export.
        UnknownTopic, UnknownPartition: There is none.
        NotMaster: A broker that must be asked does not answer.
        OffsetOutOfRange, OffsetNotBoundary: The partition has no such offset any more.
    """
    if group != exported.group:
        exported = replace(
            exported,
            topics=_without_retries(exported.group, exported.topics),
            offsets=tuple(
                each
                for each in exported.offsets
                if group_of(each.topic, Purpose.RETRY) != exported.group
            ),
        )
    present = await groups.read_group(cluster.coordinator, check_name("group", group))
    contract = present or contract_of(exported)
    check_one_progress(group, contract, "there is no place of the group to be set")
    names = sorted({each.topic for each in exported.offsets})
    for name in names:
        if contract.filter_of(name) is None:
            raise InvalidArgument(
                f"group {group!r} does not read topic {name!r}; it reads "
                f"{', '.join(sorted(contract.topics)) or 'none'}"
            )
    views = dict(
        zip(
            names,
            await gather_all(topics.describe_topic(cluster.coordinator, each) for each in names),
            strict=True,
        )
    )
    before = await cluster.offsets.read(group, names)
    planned = await gather_all(
        _plan_import(cluster, group, contract, views[each.topic], each, before)
        for each in exported.offsets
    )
    return _planned(group, contract, planned, is_new=present is None)


async def _plan_import(
    cluster: ClusterClient,
    group: str,
    contract: ConsumerGroup,
    view: TopicView,
    wanted: ExportedOffset,
    before: Mapping[TopicPartition, CommittedOffset],
) -> Reset:
    check_whole("offset", wanted.offset)
    topics.check_partition(view, wanted.partition)
    ahead = _check_ahead(wanted)
    if wanted.topic_id and wanted.topic_id != view.id:
        raise InvalidState(
            f"topic {wanted.topic!r} was deleted and made anew since the export (id "
            f"{wanted.topic_id}, now {view.id}): its offsets mean nothing there"
        )
    partition = TopicPartition(wanted.topic, wanted.partition)
    target = Target(goal=Goal.OFFSET, value=wanted.offset)
    by_pattern = {wanted.topic} - contract.topics.keys()
    planner = Planner(cluster, group, target, contract.start, by_pattern)
    placement = view.partitions[wanted.partition]
    planned = await planner.plan(view, placement, before.get(partition), only_stopped=False)
    assert planned is not None, f"nothing planned for {partition}"
    after = replace(
        planned.after, message_id=wanted.message_id, epoch=wanted.epoch or 0, ahead=ahead
    )
    return replace(planned, after=after)


def _check_ahead(wanted: ExportedOffset) -> tuple[tuple[int, int], ...]:
    """Return the messages that are handled behind an offset.

    Raises:
        InvalidArgument: They are none.
    """
    ahead = tuple(tuple(each) for each in wanted.ahead)
    for each in ahead:
        is_pair = len(each) == 2 and all(type(one) is int and one >= 0 for one in each)
        if not is_pair or each[0] <= wanted.offset:
            raise InvalidArgument(
                f"ahead of offset {wanted.offset} of {wanted.topic}-{wanted.partition} has "
                f"{shown(each)}; each is the offset of a message behind it, and its id"
            )
    if len(ahead) > AHEAD_MAX:
        raise InvalidArgument(
            f"ahead of {wanted.topic}-{wanted.partition} has {len(ahead)} messages; at most "
            f"{AHEAD_MAX} are allowed"
        )
    return tuple((offset, id) for offset, id in ahead)


@audited()
async def make_group(cluster: ClusterClient, planned: PlannedGroup, *, fence: bool = False) -> None:
    """Make a group, or set its offsets, as planned.

    ``fence``: of a group that is there, also while members are alive; see ``reset``.

    Raises:
        InvalidState: Since the plan the group was made or deleted, or a topic was deleted or made
            anew; or it has members, and they are not to be fenced.
        ResetUnknown: ZooKeeper went away; some offsets may be set. May be repeated.
    """
    if not planned.is_new:
        await reset(cluster, planned.group, planned.offsets, fence=fence)
        return
    with unknown_when_cut(f"making group {planned.group}", ResetUnknown):
        await _check_new(cluster, planned.group)
        await check_topics(cluster, planned.offsets)
        for each in planned.offsets:
            await cluster.offsets.reset(planned.group, each.partition, each.after)
        contract = contract_of(planned)
        made = await groups.ensure_group(cluster.coordinator, planned.group, contract)
    if made != contract:
        raise InvalidState(
            f"a member made group {planned.group!r} meanwhile; it goes on at the planned offsets, "
            "unless it was faster"
        )


async def _check_new(cluster: ClusterClient, group: str) -> None:
    if await groups.read_group(cluster.coordinator, check_name("group", group)) is not None:
        raise InvalidState(
            f"there is a group {group!r} already; `vq group reset` sets where it goes on, `vq "
            "group delete` deletes it"
        )


def _without_retries(group: str, topics: Mapping[str, T]) -> dict[str, T]:
    """Return topics without the retry topic of a group, which only that one reads."""
    return {name: each for name, each in topics.items() if group_of(name, Purpose.RETRY) != group}


def _planned(
    group: str, contract: ConsumerGroup, offsets: list[Reset], *, is_new: bool
) -> PlannedGroup:
    if is_new:
        check_own_topics(group, contract)
        failure = contract.failure
        for each in (failure.on_failure, failure.on_bad_record):
            group_terms.check_topics(group, each)
    terms = terms_of(contract)
    return PlannedGroup(group, is_new, contract.start, _texts(contract), terms, tuple(offsets))


def contract_of(wanted: PlannedGroup | GroupExport) -> ConsumerGroup:
    """Return the contract of a group that is to be made.

    Raises:
        InvalidArgument: Its terms do not fit together.
    """
    terms = wanted.terms
    return ConsumerGroup(
        model=terms.model,
        mode=terms.mode,
        order=terms.order,
        strategy=terms.strategy,
        failure=terms.failure,
        offset_store=terms.offset_store,
        start=wanted.start,
        **_reads(wanted.topics),
    )


def _texts(contract: ConsumerGroup) -> dict[str, str]:
    """Return the filters of topics and patterns for people."""
    filters = {**contract.topics, **contract.patterns}
    return {name: each.text for name, each in sorted(filters.items())}


def _reads(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return what a contract has for the filters of some topics and patterns.

    Raises:
        InvalidArgument: A topic is one of a pattern, or two patterns may be of one topic.
    """
    for first, second in itertools.combinations(texts, 2):
        if overlap(first, second):
            raise InvalidArgument(
                f"{first!r} and {second!r} may be the same topic, and each topic has one filter; "
                "name one of them"
            )
    filters = {name: Filter.of_text(text) for name, text in texts.items()}
    return {
        "topics": {name: each for name, each in filters.items() if not is_pattern(name)},
        "patterns": {name: each for name, each in filters.items() if is_pattern(name)},
    }
