"""The rules of access: read, and changed by compare-and-set, all of them together."""

from collections.abc import Callable
from typing import NamedTuple

from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.single import change_single, read_single
from vq.coordination.tree.values.access import AccessList
from vq.security.rules import AccessRules


class KnownAccess(NamedTuple):
    """The rules as they were read.

    Attributes:
        rules: All of them.
        version: How often they were changed since the first ones; -1: there never were any.
    """

    rules: AccessRules
    version: int = -1


async def read_access(coordinator: Coordinator) -> KnownAccess:
    """Return the rules; none where nobody has added any. Raises as ``read_single`` does."""
    found = await read_single(coordinator, AccessList)
    return KnownAccess(AccessRules()) if found is None else KnownAccess(found[0].rules, found[1])


async def change_access(
    coordinator: Coordinator, change: Callable[[AccessRules], AccessRules]
) -> AccessRules:
    """Change the rules; return those that hold now. Raises as ``change_single`` does.

    ``change`` takes the rules and returns those to write instead. It is called again if another one
    changed them at the same time.
    """
    made = await change_single(
        coordinator,
        AccessList,
        lambda before: AccessList(rules=change(before.rules)),
        what="the rules of access",
    )
    return made.rules
