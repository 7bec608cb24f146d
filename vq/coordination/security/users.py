"""Users in ZooKeeper: made, read, changed and removed, each in one write.

No error and no log line here has a secret.
"""

from collections.abc import Callable, Mapping, Sequence

from vq.coordination.tree.coordinator import (
    Coordinator,
    Create,
    Delete,
    Node,
    NoNode,
    Operation,
    Set,
)
from vq.coordination.tree.paths import USERS
from vq.coordination.tree.reading import children_or_none, read_all
from vq.coordination.tree.update import update
from vq.coordination.tree.values.users import StoredUser
from vq.errors import CoordinationError


class UnknownUser(CoordinationError):
    """There is no user of this name."""

    retriable = False
    hint = "`vq user list` shows who there is; `vq user add NAME` adds one"


class UserExists(CoordinationError):
    """There is a user of this name already."""

    retriable = False
    hint = "`vq user rotate NAME` gives it another password, `vq user roles NAME` other roles"


async def read_user(coordinator: Coordinator, name: str) -> StoredUser:
    """Return a user.

    Raises:
        UnknownUser: There is none of this name.
        CoordinationError: ZooKeeper did not answer, or has something else at its place.
    """
    path = StoredUser.path(name)
    try:
        return StoredUser.decode(path, (await coordinator.get(path)).data)
    except NoNode:
        raise _unknown(name) from None


async def read_users(coordinator: Coordinator) -> Mapping[str, StoredUser | CoordinationError]:
    """Return all users by name, in order; a value that cannot be read is its error.

    Raises:
        CoordinationError: ZooKeeper did not answer.
    """
    names = sorted(await children_or_none(coordinator, USERS))
    paths = [StoredUser.path(name) for name in names]
    found: dict[str, StoredUser | CoordinationError] = {}
    for name, path, node in zip(names, paths, await read_all(coordinator, paths), strict=True):
        if node is not None:  # else it is removed just now
            try:
                found[name] = StoredUser.decode(path, node.data)
            except CoordinationError as error:
                found[name] = error
    return found


async def add_user(coordinator: Coordinator, name: str, user: StoredUser) -> None:
    """Add a user.

    Raises:
        UserExists: There is one of this name.
        CoordinationError: See ``update``.
    """
    path, data = StoredUser.path(name), user.encode()

    def change(node: Node | None) -> Sequence[Operation]:
        if node is None:
            return [Create(path, data)]
        if node.data != data:  # else an answer was lost
            raise UserExists(f"there is a user {name!r} already")
        return []

    await update(coordinator, path, change, what=f"user {name!r}")


async def change_user(
    coordinator: Coordinator, name: str, decide: Callable[[StoredUser], StoredUser]
) -> StoredUser:
    """Change a user; return it as it is now.

    Args:
        coordinator: A started coordinator.
        name: Of the user.
        decide: Returns what the user is to be. Its errors are passed on; nothing was written then.

    Raises:
        UnknownUser: There is none of this name.
        CoordinationError: See ``update``.
    """
    path = StoredUser.path(name)
    written: list[StoredUser] = []

    def change(node: Node | None) -> Sequence[Operation]:
        if node is None:
            raise _unknown(name)
        before = StoredUser.decode(path, node.data)
        if written and before == written[-1]:  # an answer was lost
            return []
        written.append(decide(before))
        return [] if written[-1] == before else [Set(path, written[-1].encode(), node.stat.version)]

    await update(coordinator, path, change, what=f"user {name!r}")
    return written[-1]


async def remove_user(coordinator: Coordinator, name: str) -> None:
    """Remove a user, also one whose value cannot be read.

    Raises:
        UnknownUser: There is none of this name.
        CoordinationError: See ``update``.
    """
    path = StoredUser.path(name)
    tried: list[int] = []

    def change(node: Node | None) -> Sequence[Operation]:
        if node is None:
            if tried:  # an answer was lost
                return []
            raise _unknown(name)
        tried.append(node.stat.version)
        return [Delete(path, node.stat.version)]

    await update(coordinator, path, change, what=f"user {name!r}")


def _unknown(name: str) -> UnknownUser:
    return UnknownUser(f"there is no user {name!r}")
