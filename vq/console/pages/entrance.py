"""Logging in and out, the language, and the way to the first cluster."""

import asyncio

from starlette.responses import RedirectResponse, Response

from vq.clock import YEAR_S
from vq.console.accounts.accounts import Account, verified
from vq.console.accounts.attempts import Attempts
from vq.console.accounts.sessions import begin_session, end_session
from vq.console.pages.page import ConsolePage
from vq.console.web.addresses import own_path
from vq.console.web.context import PageContext
from vq.console.web.languages import LANGUAGES
from vq.console.web.security import COOKIE, LANGUAGE_COOKIE
from vq.remoting.ports import counted_address

_HASHES_AT_ONCE = asyncio.Semaphore(2)  # each takes 64 MiB of memory


async def home(context: PageContext) -> Response:
    """Go to the first cluster."""
    first = next(iter(context.console.sites))
    return RedirectResponse(f"/c/{first}", 303)


async def checked_account(
    context: PageContext, name: str, password: str
) -> tuple[Account | None, int]:
    """Return the account of a name and a password, and how many seconds to wait for a next try.

    No account: they are of none, or it is too early. Wrong passwords count wherever they are typed.
    """
    name, password = name[:200], password[:1000]
    address = counted_address(context.visitor.person.address)
    attempts: Attempts = context.request.app.state.attempts
    keys = (f"{name.casefold()}@{address}", address)
    wait_s = attempts.wait_s(*keys)
    if wait_s > 0:
        return None, int(wait_s) + 1
    attempts.failed(*keys)  # before the password is looked at: many tries at once count, too
    async with _HASHES_AT_ONCE:
        account = await context.console.database.run(
            lambda connection: verified(connection, name, password)
        )
    if account is not None:
        attempts.succeeded(*keys)
    return account, 0


async def login(context: PageContext) -> Response:
    """Show the form, or begin a session."""
    wanted = own_path(context.form.get("next") or context.query.get("next", "/"))
    if not context.posted:
        return login_page(context, wanted)
    account, wait_s = await checked_account(
        context, context.form.get("name", ""), context.form.get("password", "")
    )
    if wait_s:
        return login_page(context, wanted, "too many", 429, wait_s=wait_s)
    if account is None:
        return login_page(context, wanted, "wrong", 401)
    address = context.visitor.person.address
    token = await context.console.database.run(
        lambda connection: begin_session(
            connection, account.name, address, changed_ms=account.changed_ms
        )
    )
    response = RedirectResponse(wanted, 303)
    keep_session(context, response, token)
    return response


def login_page(
    context: PageContext,
    wanted: str,
    problem: str = "",
    status: int = 200,
    *,
    wait_s: int = 0,
    why: str = "",
) -> Response:
    """Return the page with the ways to log in; ``problem``: why the last one did not succeed."""
    oidc = context.console.oidc
    return context.page(
        "login.html",
        status,
        wanted=wanted,
        made=context.query.get("made") == "1" and not problem,
        problem=problem,
        wait_s=wait_s,
        why=why,
        provider="" if oidc is None else oidc.config.name,
    )


def keep_session(context: PageContext, response: Response, token: str) -> None:
    """Have the browser keep what its session is known by."""
    response.set_cookie(
        COOKIE,
        token,
        httponly=True,
        samesite="lax",
        secure=context.secure,
        path="/",
    )


async def logout(context: PageContext) -> Response:
    """End the session."""
    token = context.request.cookies.get(COOKIE, "")
    await context.console.database.run(lambda connection: end_session(connection, token))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE, path="/")
    return response


async def language(context: PageContext) -> Response:
    """Remember the language of a browser."""
    response = RedirectResponse(own_path(context.form.get("next", "/")), 303)
    chosen = context.form.get("language", "")
    if chosen in LANGUAGES:
        response.set_cookie(
            LANGUAGE_COOKIE,
            chosen,
            max_age=YEAR_S,
            samesite="lax",
            secure=context.secure,
            path="/",
        )
    return response


HOME = ConsolePage("/", home)
LOGIN = ConsolePage("/login", login, ("GET", "POST"), public=True)
LOGOUT = ConsolePage("/logout", logout, ("POST",))
LANGUAGE = ConsolePage("/language", language, ("POST",), public=True)
