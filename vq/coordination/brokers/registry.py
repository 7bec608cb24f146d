"""Broker processes in the tree: registration, load, and the list of groups.

A ``BrokerRegistration`` owns this process's ephemeral node and creates it again after a lost
session. It never overwrites a node: it deletes one that our own ended session left, and waits for
the end of any other one. The node's czxid is the process's incarnation. A registered node need not
lead a group; ``leadership`` decides that.
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from vq.backoff import Backoff
from vq.clock import Clock
from vq.coordination.brokers.fitness import Fitness
from vq.coordination.tree.coordinator import (
    BadVersion,
    ConnectionLost,
    Coordinator,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    SessionState,
    Set,
    Watch,
    WatchEvent,
)
from vq.coordination.tree.own_node import OwnNode, delete_own
from vq.coordination.tree.paths import BROKERS
from vq.coordination.tree.reading import children_or_none, gather_all
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.audit import UncleanElections
from vq.coordination.tree.values.brokers import (
    BrokerGroup,
    BrokerLoad,
    GroupState,
    OpenPartitions,
    Registration,
)
from vq.errors import CoordinationError, InvalidState
from vq.log_lines import get_logger
from vq.model import Address, NodeInfo, check_name

logger = get_logger(__name__)

T = TypeVar("T")

#: How long a start waits for the end of another session's node; longer than every session time-out
#: that ZooKeeper grants by default.
REGISTER_TIMEOUT_S: Final = 65.0
#: Without a watch, the registration is compared with the tree this often.
AUDIT_INTERVAL_S: Final = 30.0
#: Pauses between tries to register or lead; jitter spreads brokers that lost ZooKeeper together.
BACKOFF: Final = Backoff(first_s=0.2, most_s=5.0, jitter=0.2)
#: Longest pause before a failed call of the registration is made again.
PAUSE_S: Final = 0.1
_WHY_LOST: Final = {
    SessionState.LOST: "the session ended",
    SessionState.CLOSED: "the coordinator was closed",
}


class NameTaken(CoordinationError):
    """Another live process is registered with this group and node name."""

    retriable = False


#: Called on the loop with the incarnation after every registration, and with None when it is lost.
OnRegistration = Callable[[int | None], None]


class BrokerRegistration(OwnNode[int]):
    """This broker process's node in the tree, renewed after a lost session.

    ``start`` registers; ``stop`` deletes the node. After a lost session (or if the node is deleted)
    the task calls ``on_change(None)``, creates the node again, with back-off and for ever, and
    calls ``on_change`` with the new incarnation.

    Args:
        coordinator: A started coordinator.
        clock: For ``started``.
        group: The broker group.
        node: This process's name in it.
        address: The address for clients.
        directory: Identity of the data directory whose lock this process holds. A node of an
            earlier process with the same directory is certainly dead, so it is deleted at once.
        pool: The pool of the group; None does not change the pool in the tree.
        labels: The labels of the group; empty ones do not change those in the tree.
        pid: Of the process; 0: not known.
        rack: Where its machine is; "": not told.
        fitness: Of this node, which the registration tells; after a change, call ``wake``.
        rng: For the nonce and the back-off.
        on_change: See above. Must not block.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        *,
        group: str,
        node: str,
        address: Address,
        metrics_port: int = 0,
        version: str = "",
        directory: str = "",
        pool: str | None = None,
        labels: Mapping[str, str] | None = None,
        pid: int = 0,
        rack: str = "",
        fitness: Fitness | None = None,
        rng: random.Random | None = None,
        on_change: OnRegistration | None = None,
    ) -> None:
        self._rng = rng or random.SystemRandom()
        super().__init__(
            coordinator,
            what=f"registration of {group}/{node}",
            audit_s=AUDIT_INTERVAL_S,
            backoff=BACKOFF,
            rng=self._rng,
        )
        self.group = check_name("group", group)
        self.node = check_name("node", node)
        self._path = Registration.path(group, node)
        self._pool = pool
        self._labels = dict(labels or {})
        self._value = Registration(
            host=address.host,
            port=address.port,
            metrics_port=metrics_port,
            started_ms=clock.wall_ms(),
            version=version,
            nonce=f"{self._rng.getrandbits(64):016x}",
            directory=directory,
            pid=pid,
            rack=rack,
        )
        self._fitness = fitness or Fitness()
        self._on_change = on_change

    @property
    def incarnation(self) -> int | None:
        """The incarnation of the present registration, None while there is none."""
        return self._held

    async def start(self, *, timeout_s: float = REGISTER_TIMEOUT_S) -> int:
        """Register, and keep the node until ``stop``; return its incarnation.

        Raises:
            NameTaken: Another process has the name for longer than ``timeout_s``.
            CoordinationError: ZooKeeper did not answer.
        """
        if self._keeper.started:
            raise InvalidState("the registration was started before")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s

        async def register() -> int:
            return await self._register_and_watch(deadline - loop.time())

        try:
            incarnation = await retried(register, timeout_s, self._rng)
        except CoordinationError:
            await self._return(None)
            raise
        self._begin(incarnation)
        return incarnation

    async def renew(self) -> None:
        """Replace the node by a new one, with a new incarnation.

        What others know of this process by the last one does not count any more: no change of the
        in-sync set that names it is made from here on.

        Raises:
            CoordinationError: The node may be replaced or not.
        """
        found = await self._coordinator.get(self._path)
        if not self._is_own(found):
            raise CoordinationError(f"{self._path} does not belong to this process now")
        await self._coordinator.multi(
            [Delete(self._path, found.stat.version), *self._creation()],
        )
        self.wake()

    async def publish_load(self, load: BrokerLoad) -> None:
        """Write this process's load into an ephemeral node of its own.

        Only a registered process may call it: a node that belongs to another session is replaced.

        Raises:
            CoordinationError: It may or may not be written.
        """
        path, data = BrokerLoad.path(self.group, self.node), load.encode()
        with contextlib.suppress(NoNode):
            stat = await self._coordinator.set(path, data)
            if stat.ephemeral_owner == self._coordinator.session_id:
                return
            # A process that was here before left it; it ends with that process's session.
            await self._coordinator.delete(path, version=stat.version)
        await self._coordinator.create(path, data, ephemeral=True, parents=True)

    # Registering --------------------------------------------------------------------------------
    async def register(self, *, timeout_s: float = REGISTER_TIMEOUT_S) -> NodeInfo:
        """Create this process's node; return it with its incarnation.

        Raises:
            NameTaken: Another process's node still exists after ``timeout_s``.
            CoordinationError: ZooKeeper did not answer.
        """
        await ensure_group(self._coordinator, self.group, pool=self._pool, labels=self._labels)
        holder = ""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    gone = asyncio.Event()
                    found = await self._create_or_find(gone)
                    if found is not None and self._is_own(found):
                        return self._info(found)
                    if found is not None:
                        value = Registration.decode(self._path, found.data)
                        holder = f"{value.host}:{value.port}"
                        if await self._delete_if_dead(found, value):
                            continue
                        logger.info(
                            "waiting for another registration to end",
                            path=self._path,
                            holder=holder,
                        )
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(AUDIT_INTERVAL_S):
                                await gone.wait()
        except TimeoutError:
            if not holder:
                raise CoordinationError(
                    f"node {self.node!r} of group {self.group!r} could not be registered within "
                    f"{timeout_s:g} s: ZooKeeper did not answer; the broker tries again"
                ) from None
            raise NameTaken(
                f"node {self.node!r} of group {self.group!r} is registered by {holder}, which is "
                f"still alive after {timeout_s:g} s; stop it or give this node another name, and "
                "an empty data directory if this one is a copy"
            ) from None

    async def _create_or_find(self, gone: asyncio.Event) -> Node | None:
        """Create the node; return it or the one that has its name; None: try again."""

        def wake(_: WatchEvent) -> None:
            gone.set()

        parent = Registration.parent(self.group)
        try:
            await self._coordinator.multi(self._creation())
        except NodeExists:
            pass
        except NoNode:
            with contextlib.suppress(NodeExists, ConnectionLost, SessionExpired):
                await self._coordinator.create(parent, parents=True)
            return None
        except (ConnectionLost, SessionExpired):
            await asyncio.sleep(self._rng.uniform(0, PAUSE_S))
        try:
            return await self._coordinator.get(self._path, watch=wake)
        except (NoNode, ConnectionLost, SessionExpired):
            return None

    def _creation(self) -> list[Operation]:
        """Return what makes the node.

        One that is created again has version 0 again. The parent's version tells each registration,
        so that a change of the in-sync set can be refused after one.
        """
        fitness = self._fitness
        lost_power = fitness.lost_power
        value = replace(
            self._value,
            lost_power=lost_power,
            damaged=fitness.damaged,
            full=fitness.full,
            log_end_bytes=fitness.log_end_bytes() if lost_power else 0,
        )
        return [
            Set(Registration.parent(self.group), b""),
            Create(self._path, value.encode(), ephemeral=True),
        ]

    def _is_own(self, found: Node) -> bool:
        value = Registration.decode(self._path, found.data)
        return (
            found.stat.ephemeral_owner == self._coordinator.session_id != 0
            and value.nonce == self._value.nonce
        )

    async def _delete_if_dead(self, found: Node, value: Registration) -> bool:
        """Delete a node whose process or session is certainly dead; return whether it is."""
        ours = value.nonce == self._value.nonce  # left by our own ended session
        directory = bool(value.directory) and value.directory == self._value.directory
        if not ours and not directory:
            return False
        if not ours and self._is_of_a_later_process(value):
            logger.error(
                "another process runs with a copy of this data directory, waiting until it ends",
                path=self._path,
                holder=f"{value.host}:{value.port}",
                pid=value.pid,
            )
            return False
        logger.info("deleting a node of a dead process or session", path=self._path)
        with contextlib.suppress(NoNode, BadVersion, ConnectionLost, SessionExpired):
            await self._coordinator.delete(self._path, version=found.stat.version)
        return True

    def _is_of_a_later_process(self, value: Registration) -> bool:
        """Whether a node with the identity of our directory is of a process that came after us.

        We hold the directory's lock since we started, so that process has a copy of it. Without an
        order both would take the name from each other for ever.
        """
        if not self._keeper.started:
            return False
        own = self._value
        return (value.started_ms, value.nonce) > (own.started_ms, own.nonce)

    def _info(self, found: Node) -> NodeInfo:
        return NodeInfo(
            group=self.group,
            node=self.node,
            address=Address(self._value.host, self._value.port),
            incarnation=found.stat.czxid,
            started_ms=self._value.started_ms,
            version=self._value.version,
        )

    # Keeping ------------------------------------------------------------------------------------
    async def _register_and_watch(self, timeout_s: float) -> int:
        info = await self.register(timeout_s=timeout_s)
        session = self._coordinator.session_id
        stat = await self._coordinator.exists(self._path, watch=self._hint)
        if self._coordinator.session_id != session:
            raise SessionExpired("the session ended while the broker registered")
        if stat is None or stat.czxid != info.incarnation:
            raise CoordinationError(f"{self._path} was deleted while the broker registered")
        return info.incarnation

    async def _take(self) -> int:
        return await self._register_and_watch(REGISTER_TIMEOUT_S)

    async def _give_back(self, _: int | None) -> None:
        await delete_own(self._coordinator, self._path, self._is_own)

    def _changed(self, incarnation: int | None) -> None:
        if incarnation is None:
            why = _WHY_LOST.get(self._coordinator.state, "its node is gone")
            logger.warning("registration lost", path=self._path, reason=why)
        else:
            logger.info("broker registered", path=self._path, incarnation=incarnation)
        if self._on_change is not None:
            self._on_change(incarnation)

    async def _is_held(self, incarnation: int) -> bool:
        """Return whether the registration is there, and have it tell damage and a full disk."""
        try:
            found = await self._coordinator.get(self._path, watch=self._hint)
        except NoNode:
            return False
        stat = found.stat
        if (stat.czxid, stat.ephemeral_owner) != (incarnation, self._coordinator.session_id):
            return False
        value = Registration.decode(self._path, found.data)
        changed = replace(value, damaged=self._fitness.damaged, full=self._fitness.full)
        if changed != value:
            with contextlib.suppress(NoNode, BadVersion):  # the watch tells of that
                await self._coordinator.set(self._path, changed.encode(), version=stat.version)
                logger.info(
                    "registration is changed",
                    path=self._path,
                    damaged=changed.damaged,
                    full=changed.full,
                )
        return True


