"""The port of an offset store outside ZooKeeper: rows of progress, each behind a fence. Pure.

    key                                     fence               progress
    cluster  group    topic   partition     life   generation   offset, id, time, …   revision
    default  billing  orders  3             4711   12           81920                 57

A claim puts its fence into the row and learns the progress, in one step (``begin``). From then on a
commit under an earlier fence is refused. ``generation`` is that of the claim. It rises for as long
as ZooKeeper keeps what the group has in the topic, and ``life`` says since when that is: after the
group or the topic was deleted there is a higher one, and what the row had before means nothing.

In here: the rows and what a claim and a commit make of them, which every store does alike. Not in
here: how rows are stored.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import GenerationStale, OffsetStoreFailed

T = TypeVar("T")


class Key(NamedTuple):
    """Whose progress it is."""

    cluster: str
    group: str
    topic: str
    partition: int

    def __str__(self) -> str:
        """Name the partition as everywhere in vq, and the group."""
        return f"{self.topic}-{self.partition} of group {self.group!r}"


class Fence(NamedTuple):
    """Which claim writes; a later one is higher."""

    life: int
    generation: int


class Row(NamedTuple):
    """What a store has for one key.

    Attributes:
        fence: Of the last claim.
        offset: The progress; None: nothing was committed yet.
        revision: How often the progress was written.
    """

    fence: Fence
    offset: CommittedOffset | None = None
    revision: int = 0


class RowClaim(NamedTuple):
    """A claim as its store needs it.

    Attributes:
        fence: Of the claim.
        member: Who claims.
        in_order: The member handles one message of the partition after the other.
        imposed: Where the group goes on, whatever the row has: an operator said so. None: nobody.
    """

    fence: Fence
    member: str
    in_order: bool = True
    imposed: CommittedOffset | None = None


class Commit(NamedTuple):
    """A commit under a claim.

    Attributes:
        key, fence: Of the claim.
        offset: The progress.
        revision: Of the row, as the member knows it.
        may_go_back: It may be before what is there: the application has sought back.
    """

    key: Key
    fence: Fence
    offset: CommittedOffset
    revision: int = 0
    may_go_back: bool = False


#: For each key the row as it is now, or why nothing was written there.
Outcome = dict[Key, Row | GenerationStale]


class OffsetTable(ABC):
    """An offset store of a consumer, for ``ConsumerConfig(offset_store=...)``. Any thread.

    One store may serve several consumers of a process. It is the application's: close it after
    them. Every method raises ``OffsetStoreFailed`` if it is not known what the store has, or what
    was written; the same call may be made again.
    """

    def __enter__(self) -> Self:
        """Return the store; the end of the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    @abstractmethod
    def timeout_s(self) -> float:
        """How long a call takes at most, nearly."""

    @property
    @abstractmethod
    def shown(self) -> str:
        """Where it is, for people; without passwords."""

    @abstractmethod
    def open(self) -> str:
        """Make what is missing; return the identity of the store, by which members compare theirs.

        Raises:
            InvalidState: Another process, or a newer vq, has it.
        """

    @abstractmethod
    def begin(self, claimed: Mapping[Key, RowClaim]) -> Outcome:
        """Put the fences of claims into the rows, and return the rows; see ``begun``.

        For vq only.
        """

    @abstractmethod
    def commit(self, commits: Sequence[Commit]) -> Outcome:
        """Write progress, at most once for each key, and return the rows; see ``committed``.

        For vq only.
        """

    @abstractmethod
    def read(self, cluster: str, group: str, topics: Collection[str]) -> dict[Key, Row]:
        """Return what a group has in some topics. For vq only."""

    @abstractmethod
    def forget(self, cluster: str, group: str) -> int:
        """Delete all that a group has; return the number of rows. It must have no members.

        Deleting a group (``vq group delete``) needs it only for tidiness: a later group of the name
        begins anew in any case.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open; calling it again is fine."""


def begun(key: Key, row: Row | None, begin: RowClaim) -> Row | GenerationStale:
    """Return the row once a claim has begun; an error: a later claim has it."""
    fence, imposed = begin.fence, begin.imposed
    if row is None:
        return Row(fence, imposed, int(imposed is not None))
    if row.fence > fence:
        return _stale(key, row, fence)
    if imposed is not None:  # a revision of its own: the same place is no commit of a member
        return Row(fence, imposed, row.revision + 1)
    progress = row.offset if row.fence.life == fence.life else None
    return Row(fence, progress, row.revision + (progress != row.offset))


def committed(row: Row | None, commit: Commit) -> Row | GenerationStale:
    """Return the row once a commit is written; an error: a later claim has it.

    Progress that is there already, or is exceeded, stays: the application may have written it in a
    transaction of its own.

    Raises:
        OffsetStoreFailed: The claim is not in the row, although it was put there.
    """
    if row is None or row.fence < commit.fence:
        raise OffsetStoreFailed(
            f"the offset store has no claim {tuple(commit.fence)} for {commit.key}, which was "
            f"written there (it has {None if row is None else tuple(row.fence)}): its rows were "
            "deleted or put back; restart this member"
        )
    if row.fence > commit.fence:
        return _stale(commit.key, row, commit.fence)
    there = -1 if row.offset is None else row.offset.offset
    if there > commit.offset.offset and not commit.may_go_back:
        return row
    return Row(row.fence, commit.offset, row.revision + 1)


def _stale(key: Key, row: Row, fence: Fence) -> GenerationStale:
    later = (
        f"the offset store knows a later claim of {key}: {tuple(row.fence)} after {tuple(fence)}"
    )
    if row.fence.life != fence.life:
        later += (
            ". If no other member has the partition, ZooKeeper was made anew, or two clusters of "
            "one name share the store: give each a table or file of its own, or have the store "
            "`forget` the group"
        )
    return GenerationStale(later)
