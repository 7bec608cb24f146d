"""Claims: which member of a group consumes which partition, and the fence of its commits.

Ownership of a partition has two parts. ``assignment/<topic>/<n>`` is persistent and its version
only rises: every claim sets it, and the version that the claim gave it is the *generation*, which
every commit checks. ``owners/<topic>/<n>`` is ephemeral and says who is consuming now: a claim
creates it, so it waits until the last owner has released (drained and committed) or is dead. A
former owner whose session is long gone fails at the generation, whatever it still believes.

Functions in here do one step each and settle lost replies by reading; when to claim is decided by
the client's membership. Many partitions are claimed, or released, by one ``multi``. What somebody
else changed meanwhile fails all of it: it is planned anew from what is read then, and as a last
resort each partition goes alone.
"""

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from vq.coordination.coordinator import (
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
    Watch,
)
from vq.coordination.paths import Assignment, CommittedOffset, Owner, Partition, PartitionOfGroup
from vq.coordination.reading import gather_all, numbered_children, read_numbered
from vq.coordination.update import AGAIN, Plan, settle, update
from vq.errors import CoordinationError
from vq.model import TopicPartition

#: Partitions claimed or released by one ``multi``. With the longest names a claim takes 3 KB of the
#: 1 MB that ZooKeeper takes in one request (``jute.maxbuffer``).
CLAIMS_PER_MULTI: Final = 100
#: Partitions of one topic for which their parent's list of names is read first: a name that it does
#: not have saves a read.
LISTED_FROM: Final = 8
#: Characters of what an owner node says of its trouble.
STOPPED_TEXT_MAX: Final = 500
Kept = TypeVar("Kept", bound=PartitionOfGroup)
T = TypeVar("T")


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
    found = await _claim(coordinator, group, member, [partition], None, watch)
    outcome = found[partition]
    if isinstance(outcome, StillOwned):
        raise outcome
    return outcome


async def claim_together(
    coordinator: Coordinator,
    group: str,
    member: str,
    partitions: Sequence[TopicPartition],
    *,
    versions: Mapping[TopicPartition, int],
    watch: Watch | None = None,
) -> dict[TopicPartition, Claim | CoordinationError]:
    """Own up to ``CLAIMS_PER_MULTI`` partitions: what ``claim`` does, with few calls for many.

    Args:
        coordinator: A started coordinator.
        group: The consumer group.
        member: Who claims.
        partitions: What to claim; each once.
        versions: Of the assignments, as they were read before; a partition without one has no
            assignment yet. Versions that are wrong by now cost a second try, and no more.
        watch: Left on the owner nodes of other members.

    Returns:
        Of each partition its claim, or what ``claim`` raises of it.

    Raises:
        ConnectionLost, SessionExpired: Owner nodes may have been made; see ``claim``.
    """
    assert len(partitions) <= CLAIMS_PER_MULTI, f"{len(partitions)} partitions for one multi"
    try:
        return {**await _claim(coordinator, group, member, partitions, versions, watch)}
    except (ConnectionLost, SessionExpired):
        raise
    except CoordinationError:  # one of them keeps changing, or cannot be read
        return await _each_alone(
            partitions, lambda each: claim(coordinator, group, member, each, watch=watch)
        )


async def _each_alone(
    partitions: Sequence[TopicPartition], call: Callable[[TopicPartition], Awaitable[T]]
) -> dict[TopicPartition, T | CoordinationError]:
    """Return what a call returns or raises of each partition; what ends a connection is raised."""
    outcomes: dict[TopicPartition, T | CoordinationError] = {}

    async def alone(partition: TopicPartition) -> None:
        try:
            outcomes[partition] = await call(partition)
        except (ConnectionLost, SessionExpired):
            raise
        except CoordinationError as error:
            outcomes[partition] = error

    await gather_all(alone(each) for each in partitions)
    return outcomes


async def _claim(
    coordinator: Coordinator,
    group: str,
    member: str,
    partitions: Sequence[TopicPartition],
    known: Mapping[TopicPartition, int] | None,
    watch: Watch | None,
) -> dict[TopicPartition, Claim | StillOwned]:
    """Claim what is free of ``partitions``, by one ``multi``; see ``claim_together``.

    Versions that are not ``known`` are read.
    """
    session_id = coordinator.session_id

    async def plan(
        failed: CoordinationError | None,
    ) -> Plan[tuple[list[Claim], dict[TopicPartition, Claim | StillOwned]]]:
        if coordinator.session_id != session_id:
            raise SessionExpired(f"the session ended while {_named(partitions)} was claimed")
        versions = known
        if versions is None or failed is not None:
            versions = await _assignment_versions(coordinator, group, partitions)
        incomplete = {each.topic for each in partitions if each not in versions}
        if isinstance(failed, NoNode):  # gone with a topic of that name
            incomplete = {each.topic for each in partitions}
        for topic in sorted(incomplete):
            await make_parents(coordinator, group, topic)
        owners = await _present(coordinator, Owner, group, partitions, watch=watch)
        claimed: list[Claim] = []
        owned: dict[TopicPartition, Claim | StillOwned] = {}
        operations: list[Operation] = []
        for partition in partitions:
            owner, owner_path = owners.get(partition), Owner.path(group, *partition)
            if owner is not None and not _is_held_by(owner, owner_path, member, session_id):
                other = Owner.decode(owner_path, owner.data).member
                owned[partition] = StillOwned(
                    f"{partition} of group {group!r} is still owned by {other!r}"
                )
                continue
            made = _claim_operations(group, member, partition, versions.get(partition), owner)
            generation = versions.get(partition, 0) + 1
            operations += made
            claimed.append(Claim(group, member, partition, generation))
        return Plan(operations, (claimed, owned))

    what = f"{_named(partitions)} of group {group!r}"
    claimed, outcomes = await settle(coordinator, plan, what=what)
    for each in await with_progress(coordinator, claimed):
        outcomes[each.partition] = each
    return outcomes


