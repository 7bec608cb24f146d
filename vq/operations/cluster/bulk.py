"""Facts of a whole cluster, many with one call: for reports on all groups and topics.

Loop-bound functions on a ``ClusterClient``. One request reads many nodes of ZooKeeper, and a broker
tells all its partitions in few answers. A node that cannot be read has its error in the result and
does not fail the others. A number that no broker answers is None, never 0.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeVar

from vq import limits
from vq.bounds import check_between
from vq.client.cluster import ClusterClient
from vq.coordination.brokers import group_views
from vq.coordination.groups import groups
from vq.coordination.groups.groups import KnownMembers
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import Node, NotAllowed, Read, Unreadable
from vq.coordination.tree.reading import read_nodes
from vq.coordination.tree.values.consumers import (
    Assignment,
    CommittedOffset,
    ConsumerGroup,
    Member,
    Owner,
)
from vq.coordination.tree.values.partitions import Partition
from vq.coordination.tree.values.topics import READY, TopicNode
from vq.coordination.tree.values.value import Value
from vq.errors import CorruptData, InvalidArgument, NotMaster
from vq.limits import is_valid_name
from vq.model import GroupView, PartitionPlacement, TopicPartition
from vq.operations.brokers.brokers import FAILED_STATES, master_and_epoch
from vq.operations.partitions.offsets import Inspector, PartitionEnds
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import StatusRequest, StatusResponse
from vq.reserved import Purpose, group_of
from vq.shown import shown
from vq.tasks import in_turns

#: Requests of ``measure`` that one broker has to answer at a time, and the most.
AT_ONCE: Final = 16
AT_ONCE_MAX: Final = 256
#: Nodes whose paths are made at a time: memory stays small, whatever is asked for.
_NODES_AT_ONCE: Final = 20_000
#: A master that has just begun to lead is asked again so often where its partitions end.
_LOOKS_MAX: Final = 10
_LOOK_AGAIN_S: Final = 0.25
#: Nodes that are decoded, and consumer groups that are judged, in one turn of the loop: 5 ms.
NODES_IN_TURN: Final = 100
GROUPS_IN_TURN: Final = 10

V = TypeVar("V", bound=Value)
T = TypeVar("T")


# Groups and topics by name --------------------------------------------------------------------
@dataclass(frozen=True, slots=True, kw_only=True)
class GroupContract:
    """What a consumer group reads, and how many consumers it has.

    Attributes:
        group: Its name, as ZooKeeper has it.
        topics: Each topic it reads, with its filter; "": all messages.
        members: How many consumers are alive.
        model: ``clustering``: each message goes to one member; ``broadcasting``: to each.
        start: ``earliest`` or ``latest``: where a partition without a committed offset begins.
        error: Why it cannot be read; "" when it can.
        unsubscribed: Topics that none of its members subscribes to; none without members.
        by_stream: A stream that is no member writes the group's progress.
    """

    group: str
    topics: Mapping[str, str] = field(default_factory=dict)
    members: int = 0
    model: str = "clustering"
    start: str = "earliest"
    error: str = ""
    unsubscribed: tuple[str, ...] = ()
    by_stream: bool = False


async def read_contracts(cluster: ClusterClient) -> list[GroupContract]:
    """Return all consumer groups with what they read; also those that cannot be read.

    Two reads of ZooKeeper for each group, and none of its partitions.
    """
    return await contracts_of(cluster, {})


async def contracts_of(
    cluster: ClusterClient, known: dict[str, KnownMembers]
) -> list[GroupContract]:
    """Return what ``read_contracts`` does; members in ``known`` are read only if they changed."""
    coordinator = cluster.coordinator
    names = await groups.list_groups(coordinator)
    nodes = await read_nodes(coordinator, [ConsumerGroup.path(name) for name in names])
    present = await topics.list_topics(coordinator)
    members_of = await groups.read_member_nodes(coordinator, names, known)
    found = []
    async for name, node in in_turns(zip(names, nodes, strict=True), NODES_IN_TURN):
        members = members_of[name]
        if not is_valid_name(name):
            error = f"{shown(name)} is not a valid name for a consumer group"
            found.append(GroupContract(group=name, error=error))
        elif node is not None:  # else it was deleted meanwhile
            count = str(members) if isinstance(members, NotAllowed) else len(members)
            read = None if isinstance(members, NotAllowed) else _subscribed(name, members)
            found.append(_contract(name, node, count, read, present))
    return found


def _subscribed(group: str, members: Mapping[str, Read]) -> list[Member] | None:
    """Return the members; None: not all are known, or there is none."""
    read: list[Member] = []
    for name, node in members.items():
        if not isinstance(node, Node):
            return None
        try:
            read.append(Member.decode(Member.path(group, name), node.data))
        except (Unreadable, InvalidArgument):
            return None
    return read or None


def _contract(
    name: str,
    node: Node | NotAllowed,
    members: int | str,
    read: Sequence[Member] | None,
    present: Sequence[str],
) -> GroupContract:
    if isinstance(members, str):
        return GroupContract(group=name, error=members)
    if isinstance(node, NotAllowed):
        return GroupContract(group=name, members=members, error=str(node))
    if not node.data:  # created as a parent: its first member has not written the contract yet
        return GroupContract(group=name, members=members)
    try:
        value = ConsumerGroup.decode(ConsumerGroup.path(name), node.data).among(present)
    except (Unreadable, InvalidArgument) as error:
        return GroupContract(group=name, members=members, error=str(error))
    return GroupContract(
        group=name,
        topics={topic: each.text for topic, each in value.topics.items()},
        members=members,
        model=value.model,
        start=value.start,
        unsubscribed=()
        if read is None
        else tuple(
            topic for topic in sorted(value.topics) if not any(each.reads(topic) for each in read)
        ),
        by_stream=value.by_stream,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic in any phase, without its partitions.

    Attributes:
        topic: Its name, as ZooKeeper has it.
        id: Tells it from a namesake that was deleted.
        partitions: How many it has.
        phase: ``ready``; ``creating`` or ``deleting`` while several steps go on; ``deleted`` while
            it can be brought back.
        writable: It takes messages; False: it is closed.
        readable: Its messages can be read.
        error: Why it cannot be read in ZooKeeper; "" when it can.
    """

    topic: str
    id: str = ""
    partitions: int = 0
    phase: str = READY
    writable: bool = True
    readable: bool = True
    error: str = ""


