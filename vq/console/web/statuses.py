"""The status of HTTP for each kind of error."""

from collections.abc import Mapping
from typing import Final

from vq.console.accounts.accounts import AccountExists
from vq.console.accounts.identities import OidcRefused, ProviderAway
from vq.console.accounts.tokens import TokenExists
from vq.console.acts.door import NotPermitted
from vq.console.database.database import DatabaseFailed
from vq.console.web.languages import N_
from vq.errors import CoordinationError, InvalidArgument, VqError
from vq.gateway.problems import AtLimit, BodyRefused, BodyTooLarge, BodyTooSlow, WrongContentType


class NotLoggedIn(VqError):
    """Nobody is logged in, or a program has no token that counts."""

    hint = (
        "log in first; a program sends `Authorization: Bearer TOKEN` with a token of an account, "
        "and no cookie"
    )


class UnknownToConsole(VqError):
    """The console shows no such cluster."""

    hint = "the console shows those that it was started with; see --also"


#: The first kind that fits.
_STATUSES: Final = (
    (NotLoggedIn, 401),
    (OidcRefused, 401),
    (ProviderAway, 503),
    (NotPermitted, 403),
    (InvalidArgument, 400),
    (AccountExists, 409),
    (TokenExists, 409),
    (BodyTooLarge, 413),
    (BodyTooSlow, 408),
    (BodyRefused, 400),
    (WrongContentType, 415),
    (AtLimit, 429),
    (CoordinationError, 503),
    (DatabaseFailed, 503),
)

#: What the title of a page says of an error.
TITLES: Final[Mapping[int, str]] = {
    400: N_("That is not valid"),
    401: N_("Log in first"),
    403: N_("Not permitted"),
    404: N_("Not found"),
    408: N_("Too slow"),
    409: N_("Not possible now"),
    413: N_("Too large"),
    429: N_("Too many at a time"),
    503: N_("No answer"),
}


def status_of(error: VqError) -> int:
    """Return the status: 404 for what is unknown, 409 if the cluster refuses what is asked."""
    if type(error).__name__.startswith("Unknown"):
        return 404
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 409)
