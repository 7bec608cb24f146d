"""The offsets of a member whose store is not ZooKeeper, and the copies that ZooKeeper has of them.

The store has the truth. Brokers and operators cannot read it: they read ZooKeeper. So the member
copies what it has committed there, and marks it as a copy (``CommittedOffset.copied``):

    listener ─▶ commit ─▶ store ─▶ (every few seconds, and when a partition is given up) ─▶ copy

A copy is never ahead of the store: retention keeps what the group still needs. What an operator
sets (``vq group reset``) is no copy, so the next claim puts it into the store, before it delivers.

In here: claims, commits and copies of one member. Not in here: how a store keeps rows
(``vq.offset_stores``).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final, Protocol, TypeVar

from vq.client.disk_thread import DiskThread
from vq.clock import Clock
from vq.coordination.groups.claims import Claim, make_parents
from vq.coordination.groups.zookeeper_offsets import CommitResult, ZooKeeperOffsets
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import CoordinationError, GenerationStale, OffsetStoreFailed, VqError
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.offset_stores.table import Commit, Fence, Key, OffsetTable, RowClaim

logger = get_logger(__name__)
T = TypeVar("T")
#: A member copies its offsets into ZooKeeper no more often than this.
COPY_S: Final = 5.0
#: How much longer than the store itself says a call of it may take.
_MARGIN_S: Final = 5.0


class _Overtaken(CoordinationError):
    """ZooKeeper has a later claim of a partition, or a reset."""


class MemberOffsets(Protocol):
    """What a member asks of the store that has its group's offsets.

    Attributes:
        identity: What the contract of the group calls the store.
    """

    identity: str

    async def read(
        self, group: str, topics: Sequence[str]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; partitions without one are left out."""
        ...

    async def known(
        self, claimed: Sequence[Claim]
    ) -> dict[TopicPartition, Claim | CoordinationError]:
        """Return claims of one group with what is committed now, or the error of a read."""
        ...

    async def commit(
        self,
        commits: Sequence[tuple[Claim, CommittedOffset]],
        *,
        may_go_back: Collection[TopicPartition] = (),
    ) -> CommitResult:
        """Write offsets, each fenced by its claim; at most one per partition."""
        ...


