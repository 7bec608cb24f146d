"""Consumer groups: their members, and how far behind they are.

Loop-bound functions on a ``ClusterClient``. A number that no broker answers is None, never 0.
Setting where a group goes on is in ``resets``, deleting it in ``group_removal``.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.groups import claims, groups
from vq.coordination.groups.groups import MemberView
from vq.coordination.groups.zookeeper_offsets import why_of_another
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import Coordinator, Unreadable
from vq.coordination.tree.reading import TopicView, gather_all
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup, Owner
from vq.coordination.tree.values.group_terms import GroupModel
from vq.errors import InvalidArgument, UnknownTopic, VqError
from vq.log_lines import get_logger
from vq.message_filter import ALL
from vq.model import PartitionPlacement, TopicPartition
from vq.operations.groups.lag_rules import VERDICTS, LagFacts, LagThresholds, LagVerdict, judge_lag
from vq.operations.groups.shared import SharedProgress, open_of
from vq.operations.groups.terms import GroupTerms, terms_of
from vq.operations.partitions.offsets import Inspector, PartitionEnds
from vq.reserved import Purpose, group_of
from vq.topic_pattern import matches

logger = get_logger(__name__)
#: The problem of a topic that none of the group's members subscribes to: nothing is expected there.
NOT_SUBSCRIBED: Final = "not_subscribed"
#: That of a topic that is closed for reading: nobody gets on there, and brokers tell no ends.
NOT_READABLE: Final = "not_readable"


# list -----------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A consumer group in a list.

    Attributes:
        group: Its name.
        topics: What it reads, sorted: topics, and patterns of names.
        members: How many consumers are alive.
        model: ``clustering``: each message goes to one member; ``broadcasting``: to each;
            ``shared``: to one, which acknowledges it by itself.
        start: ``earliest`` or ``latest``: where a partition without a committed offset begins.
        unsubscribed: Topics of ``topics`` that none of its members subscribes to; none without
            members.
        by_stream: A stream that is no member writes its progress.
    """

    group: str
    topics: tuple[str, ...]
    members: int
    model: str
    start: str
    unsubscribed: tuple[str, ...] = ()
    by_stream: bool = False


async def list_groups(cluster: ClusterClient) -> list[GroupSummary]:
    """Return all consumer groups, sorted by name; without those that cannot be read."""
    found, unreadable = await readable_groups(cluster)
    for name, error in unreadable.items():
        logger.warning("group cannot be read and is left out", group=name, error=error)
    return found


async def readable_groups(
    cluster: ClusterClient,
) -> tuple[list[GroupSummary], dict[str, VqError]]:
    """Return all groups, sorted by name, and why others cannot be read, by name."""
    names = await groups.list_groups(cluster.coordinator)
    unreadable: dict[str, VqError] = {}

    async def read(name: str) -> GroupSummary | None:
        try:
            return await _group_summary(cluster.coordinator, name)
        except (Unreadable, InvalidArgument) as error:  # or no group can have the name
            unreadable[name] = error
            return None

    found = await gather_all(read(name) for name in names)
    return [each for each in found if each is not None], dict(sorted(unreadable.items()))


async def _group_summary(coordinator: Coordinator, name: str) -> GroupSummary:
    contract = await groups.read_group(coordinator, name) or ConsumerGroup()
    members = await groups.members(coordinator, name)
    return GroupSummary(
        name,
        tuple(sorted({*contract.topics, *contract.patterns})),
        len(members),
        contract.model,
        contract.start,
        unsubscribed_of(contract, members),
        contract.by_stream,
    )


def unsubscribed_of(contract: ConsumerGroup, members: Mapping[str, MemberView]) -> tuple[str, ...]:
    """Return the topics that members read once, and no live one subscribes to.

    None without members: then nobody knows what the next one reads.
    """
    if not members:
        return ()
    read = [each.value for each in members.values()]
    topics_read = sorted(contract.topics)
    return tuple(topic for topic in topics_read if not any(each.reads(topic) for each in read))


