"""One member of a group: joins, leaves, and computes in rounds which member owns what.

Every member computes the same plan from what it reads (``coordination.groups.rebalance``) and acts
on its own part only: it begins to give up what another member should own, and it claims what it
should own itself and is free (``share``). Only partitions that move stop. A member waits for the
owner of a partition to release it.

One task does the rounds. Watches, sessions and timers only wake it; each round reads the tree. A
round waits for ZooKeeper and brokers, never for a listener: each partition that is given up or lost
has a task of its own (``hand_overs``), and a pause of delivery is only begun.

    SUSPENDED  nothing is given up; after the session time-out delivery pauses, since another member
               may own the partitions by then
    LOST       deliveries are drained; with the new session the member joins and claims anew
    CLOSED     deliveries are drained; nothing follows, and the consumer is told

The ``Permit`` of a process that stood still for longer than half its session time-out has lapsed:
delivery pauses until ownership is proved.
"""

import asyncio
import logging
import math
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.permit import Permit, PermitKeeper
from vq.client.consumer.group.hold_states import Event
from vq.client.consumer.group.holds import Holds
from vq.client.consumer.group.share import GroupConsumer, Share
from vq.client.departures import Departure
from vq.coordination.groups import groups
from vq.coordination.groups.claims import Claim
from vq.coordination.groups.group_mirror import Assigned, GroupMirror
from vq.coordination.groups.rebalance import assign
from vq.coordination.tree.coordinator import NodeExists, NotConnected, SessionExpired, SessionState
from vq.coordination.tree.session import end_task
from vq.coordination.tree.values.consumers import ConsumerGroup, Member
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    UnknownTopic,
    VqError,
)
from vq.log_lines import get_logger
from vq.message_filter import Filter
from vq.model import TopicPartition
from vq.tasks import begin_task

logger = get_logger(__name__)
#: Pauses before a round, or a hand-over at the end, that failed is tried again.
_AGAIN = Backoff(first_s=0.1, most_s=5.0, jitter=0.5)
#: Members that join at the same time cause one round instead of several.
_DEBOUNCE_S = 0.02
#: At the end: how long it is waited for that ZooKeeper deletes what is left.
_LEAVE_S = 5.0
#: At the end: how often a partition whose last commit did not get through is given up anew.
_LEAVE_TRIES = 3
#: How long a start waits for the session of an earlier member of its name, in session time-outs and
#: seconds: a server ends sessions up to one of its ticks late.
_NAME_SESSIONS = 2.0
_NAME_S = 5.0


@dataclass(frozen=True, slots=True)
class _Proof:
    """What is read after ``since`` proves what this session owns."""

    pauses: int
    session: int
    since: float


