"""Claims: which member of a group consumes which partition, and the fence of its commits.

Ownership of a partition has two parts. ``assignment/<topic>/<n>`` is persistent, and its version
only rises. Every claim sets it; the version after the claim is the *generation*, which every commit
checks. ``owners/<topic>/<n>`` is ephemeral and names the member that consumes now. A claim creates
it, so a claim waits until the last owner has released the partition (drained and committed) or is
dead. A former owner whose session has ended fails at the check of the generation.

Each function here does one step and reads after a lost reply to learn the outcome. The client's
membership decides when to claim. One ``multi`` claims or releases many partitions. If another
writer changed one of them, the whole ``multi`` fails; it is planned again from new reads, and as a
last resort each partition is claimed or released alone.
"""

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar

from vq.coordination.tree.coordinator import (
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
    parent_of,
)
from vq.coordination.tree.paths import CONSUMERS
from vq.coordination.tree.reading import gather_all, numbered_children, read_all, read_numbered
from vq.coordination.tree.update import AGAIN, TRIES_MAX, Plan, apply_plan, update
from vq.coordination.tree.values.consumers import (
    HISTORY_MAX,
    Assignment,
    ClaimReason,
    CommittedOffset,
    ConsumerGroup,
    Owner,
    PartitionOfGroup,
    PastClaim,
)
from vq.coordination.tree.values.partitions import Partition
from vq.errors import CoordinationError
from vq.model import TopicPartition
from vq.reserved import Purpose, group_of

#: Partitions claimed or released by one ``multi``. With the longest names a claim needs 6 KB of the
#: 1 MB that ZooKeeper accepts in one request (``jute.maxbuffer``).
CLAIMS_PER_MULTI: Final = 100
#: With so many partitions of one topic, list their parent first: this saves the reads of missing
#: nodes.
LISTED_FROM: Final = 8
#: Longest text of an error in an owner node, in characters.
STOPPED_TEXT_MAX: Final = 500
#: A reset in the history of an assignment.
_RESET: Final = f'"{ClaimReason.RESET}"'.encode()
Kept = TypeVar("Kept", bound=PartitionOfGroup)
T = TypeVar("T")


class StillOwned(CoordinationError):
    """Another member has not yet released the partition; try again when its owner node is gone."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A partition this member owns.

    ``generation`` fences every commit. ``committed`` and ``offset_version`` are the progress as the
    offset store knows it (None and None: no commit yet).
    """

    group: str
    member: str
    partition: TopicPartition
    generation: int
    committed: CommittedOffset | None = None
    offset_version: int | None = None


@dataclass(frozen=True, slots=True)
class Assigned:
    """The last claim of a partition: the member, and the version of the assignment's node.

    ``member`` is "" after a reset. The node is kept as it was read: a member reads all claims of
    its group, and needs the history only of those partitions that it claims.
    """

    member: str
    version: int
    path: str = field(default="", compare=False)
    data: bytes = field(default=b"", compare=False, repr=False)

    @property
    def history(self) -> tuple[PastClaim, ...]:
        """The last claims, the oldest first.

        Raises:
            Unreadable: The node has no assignment that this vq can read.
        """
        return Assignment.decode(self.path, self.data).history if self.data else ()

    @property
    def may_be_reset(self) -> bool:
        """Whether it was reset since the last claim, or not many claims ago."""
        return not self.member or _RESET in self.data


@dataclass(frozen=True, slots=True)
class Occasion:
    """When a claim is made, and who is in the group then: what its history says."""

    time_ms: int
    members: Collection[str]

    def history(
        self, before: Assigned | None, member: str, generation: int
    ) -> tuple[PastClaim, ...]:
        """Return the history of a partition that ``member`` claims."""
        if before is None or not before.version:
            reason = ClaimReason.FIRST
        elif not before.member:
            reason = ClaimReason.RESET
        elif before.member == member:
            reason = ClaimReason.AGAIN
        else:
            reason = ClaimReason.BALANCE if before.member in self.members else ClaimReason.LEFT
        past = PastClaim(
            member=member, generation=generation, time_ms=self.time_ms, reason=str(reason)
        )
        return (*(before.history if before is not None else ()), past)[-HISTORY_MAX:]


