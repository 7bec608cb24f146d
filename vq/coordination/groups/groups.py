"""A consumer group in the tree: its contract, its members, its deletion.

The partitions of its members are in ``claims``, their progress is in ``commits``. Each function
here does one step and reads after a lost reply to learn the outcome. The client's membership
decides when to join.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from vq.coordination.groups.contract import check_own_topics, merge
from vq.coordination.tree.coordinator import (
    Coordinator,
    Create,
    Delete,
    Listing,
    Node,
    NodeExists,
    NoNode,
    NotAllowed,
    NotEmpty,
    Operation,
    Read,
    Set,
    Stat,
    Watch,
    WatchEvent,
)
from vq.coordination.tree.paths import CONSUMERS, TOPICS
from vq.coordination.tree.reading import (
    children_or_none,
    gather_all,
    listing_or_none,
    read_all,
    read_nodes,
)
from vq.coordination.tree.subtree import remove_below
from vq.coordination.tree.update import Plan, apply_plan, update
from vq.coordination.tree.values.consumers import ConsumerGroup, Member
from vq.errors import CoordinationError, InvalidState
from vq.model import check_name

_NAME_RECHECK_S = 1.0
#: Ends the name of the node that keeps the place of a member; no member has it in its name.
_PLACE: Final = "~"


class UnknownGroup(CoordinationError):
    """There is no consumer group of this name."""

    retriable = False
    hint = "the first consumer of a group creates it; `vq group list` shows all groups"


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member of a group, as read from the tree."""

    member: str
    value: Member
    session_id: int


# The contract -----------------------------------------------------------------------------------
async def ensure_group(
    coordinator: Coordinator, group: str, contract: ConsumerGroup, *, now_ms: int = 0
) -> ConsumerGroup:
    """Create the group with this contract, or check that it fits the group's contract.

    New topics are added, and ``by_stream`` becomes that of this contract. A roll that is over at
    ``now_ms`` ends. Returns the contract of the group.

    Raises:
        InvalidArgument: A term, or the filter of a topic, differs (``MemberDiffers``): members that
            disagree would skip or repeat messages.
    """
    path = ConsumerGroup.path(check_name("group", group))

    async def plan(_: CoordinationError | None) -> Plan[ConsumerGroup]:
        try:
            node = await coordinator.get(path)
        except NoNode:
            return Plan([Create(path, contract.encode())], contract)
        if not node.data:  # created as a parent, after the group was deleted
            return Plan([Set(path, contract.encode(), node.stat.version)], contract)
        present = ConsumerGroup.decode(path, node.data)
        merged = merge(group, present, contract, now_ms)
        if merged == present:
            return Plan((), present)
        return Plan([Set(path, merged.encode(), node.stat.version)], merged)

    return await apply_plan(coordinator, plan, what=f"the contract of group {group!r}")


async def change_contract(
    coordinator: Coordinator, group: str, change: Callable[[ConsumerGroup], ConsumerGroup]
) -> ConsumerGroup:
    """Give the group the contract that ``change`` makes of its own; members follow. Returns it.

    Raises:
        UnknownGroup: There is none of this name.
        InvalidArgument: See ``check_own_topics``.
    """
    path = ConsumerGroup.path(check_name("group", group))

    async def plan(_: CoordinationError | None) -> Plan[ConsumerGroup]:
        present = await _read_contract(coordinator, group)
        if present is None:
            raise UnknownGroup(f"there is no consumer group {group!r}")
        contract, version = present
        changed = change(contract)
        if changed == contract:
            return Plan((), contract)
        check_own_topics(group, changed)
        return Plan([Set(path, changed.encode(), version)], changed)

    return await apply_plan(coordinator, plan, what=f"the contract of group {group!r}")


async def list_groups(coordinator: Coordinator) -> list[str]:
    """Return the sorted names of all consumer groups."""
    return await children_or_none(coordinator, CONSUMERS)


async def read_group(
    coordinator: Coordinator, group: str, watch: Watch | None = None
) -> ConsumerGroup | None:
    """Return the group's contract; None if there is no such group, or it has no contract yet.

    ``watch`` fires when it changes.
    """
    present = await _read_contract(coordinator, group, watch)
    return None if present is None else present[0]


async def _read_contract(
    coordinator: Coordinator, group: str, watch: Watch | None = None
) -> tuple[ConsumerGroup, int] | None:
    """Return the contract and its version in the tree."""
    path = ConsumerGroup.path(check_name("group", group))
    try:
        node = await coordinator.get(path, watch=watch)
    except NoNode:
        return None
    return (ConsumerGroup.decode(path, node.data), node.stat.version) if node.data else None


async def known_group(coordinator: Coordinator, group: str) -> ConsumerGroup:
    """Return the group's contract.

    Raises:
        UnknownGroup: There is none of this name.
    """
    found = await read_group(coordinator, group)
    if found is None:
        raise UnknownGroup(f"there is no consumer group {group!r}")
    return found


