"""One member of a group: joins, leaves, and computes in rounds which member owns what.

Every member computes the same plan from what it reads (``coordination.groups.rebalance``) and acts
on its own part only: it begins to give up what another member should own, and it claims what it
should own itself and is free (``share``). Only partitions that move stop. A member waits for the
owner of a partition to release it.

One task does the rounds. Watches, sessions and timers only wake it. A round looks at the group and
plans if something may have changed (``settling`` says when); each round acts by the plan. A round
waits for ZooKeeper and brokers, never for a listener: each partition that is given up or lost has a
task of its own (``hand_overs``), and a pause of delivery is only begun.

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
from dataclasses import dataclass, field, replace

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.permit import Permit, PermitKeeper
from vq.client.consumer.group.group_consumer import GroupConsumer
from vq.client.consumer.group.holds import Holds
from vq.client.consumer.group.outside_offsets import MemberOffsets
from vq.client.consumer.group.settling import Settling
from vq.client.consumer.group.share import Share
from vq.client.consumer.group.targets import Targets
from vq.client.consumer.group.wanted import wanted_contract
from vq.client.departures import Departure
from vq.coordination.groups import groups
from vq.coordination.groups.claims import Assigned, Claim
from vq.coordination.groups.contract import MemberDiffers, merge
from vq.coordination.groups.group_mirror import GroupMirror
from vq.coordination.groups.groups import MemberView
from vq.coordination.tree.coordinator import NodeExists, NotConnected, SessionExpired, SessionState
from vq.coordination.tree.session import end_task
from vq.coordination.tree.values.consumers import ConsumerGroup, Member
from vq.coordination.tree.values.group_terms import GroupModel
from vq.errors import CoordinationError, InvalidState, NotAuthenticated, VqError
from vq.log_lines import get_logger
from vq.message_filter import ALL, Filter
from vq.model import TopicPartition
from vq.tasks import begin_task

logger = get_logger(__name__)
#: Pauses before a round, or a hand-over at the end, that failed is tried again.
AGAIN = Backoff(first_s=0.1, most_s=5.0, jitter=0.5)
#: What comes at the same time causes one round instead of several.
_DEBOUNCE_S = 0.02
#: At the end: how long it is waited for that ZooKeeper deletes what is left.
_LEAVE_S = 5.0
#: At the end because of other terms: how long listeners may take.
_PART_S = 30.0
#: At the end: how often a partition whose last commit did not get through is given up anew.
_LEAVE_TRIES = 3
#: How long a start waits for the session of an earlier member of its name, in session time-outs and
#: seconds: a server ends sessions up to one of its ticks late.
NAME_SESSIONS = 2.0
NAME_S = 5.0


@dataclass(frozen=True, slots=True)
class _Proof:
    """What is read after ``since`` proves what this session owns."""

    pauses: int
    session: int
    since: float


@dataclass(frozen=True, slots=True)
class _Plan:
    """What a look at the group has led to.

    Attributes:
        target: The partitions that this member should own.
        members: Who is in the group.
        assigned: The last claims that it was computed from.
        places_due_at: When a place that is kept for another member is to be dropped.
    """

    target: frozenset[TopicPartition] = frozenset()
    members: frozenset[str] = frozenset()
    assigned: Mapping[TopicPartition, Assigned] = field(default_factory=dict)
    places_due_at: float = math.inf


class Membership:
    """One member of one group. Loop-bound.

    Attributes:
        target_count: Partitions that it is to hold, as last computed.
        contract: What the group agreed on, as last read; its failure policy may change.
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
        offsets: MemberOffsets,
        holds: Holds,
        consumer: GroupConsumer,
        permit: Permit,
        retry_topic: str = "",
    ) -> None:
        self.target_count = 0
        self.contract = ConsumerGroup()
        self.is_paused = False
        self._cluster = cluster
        self._coordinator = cluster.coordinator
        self._config = config
        self._group = config.group
        self._member = member
        self._has_all = not GroupModel(config.model).claims
        self._retry_topic = retry_topic  # which this member can read; "": none
        self._settling = Settling(cluster.rng)
        self._plan = _Plan()
        self._targets = Targets(cluster, config, member, on_change=self._changed)
        self._wanted = wanted_contract(
            config, filters, strategy=self._targets.strategy, offset_store=offsets.identity
        )
        self._consumer = consumer
        self.permit = PermitKeeper(permit, cluster.coordinator, self._permit_lapsed)
        self._holds = holds
        self.share = Share(
            cluster,
            config.group,
            member,
            offsets=offsets,
            has_all=self._has_all,
            holds=holds,
            consumer=consumer,
            wake=self.wake,
        )
        self._mirror = GroupMirror(
            self._coordinator, self._group, on_change=self._changed, on_moves=self._moved
        )
        self._audit_at = -math.inf
        self.nonce = f"{cluster.rng.getrandbits(64):016x}"
        self._wake = asyncio.Event()
        self._has_place = False  # there may be a node that keeps it
        self._places: dict[tuple[str, str], float] = {}  # kept for others, and since when
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
            InvalidState: There is a member of this name, and its session did not end in time. Or
                an earlier one of this factory did not leave in time.
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
            self._cluster.on_change(self._changed),
        ]
        self._on_session(self._coordinator.state)
        if self._has_all:
            self.permit.grant_for_good()
        else:
            self.permit.start()
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
        self.permit.stop()
        if self._task is not None:
            await end_task(self._task)
        try:
            async with asyncio.timeout(timeout_s):
                await self._give_up_for_good()
        except TimeoutError:
            self._holds.log_left(f"no answer from ZooKeeper within {timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - others wait for what is left to release
            self._holds.log_left(error)
        await self.share.hand_overs.cancel()
        await self._leave(keep_place=True)

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
            await asyncio.sleep(AGAIN.pause_s(number, self._cluster.rng))

    async def _leave(self, *, keep_place: bool = False) -> None:
        """Delete what is this member's in the tree, now or when ZooKeeper is back."""
        claims = self.share.leave()
        if self._session == 0:
            return
        self._session = 0
        if keep_place and self._config.restart_s:
            await self._keep_place()
        await self._depart(claims)

    async def _keep_place(self) -> None:
        try:
            async with asyncio.timeout(_LEAVE_S):
                await groups.keep_place(
                    self._coordinator,
                    self._group,
                    self._member,
                    self._value(),
                    kept_s=self._config.restart_s,
                )
        except (TimeoutError, VqError) as error:
            logger.warning(
                "place in the group cannot be kept, its partitions move",
                group=self._group,
                member=self._member,
                error=error,
            )

    async def _depart(self, claims: Sequence[Claim] = ()) -> None:
        departures, session_id = self._cluster.departures, self._coordinator.session_id
        departures.begin(
            Departure(
                self._group,
                self._member,
                self.nonce,
                session_id,
                tuple(claims),
                has_place=self._has_place,
            )
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
        """Do a round soon."""
        self._wake.set()

    def _changed(self) -> None:
        """The group, or a topic of it, may have changed."""
        self._settling.changed(self._cluster.clock.monotonic())
        self._wake.set()

    def _moved(self) -> None:
        """Partitions were claimed or released."""
        self._settling.moved(self._cluster.clock.monotonic())
        self._wake.set()

    def _look_again(self) -> None:
        """Have the next round look at the group; it comes soon."""
        self._settling.at_once()
        self._wake.set()

    def _on_session(self, state: SessionState) -> None:
        self._doubt()
        self._wake.set()
        self._cancel_timer()
        if not self._has_all:  # otherwise nobody else gets what this member has
            if state is SessionState.SUSPENDED:
                self._suspend_when_due()
            elif state is not SessionState.CONNECTED:
                self.permit.revoke()
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
        self.permit.revoke()
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
        self._took(
            await groups.ensure_group(
                self._coordinator, self._group, self._wanted, now_ms=self._cluster.clock.wall_ms()
            )
        )

    def _took(self, contract: ConsumerGroup) -> None:
        self.contract = contract
        topics = self._wanted.topics
        if self._retry_topic in contract.topics and self._retry_topic not in topics:
            self._wanted = replace(self._wanted, topics={**topics, self._retry_topic: ALL})
        self._consumer.follow(contract.failure)

    async def _follow_contract(self, *, again: bool = False) -> None:
        """Take what the contract became; what this member needs of it comes back."""
        present = await self._mirror.contract(again=again)
        now_ms = self._cluster.clock.wall_ms()
        if present is None or merge(self._group, present, self._wanted, now_ms) != present:
            await self._ensure_contract()
        else:
            self._took(present)

    async def read_retries(self) -> None:
        """Have the group read its retry topic, which there is, from now on.

        Raises:
            CoordinationError: It may do so, or may not; to be called again.
        """
        if self._retry_topic not in self.contract.topics:
            topics = {**self._wanted.topics, self._retry_topic: ALL}
            self._wanted = replace(self._wanted, topics=topics)
            await self._ensure_contract()
            self._look_again()

    def _value(self) -> Member:
        return Member(
            host=socket.gethostname(),
            pid=os.getpid(),
            topics=tuple(sorted(self._wanted.topics)),
            patterns=tuple(sorted(self._wanted.patterns)),
            since_ms=self._cluster.clock.wall_ms(),
            nonce=self.nonce,
            rack=self._config.rack,
        )

    async def _join(self) -> None:
        if self._session:  # the group may have been deleted since the last time
            await self._ensure_contract()
        value = self._value()
        now = self._cluster.clock.monotonic()
        await groups.join_group(self._coordinator, self._group, self._member, value)
        # A group forgets a topic only while no member subscribes to it (``forgetting``): what was
        # forgotten between the two steps above comes back.
        await self._follow_contract(again=True)
        self._session = self._coordinator.session_id
        if not (self.is_paused or self._has_all):
            if any(hold.is_owned for hold in self._holds):  # all kept? The next round asks.
                self._pause("its member node was gone")
            else:
                self.permit.grant(now)

    async def _join_when_free(self) -> None:
        """Join once the session of an earlier member of this name has ended, if it does in time.

        An earlier one of this factory first deletes what it has. Later, that would delete owner
        nodes of this one: a release knows a claim of unknown outcome by name and session only.
        """
        bound_s = NAME_SESSIONS * self._coordinator.session_timeout_s + NAME_S
        if not await self._cluster.departures.wait(self._group, self._member, bound_s):
            raise InvalidState(
                f"an earlier consumer {self._member!r} of group {self._group!r} in this factory "
                f"has not left within {bound_s:g} s, since ZooKeeper does not answer; start again "
                "later"
            )
        try:
            await self._join()
            return
        except NodeExists:
            logger.warning(
                "member name is in use, waiting for its session to end",
                group=self._group,
                member=self._member,
                timeout_s=bound_s,
            )
            # The others count it in until then: a restart moves none of its partitions.
            self._has_place = True
            await groups.keep_place(self._coordinator, self._group, self._member, self._value())
            if not await groups.name_came_free(
                self._coordinator, self._group, self._member, bound_s
            ):
                await self._drop_place()
                raise self._name_is_taken() from None
        try:
            await self._join()
        except NodeExists:  # another one was faster
            await self._drop_place()
            raise self._name_is_taken() from None
        await self._drop_place()

    def _name_is_taken(self) -> InvalidState:
        return InvalidState(
            f"group {self._group!r} has a member {self._member!r} that goes on; give each member "
            "a member_id of its own, or leave it out"
        )

    async def _drop_place(self) -> None:
        await groups.drop_place(
            self._coordinator,
            self._group,
            self._member,
            self.nonce,
            self._coordinator.session_id,
        )
        self._has_place = False

    async def _expire_places(self, kept: Mapping[str, MemberView]) -> float:
        """Drop the places of members that did not come again; return when the next one is due.

        Each member counts from when it first saw the place: no two clocks are compared.
        """
        now, due_at = self._cluster.clock.monotonic(), math.inf
        seen = {
            (name, each.value.nonce): each for name, each in kept.items() if not each.session_id
        }
        self._places = {key: self._places.get(key, now) for key in seen}
        for (name, nonce), each in seen.items():
            left = self._places[name, nonce] + each.value.kept_s - now
            if left <= 0 or name == self._member:
                await groups.drop_place(self._coordinator, self._group, name, nonce, 0)
            else:
                due_at = min(due_at, now + left)
        return due_at

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
            except MemberDiffers as error:
                await self._part(error)
                return
            except VqError as error:
                logger.log(
                    logging.DEBUG if cause == str(error) else logging.WARNING,  # once per cause
                    "rebalance failed, trying again",
                    group=self._group,
                    member=self._member,
                    error=error,
                )
                failures, cause = failures + 1, str(error)
                pause_s = AGAIN.pause_s(failures, self._cluster.rng)
                if isinstance(error, NotAuthenticated):
                    await asyncio.sleep(pause_s)  # no change of the group mends that
            except Exception:
                logger.exception(
                    "rebalance failed, trying again", group=self._group, member=self._member
                )
                pause_s = AGAIN.longest_s(self._cluster.rng)

    async def _part(self, error: MemberDiffers) -> None:
        """Leave a group that has other terms now, after what is held is given up in order."""
        logger.error(
            "group has other terms, leaving it",
            group=self._group,
            member=self._member,
            error=error,
        )
        try:
            async with asyncio.timeout(_PART_S):
                await self._give_up_for_good()
        except (TimeoutError, VqError) as failed:
            self._holds.log_left(failed)
        self.permit.stop()
        await self.share.hand_overs.cancel()
        await self._leave()
        self._consumer.ended(error)

    async def _round(self) -> float:
        """Do one step towards the plan; return the seconds until the next round."""
        self.share.drop_ended()
        if self._session != self._coordinator.session_id:
            self.is_paused = False  # what was in doubt is lost
        if self._coordinator.state is not SessionState.CONNECTED:
            return self._config.audit_interval_s  # the session's next state wakes us
        self._maybe_audit()
        now = self._cluster.clock.monotonic()
        is_new = self._session != self._coordinator.session_id
        due_at = min(self._settling.due_at, self._plan.places_due_at)
        if is_new or self.is_paused or now >= due_at:
            self._settling.begin(now)
            try:
                counts = await self._look()
            except BaseException:
                self._settling.at_once()
                raise
        else:
            await self.share.drop_lost(None)
            counts = not self._settling.is_settling
        if counts:
            await self._act()
        now = self._cluster.clock.monotonic()
        due_at = min(self._audit_at, self._plan.places_due_at, self._settling.due_at)
        return max(_DEBOUNCE_S, due_at - now)

    async def _look(self) -> bool:
        """Look at the group and make the plan; False: it does not count, another look is due."""
        if self._session != self._coordinator.session_id:
            await self._join()  # what is owed stays: a late claim may be in the new session
        # It takes long the first time; others may join meanwhile.
        await self._targets.know(await self._targets.topics_of(self._value()))
        proof = await self._prove()
        await self._follow_contract()
        live, kept = groups.with_places(await self._mirror.members())
        if self._member not in live:
            await self._join()
            self._look_again()
            return False
        mine = replace(live[self._member].value, topics=tuple(sorted(self._wanted.topics)))
        if mine != live[self._member].value:  # the retry topic came in
            await groups.join_group(self._coordinator, self._group, self._member, mine)
        due_at = await self._expire_places(kept)
        present = {**kept, **live}
        topics = {name: await self._targets.topics_of(each.value) for name, each in present.items()}
        assigned = await self._mirror.assigned(set().union(*topics.values()))
        await self.share.drop_lost(assigned)
        if not self._resume(proof):
            self._look_again()
            return False
        target = await self._targets.target(self.contract.strategy, present, topics, assigned)
        self.target_count = len(target)
        self._mirror.expect(self._targets.moves(assigned))
        if self._plan.members:
            now = self._cluster.clock.monotonic()
            self._settling.saw(len(self._plan.members ^ present.keys()), now)
        self._plan = _Plan(frozenset(target), frozenset(present), assigned, due_at)
        return True

    async def _act(self) -> None:
        """Give up and claim what the plan says."""
        plan = self._plan
        self.share.give_up(
            hold
            for hold in self._holds
            if hold.is_owned
            and not hold.is_leaving
            and (hold.partition not in plan.target or self._targets.is_made_anew(hold))
        )
        # Also of partitions that are wanted again by now: what is drained delivers nothing.
        self.share.resume_hand_overs()
        await self.share.claim_all(plan.target, plan.assigned, plan.members)

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
            return False
        self.is_paused = False
        self.permit.grant(proof.since)
        self._consumer.resume()
        return True

    def _maybe_audit(self) -> None:
        now = self._cluster.clock.monotonic()
        if now >= self._audit_at:
            self._audit_at = now + self._config.audit_interval_s
            self._settling.at_once()
            self._mirror.audit()
            self._targets.audit()
            self.share.doubt()

    def _doubt(self) -> None:
        """Have everything read again: it may have changed without a hint."""
        self._settling.at_once()
        self._mirror.doubt()
        self._targets.doubt()
        self.share.doubt()
