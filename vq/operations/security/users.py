"""Users: who may connect to brokers, their passwords and roles.

Loop-bound functions on a ``ClusterClient``. No result, error or log line here has a password or a
key. Keys are derived on a thread.
"""

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace

from vq.client.cluster import ClusterClient
from vq.coordination.security.users import UnknownUser, change_user, read_user, read_users
from vq.coordination.security.users import add_user as store_user
from vq.coordination.security.users import remove_user as delete_user
from vq.coordination.tree.values.users import StoredSecret, StoredUser, check_roles
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.model import check_name
from vq.operations.base.acts import About, audited
from vq.operations.base.changes import ChangeUnknown, unknown_when_cut
from vq.operations.base.who import who
from vq.security.rules import ANONYMOUS
from vq.security.scram import (
    ITERATIONS,
    SALT_BYTES,
    SECRETS_MAX,
    ScramKeys,
    check_new_password,
    derive,
)


class UserChangeUnknown(ChangeUnknown):
    """ZooKeeper went away while a user was changed."""

    hint = "`vq user show NAME` shows how it is; the change may be repeated"


@dataclass(frozen=True, slots=True)
class UserEntry:
    """A user, without its secrets.

    Attributes:
        name: Its name.
        roles: By which rules speak of several users.
        passwords_since_ms: Since when each of its valid passwords is one, the newest first: none
            (its TLS certificate names it), one, or two while the password is changed.
        created_ms: When it was added.
        by: Who changed it last.
        problem: Why its value cannot be read, so that it cannot connect; "": it can.
    """

    name: str
    roles: tuple[str, ...] = ()
    passwords_since_ms: tuple[int, ...] = ()
    created_ms: int = 0
    by: str = ""
    problem: str = ""

    @property
    def rotating(self) -> bool:
        """Whether two passwords are valid."""
        return len(self.passwords_since_ms) == SECRETS_MAX


async def list_users(cluster: ClusterClient) -> list[UserEntry]:
    """Return all users, by name."""
    found = await read_users(cluster.coordinator)
    return [
        UserEntry(name, problem=user.message)
        if isinstance(user, CoordinationError)
        else _entry(name, user)
        for name, user in found.items()
    ]


async def get_user(cluster: ClusterClient, user: str) -> UserEntry:
    """Return a user.

    Raises:
        UnknownUser: There is none of this name.
    """
    check_name("user", user)
    return _entry(user, await read_user(cluster.coordinator, user))


@audited(About.USER)
async def add_user(
    cluster: ClusterClient, user: str, password: str | None, *, roles: Sequence[str] = ()
) -> UserEntry:
    """Add a user.

    Args:
        cluster: The cluster.
        user: Its name.
        password: Its password, of 12 characters or more; None: its TLS certificate names it.
        roles: Its roles.

    Raises:
        UserExists: There is one of this name.
        InvalidArgument: The name, the password or a role cannot be one.
        UserChangeUnknown: ZooKeeper did not answer.
    """
    check_name("user", user)
    if user == ANONYMOUS:
        raise InvalidArgument(
            f"user name {user!r} means whoever has proved no name, in rules and quotas: "
            "choose another one"
        )
    check_roles(tuple(roles))
    salt, now_ms = secrets.token_bytes(SALT_BYTES), cluster.clock.wall_ms()
    made = StoredUser(
        salt=salt,
        iterations=ITERATIONS,
        roles=tuple(roles),
        created_ms=now_ms,
        by=who(),
    )
    if password is not None:
        keys = await asyncio.to_thread(_new_keys, password, salt, ITERATIONS)
        made = replace(made, secrets=(StoredSecret(keys.secret, now_ms),))
    with unknown_when_cut(f"adding user {user!r}", UserChangeUnknown):
        await store_user(cluster.coordinator, user, made)
    return _entry(user, made)


