"""Commits: how far a group is in each partition, fenced by the generation of its claims.

``offsets/<topic>/<n>`` is written in one ``multi`` with a check of the assignment's version, so a
member that lost its partition writes nothing. Only ``reset_offset`` moves progress back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from vq.coordination.claims import (
    Claim,
    assignment_version,
    make_parents,
    read_partitions,
    with_progress,
)
from vq.coordination.coordinator import (
    BadVersion,
    Check,
    ConnectionLost,
    Coordinator,
    Create,
    NodeExists,
    NoNode,
    Operation,
    Set,
)
from vq.coordination.paths import Assignment, CommittedOffset
from vq.coordination.reading import gather_all
from vq.coordination.update import TRIES_MAX, Plan, settle
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.model import TopicPartition

#: Commits in one ``multi``; two operations each.
COMMITS_PER_MULTI: Final = 100


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of a batch of commits.

    ``done`` has the claims to go on with (their ``committed`` is the new one); ``stale`` the
    partitions that belong to somebody else now, of which nothing was written.
    """

    done: Mapping[TopicPartition, Claim] = field(default_factory=dict)
    stale: tuple[TopicPartition, ...] = ()


async def commit(
    coordinator: Coordinator, commits: Sequence[tuple[Claim, CommittedOffset]]
) -> CommitResult:
    """Write offsets, each fenced by its claim's generation; at most one per partition.

    All that fit into one ``multi`` are written together; a stale one does not hold up the others.

    Raises:
        InvalidArgument: An offset lies before the one committed last: only ``reset_offset`` moves
            progress back.
        ConnectionLost: Some may have been written. Commit the same again: it is settled by then.
    """
    for claimed, offset in commits:
        if claimed.committed is not None and offset.offset < claimed.committed.offset:
            raise InvalidArgument(
                f"offset {offset.offset} of {claimed.partition} lies before the committed "
                f"{claimed.committed.offset}; use reset_offset to go back"
            )
    done: dict[TopicPartition, Claim] = {}
    stale: list[TopicPartition] = []
    for start in range(0, len(commits), COMMITS_PER_MULTI):
        step = list(commits[start : start + COMMITS_PER_MULTI])
        await _commit_step(coordinator, step, done, stale)
    return CommitResult(done, tuple(stale))


async def _commit_step(
    coordinator: Coordinator,
    step: list[tuple[Claim, CommittedOffset]],
    done: dict[TopicPartition, Claim],
    stale: list[TopicPartition],
) -> None:
    """Commit what is in ``step``, taking out what cannot be.

    Not ``update.settle``: the claims know the versions, so nothing is read before the write. The
    first failure costs the partition that failed. After another one all are looked at, since many
    that were lost were lost together.
    """
    lost = failures = 0
    while step:
        operations = [operation for each in step for operation in _commit_operations(*each)]
        try:
            await coordinator.multi(operations)
        except ConnectionLost:
            lost += 1
            if lost > 2:
                raise
            step = await _not_yet_written(coordinator, step, done)
        except (BadVersion, NodeExists, NoNode) as error:
            failures += 1
            index = int(error.details["index"])
            claimed, offset = step.pop(index // 2)
            if failures > TRIES_MAX:
                raise CoordinationError(
                    f"the offset of {claimed.partition} is being written by somebody else"
                ) from error
            doubted = [(claimed, offset)]
            if index % 2 == 0:  # the fence
                stale.append(claimed.partition)
                doubted = []
            if failures > 1:
                step, doubted = [], [*step, *doubted]
            step += await _rest(coordinator, doubted, done, stale)
        else:
            for claimed, offset in step:
                done[claimed.partition] = _after(claimed, offset)
            return


async def _rest(
    coordinator: Coordinator,
    doubted: Sequence[tuple[Claim, CommittedOffset]],
    done: dict[TopicPartition, Claim],
    stale: list[TopicPartition],
) -> list[tuple[Claim, CommittedOffset]]:
    """Note which commits are stale, and which are written already; return the others."""
    found = await gather_all(_refreshed(coordinator, *each) for each in doubted)
    rest = []
    for (claimed, offset), fresh in zip(doubted, found, strict=True):
        if fresh is None:
            stale.append(claimed.partition)
        elif fresh.committed == offset:
            done[claimed.partition] = fresh
        else:
            rest.append((fresh, offset))
    return rest


def _commit_operations(claimed: Claim, offset: CommittedOffset) -> list[Operation]:
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
    """After a lost reply: note what was written after all, return the rest."""
    found = await with_progress(coordinator, [claimed for claimed, _ in step])
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


async def _refreshed(
    coordinator: Coordinator, claimed: Claim, offset: CommittedOffset
) -> Claim | None:
    """Return the claim with the progress in the tree, None if it is ours no longer.

    Progress beyond ``offset`` by somebody else cannot happen in our generation, except by a
    commit of our own that was settled late; then there is nothing left to write.
    """
    topic, number = claimed.partition
    stat = await coordinator.exists(Assignment.path(claimed.group, topic, number))
    if stat is None or stat.version != claimed.generation:
        return None
    [fresh] = await with_progress(coordinator, [claimed])
    if fresh.committed is not None and fresh.committed.offset > offset.offset:
        raise InvalidState(
            f"{claimed.partition}: {offset.offset} was to be committed, but "
            f"{fresh.committed.offset} is committed already in this generation"
        )
    return fresh


async def read_offsets(
    coordinator: Coordinator, group: str, topics: Sequence[str]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the committed offsets of a group; partitions without one are left out."""
    return await read_partitions(coordinator, CommittedOffset, group, topics)


async def reset_offset(
    coordinator: Coordinator, group: str, partition: TopicPartition, offset: CommittedOffset
) -> None:
    """Set a group's progress on a partition to any offset, also back.

    Raises the generation in the same ``multi``: a member that consumes the partition now can commit
    nothing any more, claims it again and goes on from here.
    """
    topic, number = partition
    path, data = CommittedOffset.path(group, topic, number), offset.encode()
    fence_path = Assignment.path(group, topic, number)
    tried: set[int] = set()  # versions of the assignment that a try was to raise

    async def plan(failed: CoordinationError | None) -> Plan[None]:
        if isinstance(failed, NoNode):
            await make_parents(coordinator, group, topic)
        version = await assignment_version(coordinator, group, partition)
        try:
            node = await coordinator.get(path)
        except NoNode:
            write: Operation = Create(path, data)
        else:
            if node.data == data and tried and version > max(tried):
                return Plan((), None)  # our own write, whose answer was lost
            write = Set(path, data, node.stat.version)
        tried.add(version)
        fence = Assignment(member="", generation=version + 1).encode()
        return Plan([Set(fence_path, fence, version), write], None)

    await settle(coordinator, plan, what=f"the offset of {partition}")
