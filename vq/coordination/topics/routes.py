"""Routes: the placement of partitions and the masters, cached, renewed by watches and a slow timer.

``Routes`` is an immutable snapshot; ``RouteWatcher`` keeps one for the tracked topics. It mirrors
them and their groups (``tree.mirror``); one task reads again what watches marked. While ZooKeeper
is away the last snapshot stays in use. It may be outdated: after an error with ``refresh_routes``,
call ``refresh``.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from vq.backoff import Backoff
from vq.coordination.tree.coordinator import Coordinator, NoNode, SessionState, Watch
from vq.coordination.tree.keeper import Keeper
from vq.coordination.tree.mirror import Mirror
from vq.coordination.tree.paths import BROKERS, TOPICS
from vq.coordination.tree.reading import TopicView, gather_all, read_topic
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.errors import InvalidState, UnknownPartition, UnknownTopic
from vq.log_lines import get_logger
from vq.model import Address, PartitionPlacement, TopicPartition

logger = get_logger(__name__)

AUDIT_INTERVAL_S: Final = 30.0
_BACKOFF: Final = Backoff(first_s=0.1, most_s=5.0)


@dataclass(frozen=True, slots=True)
class CopyNode:
    """A node that is in sync with the master of its group."""

    node: str
    address: Address
    rack: str = ""


@dataclass(frozen=True, slots=True)
class Master:
    """The node that leads a group: its address, its epoch and its incarnation.

    ``copies`` are the other nodes in sync, once somebody called ``RouteWatcher.read_copies``.
    """

    address: Address
    epoch: int
    node: str = ""
    incarnation: int = 0
    rack: str = ""
    copies: tuple[CopyNode, ...] = ()


@dataclass(frozen=True, slots=True)
class Routes:
    """A snapshot: the tracked topics and the masters of all groups that hold their partitions.

    ``version`` rises with every change of the snapshot.
    """

    topics: Mapping[str, TopicView] = field(default_factory=dict)
    masters: Mapping[str, Master] = field(default_factory=dict)
    version: int = 0

    def topic(self, name: str) -> TopicView:
        """Return a topic's id, settings and partitions.

        Raises:
            UnknownTopic: It does not exist, or is not tracked.
        """
        view = self.topics.get(name)
        if view is None:
            raise UnknownTopic(
                f"there is no topic {name!r}; create it: `vq topic create {name} --partitions N`"
            )
        return view

    def partitions(self, topic: str) -> tuple[PartitionPlacement, ...]:
        """Return the placement of all partitions, in order.

        Raises:
            UnknownTopic: As for ``topic``.
        """
        return self.topic(topic).partitions

    def placement(self, partition: TopicPartition) -> PartitionPlacement:
        """Return the placement of one partition.

        Raises:
            UnknownTopic: As for ``topic``.
            UnknownPartition: The topic has fewer partitions.
        """
        placements = self.topic(partition.topic).partitions
        if not 0 <= partition.partition < len(placements):
            raise UnknownPartition(
                f"topic {partition.topic!r} has partitions 0 to {len(placements) - 1}, "
                f"not {partition.partition}"
            )
        return placements[partition.partition]

    def rack_of(self, partition: TopicPartition) -> str:
        """Return where the master runs that takes the partition's messages; "": not known.

        Raises:
            UnknownTopic, UnknownPartition: As for ``placement``.
        """
        spans = self.placement(partition).spans
        master = self.masters.get(spans[-1].group) if spans else None
        return "" if master is None else master.rack

    def master(self, group: str) -> tuple[Address, int] | None:
        """Return the address and epoch of the group's master; None while it has none."""
        found = self.masters.get(group)
        return (found.address, found.epoch) if found is not None else None


