"""Which partitions a member should own, by the strategy of its group.

The strategies are in ``coordination.groups.rebalance``. In here: what they need to know, and what
counts when one of the application fails.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.group.holds import Hold
from vq.coordination.groups.claims import Assigned
from vq.coordination.groups.groups import MemberView
from vq.coordination.groups.rebalance import (
    STRATEGIES,
    GroupBalance,
    Shares,
    group_strategy_of,
)
from vq.coordination.topics.routes import Routes
from vq.coordination.tree.coordinator import Watch
from vq.coordination.tree.mirror import Mirror
from vq.coordination.tree.paths import TOPICS
from vq.coordination.tree.values.consumers import Member
from vq.coordination.tree.values.group_terms import STICKY, GroupModel
from vq.errors import InvalidArgument, UnknownTopic
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.topic_pattern import matching

logger = get_logger(__name__)


class Targets:
    """The aims of one member. Loop-bound.

    Attributes:
        strategy: The name of the strategy that it is configured with.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        member: str,
        *,
        on_change: Callable[[], None],
    ) -> None:
        self.strategy, own = group_strategy_of(config.strategy)
        self._strategies = {**STRATEGIES, self.strategy: own}
        self._has_all = not GroupModel(config.model).claims
        self._cluster = cluster
        self._group = config.group
        self._member = member
        self._shares: Shares = {}  # as last computed
        self._error = ""  # why the last computation failed; "": it did not
        self._racks: dict[TopicPartition, str] = {}  # of masters, as last known
        self._names = Mirror(
            cluster.coordinator,
            TOPICS,
            _name,
            on_hint=on_change,
            on_value=lambda _name, _value: self._matched.clear(),
        )
        self._matched: dict[tuple[str, ...], list[str]] = {}  # the names that patterns match

    async def target(
        self,
        strategy: str,
        present: Mapping[str, MemberView],
        topics: Mapping[str, frozenset[str]],
        assigned: Mapping[TopicPartition, Assigned],
    ) -> set[TopicPartition]:
        """Return the partitions that should be this member's, by the strategy of the group.

        In a broadcasting group that is all of its topics.
        """
        if self._has_all:
            found = [await self._partitions(topic) for topic in sorted(topics[self._member])]
            return set().union(*found)
        partitions: list[TopicPartition] = []
        for topic in sorted(set().union(*topics.values())):
            partitions += await self._partitions(topic)
        balance = GroupBalance(
            members=topics,
            partitions=partitions,
            current={partition: each.member for partition, each in assigned.items()},
            member_racks={name: each.value.rack for name, each in present.items()},
            partition_racks={} if strategy == STICKY else self._racks_of(partitions),
        )
        self._share_out(strategy, balance)
        return {each for each, member in self._shares.items() if member == self._member}

    def moves(self, assigned: Mapping[TopicPartition, Assigned]) -> set[TopicPartition]:
        """Return the partitions that another member should own than the one that had them last."""
        return {
            each
            for each, member in self._shares.items()
            if each not in assigned or assigned[each].member != member
        }

    async def topics_of(self, member: Member) -> frozenset[str]:
        """Return the topics that a member subscribes to, those that match its patterns included.

        Without a pattern nobody asks for the names of all topics.
        """
        if not member.patterns:
            return frozenset(member.topics)
        await self._names.refresh()
        found = self._matched.get(member.patterns)
        if found is None:
            names = self._names.values
            found = [each for each in names if matching(member.patterns, each) is not None]
            self._matched[member.patterns] = found
        return frozenset(found).union(member.topics)

    def doubt(self) -> None:
        """Have the names of topics read again: they may have changed without a hint."""
        self._names.doubt()

    def audit(self) -> None:
        """Have the names of topics read again, since a watch may be lost."""
        self._names.mark_names()

    def is_made_anew(self, hold: Hold) -> bool:
        """Whether the topic of a partition that is read is another one of its name by now.

        Where partitions are claimed, a topic that is deleted takes the owner nodes with it.
        """
        if not self._has_all or hold.reading is None:
            return False
        view = self._cluster.routes.topics.get(hold.partition.topic)
        return view is not None and view.id != hold.reading.fetcher.topic_id

    async def know(self, topics: Iterable[str]) -> None:
        """Have the partitions of topics read, unless they are known."""
        for topic in topics:
            await self._routes(topic)

    async def _routes(self, topic: str) -> Routes | None:
        """Return routes that have a topic; None: there is no such topic."""
        try:
            return await self._cluster.track(topic)
        except (UnknownTopic, InvalidArgument):
            return None

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic; none where there is no such topic."""
        routes = await self._routes(topic)
        if routes is None:
            return []
        return [TopicPartition(topic, each.partition) for each in routes.partitions(topic)]

    def _share_out(self, strategy: str, balance: GroupBalance) -> None:
        """Compute the shares; those of before stay if a strategy of the application fails."""
        error = ""
        try:
            if strategy not in self._strategies:
                raise InvalidArgument(f"this member does not know the strategy {strategy!r}")
            self._shares = self._strategies[strategy](balance)
        except InvalidArgument as raised:
            error = str(raised)
        if error and error != self._error:
            logger.error(
                "strategy failed, the last good assignment stays",
                group=self._group,
                member=self._member,
                error=error,
            )
        elif self._error and not error:
            logger.warning("strategy works again", group=self._group, member=self._member)
        self._error = error

    def _racks_of(self, partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, str]:
        """Return where masters run; while a group has none, that of before counts."""
        routes = self._cluster.routes
        racks = {each: routes.rack_of(each) for each in partitions}
        self._racks |= {partition: rack for partition, rack in racks.items() if rack}
        return self._racks


async def _name(name: str, _: Watch) -> str:
    """Return what a mirror of names keeps for each: nothing more."""
    return name
