"""A member's share of its group: joins, computes who should have what, claims and gives up.

Every member computes the same sharing from what it reads (``coordination.rebalance``) and acts on
its own part only: first it gives up what should be another's, then it claims what should be its own
and is free. Only partitions that move stop; a partition that is still owned is waited for.

One task does all of it. Watches, sessions and timers only wake it; the truth is read each time.

    SUSPENDED  nothing is given up; past the session time-out delivery pauses, since somebody else
               may own the partitions by then
    LOST       deliveries are drained; with the new session the member joins and claims anew
"""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.coordination import groups
from vq.coordination.coordinator import SessionState, WatchEvent
from vq.coordination.paths import CommittedOffset, ConsumerGroup, Member
from vq.coordination.rebalance import assign
from vq.errors import CoordinationError, GenerationStale, UnknownTopic, VqError
from vq.model import TopicPartition

logger = logging.getLogger(__name__)
_BACKOFF_S = 0.1
_BACKOFF_MAX_S = 5.0
#: Members that join together are seen together: one round instead of several.
_DEBOUNCE_S = 0.02


@dataclass(frozen=True, slots=True)
class MembershipHooks:
    """What a consumer does when its share changes.

    Attributes:
        claimed: A partition is owned now; ``committed`` in the claim says where to go on.
        revoke: Drain a partition, commit it if asked to, forget it.
        suspend: Deliver nothing until ``resume`` (or until everything was revoked).
        resume: Ownership is proved again: go on.
    """

    claimed: Callable[[groups.Claim], Awaitable[None]]
    revoke: Callable[[TopicPartition, bool], Awaitable[None]]
    suspend: Callable[[], Awaitable[None]]
    resume: Callable[[], None]