async def retried(call: Callable[[], Awaitable[T]], timeout_s: float, rng: random.Random) -> T:
    """Call, and call again after retriable errors, within the time-out.

    Raises:
        CoordinationError: Of the last call.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            return await call()
        except CoordinationError as error:
            if not error.retriable or loop.time() >= deadline:
                raise
            await asyncio.sleep(rng.uniform(0, PAUSE_S))


async def ensure_group(
    coordinator: Coordinator,
    group: str,
    *,
    pool: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Create the group's node if it is missing; set its pool and labels if they are given.

    Raises:
        CoordinationError: The node was changed or deleted again at every try.
    """
    path = BrokerGroup.path(check_name("group", group))

    async def plan(_: CoordinationError | None) -> Plan[None]:
        try:
            node = await coordinator.get(path)
        except NoNode:
            value = BrokerGroup(pool=pool, labels=dict(labels or {}))
            with contextlib.suppress(NodeExists):
                await coordinator.create(BROKERS)
            # No topic can be on a group that did not exist, so nothing is open on it.
            count = Create(OpenPartitions.path(group), OpenPartitions(open=0).encode())
            return Plan([Create(path, value.encode()), count], None)
        value = _group_value(path, node.data)
        changed = replace(
            value,
            pool=value.pool if pool is None else pool,
            labels=dict(labels or value.labels),
        )
        if changed == value:
            return Plan((), None)
        return Plan([Set(path, changed.encode(), node.stat.version)], None)

    await apply_plan(coordinator, plan, what=f"the node of group {group!r}")


