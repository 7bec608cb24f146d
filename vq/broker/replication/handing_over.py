"""The master of a group hands over to another node in sync, without a failed send.

    hold PUTs ─▶ the other has stored all ─▶ offer in the record ─▶ it claims ─▶ follow it
        └──── time is up, or no success ───────────┴─▶ withdraw the offer, lead on

PUTs that come meanwhile are held. Afterwards they are carried out, or refused with the address of
the new master. Everything is within ``timeout_s``: if the successor does not come, this node goes
on as master. ``coordination.brokers.insync`` and ``replica_rules`` decide; no step here is needed
for what was acknowledged to be safe, since the successor is in sync.
"""

import asyncio
import contextlib
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from vq.backoff import Backoff
from vq.broker.base.session import Session
from vq.broker.base.tasks import Tasks
from vq.broker.partition.channel import Channel, Channels
from vq.broker.partition.replica_rules import may_offer
from vq.broker.standing.role import Role
from vq.clock import Clock
from vq.coordination.brokers.insync import Candidate, ChangeRefused, offered, successor, withdrawn
from vq.coordination.tree.coordinator import Check, Coordinator, Node, NoNode, Set, WatchEvent
from vq.coordination.tree.reading import read_together
from vq.coordination.tree.round_trip import bound_s
from vq.coordination.tree.update import Plan, apply_plan
from vq.coordination.tree.values.brokers import BrokerGroup, GroupState, Registration
from vq.errors import CoordinationError, HandOverFailed, NotMaster, VqError
from vq.limits import is_valid_name
from vq.log_lines import get_logger
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.shown import shown

logger = get_logger(__name__)

#: A hand-over takes this many calls to ZooKeeper, one after the other, of both nodes: read, offer,
#: tell, read, claim, tell, read; with some to spare.
_CALLS: Final = 8
#: Longest time for which PUTs are held, however slow ZooKeeper is.
TIMEOUT_MOST_S: Final = 6.0
#: How often the copies, and the role of this node, are looked at while PUTs are held.
_LOOK_S: Final = 0.002
#: Pause before an offer that could not be withdrawn is withdrawn again, and before a drained master
#: that found nobody to hand over to looks again.
_RETRY_S: Final = 1.0
#: Pauses before a drained master tries again that held PUTs in vain: they are to flow most of the
#: time.
_HELD: Final = Backoff(first_s=10.0, most_s=60.0)
#: How often a master looks whether it is drained, also without a watch.
_AUDIT_S: Final = 30.0


class _Choice(NamedTuple):
    """Who takes over, and what was read when that was decided.

    Attributes:
        heir: The successor.
        incarnation: Its registration.
        registrations: The version of the node that tells each registration.
        record: The record of the group.
    """

    heir: str
    incarnation: int
    registrations: int
    record: Node