async def read_partitions(
    coordinator: Coordinator, kind: type[Kept], group: str, topics: Sequence[str]
) -> dict[TopicPartition, Kept]:
    """Return the group's values of one kind, by partition; partitions without one are left out."""
    found: dict[TopicPartition, Kept] = {}
    for topic in sorted(topics):
        nodes = await read_numbered(coordinator, kind.parent(group, topic))
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
    occasion: Occasion | None = None,
    watch: Watch | None = None,
) -> Claim:
    """Claim a partition: raise its generation and create the owner node, both or neither.

    What was committed so far is asked of the offset store then, not before. If this member owns the
    partition already (a lost reply), it claims it again with a new generation. If another member
    owns it, ``watch`` is set on the owner node. Without ``occasion`` the history stays as it was.

    Raises:
        StillOwned: Another member's owner node exists.
        SessionExpired: The session ended. An owner node may have been created, even in the next
            session: ``release`` deletes it.
    """
    found = await _claim(coordinator, group, member, [partition], None, occasion, watch)
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
    known: Mapping[TopicPartition, Assigned],
    occasion: Occasion | None = None,
    watch: Watch | None = None,
) -> dict[TopicPartition, Claim | CoordinationError]:
    """Claim up to ``CLAIMS_PER_MULTI`` partitions as ``claim`` does, with few calls.

    Args:
        coordinator: A started coordinator.
        group: The consumer group.
        member: The member that claims.
        partitions: The partitions to claim; each once.
        known: The assignments as read before; a partition without one has no assignment yet. An
            outdated one only costs a second try.
        occasion: For the history; without it, that stays as it was.
        watch: Set on the owner nodes of other members.

    Returns:
        For each partition its claim, or the error that ``claim`` would raise.

    Raises:
        ConnectionLost, SessionExpired: Owner nodes may have been created; see ``claim``.
    """
    assert len(partitions) <= CLAIMS_PER_MULTI, f"{len(partitions)} partitions for one multi"
    try:
        return {**await _claim(coordinator, group, member, partitions, known, occasion, watch)}
    except (ConnectionLost, SessionExpired):
        raise
    except CoordinationError:  # one of them keeps changing, or cannot be read
        return await each_alone(
            partitions,
            lambda each: claim(coordinator, group, member, each, occasion=occasion, watch=watch),
        )


async def each_alone(
    partitions: Sequence[TopicPartition], call: Callable[[TopicPartition], Awaitable[T]]
) -> dict[TopicPartition, T | CoordinationError]:
    """Return each partition's result or error of a call; raise a lost connection or session."""
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
    known: Mapping[TopicPartition, Assigned] | None,
    occasion: Occasion | None,
    watch: Watch | None,
) -> dict[TopicPartition, Claim | StillOwned]:
    """Claim the free ones of ``partitions`` by one ``multi``; see ``claim_together``.

    The assignments are read if ``known`` is None, and after a failure.
    """
    session_id = coordinator.session_id

    async def plan(
        failed: CoordinationError | None,
    ) -> Plan[tuple[list[Claim], dict[TopicPartition, Claim | StillOwned]]]:
        if coordinator.session_id != session_id:
            raise SessionExpired(f"the session ended while {named(partitions)} was claimed")
        assigned = known
        if assigned is None or failed is not None:
            assigned = await _assignments(coordinator, group, partitions)
        incomplete = {each.topic for each in partitions if each not in assigned}
        if isinstance(failed, NoNode):  # the parents were deleted with the topic
            incomplete = {each.topic for each in partitions}
        for topic in sorted(incomplete):
            await make_parents(coordinator, group, topic)
        owners = await present_nodes(coordinator, Owner, group, partitions, watch=watch)
        claimed: list[Claim] = []
        owned: dict[TopicPartition, Claim | StillOwned] = {}
        operations: list[Operation] = []
        for partition in partitions:
            owner, owner_path = owners.get(partition), Owner.path(group, *partition)
            if owner is not None and not is_held_by(owner, owner_path, member, session_id):
                other = Owner.decode(owner_path, owner.data).member
                owned[partition] = StillOwned(
                    f"{partition} of group {group!r} is still owned by {other!r}"
                )
                continue
            before = assigned.get(partition)
            generation = 1 if before is None else before.version + 1
            history = () if before is None else before.history
            if occasion is not None:
                history = occasion.history(before, member, generation)
            value = Assignment(member=member, generation=generation, history=history)
            operations += _claim_operations(group, partition, before, value, owner)
            claimed.append(Claim(group, member, partition, generation))
        return Plan(operations, (claimed, owned))

    what = f"{named(partitions)} of group {group!r}"
    claimed, outcomes = await apply_plan(coordinator, plan, what=what)
    outcomes.update({each.partition: each for each in claimed})
    return outcomes