async def change_group(
    coordinator: Coordinator, group: str, change: Callable[[BrokerGroup], BrokerGroup]
) -> None:
    """Change the operator's settings of a group; ``change`` may be called again.

    Raises:
        NoNode: There is no such group.
        CoordinationError: See ``update``.
    """
    path = BrokerGroup.path(group)

    async def plan(_: CoordinationError | None) -> Plan[None]:
        node = await coordinator.get(path)
        before = _group_value(path, node.data)
        after = change(before)
        if after == before:
            return Plan((), None)
        return Plan([Set(path, after.encode(), node.stat.version)], None)

    await apply_plan(
        coordinator,
        plan,
        what=f"the node of group {group!r}",
        again=(BadVersion, ConnectionLost),
    )


async def group_names(coordinator: Coordinator) -> list[str]:
    """Return the sorted names of all broker groups."""
    return await children_or_none(coordinator, BROKERS)


async def read_group(coordinator: Coordinator, group: str) -> BrokerGroup | None:
    """Return the operator's settings of a group; None if there is no such group."""
    path = BrokerGroup.path(group)
    try:
        return _group_value(path, (await coordinator.get(path)).data)
    except NoNode:
        return None


async def nodes(
    coordinator: Coordinator, group: str, *, watch: Watch | None = None
) -> list[NodeInfo]:
    """Return the registered nodes of a group, sorted by name.

    ``watch`` fires when one comes or goes.
    """
    names = await children_or_none(coordinator, Registration.parent(group), watch=watch)
    found = await gather_all(read_node(coordinator, group, name) for name in names)
    return [info for info in found if info is not None]


