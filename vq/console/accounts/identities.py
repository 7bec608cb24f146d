"""People of a provider of identities: their names, their roles, and who began to log in.

Nothing here asks the provider; see ``oidc``.
"""

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from vq.console.accounts.accounts import OIDC_PREFIX, AccountRole
from vq.errors import InvalidArgument, VqError
from vq.shown import shown

#: Characters of a name with the prefix; the database keeps so many.
_NAME_CHARS_MAX: Final = 100
#: Seconds that somebody may take at the provider.
TRY_S: Final = 600.0
_TRIES_MAX: Final = 10_000


class OidcRefused(VqError):
    """What came back from the provider of identities does not prove who logs in."""

    hint = "begin again at the page Log in; if it stays so, the console's log has the reason"


class ProviderAway(VqError):
    """The provider of identities does not answer, or not as it must."""

    hint = "log in with a password, or try again; see the settings [console.oidc]"


@dataclass(frozen=True, slots=True)
class OidcTry:
    """Somebody who was sent to the provider, and has not come back yet.

    Attributes:
        state: Comes back with the answer; known to the browser.
        nonce: Comes back in the token.
        verifier: Proves to the provider that who fetches the token has asked for it.
        browser: What the browser keeps in a cookie: another one cannot end what it began.
        wanted: Where it goes then.
        ends_s: Of the clock.
    """

    state: str
    nonce: str
    verifier: str
    browser: str
    wanted: str
    ends_s: float


class OidcTries:
    """Who is at the provider now; each try can be ended once. Loop-bound.

    Args:
        clock: Seconds of a clock that does not go back.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tries: OrderedDict[str, OidcTry] = OrderedDict()

    def begin(self, wanted: str) -> OidcTry:
        """Note that somebody is sent to the provider; the oldest of too many are forgotten."""
        state, nonce, verifier, browser = (secrets.token_urlsafe(32) for _ in range(4))
        made = OidcTry(state, nonce, verifier, browser, wanted, self._clock() + TRY_S)
        self._tries[state] = made
        while len(self._tries) > _TRIES_MAX:
            self._tries.popitem(last=False)
        return made

    def end(self, state: str, browser: str) -> OidcTry:
        """Return the try that a browser ends; nobody can end it again.

        Raises:
            OidcRefused: There is none, it took too long, or another browser began it.
        """
        found = self._tries.pop(state, None)
        if found is None or found.ends_s < self._clock():
            raise OidcRefused(
                "this way back from the provider was used before, or is older than "
                f"{TRY_S / 60:.0f} minutes, or the console was started again meanwhile"
            )
        if not hmac.compare_digest(found.browser.encode(), browser.encode()):
            raise OidcRefused("another browser began to log in, or this one keeps no cookies")
        return found


def name_of(claims: Mapping[str, Any]) -> str:
    """Return the name that is shown and written down: of no account, for it has a colon.

    Raises:
        OidcRefused: No claim has a name that can be shown.
    """
    email = "" if claims.get("email_verified") is False else claims.get("email")
    for each in (claims.get("preferred_username"), email, claims.get("sub")):
        name = f"{OIDC_PREFIX}{each.strip()}" if isinstance(each, str) else OIDC_PREFIX
        if name != OIDC_PREFIX and len(name) <= _NAME_CHARS_MAX and name.isprintable():
            return name
    raise OidcRefused(
        "the token has no preferred_username, email or sub of at most "
        f"{_NAME_CHARS_MAX - len(OIDC_PREFIX)} characters that can be shown"
    )


def claimed(claims: Mapping[str, Any], claim: str) -> list[str]:
    """Return the values of a claim; its name may lead into tables: ``realm_access.roles``."""
    found: Any = claims.get(claim)
    if found is None:
        found = claims
        for part in claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    values = found if isinstance(found, list) else [found]
    return [each for each in values if isinstance(each, str)]


def role_by(values: list[str], roles: Mapping[str, AccountRole]) -> AccountRole | None:
    """Return the highest role that one of the values has; None: no value has one."""
    given = [roles[each] for each in values if each in roles]
    return max(given, key=lambda each: each.rank, default=None)


def checked_roles(roles: Mapping[str, str]) -> dict[str, AccountRole]:
    """Return the table of roles.

    Raises:
        InvalidArgument: It is empty, or names a role that there is not.
    """
    if not roles:
        raise InvalidArgument(
            "[console.oidc] roles is empty, so nobody could log in: give values of the claim, such "
            'as roles = { "vq-admins" = "admin" }'
        )
    for value, role in roles.items():
        if role not in list(AccountRole):
            raise InvalidArgument(
                f"[console.oidc] roles: {shown(value)} = {shown(role)} is no role; take one of "
                f"{', '.join(AccountRole)}"
            )
    return {value: AccountRole(role) for value, role in roles.items()}
