"""The tree of a consumer group: membership, claims of partitions, fenced offset commits.

Ownership of a partition has two parts. ``assignment/<topic>/<n>`` is persistent and its version
only rises: every claim sets it, and the version that the claim gave it is the *generation*, which
every commit checks. ``owners/<topic>/<n>`` is ephemeral and says who is consuming now: a claim
creates it, so it waits until the last owner has released (drained and committed) or is dead. A
former owner whose session is long gone fails at the generation, whatever it still believes.

Functions in here do one step each and settle lost replies by reading; when to join, claim and
commit is decided by the client's membership.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from vq.coordination.coordinator import (
    BadVersion,
    Check,
    ConnectionLost,
    Coordinator,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Operation,
    Set,
    Stat,
    Watch,
    join,
)
from vq.coordination.paths import (
    CONSUMERS,
    Assignment,
    CommittedOffset,
    ConsumerGroup,
    Member,
    Owner,
)
from vq.coordination.reading import children_or_none, gather_all
from vq.errors import CoordinationError, GenerationStale, InvalidArgument, InvalidState
from vq.model import TopicPartition, check_name

#: Commits in one ``multi``; two operations each.
COMMITS_PER_MULTI: Final = 100
TRIES_MAX: Final = 20


class StillOwned(CoordinationError):
    """Another member has not yet released the partition; try again when its owner node goes."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A partition this member owns.

    ``generation`` fences every commit. ``committed`` and ``offset_version`` are the progress as of
    the last commit (None and None: nothing was committed yet).
    """

    group: str
    member: str
    partition: TopicPartition
    generation: int
    committed: CommittedOffset | None = None
    offset_version: int | None = None


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What became of a batch of commits.

    ``done`` has the claims to go on with (their ``committed`` is the new one); ``stale`` the
    partitions that belong to somebody else now, of which nothing was written.
    """

    done: Mapping[TopicPartition, Claim] = field(default_factory=dict)
    stale: tuple[TopicPartition, ...] = ()

    def raise_if_stale(self) -> None:
        """Raise ``GenerationStale`` if any partition was lost."""
        if self.stale:
            names = ", ".join(str(each) for each in self.stale[:10])
            raise GenerationStale(f"not committed, another member owns it now: {names}")


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a group as the tree shows it."""

    member: str
    value: Member
    session_id: int


# The contract -----------------------------------------------------------------------------------
async def ensure_group(
    coordinator: Coordinator, group: str, contract: ConsumerGroup
) -> ConsumerGroup:
    """Make the group with this contract, or check that it fits the one the group has.

    Topics that the group does not know yet are added. Returns the contract in force.

    Raises:
        InvalidArgument: The model differs, or the filter of a topic does: members that disagree
            would skip or repeat messages.
    """
    path = ConsumerGroup.path(check_name("group", group))
    for _ in range(TRIES_MAX):
        try:
            node = await coordinator.get(path)
        except NoNode:
            with contextlib.suppress(NodeExists, ConnectionLost):
                await coordinator.create(path, contract.encode(), parents=True)
            continue
        present = ConsumerGroup.decode(path, node.data)
        merged = _merged(group, present, contract)
        if merged == present:
            return present
        with contextlib.suppress(BadVersion, ConnectionLost):
            await coordinator.set(path, merged.encode(), version=node.stat.version)
    raise CoordinationError(f"the contract of group {group!r} changed {TRIES_MAX} times meanwhile")


def _merged(group: str, present: ConsumerGroup, wanted: ConsumerGroup) -> ConsumerGroup:
    if present.model != wanted.model:
        raise InvalidArgument(
            f"group {group!r} has model {present.model!r}, this member wants {wanted.model!r}; "
            "use another group name"
        )
    for topic, wanted_filter in wanted.topics.items():
        if present.topics.get(topic, wanted_filter) != wanted_filter:
            raise InvalidArgument(
                f"group {group!r} reads topic {topic!r} with filter {present.topics[topic]!r}, "
                f"this member wants {wanted_filter!r}; use another group name"
            )
    return replace(present, topics={**present.topics, **wanted.topics})


async def list_groups(coordinator: Coordinator) -> list[str]:
    """Return the sorted names of all consumer groups."""
    return await children_or_none(coordinator, CONSUMERS)


async def read_group(coordinator: Coordinator, group: str) -> ConsumerGroup | None:
    """Return the group's contract, None if there is no such group."""
    path = ConsumerGroup.path(check_name("group", group))
    try:
        return ConsumerGroup.decode(path, (await coordinator.get(path)).data)
    except NoNode:
        return None