async def all_nodes(
    coordinator: Coordinator, groups: Sequence[str] | None = None
) -> list[NodeInfo]:
    """Return the registered nodes of groups, all of them sorted by name; sorted by node, too."""
    names = await children_or_none(coordinator, BROKERS) if groups is None else groups
    return [
        node
        for found in await gather_all(nodes(coordinator, name) for name in names)
        for node in found
    ]


async def read_node(coordinator: Coordinator, group: str, node: str) -> NodeInfo | None:
    """Return a registered node, None if it is not registered."""
    path = Registration.path(group, node)
    try:
        found = await coordinator.get(path)
    except NoNode:
        return None
    value = Registration.decode(path, found.data)
    return NodeInfo(
        group=group,
        node=node,
        address=Address(value.host, value.port),
        incarnation=found.stat.czxid,
        started_ms=value.started_ms,
        version=value.version,
        pid=value.pid,
        rack=value.rack,
        metrics_port=value.metrics_port,
        damaged=value.damaged,
        full=value.full,
    )


async def read_state(
    coordinator: Coordinator, group: str, *, watch: Watch | None = None
) -> GroupState | None:
    """Return the group's state; None if no node has led it yet. ``watch`` fires when it changes."""
    path = GroupState.path(group)
    try:
        return GroupState.decode(path, (await coordinator.get(path, watch=watch)).data)
    except NoNode:
        return None


async def read_unclean(coordinator: Coordinator, group: str) -> UncleanElections:
    """Return the unclean elections of a group that are remembered."""
    path = UncleanElections.path(group)
    try:
        return UncleanElections.decode(path, (await coordinator.get(path)).data)
    except NoNode:
        return UncleanElections()


def _group_value(path: str, data: bytes) -> BrokerGroup:
    return BrokerGroup.decode(path, data) if data else BrokerGroup()
