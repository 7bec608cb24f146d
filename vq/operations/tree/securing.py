"""Giving every node of the tree the ACL that it must have, and taking all ACLs away again.

Loop-bound functions on a ``ClusterClient``. ``vq.coordination.tree.acls`` says who may do what. A
run that was interrupted goes on where it is called again: it changes the nodes that are not yet as
they must be, and no other one.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from vq.client.cluster import ClusterClient
from vq.coordination.tree.acls import PARENTS_OF_CLIENTS, acl_of, identity_of
from vq.coordination.tree.coordinator import (
    Acl,
    Coordinator,
    Create,
    NodeExists,
    NoNode,
    NotAllowed,
    Set,
)
from vq.coordination.tree.paths import BROKERS, SECURITY, SLOTS, TOPICS
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.single import read_single
from vq.coordination.tree.update import update
from vq.coordination.tree.values.identities import Identities
from vq.coordination.tree.values.slots import SlotCounter
from vq.errors import InvalidState
from vq.operations.base.acts import About, audited
from vq.operations.tree.walking import walk_tree
from vq.shown import shown

#: Nodes whose ACLs are read or set together.
_STEP: Final = 500
#: Values of parents that are made before anybody needs them.
_VALUES: Final = {SLOTS: SlotCounter(next=0).encode()}
#: So many nodes are named; all are counted.
WRONG_MAX: Final = 100
#: So many are named in an error.
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class WrongAcl:
    """A node whose ACL is not the one that it must have.

    Attributes:
        path: Below the root of the cluster; "": the root itself.
        found, wanted: The ACLs; ``found`` is empty if this client may not see it.
    """

    path: str
    found: Acl
    wanted: Acl

    @property
    def is_open(self) -> bool:
        """Whether anybody may do something with it."""
        return any(each.scheme == "world" for each in self.found)


@dataclass(slots=True)
class SecuredTree:
    """What a look at all ACLs found, or a run changed.

    Attributes:
        nodes: How many nodes there are.
        open: How many of them anybody may use who should not.
        others: How many have another ACL than they must have.
        wrong: The first ``WRONG_MAX`` of both.
    """

    nodes: int = 0
    open: int = 0
    others: int = 0
    wrong: list[WrongAcl] = field(default_factory=list)

    def add(self, found: WrongAcl) -> None:
        """Count a node whose ACL is wrong."""
        if found.is_open:
            self.open += 1
        else:
            self.others += 1
        if len(self.wrong) < WRONG_MAX:
            self.wrong.append(found)


async def identities_of(cluster: ClusterClient) -> Identities | None:
    """Return who holds rights in the tree; None: anybody does.

    Raises:
        CoordinationError: ZooKeeper cannot be asked, or this client may not read it.
    """
    found = await read_single(cluster.coordinator, Identities)
    return None if found is None else found[0]


async def plan_secure_tree(cluster: ClusterClient, identities: Identities | None) -> SecuredTree:
    """Return which nodes have not the ACL that they must have; changes nothing.

    Args:
        cluster: An open client.
        identities: Who is to hold rights; None: anybody.
    """
    found = SecuredTree()
    async for _ in _wrong(cluster.coordinator, identities, found):
        pass
    return found


@audited(About.ACLS)
async def secure_tree(cluster: ClusterClient, identities: Identities | None) -> SecuredTree:
    """Give every node the ACL that it must have; return what was changed.

    Processes that run go on if ZooKeeper knows them: they name themselves (``zookeeper_auth``)
    before the tree is secured. What they make meanwhile has its ACL within a fifth of their session
    time-out; a second call finds the rest.

    Args:
        cluster: An open client, which is known as one of the operators.
        identities: Who is to hold rights; None: anybody, and the list of identities goes.

    Raises:
        InvalidState: This client is no operator of ``identities``, and could not go on; or nodes
            have an ACL that it may not change, and all others have theirs.
        CoordinationError: ZooKeeper cannot be asked, or does not allow it.
    """
    coordinator = cluster.coordinator
    if identities is None:
        try:
            await coordinator.delete(Identities.path())
        except NoNode:
            pass
    else:
        own = cluster.config.zookeeper_auth
        if not own or identity_of(own) not in identities.operators:
            raise InvalidState(
                "this client is none of the operators that would hold the rights, and could not "
                "change them again: set zookeeper_auth (VQ_ZOOKEEPER_AUTH) to one of them"
            )
        await _write(coordinator, identities)
    done = SecuredTree()
    refused: list[str] = []
    async for step in _wrong(coordinator, identities, done):
        set_ = await gather_all(_set(coordinator, each) for each in step)
        refused += [each.path for each, is_set in zip(step, set_, strict=True) if not is_set]
    if refused:
        named = ", ".join(map(shown, refused[:_NAMED]))
        more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
        raise InvalidState(
            f"{len(refused)} nodes keep an ACL that lets no operator change it: {named}{more}; all "
            "others have theirs. Whoever may write beside them has made them: delete them as "
            "ZooKeeper's super user (docs/howto/secure-zookeeper.md), and run it again"
        )
    return done


async def open_at_top(cluster: ClusterClient) -> list[str]:
    """Return which of the first nodes of the tree anybody may use; few requests, for a check."""
    coordinator = cluster.coordinator
    paths = ["", SECURITY, f"{SECURITY}/secret", BROKERS, TOPICS, *PARENTS_OF_CLIENTS]
    acls = await gather_all(_acl(coordinator, each) for each in paths)
    return [
        path or "/"
        for path, acl in zip(paths, acls, strict=True)
        if acl is not None and any(each.scheme == "world" for each in acl)
    ]


async def _write(coordinator: Coordinator, identities: Identities) -> None:
    data = identities.encode()
    for path in (SECURITY, *PARENTS_OF_CLIENTS):
        try:
            await coordinator.create(path, _VALUES.get(path, b""))
        except NodeExists:
            pass
    await update(
        coordinator,
        Identities.path(),
        lambda node: (
            [Create(Identities.path(), data)]
            if node is None
            else []
            if node.data == data
            else [Set(Identities.path(), data, node.stat.version)]
        ),
        what="the list of identities",
    )


async def _wrong(
    coordinator: Coordinator, identities: Identities | None, found: SecuredTree
) -> AsyncGenerator[list[WrongAcl], None]:
    """Yield nodes whose ACL is wrong, some at a time, and count all in ``found``."""
    async for paths in _in_steps(_paths(coordinator)):
        acls = await gather_all(_seen_acl(coordinator, each) for each in paths)
        step = []
        for path, acl in zip(paths, acls, strict=True):
            if acl is None:  # it is gone
                continue
            found.nodes += 1
            wanted = acl_of(path, identities)
            if acl != wanted:
                step.append(WrongAcl(path, acl, wanted))
                found.add(step[-1])
        if step:
            yield step


async def _paths(coordinator: Coordinator) -> AsyncIterator[str]:
    yield ""
    async for node in walk_tree(coordinator):
        yield node.path


async def _in_steps(paths: AsyncIterator[str]) -> AsyncIterator[Sequence[str]]:
    step: list[str] = []
    async for path in paths:
        step.append(path)
        if len(step) == _STEP:
            yield step
            step = []
    if step:
        yield step


async def _acl(coordinator: Coordinator, path: str) -> Acl | None:
    try:
        return await coordinator.acl(path)
    except NoNode:
        return None


async def _seen_acl(coordinator: Coordinator, path: str) -> Acl | None:
    """Return an ACL; empty where it may not be seen: a client may make nodes with any ACL."""
    try:
        return await _acl(coordinator, path)
    except NotAllowed:
        return frozenset()


async def _set(coordinator: Coordinator, wrong: WrongAcl) -> bool:
    """Give a node its ACL; return whether that is allowed."""
    try:
        await coordinator.set_acl(wrong.path, wrong.wanted)
    except NoNode:
        pass  # it has gone since
    except NotAllowed:
        return False
    return True