async def read_topic_states(cluster: ClusterClient) -> list[TopicState]:
    """Return all topics in any phase, without partitions; also those that cannot be read."""
    names = await topics.list_topics(cluster.coordinator)
    nodes = await read_nodes(cluster.coordinator, [TopicNode.path(name) for name in names])
    return [
        _topic_state(name, node)
        async for name, node in in_turns(zip(names, nodes, strict=True), NODES_IN_TURN)
        if node is not None
    ]


def _topic_state(name: str, node: Node | NotAllowed) -> TopicState:
    if isinstance(node, NotAllowed):
        return TopicState(topic=name, error=str(node))
    try:
        value = TopicNode.decode(TopicNode.path(name), node.data)
    except (Unreadable, InvalidArgument) as error:
        return TopicState(topic=name, error=str(error))
    if not is_valid_name(name):
        return TopicState(topic=name, error=f"{shown(name)} is not a valid name for a topic")
    settings = value.settings
    return TopicState(
        topic=name,
        id=value.id,
        partitions=settings.partitions,
        phase=value.phase,
        writable=settings.writable,
        readable=settings.readable,
    )


async def list_broker_groups(cluster: ClusterClient) -> list[GroupView]:
    """Return the broker groups with their pools, sorted by name."""
    return await group_views.groups(cluster.coordinator)


# Partitions in ZooKeeper ----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class ReadPlacement:
    """Where a partition lives; ``placement`` is None where ``error`` says why it is not known."""

    topic: str
    partition: int
    placement: PartitionPlacement | None
    error: str = ""