class Membership:
    """One member of one group. Loop-bound."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        member: str,
        filters: Mapping[str, str],
        hooks: MembershipHooks,
    ) -> None:
        self.contract = ConsumerGroup()
        self._cluster = cluster
        self._coordinator = cluster.coordinator
        self._config = config
        self._group = config.group
        self._member = member
        self._filters = dict(filters)
        self._hooks = hooks
        self._claims: dict[TopicPartition, groups.Claim] = {}
        self._nonce = f"{cluster.rng.getrandbits(64):016x}"
        self._wake = asyncio.Event()
        self._session = 0  # the session that the member node belongs to
        self._suspended = False
        self._task: asyncio.Task[None] | None = None
        self._removers: list[Callable[[], None]] = []

    # Life ---------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Join the group; partitions follow through ``hooks.claimed``.

        Raises:
            InvalidArgument: The group's contract is another one.
            CoordinationError: ZooKeeper does not take it.
        """
        wanted = ConsumerGroup(start=self._config.start_position.value, topics=self._filters)
        self.contract = await groups.ensure_group(self._coordinator, self._group, wanted)
        await self._join()
        self._removers = [
            self._coordinator.add_listener(self._on_session),
            self._cluster.on_change(self.wake),
        ]
        self._wake.set()
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Give everything up in order, leave the group."""
        for remove in self._removers:
            remove()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for where in sorted(self._claims):
            await self._give_up(where, commit=True)
        if self._coordinator.state is SessionState.CONNECTED:
            try:
                await groups.leave_group(self._coordinator, self._group, self._member)
            except CoordinationError as error:
                logger.warning("group %s: leaving failed: %s", self._group, error)

    def wake(self) -> None:
        """Look at the group again soon."""
        self._wake.set()

    def _hint(self, _event: WatchEvent) -> None:
        self._wake.set()

    def _on_session(self, _state: SessionState) -> None:
        self._wake.set()

    async def _join(self) -> None:
        value = Member(
            host=socket.gethostname(),
            pid=os.getpid(),
            topics=tuple(sorted(self._filters)),
            since_ms=self._cluster.clock.wall_ms(),
            nonce=self._nonce,
        )
        await groups.join_group(self._coordinator, self._group, self._member, value)
        self._session = self._coordinator.session_id

    # The one task ---------------------------------------------------------------------------------
    async def _run(self) -> None:
        backoff_s = _BACKOFF_S
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
                backoff_s = _BACKOFF_S
            except VqError as error:
                logger.info("group %s, member %s: %s", self._group, self._member, error)
                pause_s = backoff_s * (0.5 + self._cluster.rng.random())
                backoff_s = min(_BACKOFF_MAX_S, backoff_s * 2)
            except Exception:
                logger.exception("group %s, member %s", self._group, self._member)
                pause_s = _BACKOFF_MAX_S

    async def _round(self) -> float:
        """Bring what is held nearer to what should be; return when to look again, in seconds."""
        state = self._coordinator.state
        if state is SessionState.LOST or (
            self._claims and self._session != self._coordinator.session_id
        ):
            await self._drop_everything()
        if state is not SessionState.CONNECTED:
            return await self._wait_for_connection()
        if self._session != self._coordinator.session_id:
            await self._join()
        present = await groups.members(self._coordinator, self._group, watch=self._hint)
        if self._member not in present:
            await self._join()
            self._wake.set()
            return self._config.audit_interval_s
        await self._drop_lost()
        if self._suspended:
            self._suspended = False
            self._hooks.resume()
        target = await self._target({name: view.value.topics for name, view in present.items()})
        for where in sorted(set(self._claims) - target):
            await self._give_up(where, commit=True)
        waiting = False
        for where in sorted(target - set(self._claims)):
            waiting |= not await self._claim(where)
        if waiting:
            await groups.read_owners(
                self._coordinator, self._group, sorted(self._filters), watch=self._hint
            )
        return self._config.audit_interval_s

    async def _wait_for_connection(self) -> float:
        """Deliver on while the session surely lives; return how long that will be."""
        left = (
            self._coordinator.last_reply_monotonic
            + self._coordinator.session_timeout_s
            - self._cluster.clock.monotonic()
        )
        if left > 0 or self._suspended:
            return max(left, _BACKOFF_S)
        self._suspended = True
        logger.warning(
            "group %s, member %s: ZooKeeper is away for longer than the session time-out; "
            "delivery pauses until ownership can be proved",
            self._group,
            self._member,
        )
        await self._hooks.suspend()
        return self._config.audit_interval_s

    async def _target(self, topics: Mapping[str, tuple[str, ...]]) -> set[TopicPartition]:
        """Return the partitions that should be this member's."""
        subscribed = sorted({topic for each in topics.values() for topic in each})
        partitions: list[TopicPartition] = []
        for topic in subscribed:
            try:
                routes = await self._cluster.track(topic)
            except UnknownTopic:
                continue
            partitions += [
                TopicPartition(topic, each.partition) for each in routes.partitions(topic)
            ]
        known = await groups.read_assignments(self._coordinator, self._group, subscribed)
        current = {where: assignment.member for where, assignment in known.items()}
        members = {name: frozenset(each) for name, each in topics.items()}
        shares = assign(members, partitions, current)
        return {where for where, member in shares.items() if member == self._member}

    async def _claim(self, where: TopicPartition) -> bool:
        try:
            claim = await groups.claim(self._coordinator, self._group, self._member, where)
        except groups.StillOwned:
            return False
        self._claims[where] = claim
        logger.info("group %s, member %s: has %s now", self._group, self._member, where)
        try:
            await self._hooks.claimed(claim)
        except VqError:
            del self._claims[where]
            await groups.release(self._coordinator, claim)
            raise
        return True

    async def _give_up(self, where: TopicPartition, *, commit: bool) -> None:
        await self._hooks.revoke(where, commit)
        claim = self._claims.pop(where)
        logger.info("group %s, member %s: gives up %s", self._group, self._member, where)
        if self._coordinator.state is SessionState.CONNECTED:
            await groups.release(self._coordinator, claim)

    async def _drop_lost(self) -> None:
        """Compare what is held with what the tree says is owned."""
        for where, claim in sorted(self._claims.items()):
            if not await groups.still_ours(self._coordinator, claim):
                logger.warning("group %s, member %s: lost %s", self._group, self._member, where)
                await self._hooks.revoke(where, False)
                self._claims.pop(where, None)

    async def _drop_everything(self) -> None:
        """The session ended, and with it every owner node."""
        for where in sorted(self._claims):
            await self._hooks.revoke(where, False)
        self._claims.clear()
        self._suspended = False

    # Offsets --------------------------------------------------------------------------------------
    async def commit(
        self, positions: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, VqError | None]:
        """Commit positions of held partitions; None for each that was written.

        Raises:
            CoordinationError: Whether they were written is not known; commit them again.
        """
        now = self._cluster.clock.wall_ms()
        commits = [
            (
                self._claims[where],
                CommittedOffset(offset=position, time_ms=now, member=self._member),
            )
            for where, position in positions.items()
            if where in self._claims
        ]
        result = await groups.commit(self._coordinator, commits)
        for where, claim in result.done.items():
            if where in self._claims:
                self._claims[where] = claim
        outcome: dict[TopicPartition, VqError | None] = dict.fromkeys(result.done)
        for where in result.stale:
            outcome[where] = GenerationStale(f"{where} belongs to another member now")
        return outcome
