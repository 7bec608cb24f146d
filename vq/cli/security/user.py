"""``vq user``: who may connect to brokers, see ``vq.operations.security.users``.

A password comes from a file, from ``VQ_NEW_PASSWORD``, or from the terminal; never from an
argument.
"""

from collections.abc import Sequence
from typing import Any, Final

import click

from vq.cli.base.json_schema import Shape, record, shows, some
from vq.cli.base.options import (
    Commands,
    Invocation,
    command_options,
    flag,
    no_effect,
    option,
    yes_option,
)
from vq.cli.base.passwords import new_password
from vq.cli.base.text import utc
from vq.operations.security.users import (
    UserEntry,
    add_user,
    change_user_roles,
    finish_rotation,
    get_user,
    list_users,
    remove_user,
    rotate_user,
)


def _each_in_seconds(moments: tuple[int, ...]) -> list[float]:
    return [each / 1000 for each in moments]


_USER: Final = Shape(
    UserEntry,
    "user=name roles passwords_since_s=passwords_since_ms rotating created_s by problem",
    passwords_since_s=_each_in_seconds,
)
_COLUMNS: Final = "user roles password created by problem"

_name = click.argument("name")
_password_file = option(
    "--new-password-file FILE",
    "File whose first line is the new password.  [VQ_NEW_PASSWORD; else it is asked for]",
    click.Path(dir_okay=False),
)


@click.group(cls=Commands)
def user() -> None:
    """Add, list, show, rotate and remove the users that may connect to brokers."""


@user.command()
@_name
@option("--role ROLE ... as roles", "A role; may repeat.")
@flag("--no-password", "It has none: its TLS certificate names the user.")
@_password_file
@shows(_USER)
@command_options
def add(
    invocation: Invocation,
    name: str,
    roles: Sequence[str],
    no_password: bool,
    new_password_file: str | None,
) -> None:
    """Add a user.

    Brokers with authentication = "optional" or "required" take it at once.
    """
    if no_password and new_password_file is not None:
        raise no_effect("--new-password-file", "with --no-password", "leave --no-password out")
    password = None if no_password else _new_password(invocation, name, new_password_file)
    _show(invocation, invocation.call(add_user, name, password, roles=roles), "added")


@user.command(name="list")
@shows(some(_USER))
@command_options
def list_(invocation: Invocation) -> None:
    """List the users."""
    found = invocation.call(list_users)
    output = invocation.output
    if output.document(_USER.all(found)):
        return
    output.table([_row(each) for each in found], columns=_COLUMNS, optional="problem")
    if not found:
        output.remark("there are no users; `vq user add NAME` adds one")


@user.command()
@_name
@shows(_USER)
@command_options
def show(invocation: Invocation, name: str) -> None:
    """Show a user."""
    _show(invocation, invocation.call(get_user, name), "")


@user.command()
@_name
@flag("--finish", "Withdraw the older of two valid passwords.")
@_password_file
@shows(_USER)
@command_options
def rotate(invocation: Invocation, name: str, finish: bool, new_password_file: str | None) -> None:
    """Give a user a new password beside the one that it has; --finish withdraws the old one.

    Both are valid in between, so clients can get the new one without an interruption. Connections
    that proved a withdrawn password end.
    """
    if finish:
        if new_password_file is not None:
            raise no_effect("--new-password-file", "with --finish", "leave --finish out")
        _show(invocation, invocation.call(finish_rotation, name), "old password withdrawn")
        return
    password = _new_password(invocation, name, new_password_file)
    _show(invocation, invocation.call(rotate_user, name, password), "both passwords are valid")


@user.command()
@_name
@option("--add ROLE ... as added", "Give a role; may repeat.")
@option("--remove ROLE ... as removed", "Take a role away; may repeat.")
@shows(_USER)
@command_options
def roles(invocation: Invocation, name: str, added: Sequence[str], removed: Sequence[str]) -> None:
    """Give roles to a user, and take others away.

    Its connections end, and come back with the new roles.
    """
    if not added and not removed:
        raise click.UsageError("nothing to change: give --add ROLE or --remove ROLE")
    before = invocation.call(get_user, name)
    changed = invocation.call(change_user_roles, name, add=added, remove=removed)
    absent = [each for each in removed if each not in before.roles]
    done = "changed" if changed.roles != before.roles else "nothing was changed"
    if absent:
        done += f"; it did not have {', '.join(absent)}"
    _show(invocation, changed, done)


@user.command()
@_name
@yes_option
@shows(record(done=bool, user=str))
@command_options
def remove(invocation: Invocation, name: str, yes: bool) -> None:
    """Remove a user; its connections end."""
    output = invocation.output
    if yes:
        invocation.call(remove_user, name)
    else:
        invocation.call(get_user, name)
    if not output.document({"done": yes, "user": name}):
        output.line(f"user {name} {'removed' if yes else 'would be removed'}")
    if not yes:
        invocation.only_planned()


def _new_password(invocation: Invocation, name: str, path: str | None) -> str:
    return new_password(name, path, invocation.sources.environ.get("VQ_NEW_PASSWORD", ""))


def _show(invocation: Invocation, entry: UserEntry, done: str) -> None:
    output = invocation.output
    if output.document(_USER(entry)):
        return
    output.table([_row(entry)], columns=_COLUMNS, optional="problem")
    if done:
        output.remark(f"user {entry.name}: {done}")


def _row(entry: UserEntry) -> dict[str, Any]:
    since = entry.passwords_since_ms
    return {
        "user": entry.name,
        "roles": ", ".join(entry.roles),
        "password": "two are valid" if entry.rotating else "one" if since else "none",
        "created": utc(entry.created_ms),
        "by": entry.by,
        "problem": entry.problem,
    }