def _claim_operations(
    group: str,
    partition: TopicPartition,
    before: Assigned | None,
    value: Assignment,
    owner: Node | None,
) -> list[Operation]:
    """Return the operations that claim a partition.

    ``before`` and ``owner`` are None if there is no assignment, or no owner node. If the claim is
    applied and its answer is lost, the next try replaces our own owner node.
    """
    path, owner_path = Assignment.path(group, *partition), Owner.path(group, *partition)
    operations: list[Operation] = []
    if before is None:
        operations.append(Create(path, Assignment().encode()))
    operations.append(Set(path, value.encode(), value.generation - 1))
    if owner is not None:
        operations.append(Delete(owner_path, owner.stat.version))
    owning = Owner(member=value.member, generation=value.generation).encode()
    return [*operations, Create(owner_path, owning, True)]


def named(partitions: Sequence[TopicPartition]) -> str:
    """Return a short name of several partitions, for messages."""
    more = f" and {len(partitions) - 1} more" if len(partitions) > 1 else ""
    return f"{partitions[0]}{more}"


async def _assignments(
    coordinator: Coordinator, group: str, partitions: Sequence[TopicPartition]
) -> dict[TopicPartition, Assigned]:
    """Return the existing assignments."""
    paths = [Assignment.path(group, *each) for each in partitions]
    nodes = zip(partitions, paths, await read_all(coordinator, paths), strict=True)
    return {where: assigned_of(path, node) for where, path, node in nodes if node is not None}


def assigned_of(path: str, node: Node) -> Assigned:
    """Return the last claim that an assignment's node tells of."""
    member = Assignment.member_in(path, node.data)
    return Assigned(member, node.stat.version, path, node.data)


async def read_assigned(coordinator: Coordinator, path: str) -> Assigned | None:
    """Return the assignment at a path, None if there is none."""
    try:
        return assigned_of(path, await coordinator.get(path))
    except NoNode:
        return None


async def present_nodes(
    coordinator: Coordinator,
    kind: type[PartitionOfGroup],
    group: str,
    partitions: Sequence[TopicPartition],
    *,
    watch: Watch | None = None,
) -> dict[TopicPartition, Node]:
    """Return the existing nodes of one kind; set ``watch`` on each."""
    wanted = sorted(partitions)
    if watch is None:
        paths = [kind.path(group, *each) for each in wanted]
        found = zip(wanted, await read_all(coordinator, paths), strict=True)
        return {partition: node for partition, node in found if node is not None}
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


async def fence_of(coordinator: Coordinator, group: str, partition: TopicPartition) -> Assignment:
    """Return the assignment that ends every claim so far, to be set over the version before it.

    If there is no assignment yet, it and the parents are created first.
    """
    path = Assignment.path(group, *partition)
    before = await read_assigned(coordinator, path)
    if before is None:
        await make_parents(coordinator, group, partition.topic)
        with contextlib.suppress(NodeExists):  # another member just created it, also with version 0
            await coordinator.create(path, Assignment().encode())
        return Assignment(generation=1)
    return Assignment(generation=before.version + 1, history=before.history)


async def make_parents(coordinator: Coordinator, group: str, topic: str) -> None:
    """Create the parents of a topic's owners, offsets and assignments.

    Members that begin together all do so: one read tells what is missing, one write makes it.
    """
    kinds = (Owner, CommittedOffset, Assignment)
    parents = [kind.parent(group, topic) for kind in kinds]
    paths = [CONSUMERS, ConsumerGroup.path(group), *map(parent_of, parents), *parents]

    for _ in range(TRIES_MAX):
        nodes = zip(paths, await read_all(coordinator, paths), strict=True)
        missing = [Create(path) for path, node in nodes if node is None]
        if not missing:
            return
        with contextlib.suppress(NodeExists, NoNode):  # another one makes them, or deleted them
            await coordinator.multi(missing)
            return
    raise CoordinationError(
        f"the nodes of topic {topic!r} in group {group!r} changed {TRIES_MAX} times meanwhile; "
        "try again"
    )


async def is_younger(
    coordinator: Coordinator, group: str, partition: TopicPartition, *, by_pattern: bool = False
) -> bool:
    """Return whether a partition was created after the group's first claim in its topic.

    A group that starts at the latest message skips messages that are older than the group. A
    younger partition has no such messages, so the group reads it from its start. A topic that the
    group reads ``by_pattern`` may be younger as a whole: the group's contract counts then. Its
    retry topic has nothing that is older than the group.
    """
    topic, number = partition
    if group_of(topic, Purpose.RETRY) == group:
        return True
    parent = ConsumerGroup.path(group) if by_pattern else Assignment.parent(group, topic)
    first = await coordinator.exists(parent)
    made = await coordinator.exists(Partition.path(topic, number))
    return first is not None and made is not None and made.czxid > first.czxid


def is_held_by(owner: Node, path: str, member: str, session_id: int) -> bool:
    """Return whether an owner node is of this member and session (members may share a session)."""
    return (
        owner.stat.ephemeral_owner == session_id and Owner.decode(path, owner.data).member == member
    )