@audited(About.USER)
async def rotate_user(cluster: ClusterClient, user: str, password: str) -> UserEntry:
    """Give a user one more valid password; the one that it has stays valid.

    ``finish_rotation`` withdraws the old one, once all clients have the new one.

    Raises:
        UnknownUser: There is none of this name.
        InvalidState: Two passwords are valid already, or it has this one.
        InvalidArgument: The password cannot be one, or has less than 12 characters.
        UserChangeUnknown: ZooKeeper did not answer.
    """
    check_name("user", user)
    before = await read_user(cluster.coordinator, user)
    keys = await asyncio.to_thread(_new_keys, password, before.salt, before.iterations)
    now_ms = cluster.clock.wall_ms()

    def decide(now: StoredUser) -> StoredUser:
        if (now.salt, now.iterations) != (before.salt, before.iterations):
            raise InvalidState(f"user {user!r} was removed and added meanwhile; try again")
        if len(now.secrets) == SECRETS_MAX:
            raise InvalidState(
                f"user {user!r} has two valid passwords already; `vq user rotate {user} --finish` "
                "withdraws the older one first"
            )
        if any(each.keys == keys.secret for each in now.secrets):
            raise InvalidState(f"user {user!r} has this password already; choose another one")
        return replace(now.rotated(keys.secret, now_ms), by=who())

    with unknown_when_cut(f"rotating user {user!r}", UserChangeUnknown):
        return _entry(user, await change_user(cluster.coordinator, user, decide))


@audited(About.USER)
async def finish_rotation(cluster: ClusterClient, user: str) -> UserEntry:
    """Withdraw the older of two valid passwords; connections that proved it end.

    Raises:
        UnknownUser: There is none of this name.
        InvalidState: It does not have two.
        UserChangeUnknown: ZooKeeper did not answer.
    """
    check_name("user", user)

    def decide(now: StoredUser) -> StoredUser:
        if len(now.secrets) < SECRETS_MAX:
            raise InvalidState(
                f"user {user!r} has {len(now.secrets)} valid passwords, so there is none to "
                f"withdraw; `vq user rotate {user}` adds one"
            )
        return replace(now.settled(), by=who())

    with unknown_when_cut(f"withdrawing a password of user {user!r}", UserChangeUnknown):
        return _entry(user, await change_user(cluster.coordinator, user, decide))


@audited(About.USER)
async def change_user_roles(
    cluster: ClusterClient, user: str, *, add: Sequence[str] = (), remove: Sequence[str] = ()
) -> UserEntry:
    """Give roles to a user, and take others from it; its connections end and come back.

    A role that it has already, or does not have, is left as it is.

    Raises:
        UnknownUser: There is none of this name.
        InvalidArgument: A role cannot be one, or is both given and taken.
        UserChangeUnknown: ZooKeeper did not answer.
    """
    check_name("user", user)
    check_roles(tuple(add))
    check_roles(tuple(remove))
    if both := sorted({*add} & {*remove}):
        raise InvalidArgument(f"roles {', '.join(both)} are both given and taken; choose one")

    def decide(now: StoredUser) -> StoredUser:
        kept = [each for each in now.roles if each not in remove]
        roles = (*kept, *(each for each in add if each not in kept))
        return now if roles == now.roles else replace(now, roles=roles, by=who())

    with unknown_when_cut(f"changing the roles of user {user!r}", UserChangeUnknown):
        return _entry(user, await change_user(cluster.coordinator, user, decide))


@audited(About.USER)
async def remove_user(cluster: ClusterClient, user: str) -> None:
    """Remove a user; its connections end.

    Raises:
        UnknownUser: There is none of this name.
        UserChangeUnknown: ZooKeeper did not answer.
    """
    check_name("user", user)
    with unknown_when_cut(f"removing user {user!r}", UserChangeUnknown):
        await delete_user(cluster.coordinator, user)


async def why_unknown(cluster: ClusterClient, subject: str) -> str:
    """Return what is to be said of a subject of a rule or a quota that is nobody's; "": nothing.

    Client ids are what clients say, so none of them is unknown.
    """
    kind, _, name = subject.partition(":")
    if kind == "user" and name != "*":
        try:
            await read_user(cluster.coordinator, name)
        except UnknownUser:
            return f"there is no user {name}; `vq user add {name}` adds it"
    if kind == "role":
        users = (await read_users(cluster.coordinator)).values()
        if not any(name in each.roles for each in users if isinstance(each, StoredUser)):
            return f"no user has the role {name}; `vq user roles NAME --add {name}` gives it"
    return ""


def _new_keys(password: str, salt: bytes, iterations: int) -> ScramKeys:
    check_new_password(password)
    return derive(password, salt, iterations)


def _entry(name: str, user: StoredUser) -> UserEntry:
    return UserEntry(
        name,
        roles=user.roles,
        passwords_since_ms=tuple(each.since_ms for each in user.secrets),
        created_ms=user.created_ms,
        by=user.by,
    )