class OutsideOffsets:
    """A ``MemberOffsets`` on a store that is not ZooKeeper. Loop-bound.

    Args:
        store: What has its offsets.
        cluster: The name of the cluster, for the store.
        coordinator: Of the cluster.
        clock: When to copy.
        in_order: The member handles one message of a partition after the other.

    Attributes:
        identity: See ``MemberOffsets``; "" before ``open``.
    """

    def __init__(
        self,
        store: OffsetTable,
        *,
        cluster: str,
        coordinator: Coordinator,
        clock: Clock,
        in_order: bool,
    ) -> None:
        self.identity = ""
        self._store = store
        self._cluster = cluster
        self._coordinator = coordinator
        self._in_zookeeper = ZooKeeperOffsets(coordinator)
        self._clock = clock
        self._in_order = in_order
        self._thread = DiskThread("vq-offsets")
        self._fences: dict[TopicPartition, Fence] = {}
        self._copies: dict[TopicPartition, Claim] = {}  # the claims as ZooKeeper knows them
        self._to_copy: dict[TopicPartition, CommittedOffset] = {}
        self._copied_at = -COPY_S

    async def open(self) -> None:
        """Make the store ready, and learn its identity.

        Raises:
            OffsetStoreFailed: It gives no answer.
            InvalidState: See ``OffsetTable.open``.
        """
        self.identity = await self._call(self._store.open)

    def close(self) -> None:
        """End the thread once its call has ended; the store stays open."""
        self._thread.close()

    async def read(
        self, group: str, topics: Sequence[str]
    ) -> dict[TopicPartition, CommittedOffset]:
        """See ``MemberOffsets``."""
        found = await self._call(lambda: self._store.read(self._cluster, group, topics))
        return {
            TopicPartition(key.topic, key.partition): row.offset
            for key, row in found.items()
            if row.offset is not None
        }

    # Claims ---------------------------------------------------------------------------------------
    async def known(
        self, claimed: Sequence[Claim]
    ) -> dict[TopicPartition, Claim | CoordinationError]:
        """Put the fences of claims into the store; return the claims with its progress, or errors.

        Where an operator has set the progress, that is put there, too, and copied back before
        anything is delivered. So it is done once, whatever is killed meanwhile.

        Raises:
            ConnectionLost, SessionExpired: See ``ZooKeeperOffsets.known``.
        """
        if not claimed:
            return {}
        in_zookeeper = await self._in_zookeeper.known(claimed)
        outcome: dict[TopicPartition, Claim | CoordinationError] = {}
        lives = {each: await self._life(claimed[0].group, each) for each in _topics(claimed)}
        begins: dict[Key, RowClaim] = {}
        copies: dict[TopicPartition, Claim] = {}
        for partition, found in in_zookeeper.items():
            if isinstance(found, CoordinationError):
                outcome[partition] = found
                continue
            copies[partition] = found
            fence = Fence(lives[partition.topic], found.generation)
            imposed = found.committed
            if imposed is not None and imposed.copied:
                imposed = None
            begins[self._key(found)] = RowClaim(fence, found.member, self._in_order, imposed)
        try:
            rows = await self._call(lambda: self._store.begin(begins))
        except OffsetStoreFailed as error:
            return outcome | dict.fromkeys(copies, error)
        imposed_on: list[TopicPartition] = []
        for key, row in rows.items():
            partition = TopicPartition(key.topic, key.partition)
            copy = copies[partition]
            if isinstance(row, GenerationStale):
                outcome[partition] = OffsetStoreFailed(str(row.message))
                continue
            if row.offset is None and copy.committed is not None:
                outcome[partition] = _lost(key, copy.committed, self._store.shown)
                continue
            self._fences[partition], self._copies[partition] = row.fence, copy
            self._to_copy.pop(partition, None)
            if begins[key].imposed is not None:
                imposed_on.append(partition)
            if row.offset is not None:
                self._to_copy[partition] = row.offset
            version = row.revision if row.offset is not None else None
            outcome[partition] = replace(copy, committed=row.offset, offset_version=version)
        if imposed_on:
            failed = await self._copy(imposed_on)
            outcome.update(failed)
        return outcome

    async def _life(self, group: str, topic: str) -> int:
        """Return since when ZooKeeper has kept what the group has in a topic; see ``Fence``."""
        path = CommittedOffset.parent(group, topic)
        stat = await self._coordinator.exists(path)
        if stat is None:
            await make_parents(self._coordinator, group, topic)
            stat = await self._coordinator.exists(path)
        if stat is None:
            raise CoordinationError(f"{path} is being deleted; try again")
        return stat.czxid

    # Commits --------------------------------------------------------------------------------------
    async def commit(
        self,
        commits: Sequence[tuple[Claim, CommittedOffset]],
        *,
        may_go_back: Collection[TopicPartition] = (),
    ) -> CommitResult:
        """Commit to the store; what is there already, or is exceeded there, stays.

        Raises:
            OffsetStoreFailed: Some may have been written. Commit the same offsets again.
        """
        claims = {self._key(claimed): claimed for claimed, _ in commits}
        wanted, stale = [], []
        for claimed, offset in commits:
            fence = self._fences.get(claimed.partition)
            if fence is None or fence.generation != claimed.generation:
                stale.append(claimed.partition)
                continue
            wanted.append(
                Commit(
                    self._key(claimed),
                    fence,
                    offset,
                    claimed.offset_version or 0,
                    claimed.partition in may_go_back,
                )
            )
        rows = await self._call(lambda: self._store.commit(wanted)) if wanted else {}
        done: dict[TopicPartition, Claim] = {}
        for key, row in rows.items():
            claimed = claims[key]
            if isinstance(row, GenerationStale):
                stale.append(claimed.partition)
                continue
            done[claimed.partition] = replace(
                claimed, committed=row.offset, offset_version=row.revision
            )
            if row.offset is not None:
                self._to_copy[claimed.partition] = row.offset
        return CommitResult(done, tuple(stale))

    # Copies ---------------------------------------------------------------------------------------
    async def copy_when_due(self) -> list[TopicPartition]:
        """Copy what was committed into ZooKeeper, unless that was done a moment ago.

        Returns the partitions that ZooKeeper knows a later claim of, or a reset: the store, which
        the next owner tells, may not know that yet.
        """
        now = self._clock.monotonic()
        if not self._to_copy or now - self._copied_at < COPY_S:
            return []
        self._copied_at = now
        failed = await self._copy(list(self._to_copy))
        return [each for each, error in failed.items() if isinstance(error, _Overtaken)]

    async def copy_now(self, partition: TopicPartition) -> None:
        """Copy the last commit of a partition that is given up."""
        if partition in self._to_copy:
            await self._copy([partition])

    async def _copy(
        self, partitions: Sequence[TopicPartition]
    ) -> Mapping[TopicPartition, CoordinationError]:
        """Copy the commits of some partitions; return for which it failed. They are kept then."""
        taken = {each: self._to_copy[each] for each in partitions}
        commits = [
            (self._copies[each], replace(offset, copied=True)) for each, offset in taken.items()
        ]
        try:
            result = await self._in_zookeeper.commit(commits, may_go_back=partitions)
        except VqError as error:
            logger.debug("offsets cannot be copied into ZooKeeper, trying again", error=error)
            failed = (
                error
                if isinstance(error, CoordinationError)
                else CoordinationError(f"offsets cannot be copied into ZooKeeper: {error}")
            )
            return dict.fromkeys(partitions, failed)
        for partition, claim in result.done.items():
            if self._copies[partition].generation == claim.generation:
                self._copies[partition] = claim
                if self._to_copy.get(partition) is taken[partition]:
                    del self._to_copy[partition]
        for partition in result.stale:  # another member copies it now
            self._to_copy.pop(partition, None)
        return {each: _Overtaken(f"{each} belongs to another claim now") for each in result.stale}

    # The store's thread ---------------------------------------------------------------------------
    async def _call(self, work: Callable[[], T]) -> T:
        """Do ``work`` on the thread of this member, in bounded time."""
        bound_s = self._store.timeout_s + _MARGIN_S
        why = f"{self._store.shown} gave no answer within {bound_s:g} s"
        return await self._thread.call(work, bound_s, lambda: OffsetStoreFailed(why))

    def _key(self, claimed: Claim) -> Key:
        return Key(self._cluster, claimed.group, *claimed.partition)


def _topics(claimed: Sequence[Claim]) -> list[str]:
    return sorted({each.partition.topic for each in claimed})


def _lost(key: Key, copy: CommittedOffset, shown: str) -> OffsetStoreFailed:
    return OffsetStoreFailed(
        f"{shown} has no offset for {key}, and ZooKeeper has a copy of one, {copy.offset}: its "
        "rows were deleted. Put them back, or decide where the group goes on: `vq group reset "
        f"{key.group} --topic {key.topic} --partition {key.partition} --offset {copy.offset}`"
    )
