"""Leadership of a broker group: a registered node claims it, or follows the node that leads.

``insync`` decides who may lead; this module does the compare-and-set on the group's ``state``, each
time with a higher epoch. ``registry`` registers the node; ``broker.replication.mastership`` stores
an epoch before the broker acts in it.
"""

import contextlib
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from vq.coordination.brokers.fitness import Fitness
from vq.coordination.brokers.insync import (
    Candidate,
    MastershipRefused,
    MayLackMessages,
    check_directory,
    elected,
    follows,
    goes_first,
    keeps_leading,
    lacks_messages,
    longest,
)
from vq.coordination.brokers.registry import (
    AUDIT_INTERVAL_S,
    BACKOFF,
    REGISTER_TIMEOUT_S,
    read_state,
    read_unclean,
    retried,
)
from vq.coordination.tree.coordinator import (
    BadVersion,
    Check,
    ConnectionLost,
    Coordinator,
    Create,
    Node,
    NodeExists,
    NoNode,
    SessionExpired,
    Set,
    WatchEvent,
)
from vq.coordination.tree.keeper import Keeper
from vq.coordination.tree.reading import children_or_none, read_together
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.brokers import BrokerGroup, GroupState, Registration
from vq.errors import CoordinationError, InvalidState
from vq.log_lines import get_logger
from vq.model import Address, check_name

logger = get_logger(__name__)

#: Reads of a group whose nodes change meanwhile, before an error is raised.
VIEW_TRIES_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Leading:
    """This process is registered as ``incarnation`` and leads its group with ``epoch``.

    Attributes:
        incarnation: Of this process.
        epoch: In which it leads.
        insync: The nodes of the in-sync set when it claimed the group, itself included.
    """

    incarnation: int
    epoch: int
    insync: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Following:
    """This process is registered as ``incarnation``, and another node leads the group.

    Attributes:
        incarnation: Of this process.
        epoch: In which the master leads.
        master: Its name.
        master_incarnation: Its registration; None: it is not registered now.
        address: Where it is; None: it is not registered now.
        waits: Why this node, which is in sync, does not lead although no other one does; "": it
            follows another one.
    """

    incarnation: int
    epoch: int
    master: str
    master_incarnation: int | None = None
    address: Address | None = None
    waits: str = ""


Standing = Leading | Following


@dataclass(frozen=True, slots=True)
class _View:
    """A group as it was read in one round trip.

    Attributes:
        state: Its record.
        version: Of that record's node.
        drained: The nodes that an operator drained.
        nodes: The registrations of the other nodes that the record names; None: not registered.
    """

    state: GroupState
    version: int
    drained: tuple[str, ...]
    nodes: Mapping[str, Node | None]

    def registered(self, group: str, name: str) -> tuple[Node, Registration] | None:
        """Return the registration of a node that the record names, None: there is none."""
        node = self.nodes.get(name)
        if node is None:
            return None
        return node, Registration.decode(Registration.path(group, name), node.data)