# Members ----------------------------------------------------------------------------------------
async def join_group(coordinator: Coordinator, group: str, member: str, value: Member) -> Stat:
    """Create this member's node; ``value.nonce`` must be unique to this process.

    Joining again with the same nonce in the same session changes only the value (new topics).

    Raises:
        NodeExists: Another live member has this name.
    """
    path = Member.path(check_name("group", group), check_name("member", member))
    for _ in range(TRIES_MAX):
        with contextlib.suppress(ConnectionLost, NodeExists):
            return await coordinator.create(path, value.encode(), ephemeral=True, parents=True)
        try:
            node = await coordinator.get(path)
        except (NoNode, ConnectionLost):
            continue
        found = Member.decode(path, node.data)
        if found.nonce != value.nonce:
            raise NodeExists(path, f"member {member!r} of group {group!r} is there already")
        if node.stat.ephemeral_owner != coordinator.session_id:
            with contextlib.suppress(NoNode, BadVersion, ConnectionLost):  # of our dead session
                await coordinator.delete(path, version=node.stat.version)
            continue
        if found == value:
            return node.stat
        with contextlib.suppress(NoNode, BadVersion, ConnectionLost):
            return await coordinator.set(path, value.encode(), version=node.stat.version)
    raise CoordinationError(f"member {member!r} could not join group {group!r}")


async def leave_group(coordinator: Coordinator, group: str, member: str) -> None:
    """Delete this member's node if it belongs to the present session."""
    path = Member.path(group, member)
    stat = await coordinator.exists(path)
    if stat is not None and stat.ephemeral_owner == coordinator.session_id:
        with contextlib.suppress(NoNode):
            await coordinator.delete(path)


async def members(
    coordinator: Coordinator, group: str, *, watch: Watch | None = None
) -> dict[str, MemberView]:
    """Return the members, sorted by name; ``watch`` hints when one comes or goes."""
    names = await children_or_none(coordinator, Member.parent(group), watch=watch)
    found = await gather_all(_read_member(coordinator, group, name, watch) for name in names)
    return {each.member: each for each in found if each is not None}


async def _read_member(
    coordinator: Coordinator, group: str, member: str, watch: Watch | None
) -> MemberView | None:
    path = Member.path(group, member)
    try:
        node = await coordinator.get(path, watch=watch)
    except NoNode:
        return None
    return MemberView(member, Member.decode(path, node.data), node.stat.ephemeral_owner)


# Assignments and owners -------------------------------------------------------------------------
async def read_assignments(
    coordinator: Coordinator, group: str, topics: Sequence[str]
) -> dict[TopicPartition, Assignment]:
    """Return the last claim of every partition that was ever claimed."""
    found: dict[TopicPartition, Assignment] = {}
    for topic in sorted(topics):
        partitions = await _numbers(coordinator, Assignment.parent(group, topic), topic)
        paths = [Assignment.path(group, *each) for each in partitions]
        for each, path, data in zip(
            partitions, paths, await _read_all(coordinator, paths), strict=True
        ):
            if data is not None:
                found[each] = Assignment.decode(path, data)
    return found


async def read_owners(
    coordinator: Coordinator, group: str, topics: Sequence[str], *, watch: Watch | None = None
) -> dict[TopicPartition, str]:
    """Return the member that consumes each partition now; unowned ones are left out.

    ``watch`` hints when an owner comes or goes.
    """
    found: dict[TopicPartition, str] = {}
    for topic in sorted(topics):
        partitions = await _numbers(coordinator, Owner.parent(group, topic), topic, watch=watch)
        paths = [Owner.path(group, *each) for each in partitions]
        for each, path, data in zip(
            partitions, paths, await _read_all(coordinator, paths), strict=True
        ):
            if data is not None:
                found[each] = Owner.decode(path, data).member
    return found


async def _read_all(coordinator: Coordinator, paths: Sequence[str]) -> list[bytes | None]:
    """Read many nodes at once; None for those that are gone."""

    async def read(path: str) -> bytes | None:
        try:
            return (await coordinator.get(path)).data
        except NoNode:
            return None

    return await gather_all(read(path) for path in paths)


async def _numbers(
    coordinator: Coordinator, parent: str, topic: str, *, watch: Watch | None = None
) -> list[TopicPartition]:
    names = await children_or_none(coordinator, parent, watch=watch)
    return [
        TopicPartition(topic, number)
        for number in sorted(int(name) for name in names if name.isdecimal())
    ]


