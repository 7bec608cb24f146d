"""Where the progress of consumer groups is kept: everything that reads or writes it comes here.

A commit is fenced by the generation of its claim, so a member that has lost its partition writes
nothing. An offset is lowered only where that is meant: by a member whose application has sought
back, and by ``reset``. Only an answer that there is no offset means that there is none.

A group whose members have another store (``vq.offset_stores``) has copies in here.

It is kept in ZooKeeper: one ``multi`` writes ``offsets/<topic>/<n>`` and checks the version of the
assignment. Claims, owners and contracts are not in here (``claims``, ``groups``).
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from vq.coordination.groups.claims import (
    Claim,
    each_alone,
    fence_of,
    make_parents,
    named,
    present_nodes,
    read_partitions,
)
from vq.coordination.tree.coordinator import (
    MULTI_OPERATIONS_MAX,
    BadVersion,
    Check,
    ConnectionLost,
    Coordinator,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    NotConnected,
    Operation,
    SessionExpired,
    Set,
)
from vq.coordination.tree.reading import children_or_none, gather_all, numbered_children
from vq.coordination.tree.subtree import remove_below
from vq.coordination.tree.update import TRIES_MAX, Plan, apply_plan
from vq.coordination.tree.values.consumers import Assignment, CommittedOffset
from vq.coordination.tree.values.group_terms import ZOOKEEPER
from vq.errors import BatchTooLarge, CoordinationError, GenerationStale, InvalidArgument
from vq.model import TopicPartition

#: Commits in one ``multi``; two operations each.
COMMITS_PER_MULTI: Final = 100
#: Bytes of one request that ZooKeeper takes: a little less than its default of ``jute.maxbuffer``.
REQUEST_BYTES_MAX: Final = 1_000_000
#: What an operation needs beside its path and its value.
_OPERATION_BYTES: Final = 40


class DecisionOvertaken(CoordinationError):
    """A decision node is not at the version that was expected; nothing was written."""


class OffsetMoved(CoordinationError):
    """An offset is not the one that was known; nothing was written.

    Attributes:
        partition: Of which.
    """

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"the offset of {partition} was changed meanwhile")
        self.partition = partition


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of a batch of commits.

    ``done`` has the claims with the new ``committed``, to use from now on. ``stale`` has the
    partitions of which another member has a newer claim; nothing was written for them.
    """

    done: Mapping[TopicPartition, Claim] = field(default_factory=dict)
    stale: tuple[TopicPartition, ...] = ()


