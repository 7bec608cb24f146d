"""How far many consumer groups are behind, read together by one reader.

A look has three steps, each over all groups that are asked for:

1. ZooKeeper tells contracts, members, topics, offsets and owners: 200 nodes with one request.
2. A broker that has many of the partitions tells where all of its partitions end, in one answer.
   Offsets are read before ends, so that no group seems to be beyond an end.
3. Brokers tell the number and the time of the first message behind a group's place.

What the third step found stays true while the group stands there, the topic is the same and the
same master leads, so a ``LagMemory`` keeps it for the next look, and topics and members besides: of
a group that stands still, a look reads the offsets alone. A ``LookPace`` bounds what looks cost
ZooKeeper and brokers.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.groups import groups
from vq.coordination.groups.groups import member_of
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import ConnectionLost, Node, NotAllowed, Read, SessionExpired
from vq.coordination.tree.reading import TopicView, gather_all, read_nodes, read_topics
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup, Member, Owner
from vq.coordination.tree.values.group_terms import GroupModel
from vq.coordination.tree.values.partitions import PlacementChanges
from vq.coordination.tree.values.topics import READY, TopicNode
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.model import PartitionPlacement, TopicPartition, check_name
from vq.operations.brokers.brokers import FAILED_STATES
from vq.operations.cluster.bulk import (
    GROUPS_IN_TURN,
    GroupTopic,
    PlaceNodes,
    ask_master,
    read_place_nodes,
)
from vq.operations.cluster.lag_memory import FirstBehind, LagMemory
from vq.operations.cluster.pace import LookPace
from vq.operations.groups.group_lags import PARTITIONS_MAX, GroupLags
from vq.operations.groups.groups import (
    GroupDescription,
    GroupNodes,
    GroupProgress,
    description,
)
from vq.operations.groups.shared import open_of
from vq.operations.partitions.offsets import Inspector, PartitionEnds
from vq.tasks import begin_task, in_turns

logger = get_logger(__name__)

#: Groups whose nodes are read with the same requests.
_GROUPS_AT_ONCE: Final = 100
#: A broker tells so many partitions of a status at the cost of one request about one partition.
_TOLD_PER_REQUEST: Final = 10


async def look_at_groups(
    cluster: ClusterClient,
    *,
    count: bool,
    partitions_max: int = PARTITIONS_MAX,
    names: Sequence[str] | None = None,
    memory: LagMemory | None = None,
    pace: LookPace | None = None,
) -> GroupLags:
    """Return how far groups are behind.

    A broker that gives no answer in time is not asked again during this look.

    Args:
        cluster: Where.
        count: Also in messages.
        partitions_max: Of all groups together; further ones are counted as left out, and no broker
            is asked about them.
        names: These groups, in this order; None: all.
        memory: What earlier looks found; this one adds to it.
        pace: Bounds what the look costs in a second; None: nothing does.

    Raises:
        CoordinationError: The groups cannot be listed, or ZooKeeper went away meanwhile.
    """
    begun = cluster.clock.monotonic()
    memory = LagMemory() if memory is None else memory
    there = await groups.list_groups(cluster.coordinator)
    memory.keep(set(there))
    if pace is None:
        pace = LookPace(cluster.clock, reads_per_s=math.inf, requests_per_s=math.inf)
    look = _LagLook(cluster, memory, pace, count=count)
    await look.read(there if names is None else names, partitions_max)
    await look.ask_ends()
    found = await look.described()
    now = cluster.clock.monotonic()
    return GroupLags(cluster.clock.wall_ms(), now - begun, found, look.failed, look.left_out, there)


class _Unasked:
    """Stands for what no broker has told yet."""


_UNASKED: Final = _Unasked()
#: Reads of a topic beside its partitions.
_READS_OF_TOPIC: Final = 3
_READS_OF_MASTER: Final = 2
#: Reads before the journal of a shared group is asked.
_READS_OF_OPEN: Final = 3


def _readable(node: Read) -> Node:
    """Return a node that is there.

    Raises:
        NotAllowed: It may not be read.
    """
    if isinstance(node, NotAllowed):
        raise node
    assert node is not None
    return node


@dataclass(frozen=True, slots=True)
class _ToldEnds:
    """The ends of all partitions of a broker group, as its master told them; None: not readable."""

    epoch: int
    of: dict[TopicPartition, PartitionEnds | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _ToldGroup:
    """A group while its progress is found: None where a broker has to be asked for it."""

    name: str
    nodes: GroupNodes
    placements: Sequence[PartitionPlacement]
    progress: list[GroupProgress | None] = field(default_factory=list)
    firsts: dict[TopicPartition, FirstBehind] = field(default_factory=dict)


class _LagLook:
    """One look; its steps are ``read``, ``ask_ends`` and ``described``."""

    def __init__(
        self, cluster: ClusterClient, memory: LagMemory, pace: LookPace, *, count: bool
    ) -> None:
        self._cluster = cluster
        self._coordinator = cluster.coordinator
        self._memory = memory
        self._pace = pace
        self._count = count
        self._inspector = Inspector(cluster)
        self._topic_names: list[str] | None = None  # for patterns
        self._views: dict[str, TopicView | None] = {}
        self._nodes: dict[str, GroupNodes] = {}
        self._asked: dict[str, list[PartitionPlacement]] = {}
        self._ends: dict[str, _ToldEnds] = {}
        # Of partitions that are asked for by themselves.
        self._alone: dict[TopicPartition, asyncio.Task[PartitionEnds | None]] = {}
        self._silent: set[str] = set()
        self.failed = 0
        self.left_out: dict[str, int] = {}

    @contextmanager
    def _told_errors(self, group: str) -> Iterator[None]:
        """Count a group that cannot be read, and go on with the others."""
        try:
            yield
        except (ConnectionLost, SessionExpired):
            raise
        except VqError as error:
            logger.warning("group cannot be read", group=group, error=error)
            self.failed += 1

    # ZooKeeper ----------------------------------------------------------------------------------
    async def read(self, names: Sequence[str], room: int) -> None:
        """Read what the tree says of groups, and of as many partitions as there is room for."""
        for first in range(0, len(names), _GROUPS_AT_ONCE):
            own = await self._contracts(names[first : first + _GROUPS_AT_ONCE])
            await self._pace.reads(len(own))
            members = await groups.read_member_nodes(
                self._coordinator, list(own), self._memory.members
            )
            self._memory.reads |= {name: tuple(self._read_by(each)) for name, each in own.items()}
            await self._read_topics({topic for name in own for topic in self._memory.reads[name]})
            contracts = {
                name: each.among([name for name in self._read_by(each) if self._views[name]])
                for name, each in own.items()
            }
            asked: dict[str, list[PartitionPlacement]] = {}
            for name, contract in contracts.items():
                placements = [
                    placement
                    for topic in sorted(contract.topics)
                    for placement in self._placements(topic)
                ]
                asked[name] = placements[:room]
                if len(placements) > room:
                    self.left_out[name] = len(placements) - room
                room -= len(asked[name])
            places = await self._read_places(own, members, asked)
            async for name, contract in in_turns(contracts.items(), GROUPS_IN_TURN):
                with self._told_errors(name):
                    self._nodes[name] = self._group(
                        name, contract, members[name], places.get(name, [])
                    )
                    self._asked[name] = asked[name]

    async def _contracts(self, names: Sequence[str]) -> dict[str, ConsumerGroup]:
        """Return the contracts of groups as they are stored."""
        await self._pace.reads(len(names))
        paths = [ConsumerGroup.path(name) for name in names]
        nodes = await read_nodes(self._coordinator, paths)
        found: dict[str, ConsumerGroup] = {}
        for name, path, node in zip(names, paths, nodes, strict=True):
            if node is None or (isinstance(node, Node) and not node.data):
                continue  # deleted meanwhile, or its first member has not written it yet
            with self._told_errors(name):
                found[check_name("group", name)] = ConsumerGroup.decode(path, _readable(node).data)
        if self._topic_names is None and any(each.patterns for each in found.values()):
            self._topic_names = await topics.list_topics(self._coordinator)
        return found

    def _read_by(self, contract: ConsumerGroup) -> Collection[str]:
        """Return the topics of a contract, and those that its patterns match."""
        if not contract.patterns:
            return contract.topics
        return contract.among(self._topic_names or ()).topics

    def _placements(self, topic: str) -> Sequence[PartitionPlacement]:
        view = self._views[topic]
        return () if view is None else view.partitions

    async def _read_topics(self, wanted: Collection[str]) -> None:
        """Have the views of topics; of those that are known, only what changed is read."""
        names = sorted(set(wanted) - self._views.keys())
        known = [name for name in names if name in self._memory.topics]
        paths = [*map(TopicNode.path, known), *map(PlacementChanges.path, known)]
        await self._pace.reads(len(paths))
        nodes = await read_nodes(self._coordinator, paths)
        for index, name in enumerate(known):
            view = self._memory.topics[name]
            node, changes = nodes[index], nodes[index + len(known)]
            if (
                isinstance(node, Node)
                and isinstance(changes, Node)
                and (node.stat.czxid, node.stat.version) == (view.created, view.version)
                and changes.stat.version == view.changes
            ):
                self._views[name] = view
        changed = [name for name in names if name not in self._views]
        views = await read_topics(self._coordinator, changed)
        for name in changed:
            read = views.get(name)
            if read is None or read.phase != READY:
                self._memory.topics.pop(name, None)
                self._views[name] = None
            else:
                await self._pace.reads(_READS_OF_TOPIC + len(read.partitions))
                self._views[name] = self._memory.topics[name] = read

    async def _read_places(
        self,
        own: Mapping[str, ConsumerGroup],
        members: Mapping[str, Mapping[str, Read] | NotAllowed],
        asked: Mapping[str, Sequence[PartitionPlacement]],
    ) -> dict[str, list[PlaceNodes]]:
        wanted = [
            GroupTopic(
                group=name,
                topic=topic,
                partitions=count,
                has_members=bool(members[name]),
                with_younger=own[name].start == "latest",
                by_pattern=topic not in own[name].topics,
            )
            for name, placements in asked.items()
            for topic, count in Counter(each.topic for each in placements).items()
        ]
        await self._pace.reads(sum(each.partitions * (1 + each.has_members) for each in wanted))
        read: dict[str, list[PlaceNodes]] = {}
        for each in await read_place_nodes(self._cluster, wanted):
            read.setdefault(each.asked.group, []).append(each)
        return read

    def _group(
        self,
        name: str,
        contract: ConsumerGroup,
        members: Mapping[str, Read] | NotAllowed,
        places: Sequence[PlaceNodes],
    ) -> GroupNodes:
        if isinstance(members, NotAllowed):
            raise members
        offsets: dict[TopicPartition, CommittedOffset] = {}
        owners: dict[TopicPartition, Owner] = {}
        younger = set()
        for each in places:
            partition = TopicPartition(each.asked.topic, each.number)
            if each.offset is not None:
                data = _readable(each.offset).data
                offsets[partition] = CommittedOffset.decode(each.offset_path, data)
            if each.owner is not None:
                owners[partition] = Owner.decode(each.owner_path, _readable(each.owner).data)
            if isinstance(each.younger, NotAllowed):
                raise each.younger
            if each.younger:
                younger.add(partition)
        live = {
            member: member_of(member, Member.path(name, member), _readable(node))
            for member, node in members.items()
            if node is not None
        }
        views = {topic: view for topic in contract.topics if (view := self._views[topic])}
        return GroupNodes(contract, live, owners, offsets, views, younger)

    # Brokers ------------------------------------------------------------------------------------
    async def ask_ends(self) -> None:
        """Ask brokers that have many of the partitions where all of theirs end.

        Before that, what is open of shared groups: so no group has more than there is.
        """
        await gather_all(
            self._ask_open(name)
            for name, nodes in self._nodes.items()
            if nodes.contract.model == GroupModel.SHARED
        )
        wanted = Counter(
            placement.spans[-1].group
            for name, placements in self._asked.items()
            for placement in placements
            if placement.spans and self._nodes[name].readable(placement.topic)
        )
        told = self._memory.told
        await gather_all(
            self._ask_ends(group)
            for group, count in sorted(wanted.items())
            if count > 1 and count * _TOLD_PER_REQUEST >= told.get(group, 0)
        )

    async def _ask_open(self, name: str) -> None:
        await self._pace.reads(_READS_OF_OPEN)
        found = await open_of(self._cluster, name)
        if found is not None:
            self._nodes[name] = replace(self._nodes[name], open=found)

    async def _ask_ends(self, group: str) -> None:
        await self._pace.reads(_READS_OF_MASTER)
        await self._pace.request(group)
        try:
            answers = await ask_master(self._cluster, group, with_numbers=self._count)
        except (ConnectionLost, SessionExpired):
            raise
        except VqError as error:
            logger.debug("ends of partitions are not known", group=group, error=error)
            self._silent.add(group)
            return
        ends = _ToldEnds(answers[0].epoch)
        for each in (each for answer in answers for each in answer.partitions):
            key = TopicPartition(each.topic, each.partition)
            if each.state in FAILED_STATES:
                ends.of[key] = None
            elif not each.end_unknown:
                number = each.next_number if each.number_known else None
                ends.of[key] = PartitionEnds(
                    each.log_start_offset, each.high_watermark, each.log_end_offset, number
                )
        self._ends[group] = ends
        self._memory.told[group] = len(ends.of)

    async def described(self) -> dict[str, GroupDescription]:
        """Return the groups; brokers are asked for what no earlier look found."""
        groups_told = []
        async for name, nodes in in_turns(self._nodes.items(), GROUPS_IN_TURN):
            groups_told.append(self._told_group(name, nodes))
        # Side by side, since each broker has a pace of its own.
        await gather_all(self._ask_rest(each) for each in groups_told if None in each.progress)
        found: dict[str, GroupDescription] = {}
        async for each in in_turns(groups_told, GROUPS_IN_TURN):
            if each.firsts:
                self._memory.keep_firsts(each.name, each.firsts)
            told = [one for one in each.progress if one is not None]
            if len(told) == len(each.progress):  # otherwise it cannot be read
                found[each.name] = description(each.name, each.nodes, told)
        return found

    def _told_group(self, name: str, nodes: GroupNodes) -> "_ToldGroup":
        """Return a group with the progress that is known without a question."""
        before = self._memory.take_firsts(name)
        group = _ToldGroup(name, nodes, self._asked[name])
        for placement in group.placements:  # most of them need no question: no task for each
            key = TopicPartition(placement.topic, placement.partition)
            ends = self._ends_told(nodes, placement)
            if isinstance(ends, _Unasked):
                group.progress.append(None)
                continue
            begin, first = nodes.begin(placement, ends), before.get(key)
            if ends is None or begin is None or begin == ends.latest:
                group.progress.append(self._told(nodes, placement, ends, None))
            elif first is not None and self._still(first, placement, begin, ends):
                group.firsts[key] = first
                group.progress.append(self._told(nodes, placement, ends, first))
            else:
                group.progress.append(None)
        return group

    async def _ask_rest(self, group: "_ToldGroup") -> None:
        async def ask(index: int) -> None:
            placement = group.placements[index]
            ends = await self._ends_of(group.nodes, placement)
            begin = group.nodes.begin(placement, ends)
            first = None
            if ends is not None and begin is not None and begin != ends.latest:
                first = await self._ask_first(placement, begin, ends)
                if first.epoch and first.sent_ms is not None:
                    group.firsts[TopicPartition(placement.topic, placement.partition)] = first
            group.progress[index] = self._told(group.nodes, placement, ends, first)

        unknown = [index for index, each in enumerate(group.progress) if each is None]
        with self._told_errors(group.name):
            await gather_all(ask(index) for index in unknown)

    def _ends_told(
        self, nodes: GroupNodes, placement: PartitionPlacement
    ) -> "PartitionEnds | _Unasked | None":
        """Return the ends of a partition if no broker has to be asked about it alone."""
        if not placement.spans or not nodes.readable(placement.topic):
            return None
        last = placement.spans[-1].group
        if last in self._silent:
            return None
        told = self._ends.get(last)
        if told is None or len(placement.spans) > 1:  # the start is at another group
            return _UNASKED
        return told.of.get(TopicPartition(placement.topic, placement.partition), _UNASKED)

    async def _ends_of(
        self, nodes: GroupNodes, placement: PartitionPlacement
    ) -> PartitionEnds | None:
        ends = self._ends_told(nodes, placement)
        if not isinstance(ends, _Unasked):
            return ends
        key = TopicPartition(placement.topic, placement.partition)
        task = self._alone.get(key)
        if task is None:  # else another group reads the partition, too
            task = self._alone[key] = begin_task(self._ask_ends_alone(placement))
        return await task

    async def _ask_ends_alone(self, placement: PartitionPlacement) -> PartitionEnds | None:
        await self._pace.request(placement.spans[-1].group)
        return await self._inspector.ends_if_told(placement)

    def _still(
        self, first: FirstBehind, placement: PartitionPlacement, begin: int, ends: PartitionEnds
    ) -> bool:
        """Whether the first message behind the place is the one of an earlier look."""
        place = (begin, self._epoch_at(placement, begin), self._created(placement))
        if (first.offset, first.epoch, first.created) != place:
            return False
        return not self._count or (first.messages_to(ends) is not None)

    def _epoch_at(self, placement: PartitionPlacement, offset: int) -> int:
        """Return the epoch of the master that has an offset; 0: it did not tell all its ends."""
        span = placement.span_at(offset)
        told = None if span is None else self._ends.get(span.group)
        return 0 if told is None else told.epoch

    def _created(self, placement: PartitionPlacement) -> int:
        view = self._views[placement.topic]
        return 0 if view is None else view.created

    async def _ask_first(
        self, placement: PartitionPlacement, begin: int, ends: PartitionEnds
    ) -> FirstBehind:
        """Return the first message at an offset or behind it, as brokers tell it."""
        span = placement.span_at(begin)
        group = "" if span is None else span.group
        await self._pace.request(group)
        sent_ms = await self._inspector.sent_ms(placement, begin)
        epoch, created = self._epoch_at(placement, begin), self._created(placement)
        first = FirstBehind(begin, epoch, created, None, sent_ms)
        if not self._count:
            return first
        await self._pace.request(group)
        if ends.latest_number is not None:
            first = first._replace(number=await self._inspector.number_at(placement, begin))
        if first.messages_to(ends) is not None:
            return first
        await self._pace.request(group)
        return first._replace(counted=await self._inspector.count(placement, begin, ends.latest))

    def _told(
        self,
        nodes: GroupNodes,
        placement: PartitionPlacement,
        ends: PartitionEnds | None,
        first: FirstBehind | None,
    ) -> GroupProgress:
        """Return the progress in a partition; without ``first``, nothing lies behind the place."""
        if first is None or ends is None:
            nothing = ends is not None and nodes.begin(placement, ends) is not None
            return nodes.progress(
                placement,
                ends,
                messages=0 if nothing and self._count else None,
                age_s=0.0 if nothing else None,
            )
        age_s = None
        if first.sent_ms is not None:
            age_s = max(0.0, (self._cluster.clock.wall_ms() - first.sent_ms) / 1000)
        messages = first.messages_to(ends)
        return nodes.progress(
            placement,
            ends,
            messages=first.counted if messages is None else messages,
            age_s=age_s,
        )
