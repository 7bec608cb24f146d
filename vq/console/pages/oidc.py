"""Logging in with a provider of identities: to it, and back from it."""

from typing import TYPE_CHECKING

from sqlalchemy import Connection
from starlette.responses import RedirectResponse, Response

from vq.console.accounts.accounts import AccountRole, is_disabled
from vq.console.accounts.identities import TRY_S, OidcRefused, ProviderAway
from vq.console.accounts.sessions import begin_session
from vq.console.acts.door import NotPermitted, Person
from vq.console.pages.entrance import keep_session, login_page
from vq.console.pages.page import ConsolePage
from vq.console.web.addresses import own_path
from vq.console.web.context import PageContext
from vq.console.web.statuses import UnknownToConsole
from vq.log_lines import get_logger
from vq.shown import shown

if TYPE_CHECKING:
    from vq.console.accounts.oidc import OidcProvider

logger = get_logger(__name__)
#: What a browser keeps while it is at the provider, and where it sends it.
_COOKIE = "vq_oidc"
_COOKIE_PATH = "/login/oidc"
_CODE_CHARS_MAX = 4_000


class NoRole(NotPermitted):
    """The provider knows the person, and the console has no role for them."""

    hint = (
        "have the provider put the person into one of these, or have the setting roles of "
        "[console.oidc] give a role to one that the person has"
    )


async def login_oidc(context: PageContext) -> Response:
    """Send the browser to the provider."""
    provider = _provider(context)
    wanted = own_path(context.query.get("next", "/"))
    try:
        address, tried = await provider.begin(wanted)
    except ProviderAway as error:
        logger.warning("provider of identities is away", error=error)
        return login_page(context, wanted, "provider", 503, why=str(error))
    response = RedirectResponse(address, 303)
    response.set_cookie(
        _COOKIE,
        tried.browser,
        max_age=int(TRY_S),
        httponly=True,
        samesite="lax",
        secure=context.console.config.secure,
        path=_COOKIE_PATH,
    )
    return response


async def login_oidc_callback(context: PageContext) -> Response:
    """Take the browser back from the provider, and begin a session."""
    provider, query = _provider(context), context.query
    tried = provider.tries.end(
        query.get("state", "")[:200], context.request.cookies.get(_COOKIE, "")[:200]
    )
    if "error" in query or not query.get("code"):
        why = shown(query.get("error_description") or query.get("error", "no code"))
        raise OidcRefused(f"the provider did not log in anybody: {why}")
    try:
        found = await provider.identify(
            query["code"][:_CODE_CHARS_MAX], query.get("iss", "")[:_CODE_CHARS_MAX], tried
        )
    except ProviderAway as error:
        logger.warning("provider of identities is away", error=error)
        return login_page(context, tried.wanted, "provider", 503, why=str(error))
    except OidcRefused as error:
        logger.warning("login with the provider of identities is refused", error=error)
        raise
    role, config = found.role, provider.config
    if role is None:
        raise NoRole(
            f"{found.name} has no role in this console: the claim {config.claim} has "
            f"{shown(found.values)}, and roles are given to {shown(sorted(config.roles))}"
        )
    person = Person(found.name, role, context.visitor.person.address)
    token = await context.console.database.run(lambda connection: _begin(connection, person, role))
    await context.console.door.note(
        person, "log_in", found.name, {"issuer": config.issuer, "sub": found.subject}
    )
    response = RedirectResponse(tried.wanted, 303)
    keep_session(context, response, token)
    response.delete_cookie(_COOKIE, path=_COOKIE_PATH)
    return response


def _begin(connection: Connection, person: Person, role: AccountRole) -> str:
    if is_disabled(connection, person.name):
        raise NotPermitted(f"the account of {person.name} is disabled in this console")
    return begin_session(connection, person.name, person.address, role)


def _provider(context: PageContext) -> "OidcProvider":
    if context.console.oidc is None:
        raise UnknownToConsole("this console has no provider of identities: see [console.oidc]")
    return context.console.oidc


LOGIN_OIDC = ConsolePage("/login/oidc", login_oidc, public=True)
LOGIN_OIDC_CALLBACK = ConsolePage("/login/oidc/callback", login_oidc_callback, public=True)