class Leadership:
    """The leadership of one group, which one node claims for each of its registrations.

    The owner calls ``registered`` when the node is registered; only then the node can lead.
    ``start`` claims the group, or finds whom to follow. After each new registration, and when what
    it follows changes, the task does so again, with back-off and for ever, and calls ``on_change``.
    ``stop`` ends the task and does not change the group's state.

    Args:
        coordinator: A started coordinator.
        group: The broker group.
        node: This process's name in it.
        directory: Identity of this process's data directory.
        accept_data_loss: Lead even if the group's state has another data directory for this node.
            The messages in that directory are then lost for the group.
        fitness: Of this node; after a change, call ``wake``.
        rng: For the back-off.
        on_change: Called on the loop after every claim, and after every change of what it
            follows. Must not block.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        group: str,
        node: str,
        directory: str = "",
        accept_data_loss: bool = False,
        fitness: Fitness | None = None,
        rng: random.Random | None = None,
        on_change: Callable[[Standing], None] | None = None,
    ) -> None:
        self._coordinator = coordinator
        self.group = check_name("group", group)
        self.node = check_name("node", node)
        self._path = Registration.path(group, node)
        self._directory = directory
        self._accept_data_loss = accept_data_loss
        self._fitness = fitness or Fitness()
        self._rng = rng or random.SystemRandom()
        self._on_change = on_change
        self._incarnation: int | None = None
        self._standing: Standing | None = None
        self._names: tuple[str, ...] = ()  # of the other nodes that the record named when last read
        self._keeper = Keeper(
            coordinator,
            self._look,
            what=f"leadership of {group}/{node}",
            audit_s=AUDIT_INTERVAL_S,
            backoff=BACKOFF,
            rng=self._rng,
        )

    def registered(self, incarnation: int | None) -> None:
        """See ``OnRegistration``."""
        self._incarnation = incarnation
        self._keeper.wake()

    def wake(self) -> None:
        """See that this node may lead now, or may not any more. Never blocks."""
        self._keeper.wake()

    async def check(self, *, timeout_s: float = REGISTER_TIMEOUT_S) -> None:
        """Check that this is the data directory with which the node was in sync.

        Raises:
            MastershipRefused: It is another one, so acknowledged messages would be missing.
            CoordinationError: ZooKeeper did not answer.
        """

        async def read() -> GroupState | None:
            return await read_state(self._coordinator, self.group)

        state = await retried(read, timeout_s, self._rng)
        if state is None:
            return

        async def registered() -> list[str]:
            return await children_or_none(self._coordinator, Registration.parent(self.group))

        check_directory(
            state,
            self._candidate(0),
            accept_data_loss=self._accept_data_loss,
            alive=await retried(registered, timeout_s, self._rng),
        )

    async def start(self, *, timeout_s: float = REGISTER_TIMEOUT_S) -> Standing:
        """Claim the group for the present registration, or follow; keep doing so until ``stop``.

        Raises:
            MastershipRefused: The messages are in another data directory.
            CoordinationError: ZooKeeper did not answer.
        """
        if self._keeper.started:
            raise InvalidState("the leadership was started before")
        standing = await retried(self._stand, timeout_s, self._rng)
        self._keeper.start()
        return standing

    async def stop(self) -> None:
        """Stop claiming the group."""
        await self._keeper.stop()

    async def _read(self) -> _View | None:
        """Read the group; None: it has no record. Any change of what was read wakes the task.

        This takes one round trip if the record names the nodes that it named before.
        """
        path, settings = GroupState.path(self.group), BrokerGroup.path(self.group)
        for _ in range(VIEW_TRIES_MAX):
            names = self._names
            nodes = [Registration.path(self.group, name) for name in names]
            record, group, *found = await read_together(
                self._coordinator,
                [path, settings, *nodes],
                watched=[path, *nodes],
                watch=self._hint,
            )
            if record is None:
                return None
            state = GroupState.decode(path, record.data)
            self._names = tuple(sorted({*state.insync, state.master} - {self.node}))
            if self._names == names:
                drained: tuple[str, ...] = ()
                if group is not None and group.data:
                    drained = BrokerGroup.decode(settings, group.data).drained
                known = dict(zip(names, found, strict=True))
                return _View(state, record.stat.version, drained, known)
        raise CoordinationError(
            f"the nodes of group {self.group!r} changed {VIEW_TRIES_MAX} times while they were read"
        )

    async def _stand(self, view: _View | None = None) -> Standing:
        """Claim the group for the present registration, or find whom to follow.

        ``view`` is what was read of the group a moment ago.
        """
        incarnation = self._incarnation
        if incarnation is None:
            raise CoordinationError(f"node {self.node!r} of group {self.group!r} is not registered")
        view = view or await self._read()
        standing: Standing | None = self._whom_to_follow(incarnation, view)
        if standing is None:
            try:
                state = await self.claim_mastership(incarnation, view)
                standing = Leading(incarnation, state.epoch, state.insync)
            except MastershipRefused as refused:
                standing = self._whom_to_follow(incarnation, await self._read())
                if standing is None and isinstance(refused, MayLackMessages):
                    standing = await self._wait(incarnation, str(refused))
                if standing is None:
                    raise
        if self._incarnation != incarnation:
            raise SessionExpired("the registration ended while the broker claimed its group")
        if standing != self._standing:
            self._standing = standing
            self._tell(standing)
        if isinstance(standing, Leading):
            self._fitness.is_in_sync()
        return standing

    def _tell(self, standing: Standing) -> None:
        if isinstance(standing, Leading):
            logger.info(
                "broker leads its group",
                path=self._path,
                incarnation=standing.incarnation,
                epoch=standing.epoch,
            )
        elif standing.waits:
            logger.warning(
                "broker does not lead its group, it waits for others",
                path=self._path,
                incarnation=standing.incarnation,
                epoch=standing.epoch,
                reason=standing.waits,
            )
        else:
            logger.info(
                "broker follows the master of its group",
                path=self._path,
                incarnation=standing.incarnation,
                epoch=standing.epoch,
                master=standing.master,
                address=standing.address,
            )
        if self._on_change is not None:
            self._on_change(standing)

    def _whom_to_follow(self, incarnation: int, view: _View | None) -> Following | None:
        """Return the master that leads instead of this node; None: claim the group."""
        if view is None or view.state.master == self.node:
            return None
        state = view.state
        if state.incarnations.get(self.node) == incarnation and self.node in state.insync:
            self._fitness.is_in_sync()
        following = Following(incarnation, state.epoch, state.master)
        if (registered := view.registered(self.group, state.master)) is not None:
            node, value = registered
            following = replace(
                following,
                master_incarnation=node.stat.czxid,
                address=Address(value.host, value.port),
            )
        if follows(state, self.node, master_is_alive=self._leads(view)):
            return following
        first = self._who_goes_first(view)
        if first:
            is_so = "has a full disk" if self._fitness.full else "is drained"
            why = f"node {self.node} {is_so}, and node {first} is to lead {self.group}"
            return replace(following, waits=why)
        return None

    def _leads(self, view: _View) -> bool:
        """Whether the master of the record leads, or may lead again."""
        registered = view.registered(self.group, view.state.master)
        if registered is None:
            return False
        node, value = registered
        return keeps_leading(
            view.state, node.stat.czxid, lost_power=value.lost_power, damaged=value.damaged
        )

    def _lacks(self, view: _View, name: str) -> bool:
        """Whether a node may lack messages; False: it is not registered."""
        registered = view.registered(self.group, name)
        if registered is None:
            return False
        node, value = registered
        return lacks_messages(
            view.state, name, node.stat.czxid, lost_power=value.lost_power, damaged=value.damaged
        )

    def _who_goes_first(self, view: _View) -> str:
        """Return the node that claims the group instead of this one: drained, or full; or ""."""
        state = view.state
        full = [self.node] if self._fitness.full else []
        able = []
        for name in sorted({*state.insync} - {self.node}):
            registered = view.registered(self.group, name)
            if registered is not None and not self._lacks(view, name):
                able.append(name)
                if registered[1].full:
                    full.append(name)
        return goes_first(state, self.node, drained=view.drained, full=full, able=able)

    async def _wait(self, incarnation: int, why: str) -> Following | None:
        """Return what a node that may lack messages does until one that has all leads.

        None: the record is gone.

        Raises:
            CoordinationError: There is no other node in sync any more.
        """
        view = await self._read()
        if view is None:
            return None
        state = view.state
        others = [each for each in state.insync if each != self.node]
        if not others:
            raise CoordinationError(f"the record of group {self.group!r} was changed meanwhile")
        master = state.master if state.master != self.node else others[0]
        return Following(incarnation, state.epoch, master, waits=why)

    def _hint(self, _: WatchEvent) -> None:
        self._keeper.wake()

    async def _look(self, _: bool) -> None:
        """Claim the group for a new registration, or look whom to follow; see ``Keeper``."""
        if self._incarnation is None:
            return
        view, standing = await self._read(), self._standing
        if isinstance(standing, Leading) and standing.incarnation == self._incarnation:
            if view is None:
                return  # the tree was lost: the broker goes on, and its topics tell
            if view.state.master == self.node:
                return
        await self._stand(view)

    async def claim_mastership(self, incarnation: int, view: _View | None = None) -> GroupState:
        """Become master of the group with a new epoch; return the record.

        ``view`` is what was read of the group a moment ago: the first try is made by it.

        Raises:
            MastershipRefused: Another live node leads, or this node is not in sync, or it was in
                sync with another data directory.
            SessionExpired: This node is not registered any more.
        """
        path = GroupState.path(self.group)
        own = Check(self._path, -1)  # of any version: what it says of damage changes
        candidate = self._candidate(incarnation)
        tried: GroupState | None = None
        unclean = False

        async def plan(failed: CoordinationError | None) -> Plan[GroupState]:
            nonlocal tried, unclean
            seen = view if failed is None and view is not None else await self._read()
            if seen is None:
                tried = elected(None, candidate, master_is_alive=False)
                return Plan([own, Create(path, tried.encode())], tried)
            state = seen.state
            if state == tried:
                # Only this incarnation writes itself as master, so this state shows that our claim
                # was applied and its answer lost.
                return Plan((), state)
            unclean = state.unclean
            others = {*state.insync} - {self.node}
            others_lack = all(self._lacks(seen, name) for name in others)
            tried = elected(
                state,
                candidate,
                master_is_alive=self._leads(seen),
                others_lack=others_lack,
                longer=await self._longer(seen) if others_lack else "",
                accept_data_loss=self._accept_data_loss,
            )
            return Plan([own, Set(path, tried.encode(), seen.version)], tried)

        try:
            state = await apply_plan(
                self._coordinator,
                plan,
                what=f"the state of group {self.group!r}",
                again=(BadVersion, NodeExists, ConnectionLost),
            )
        except NoNode as error:  # our own node
            raise SessionExpired(
                f"the registration of {self.group}/{self.node} ended before the group was claimed"
            ) from error
        if unclean:
            await self._tell_unclean(state)
        return state

    async def _tell_unclean(self, state: GroupState) -> None:
        """Log that this node leads by the decision of an operator."""
        with contextlib.suppress(CoordinationError):  # the record in the tree stays
            found = await read_unclean(self._coordinator, self.group)
            for last in found.elections[-1:]:
                logger.error(
                    "unclean election, acknowledged messages may be lost",
                    group=self.group,
                    node=self.node,
                    epoch=state.epoch,
                    decided_by=last.who,
                    epoch_before=last.epoch,
                    insync_before=", ".join(last.insync),
                    topics=", ".join(last.topics),
                )

    async def _longer(self, view: _View) -> str:
        """Return the node in sync with the longest logs if all may lack messages; "": this one."""
        ends: dict[str, int] = {}
        for name in sorted({*view.state.insync} - {self.node}):
            if (node := view.nodes.get(name)) is not None:
                ends |= _ends(view.state, name, node)
        if not ends:
            return ""
        ends |= _ends(view.state, self.node, await self._coordinator.get(self._path))
        return longest(ends, self.node)

    def _candidate(self, incarnation: int) -> Candidate:
        return Candidate(
            self.group,
            self.node,
            incarnation,
            self._directory,
            lost_power=self._fitness.lost_power,
            damaged=self._fitness.has_damage,
        )


def _ends(state: GroupState, name: str, node: Node) -> dict[str, int]:
    """Return where the logs of a node ended when it registered, unless it has caught up since."""
    value = Registration.decode(f"nodes/{name}", node.data)
    has_caught_up = state.incarnations.get(name) == node.stat.czxid
    return {} if has_caught_up or not value.log_end_bytes else {name: value.log_end_bytes}
