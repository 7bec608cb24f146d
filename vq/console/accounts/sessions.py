"""Sessions of browsers. What a browser has is random; the database has its hash."""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Final

import sqlalchemy
from sqlalchemy import Connection

from vq.clock import HOUR_MS
from vq.console.accounts.accounts import OIDC_PREFIX, AccountRole, is_disabled, now_ms
from vq.console.database.schema import accounts, sessions

#: How often at most the use of a session is written down.
_TOUCH_MS: Final = 60_000
SESSIONS_PER_ACCOUNT_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """Who a browser is logged in as.

    Attributes:
        account: Name of the account, or of a person of a provider of identities, who needs none.
        role: What it may do now.
        csrf: What a form must send along.
    """

    account: str
    role: AccountRole
    csrf: str


def begin_session(
    connection: Connection,
    account: str,
    address: str,
    role: AccountRole | None = None,
    *,
    changed_ms: int | None = None,
) -> str:
    """Begin a session; return what the browser is to keep.

    Args:
        connection: Of the database.
        account: Name of the account, or of a person of a provider of identities.
        address: Where the browser is.
        role: Of a person of a provider; None: that of the account, as it is at each request.
        changed_ms: When the account was changed last, as it was when its password was right. The
            session has ended if it was changed since. None: it is looked up now.
    """
    token = secrets.token_urlsafe(32)
    now = now_ms()
    if role is None and changed_ms is None:
        of = sqlalchemy.select(accounts.c.changed_ms).where(accounts.c.name == account)
        changed_ms = connection.execute(of).scalar()
    connection.execute(
        sessions.insert().values(
            token_hash=_hash(token),
            account=account,
            role=None if role is None else role.value,
            account_changed_ms=changed_ms,
            csrf=secrets.token_urlsafe(32),
            address=address[:100],
            created_ms=now,
            used_ms=now,
        )
    )
    old = (
        sqlalchemy.select(sessions.c.token_hash)
        .where(sessions.c.account == account)
        .order_by(sessions.c.used_ms.desc())
        .offset(SESSIONS_PER_ACCOUNT_MAX)
        .limit(SESSIONS_PER_ACCOUNT_MAX)
    )
    too_many = [each.token_hash for each in connection.execute(old)]
    if too_many:
        connection.execute(sessions.delete().where(sessions.c.token_hash.in_(too_many)))
    return token


def find_session(connection: Connection, token: str, hours: int) -> BrowserSession | None:
    """Return the session of a browser; None: there is none, or it has ended.

    Args:
        connection: Of the database.
        token: What the browser has.
        hours: A session lasts so long; a quarter of it if it is not used.
    """
    row = connection.execute(
        sqlalchemy.select(
            sessions, accounts.c.role.label("own"), accounts.c.disabled, accounts.c.changed_ms
        )
        .join(accounts, accounts.c.name == sessions.c.account, isouter=True)
        .where(sessions.c.token_hash == _hash(token))
    ).first()
    if row is None:
        return None
    now = now_ms()
    lasts_ms = hours * HOUR_MS
    ended = now - row.created_ms > lasts_ms or now - row.used_ms > lasts_ms // 4
    role = row.role or row.own
    disabled = row.disabled
    if row.role is None:  # a log-in may end after the change that ends all sessions
        ended = ended or row.account_changed_ms != row.changed_ms
    if row.account.startswith(OIDC_PREFIX):
        disabled = is_disabled(connection, row.account)
    if ended or role is None or disabled:
        connection.execute(sessions.delete().where(sessions.c.token_hash == row.token_hash))
        return None
    if now - row.used_ms > _TOUCH_MS:
        used = sessions.update().where(sessions.c.token_hash == row.token_hash)
        connection.execute(used.values(used_ms=now))
    return BrowserSession(row.account, AccountRole(role), row.csrf)


def end_session(connection: Connection, token: str) -> None:
    """End a session, if there is one."""
    connection.execute(sessions.delete().where(sessions.c.token_hash == _hash(token)))


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
