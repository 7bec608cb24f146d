"""Accounts of people: made, changed, disabled. Functions on a connection of the database."""

import functools
import re
import time
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import sqlalchemy
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError
from sqlalchemy import Connection

from vq.console.database.schema import accounts, sessions, tokens
from vq.errors import InvalidArgument, VqError
from vq.shown import shown

PASSWORD_CHARS_MIN: Final = 10
PASSWORD_CHARS_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}")
#: Before the name of a person of a provider of identities. No account has it: there is a colon.
OIDC_PREFIX: Final = "oidc:"
HASHER = PasswordHasher()  # argon2id with the parameters of RFC 9106, low memory


@functools.cache
def _hash_of_nobody() -> str:
    """Return what is verified where there is no account.

    So an unknown name takes as long as a wrong password. A hash takes 64 MiB and tens of
    milliseconds: commands that verify nothing do without.
    """
    return HASHER.hash("the password of nobody")


class AccountRole(StrEnum):
    """What an account may do: look; also act on clusters; also manage the console itself."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    @property
    def rank(self) -> int:
        """Place among the roles: a higher one may do all that a lower one may."""
        return tuple(AccountRole).index(self)


class UnknownAccount(VqError):
    """There is no account of this name."""

    hint = "`vq console account list` names those there are"


class AccountExists(VqError):
    """There is an account of this name; nothing was changed."""

    hint = "choose another name, or change that account"


@dataclass(frozen=True, slots=True)
class Account:
    """An account, without its password.

    Attributes:
        name: What the person types.
        role: What it may do.
        has_password: False: it logs in with a provider of identities.
        disabled: It may not log in.
        created_ms, changed_ms: Milliseconds since 1970.
    """

    name: str
    role: AccountRole
    has_password: bool
    disabled: bool
    created_ms: int
    changed_ms: int


def now_ms() -> int:
    """Return the time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def list_accounts(connection: Connection) -> list[Account]:
    """Return all accounts, sorted by name."""
    found = connection.execute(sqlalchemy.select(accounts).order_by(accounts.c.name))
    return [_account(each._mapping) for each in found]


def has_accounts(connection: Connection) -> bool:
    """Return whether somebody can log in."""
    return connection.execute(sqlalchemy.select(accounts.c.name).limit(1)).first() is not None


def read_account(connection: Connection, name: str) -> Account:
    """Return an account.

    Raises:
        UnknownAccount: There is none of this name.
    """
    found = connection.execute(sqlalchemy.select(accounts).where(accounts.c.name == name)).first()
    if found is None or found.name != name:  # some databases compare without case
        raise UnknownAccount(f"there is no account {shown(name)}")
    return _account(found._mapping)