async def known_reads(coordinator: Coordinator, group: str) -> ConsumerGroup:
    """Return the group's contract; its topics are those, too, that its patterns match now.

    Raises:
        UnknownGroup: There is none of this name.
    """
    return await with_matches(coordinator, await known_group(coordinator, group))


async def with_matches(coordinator: Coordinator, contract: ConsumerGroup) -> ConsumerGroup:
    """Return a contract whose topics are those, too, that its patterns match now."""
    if not contract.patterns:
        return contract
    return contract.among(await children_or_none(coordinator, TOPICS))


# Members ----------------------------------------------------------------------------------------
async def join_group(coordinator: Coordinator, group: str, member: str, value: Member) -> None:
    """Create this member's node; ``value.nonce`` must be unique to this process.

    Joining again with the same nonce in the same session changes only the value (new topics). The
    node is made anew for that: the others watch the names of the members, not each member.

    Raises:
        NodeExists: Another live member has this name.
    """
    path = Member.path(check_name("group", group), check_name("member", member))

    create = Create(path, value.encode(), ephemeral=True)

    def join(node: Node | None) -> Sequence[Operation]:
        if node is None:
            return [create]
        found = Member.decode(path, node.data)
        if found.nonce != value.nonce:
            raise NodeExists(path, f"member {member!r} of group {group!r} is there already")
        if found == value and node.stat.ephemeral_owner == coordinator.session_id:
            return ()
        return [Delete(path, node.stat.version), create]  # it may be of our own ended session

    await update(coordinator, path, join, what=f"member {member!r} of group {group!r}")


async def name_came_free(
    coordinator: Coordinator, group: str, member: str, timeout_s: float
) -> bool:
    """Wait until no member has this name, since it left or its session ended.

    Return False if one still has it after ``timeout_s``, or if it is of this session.
    """
    path = Member.path(group, member)
    changed = asyncio.Event()

    def hint(_: WatchEvent) -> None:
        changed.set()

    try:
        async with asyncio.timeout(timeout_s):
            while True:
                changed.clear()
                stat = await coordinator.exists(path, watch=hint)
                if stat is None:
                    return True
                if stat.ephemeral_owner == coordinator.session_id:
                    return False
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_NAME_RECHECK_S):  # a watch is a hint
                        await changed.wait()
    except TimeoutError:
        return False


async def leave_group(coordinator: Coordinator, group: str, member: str, nonce: str) -> None:
    """Delete the member node that was made with ``nonce``; one of a later consumer stays."""
    path = Member.path(group, member)

    def leave(node: Node | None) -> Sequence[Operation]:
        if node is None or Member.decode(path, node.data).nonce != nonce:
            return ()
        return [Delete(path, node.stat.version)]

    await update(coordinator, path, leave, what=f"member {member!r} of group {group!r}")


async def member_names(coordinator: Coordinator, group: str) -> list[str]:
    """Return the sorted names of the members."""
    names = await children_or_none(coordinator, Member.parent(group))
    return [name for name in names if not name.endswith(_PLACE)]


async def members(coordinator: Coordinator, group: str) -> dict[str, MemberView]:
    """Return the members, sorted by name."""
    names = await member_names(coordinator, group)
    paths = [Member.path(group, name) for name in names]
    nodes = zip(names, paths, await read_all(coordinator, paths), strict=True)
    return {name: member_of(name, path, node) for name, path, node in nodes if node is not None}


@dataclass(frozen=True, slots=True)
class KnownMembers:
    """The nodes of a group's members, at one version of the node above them.

    A member's node is made anew when its value changes, so that version rises.
    """

    version: tuple[int, int]
    nodes: Mapping[str, Read]


async def read_member_nodes(
    coordinator: Coordinator, names: Sequence[str], known: dict[str, KnownMembers] | None = None
) -> dict[str, Mapping[str, Read] | NotAllowed]:
    """Return the nodes of the members of groups, by group and member; an error for a denied group.

    One request tells of 200 groups whether their members changed. ``known`` is what an earlier call
    found: only the members of groups that changed are read, and put into it.
    """
    known = {} if known is None else known
    found: dict[str, Mapping[str, Read] | NotAllowed] = {}
    changed: dict[str, Listing] = {}

    async def list_again(name: str) -> None:
        try:
            listing = await listing_or_none(coordinator, Member.parent(name))
        except NotAllowed as error:
            found[name] = error
        else:
            if listing is None:
                found[name] = {}
            else:
                changed[name] = listing

    doubtful = []
    parents = await read_nodes(coordinator, [Member.parent(name) for name in names])
    for name, parent in zip(names, parents, strict=True):
        kept = known.pop(name, None)
        if isinstance(parent, NotAllowed):
            found[name] = parent
        elif parent is None or not parent.stat.children_version:
            found[name] = {}
        elif kept is not None and kept.version == _members_version(parent.stat):
            found[name], known[name] = kept.nodes, kept
        else:
            doubtful.append(name)
    await gather_all(list_again(name) for name in doubtful)
    live = {
        name: [each for each in listing.names if not each.endswith(_PLACE)]
        for name, listing in changed.items()
    }
    paths = [Member.path(name, each) for name, members in live.items() for each in members]
    nodes = iter(await read_nodes(coordinator, paths))
    for name, members in live.items():
        own = {each: next(nodes) for each in members}
        found[name] = own
        if all(isinstance(each, Node) for each in own.values()):
            known[name] = KnownMembers(_members_version(changed[name].stat), own)
    return found


