"""Claims: which member of a group consumes which partition, and the fence of its commits.

Ownership of a partition has two parts. ``assignment/<topic>/<n>`` is persistent and its version
only rises: every claim sets it, and the version that the claim gave it is the *generation*, which
every commit checks. ``owners/<topic>/<n>`` is ephemeral and says who is consuming now: a claim
creates it, so it waits until the last owner has released (drained and committed) or is dead. A
former owner whose session is long gone fails at the generation, whatever it still believes.

Functions in here do one step each and settle lost replies by reading; when to claim is decided by
the client's membership.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from vq.coordination.coordinator import (
    Coordinator,
    Create,
    Delete,
    Node,
    NodeExists,
    NoNode,
    Operation,
    SessionExpired,
    Set,
    Watch,
)
from vq.coordination.paths import Assignment, CommittedOffset, Owner, Partition, PartitionOfGroup
from vq.coordination.reading import numbered_children, read_numbered
from vq.coordination.update import Plan, settle, update
from vq.errors import CoordinationError
from vq.model import TopicPartition

#: Characters of what an owner node says of its trouble.
STOPPED_TEXT_MAX: Final = 500
Kept = TypeVar("Kept", bound=PartitionOfGroup)


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


async def read_partitions(
    coordinator: Coordinator,
    kind: type[Kept],
    group: str,
    topics: Sequence[str],
    *,
    watch: Watch | None = None,
) -> dict[TopicPartition, Kept]:
    """Return what the group keeps of one kind; partitions without it are left out.

    ``watch`` hints when one comes or goes.
    """
    found: dict[TopicPartition, Kept] = {}
    for topic in sorted(topics):
        nodes = await read_numbered(coordinator, kind.parent(group, topic), watch=watch)
        for number, data in nodes.items():
            value = kind.decode(kind.path(group, topic, number), data)
            found[TopicPartition(topic, number)] = value
    return found


async def claim(
    coordinator: Coordinator,
    group: str,
    member: str,
    partition: TopicPartition,
    *,
    watch: Watch | None = None,
) -> Claim:
    """Own a partition: raise its generation and create the owner node, both or neither.

    Returns the claim with the progress committed so far. A partition this member owns already (a
    lost reply) is claimed again, with a new generation. ``watch`` is left on the owner node of
    another member.

    Raises:
        StillOwned: Another member's owner node is there.
        SessionExpired: The session ended. An owner node may have been made, in the next session
            even: ``release`` deletes it.
    """
    topic, number = partition
    path, owner_path = Assignment.path(group, topic, number), Owner.path(group, topic, number)
    session_id = coordinator.session_id

    async def plan(failed: CoordinationError | None) -> Plan[Claim]:
        if coordinator.session_id != session_id:
            raise SessionExpired(f"the session ended while {partition} was claimed")
        if isinstance(failed, NoNode):
            await make_parents(coordinator, group, topic)  # gone with a topic of that name
        version = await assignment_version(coordinator, group, partition)
        release: list[Operation] = []
        with contextlib.suppress(NoNode):
            owner = await coordinator.get(owner_path, watch=watch)
            if not _is_held_by(owner, owner_path, member, coordinator.session_id):
                raise StillOwned(
                    f"{partition} of group {group!r} is still owned by "
                    f"{Owner.decode(owner_path, owner.data).member!r}"
                )
            release = [Delete(owner_path, owner.stat.version)]
        generation = version + 1
        value = Assignment(member=member, generation=generation).encode()
        owning = Owner(member=member, generation=generation).encode()
        # Applied without an answer: the owner node is ours, and is replaced in the next round.
        operations = [Set(path, value, version), *release, Create(owner_path, owning, True)]
        return Plan(operations, Claim(group, member, partition, generation))

    claimed = await settle(coordinator, plan, what=f"{partition} of group {group!r}")
    return await with_progress(coordinator, claimed)


async def assignment_version(
    coordinator: Coordinator, group: str, partition: TopicPartition
) -> int:
    """Return the version of the assignment, made first (with its neighbours) if it is missing."""
    topic, number = partition
    path = Assignment.path(group, topic, number)
    stat = await coordinator.exists(path)
    if stat is not None:
        return stat.version
    await make_parents(coordinator, group, topic)
    with contextlib.suppress(NodeExists):  # somebody else made it just now, with version 0 as well
        await coordinator.create(path, Assignment().encode())
    return 0


async def make_parents(coordinator: Coordinator, group: str, topic: str) -> None:
    """Make the nodes that owners, offsets and assignments of a topic lie below."""
    for kind in (Owner, CommittedOffset, Assignment):
        parent = kind.parent(group, topic)
        if await coordinator.exists(parent) is None:  # a read costs less than a refused write
            with contextlib.suppress(NodeExists):
                await coordinator.create(parent, parents=True)


async def with_progress(coordinator: Coordinator, claimed: Claim) -> Claim:
    """Return the claim with the progress that the tree has now."""
    topic, number = claimed.partition
    path = CommittedOffset.path(claimed.group, topic, number)

    async def read(_: CoordinationError | None) -> Plan[Claim]:
        try:
            node = await coordinator.get(path)
        except NoNode:
            return Plan((), replace(claimed, committed=None, offset_version=None))
        offset = CommittedOffset.decode(path, node.data)
        return Plan((), replace(claimed, committed=offset, offset_version=node.stat.version))

    return await settle(coordinator, read, what=f"the progress of {claimed.partition}")


async def is_younger(coordinator: Coordinator, group: str, partition: TopicPartition) -> bool:
    """Whether a partition was made after the group's first claim in its topic.

    A group that starts at the latest message leaves out what is older than itself. Such a partition
    holds nothing of that kind, however late the group comes to it.
    """
    topic, number = partition
    first = await coordinator.exists(Assignment.parent(group, topic))
    made = await coordinator.exists(Partition.path(topic, number))
    return first is not None and made is not None and made.czxid > first.czxid


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


async def tell(
    coordinator: Coordinator,
    claimed: Claim,
    *,
    stopped: str = "",
    stopped_at: int | None = None,
    stopped_since_ms: int = 0,
) -> None:
    """Write into the owner node what keeps its member from going on; "": nothing does.

    A node that is another's by now is left alone.
    """
    topic, number = claimed.partition
    path = Owner.path(claimed.group, topic, number)

    def say(node: Node | None) -> Sequence[Operation]:
        if node is None or not _is_held_by(node, path, claimed.member, coordinator.session_id):
            return ()
        value = replace(
            Owner.decode(path, node.data),
            stopped=stopped[:STOPPED_TEXT_MAX],
            stopped_at=stopped_at,
            stopped_since_ms=stopped_since_ms,
        )
        return [Set(path, value.encode(), node.stat.version)]

    await update(coordinator, path, say, what=f"the owner node of {claimed.partition}")


async def release(coordinator: Coordinator, claimed: Claim) -> None:
    """Give a partition up: delete the owner node. Drain and commit before.

    The assignment stays, so the generation goes on rising. Releasing twice is fine; an owner node
    of another session or member is left alone.
    """
    topic, number = claimed.partition
    path = Owner.path(claimed.group, topic, number)

    def give_up(node: Node | None) -> Sequence[Operation]:
        if node is None or not _is_held_by(node, path, claimed.member, coordinator.session_id):
            return ()
        return [Delete(path, node.stat.version)]

    await update(coordinator, path, give_up, what=f"the owner node of {claimed.partition}")


async def fence_claims(coordinator: Coordinator, group: str, topic: str) -> None:
    """Raise the generation of every partition: no claim made so far commits anything any more."""
    for number in await numbered_children(coordinator, Assignment.parent(group, topic)):
        path = Assignment.path(group, topic, number)
        what = f"the assignment of {topic}-{number} in group {group!r}"
        await update(coordinator, path, partial(_fence, path), what=what)


def _fence(path: str, node: Node | None) -> Sequence[Operation]:
    if node is None:
        return ()
    version = node.stat.version
    return [Set(path, Assignment(member="", generation=version + 1).encode(), version)]
