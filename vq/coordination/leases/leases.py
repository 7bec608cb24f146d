"""Leases of jobs that one node of the cluster does at a time, with a fence.

A lease is an ephemeral node, and a persistent number beside it that rises whenever a node takes the
lease: the fence. Both are written by one ``multi``. A holder that does not know yet that its
session ended can do no harm: what it does under the lease is one ``multi`` with ``check``, which
fails once another node has taken the lease.

    leases/archive           {"v": 1, "fence": 3}                       persistent
    leases/archive/holder    {"v": 1, "holder": "b1/n1", "fence": 3…}   ephemeral

In here: taking, keeping and losing a lease. Not in here: the job.
"""

import contextlib
import random
from collections.abc import Callable
from typing import Final, NamedTuple

from vq.backoff import Backoff
from vq.clock import Clock
from vq.coordination.tree.coordinator import (
    BadVersion,
    Check,
    ConnectionLost,
    Coordinator,
    Create,
    Node,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    Set,
)
from vq.coordination.tree.own_node import OwnNode, delete_own
from vq.coordination.tree.values.leases import LeaseFence, LeaseHolder
from vq.errors import CoordinationError
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: The job that makes a run of the archive every day.
ARCHIVE: Final = "archive"
#: The job that moves partitions as a plan says.
ALLOCATION: Final = "allocation"
#: How often the lease is looked at although no watch fired.
AUDIT_S: Final = 60.0
_BACKOFF: Final = Backoff(first_s=0.1, most_s=10.0)
#: Tries to take a lease while others take it, too, before a pause.
_TRIES_MAX: Final = 5


class LeaseNotHeld(CoordinationError):
    """This node does not hold the lease, so it may not do the job; nothing was changed."""

    retriable = False


class _Tenure(NamedTuple):
    """What this node holds: the fence, and the version of the node that has it."""

    fence: int
    version: int


class JobLease(OwnNode[_Tenure]):
    """Takes the lease of a job whenever nobody has it, until ``stop``. Loop-bound.

    ``fence`` is a number while this node holds the lease, and None otherwise: from LOST or CLOSED
    on, too, as the session may have ended. While SUSPENDED it stays, because ``check`` decides.

    Args:
        coordinator: A started coordinator.
        clock: For ``since_ms`` of the node.
        job: Which.
        holder: This node, for operators: "b1/n1".
        rng: For the nonce and the back-off.
        on_change: Called on the loop with the fence, or None when the lease is lost; must not
            block.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        *,
        job: str,
        holder: str,
        rng: random.Random | None = None,
        on_change: Callable[[int | None], None] = lambda _: None,
    ) -> None:
        rng = rng or random.SystemRandom()
        super().__init__(
            coordinator, what=f"lease of job {job}", audit_s=AUDIT_S, backoff=_BACKOFF, rng=rng
        )
        self._clock = clock
        self._job = job
        self._path = LeaseHolder.path(job)
        self._holder = holder
        self._nonce = f"{rng.getrandbits(64):016x}"
        self._on_change = on_change

    @property
    def fence(self) -> int | None:
        """The number with which this node holds the lease; None: it does not."""
        return None if self._held is None else self._held.fence

    def check(self) -> Check:
        """Return the part of a ``multi`` that fails once another node has taken the lease.

        Raises:
            LeaseNotHeld: This node does not hold it.
        """
        if self._held is None:
            raise LeaseNotHeld(f"{self._holder} does not hold the lease of job {self._job}")
        return Check(LeaseFence.path(self._job), self._held.version)

    def start(self) -> None:
        """Begin to try; returns at once."""
        self._begin()

    async def _is_held(self, held: _Tenure) -> bool:
        try:
            node = await self._coordinator.get(self._path, watch=self._hint)
        except NoNode:
            return False
        value = LeaseHolder.decode(self._path, node.data)
        return self._is_own(node) and value.fence == held.fence

    async def _take(self) -> _Tenure | None:
        for _ in range(_TRIES_MAX):
            try:
                node = await self._coordinator.get(self._path, watch=self._hint)
            except NoNode:
                await self._try_to_take()
                continue
            if not self._is_own(node):
                return None
            value = LeaseHolder.decode(self._path, node.data)
            fence = await self._coordinator.get(LeaseFence.path(self._job))
            if LeaseFence.decode(LeaseFence.path(self._job), fence.data).fence != value.fence:
                continue  # it was taken by another node between the two reads
            return _Tenure(value.fence, fence.stat.version)
        raise CoordinationError(
            f"the lease of job {self._job} changed {_TRIES_MAX} times while it was taken"
        )

    async def _try_to_take(self) -> None:
        """Take the lease if nobody has it; the caller reads whether that worked.

        It does not use ``update``: after a lost answer, too, the read of the node decides.
        """
        path = LeaseFence.path(self._job)
        try:
            node = await self._coordinator.get(path)
        except NoNode:
            with contextlib.suppress(NodeExists):
                await self._coordinator.create(path, LeaseFence().encode(), parents=True)
            node = await self._coordinator.get(path)
        fence = LeaseFence.decode(path, node.data).fence + 1
        holder = LeaseHolder(
            holder=self._holder, fence=fence, since_ms=self._clock.wall_ms(), nonce=self._nonce
        )
        operations: list[Operation] = [
            Set(path, LeaseFence(fence=fence).encode(), node.stat.version),
            Create(self._path, holder.encode(), ephemeral=True),
        ]
        with contextlib.suppress(BadVersion, NodeExists, NoNode, ConnectionLost, SessionExpired):
            await self._coordinator.multi(operations)

    async def _give_back(self, held: _Tenure | None) -> None:
        if held is not None:
            await delete_own(self._coordinator, self._path, self._is_own)

    def _is_own(self, node: Node) -> bool:
        value = LeaseHolder.decode(self._path, node.data)
        owner = node.stat.ephemeral_owner
        return owner == self._coordinator.session_id != 0 and value.nonce == self._nonce

    def _changed(self, held: _Tenure | None) -> None:
        if held is None:
            logger.info("lease is lost", job=self._job, holder=self._holder)
        else:
            logger.info("lease is taken", job=self._job, holder=self._holder, fence=held.fence)
        self._on_change(self.fence)


async def read_holder(coordinator: Coordinator, job: str) -> LeaseHolder | None:
    """Return who holds the lease of a job; None: nobody."""
    path = LeaseHolder.path(job)
    try:
        return LeaseHolder.decode(path, (await coordinator.get(path)).data)
    except NoNode:
        return None