# describe -------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class GroupMember:
    """A live consumer of a group.

    ``partitions`` is how many it has; ``topics`` has what it subscribes to, patterns included.
    """

    member: str
    host: str
    pid: int
    partitions: int
    topics: tuple[str, ...]
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProgress:
    """How far a group is in one partition, and what keeps it from going on.

    Attributes:
        topic: The partition's topic.
        partition: Its number.
        owner: The member that consumes it now; None: no member does.
        committed: Everything before this offset is done; None: nothing was committed.
        start, end: Where the partition starts and ends; None: its broker does not answer, or the
            topic is not readable.
        lag_bytes: What lies between the group's place and the end; None: unknown.
        lag_messages: The same in messages; None: unknown, or not counted. Of a shared group only
            those that are not done, while the other two tell of all from the lowest of them on.
        lag_s: The age in seconds of the oldest message in it, since it was sent; 0: there is none.
            None: unknown.
        number: How many messages the partition ever had before the group's place. None: unknown,
            or not counted.
        end_number: How many it ever had; None: unknown.
        committed_ms: When it was committed, in milliseconds since 1970.
        committed_by: The member that committed it.
        committed_epoch: The epoch of the batch before the offset; None: not known.
        committed_topic_id: The id of the topic that it was committed for; None: not known.
        committed_is_copy: Another store has the group's offsets, and this is the copy of a member:
            it is seconds behind at most while the member runs, and never ahead.
        stopped: What keeps the group, or the owner, from going on; None: nothing does.
        stopped_at: The offset at which the owner stands.
        stopped_since_ms: Since when the owner stands there.
        held: How many messages the owner's listener has failed for as often as the group allows, so
            that what must follow them waits. The fields below, ``stopped_at`` and
            ``stopped_since_ms`` are of the first of them.
        message_id: Its id; None: nothing is held.
        attempts: How often the listener failed for it.
        next_try_ms: When it is tried again. Both are up to 6 s old.
        needs_reset: The group goes on only after a reset.
        other_topic: The offset was committed for another topic of this name.
        subscribed: A member subscribes to the topic, or the group has no members.
        readable: The topic is open for reading.
        filter: What the group reads of the topic: tags such as ``a || b``, ``WHERE`` and an
            expression, or ``MessageFilter`` and a name. Messages that it leaves out lie in its lag,
            too: the numbers are upper bounds. None: it reads all messages.
        shared: What is open of a shared group; None: of another group, before the first delivery,
            or if the journal of the group does not answer.
    """

    topic: str
    partition: int
    owner: str | None = None
    committed: int | None = None
    start: int | None = None
    end: int | None = None
    lag_bytes: int | None = None
    lag_messages: int | None = None
    lag_s: float | None = None
    number: int | None = None
    end_number: int | None = None
    committed_ms: int | None = None
    committed_by: str | None = None
    committed_epoch: int | None = None
    committed_topic_id: str | None = None
    committed_is_copy: bool = False
    stopped: str | None = None
    stopped_at: int | None = None
    stopped_since_ms: int | None = None
    held: int = 0
    message_id: int | None = None
    attempts: int | None = None
    next_try_ms: int | None = None
    needs_reset: bool = False
    other_topic: bool = False
    subscribed: bool = True
    readable: bool = True
    filter: str | None = None
    shared: SharedProgress | None = None

    @property
    def beyond_end(self) -> bool:
        """Whether the committed offset lies beyond the end: messages were lost there."""
        return self.committed is not None and self.end is not None and self.committed > self.end

    def facts(
        self, *, members: int = 0, by_stream: bool = False, problem: str | None = None
    ) -> LagFacts:
        """Return what ``vq.admin.judge_lag`` judges.

        Args:
            members: How many live consumers the group has.
            by_stream: A stream that is no member writes its progress.
            problem: Why nothing can be told; None: something can.
        """
        return LagFacts(
            problem=problem,
            needs_reset=self.needs_reset and not self.other_topic,
            other_topic=self.other_topic,
            owner_error=self.stopped is not None,
            committed=self.committed,
            start=self.start,
            end=self.end,
            lag_bytes=self.lag_bytes,
            lag_messages=self.lag_messages,
            lag_s=self.lag_s,
            members=members,
            by_stream=by_stream,
            has_owner=self.owner is not None,
            committed_ms=self.committed_ms,
        )


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group, its members, and its progress in every partition.

    Attributes:
        group: Its name.
        model: ``clustering``: each message goes to one member; ``broadcasting``: to each;
            ``shared``: to one, which acknowledges it by itself.
        start: ``earliest`` or ``latest``: where a partition without a committed offset begins.
        topics: Each topic it reads, with its filter; "": all messages. Those that its patterns
            match are among them.
        deleted_topics: Topics of the group that are not there any more.
        unsubscribed: Topics that none of its members subscribes to; none without members.
        members: The live consumers, sorted by name.
        partitions: The group's progress, by topic and partition.
        by_stream: A stream that is no member writes the group's progress.
        terms: What its members have in common.
        patterns: Each pattern of names that it reads, with its filter.
    """

    group: str
    model: str
    start: str
    topics: Mapping[str, str]
    deleted_topics: tuple[str, ...]
    members: tuple[GroupMember, ...]
    partitions: tuple[GroupProgress, ...]
    unsubscribed: tuple[str, ...] = ()
    by_stream: bool = False
    terms: GroupTerms = field(default_factory=lambda: terms_of(ConsumerGroup()))
    patterns: Mapping[str, str] = field(default_factory=dict)

    def matched_by(self, pattern: str) -> list[str]:
        """Return those of ``topics`` that one of its patterns matches."""
        return [topic for topic in self.topics if matches(pattern, topic)]

    def verdict_on(
        self, progress: GroupProgress, thresholds: LagThresholds, *, now_s: float
    ) -> LagVerdict:
        """Return what is to be thought of the group in one of its partitions, by this look alone.

        Args:
            progress: One of ``partitions``.
            thresholds: From where on a lag is too much.
            now_s: The present time, in seconds since 1970.
        """
        problem = self.model if self.model == GroupModel.BROADCASTING else None
        if problem is None and not progress.readable:
            problem = NOT_READABLE
        if problem is None and not progress.subscribed:
            problem = NOT_SUBSCRIBED
        members = len(self.members)
        facts = progress.facts(members=members, by_stream=self.by_stream, problem=problem)
        if self.model == GroupModel.SHARED:  # no partition is one member's
            facts = replace(facts, has_owner=True)
        return judge_lag(facts, thresholds, now_s=now_s)

    def worst_verdict(self, thresholds: LagThresholds, *, now_s: float) -> LagVerdict:
        """Return the worst of the verdicts on its partitions; see ``verdict_on``."""
        found = [self.verdict_on(each, thresholds, now_s=now_s) for each in self.partitions]
        if self.deleted_topics:
            found.append(LagVerdict("unknown", "topic_deleted"))
        nothing = LagVerdict("unknown", "no_topics")
        return min(found, key=lambda each: VERDICTS.index(each.verdict), default=nothing)

    @property
    def retry_topic(self) -> str | None:
        """The one of ``topics`` with copies of its failed messages; None: it reads none.

        The lag there are copies that are due and not handled. Those that still wait for their time
        are in no lag.
        """
        of = Purpose.RETRY
        return next((each for each in self.topics if group_of(each, of) == self.group), None)

    @property
    def lag_is_upper_bound(self) -> bool:
        """Whether messages that the group filters out lie in its lag."""
        return any(each.filter is not None for each in self.partitions)

    @property
    def lag_bytes(self) -> int | None:
        """The lag over all partitions; one unknown part makes it unknown."""
        return _total(each.lag_bytes for each in self.partitions)

    @property
    def lag_messages(self) -> int | None:
        """The same in messages."""
        return _total(each.lag_messages for each in self.partitions)

    @property
    def lag_s(self) -> float | None:
        """The age in seconds of the oldest message that the group has not handled."""
        known = [each.lag_s for each in self.partitions]
        found = [each for each in known if each is not None]
        return max(found, default=0.0) if len(found) == len(known) else None


@dataclass(frozen=True, slots=True)
class GroupNodes:
    """What the tree says of a group; a topic that is gone is missing from ``topics``.

    The topics that its patterns match now are in its contract, too.
    ``younger`` has the partitions without a committed offset that were made after the group began.
    ``open`` has what is open of a shared group, asked for before the ends of partitions.
    """

    contract: ConsumerGroup
    members: Mapping[str, MemberView]
    owners: Mapping[TopicPartition, Owner]
    offsets: Mapping[TopicPartition, CommittedOffset]
    topics: Mapping[str, TopicView]
    younger: Set[TopicPartition] = frozenset()
    open: Mapping[TopicPartition, SharedProgress] = field(default_factory=dict)

    def readable(self, topic: str) -> bool:
        """Whether a topic is open for reading, or not known."""
        view = self.topics.get(topic)
        return view is None or view.settings.readable

    def elsewhere(self, partition: TopicPartition) -> str:
        """Why the committed offset is of another topic of this name; "": it is not."""
        committed, view = self.offsets.get(partition), self.topics.get(partition.topic)
        return "" if committed is None or view is None else why_of_another(committed, view.id)

    def begin(self, placement: PartitionPlacement, ends: PartitionEnds | None) -> int | None:
        """Return where the messages begin that lie behind the group's place.

        None: it is not known, each member has a place of its own, messages were lost, or the
        committed offset means nothing here.
        """
        if ends is None or self.contract.model == GroupModel.BROADCASTING:
            return None
        partition = TopicPartition(placement.topic, placement.partition)
        committed = self.offsets.get(partition)
        if committed is not None:
            begin = max(committed.offset, ends.earliest)
            return None if begin > ends.latest or self.elsewhere(partition) else begin
        if self.contract.start == "latest" and partition not in self.younger:
            return ends.latest
        return ends.earliest if ends.earliest <= ends.latest else None

    def progress(
        self,
        placement: PartitionPlacement,
        ends: PartitionEnds | None,
        *,
        messages: int | None,
        age_s: float | None,
    ) -> GroupProgress:
        """Return how far the group is in one partition.

        Args:
            placement: The partition.
            ends: Where it ends; None: no broker tells.
            messages: How many messages lie from ``begin`` on; None: not known, or not counted.
            age_s: How old the first one of them is; 0: there is none. None: not known.
        """
        return _progress(self, placement, ends, messages, age_s)


async def describe_group(
    cluster: ClusterClient, group: str, *, count: bool = True
) -> GroupDescription:
    """Return a consumer group with its members, and its lag in every partition.

    The lag is in bytes, in messages, and as the age of the oldest message in it. ``count``:
    also in messages, which brokers have to count.

    Raises:
        UnknownGroup: There is none of this name.
    """
    nodes = await read_nodes(cluster, group)
    inspector = Inspector(cluster)
    partitions = await gather_all(
        progress(inspector, nodes, placement, count=count)
        for view in nodes.topics.values()
        for placement in view.partitions
    )
    return description(group, nodes, partitions)


def description(
    name: str, nodes: GroupNodes, partitions: Iterable[GroupProgress]
) -> GroupDescription:
    """Return a group from what the tree says of it, and its progress."""
    contract, told = nodes.contract, tuple(partitions)
    return GroupDescription(
        group=name,
        model=contract.model,
        start=contract.start,
        topics={topic: contract.topics[topic].text for topic in nodes.topics},
        deleted_topics=tuple(sorted(set(contract.topics) - set(nodes.topics))),
        members=tuple(_member(view, contract, told) for view in nodes.members.values()),
        partitions=told,
        unsubscribed=unsubscribed_of(contract, nodes.members),
        by_stream=contract.by_stream,
        terms=terms_of(contract),
        patterns={pattern: each.text for pattern, each in sorted(contract.patterns.items())},
    )


async def read_nodes(
    cluster: ClusterClient, name: str, only: TopicPartition | None = None
) -> GroupNodes:
    """Return what the tree says of a group; with ``only``, of its members and one partition.

    Raises:
        UnknownGroup: There is none of this name.
    """
    coordinator = cluster.coordinator
    own = await groups.known_group(coordinator, name)
    if only is None:
        names = sorted((await groups.with_matches(coordinator, own)).topics)
    else:
        names = [only.topic] * (own.filter_of(only.topic) is not None)
    views = await gather_all(_view_or_none(coordinator, each) for each in names)
    present = {view.name: view for view in views if view is not None}
    contract = own.among(present)
    if only is None:
        names = sorted(contract.topics)
    offsets = await cluster.offsets.read(name, names)
    fresh = [
        partition
        for view in present.values()
        for number in range(len(view.partitions))
        if (partition := TopicPartition(view.name, number)) not in offsets
        and only in {None, partition}
    ]
    younger = await gather_all(
        claims.is_younger(
            coordinator, name, partition, by_pattern=partition.topic not in own.topics
        )
        for partition in fresh
    )
    return GroupNodes(
        contract,
        await groups.members(coordinator, name),
        await claims.read_partitions(coordinator, Owner, name, names),
        offsets,
        present,
        {partition for partition, is_younger in zip(fresh, younger, strict=True) if is_younger},
        (await open_of(cluster, name) or {}) if contract.model == GroupModel.SHARED else {},
    )


async def _view_or_none(coordinator: Coordinator, topic: str) -> TopicView | None:
    try:
        return await topics.describe_topic(coordinator, topic)
    except UnknownTopic:
        return None


async def progress(
    inspector: Inspector, nodes: GroupNodes, placement: PartitionPlacement, *, count: bool
) -> GroupProgress:
    """Return how far a group is in one partition."""
    ends = await inspector.ends_if_told(placement) if nodes.readable(placement.topic) else None
    begin = nodes.begin(placement, ends)
    messages = age_s = None
    if begin is not None and ends is not None:
        age_s = await inspector.age_s(placement, begin) if begin < ends.latest else 0.0
        if count:
            messages = 0
            if begin < ends.latest:
                messages = await inspector.count(placement, begin, ends.latest)
    return nodes.progress(placement, ends, messages=messages, age_s=age_s)


def _progress(
    nodes: GroupNodes,
    placement: PartitionPlacement,
    ends: PartitionEnds | None,
    messages: int | None,
    age_s: float | None,
) -> GroupProgress:
    partition = TopicPartition(placement.topic, placement.partition)
    committed, owner = nodes.offsets.get(partition), nodes.owners.get(partition)
    elsewhere = nodes.elsewhere(partition)
    stopped = "" if committed is None else committed.stopped or elsewhere
    begin = nodes.begin(placement, ends)
    end_number = None if ends is None else ends.latest_number
    shared, lag_messages = nodes.open.get(partition), messages
    if shared is not None and end_number is not None and shared.cursor <= end_number:
        lag_messages = end_number - shared.cursor + shared.open
    return GroupProgress(
        topic=placement.topic,
        partition=placement.partition,
        owner=None if owner is None else owner.member,
        committed=None if committed is None else committed.offset,
        start=None if ends is None else ends.earliest,
        end=None if ends is None else ends.latest,
        lag_bytes=None if begin is None or ends is None else ends.latest - begin,
        lag_messages=lag_messages,
        lag_s=age_s,
        number=None if end_number is None or messages is None else end_number - messages,
        end_number=end_number,
        committed_ms=None if committed is None else committed.time_ms,
        committed_by=None if committed is None else committed.member,
        committed_epoch=None if committed is None else committed.epoch or None,
        committed_topic_id=None if committed is None else committed.topic_id or None,
        committed_is_copy=committed is not None and committed.copied,
        # The next member finds out what ``elsewhere`` says.
        stopped=stopped or (owner.stopped if owner is not None else "") or None,
        stopped_at=None if owner is None else owner.stopped_at,
        stopped_since_ms=None if owner is None else owner.stopped_since_ms or None,
        held=0 if owner is None else owner.held,
        message_id=None if owner is None else owner.message_id,
        attempts=None if owner is None else owner.attempts or None,
        next_try_ms=None if owner is None else owner.next_try_ms,
        needs_reset=bool(stopped),
        other_topic=bool(elsewhere) and committed is not None and not committed.stopped,
        subscribed=placement.topic not in unsubscribed_of(nodes.contract, nodes.members),
        readable=nodes.readable(placement.topic),
        filter=nodes.contract.topics.get(placement.topic, ALL).text or None,
        shared=shared,
    )


def _member(
    view: MemberView, contract: ConsumerGroup, partitions: Iterable[GroupProgress]
) -> GroupMember:
    has_all = not GroupModel(contract.model).claims
    return GroupMember(
        member=view.member,
        host=view.value.host,
        pid=view.value.pid,
        partitions=sum(
            view.value.reads(each.topic) if has_all else each.owner == view.member
            for each in partitions
        ),
        topics=(*view.value.topics, *view.value.patterns),
        since_ms=view.value.since_ms,
    )


def _total(values: Iterable[int | None]) -> int | None:
    """Return a sum; one unknown part makes it unknown."""
    known: list[int] = []
    for value in values:
        if value is None:
            return None
        known.append(value)
    return sum(known)