class Membership:
    """One member of one group. Loop-bound.

    Attributes:
        target_count: Partitions that it is to hold, as last computed.
        contract: What the group agreed on.
        is_paused: Delivery pauses, since ownership is in doubt.
        share: What it has in the tree.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        member: str,
        filters: Mapping[str, Filter],
        holds: Holds,
        consumer: GroupConsumer,
        permit: Permit,
    ) -> None:
        self.target_count = 0
        self.contract = ConsumerGroup()
        self.is_paused = False
        self._cluster = cluster
        self._coordinator = cluster.coordinator
        self._config = config
        self._group = config.group
        self._member = member
        self._filters = dict(filters)
        self._consumer = consumer
        self._permit = PermitKeeper(permit, cluster.coordinator, self._permit_lapsed)
        self._holds = holds
        self.share = Share(
            cluster, config.group, member, holds=holds, consumer=consumer, wake=self.wake
        )
        self._mirror = GroupMirror(self._coordinator, self._group, on_members=self.wake)
        self._audit_at = -math.inf
        self._nonce = f"{cluster.rng.getrandbits(64):016x}"
        self._wake = asyncio.Event()
        self._session = 0  # the session that the member node belongs to, 0: never joined
        self._pauses = 0  # so often delivery began to pause
        self._suspend_timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._removers: list[Callable[[], None]] = []

    # Life ---------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Join the group; partitions follow through ``GroupConsumer.claimed``.

        Waits for the end of the session of a killed member of the same name.

        Raises:
            InvalidArgument: The group's contract is another one.
            NodeExists: There is a member of this name, and its session did not end in time. Or an
                earlier one of this factory did not leave in time.
            CoordinationError: A call of ZooKeeper failed.
        """
        await self._ensure_contract()
        try:
            await self._join_when_free()
        except BaseException:
            await self._depart()  # others would wait for the share of a member that is not there
            raise
        self._removers = [
            self._coordinator.add_listener(self._on_session),
            self._cluster.on_change(self.wake),
        ]
        self._on_session(self._coordinator.state)
        self._permit.start()
        self._task = begin_task(self._run())

    async def close(self, timeout_s: float) -> None:
        """Give everything up in order and leave the group.

        A partition that is not drained and committed within ``timeout_s`` and a few tries is
        released all the same: its next owner gets again what was not committed.
        """
        for remove in self._removers:
            remove()
        self._removers = []
        self._cancel_timer()
        self._permit.stop()
        if self._task is not None:
            await end_task(self._task)
        try:
            async with asyncio.timeout(timeout_s):
                await self._give_up_for_good()
        except TimeoutError:
            self._log_left(f"no answer from ZooKeeper within {timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - others wait for what is left to release
            self._log_left(error)
        await self.share.hand_overs.cancel()
        await self._leave()

    def _log_left(self, why_uncommitted: object) -> None:
        """Log what the next owner gets again: whose listener runs, whose progress is not stored."""
        busy = [str(hold.partition) for hold in self._holds if hold.may(Event.DRAINED)]
        owing = [str(hold.partition) for hold in self._holds if hold.may(Event.COMMITTED)]
        if busy:
            logger.warning(
                "listeners did not return in time, leaving without a clean hand-over",
                group=self._group,
                member=self._member,
                partitions=",".join(busy),
            )
        if owing:
            logger.warning(
                "the last offsets are not committed, handled messages will be delivered again",
                group=self._group,
                member=self._member,
                partitions=",".join(owing),
                reason=why_uncommitted,
            )

    async def _give_up_for_good(self) -> None:
        for number in range(1, _LEAVE_TRIES + 1):
            try:
                await self.share.give_up_all()
                return
            except Exception as error:
                # The first has waited for longer than the session lives.
                is_over = isinstance(error, NotConnected | SessionExpired)
                if is_over or number == _LEAVE_TRIES:
                    raise
            await asyncio.sleep(_AGAIN.pause_s(number, self._cluster.rng))

    async def _leave(self) -> None:
        """Delete what is this member's in the tree, now or when ZooKeeper is back."""
        claims = self.share.leave()
        if self._session == 0:
            return
        self._session = 0
        await self._depart(claims)

    async def _depart(self, claims: Sequence[Claim] = ()) -> None:
        departures, session_id = self._cluster.departures, self._coordinator.session_id
        departures.begin(
            Departure(self._group, self._member, self._nonce, session_id, tuple(claims))
        )
        # With a lost session the nodes are gone; nobody need wait for the look in the next one.
        timeout_s = _LEAVE_S if session_id else 0.0
        if not await departures.wait(self._group, self._member, timeout_s) and session_id:
            logger.warning(
                "leaving the group ends when ZooKeeper is back",
                group=self._group,
                member=self._member,
            )

    def wake(self) -> None:
        """Look at the group again soon."""
        self._wake.set()

    def _on_session(self, state: SessionState) -> None:
        self._doubt()
        self._wake.set()
        self._cancel_timer()
        if state is SessionState.SUSPENDED:
            self._suspend_when_due()
        elif state is not SessionState.CONNECTED:
            self._permit.revoke()
        if state is SessionState.CLOSED:
            why = self._coordinator.why_closed
            self._consumer.ended(
                CoordinationError(
                    f"the session with ZooKeeper has ended for good ({why}), this consumer gets no "
                    "further messages; make a new factory"
                )
            )

    def _cancel_timer(self) -> None:
        if self._suspend_timer is not None:
            self._suspend_timer.cancel()
            self._suspend_timer = None

    def _permit_lapsed(self) -> None:
        self._pause("this process stood still, or had no answer from ZooKeeper, for too long")

    def _pause(self, why: str) -> None:
        """Deliver nothing until the tree proves what this member owns."""
        logger.warning(
            "delivery pauses until ownership is confirmed",
            group=self._group,
            member=self._member,
            reason=why,
        )
        self._permit.revoke()
        self._pauses += 1
        self.is_paused = True
        self._consumer.suspend()
        self._wake.set()

    def _suspend_when_due(self) -> None:
        """Pause when the session may have ended. A timer does it, since the task may wait for
        ZooKeeper."""
        left = (
            self._coordinator.last_reply_monotonic
            + self._coordinator.session_timeout_s
            - self._cluster.clock.monotonic()
        )
        if left > 0:
            loop = asyncio.get_running_loop()
            self._suspend_timer = loop.call_later(left, self._suspend_when_due)
        elif not self.is_paused:
            self._pause("ZooKeeper is away for longer than the session time-out")

    async def _ensure_contract(self) -> None:
        wanted = ConsumerGroup(start=str(self._config.start_position), topics=self._filters)
        self.contract = await groups.ensure_group(self._coordinator, self._group, wanted)

    async def _join(self) -> None:
        if self._session:  # the group may have been deleted since the last time
            await self._ensure_contract()
        value = Member(
            host=socket.gethostname(),
            pid=os.getpid(),
            topics=tuple(sorted(self._filters)),
            since_ms=self._cluster.clock.wall_ms(),
            nonce=self._nonce,
        )
        now = self._cluster.clock.monotonic()
        await groups.join_group(self._coordinator, self._group, self._member, value)
        # A group forgets a topic only while no member subscribes to it (``forgetting``): what was
        # forgotten between the two steps above comes back.
        await self._ensure_contract()
        self._session = self._coordinator.session_id
        if not self.is_paused:
            if any(hold.is_owned for hold in self._holds):  # all kept? The next round asks.
                self._pause("its member node was gone")
            else:
                self._permit.grant(now)

    async def _join_when_free(self) -> None:
        """Join once the session of an earlier member of this name has ended, if it does in time.

        An earlier one of this factory first deletes what it has. Later, that would delete owner
        nodes of this one: a release knows a claim of unknown outcome by name and session only.
        """
        bound_s = _NAME_SESSIONS * self._coordinator.session_timeout_s + _NAME_S
        if not await self._cluster.departures.wait(self._group, self._member, bound_s):
            raise NodeExists(
                Member.path(self._group, self._member),
                f"an earlier consumer {self._member!r} of group {self._group!r} in this factory "
                "has not left yet, since ZooKeeper does not answer; start again later",
            )
        try:
            await self._join()
            return
        except NodeExists as error:
            logger.warning(
                "member name is in use, waiting for its session to end",
                group=self._group,
                member=self._member,
                timeout_s=bound_s,
            )
            if not await groups.name_came_free(
                self._coordinator, self._group, self._member, bound_s
            ):
                raise NodeExists(
                    error.path,
                    f"member {self._member!r} of group {self._group!r} is there, and its session "
                    "goes on; give each member a name of its own, or leave the name empty",
                ) from None
        await self._join()

    # The one task ---------------------------------------------------------------------------------
    async def _run(self) -> None:
        failures, cause = 0, ""
        pause_s = self._config.audit_interval_s
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
                await asyncio.sleep(_DEBOUNCE_S)
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                pause_s = await self._round()
                if cause:
                    logger.warning(
                        "rebalance goes on",
                        group=self._group,
                        member=self._member,
                        failures=failures,
                    )
                failures, cause = 0, ""
            except VqError as error:
                logger.log(
                    logging.DEBUG if cause == str(error) else logging.WARNING,  # once per cause
                    "rebalance failed, trying again",
                    group=self._group,
                    member=self._member,
                    error=error,
                )
                failures, cause = failures + 1, str(error)
                pause_s = _AGAIN.pause_s(failures, self._cluster.rng)
            except Exception:
                logger.exception(
                    "rebalance failed, trying again", group=self._group, member=self._member
                )
                pause_s = _AGAIN.longest_s(self._cluster.rng)

    async def _round(self) -> float:
        """Do one step towards the plan; return the seconds until the next round."""
        state = self._coordinator.state
        self.share.drop_ended()
        if self._session != self._coordinator.session_id:
            self.is_paused = False  # what was in doubt is lost
        if state is not SessionState.CONNECTED:
            return self._config.audit_interval_s  # the session's next state wakes us
        self._maybe_audit()
        if self._session != self._coordinator.session_id:
            await self._join()  # what is owed stays: a late claim may be in the new session
        for topic in self._filters:  # takes long the first time; others may join meanwhile
            await self._partitions(topic)
        proof = await self._prove()
        present = await self._mirror.members()
        if self._member not in present:
            await self._join()
            self._wake.set()
            return self._config.audit_interval_s
        topics = {name: view.value.topics for name, view in present.items()}
        assigned = await self._mirror.assigned(
            {topic for each in topics.values() for topic in each}
        )
        await self.share.drop_lost(assigned)
        if not self._resume(proof):
            return self._config.audit_interval_s
        target = await self._target(topics, assigned)
        self.target_count = len(target)
        self.share.give_up(
            hold
            for hold in self._holds
            if hold.is_owned and not hold.is_leaving and hold.partition not in target
        )
        # Even where it is wanted again by now: what began to be drained stands still.
        self.share.resume_hand_overs()
        await self.share.claim_all(target, assigned)
        return max(_DEBOUNCE_S, self._audit_at - self._cluster.clock.monotonic())

    async def _prove(self) -> "_Proof | None":
        """While delivery pauses: have the reads that follow prove what is owned."""
        if not self.is_paused:
            return None
        proof = _Proof(self._pauses, self._coordinator.session_id, self._cluster.clock.monotonic())
        await self._coordinator.sync()
        self._doubt()
        return proof

    def _resume(self, proof: "_Proof | None") -> bool:
        """Go on after a pause if ``proof`` still proves ownership; False: it does not."""
        if not self.is_paused:
            return True
        if (
            proof is None
            or proof.pauses != self._pauses
            or proof.session != self._coordinator.session_id
            or self._coordinator.state is not SessionState.CONNECTED
        ):
            self._wake.set()
            return False
        self.is_paused = False
        self._permit.grant(proof.since)
        self._consumer.resume()
        return True

    def _maybe_audit(self) -> None:
        now = self._cluster.clock.monotonic()
        if now >= self._audit_at:
            self._audit_at = now + self._config.audit_interval_s
            self._mirror.audit()
            self.share.doubt()

    def _doubt(self) -> None:
        """Have everything read again: it may have changed without a hint."""
        self._mirror.doubt()
        self.share.doubt()

    async def _target(
        self, topics: Mapping[str, tuple[str, ...]], assigned: Mapping[TopicPartition, Assigned]
    ) -> set[TopicPartition]:
        """Return the partitions that should be this member's."""
        subscribed = sorted({topic for each in topics.values() for topic in each})
        partitions: list[TopicPartition] = []
        for topic in subscribed:
            partitions += await self._partitions(topic)
        current = {partition: each.member for partition, each in assigned.items()}
        members = {name: frozenset(each) for name, each in topics.items()}
        shares = assign(members, partitions, current)
        return {partition for partition, member in shares.items() if member == self._member}

    async def _partitions(self, topic: str) -> list[TopicPartition]:
        """Return the partitions of a topic; none where there is no such topic."""
        try:
            routes = await self._cluster.track(topic)
        except (UnknownTopic, InvalidArgument):
            return []
        return [TopicPartition(topic, each.partition) for each in routes.partitions(topic)]