def add_account(
    connection: Connection,
    name: str,
    role: AccountRole,
    password: str | None,
    *,
    first: bool = False,
) -> None:
    """Make an account; without a password it logs in with a provider of identities.

    Args:
        connection: Of the database.
        name, role, password: Of the account.
        first: Somebody who is not logged in makes it: only if there is none.

    Raises:
        InvalidArgument: The name or the password is not allowed, or it is not the first.
        AccountExists: There is one of this name, or with other capitals.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"account name {shown(name)} is not 1 to 100 letters, digits and . _ @ + -, and "
            "begins with a letter or digit"
        )
    hashed = None if password is None else HASHER.hash(checked_password(password))
    if first:
        _hold_admins(connection)
        if has_accounts(connection):
            raise InvalidArgument("there is an account by now: log in with it")
    lowered = sqlalchemy.func.lower(accounts.c.name) == name.lower()
    if connection.execute(sqlalchemy.select(accounts.c.name).where(lowered)).first() is not None:
        raise AccountExists(f"there is an account {shown(name)}")
    now = now_ms()
    connection.execute(
        accounts.insert().values(
            name=name,
            role=role.value,
            password_hash=hashed,
            disabled=False,
            created_ms=now,
            changed_ms=now,
        )
    )


def change_account(
    connection: Connection,
    name: str,
    *,
    role: AccountRole | None = None,
    password: str | None = None,
    disabled: bool | None = None,
) -> None:
    """Change what is given; its sessions end, so that the change counts at once.

    Its tokens stay; what they may do ends at the new role.

    Raises:
        UnknownAccount: There is none of this name.
        InvalidArgument: The password is not allowed, or nobody could manage accounts any more.
    """
    _hold_admins(connection)
    present = read_account(connection, name)
    # a session knows the time of the last change: two changes have two times
    changes: dict[str, Any] = {"changed_ms": max(now_ms(), present.changed_ms + 1)}
    if role is not None:
        changes["role"] = role.value
    if password is not None:
        changes["password_hash"] = HASHER.hash(checked_password(password))
    if disabled is not None:
        changes["disabled"] = disabled
    keeps_admin = changes.get("role", present.role) == AccountRole.ADMIN and not changes.get(
        "disabled", present.disabled
    )
    if not keeps_admin:
        _check_other_admin(connection, present)
    connection.execute(accounts.update().where(accounts.c.name == name).values(**changes))
    _end_sessions(connection, name)


def remove_account(connection: Connection, name: str) -> None:
    """Remove an account, its sessions and its tokens; what it did stays in the audit.

    Raises:
        UnknownAccount: There is none of this name.
        InvalidArgument: It is the last one that manages accounts.
    """
    _hold_admins(connection)
    _check_other_admin(connection, read_account(connection, name))
    connection.execute(accounts.delete().where(accounts.c.name == name))
    connection.execute(tokens.delete().where(tokens.c.account == name))
    _end_sessions(connection, name)


def is_disabled(connection: Connection, person: str) -> bool:
    """Return whether a person of a provider of identities has an account here that is disabled.

    None is needed; one without a password that is disabled keeps a person out.
    """
    lowered = sqlalchemy.func.lower(accounts.c.name)
    query = sqlalchemy.select(accounts.c.name).where(
        lowered == person.removeprefix(OIDC_PREFIX).lower(), accounts.c.disabled.is_(True)
    )
    return connection.execute(query.limit(1)).first() is not None


def verified(connection: Connection, name: str, password: str) -> Account | None:
    """Return the account that a name and a password are of; None: they are of none.

    It takes the same time whether there is such an account or not.
    """
    of_nobody = _hash_of_nobody()  # also for a name that is known: the first call takes longer
    row = connection.execute(sqlalchemy.select(accounts).where(accounts.c.name == name)).first()
    known = row is not None and row.name == name and row.password_hash is not None
    hashed = row.password_hash if known and row is not None else of_nobody
    try:
        HASHER.verify(hashed, password[:PASSWORD_CHARS_MAX])
    except (VerificationError, InvalidHashError):
        return None
    if not known or row is None or row.disabled:
        return None
    if HASHER.check_needs_rehash(hashed):
        renewed = HASHER.hash(password[:PASSWORD_CHARS_MAX])
        connection.execute(
            accounts.update().where(accounts.c.name == name).values(password_hash=renewed)
        )
    return _account(row._mapping)


def checked_password(password: str) -> str:
    """Return a new password that is long enough.

    Raises:
        InvalidArgument: It is too short, too long, or has control characters.
    """
    if not PASSWORD_CHARS_MIN <= len(password) <= PASSWORD_CHARS_MAX:
        raise InvalidArgument(
            f"a password has {PASSWORD_CHARS_MIN} to {PASSWORD_CHARS_MAX} characters; this one has "
            f"{len(password)}"
        )
    if any(unicodedata.category(each) == "Cc" for each in password):
        raise InvalidArgument("the password has a control character")
    return password


def _end_sessions(connection: Connection, name: str) -> None:
    """End those of an account, and of the person that a provider knows by its name."""
    of_person = sqlalchemy.func.lower(sessions.c.account) == f"{OIDC_PREFIX}{name}".lower()
    connection.execute(sessions.delete().where((sessions.c.account == name) | of_person))


def _hold_admins(connection: Connection) -> None:
    """Wait until no other transaction changes who is admin, and keep others waiting until the end.

    The first statement of a transaction: what is read after it is of now. A write that changes
    nothing takes the lock in every kind of database; SQLite has no ``FOR UPDATE``.
    """
    admins = accounts.c.role == AccountRole.ADMIN.value
    connection.execute(accounts.update().where(admins).values(disabled=accounts.c.disabled))


def _check_other_admin(connection: Connection, present: Account) -> None:
    if present.role is not AccountRole.ADMIN or present.disabled:
        return
    others = sqlalchemy.select(accounts.c.name).where(
        accounts.c.role == AccountRole.ADMIN.value,
        accounts.c.disabled.is_(False),
        accounts.c.name != present.name,
    )
    only_one = sqlalchemy.select(accounts.c.name).where(accounts.c.name != present.name)
    is_last_account = connection.execute(only_one.limit(1)).first() is None
    if connection.execute(others.limit(1)).first() is None and not is_last_account:
        raise InvalidArgument(
            f"{present.name} is the last account that manages the others: give that role to "
            "another one first"
        )


def _account(row: Mapping[Any, Any]) -> Account:
    return Account(
        row["name"],
        AccountRole(row["role"]),
        row["password_hash"] is not None,
        bool(row["disabled"]),
        row["created_ms"],
        row["changed_ms"],
    )
