"""The progress of a broadcasting member: its own, in a file of its machine, or only in memory.

Nobody else reads the partitions for it, so there is no claim and no other fence than the lock of
the file. A member with a name keeps its progress in a file. One without a name begins at the end
each time, and keeps it in memory for as long as it lives.

    <directory>/<cluster>/<group>/<member>.json         see ``vq.offset_stores.file``
    <directory>/<cluster>/<group>/<member>.json.lock    held while the member runs

A ``life`` in a row is the number of ZooKeeper's change in which this member first joined: what was
made later is new to it, and read from its start. Why a listener stopped is not kept: the next start
tries it again.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from vq.client import environment
from vq.client.cluster import ClusterClient
from vq.client.disk_thread import DiskThread
from vq.coordination.groups.claims import Claim
from vq.coordination.groups.zookeeper_offsets import CommitResult
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.values.consumers import CommittedOffset, Member
from vq.coordination.tree.values.group_terms import ZOOKEEPER
from vq.coordination.tree.values.partitions import Partition
from vq.errors import CoordinationError, GenerationStale, InvalidState, OffsetStoreFailed
from vq.log_lines import get_logger
from vq.model import TopicPartition
from vq.offset_stores.file import FileOffsetStore
from vq.offset_stores.table import Commit, Fence, Key, Row, RowClaim, begun, committed

logger = get_logger(__name__)
T = TypeVar("T")
#: How long a member waits for the disk with its progress.
_DISK_S = 30.0


def progress_file(cluster: str, group: str, member: str) -> Path:
    """Return where a member of a broadcasting group keeps its progress."""
    return Path(environment.offsets_directory()).absolute() / cluster / group / f"{member}.json"


class OwnOffsets:
    """The progress of one member of a broadcasting group. Loop-bound.

    Args:
        cluster: Where the group is.
        group: Its name.
        member: The name of the member.
        keeps: It keeps its progress in a file.

    Attributes:
        identity: That of a group with one progress; this one's members have no common store.
    """

    identity: str = ZOOKEEPER

    def __init__(self, cluster: ClusterClient, group: str, member: str, *, keeps: bool) -> None:
        self._coordinator: Coordinator = cluster.coordinator
        self._cluster = cluster.config.cluster
        self._group = group
        self._member = member
        self._path = progress_file(self._cluster, group, member) if keeps else None
        self._store: FileOffsetStore | None = None
        self._rows: dict[Key, Row] = {}  # as last read or written; all there is without a file
        self._fence = Fence(0, 1)  # life 0: not known yet
        self._thread = DiskThread("vq-progress")

    async def open(self) -> None:
        """Take the file, so that no second process has the member's name; read it.

        Raises:
            InvalidState: Another process has it, or it is damaged or lost.
            OffsetStoreFailed: It cannot be read or made.
        """
        if self._path is None or self._store is not None:
            return
        store = FileOffsetStore(self._path)
        try:
            self._rows = await self._call(lambda: self._take(store, Path(f"{self._path}.lock")))
        except BaseException:
            store.close()
            raise
        self._store = store
        if self._rows:
            lives = [row.fence.life for row in self._rows.values()]
            generations = [row.fence.generation for row in self._rows.values()]
            self._fence = Fence(min(lives), max(generations) + 1)
        else:
            logger.warning(
                "member keeps no progress yet and begins where its setting says",
                group=self._group,
                member=self._member,
                path=self._path,
            )

    def _take(self, store: FileOffsetStore, lock: Path) -> dict[Key, Row]:
        assert self._path is not None
        who = f"member {self._member!r} of broadcasting group {self._group!r}"
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            is_lost = lock.exists() and not self._path.exists()
        except OSError as error:
            raise OffsetStoreFailed(
                f"{who} cannot keep its progress in {self._path}: {error}. The variable "
                "VQ_OFFSETS_DIR names another directory"
            ) from error
        begin_anew = (
            f"Put a backup back, or remove {self._path} and {lock}: the member then begins where "
            "start_position says"
        )
        if is_lost:
            raise InvalidState(
                f"{who} had its progress in {self._path}, and the file is gone. {begin_anew}"
            )
        try:
            store.open()
        except InvalidState as error:
            if isinstance(error.__cause__, OSError):
                raise InvalidState(
                    f"{who} runs in another process of this machine already ({self._path} is "
                    "locked); give each member a member_id of its own"
                ) from error
            raise InvalidState(
                f"{who} cannot use its progress in {self._path}: {error.__cause__}. {begin_anew}"
            ) from error
        return store.of_group(self._cluster, self._group)

    async def close(self) -> None:
        """Let go of the file."""
        store, self._store = self._store, None
        try:
            if store is not None:
                await self._call(store.close)
        finally:
            self._thread.close()

    async def read(
        self, group: str, topics: Sequence[str]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return what was committed; partitions without a commit are left out."""
        assert group == self._group
        return {
            TopicPartition(key.topic, key.partition): row.offset
            for key, row in self._rows.items()
            if key.topic in topics and row.offset is not None
        }

    async def is_new(self, partition: TopicPartition) -> bool:
        """Return whether a partition was made after this member first joined."""
        made = await self._coordinator.exists(Partition.path(*partition))
        return made is not None and made.czxid > self._fence.life

    async def known(
        self, claimed: Sequence[Claim]
    ) -> dict[TopicPartition, Claim | CoordinationError]:
        """Return claims with what is committed.

        Raises:
            CoordinationError: It is not known; try again.
        """
        if not self._fence.life:
            own = await self._coordinator.exists(Member.path(self._group, self._member))
            if own is None:
                raise CoordinationError(f"member {self._member!r} has left its group; try again")
            self._fence = Fence(own.czxid, self._fence.generation)
        begins = {self._key(each): RowClaim(self._fence, self._member) for each in claimed}
        store = self._store
        if store is not None:
            rows = await self._call(lambda: store.begin(begins))
        else:
            rows = {key: begun(key, self._rows.get(key), each) for key, each in begins.items()}
        found: dict[TopicPartition, Claim | CoordinationError] = {}
        for claim in claimed:
            row = rows[self._key(claim)]
            if isinstance(row, GenerationStale):
                found[claim.partition] = OffsetStoreFailed(str(row))
                continue
            self._rows[self._key(claim)] = row
            version = row.revision if row.offset is not None else None
            found[claim.partition] = replace(claim, committed=row.offset, offset_version=version)
        return found

    async def commit(
        self,
        commits: Sequence[tuple[Claim, CommittedOffset]],
        *,
        may_go_back: Collection[TopicPartition] = (),
    ) -> CommitResult:
        """Write offsets, at most one for each partition.

        Raises:
            OffsetStoreFailed: They may be written. Commit the same offsets again.
        """
        wanted = [
            Commit(
                self._key(claim),
                self._fence,
                replace(offset, stopped=""),
                claim.offset_version or 0,
                claim.partition in may_go_back,
            )
            for claim, offset in commits
        ]
        store = self._store
        if not wanted:
            return CommitResult()
        if store is not None:
            rows = await self._call(lambda: store.commit(wanted))
        else:
            rows = {each.key: committed(self._rows.get(each.key), each) for each in wanted}
        done: dict[TopicPartition, Claim] = {}
        for claim, offset in commits:
            row = rows[self._key(claim)]
            if isinstance(row, GenerationStale):
                raise OffsetStoreFailed(str(row))
            self._rows[self._key(claim)] = row
            # What stops the member counts as committed, or it would be written again and again.
            told = replace(row.offset or offset, stopped=offset.stopped)
            done[claim.partition] = replace(claim, committed=told, offset_version=row.revision)
        return CommitResult(done)

    def _key(self, claim: Claim) -> Key:
        return Key(self._cluster, self._group, *claim.partition)

    async def _call(self, work: Callable[[], T]) -> T:
        """Do ``work``, which waits for a disk, on the thread of this member, in bounded time."""
        return await self._thread.call(work, _DISK_S, _late)


def _late() -> OffsetStoreFailed:
    return OffsetStoreFailed(
        f"the disk with the progress of this member gave no answer within {_DISK_S:g} s"
    )