def _claim_operations(
    group: str, member: str, partition: TopicPartition, version: int | None, owner: Node | None
) -> list[Operation]:
    """Return what claims a partition; None: there is no assignment, or no owner node, yet.

    Applied without an answer, it leaves an owner node of ours: the next try replaces that.
    """
    path, owner_path = Assignment.path(group, *partition), Owner.path(group, *partition)
    operations: list[Operation] = []
    if version is None:
        operations.append(Create(path, Assignment().encode()))
        version = 0
    generation = version + 1
    value = Assignment(member=member, generation=generation).encode()
    operations.append(Set(path, value, version))
    if owner is not None:
        operations.append(Delete(owner_path, owner.stat.version))
    owning = Owner(member=member, generation=generation).encode()
    return [*operations, Create(owner_path, owning, True)]


def _named(partitions: Sequence[TopicPartition]) -> str:
    """Return how messages call what is claimed together."""
    more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
    return f"{partitions[0]}{more}"


async def _assignment_versions(
    coordinator: Coordinator, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Return the versions of the assignments that are there."""
    stats = await gather_all(
        coordinator.exists(Assignment.path(group, *each)) for each in partitions
    )
    found = zip(partitions, stats, strict=True)
    return {partition: stat.version for partition, stat in found if stat is not None}


async def _present(
    coordinator: Coordinator,
    kind: type[PartitionOfGroup],
    group: str,
    partitions: Sequence[TopicPartition],
    *,
    watch: Watch | None = None,
) -> dict[TopicPartition, Node]:
    """Return the nodes of one kind that are there, each with a ``watch``."""
    wanted = sorted(partitions)
    for topic, count in Counter(each.topic for each in partitions).items():
        if count >= LISTED_FROM:
            numbers = set(await numbered_children(coordinator, kind.parent(group, topic)))
            wanted = [each for each in wanted if each.topic != topic or each.partition in numbers]

    async def read(partition: TopicPartition) -> Node | None:
        try:
            return await coordinator.get(kind.path(group, *partition), watch=watch)
        except NoNode:
            return None

    nodes = await gather_all(read(each) for each in wanted)
    found = zip(wanted, nodes, strict=True)
    return {partition: node for partition, node in found if node is not None}


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


async def with_progress(coordinator: Coordinator, claimed: Sequence[Claim]) -> list[Claim]:
    """Return claims of one group with the progress that the tree has now, in the same order."""
    if not claimed:
        return []
    group, partitions = claimed[0].group, [each.partition for each in claimed]

    async def read(_: CoordinationError | None) -> Plan[list[Claim]]:
        nodes = await _present(coordinator, CommittedOffset, group, partitions)
        return Plan((), [_with_progress(each, nodes.get(each.partition)) for each in claimed])

    return await settle(coordinator, read, what=f"the progress of {_named(partitions)}")


def _with_progress(claimed: Claim, node: Node | None) -> Claim:
    if node is None:
        return replace(claimed, committed=None, offset_version=None)
    path = CommittedOffset.path(claimed.group, *claimed.partition)
    offset = CommittedOffset.decode(path, node.data)
    return replace(claimed, committed=offset, offset_version=node.stat.version)


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


async def release_together(
    coordinator: Coordinator, claimed: Sequence[Claim]
) -> list[CoordinationError | None]:
    """Give up ``CLAIMS_PER_MULTI`` partitions at most: what ``release`` does, with one call.

    While a generation is the one of our claim, the owner node is the one that this claim made, so
    it is deleted unread.

    Returns:
        Of each claim what ``release`` raises of it, in the same order.

    Raises:
        ConnectionLost, SessionExpired: Some may not be released; release them again.
    """
    assert len(claimed) <= CLAIMS_PER_MULTI, f"{len(claimed)} claims for one multi"
    operations: list[Operation] = []
    for each in claimed:
        fence = Check(Assignment.path(each.group, *each.partition), each.generation)
        operations += [fence, Delete(Owner.path(each.group, *each.partition))]
    try:
        await coordinator.multi(operations)
    except NotConnected:
        raise
    except AGAIN:  # one of them is not ours any more, or the answer was lost
        claims = {each.partition: each for each in claimed}
        found = await _each_alone(list(claims), lambda each: release(coordinator, claims[each]))
        return [found[each.partition] for each in claimed]
    return [None] * len(claimed)


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
