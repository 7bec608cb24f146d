"""ACLs between vq and kazoo: what a node that is made gets, as the list of identities says.

Loop-bound. The list is read with the first calls of a session, and again after its watch has fired:
with each heartbeat, until it was read.
"""

from typing import Protocol

from kazoo.security import ACL, Id

from vq.coordination.tree.acls import acl_of
from vq.coordination.tree.coordinator import (
    Acl,
    Grant,
    Node,
    NodeRights,
    NoNode,
    NotAllowed,
    Stat,
    Watch,
    WatchEvent,
)
from vq.coordination.tree.values.identities import Identities


class ListReader(Protocol):
    """What reads the list."""

    async def get(self, path: str, *, watch: Watch | None = None) -> Node:
        """See ``Coordinator.get``."""
        ...

    async def exists(self, path: str, *, watch: Watch | None = None) -> Stat | None:
        """See ``Coordinator.exists``."""
        ...


class AclsOfNewNodes:
    """What a client gives the nodes that it makes.

    Attributes:
        stale: The list has changed, or the session, or it could not be read: read it again.
    """

    def __init__(self) -> None:
        self.stale = True
        self._identities: Identities | None = None

    async def learn(self, reader: ListReader) -> None:
        """Read the list, and hear of its next change.

        Raises:
            CoordinationError: It cannot be read; the last one holds on, and it is stale.
        """
        self.stale = False  # first: the watch may fire meanwhile
        try:
            found = await self._read(reader)
        except BaseException:  # also if who waits for it gives up
            self.stale = True
            raise
        self._identities = found  # nodes that were made meanwhile have the ACL of before

    async def _read(self, reader: ListReader) -> Identities | None:
        """Return the list; None: there is none, or it may not be read."""
        try:
            node = await reader.get(Identities.path(), watch=self._changed)
        except NoNode:
            await reader.exists(Identities.path(), watch=self._changed)
            return None
        except NotAllowed:
            return None  # it may not read the tree, and makes no nodes in it
        return Identities.decode(Identities.path(), node.data)

    def of(self, path: str) -> list[ACL] | None:
        """Return the ACL of a node that is made; None: anybody may do anything with it."""
        if self._identities is None:
            return None
        return acl_to(acl_of(path, self._identities))

    def _changed(self, _: WatchEvent) -> None:
        self.stale = True


def acl_to(acl: Acl) -> list[ACL]:
    """Return an ACL as kazoo has it."""
    return [ACL(int(each.rights), Id(each.scheme, each.id)) for each in sorted(acl)]


def acl_from(acl: list[ACL]) -> Acl:
    """Return an ACL of kazoo."""
    return frozenset(Grant(each.id.scheme, each.id.id, NodeRights(each.perms)) for each in acl)
