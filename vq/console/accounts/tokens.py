"""Tokens of programs: made for an account, found by what a program sends, revoked.

The database has the hash of a token. Functions on a connection of it.
"""

from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy
from sqlalchemy import Connection

from vq.clock import DAY_MS
from vq.console.accounts.accounts import AccountRole, now_ms, read_account
from vq.console.database.schema import accounts, tokens
from vq.errors import InvalidArgument, VqError
from vq.gateway.bearer import digest_of, make_token
from vq.model import check_name

TOKENS_PER_ACCOUNT_MAX: Final = 50
TOKEN_DAYS_MAX: Final = 366
#: How often at most the use of a token is written down.
_TOUCH_MS: Final = 60_000


class UnknownToken(VqError):
    """The account has no token of this name."""

    hint = "`vq console token list` names those there are"


class TokenExists(VqError):
    """The account has a token of this name; nothing was made."""

    hint = "choose another name, or revoke that token first"


@dataclass(frozen=True, slots=True)
class AccessToken:
    """A token, without what a program sends.

    Attributes:
        account: Whose it is: what it does counts as done by the account.
        name: Of the token; an account has each name once.
        role: What it may do at most; never more than the account may do now.
        made_by: The account that has made it; "": a command.
        created_ms, expires_ms: Milliseconds since 1970.
        used_ms: When it was used last, to the minute; None: never.
    """

    account: str
    name: str
    role: AccountRole
    made_by: str
    created_ms: int
    expires_ms: int
    used_ms: int | None

    @property
    def has_ended(self) -> bool:
        """Whether its time is over."""
        return self.expires_ms <= now_ms()


def make_access_token(
    connection: Connection,
    account: str,
    name: str,
    role: AccountRole,
    days: int,
    made_by: str = "",
) -> str:
    """Make a token; return it. It is nowhere else: the database has its hash.

    Tokens of the account whose time is over are forgotten.

    Raises:
        UnknownAccount: There is no such account.
        InvalidArgument: The name, the role or the days do not fit, or the account has too many.
        TokenExists: The account has one of this name.
    """
    check_name("token", name)
    if not 1 <= days <= TOKEN_DAYS_MAX:
        raise InvalidArgument(f"a token lasts 1 to {TOKEN_DAYS_MAX} days; {days} were asked for")
    found = read_account(connection, account)
    if found.disabled:
        raise InvalidArgument(f"account {account} is disabled: enable it first")
    if role.rank > found.role.rank:
        raise InvalidArgument(
            f"a token of {account} cannot be {role}: the account is {found.role}, and a token may "
            "do no more"
        )
    now = now_ms()
    of = tokens.c.account == account
    connection.execute(tokens.delete().where(of, tokens.c.expires_ms <= now))
    names = {each.name for each in connection.execute(sqlalchemy.select(tokens.c.name).where(of))}
    if name in names:
        raise TokenExists(f"account {account} has a token {name!r}")
    if len(names) >= TOKENS_PER_ACCOUNT_MAX:
        raise InvalidArgument(
            f"account {account} has {len(names)} tokens, which is the most: revoke one"
        )
    token = make_token()
    connection.execute(
        tokens.insert().values(
            digest=digest_of(token).hex(),
            account=account,
            name=name,
            role=role.value,
            made_by=made_by,
            created_ms=now,
            expires_ms=now + days * DAY_MS,
        )
    )
    return token


def list_access_tokens(connection: Connection, account: str | None = None) -> list[AccessToken]:
    """Return the tokens of an account, or of all, sorted by account and name."""
    query = sqlalchemy.select(tokens).order_by(tokens.c.account, tokens.c.name)
    if account is not None:
        query = query.where(tokens.c.account == account)
    return [_token(each) for each in connection.execute(query)]


def find_access_token(connection: Connection, token: str) -> AccessToken | None:
    """Return the token that a program sends, with the role that it has now.

    None: there is none, its time is over, or its account is disabled.
    """
    row = connection.execute(
        sqlalchemy.select(
            tokens,
            accounts.c.role.label("own"),
            accounts.c.disabled,
            accounts.c.created_ms.label("account_created_ms"),
        )
        .join(accounts, accounts.c.name == tokens.c.account)
        .where(tokens.c.digest == digest_of(token).hex())
    ).first()
    now = now_ms()
    if row is None or row.disabled or row.expires_ms <= now:
        return None
    if row.created_ms < row.account_created_ms:  # made while an account of this name was removed
        return None
    if now - (row.used_ms or 0) > _TOUCH_MS:
        used = tokens.update().where(tokens.c.digest == row.digest)
        connection.execute(used.values(used_ms=now))
    own = AccountRole(row.own)
    return _token(row, min(AccountRole(row.role), own, key=lambda each: each.rank))


def revoke_access_token(connection: Connection, account: str, name: str) -> None:
    """Remove a token: from now on it is not known.

    Raises:
        UnknownToken: The account has none of this name.
    """
    of = (tokens.c.account == account) & (tokens.c.name == name)
    if not connection.execute(tokens.delete().where(of)).rowcount:
        raise UnknownToken(f"account {account} has no token {name!r}")


def _token(row: Any, role: AccountRole | None = None) -> AccessToken:
    return AccessToken(
        row.account,
        row.name,
        role or AccountRole(row.role),
        row.made_by,
        row.created_ms,
        row.expires_ms,
        row.used_ms,
    )