async def claim(
    coordinator: Coordinator, group: str, member: str, partition: TopicPartition
) -> Claim:
    """Own a partition: raise its generation and create the owner node, both or neither.

    Returns the claim with the progress committed so far. A partition this member owns already (a
    lost reply) is claimed again, with a new generation.

    Raises:
        StillOwned: Another member's owner node is there.
        SessionExpired: Nothing was claimed.
    """
    topic, number = partition
    path, owner_path = Assignment.path(group, topic, number), Owner.path(group, topic, number)
    for _ in range(TRIES_MAX):
        version = await _assignment_version(coordinator, group, partition)
        if version is None:
            continue
        release: list[Operation] = []
        with contextlib.suppress(NoNode):
            owner = await coordinator.get(owner_path)
            if not _is_held_by(owner, owner_path, member, coordinator.session_id):
                raise StillOwned(
                    f"{partition} of group {group!r} is still owned by "
                    f"{Owner.decode(owner_path, owner.data).member!r}"
                )
            release = [Delete(owner_path, owner.stat.version)]
        generation = version + 1
        value = Assignment(member=member, generation=generation).encode()
        owning = Owner(member=member, generation=generation).encode()
        operations = [Set(path, value, version), *release, Create(owner_path, owning, True)]
        try:
            await coordinator.multi(operations)
        except (BadVersion, NodeExists):
            continue
        except NoNode:
            await _make_parents(coordinator, group, topic)  # gone with a topic of that name
            continue
        except ConnectionLost:
            continue  # if it was applied, the owner node is ours and is replaced in the next round
        return await _with_progress(coordinator, Claim(group, member, partition, generation))
    raise CoordinationError(f"{partition} of group {group!r} was not claimed in {TRIES_MAX} tries")


async def _assignment_version(
    coordinator: Coordinator, group: str, partition: TopicPartition
) -> int | None:
    """Return the version of the assignment, made first (with its neighbours) if it is missing.

    None: somebody else made it meanwhile; look again.
    """
    topic, number = partition
    path = Assignment.path(group, topic, number)
    stat = await coordinator.exists(path)
    if stat is not None:
        return stat.version
    for parent in (
        Owner.parent(group, topic),
        CommittedOffset.parent(group, topic),
        Assignment.parent(group, topic),
    ):
        if await coordinator.exists(parent) is None:  # a read costs less than a refused write
            with contextlib.suppress(NodeExists):
                await coordinator.create(parent, parents=True)
    with contextlib.suppress(NodeExists):
        return (await coordinator.create(path, Assignment().encode())).version
    return None


async def _make_parents(coordinator: Coordinator, group: str, topic: str) -> None:
    for parent in (Owner.parent(group, topic), CommittedOffset.parent(group, topic)):
        with contextlib.suppress(NodeExists):
            await coordinator.create(parent, parents=True)


async def _with_progress(coordinator: Coordinator, claimed: Claim) -> Claim:
    topic, number = claimed.partition
    path = CommittedOffset.path(claimed.group, topic, number)
    for _ in range(TRIES_MAX):
        try:
            node = await coordinator.get(path)
        except NoNode:
            return replace(claimed, committed=None, offset_version=None)
        except ConnectionLost:
            continue
        offset = CommittedOffset.decode(path, node.data)
        return replace(claimed, committed=offset, offset_version=node.stat.version)
    raise ConnectionLost(f"the progress of {claimed.partition} could not be read after its claim")


def _is_held_by(owner: Node, path: str, member: str, session_id: int) -> bool:
    """Whether an owner node is this member's, in this session (several members may share one)."""
    return (
        owner.stat.ephemeral_owner == session_id and Owner.decode(path, owner.data).member == member
    )


async def still_ours(coordinator: Coordinator, claimed: Claim) -> bool:
    """Whether the tree agrees that this member owns the partition, for the periodic audit."""
    topic, number = claimed.partition
    path = Owner.path(claimed.group, topic, number)
    try:
        owner = await coordinator.get(path)
    except NoNode:
        return False
    assignment = await coordinator.exists(Assignment.path(claimed.group, topic, number))
    return (
        _is_held_by(owner, path, claimed.member, coordinator.session_id)
        and assignment is not None
        and assignment.version == claimed.generation
    )


async def release(coordinator: Coordinator, claimed: Claim) -> None:
    """Give a partition up: delete the owner node. Drain and commit before.

    The assignment stays, so the generation goes on rising. Releasing twice is fine; an owner node
    of another session or member is left alone.
    """
    topic, number = claimed.partition
    path = Owner.path(claimed.group, topic, number)
    for _ in range(TRIES_MAX):
        try:
            node = await coordinator.get(path)
            if not _is_held_by(node, path, claimed.member, coordinator.session_id):
                return
            await coordinator.delete(path, version=node.stat.version)
        except NoNode:
            return
        except (BadVersion, ConnectionLost):
            continue
        return
    raise ConnectionLost(f"{claimed.partition} of group {claimed.group!r} was not released")