class RouteWatcher:
    """Renews ``snapshot`` for the tracked topics.

    Args:
        coordinator: A started coordinator.
        audit_s: Everything is read again this often, because a watch may be lost.

    Attributes:
        snapshot: The present one; only this object sets it.
    """

    def __init__(self, coordinator: Coordinator, *, audit_s: float = AUDIT_INTERVAL_S) -> None:
        self._coordinator = coordinator
        self.snapshot = Routes()
        self._keeper = Keeper(
            coordinator, self._look, what="routes", audit_s=audit_s, backoff=_BACKOFF
        )
        self._topics: Mirror[TopicView | UnknownTopic] = Mirror(
            coordinator,
            TOPICS,
            self._read_topic,
            listed=False,
            on_hint=self._keeper.wake,
            on_value=self._topic_changed,
        )
        self._groups = Mirror(
            coordinator,
            BROKERS,
            self._read_master,
            listed=False,
            on_hint=self._keeper.wake,
            on_value=self._master_changed,
        )
        self._is_behind = False  # sync with ZooKeeper's leader before anything is read
        self._with_copies = False
        self._callbacks: list[Callable[[Routes], None]] = []
        self._remove_listener: Callable[[], None] | None = None
        self._closed = False

    def on_change(self, callback: Callable[[Routes], None]) -> Callable[[], None]:
        """Call ``callback`` on the loop with each new snapshot; return a function to remove it."""
        self._callbacks.append(callback)

        def remove() -> None:
            with contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

        return remove

    async def track(self, topic: str) -> tuple[PartitionPlacement, ...]:
        """Track a topic from now on; return its partitions.

        A topic that does not exist is tracked, too: it appears in the snapshot once it is created.

        Raises:
            UnknownTopic: It does not exist now.
        """
        self._start()
        if not isinstance(self._topics.values.get(topic), TopicView):
            view = await self._read(topic)
            await gather_all(
                self._groups.read(each)
                for each in sorted(_groups_of(view) - self._groups.values.keys())
            )
        return self.snapshot.partitions(topic)

    async def refresh(self, topic: str) -> tuple[PartitionPlacement, ...]:
        """Sync with ZooKeeper's leader, then read a topic and the masters of its groups again.

        Raises:
            UnknownTopic: It does not exist.
        """
        self._start()
        await self._coordinator.sync()
        groups = sorted(_groups_of(await self._read(topic)))
        masters = await gather_all(self._groups.read(each) for each in groups)
        for group, master in zip(groups, masters, strict=True):
            self._publish_master(group, master)  # after a sync also in the place of a hint
        return self.snapshot.partitions(topic)

    def read_copies(self) -> None:
        """Read which nodes are in sync with each master, too, from now on.

        That costs one more read for each of them. The state of the group tells when they change.
        """
        if not self._with_copies:
            self._with_copies = True
            self._groups.doubt()
            if self._keeper.started:
                self._keeper.wake()

    def hint(self, group: str, master: Master) -> None:
        """Use a master that a broker of its group named, until ZooKeeper says as much.

        ``master.incarnation`` is 0: it is not known. An answer of ZooKeeper that has an older epoch
        is taken only after a sync with its leader.
        """
        known = self.snapshot.masters.get(group)
        if known is not None and known.epoch < master.epoch:
            self._publish(self.snapshot.topics, {**self.snapshot.masters, group: master})

    async def close(self) -> None:
        """Stop tracking. The last snapshot stays readable."""
        self._closed = True
        if self._remove_listener is not None:
            self._remove_listener()
        await self._keeper.stop()

    # Tracking -----------------------------------------------------------------------------------
    def _start(self) -> None:
        if self._closed:
            raise InvalidState("the route watcher is closed")
        if not self._keeper.started:
            self._remove_listener = self._coordinator.add_listener(self._on_session)
            self._keeper.start()

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._doubt()
            self._keeper.wake()

    def _doubt(self) -> None:
        self._topics.doubt()
        self._groups.doubt()
        self._is_behind = True

    async def _look(self, everything: bool) -> None:
        """Read topics and groups that may have changed; see ``Keeper``."""
        if everything:
            self._doubt()
        if self._is_behind:
            self._is_behind = False
            await self._coordinator.sync()
        await self._topics.refresh()
        self._groups.keep(set().union(*map(_groups_of, self.snapshot.topics.values())))
        await self._groups.refresh()

    # Reading ------------------------------------------------------------------------------------
    async def _read(self, topic: str) -> TopicView:
        found = await self._topics.read(topic)
        if isinstance(found, UnknownTopic):
            raise found
        assert found is not None
        return found

    async def _read_topic(self, name: str, watch: Watch) -> TopicView | UnknownTopic:
        known = self.snapshot.topics.get(name)
        try:
            return await read_topic(self._coordinator, name, watch=watch, known=known)
        except UnknownTopic as error:
            return error

    def _topic_changed(self, name: str, found: TopicView | UnknownTopic | None) -> None:
        topics = dict(self.snapshot.topics)
        topics.pop(name, None)
        if isinstance(found, TopicView):
            topics[name] = found
            for group in _groups_of(found):
                self._groups.add(group)
        self._publish(topics, self.snapshot.masters)

    def _master_changed(self, group: str, master: Master | None) -> None:
        known = self.snapshot.masters.get(group)
        is_hint = known is not None and not known.incarnation
        if master and known and is_hint and master.epoch < known.epoch:
            return  # of a server that lags behind
        self._publish_master(group, master)

    async def _read_master(self, group: str, watch: Watch) -> Master | None:
        path = GroupState.path(group)
        try:
            state = GroupState.decode(path, (await self._coordinator.get(path, watch=watch)).data)
        except NoNode:
            await self._coordinator.exists(path, watch=watch)
            return None
        node_path = Registration.path(group, state.master)
        try:
            node = await self._coordinator.get(node_path, watch=watch)
        except NoNode:
            return None  # the next claim of a master changes ``state``, and the watch fires
        if node.stat.czxid != state.incarnations.get(state.master):
            return None  # registered again, not yet master; the watch on ``state`` fires later
        value = Registration.decode(node_path, node.data)
        copies = await self._read_copies(group, state) if self._with_copies else ()
        return Master(
            Address(value.host, value.port),
            state.epoch,
            state.master,
            node.stat.czxid,
            value.rack,
            copies,
        )

    async def _read_copies(self, group: str, state: GroupState) -> tuple[CopyNode, ...]:
        """Read the nodes in sync that are registered as the record says."""
        copies = []
        for name in state.insync:
            path = Registration.path(group, name)
            if name == state.master:
                continue
            with contextlib.suppress(NoNode):
                found = await self._coordinator.get(path)
                if found.stat.czxid == state.incarnations.get(name):
                    value = Registration.decode(path, found.data)
                    copies.append(CopyNode(name, Address(value.host, value.port), value.rack))
        return tuple(copies)

    def _publish_master(self, group: str, master: Master | None) -> None:
        masters = dict(self.snapshot.masters)
        masters.pop(group, None)
        if master is not None:
            masters[group] = master
        self._publish(self.snapshot.topics, masters)

    def _publish(self, topics: Mapping[str, TopicView], masters: Mapping[str, Master]) -> None:
        before = self.snapshot
        if topics == before.topics and masters == before.masters:
            return
        self.snapshot = Routes(
            MappingProxyType(dict(topics)), MappingProxyType(dict(masters)), before.version + 1
        )
        for callback in list(self._callbacks):
            try:
                callback(self.snapshot)
            except Exception:
                logger.exception("routes callback failed")


def _groups_of(view: TopicView) -> set[str]:
    """Return the groups that have partitions of a topic, or had them."""
    return {span.group for placement in view.partitions for span in placement.spans}
