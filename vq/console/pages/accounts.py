"""Accounts of the console: made, changed, removed; and one's own password."""

from starlette.responses import RedirectResponse, Response

from vq.console.accounts.accounts import (
    Account,
    AccountRole,
    add_account,
    change_account,
    list_accounts,
    remove_account,
)
from vq.console.database.database import DatabaseFailed
from vq.console.pages.entrance import checked_account
from vq.console.pages.page import ConsolePage
from vq.console.web.context import PageContext
from vq.console.web.forms import confirm
from vq.console.web.languages import N_
from vq.console.web.tables import Asked, Column, Kind, StateWord, table
from vq.errors import InvalidArgument, VqError
from vq.shown import shown


async def accounts(context: PageContext) -> Response:
    """List accounts, and make one."""
    problem, first = "", not context.visitor.logged_in
    roles = [AccountRole.ADMIN] if first else list(AccountRole)
    if context.posted:
        sent = context.form
        name, role = sent.get("name", "").strip(), role_of(sent.get("role", ""))
        password = sent.get("password", "")
        try:
            if role not in roles:
                raise InvalidArgument(
                    "the first account is an admin: from then on only an admin makes accounts"
                )
            await context.console.door.change(
                context.visitor.person,
                "add_account",
                name,
                {"role": str(role)},
                lambda connection: add_account(connection, name, role, password, first=first),
            )
        except DatabaseFailed:
            raise
        except VqError as error:
            problem = str(error)
        else:
            if first:
                return RedirectResponse("/login?made=1", 303)
            context.say(N_("Created: %(what)s"), what=name)
            return RedirectResponse("/accounts", 303)
    columns: list[Column[Account]] = [
        Column(
            "name", N_("Name"), lambda each: each.name, link=lambda each: f"/accounts/{each.name}"
        ),
        Column("role", N_("Role"), lambda each: str(each.role)),
        Column(
            "state",
            N_("State"),
            lambda each: (
                StateWord(N_("disabled"), "warn") if each.disabled else StateWord(N_("good"), "ok")
            ),
            Kind.STATE,
        ),
        Column("created", N_("Created"), lambda each: each.created_ms, Kind.MOMENT),
        Column("changed", N_("Changed"), lambda each: each.changed_ms, Kind.MOMENT),
    ]
    found = table(
        columns,
        await context.console.database.run(list_accounts),
        Asked.of(context.query),
        empty=N_("There is no account: everybody on this machine gets in. Make the first one."),
        searched=lambda each: each.name,
    )
    return context.page(
        "accounts.html",
        400 if problem else 200,
        found=found,
        problem=problem,
        roles=[(str(each), str(each)) for each in roles],
        first=first,
        sent=context.form,
        command="vq console account list",
    )


def role_of(text: str) -> AccountRole:
    """Return the role of a form.

    Raises:
        InvalidArgument: It is none.
    """
    if text not in list(AccountRole):
        raise InvalidArgument(f"{shown(text)} is no role; take one of {', '.join(AccountRole)}")
    return AccountRole(text)


async def account(context: PageContext) -> Response:
    """Change or remove an account."""
    name, sent, problem = context.param("name"), context.form, ""
    all_of = await context.console.database.run(list_accounts)
    found = next((each for each in all_of if each.name == name), None)
    if found is None:
        raise InvalidArgument(f"there is no account {shown(name)}")
    if context.posted:
        act, by, change = sent.get("act", ""), context.visitor.person, context.console.door.change
        try:
            if act == "remove":
                confirm(sent, name)
                await change(
                    by, "remove_account", name, {}, lambda each: remove_account(each, name)
                )
            elif act == "change":
                role, disabled = role_of(sent.get("role", "")), sent.get("disabled") == "on"
                password = sent.get("password") or None
                await change(
                    by,
                    "change_account",
                    name,
                    {"role": str(role), "disabled": sent.get("disabled", "")},
                    lambda connection: change_account(
                        connection, name, role=role, password=password, disabled=disabled
                    ),
                )
            else:
                raise InvalidArgument(f"{shown(act)} is no act on an account")
        except InvalidArgument as error:
            problem = str(error)
        else:
            context.say(N_("Done: %(act)s %(what)s"), act=act, what=name)
            return RedirectResponse("/accounts", 303)
    return context.page(
        "account_change.html",
        400 if problem else 200,
        account=found,
        problem=problem,
        roles=[(str(each), str(each)) for each in AccountRole],
        command=f"vq console account change {name} --role {found.role}",
    )


async def own_account(context: PageContext) -> Response:
    """Change one's own password."""
    name, sent, problem = context.visitor.person.name, context.form, ""
    if context.posted and name:
        old, new = sent.get("old", ""), sent.get("password", "")
        try:
            if new != sent.get("again", ""):
                raise InvalidArgument("the two new passwords differ")
            known, wait_s = await checked_account(context, name, old)
            if wait_s:
                return context.page(
                    "account.html", 429, problem=f"too many tries: wait {wait_s} seconds"
                )
            if known is None:
                raise InvalidArgument("the old password is wrong")
            await context.console.door.change(
                context.visitor.person,
                "change_password",
                name,
                {},
                lambda connection: change_account(connection, name, password=new),
            )
        except InvalidArgument as error:
            problem = str(error)
        else:
            return RedirectResponse("/login", 303)
    return context.page("account.html", 400 if problem else 200, problem=problem)


ACCOUNTS = ConsolePage("/accounts", accounts, ("GET", "POST"), AccountRole.ADMIN)
ACCOUNT = ConsolePage("/accounts/{name}", account, ("GET", "POST"), AccountRole.ADMIN)
OWN_ACCOUNT = ConsolePage("/account", own_account, ("GET", "POST"))