async def read_placements(
    cluster: ClusterClient, partitions: Mapping[str, int]
) -> list[ReadPlacement]:
    """Return where the partitions 0 to n-1 of topics live, given n by topic.

    ZooKeeper is asked for up to 200 nodes with one request, four at a time. A partition that
    is not there, or cannot be read, has its error in the result.

    Raises:
        InvalidArgument: A topic cannot have so many partitions.
    """
    for n in partitions.values():
        _check_count(n)
    wanted = [
        TopicPartition(topic, number) for topic, n in partitions.items() for number in range(n)
    ]
    found = []
    for keys in _steps(wanted, _NODES_AT_ONCE):
        paths = [Partition.path(*key) for key in keys]
        nodes = await read_nodes(cluster.coordinator, paths)
        for (topic, number), path, node in zip(keys, paths, nodes, strict=True):
            value, error = _value(Partition, path, node)
            placement = None
            if value is not None:
                placement = PartitionPlacement(topic, number, value.spans, value.state)
            elif not error:
                error = f"znode {path!r} is missing"
            found.append(ReadPlacement(topic, number, placement, error))
    return found


def _check_count(partitions: int) -> None:
    check_between("partitions", partitions, 0, limits.PARTITIONS_PER_TOPIC_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTopic:
    """A topic of a consumer group, to be asked about.

    Attributes:
        group: The consumer group.
        topic: One of its topics.
        partitions: How many partitions the topic has.
        has_members: The group has a consumer; without one, no partition has an owner to ask for.
        with_younger: Find out which partitions are younger than the group; only a group that starts
            at the latest message needs it.
        by_pattern: The group reads the topic by a pattern of names.
    """

    group: str
    topic: str
    partitions: int
    has_members: bool = True
    with_younger: bool = False
    by_pattern: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlace:
    """Where a consumer group is in one partition, as ZooKeeper says.

    Attributes:
        group: The consumer group.
        topic: The partition's topic.
        partition: Its number.
        owner: The member that consumes it now; None: no member does.
        committed: The committed offset; None: there is none.
        stopped: The error at which the owner stands; None: it goes on.
        stopped_since_ms: Since when, in milliseconds since 1970.
        younger: It was made after the group began, so the group reads it from its start.
        error: Why something of it cannot be read; "" when all can.
    """

    group: str
    topic: str
    partition: int
    owner: str | None = None
    committed: CommittedOffset | None = None
    stopped: str | None = None
    stopped_since_ms: int | None = None
    younger: bool = False
    error: str = ""


async def read_places(cluster: ClusterClient, wanted: Sequence[GroupTopic]) -> list[GroupPlace]:
    """Return where consumer groups are in all partitions of topics, and who owns these.

    ZooKeeper is read as by ``read_placements``: a hundred thousand places take seconds. A node
    that cannot be read has its error in the result.

    Raises:
        InvalidArgument: A topic cannot have so many partitions.
    """
    found: list[GroupPlace] = []
    step: list[GroupTopic] = []
    size = 0
    for each in wanted:
        _check_count(each.partitions)
        step.append(each)
        size += each.partitions
        if size >= _NODES_AT_ONCE:
            found += await _read_places(cluster, step)
            step, size = [], 0
    return found + await _read_places(cluster, step)


async def _read_places(cluster: ClusterClient, wanted: Sequence[GroupTopic]) -> list[GroupPlace]:
    return [_place(each) for each in await read_place_nodes(cluster, wanted)]


class PlaceNodes(NamedTuple):
    """What ZooKeeper has of a group in one partition, as it was read.

    Attributes:
        asked: The group and the topic.
        number: Of the partition.
        offset_path, offset: Where the committed offset is, and the node.
        owner_path, owner: Those of the owner; without members, no owner is read.
        younger: The partition was made after the group began; see ``GroupTopic.with_younger``.
    """

    asked: GroupTopic
    number: int
    offset_path: str
    offset: Read
    owner_path: str
    owner: Read
    younger: bool | NotAllowed


async def read_place_nodes(
    cluster: ClusterClient, wanted: Sequence[GroupTopic]
) -> list[PlaceNodes]:
    """Return the nodes of groups in all partitions of topics, for ``read_places``."""
    keys = [(each, number) for each in wanted for number in range(each.partitions)]
    offset_paths = [CommittedOffset.path(each.group, each.topic, n) for each, n in keys]
    offsets = await read_nodes(cluster.coordinator, offset_paths)
    owner_paths = [
        Owner.path(each.group, each.topic, n) if each.has_members else "" for each, n in keys
    ]
    read = iter(await read_nodes(cluster.coordinator, [each for each in owner_paths if each]))
    owners = [next(read) if path else None for path in owner_paths]
    fresh = [
        key
        for key, offset in zip(keys, offsets, strict=True)
        if key[0].with_younger and offset is None
    ]
    younger = await _younger(cluster, fresh)
    return [
        PlaceNodes(*key, offset_path, offset, owner_path, owner, younger.get(key, False))
        for key, offset_path, offset, owner_path, owner in zip(
            keys, offset_paths, offsets, owner_paths, owners, strict=True
        )
    ]


def _place(nodes: PlaceNodes) -> GroupPlace:
    committed, wrong_offset = _value(CommittedOffset, nodes.offset_path, nodes.offset)
    owned, wrong_owner = _value(Owner, nodes.owner_path, nodes.owner)
    wrong_age = str(nodes.younger) if isinstance(nodes.younger, NotAllowed) else ""
    return GroupPlace(
        group=nodes.asked.group,
        topic=nodes.asked.topic,
        partition=nodes.number,
        owner=None if owned is None else owned.member,
        committed=committed,
        stopped=None if owned is None else owned.stopped or None,
        stopped_since_ms=None if owned is None else owned.stopped_since_ms or None,
        younger=nodes.younger is True,
        error=wrong_offset or wrong_owner or wrong_age,
    )


async def _younger(
    cluster: ClusterClient, fresh: Sequence[tuple[GroupTopic, int]]
) -> dict[tuple[GroupTopic, int], bool | NotAllowed]:
    """Return which were made after the group's first claim in the topic, or why that is not known.

    See ``claims.is_younger``.
    """
    firsts = list({_first(each): None for each, _ in fresh})
    mades = list({Partition.path(each.topic, number): None for each, number in fresh})
    nodes = await read_nodes(cluster.coordinator, [*firsts, *mades])
    read = dict(zip([*firsts, *mades], nodes, strict=True))

    def is_younger(each: GroupTopic, number: int) -> bool | NotAllowed:
        if group_of(each.topic, Purpose.RETRY) == each.group:
            return True
        first = read[_first(each)]
        made = read[Partition.path(each.topic, number)]
        for node in (first, made):
            if isinstance(node, NotAllowed):
                return node
        return (
            isinstance(first, Node)
            and isinstance(made, Node)
            and made.stat.czxid > first.stat.czxid
        )

    return {(each, number): is_younger(each, number) for each, number in fresh}


def _first(each: GroupTopic) -> str:
    """Return the node that was made when the group began with the topic."""
    if each.by_pattern:
        return ConsumerGroup.path(each.group)
    return Assignment.parent(each.group, each.topic)


def _value(kind: type[V], path: str, node: Read) -> tuple[V | None, str]:
    """Return the value of a node, or why it cannot be read; neither for a missing node."""
    if node is None:
        return None, ""
    if isinstance(node, NotAllowed):
        return None, str(node)
    try:
        return kind.decode(path, node.data), ""
    except (Unreadable, InvalidArgument) as error:
        return None, str(error)


# Brokers --------------------------------------------------------------------------------------
async def bounds_on(
    cluster: ClusterClient, group: str
) -> dict[TopicPartition, PartitionEnds | None]:
    """Return the ends of all partitions that a broker group has, as its master says.

    None for a partition whose log the master cannot read. ``bounds`` asks for each partition
    alone; this costs one request for some hundred. A partition that was moved has its older
    messages at another group.

    Raises:
        NotMaster: The group has no master now.
        Unreachable, TimedOut: The master does not answer.
    """
    ends, unknown = await _bounds_now(cluster, group)
    for _ in range(_LOOKS_MAX):
        if not unknown:
            break
        await asyncio.sleep(_LOOK_AGAIN_S)
        ends, unknown = await _bounds_now(cluster, group)
    return ends | dict.fromkeys(unknown)


async def _bounds_now(
    cluster: ClusterClient, group: str
) -> tuple[dict[TopicPartition, PartitionEnds | None], list[TopicPartition]]:
    """Return the ends of all partitions, and those whose end the master does not know yet."""
    ends: dict[TopicPartition, PartitionEnds | None] = {}
    unknown: list[TopicPartition] = []
    for answer in await ask_master(cluster, group):
        for each in answer.partitions:
            if each.end_unknown:
                unknown.append(TopicPartition(each.topic, each.partition))
            ends[TopicPartition(each.topic, each.partition)] = (
                None
                if each.state in FAILED_STATES
                else PartitionEnds(each.log_start_offset, each.high_watermark, each.log_end_offset)
            )
    return ends, unknown


async def ask_master(
    cluster: ClusterClient, group: str, *, with_numbers: bool = False
) -> list[StatusResponse]:
    """Return the answers to STATUS of a group's master, which list all its partitions together.

    Raises:
        NotMaster: The group has no master now.
        Unreachable, TimedOut: The master does not answer.
    """
    try:
        found = await master_and_epoch(cluster, group)
    except Unreadable as error:
        raise NotMaster(f"the master of broker group {group} cannot be read: {error}") from error
    if found is None:
        raise NotMaster(f"broker group {group} has no master now")
    master = found[0]
    request = StatusRequest(with_partitions=True, with_numbers=with_numbers)
    answers = []
    while True:
        answer, _ = await cluster.request(master.address, Command.STATUS, request)
        assert isinstance(answer, StatusResponse)
        if not answer.master or answer.group != group:
            raise NotMaster(f"{master.address} does not lead broker group {group} now")
        answers.append(answer)
        if not (answer.more and answer.partitions):
            return answers
        last = answer.partitions[-1]
        before = (request.after_topic, request.after_partition)
        if (last.topic, last.partition) <= before:
            raise CorruptData(f"the list of partitions of {group} does not get behind {before}")
        request.after_topic, request.after_partition = last.topic, last.partition


@dataclass(frozen=True, slots=True)
class MessageRange:
    """The messages of a partition in ``[start, end)``, to be measured."""

    placement: PartitionPlacement
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MeasuredRange:
    """What was found out about a range.

    Attributes:
        messages: How many there are; None: not counted, or a broker cannot tell.
        age_s: How long ago the first one was sent; 0: there is none. None: a broker is silent.
    """

    messages: int | None
    age_s: float | None


async def measure(
    cluster: ClusterClient,
    ranges: Sequence[MessageRange],
    *,
    count: bool = True,
    at_once: int = AT_ONCE,
) -> list[MeasuredRange]:
    """Return how many messages ranges of partitions have, and how old the first one is.

    Args:
        ranges: Any number; the same one may come several times and is asked for once.
        count: Count the messages, which brokers have to do; False: only the age.
        at_once: Ranges that brokers are asked for at a time, 1 to 256.

    Raises:
        InvalidArgument: ``at_once`` is out of bounds.
    """
    check_between("at_once", at_once, 1, AT_ONCE_MAX)
    inspector = Inspector(cluster)

    async def one(wanted: MessageRange) -> MeasuredRange:
        if wanted.start >= wanted.end:
            return MeasuredRange(0 if count else None, 0.0)
        age_s = await inspector.age_s(wanted.placement, wanted.start)
        messages = None
        if count:
            messages = await inspector.count(wanted.placement, wanted.start, wanted.end)
            if messages == 0:  # batches without messages: nothing of them has an age
                age_s = 0.0
        return MeasuredRange(messages, age_s)

    different = list(dict.fromkeys(ranges))
    measured = await _run_at_once((one(each) for each in different), at_once)
    by_range = dict(zip(different, measured, strict=True))
    return [by_range[each] for each in ranges]


async def _run_at_once(calls: Iterable[Awaitable[T]], at_once: int) -> list[T]:
    """Run calls, always so many at a time; return the results in order, or raise an error."""
    results: dict[int, T] = {}
    rest = enumerate(calls)

    async def work() -> None:
        for number, call in rest:
            results[number] = await call

    for outcome in await asyncio.gather(*(work() for _ in range(at_once)), return_exceptions=True):
        if outcome is not None:
            raise outcome
    return [results[number] for number in range(len(results))]


def _steps(items: Sequence[T], size: int) -> Iterable[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