# Offsets ----------------------------------------------------------------------------------------
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
    """Commit what is in ``step``, taking out one by one what cannot be; bounded by its length."""
    lost = 0
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
            index = int(error.details["index"])
            claimed, offset = step.pop(index // 2)
            fresh = await _refreshed(coordinator, claimed, offset)
            if fresh is None or index % 2 == 0:
                stale.append(claimed.partition)
            elif fresh.committed == offset:
                done[claimed.partition] = fresh
            else:
                step.append((fresh, offset))
                lost += 1
                if lost > TRIES_MAX:
                    raise CoordinationError(
                        f"the offset of {claimed.partition} is being written by somebody else"
                    ) from error
        else:
            for claimed, offset in step:
                done[claimed.partition] = _after(claimed, offset)
            return


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
    rest = []
    for claimed, offset in step:
        fresh = await _with_progress(coordinator, claimed)
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
    fresh = await _with_progress(coordinator, claimed)
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
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in sorted(topics):
        parent = CommittedOffset.parent(group, topic)
        partitions = await _numbers(coordinator, parent, topic)
        paths = [CommittedOffset.path(group, *each) for each in partitions]
        for each, path, data in zip(
            partitions, paths, await _read_all(coordinator, paths), strict=True
        ):
            if data is not None:
                found[each] = CommittedOffset.decode(path, data)
    return found


async def _read_offset(coordinator: Coordinator, path: str) -> CommittedOffset | None:
    try:
        return CommittedOffset.decode(path, (await coordinator.get(path)).data)
    except NoNode:
        return None


async def group_topics(coordinator: Coordinator, group: str) -> list[str]:
    """Return the topics that the group has progress or members on, sorted."""
    offsets = await children_or_none(coordinator, join(ConsumerGroup.path(group), "offsets"))
    owners = await children_or_none(coordinator, join(ConsumerGroup.path(group), "owners"))
    return sorted({*offsets, *owners})


async def reset_offset(
    coordinator: Coordinator, group: str, partition: TopicPartition, offset: CommittedOffset
) -> None:
    """Set a group's progress on a partition to any offset, also back.

    Raises the generation in the same ``multi``: a member that consumes the partition now can commit
    nothing any more, claims it again and goes on from here.
    """
    topic, number = partition
    path = CommittedOffset.path(group, topic, number)
    for _ in range(TRIES_MAX):
        version = await _assignment_version(coordinator, group, partition)
        if version is None:
            continue
        fence = Set(
            Assignment.path(group, topic, number),
            Assignment(member="", generation=version + 1).encode(),
            version,
        )
        stat = await coordinator.exists(path)
        write: Operation = (
            Create(path, offset.encode())
            if stat is None
            else Set(path, offset.encode(), stat.version)
        )
        try:
            await coordinator.multi([fence, write])
            return
        except (BadVersion, NodeExists):
            continue
        except NoNode:
            await _make_parents(coordinator, group, topic)
            continue
        except ConnectionLost:
            if await _read_offset(coordinator, path) == offset:
                return
    raise CoordinationError(f"the offset of {partition} changed {TRIES_MAX} times meanwhile")


async def fence_claims(coordinator: Coordinator, group: str, topic: str) -> None:
    """Raise the generation of every partition: no claim made so far commits anything any more."""
    for partition in await _numbers(coordinator, Assignment.parent(group, topic), topic):
        path = Assignment.path(group, *partition)
        for _ in range(TRIES_MAX):
            stat = await coordinator.exists(path)
            if stat is None:
                break
            fence = Assignment(member="", generation=stat.version + 1).encode()
            with contextlib.suppress(BadVersion, NoNode):
                await coordinator.set(path, fence, version=stat.version)
                break


async def delete_group(coordinator: Coordinator, group: str) -> None:
    """Delete a group that has no members, with all its progress.

    Raises:
        InvalidState: It has members.
    """
    present = await children_or_none(coordinator, Member.parent(check_name("group", group)))
    if present:
        raise InvalidState(
            f"group {group!r} has {len(present)} members ({', '.join(present[:5])}); "
            "stop them first"
        )
    await _delete_below(coordinator, ConsumerGroup.path(group))


async def _delete_below(coordinator: Coordinator, path: str) -> None:
    for name in await children_or_none(coordinator, path):
        await _delete_below(coordinator, f"{path}/{name}")
    with contextlib.suppress(NoNode):
        await coordinator.delete(path)
