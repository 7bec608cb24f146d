"""``vq quota``: how much users may use of the brokers, see ``vq.operations.security``."""

from collections.abc import Sequence
from typing import Final

import click

from vq.cli.base.json_schema import Shape, shows, some
from vq.cli.base.options import Commands, Invocation, command_options, option
from vq.cli.security.unknown import remark_unknown
from vq.operations.security.quotas import list_quotas, remove_quotas, set_quotas, show_quota
from vq.security.quotas import EffectiveLimit, Quota, value_text
from vq.shown import shown


def _limits(quota: Quota) -> dict[str, float | None]:
    return {str(name): quota.limits[name] for name in quota.ordered}


_QUOTA: Final = Shape(Quota, "subject limits=", limits=_limits)
_LIMIT: Final = Shape(EffectiveLimit, "limit value subject")

_subject = click.argument("subject")


@click.group(cls=Commands)
def quota() -> None:
    """Set, remove, list and show how much users and their clients may use of the brokers."""


@quota.command(name="set")
@_subject
@click.argument("limits", nargs=-1, required=True)
@shows(some(_QUOTA))
@command_options
def set_(invocation: Invocation, subject: str, limits: Sequence[str]) -> None:
    """Set limits of a user or client; its other limits stay.

    SUBJECT is user:NAME, user:* (each user without a limit of its own), anonymous (all who have
    proved no name, together), client:ID (a client id, for each user by itself) or client:*.

    LIMITS are some of bytes-in=, bytes-out= (bytes a second: 1000, 64K, 10M), messages-in=,
    requests=, connections= (a second), and time= (part of the time of a broker's loop: 5%). Each
    broker counts for itself. The value unlimited lifts a limit that user:* or client:* has.

    Who uses more has to wait. Brokers obey at once.

    metadata= is how many partitions a user makes or moves in an hour. The command, program or
    console that does it looks at that; no broker does.
    """
    given = Quota.parse(" ".join((subject, *limits)))
    _show_change(invocation, invocation.call(set_quotas, [given]), f"set: {given}")
    remark_unknown(invocation, subject)


@quota.command()
@_subject
@click.argument("limits", nargs=-1)
@shows(some(_QUOTA))
@command_options
def remove(invocation: Invocation, subject: str, limits: Sequence[str]) -> None:
    """Remove limits of a user or client; without LIMITS, all that it has.

    Requests that wait for them go on at once.
    """
    given = " ".join((subject, *limits))
    _show_change(invocation, invocation.call(remove_quotas, [given]), f"removed: {given}")


@quota.command(name="list")
@shows(some(_QUOTA))
@command_options
def list_(invocation: Invocation) -> None:
    """List the quotas."""
    quotas = invocation.call(list_quotas)
    output = invocation.output
    if output.document(_QUOTA.all(quotas)):
        return
    rows = [
        {"subject": each.subject, "limits": str(each).partition(" ")[2].replace(" ", ", ")}
        for each in quotas
    ]
    output.table(rows, columns="subject limits")
    if not quotas:
        output.remark("there are no quotas: nobody is limited")


@quota.command()
@click.argument("who", metavar="USER")
@option("--client ID", "A client id of the user, with its limits.")
@shows(some(_LIMIT))
@command_options
def show(invocation: Invocation, who: str, client: str | None) -> None:
    """Say which limits hold for a user, and whose quota says so.

    USER is a name, or anonymous.
    """
    found = invocation.call(show_quota, who, client)
    output = invocation.output
    if output.document(_LIMIT.all(found)):
        return
    rows = [{**_LIMIT(each), "value": value_text(each.limit, each.value)} for each in found]
    output.table(rows, columns=" ".join(_LIMIT.fields))
    if not found:
        output.remark(f"{shown(who)} is not limited")


def _show_change(invocation: Invocation, quotas: Sequence[Quota], done: str) -> None:
    output = invocation.output
    if not output.document(_QUOTA.all(quotas)):
        output.remark(f"{done}; subjects with quotas now: {len(quotas)}")
