"""Tokens of programs: those of one's own account, and for admins those of every account."""

from starlette.responses import RedirectResponse, Response

from vq.console.accounts.accounts import OIDC_PREFIX, Account, AccountRole, read_account
from vq.console.accounts.tokens import (
    TOKEN_DAYS_MAX,
    AccessToken,
    list_access_tokens,
    make_access_token,
    revoke_access_token,
)
from vq.console.database.database import DatabaseFailed
from vq.console.pages.accounts import role_of
from vq.console.pages.page import ConsolePage
from vq.console.web.context import PageContext
from vq.console.web.forms import Field, whole_of
from vq.console.web.languages import N_
from vq.console.web.shown import Shown
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument, VqError
from vq.shown import shown

_DAYS = 90


async def own_tokens(context: PageContext) -> Response:
    """List, make and revoke tokens of one's own account."""
    name = context.visitor.person.name
    if not name or name.startswith(OIDC_PREFIX):
        raise InvalidArgument(
            "tokens are of accounts of this console: log in with one, or have an admin make an "
            "account for the program"
        )
    return await _tokens(context, name, "/account/tokens", "/account")


async def account_tokens(context: PageContext) -> Response:
    """List, make and revoke tokens of any account."""
    name = context.param("name")
    return await _tokens(context, name, f"/accounts/{name}/tokens", f"/accounts/{name}")


async def _tokens(context: PageContext, name: str, here: str, back: str) -> Response:
    run, by = context.console.database.run, context.visitor.person
    change = context.console.door.change
    account = await run(lambda connection: read_account(connection, name))
    sent, problem, made = context.form, "", ""
    if context.posted:
        token, act = sent.get("token", "").strip(), sent.get("act", "")
        try:
            if act == "revoke":
                await change(
                    by,
                    "revoke_token",
                    name,
                    {"token": token},
                    lambda connection: revoke_access_token(connection, name, token),
                )
                context.say(N_("Revoked: %(what)s"), what=token)
                return RedirectResponse(here, 303)
            if act != "make":
                raise InvalidArgument(f"{shown(act)} is no act on a token")
            role, days = role_of(sent.get("role", "")), whole_of(sent, "days") or 0
            made = await change(
                by,
                "make_token",
                name,
                {"token": token, "role": str(role), "days": days},
                lambda connection: make_access_token(connection, name, token, role, days, by.name),
            )
        except DatabaseFailed:
            raise
        except VqError as error:
            problem = str(error)
    tokens = await run(lambda connection: list_access_tokens(connection, name))
    found = table(
        _columns(context),
        tokens,
        Asked.of(context.query),
        empty=N_("No program has a token of this account."),
        searched=lambda each: each.name,
    )
    response = context.page(
        "tokens.html",
        400 if problem else 200,
        account=account,
        found=found,
        names=[(each.name, each.name) for each in tokens],
        fields=_fields(account),
        problem=problem,
        made=made,
        back=back,
        here=here,
        command=f"vq console token list --account {name}",
    )
    return response


def _columns(context: PageContext) -> list[Column[AccessToken]]:
    moment = Shown(context.text).moment
    never = context.text(N_("never"))
    return [
        Column("name", N_("Name"), lambda each: each.name),
        Column("role", N_("Role"), lambda each: str(each.role)),
        Column(
            "state",
            N_("State"),
            lambda each: (
                StateWord(N_("ended"), "warn") if each.has_ended else StateWord(N_("good"), "ok")
            ),
            Kind.STATE,
        ),
        Column("expires", N_("Ends"), lambda each: each.expires_ms, Kind.MOMENT),
        Column("used", N_("Used"), lambda each: moment(each.used_ms) if each.used_ms else never),
        Column("created", N_("Created"), lambda each: each.created_ms, Kind.MOMENT),
        Column("made_by", N_("By"), lambda each: each.made_by),
    ]


def _fields(account: Account) -> list[Field]:
    roles = [(str(each), str(each)) for each in AccountRole if each.rank <= account.role.rank]
    return [
        Field(
            "token",
            N_("Name"),
            help=N_("Of the program that sends it: the audit names it."),
            required=True,
        ),
        Field("role", N_("Role"), "select", str(AccountRole.VIEWER), options=roles),
        Field("days", N_("Ends after days"), "number", _DAYS, least=1, most=TOKEN_DAYS_MAX),
    ]


OWN_TOKENS = ConsolePage("/account/tokens", own_tokens, ("GET", "POST"))
ACCOUNT_TOKENS = ConsolePage(
    "/accounts/{name}/tokens", account_tokens, ("GET", "POST"), AccountRole.ADMIN
)