class HandOver:
    """Hands over the group that this node leads. Loop-bound.

    Args:
        role: What this node is in the group; while it hands over, PUTs are held.
        coordinator: A started coordinator.
        channels: Those of the node.
        clock: For durations in the log.
        tasks: For offers that could not be withdrawn.
        node: This node.
        timeout_s: Within this time, and what the calls to ZooKeeper take here, the successor leads,
            or this node goes on.
    """

    def __init__(
        self,
        role: Role,
        coordinator: Coordinator,
        channels: Channels,
        clock: Clock,
        *,
        tasks: Tasks,
        node: str,
        timeout_s: float,
    ) -> None:
        self._role = role
        self._coordinator = coordinator
        self._channels = channels
        self._clock = clock
        self._tasks = tasks
        self._node = node
        self._timeout_s = timeout_s
        self._drained = asyncio.Event()  # the group was changed, or the role of this node
        self._runs = asyncio.Lock()
        self._held_in_vain = 0  # times in a row

    def start(self, _epoch: int) -> None:
        """See ``mastership.Duty``."""
        self._drained.set()

    def stop(self) -> None:
        """See ``mastership.Duty``."""
        self._drained.set()

    async def handle(
        self, _session: Session, _request_id: RequestId, header: wire.HandOverRequest
    ) -> wire.HandOverResponse:
        """HAND_OVER: hand over, and answer with the new master."""
        wanted = header.node
        if wanted and not is_valid_name(wanted):
            raise HandOverFailed(f"{shown(wanted)} is not a valid name for a node")
        return wire.HandOverResponse(node=await self.run(wanted))

    async def keep_drained(self) -> None:
        """Hand over whenever this node leads and is drained, for ever."""
        told = ""
        while True:
            if self._drained.is_set():
                self._held_in_vain = 0
            self._drained.clear()
            pause_s = _AUDIT_S
            drained = False
            try:
                drained = bool(self._role.epoch) and await self._is_drained()
                if drained:
                    pause_s = _RETRY_S
                    await self.run()
                    told = ""
            except (CoordinationError, HandOverFailed, NotMaster) as error:
                held = self._held_in_vain
                pause_s = _HELD.pause_s(held) if held else _RETRY_S
                if told != str(error):
                    self._tell(error, drained=drained)
                told = str(error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._drained.wait()

    def _tell(self, error: VqError, *, drained: bool) -> None:
        group = self._role.group
        if drained:
            logger.warning("drained node still leads", group=group, node=self._node, why=error)
        else:
            logger.warning(
                "whether the node is drained cannot be read, trying again",
                group=group,
                node=self._node,
                why=error,
            )

    async def _is_drained(self) -> bool:
        """Whether an operator drained this node."""
        path = BrokerGroup.path(self._role.group)
        found = await self._coordinator.get(path, watch=self._on_group)
        drained = BrokerGroup.decode(path, found.data).drained if found.data else ()
        return self._node in drained

    def _on_group(self, _: WatchEvent) -> None:
        self._drained.set()

    async def run(
        self, wanted: str = "", *, resigns: bool = False, timeout_s: float | None = None
    ) -> str:
        """Hand over to ``wanted`` or to the node that has most; return its name.

        Args:
            wanted: The successor; "": any.
            resigns: This node stops: it leaves the in-sync set when the other one leads, or as soon
                as that one has flushed what counts.
            timeout_s: At most so long, instead of ``TIMEOUT_MOST_S``.

        Raises:
            NotMaster: This node does not lead.
            HandOverFailed: It leads on.
        """
        role = self._role
        async with self._runs:
            epoch, begin = role.epoch, self._clock.monotonic()
            if not epoch:
                raise NotMaster(f"node {self._node} does not lead group {role.group}")
            heir, held = "", False
            why: VqError | None = None
            most_s = self._most_s()
            if timeout_s is not None:
                most_s = min(most_s, timeout_s)
            try:
                try:
                    async with asyncio.timeout(most_s):
                        choice = await self._choose(epoch, wanted, resigns=resigns)
                        heir = choice.heir
                        role.hold()
                        held = True
                        await self._until_stored(heir)
                        leaves = resigns and self._may_leave()
                        await self._offer(epoch, choice, resigns=leaves)
                        await self._until_followed(epoch, heir)
                    if role.epoch:  # its session ended, and it claimed the group anew
                        why = HandOverFailed(
                            f"node {self._node} leads group {role.group} in epoch {role.epoch}, "
                            f"which it claimed while it was to hand over to node {heir}"
                        )
                except TimeoutError:
                    why = HandOverFailed(
                        f"node {heir or wanted or 'in sync'} did not take over group {role.group} "
                        f"within {most_s:g} s"
                    )
                except CoordinationError as error:
                    why = HandOverFailed(f"group {role.group} is not handed over: {error}")
                except Exception as error:  # the offer is withdrawn, and a stop goes on
                    logger.exception("hand-over failed", group=role.group)
                    why = HandOverFailed(
                        f"group {role.group} is not handed over: {type(error).__name__}: {error}"
                    )
                if why is not None and not (held and await self._has_ended(epoch)):
                    self._held_in_vain += held
                    raise why
            finally:
                if held:
                    role.let_go()
            logger.info(
                "group is handed over",
                group=role.group,
                successor=heir,
                took_ms=round((self._clock.monotonic() - begin) * 1000),
            )
            return heir

    def _most_s(self) -> float:
        """Within which time a hand-over ends, or an offer is withdrawn."""
        return bound_s(
            self._timeout_s,
            calls=_CALLS,
            round_trip_s=self._coordinator.round_trip_s,
            most_s=TIMEOUT_MOST_S,
        )

    async def _choose(self, epoch: int, wanted: str, *, resigns: bool) -> _Choice:
        """Return who is to take over."""
        group = self._role.group
        parent, path = Registration.parent(group), GroupState.path(group)
        # Whom else the record names cannot be in sync: this node alone has others join.
        names = sorted({self._node, *self._role.insync} | ({wanted} if wanted else set()))
        paths = [Registration.path(group, name) for name in names]
        registrations, record, settings, *found = await read_together(
            self._coordinator, [parent, path, BrokerGroup.path(group), *paths]
        )
        if record is None or registrations is None:
            raise ChangeRefused(f"group {group!r} has no record in ZooKeeper")
        state = GroupState.decode(path, record.data)
        nodes: dict[str, Registration] = {}
        registered: dict[str, int] = {}
        for name, each in zip(names, found, strict=True):
            if each is not None:
                nodes[name] = Registration.decode(Registration.path(group, name), each.data)
                registered[name] = each.stat.czxid
        # A node that an operator named is in sync with no registration until it leads.
        named = state.incarnations
        able = {node for node in state.insync if registered.get(node, 0) == named.get(node)}
        drained: Collection[str] = ()
        if settings is not None and settings.data:
            drained = BrokerGroup.decode(BrokerGroup.path(group), settings.data).drained
        damaged = {name for name, value in nodes.items() if value.damaged}
        full = {name for name, value in nodes.items() if value.full}
        if not wanted and not resigns:
            able -= {*drained, *damaged, *full}
        heir = successor(state, epoch, wanted, self._behind(able), drained, damaged, full)
        return _Choice(heir, registered[heir], registrations.stat.version, record)

    def _may_leave(self) -> bool:
        """Whether the successor needs no flush before this node leaves the in-sync set.

        With flush ``async``, it may have everything in its page cache alone.
        """
        return all(
            each.sync or not each.counts_flushed(leaving=1) for each in self._channels.values()
        )

    def _behind(self, nodes: Collection[str]) -> Mapping[str, int]:
        """Return how many bytes each of these nodes lacks."""
        behind = dict.fromkeys(sorted(nodes), 0)
        for channel in self._channels.values():
            for node in behind:
                behind[node] += _missing(channel, node)
        return behind

    async def _until_stored(self, heir: str) -> None:
        """Return when the successor has stored everything, and every PUT is answered.

        Those are not waited for whose flush hangs, or whose topic has too few nodes in sync: this
        node cannot tell what comes of them.
        """
        left = list(self._channels.values())
        while left := [each for each in left if _is_answering(each) or _missing(each, heir)]:
            await self._pause(heir)

    async def _offer(self, epoch: int, choice: _Choice, *, resigns: bool) -> None:
        """Name the successor in the record; return also if it leads already."""
        group, heir = self._role.group, choice.heir
        parent, node = Registration.parent(group), Registration.path(group, heir)
        path = GroupState.path(group)

        async def plan(failed: CoordinationError | None) -> Plan[None]:
            now: int | None = choice.incarnation
            version, found = choice.registrations, choice.record
            if failed is not None:  # something has changed since
                registrations, record, registered = await read_together(
                    self._coordinator, [parent, path, node]
                )
                if registrations is None or record is None:
                    raise NoNode(path if record is None else parent)
                version, found = registrations.stat.version, record
                now = None if registered is None else registered.stat.czxid
            state = GroupState.decode(path, found.data)
            if state.epoch > epoch and state.master == heir:
                return Plan((), None)  # the answer of an earlier try was lost
            wanted = offered(
                state,
                epoch,
                Candidate(group, heir, choice.incarnation),
                incarnation_now=now,
                resigns=resigns,
            )
            return Plan(
                [Check(parent, version), Set(path, wanted.encode(), found.stat.version)], None
            )

        await apply_plan(self._coordinator, plan, what=f"the successor of group {group!r}")

    async def _until_followed(self, epoch: int, heir: str = "") -> None:
        """Return when this node knows that it does not lead any more; see ``_pause``."""
        while self._role.epoch == epoch:
            await self._pause(heir)

    async def _pause(self, heir: str) -> None:
        """Pause until the next look at what the hand-over waits for.

        Raises:
            ChangeRefused: The successor, "": any, has left the in-sync set. It stops or is dead,
                and takes over no more.
        """
        if heir and heir not in self._role.insync:
            raise ChangeRefused(f"node {heir!r} is not in sync any more")
        await asyncio.sleep(_LOOK_S)

    async def _has_ended(self, epoch: int) -> bool:
        """Withdraw the offer, if there is one; return whether the successor leads nevertheless."""
        if self._role.epoch > epoch:
            return False  # no offer of an epoch before counts
        try:
            async with asyncio.timeout(self._most_s()):
                if not await self._withdraw(epoch):
                    await self._until_followed(epoch)
        except (TimeoutError, CoordinationError) as error:
            # What is acknowledged is on the other node, too, whether that one takes over or not.
            logger.warning("offer cannot be withdrawn, trying again", error=error)
            self._tasks.keep(lambda: self._withdraw_later(epoch), "withdraw an offer")
        return not self._role.epoch

    async def _withdraw(self, epoch: int) -> bool:
        """Withdraw the offer; return whether that was in time."""
        path = GroupState.path(self._role.group)

        async def plan(_: CoordinationError | None) -> Plan[None]:
            found = await self._coordinator.get(path)
            state = GroupState.decode(path, found.data)
            wanted = withdrawn(state, epoch)
            if wanted == state:
                return Plan((), None)
            return Plan([Set(path, wanted.encode(), found.stat.version)], None)

        try:
            await apply_plan(
                self._coordinator, plan, what=f"the successor of group {self._role.group!r}"
            )
        except ChangeRefused:
            return False
        return True

    async def _withdraw_later(self, epoch: int) -> None:
        while self._role.epoch == epoch:
            await asyncio.sleep(_RETRY_S)
            try:
                async with self._runs:
                    await self._withdraw(epoch)
                return
            except CoordinationError as error:
                logger.debug("offer cannot be withdrawn yet", error=error)


def _is_answering(channel: Channel) -> bool:
    """Whether PUTs wait for an answer that may come."""
    return bool(channel.acks.waiting) and not channel.place.silent and channel.has_enough


def _missing(channel: Channel, node: str) -> int:
    """Return how many bytes of a log a node has not stored; of one that failed, it is 0."""
    log = channel.log
    if log is None or not log.size_bytes or channel.failed:
        return 0
    known = channel.copies.positions.get(node)
    position = channel.start_offset if known is None else known.offset
    return 0 if may_offer(position, end_offset=log.end_offset) else log.end_offset - position
