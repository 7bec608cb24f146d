"""Carrying a plan out: a few partitions at a time, told in ZooKeeper, cancelled and gone on with.

Loop-bound functions on a ``ClusterClient``. One process of the cluster does so at a time: it holds
the lease ``allocation``, and each move is made only while it does. So a process that was cut off
can finish no move once another one has taken over, and what a process that died left can be gone on
with: a partition is where the plan wants it, or it is not.

    lease ──▶ order in ZooKeeper ──▶ pools of topics ──▶ moves ──▶ progress: done
                                                           │ a move cannot be made ──▶ failed
                                                           │ somebody wants the end ─▶ cancelled
"""

import asyncio
import contextlib
import os
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from vq.backoff import Backoff
from vq.bounds import check_between, check_within
from vq.client.cluster import ClusterClient
from vq.coordination.leases import allocations
from vq.coordination.leases.allocations import KnownOrder
from vq.coordination.leases.leases import ALLOCATION, JobLease, LeaseNotHeld, read_holder
from vq.coordination.topics import topics
from vq.coordination.tree.coordinator import BadVersion, NoNode
from vq.coordination.tree.values.allocations import (
    AllocationCancel,
    AllocationEvent,
    AllocationOrder,
    AllocationProgress,
    AllocationState,
    FailedMove,
    OrderedMove,
    OrderedPool,
    next_state,
)
from vq.errors import (
    CoordinationError,
    InvalidArgument,
    InvalidState,
    OutcomeUnknown,
    UnknownPartition,
    UnknownTopic,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import TopicPartition, check_timeout
from vq.operations.allocation.changes import PlanChange, changes_since
from vq.operations.allocation.measuring import read_allocation
from vq.operations.allocation.plans import AllocationPlan
from vq.operations.allocation.runs import (
    AllocationListener,
    AllocationRun,
    describe_allocation,
    need_order,
    run_of,
)
from vq.operations.base.acts import audited
from vq.operations.base.who import who
from vq.operations.partitions.placements import carry_out, plan_moves

logger = get_logger(__name__)

#: Partitions that move at a time.
AT_A_TIME_MAX: Final = 64
PAUSE_S_MAX: Final = 3_600.0
#: A move is tried again for so long while a group has no master, or a broker does not answer.
MOVE_TRIES_S: Final = 60.0
_AGAIN: Final = Backoff(first_s=0.2, most_s=5.0, jitter=0.2)
#: Progress is written at most so often, and at the end.
_TELL_S: Final = 0.5
#: While it pauses, a process looks so often whether somebody wants the end.
_LOOK_S: Final = 1.0
#: How long the lease is waited for by a new order; who goes on waits for the end of a session, too.
_LEASE_S: Final = 3.0
_CHANGES_SHOWN: Final = 5
_POLL_S: Final = 0.25


class PlanOutdated(InvalidState):
    """What a plan rests on has changed; nothing was moved.

    Attributes:
        changes: What was, and what is.
    """

    hint = "make the plan again with `vq balance plan`"

    def __init__(self, plan: str, changes: Sequence[PlanChange]) -> None:
        shown_changes = "; ".join(
            f"{each.what} {each.name}: {each.before} -> {each.now}"
            for each in changes[:_CHANGES_SHOWN]
        )
        more = len(changes) - _CHANGES_SHOWN
        super().__init__(
            f"plan {plan} rests on {len(changes)} thing(s) that have changed: {shown_changes}"
            + (f"; and {more} more" if more > 0 else "")
        )
        self.changes = tuple(changes)


class AllocationBusy(InvalidState):
    """Another process moves partitions by a plan now; nothing was done."""

    hint = (
        "`vq balance progress` shows it, `vq balance cancel` ends it; if its "
        "process is gone, go on with `vq balance resume`"
    )


class MovedMeanwhile(InvalidState):
    """A partition of a plan was moved by somebody else; the plan leaves it there."""


# Acting -----------------------------------------------------------------------------------------
async def _moved(_: ClusterClient, arguments: Mapping[str, Any]) -> int:
    """Return how many partitions a plan moves; one that goes on was counted when it began."""
    return len(arguments["plan"].moves)


@audited(partitions=_moved)
async def apply_allocation(
    cluster: ClusterClient,
    plan: AllocationPlan,
    *,
    at_a_time: int = 1,
    pause_s: float = 0.0,
    on_progress: AllocationListener | None = None,
) -> AllocationRun:
    """Carry a plan out; return once all is moved, a move cannot be made, or somebody ended it.

    A move copies nothing and takes some milliseconds; a producer sees it as one retry. What is
    stored stays readable where it is. The same plan may be applied again: what is where the plan
    wants it stays, so this goes on with one that was ended.

    Args:
        cluster: Where.
        plan: As it was made.
        at_a_time: Partitions that move at a time, 1 to 64.
        pause_s: Time after each move until the next one of these begins, 0 to 3 600 s.
        on_progress: Called with the run when something has changed, on the factory's thread or
            loop; it must be short.

    Raises:
        PlanOutdated: What the plan rests on has changed; nothing was moved.
        AllocationBusy: Another process moves partitions by a plan.
        InvalidArgument: The plan is of another cluster, has nothing to do, breaks a hard goal, is
            too large, or a bound is exceeded.
        CoordinationError: ZooKeeper does not answer; ``resume_allocation`` goes on.
    """
    check_between("at_a_time", at_a_time, 1, AT_A_TIME_MAX)
    check_within("pause_s", pause_s, 0, PAUSE_S_MAX)
    _check_plan(cluster, plan)
    async with _leased(cluster, wait_s=_LEASE_S) as lease:
        known = await allocations.read_order(cluster.coordinator, plan.id)
        names = {each.topic for each in plan.topics}
        facts = await read_allocation(cluster, topics=names)
        changes = changes_since(plan, facts, done=known is not None)
        if changes:
            raise PlanOutdated(plan.id, changes)
        order = AllocationOrder(
            started_ms=cluster.clock.wall_ms(),
            by=who(),
            source=plan.source,
            at_a_time=at_a_time,
            pause_s=pause_s,
            ids={each.topic: each.id for each in plan.topics},
            pools=tuple(
                OrderedPool(each.topic, each.new_pool)
                for each in plan.topics
                if each.pool != each.new_pool
            ),
            moves=tuple(
                OrderedMove(each.topic, each.partition, each.source, each.target, each.start)
                for each in plan.moves
            ),
        )
        if known is None:
            progress = AllocationProgress(by=_process(), updated_ms=order.started_ms)
            await allocations.make_order(
                cluster.coordinator, plan.id, order, progress, lease=lease.check
            )
            await allocations.forget_orders(cluster.coordinator, plan.id)
            known = KnownOrder(plan.id, order, progress)
        elif known.order is not None:
            known = replace(known, order=replace(known.order, at_a_time=at_a_time, pause_s=pause_s))
        return await _Applying(cluster, lease, known, on_progress).run()


def _check_plan(cluster: ClusterClient, plan: AllocationPlan) -> None:
    if plan.cluster != cluster.config.cluster:
        raise InvalidArgument(
            f"plan {plan.id} is of cluster {plan.cluster!r}, and this is {cluster.config.cluster!r}"
        )
    if not plan.has_work:
        raise InvalidArgument(f"plan {plan.id} has no moves: there is nothing to do")
    if plan.refused:
        first = plan.refused[0]
        name = first.group if first.partition is None else f"{first.topic}-{first.partition}"
        raise InvalidArgument(
            f"plan {plan.id} breaks {len(plan.refused)} hard goal(s), such as {first.goal} for "
            f"{name}: {first.reason}; leave such moves out"
        )


@audited()
async def resume_allocation(
    cluster: ClusterClient,
    plan: str | None = None,
    *,
    on_progress: AllocationListener | None = None,
) -> AllocationRun:
    """Go on with a plan whose process is gone, or that failed or was cancelled.

    It needs no file: ZooKeeper has the moves. If another process still holds the lease, this waits
    until its session has ended, at most.

    Args:
        cluster: Where.
        plan: Its id; None: the newest one.
        on_progress: As in ``apply_allocation``.

    Raises:
        InvalidArgument: There is none.
        InvalidState: All of it is done.
        AllocationBusy: Another process carries it out.
    """
    wait_s = cluster.coordinator.session_timeout_s + _LEASE_S
    async with _leased(cluster, wait_s=wait_s) as lease:
        known = await need_order(cluster, plan)
        return await _Applying(cluster, lease, known, on_progress).run()


@audited()
async def cancel_allocation(
    cluster: ClusterClient, plan: str | None = None, *, timeout: float = 60.0
) -> AllocationRun:
    """End a plan that is carried out; return it once no partition is on its way any more.

    Moves that have begun are finished. What was moved stays where it is; ``moves`` of the result
    tells what that is. A plan whose process is gone is ended, too. After ``timeout`` seconds it
    returns in any case; then its state is ``running``.

    Raises:
        InvalidArgument: There is none.
        InvalidState: It is done.
    """
    bound_s = check_timeout(timeout)
    known = await need_order(cluster, plan)
    if known.progress.state is AllocationState.CANCELLED:
        return await describe_allocation(cluster, known.plan)
    if known.progress.state is AllocationState.DONE:
        raise InvalidState(f"plan {known.plan} is done: there is nothing to cancel")
    next_state(known.progress.state, AllocationEvent.CANCEL)
    wish = AllocationCancel(by=who(), time_ms=cluster.clock.wall_ms())
    await allocations.want_end(cluster.coordinator, known.plan, wish)
    deadline = cluster.clock.monotonic() + bound_s
    while cluster.clock.monotonic() < deadline:
        known = await need_order(cluster, known.plan)
        if known.progress.state in {AllocationState.DONE, AllocationState.CANCELLED}:
            break
        if await read_holder(cluster.coordinator, ALLOCATION) is None:
            with contextlib.suppress(AllocationBusy):
                async with _leased(cluster, wait_s=_LEASE_S) as lease:
                    await _Applying(cluster, lease, known, None).end()
                    break
        await asyncio.sleep(_POLL_S)
    return await describe_allocation(cluster, known.plan)


def _process() -> str:
    return f"{who()}, process {os.getpid()}"


@contextlib.asynccontextmanager
async def _leased(cluster: ClusterClient, *, wait_s: float) -> AsyncIterator[JobLease]:
    """Hold the lease inside the block.

    Raises:
        AllocationBusy: Another process holds it for so long.
    """
    taken = asyncio.Event()

    def changed(fence: int | None) -> None:
        if fence is not None:
            taken.set()

    lease = JobLease(
        cluster.coordinator,
        cluster.clock,
        job=ALLOCATION,
        holder=_process(),
        rng=cluster.rng,
        on_change=changed,
    )
    lease.start()
    try:
        try:
            async with asyncio.timeout(wait_s):
                await taken.wait()
        except TimeoutError:
            holder = await read_holder(cluster.coordinator, ALLOCATION)
            name = "somebody" if holder is None else holder.holder
            raise AllocationBusy(f"{name} carries out a plan now") from None
        yield lease
    finally:
        await lease.stop()


def _may_succeed(error: VqError) -> bool:
    """Whether a move that failed may succeed later: a group gets another master, a seal ends."""
    if isinstance(error, UnknownPartition | MovedMeanwhile):
        return False
    return error.retriable or isinstance(error, OutcomeUnknown | BadVersion | LeaseNotHeld | NoNode)


class _Applying:
    """One process that carries out one order under the lease."""

    def __init__(
        self,
        cluster: ClusterClient,
        lease: JobLease,
        known: KnownOrder,
        on_progress: AllocationListener | None,
    ) -> None:
        if known.order is None:
            raise InvalidArgument(f"the order of plan {known.plan} cannot be read: {known.error}")
        self._cluster, self._lease, self._known = cluster, lease, known
        self._order = known.order
        self._on_progress = on_progress
        self._progress = known.progress
        self._waiting: deque[OrderedMove] = deque()
        self._moving: list[TopicPartition] = []
        self._told_s = float("-inf")
        self._ends: AllocationEvent | None = None  # why no further move begins
        self._cut = False  # ZooKeeper does not answer one of the workers: nothing further begins
        self._telling = asyncio.Lock()

    async def run(self) -> AllocationRun:
        """Make the moves that are not made; return how it ended."""
        await self._begin()
        await self._set_pools()
        if self._ends is None:
            workers = (self._work() for _ in range(self._order.at_a_time))
            for outcome in await asyncio.gather(*workers, return_exceptions=True):
                if outcome is not None:
                    raise outcome
        await self._finish(self._ends or AllocationEvent.FINISH)
        return await describe_allocation(self._cluster, self._known.plan)

    async def end(self) -> None:
        """Note that somebody ended an order that nobody carries out."""
        await self._look()
        await self._finish(AllocationEvent.CANCEL)

    async def _begin(self) -> None:
        """Note that this process goes on, and find out what is left to do."""
        state = self._progress.state
        if state is AllocationState.DONE:
            raise InvalidState(
                f"plan {self._known.plan} was carried out: all its moves are made",
                hint="make a new plan with `vq balance plan`",
            )
        is_new = state is AllocationState.RUNNING and not self._progress.done
        if not is_new or self._known.cancel is not None:
            state = next_state(state, AllocationEvent.RESUME)
        self._progress = replace(self._progress, state=state, failed=(), moving=())
        self._known = replace(self._known, cancel=None)  # nobody wants the end of what goes on
        await self._look()
        await self._tell(resumed=True)

    async def _look(self) -> None:
        names = {each.topic for each in self._order.moves}
        facts = await read_allocation(self._cluster, topics=names)
        left = []
        for each in self._order.moves:
            load = facts.partitions.get(TopicPartition(each.topic, each.partition))
            if load is None or load.group != each.target:
                left.append(each)
        self._waiting = deque(left)
        self._progress = replace(self._progress, done=len(self._order.moves) - len(left))

    async def _set_pools(self) -> None:
        for topic, pool in self._order.pools:
            try:
                await topics.alter_settings(
                    self._cluster.coordinator,
                    topic,
                    lambda settings, pool=pool: replace(settings, pool=pool),  # type: ignore[misc]
                )
            except (UnknownTopic, InvalidArgument) as error:
                self._fail(FailedMove(topic, 0, f"its pool was not set: {error}"))
                return

    async def _work(self) -> None:
        """Make moves one after the other, until none is left or it is to end.

        Raises:
            CoordinationError: ZooKeeper does not answer: what is done cannot be told.
        """
        try:
            while self._ends is None and not self._cut and self._waiting:
                if await allocations.is_cancelled(self._cluster.coordinator, self._known.plan):
                    self._ends = AllocationEvent.CANCEL
                elif self._waiting:
                    await self._move_and_tell(self._waiting.popleft())
        except CoordinationError:
            self._cut = True
            raise

    async def _move_and_tell(self, move: OrderedMove) -> None:
        key = TopicPartition(move.topic, move.partition)
        self._moving.append(key)
        try:
            await self._move(move)
            self._progress = replace(self._progress, done=self._progress.done + 1)
        except VqError as error:
            logger.warning("a move of a plan failed", partition=str(key), error=error)
            self._fail(FailedMove(move.topic, move.partition, str(error)))
        finally:
            self._moving.remove(key)
        await self._tell(always=self._order.pause_s >= _TELL_S)
        if self._waiting and self._ends is None:
            await self._pause()

    async def _pause(self) -> None:
        """Wait between two moves, and no longer than until somebody wants the end."""
        left_s = self._order.pause_s
        while left_s > 0:
            await asyncio.sleep(min(left_s, _LOOK_S))
            left_s -= _LOOK_S
            if await allocations.is_cancelled(self._cluster.coordinator, self._known.plan):
                return

    def _fail(self, failed: FailedMove) -> None:
        self._progress = replace(self._progress, failed=(*self._progress.failed, failed))
        self._ends = AllocationEvent.FAIL

    async def _move(self, move: OrderedMove) -> None:
        """Move one partition, again and again while that can succeed.

        Raises:
            VqError: It cannot be moved; it is where it was, or was moved elsewhere by somebody.
        """
        cluster, clock = self._cluster, self._cluster.clock
        deadline, tries = clock.monotonic() + MOVE_TRIES_S, 0
        while True:
            try:
                await self._move_once(move)
                return
            except VqError as error:
                if not _may_succeed(error) or clock.monotonic() >= deadline:
                    raise
                logger.debug("a move of a plan is tried again", error=error)
            await self._tell()
            tries += 1
            await asyncio.sleep(_AGAIN.pause_s(tries, cluster.rng))

    async def _move_once(self, move: OrderedMove) -> None:
        planned = await plan_moves(self._cluster, move.topic, [move.partition], move.target)
        for each in planned:
            if each.view.id != self._order.ids.get(move.topic, each.view.id):
                raise UnknownTopic(f"topic {move.topic} was deleted and made again meanwhile")
            span = each.placement.spans[-1]
            if (span.group, span.start) != (move.source, move.start):
                raise MovedMeanwhile(
                    f"{move.topic}-{move.partition} was moved by somebody else: it is on "
                    f"{span.group} from {span.start}, the plan has it on {move.source} from "
                    f"{move.start}"
                )
            await carry_out(self._cluster, each, only_if=[self._lease.check()])

    async def _finish(self, event: AllocationEvent) -> None:
        if event is AllocationEvent.CANCEL or self._progress.state is AllocationState.RUNNING:
            state = next_state(self._progress.state, event)
            self._progress = replace(self._progress, state=state)
        await self._tell(always=True)

    async def _tell(self, *, always: bool = False, resumed: bool = False) -> None:
        """Write the progress, unless that was done just now."""
        now_s = self._cluster.clock.monotonic()
        async with self._telling:
            if not (always or resumed) and now_s - self._told_s < _TELL_S:
                return
            self._told_s = now_s
            self._progress = replace(
                self._progress,
                by=_process(),
                updated_ms=self._cluster.clock.wall_ms(),
                moving=tuple(map(str, self._moving)),
            )
            await self._write(resumed=resumed)
        if self._on_progress is not None:
            self._on_progress(run_of(replace(self._known, progress=self._progress), is_held=True))

    async def _write(self, *, resumed: bool) -> None:
        """Write the progress; wait for the lease again after a lost session.

        Raises:
            CoordinationError: Another process has the lease, or ZooKeeper does not answer.
        """
        clock = self._cluster.clock
        deadline, tries = clock.monotonic() + MOVE_TRIES_S, 0
        while True:
            try:
                await allocations.write_progress(
                    self._cluster.coordinator,
                    self._known.plan,
                    self._progress,
                    lease=self._lease.check,
                    resumed=resumed,
                )
                return
            except CoordinationError:
                if clock.monotonic() >= deadline:
                    raise
            tries += 1
            await asyncio.sleep(_AGAIN.pause_s(tries, self._cluster.rng))