class ZooKeeperOffsets:
    """The progress of consumer groups.

    A lost answer (``ConnectionLost``) leaves unknown what was written: do the same again.

    Attributes:
        identity: What the contract of a group calls this store.
    """

    identity: str = ZOOKEEPER

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def read(
        self, group: str, topics: Sequence[str]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the committed offsets of a group; partitions without one are left out."""
        return await read_partitions(self._coordinator, CommittedOffset, group, topics)

    async def at(self, group: str, partition: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset of a group in one partition; None: there is none."""
        path = CommittedOffset.path(group, *partition)
        try:
            return CommittedOffset.decode(path, (await self._coordinator.get(path)).data)
        except NoNode:
            return None

    async def topics(self, group: str) -> list[str]:
        """Return the names of the topics in which a group has committed offsets, or had some."""
        folder, _ = CommittedOffset.parent(group, "t").rsplit("/", 1)
        return await children_or_none(self._coordinator, folder)

    async def partitions(self, group: str, topic: str) -> list[int]:
        """Return the partitions of a topic in which a group has a committed offset."""
        return await numbered_children(self._coordinator, CommittedOffset.parent(group, topic))

    async def known(
        self, claimed: Sequence[Claim]
    ) -> dict[TopicPartition, Claim | CoordinationError]:
        """Return claims of one group with what is committed now, or the error of a read.

        Raises:
            ConnectionLost, SessionExpired: See ``update``.
        """
        try:
            found = await _with_progress(self._coordinator, claimed)
        except (ConnectionLost, SessionExpired):
            raise
        except CoordinationError:  # one of them keeps changing, or cannot be read
            by_partition = {each.partition: each for each in claimed}

            async def alone(partition: TopicPartition) -> Claim:
                [found] = await _with_progress(self._coordinator, [by_partition[partition]])
                return found

            return await each_alone(list(by_partition), alone)
        return {each.partition: each for each in found}

    async def commit(
        self,
        commits: Sequence[tuple[Claim, CommittedOffset]],
        *,
        may_go_back: Collection[TopicPartition] = (),
    ) -> CommitResult:
        """Write offsets, each fenced by its claim's generation; at most one per partition.

        All that fit into one ``multi`` are written together; a stale one does not delay the others.
        ``may_go_back``: the partitions whose offset may be before the last committed one.

        Raises:
            InvalidArgument: The offset of another one is.
            ConnectionLost: Some may have been written. Commit the same offsets again.
            NotConnected, SessionExpired: Nothing was written.
        """
        for claimed, offset in commits:
            _check_order(claimed, offset, may_go_back)
        done: dict[TopicPartition, Claim] = {}
        stale: list[TopicPartition] = []
        for start in range(0, len(commits), COMMITS_PER_MULTI):
            step = list(commits[start : start + COMMITS_PER_MULTI])
            lost: list[ConnectionLost] = []
            try:
                await _commit_step(self._coordinator, step, done, stale, lost, may_go_back)
            except (NotConnected, SessionExpired) as error:
                if not (lost or done):
                    raise
                raise ConnectionLost(f"commits may have been written: {error}") from error
        return CommitResult(done, tuple(stale))

    async def commit_with(
        self, commits: Sequence[tuple[Claim, CommittedOffset]], decision: Set
    ) -> dict[TopicPartition, Claim]:
        """Write offsets, each fenced by its claim's generation, and a decision: all or nothing.

        It is one ``multi``, and nothing is tried again.

        Returns:
            The claims with the new ``committed``.

        Raises:
            DecisionOvertaken, OffsetMoved: See there.
            GenerationStale: Another member has a newer claim of one of the partitions.
            BatchTooLarge: It is too much for one request.
            ConnectionLost: It may have been written.
            NotConnected, SessionExpired: Nothing was written.
        """
        operations = [decision, *(one for each in commits for one in commit_operations(*each))]
        _check_size(operations, len(commits))
        try:
            await self._coordinator.multi(operations)
        except (BadVersion, NodeExists, NoNode) as error:
            index = int(error.details["index"])
            if index == 0:
                raise DecisionOvertaken(f"the decision is taken: {error}") from error
            partition = commits[(index - 1) // 2][0].partition
            if index % 2 == 0:
                raise OffsetMoved(partition) from error
            raise GenerationStale(f"{partition} belongs to another member now") from error
        return {claimed.partition: _after(claimed, offset) for claimed, offset in commits}

    async def reset(self, group: str, partition: TopicPartition, offset: CommittedOffset) -> None:
        """Set a group's progress on a partition to any offset, also to a lower one.

        The same write raises the generation. So a member that consumes the partition cannot commit
        any more; it claims the partition again and goes on from the new offset. If the group has
        its offsets in another store, its next owner puts the offset there: it is no copy.
        """
        topic, number = partition
        path = CommittedOffset.path(group, topic, number)
        data = replace(offset, copied=False).encode()
        fence_path = Assignment.path(group, topic, number)
        tried: set[int] = set()  # versions of the assignment at earlier tries

        async def plan(failed: CoordinationError | None) -> Plan[None]:
            if isinstance(failed, NoNode):
                await make_parents(self._coordinator, group, topic)
            fence = await fence_of(self._coordinator, group, partition)
            version = fence.generation - 1
            try:
                node = await self._coordinator.get(path)
            except NoNode:
                write: Operation = Create(path, data)
            else:
                if node.data == data and tried and version > max(tried):
                    return Plan((), None)  # our own write, whose answer was lost
                write = Set(path, data, node.stat.version)
            tried.add(version)
            return Plan([Set(fence_path, fence.encode(), version), write], None)

        await apply_plan(self._coordinator, plan, what=f"the offset of {partition}")

    async def record(self, group: str, offsets: Mapping[TopicPartition, CommittedOffset]) -> None:
        """Write the progress of a group that has no members, such as that of a Spark query.

        There is no claim that would fence another writer: the offset's own version does, and an
        offset is never lowered within the same topic. May be repeated.

        Raises:
            CoordinationError: See ``update``; some may have been written.
        """
        for topic in sorted({partition.topic for partition in offsets}):
            await make_parents(self._coordinator, group, topic)
        wanted = sorted(offsets)
        for start in range(0, len(wanted), COMMITS_PER_MULTI):
            step = wanted[start : start + COMMITS_PER_MULTI]

            async def plan(
                _: CoordinationError | None, step: Sequence[TopicPartition] = step
            ) -> Plan[None]:
                found = await gather_all(
                    _progress(self._coordinator, group, partition, offsets[partition])
                    for partition in step
                )
                return Plan([each for each in found if each is not None], None)

            await apply_plan(self._coordinator, plan, what=f"the progress of group {group!r}")

    async def forget(self, group: str, topic: str, only_if: Check) -> None:
        """Delete what a group has committed in a topic, while ``only_if`` holds.

        Raises:
            NoNode: It does not hold; its path is that of the check.
        """
        await remove_below(self._coordinator, CommittedOffset.parent(group, topic), only_if)


async def _with_progress(coordinator: Coordinator, claimed: Sequence[Claim]) -> list[Claim]:
    """Return claims of one group with their present progress in the tree, in the same order."""
    if not claimed:
        return []
    group, partitions = claimed[0].group, [each.partition for each in claimed]

    async def read(_: CoordinationError | None) -> Plan[list[Claim]]:
        nodes = await present_nodes(coordinator, CommittedOffset, group, partitions)
        return Plan((), [_known(each, nodes.get(each.partition)) for each in claimed])

    return await apply_plan(coordinator, read, what=f"the progress of {named(partitions)}")


def _known(claimed: Claim, node: Node | None) -> Claim:
    if node is None:
        return replace(claimed, committed=None, offset_version=None)
    path = CommittedOffset.path(claimed.group, *claimed.partition)
    offset = CommittedOffset.decode(path, node.data)
    return replace(claimed, committed=offset, offset_version=node.stat.version)


def _check_size(operations: Sequence[Operation], partitions: int) -> None:
    size = sum(
        len(each.path)
        + _OPERATION_BYTES
        + (0 if isinstance(each, Check | Delete) else len(each.data))
        for each in operations
    )
    if size > REQUEST_BYTES_MAX or len(operations) > MULTI_OPERATIONS_MAX:
        raise BatchTooLarge(
            f"a transaction moves the offsets of {partitions} partitions: {len(operations)} "
            f"operations and {size} bytes in one request to ZooKeeper; at most "
            f"{MULTI_OPERATIONS_MAX} and {REQUEST_BYTES_MAX} are allowed",
            hint="take fewer messages, of fewer partitions, for one transaction",
        )


def _check_order(
    claimed: Claim, offset: CommittedOffset, may_go_back: Collection[TopicPartition]
) -> None:
    """Check that a commit does not go back by mistake.

    In our generation only our own commits can move the progress.
    """
    before = claimed.committed
    if before is None or offset.offset >= before.offset or claimed.partition in may_go_back:
        return
    raise InvalidArgument(
        f"offset {offset.offset} of {claimed.partition} is before the committed {before.offset}; "
        "use reset_offset to go back"
    )


async def _commit_step(
    coordinator: Coordinator,
    step: list[tuple[Claim, CommittedOffset]],
    done: dict[TopicPartition, Claim],
    stale: list[TopicPartition],
    lost: list[ConnectionLost],
    may_go_back: Collection[TopicPartition],
) -> None:
    """Commit the offsets in ``step``; leave out those that cannot be committed.

    ``lost`` gets the lost answers: what was asked then may have been written.

    It does not use ``update.apply_plan``: the claims have the versions, so no read is needed before
    the write. After the first failure, only the partition that failed is read again; after the
    second one, all are, because a member mostly loses many partitions at once.
    """
    failures, session_id = 0, coordinator.session_id
    while step:
        if coordinator.session_id != session_id:  # the claims have ended with it
            raise SessionExpired(f"the session ended while {len(step)} commits were written")
        operations = [operation for each in step for operation in commit_operations(*each)]
        try:
            await coordinator.multi(operations)
        except NotConnected:
            raise
        except ConnectionLost as error:
            lost.append(error)
            if len(lost) > 2:
                raise
            step = await _not_yet_written(coordinator, step, done)
        except (BadVersion, NodeExists, NoNode) as error:
            failures += 1
            index = int(error.details["index"])
            claimed, offset = step.pop(index // 2)
            if failures > TRIES_MAX:
                raise CoordinationError(
                    f"another writer keeps changing the offset of {claimed.partition}"
                ) from error
            doubted = [(claimed, offset)]
            if index % 2 == 0:  # the fence
                stale.append(claimed.partition)
                doubted = []
            if failures > 1:
                step, doubted = [], [*step, *doubted]
            step += await _rest(coordinator, doubted, done, stale, may_go_back)
        else:
            for claimed, offset in step:
                done[claimed.partition] = _after(claimed, offset)
            return


async def _rest(
    coordinator: Coordinator,
    doubted: Sequence[tuple[Claim, CommittedOffset]],
    done: dict[TopicPartition, Claim],
    stale: list[TopicPartition],
    may_go_back: Collection[TopicPartition],
) -> list[tuple[Claim, CommittedOffset]]:
    """Sort out commits that are stale or already written; return the others with fresh claims."""
    found = await gather_all(_refreshed(coordinator, claimed) for claimed, _ in doubted)
    rest = []
    for (claimed, offset), fresh in zip(doubted, found, strict=True):
        if fresh is None:
            stale.append(claimed.partition)
        elif fresh.committed == offset:
            done[claimed.partition] = fresh
        else:
            _check_order(fresh, offset, may_go_back)
            rest.append((fresh, offset))
    return rest


def commit_operations(claimed: Claim, offset: CommittedOffset) -> list[Operation]:
    topic, number = claimed.partition
    path = CommittedOffset.path(claimed.group, topic, number)
    fence = Check(Assignment.path(claimed.group, topic, number), claimed.generation)
    if claimed.offset_version is None:
        return [fence, Create(path, offset.encode())]
    return [fence, Set(path, offset.encode(), claimed.offset_version)]


def _after(claimed: Claim, offset: CommittedOffset) -> Claim:
    before = claimed.offset_version
    return replace(claimed, committed=offset, offset_version=0 if before is None else before + 1)


async def _not_yet_written(
    coordinator: Coordinator,
    step: list[tuple[Claim, CommittedOffset]],
    done: dict[TopicPartition, Claim],
) -> list[tuple[Claim, CommittedOffset]]:
    """After a lost reply: add written commits to ``done``, return the others."""
    found = await _with_progress(coordinator, [claimed for claimed, _ in step])
    rest = []
    for (claimed, offset), fresh in zip(step, found, strict=True):
        if (
            fresh.committed == offset
            and fresh.offset_version == _after(claimed, offset).offset_version
        ):
            done[claimed.partition] = fresh
        else:
            rest.append((claimed, offset))
    return rest


async def _refreshed(coordinator: Coordinator, claimed: Claim) -> Claim | None:
    """Return the claim with the progress in the tree; None if another claim has replaced it."""
    topic, number = claimed.partition
    stat = await coordinator.exists(Assignment.path(claimed.group, topic, number))
    if stat is None or stat.version != claimed.generation:
        return None
    [fresh] = await _with_progress(coordinator, [claimed])
    return fresh


def why_of_another(committed: CommittedOffset, topic_id: str) -> str:
    """Return why an offset means nothing in the topic with this id; "": no reason is known."""
    if not committed.topic_id or committed.topic_id == topic_id:
        return ""
    return (
        f"the offset was committed for another topic of this name (id {committed.topic_id}, now "
        f"{topic_id})"
    )


async def _progress(
    coordinator: Coordinator, group: str, partition: TopicPartition, offset: CommittedOffset
) -> Operation | None:
    """Return what writes an offset; None: it, or a higher one, is written."""
    path = CommittedOffset.path(group, *partition)
    try:
        node = await coordinator.get(path)
    except NoNode:
        return Create(path, offset.encode())
    before = CommittedOffset.decode(path, node.data)
    if before.topic_id == offset.topic_id and before.offset >= offset.offset:
        return None
    return Set(path, offset.encode(), node.stat.version)
