"""The rules of access: read, and changed by compare-and-set, all of them together."""

from collections.abc import Callable
from typing import NamedTuple

from vq.coordination.tree.coordinator import Coordinator, Create, Node, NoNode, Operation, Set
from vq.coordination.tree.update import update
from vq.coordination.tree.values.access import AccessList
from vq.security.rules import AccessRules

__all__ = ["KnownAccess", "change_access", "read_access"]


class KnownAccess(NamedTuple):
    """The rules as they were read.

    Attributes:
        rules: All of them.
        version: How often they were changed since the first ones; -1: there never were any.
    """

    rules: AccessRules
    version: int = -1


async def read_access(coordinator: Coordinator) -> KnownAccess:
    """Return the rules; none where nobody has added any.

    Raises:
        Unreadable: A newer vq has written them, or they are none.
        CoordinationError: ZooKeeper did not answer.
    """
    path = AccessList.path()
    try:
        node = await coordinator.get(path)
    except NoNode:
        return KnownAccess(AccessRules())
    return KnownAccess(AccessList.decode(path, node.data).rules, node.stat.version)


async def change_access(
    coordinator: Coordinator, change: Callable[[AccessRules], AccessRules]
) -> AccessRules:
    """Change the rules; return those that hold now.

    Args:
        coordinator: A started coordinator.
        change: Takes the rules and returns those to write instead. It is called again if another
            one changed them at the same time.

    Raises:
        InvalidArgument: ``change`` raised it, or there would be too many.
        Unreadable: A newer vq has written the present ones.
        CoordinationError: ZooKeeper did not answer; they may be changed.
    """
    path = AccessList.path()
    made = AccessRules()

    def decide(node: Node | None) -> list[Operation]:
        nonlocal made
        before = AccessRules() if node is None else AccessList.decode(path, node.data).rules
        made = change(before)
        if made == before:
            return []
        data = AccessList(rules=made).encode()
        return [Create(path, data) if node is None else Set(path, data, node.stat.version)]

    await update(coordinator, path, decide, what="the rules of access")
    return made
