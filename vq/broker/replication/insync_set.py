"""The in-sync set of the group that this node leads: who joins it, and who leaves.

The master looks at all copies a few times a second. A copy that has everything joins; one that
falls behind, or is gone, leaves: at once if it is certainly dead, as its session has ended, or its
machine says that nobody listens there. ``coordination.brokers.insync`` decides what the record says
then, and the record is changed by compare-and-set, one change at a time. A node counts
(``Role.insync``) from the moment at which its joining is intended, and until the record is known
not to name it. Nobody joins while it is not known where a log of the master ends, or whether it has
one: it may have had what a copy lacks.

Under load, a copy of many partitions is hardly ever at the high watermarks of all of them at once.
So one that is nearly there is *awaited*: it counts, the high watermarks wait for it, and a moment
later it has all that is committed.

Without ZooKeeper nobody joins or leaves. Sends go on while all nodes in sync keep up; while one of
them is silent, nothing can be acknowledged, so nothing is taken (``Role.silent``).

Before fewer nodes are in sync than the ``min_insync`` of a topic, the master flushes what it has of
it: with flush ``async``, it lies in page caches, and the topic asks for so many of them.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from vq.broker.logs.partitions import Partitions
from vq.broker.partition.channel import Channel
from vq.broker.partition.replica_rules import may_join, may_shrink
from vq.broker.replication.catching_up import ARRIVAL_S, LAG_MAX_S, Pursuit
from vq.broker.replication.refusals import is_dead
from vq.broker.standing.role import Role
from vq.clock import Clock
from vq.coordination.brokers.insync import Candidate, ChangeRefused, joined, left
from vq.coordination.brokers.registry import read_node
from vq.coordination.tree.coordinator import (
    BadVersion,
    Check,
    ConnectionLost,
    Coordinator,
    NoNode,
    Operation,
    SessionState,
    Set,
)
from vq.coordination.tree.reading import read_latest
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.errors import CoordinationError
from vq.log_lines import get_logger
from vq.remoting.transport import Network

logger = get_logger(__name__)

#: How often the copies are looked at.
TICK_S: Final = 0.25
#: Of a node in sync that is behind for so long it is asked whether its session lives.
SILENT_S: Final = 2 * TICK_S
#: Sends wait at most so long for a node that is awaited and does not come.
AWAITED_MAX_S: Final = LAG_MAX_S
#: A removal waits so long for a flush; then it is looked again whether the node is to leave.
FLUSH_WAIT_S: Final = 1.0
#: How often is looked whether a flush has ended that a removal waits for.
_FLUSH_LOOK_S: Final = 0.002


class InSyncSet:
    """The in-sync set of one group, on the node that leads it. Loop-bound.

    Args:
        role: Is told who counts as in sync, and who is silent, while an epoch lasts.
        coordinator: A started coordinator.
        partitions: Those of the node.
        network: To ask whether the process that served at an address is certainly dead.
        clock: For lags.
        node: This node.
    """

    def __init__(
        self,
        role: Role,
        coordinator: Coordinator,
        partitions: Partitions,
        network: Network,
        clock: Clock,
        *,
        node: str,
    ) -> None:
        self._partitions = partitions
        self._network = network
        self._role = role
        self._coordinator = coordinator
        self._channels = partitions.channels
        self._clock = clock
        self._node = node
        self._epoch = 0
        self._agreed: frozenset[str] = frozenset()  # the other nodes that the record names,
        self._named: dict[str, int] = {}  # and the registrations with which we had them named
        self._members: dict[str, Pursuit[Channel]] = {}
        self._ends: dict[Channel, int] = {}  # of the logs, at the last look
        self._looked_at = clock.monotonic()
        self._asked: set[str] = set()  # ZooKeeper was asked to name them, and may have done so
        self._refused = ""  # why the last change was, as it was logged
        self._awaited: dict[str, float] = {}  # since when; it was not asked yet
        self._leaves = ""  # the node that is to leave, or may have left
        self._leave_asked = False  # ZooKeeper was asked to have it leave
        self._told_unflushed = False
        self._begun = asyncio.Event()

    def start(self, epoch: int) -> None:
        """See ``mastership.Duty``."""
        self._begin(epoch)

    def stop(self) -> None:
        """See ``mastership.Duty``."""
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self._epoch = epoch
        self._begun.set()  # the last master may be gone, and everything waits until it has left
        self._agreed = self._role.insync
        self._named = {}
        self._members = {}
        self._ends, self._looked_at = {}, self._clock.monotonic()
        self._asked = set()
        self._awaited = {}
        self._leave_is_over()
        if self._epoch:
            self._flush_what_counts()

    async def run(self) -> None:
        """Look at the copies, for ever."""
        cause = ""
        while True:
            paused_at = self._clock.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._begun.wait()
            self._begun.clear()
            if not self._epoch:
                continue
            late_s = self._clock.monotonic() - paused_at - TICK_S
            if late_s > TICK_S:  # this loop stood still: what copies sent is not read yet
                for member in self._members.values():
                    member.forgive(late_s)
            try:
                await self.look()
                cause = ""
            except CoordinationError as error:
                if cause != str(error):
                    logger.info("in-sync set cannot be changed, trying again", error=error)
                cause = str(error)
            except Exception:  # without this task, sends would wait for a lost node for ever
                logger.exception("looking at the copies failed, trying again")

    async def look(self) -> None:
        """Have at most one node leave, or else join.

        Raises:
            CoordinationError: ZooKeeper cannot be asked.
        """
        epoch = self._epoch
        channels = list(self._channels.values())
        copying = self._look_at_positions(channels)
        if self._coordinator.state is not SessionState.CONNECTED:
            self._look_without_zookeeper(channels)
            return
        self._role.silent = ""
        self._give_up_awaited(copying)  # however this look ends
        if leaves := self._leaves:
            # ZooKeeper may have agreed already: then this is not given up.
            gives_up = not self._leave_asked and await self.is_well(leaves, copying)
            if self._epoch != epoch:
                return
            if not gives_up:
                await self.leave(epoch, leaves)
                return
            self._leave_is_over()
            self._count()
        for node in sorted(self._role.insync - self._awaited.keys()):
            is_well = await self.is_well(node, copying)
            if self._epoch != epoch:
                return
            if not is_well:
                await self.leave(epoch, node)
                return
        # One that does not count yet is awaited first: while ZooKeeper is asked, messages could be
        # acknowledged that it lacks.
        for node in sorted(copying & self._role.insync):
            incarnation = self.ready(node, list(self._channels.values()))  # some may be new
            if (
                incarnation is not None
                and self._named.get(node) != incarnation
                and await self._join(epoch, node, incarnation)
            ):
                return
        self._await_near(channels, copying)

    def _look_at_positions(self, channels: Collection[Channel]) -> set[str]:
        """Look how far all nodes are; return those that copy."""
        now, ends = self._clock.monotonic(), _ends(channels)
        compared: dict[str, int] = {}  # partitions in which there is something
        for channel in channels:
            counts = 1 if channel in ends else 0
            for node in channel.copies.positions:
                compared[node] = compared.get(node, 0) + counts
        copying = set(compared)
        known, self._members = self._members, {}
        for node in sorted(copying | self._role.insync):
            member = known.get(node)
            if member is None:
                arrival_s = ARRIVAL_S if node in self._role.insync else 0.0
                member = Pursuit(now, self._ends, self._looked_at, arrival_s=arrival_s)
            member.look(now, ends, compared.get(node, 0), partial(_position, node))
            self._members[node] = member
        self._ends, self._looked_at = ends, now
        return copying

    def _look_without_zookeeper(self, channels: Collection[Channel]) -> None:
        """Nobody joins or leaves: see whether all nodes that count keep up."""
        if self._awaited:  # nobody can name them now, so nobody waits for them
            self._awaited.clear()
            self._count()
        role = self._role
        silent = [each for each in sorted(role.insync) if not self._keeps_up(each)]
        if silent and not role.silent:
            logger.warning(
                "node in sync is silent, and ZooKeeper does not answer: messages are refused until "
                "one of both is back",
                group=role.group,
                node=silent[0],
            )
        role.silent = silent[0] if silent else ""
        if silent and not role.holds():
            for channel in channels:
                channel.give_up_unconfirmed()

    def _give_up_awaited(self, copying: Collection[str]) -> None:
        """Have those count no more that were awaited and did not come."""
        now = self._clock.monotonic()
        for node, since in list(self._awaited.items()):
            if node not in copying or now - since > AWAITED_MAX_S:
                del self._awaited[node]
                self._count()

    def _await_near(self, channels: Collection[Channel], copying: Collection[str]) -> None:
        """Have nodes count that are nearly there."""
        coming = sorted(set(copying) - self._role.insync)
        if not coming:  # usual, and then no log is looked at
            return
        now = self._clock.monotonic()
        if not self._partitions.knows_all() or not all(each.tells_end for each in channels):
            return  # nobody may join
        for node in coming:
            if node in self._members and self._members[node].is_near():
                self._awaited[node] = now
                self._count()

    def _count(self) -> None:
        """Have those count whom the record may name, and those that are awaited."""
        named = self._agreed | self._asked
        self._role.counts(named | self._awaited.keys(), alone=not named)
        for channel in self._channels.values():
            channel.commit()

    # Decisions ----------------------------------------------------------------------------------
    async def is_well(self, node: str, copying: Collection[str]) -> bool:
        """Whether a node in sync keeps up, or may still come to it."""
        member = self._members.get(node)
        if member is None:  # the set was changed since the look began
            return True
        is_silent = member.stays_behind(self._looked_at, SILENT_S)
        if (node not in copying or is_silent) and await self._is_gone(node, copying):
            return False
        return self._keeps_up(node)

    def _keeps_up(self, node: str) -> bool:
        """Whether a node was at the ends of all logs, as they were at some look, not long ago.

        At the last look: what it sent while ZooKeeper was asked is not looked at yet.
        """
        member = self._members.get(node)  # None: the set was changed since the last look
        return member is None or not member.stays_behind(self._looked_at, LAG_MAX_S)

    async def _is_gone(self, node: str, copying: Collection[str]) -> bool:
        """Whether a node in sync is certainly no more what it was."""
        registered = await read_node(self._coordinator, self._role.group, node)
        if registered is None:
            return True
        if node in copying or not self._ends:  # where nothing is stored, nobody copies anything
            return False
        return await is_dead(self._network, registered.address, timeout_s=TICK_S)

    def ready(self, node: str, channels: Collection[Channel]) -> int | None:
        """Return the registration with which a node may join; None: it may not."""
        if not self._partitions.knows_all():
            return None
        incarnations: set[int] = set()
        for channel in channels:
            known = channel.copies.positions.get(node)
            if known is not None:
                incarnations.add(known.incarnation)
            if not channel.tells_end:
                return None
            # Also of a log that begins later and is empty: earlier ranges come before it.
            if not may_join(
                0 if known is None else known.offset,
                high_watermark=channel.high_watermark,
                epoch_start=channel.epoch_start,
            ):
                return None
        return incarnations.pop() if len(incarnations) == 1 else None

    # Changes ------------------------------------------------------------------------------------
    async def leave(self, epoch: int, node: str) -> None:
        def decide(state: GroupState) -> GroupState:
            self._leave_asked = True
            return left(state, epoch, node)

        role = self._role
        self._leaves, role.leaving = node, 1
        unflushed = await self._flush(epoch)
        if self._epoch != epoch:
            return
        if unflushed:
            if not self._told_unflushed:
                logger.warning(
                    "node is to leave the in-sync set, and stays until a flush here ends",
                    group=role.group,
                    node=node,
                    partitions=len(unflushed),
                    first=unflushed[0],
                )
            self._told_unflushed = True
            return
        state = await self.change(epoch, decide, [])
        if self._epoch != epoch:
            return
        self._leave_is_over()
        if state is None:
            self._count()
            return
        logger.warning("node is not in sync any more", group=role.group, node=node)
        self._agree(state)
        self._flush_what_counts()

    def _leave_is_over(self) -> None:
        """Note that the node which was to leave has left, or stays."""
        self._leaves, self._role.leaving = "", 0
        self._leave_asked = self._told_unflushed = False

    def _flush_what_counts(self) -> list[Channel]:
        """Begin to flush what is not, of topics of which this node counts what is flushed."""
        unflushed = []
        for channel in self._channels.values():
            if channel.counts_flushed():
                for each in (*channel.older, channel):
                    if each.log is not None and not _may_shrink(each, each.log.end_offset):
                        each.flush_now()
                        unflushed.append(each)
        return unflushed

    async def _flush(self, epoch: int) -> list[Channel]:
        """Have durable what may have been acknowledged of such topics; return what is not."""
        left = self._flush_what_counts()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_WAIT_S):
                while self._epoch == epoch and (left := [c for c in left if self._owes(c)]):  # noqa: ASYNC110
                    await asyncio.sleep(_FLUSH_LOOK_S)
        return left

    def _owes(self, channel: Channel) -> bool:
        """Whether a log has something that counts and is not flushed."""
        return not _may_shrink(channel, channel.epoch_start)

    async def _join(self, epoch: int, node: str, incarnation: int) -> bool:
        """Have the record name a node; False: it is not registered so, and nothing was asked."""
        role = self._role
        parent, path = Registration.parent(role.group), Registration.path(role.group, node)
        try:
            registered = await self._coordinator.get(parent)
            found = await self._coordinator.get(path)
        except NoNode:
            return self._epoch != epoch
        except CoordinationError:
            if self._awaited.pop(node, None) is not None:
                self._count()  # without ZooKeeper, nobody waits for it
            raise
        if self._epoch != epoch:
            return True
        if found.stat.czxid != incarnation:
            return False
        # Named with its directory: with another one, it would have nothing and could be elected.
        directory = Registration.decode(path, found.data).directory
        # From here on it counts: the record may name it before we know.
        asked_before = node in self._asked  # and the outcome is not known
        self._asked.add(node)
        self._awaited.pop(node, None)
        role.counts(role.insync | {node}, alone=False)

        def decide(state: GroupState) -> GroupState:
            candidate = Candidate(role.group, node, incarnation, directory)
            return joined(state, epoch, candidate, incarnation_now=incarnation)

        state = await self.change(epoch, decide, [Check(parent, registered.stat.version)])
        if self._epoch != epoch:
            return True
        if state is None:
            if not asked_before:
                self._asked.discard(node)
                self._count()
            return True
        logger.info("node is in sync", group=role.group, node=node, incarnation=incarnation)
        self._agree(state)
        return True

    async def change(
        self, epoch: int, decide: Callable[[GroupState], GroupState], checks: list[Operation]
    ) -> GroupState | None:
        """Change the record; return it as it is then, or None: it certainly was not changed.

        Raises:
            CoordinationError: It may have been changed.
        """
        path = GroupState.path(self._role.group)
        lost: CoordinationError | None = None  # the answer of an earlier try

        async def plan(failed: CoordinationError | None) -> Plan[GroupState]:
            nonlocal lost
            lost = lost or failed
            # A server that lags behind would show a set that is not the present one any more.
            found = await read_latest(self._coordinator, path)
            state = GroupState.decode(path, found.data)
            wanted = decide(state)
            if wanted == state:
                return Plan((), state)  # an earlier try was applied, and its answer lost
            return Plan([*checks, Set(path, wanted.encode(), found.stat.version)], wanted)

        try:
            return await apply_plan(
                self._coordinator,
                plan,
                what=f"the in-sync set of {self._role.group}",
                again=(ConnectionLost,),
            )
        except (ChangeRefused, BadVersion) as error:
            if lost is not None and isinstance(error, BadVersion):
                raise lost from error  # perhaps that try was applied
            if self._refused != str(error):  # asked again four times a second
                logger.info("in-sync set is not changed", group=self._role.group, error=error)
            self._refused = str(error)
            return None

    def _agree(self, state: GroupState) -> None:
        """Take the set that the record has."""
        self._agreed = frozenset(state.insync) - {self._node}
        self._named = {each: state.incarnations.get(each, 0) for each in self._agreed}
        self._asked.clear()
        self._awaited = {n: at for n, at in self._awaited.items() if n not in self._agreed}
        self._role.named = len(self._agreed) + 1
        self._count()


def _ends(channels: Collection[Channel]) -> dict[Channel, int]:
    """Return where the logs end in which there is something, and that can be copied."""
    return {
        channel: channel.log.end_offset
        for channel in channels
        if channel.log is not None
        and channel.log.size_bytes
        and channel.tells_end
        and not channel.failed
    }


def _may_shrink(channel: Channel, epoch_start: int) -> bool:
    """See ``replica_rules.may_shrink``; what can be flushed no more is not waited for.

    Without a log there is nothing on disk, or it is flushed and being changed.
    """
    log = channel.log
    return (
        log is None
        or not log.status.can_flush
        or may_shrink(
            log.flushing.synced_offset,
            high_watermark=channel.high_watermark,
            epoch_start=epoch_start,
        )
    )


def _position(node: str, channel: Channel) -> int:
    known = channel.copies.positions.get(node)
    return -1 if known is None else known.offset