async def still_ours(coordinator: Coordinator, claimed: Claim) -> bool:
    """Return whether this member owns the partition in the tree; for the periodic audit."""
    return claimed.partition in await those_still_ours(coordinator, [claimed])


async def those_still_ours(
    coordinator: Coordinator, claimed: Sequence[Claim]
) -> set[TopicPartition]:
    """Return the partitions of claims that this member still owns in the tree."""
    paths = [Owner.path(each.group, *each.partition) for each in claimed]
    fences = [Assignment.path(each.group, *each.partition) for each in claimed]
    nodes = await read_all(coordinator, [*paths, *fences])
    owners, assignments = nodes[: len(claimed)], nodes[len(claimed) :]
    return {
        each.partition
        for each, path, owner, assignment in zip(claimed, paths, owners, assignments, strict=True)
        if owner is not None
        and assignment is not None
        and is_held_by(owner, path, each.member, coordinator.session_id)
        and assignment.stat.version == each.generation
    }


async def report_stopped(
    coordinator: Coordinator, reports: Sequence[tuple[Claim, Mapping[str, Any]]]
) -> None:
    """Write into owner nodes what stops their member there, by the fields of ``Owner``; none: it
    goes on.

    It is one write for up to ``CLAIMS_PER_MULTI`` partitions. If a node belongs to another member
    or session by then, nothing is written there.
    """
    assert len(reports) <= CLAIMS_PER_MULTI, f"{len(reports)} partitions for one multi"

    async def change(claimed: Claim, told: Mapping[str, Any]) -> Operation | None:
        topic, number = claimed.partition
        path = Owner.path(claimed.group, topic, number)
        try:
            node = await coordinator.get(path)
        except NoNode:
            return None
        if not is_held_by(node, path, claimed.member, coordinator.session_id):
            return None
        before = Owner.decode(path, node.data)
        value = Owner(member=before.member, generation=before.generation, **told)
        value = replace(value, stopped=value.stopped[:STOPPED_TEXT_MAX])
        return None if value == before else Set(path, value.encode(), node.stat.version)

    async def plan(_: CoordinationError | None) -> Plan[None]:
        changes = await gather_all(change(claimed, told) for claimed, told in reports)
        return Plan([each for each in changes if each is not None], None)

    await apply_plan(coordinator, plan, what="the owner nodes of partitions that do not go on")


async def release(coordinator: Coordinator, claimed: Claim) -> None:
    """Release a partition: delete the owner node. The caller has drained and committed before.

    The assignment stays, so the generation keeps rising. Releasing twice is a no-op. An owner node
    of another session or member is not deleted.
    """
    topic, number = claimed.partition
    path = Owner.path(claimed.group, topic, number)

    def give_up(node: Node | None) -> Sequence[Operation]:
        if node is None or not is_held_by(node, path, claimed.member, coordinator.session_id):
            return ()
        return [Delete(path, node.stat.version)]

    await update(coordinator, path, give_up, what=f"the owner node of {claimed.partition}")


async def release_together(
    coordinator: Coordinator, claimed: Sequence[Claim]
) -> list[CoordinationError | None]:
    """Release up to ``CLAIMS_PER_MULTI`` partitions as ``release`` does, with one call.

    The owner nodes are deleted unread: while the generation is that of our claim, the owner node is
    the one that the claim created.

    Returns:
        For each claim the error that ``release`` would raise, or None, in the same order.

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
    except AGAIN:  # another member has one of them now, or the answer was lost
        claims = {each.partition: each for each in claimed}
        found = await each_alone(list(claims), lambda each: release(coordinator, claims[each]))
        return [found[each.partition] for each in claimed]
    return [None] * len(claimed)


async def fence_claims(coordinator: Coordinator, group: str, topic: str, only_if: Check) -> None:
    """Raise the generation of every partition, so that no earlier claim can commit.

    Raises:
        NoNode: ``only_if`` does not hold; its path is that of the check.
    """
    for number in await numbered_children(coordinator, Assignment.parent(group, topic)):
        path = Assignment.path(group, topic, number)
        what = f"the assignment of {topic}-{number} in group {group!r}"
        await apply_plan(coordinator, partial(_fenced, coordinator, path, only_if), what=what)


async def _fenced(
    coordinator: Coordinator, path: str, only_if: Check, _: CoordinationError | None
) -> Plan[None]:
    if await coordinator.exists(only_if.path) is None:
        raise NoNode(only_if.path)
    before = await read_assigned(coordinator, path)
    if before is None:
        return Plan((), None)
    value = Assignment(generation=before.version + 1, history=before.history)
    return Plan([only_if, Set(path, value.encode(), before.version)], None)