def _members_version(stat: Stat) -> tuple[int, int]:
    return stat.czxid, stat.children_version


async def read_member(coordinator: Coordinator, group: str, member: str) -> MemberView | None:
    """Return a member, None if there is none."""
    path = Member.path(group, member)
    try:
        return member_of(member, path, await coordinator.get(path))
    except NoNode:
        return None


def member_of(member: str, path: str, node: Node) -> MemberView:
    """Return the member that a node tells of."""
    return MemberView(member, Member.decode(path, node.data), node.stat.ephemeral_owner)


# Places of members that restart ---------------------------------------------------------------
async def keep_place(
    coordinator: Coordinator, group: str, member: str, value: Member, *, kept_s: float = 0.0
) -> None:
    """Have the others count a member in that is not there and comes again soon.

    Without ``kept_s`` for as long as this session lives; otherwise they do it for that time.
    """
    path = Member.path(group, member + _PLACE)
    kept = replace(value, topics=(), kept_topics=value.topics, kept_s=kept_s)
    create = Create(path, kept.encode(), ephemeral=not kept_s)

    def keep(node: Node | None) -> Sequence[Operation]:
        if node is None:
            return [create]
        owner = 0 if kept_s else coordinator.session_id
        if node.data == create.data and node.stat.ephemeral_owner == owner:
            return ()
        return [Delete(path, node.stat.version), create]

    await update(coordinator, path, keep, what=f"the place of {member!r} in group {group!r}")


async def drop_place(
    coordinator: Coordinator, group: str, member: str, nonce: str, session_id: int
) -> None:
    """Delete a place that is kept with this nonce, by this session (0: by none)."""
    path = Member.path(group, member + _PLACE)

    def drop(node: Node | None) -> Sequence[Operation]:
        if node is None or node.stat.ephemeral_owner != session_id:
            return ()
        if Member.decode(path, node.data).nonce != nonce:
            return ()
        return [Delete(path, node.stat.version)]

    await update(coordinator, path, drop, what=f"the place of {member!r} in group {group!r}")


def with_places(
    found: Mapping[str, MemberView],
) -> tuple[dict[str, MemberView], dict[str, MemberView]]:
    """Return the live members, and by their names those whose places are kept."""
    live = {name: each for name, each in found.items() if not name.endswith(_PLACE)}
    kept = {
        name.removesuffix(_PLACE): replace(
            each,
            member=name.removesuffix(_PLACE),
            value=replace(each.value, topics=each.value.kept_topics),
        )
        for name, each in found.items()
        if name.endswith(_PLACE)
    }
    return live, kept


async def kept_places(coordinator: Coordinator, group: str) -> list[str]:
    """Return the sorted names of members whose places are kept while they are away."""
    names = await children_or_none(coordinator, Member.parent(group))
    places = {name.removesuffix(_PLACE) for name in names if name.endswith(_PLACE)}
    return sorted(places - set(names))


async def _drop_places(coordinator: Coordinator, group: str) -> None:
    """Delete the places of members that were closed; those of members that start stay."""
    for name in await children_or_none(coordinator, Member.parent(group)):
        if name.endswith(_PLACE):
            view = await read_member(coordinator, group, name)
            if view is not None and not view.session_id:
                member = name.removesuffix(_PLACE)
                await drop_place(coordinator, group, member, view.value.nonce, 0)


async def delete_group(coordinator: Coordinator, group: str) -> None:
    """Delete a group without members, with all its progress. May be repeated.

    Raises:
        InvalidState: It has members; nothing was deleted. Or one came meanwhile; the group is
            there, without the progress that it had.
    """
    path, parent = ConsumerGroup.path(check_name("group", group)), Member.parent(group)
    await _drop_places(coordinator, group)
    try:
        with contextlib.suppress(NoNode):
            await coordinator.delete(parent)  # one that joins from here on keeps the group
    except NotEmpty:
        present = await children_or_none(coordinator, parent)
        raise InvalidState(
            f"group {group!r} has members, {len(present)} in all: {', '.join(present[:5])}; "
            "stop them first"
        ) from None
    for name in await children_or_none(coordinator, path):
        if f"{path}/{name}" != parent:
            await remove_below(coordinator, f"{path}/{name}")
    try:
        with contextlib.suppress(NoNode):
            await coordinator.delete(path)
    except NotEmpty:
        raise InvalidState(
            f"a member joined group {group!r} meanwhile; the group exists, and its progress is "
            "deleted"
        ) from None
