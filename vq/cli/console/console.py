"""``vq console``: serve the web console; make and change its accounts, and their tokens."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from vq.cli.base.console import missing_package
from vq.cli.base.json_schema import maybe, record, shows, some
from vq.cli.base.options import (
    Commands,
    Invocation,
    WholeNumber,
    command_options,
    flag,
    https_options,
    option,
    yes_option,
)
from vq.cli.base.settings import build
from vq.devtools import processes
from vq.errors import InvalidArgument, VqError

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from vq.client.config import MessageFactoryConfig
    from vq.console.config import ConsoleConfig

T = TypeVar("T")
ROLES = ("viewer", "operator", "admin")


class NoConsole(VqError):
    """A package that the console needs is not installed."""


def _needs_packages() -> None:
    missing = missing_package()
    if missing:
        raise NoConsole(missing)


_database = option(
    "--database URL",
    "What the console remembers: sqlite:///FILE, postgresql://…, mariadb://… or mysql://….  "
    "[sqlite:///vq-console.db]",
)


@click.group(cls=Commands, invoke_without_command=True)
@option("--host ADDRESS", "Where to listen.  [127.0.0.1]")
@option("--port N", "Port to listen on; 0 takes a free one.  [8120]", WholeNumber(0, 65535))
@_database
@option("--public-url URL", "What browsers call the console, if a proxy is between.")
@option(
    "--trusted-proxy ADDRESS|NETWORK ... as trusted_proxies",
    "A proxy that is believed when it says for whom it asks; may be given several times.  "
    "[with --public-url: those of this machine]",
)
@flag("--open as is_open", "Let everybody on this machine act, until there is an account.")
@option(
    "--probe/--no-probe as probe",
    "Send a message a second through each broker group, read it back, and show latency and "
    "loss.  [no-probe]",
    default=None,
)
@option(
    "--also NAME=HOST:PORT[,…][/CLUSTER] ... as others",
    "Show another cluster, too; may be given several times.",
)
@option("--die-with", "End when the parent of this id ends.", int, hidden=True)
@shows(record(console=str))
@https_options
@command_options
@click.pass_context
def console(
    context: click.Context,
    invocation: Invocation,
    host: str | None,
    port: int | None,
    database: str | None,
    public_url: str | None,
    trusted_proxies: tuple[str, ...],
    is_open: bool,
    probe: bool | None,
    others: Sequence[str],
    die_with: int | None,
    https_certificate: Path | None,
    https_key: Path | None,
    https_ca: Path | None,
    https_client_certificates: str | None,
    plaintext: bool | None,
) -> None:
    """Serve the web console; make and change its accounts and tokens.

    On an address that only this machine reaches, everybody may look until there is an account.
    Every setting can also stand in the [console] table of the --config file, or in VQ_CONSOLE_*;
    [console.oidc] has those of a provider of OpenID Connect.
    """
    if context.invoked_subcommand is not None:
        return
    _needs_packages()
    if die_with is not None:
        processes.die_with(die_with)
    from vq.client.environment import export_tls
    from vq.console.server import serve

    config = _settings(
        invocation,
        others,
        host=host,
        port=port,
        database=database,
        public_url=public_url,
        trusted_proxies=trusted_proxies or None,
        open=is_open or None,
        probe=probe,
        https_certificate=https_certificate,
        https_key=https_key,
        https_ca=https_ca,
        https_client_certificates=https_client_certificates,
        plaintext=plaintext,
    )

    def started(address: str) -> None:
        if not invocation.output.document({"console": address}):
            invocation.output.line(f"console  {address}")
        sys.stdout.flush()

    own = invocation.client_config()
    export_tls(own.tls, own.zookeeper_tls)  # for the processes that make reports
    asyncio.run(serve(config, started))


def _settings(invocation: Invocation, others: Sequence[str] = (), **flags: Any) -> "ConsoleConfig":
    """Return the settings, from flags, variables and the file.

    Raises:
        InvalidArgument: A value does not fit, or the file names clusters.
        UsageError: Two clusters have the same name.
    """
    from vq.console.config import ConsoleConfig

    sources, own = invocation.sources, invocation.client_config()
    table = sources.file.get("console", {})
    if "VQ_CONSOLE_CLUSTERS" in sources.environ or "clusters" in table:
        raise InvalidArgument("clusters is no setting of [console]: name others with --also")
    clusters = {own.cluster: own}
    for name, each in (_other(text, own) for text in others):
        if name in clusters:
            raise click.UsageError(
                f"--also names {name!r}, and the console shows a cluster of this name already"
            )
        clusters[name] = each
    flags["database"] = _given_database(flags.get("database"))
    return build(ConsoleConfig, "console", sources.with_flags(clusters=clusters, **flags))


def _given_database(database: str | None) -> str | None:
    """Return the option, also where it stands before ``account``."""
    context: click.Context | None = click.get_current_context(silent=True)
    while context is not None and database is None:
        if context.get_parameter_source("database") is click.core.ParameterSource.COMMANDLINE:
            database = str(context.params["database"])
        context = context.parent
    return database


def _other(text: str, own: "MessageFactoryConfig") -> "tuple[str, MessageFactoryConfig]":
    from dataclasses import replace

    name, equals, where = text.partition("=")
    servers, _, cluster = where.partition("/")
    if not equals or not servers:
        raise click.UsageError(
            f"--also {text!r} is not like NAME=HOST:PORT or NAME=HOST:PORT/CLUSTER"
        )
    return name, replace(own, zookeeper=servers, cluster=cluster or own.cluster)


# Accounts -------------------------------------------------------------------------------------
@console.group(cls=Commands)
def account() -> None:
    """List, make, change and remove accounts of the console."""


_ACCOUNT = record(name=str, role=str, state=str, created_s=float)
_CHANGED = record(done=bool, name=str)


def _work(
    invocation: Invocation,
    database: str | None,
    work: "Callable[[Connection], T]",
    *,
    make: bool = False,
) -> T:
    """Work on the database; one that is not there yet is an error, or made and told."""
    _needs_packages()
    from vq.console.database.database import Database

    opened = Database(_settings(invocation, database=database).database)
    try:
        if opened.upgrade(make=make):
            name = _database_name(invocation, database)
            invocation.output.remark(f"made the tables of a new console in {name}")
        return opened.run_here(work)
    finally:
        opened.close()


def _database_name(invocation: Invocation, database: str | None) -> str:
    """Return which database it is, for people: an account of another one opens no console."""
    from sqlalchemy import make_url

    return make_url(_settings(invocation, database=database).database).render_as_string()


def _password(
    invocation: Invocation, database: str | None, given: bool, *, make: bool = False
) -> str | None:
    """Ask for a password on the terminal, or read the first line of the input.

    What is wrong with the place of the database is told before.
    """
    if not given:
        return None
    from vq.console.accounts.accounts import checked_password
    from vq.console.database.database import Database

    opened = Database(_settings(invocation, database=database).database)
    try:
        opened.check_file(make=make)
    finally:
        opened.close()
    if sys.stdin.isatty():
        line: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        line = sys.stdin.readline().rstrip("\n")
        if not line:
            raise InvalidArgument(
                "give the password on the terminal, or as first line of the input"
            )
    return checked_password(line)  # before a database is made for it


def _tell(invocation: Invocation, name: str, what: str, *, done: bool = True) -> None:
    if not invocation.output.document({"done": done, "name": name}):
        invocation.output.line(f"account {name} {what}")


@account.command(name="list")
@_database
@shows(some(_ACCOUNT))
@command_options
def list_(invocation: Invocation, database: str | None) -> None:
    """List the accounts of the console."""
    from vq.console.accounts import accounts

    found = _work(invocation, database, accounts.list_accounts)
    rows = [
        {
            "name": each.name,
            "role": str(each.role),
            "state": "disabled" if each.disabled else "good",
            "created_s": each.created_ms / 1000,
        }
        for each in found
    ]
    invocation.output.table(rows, columns="name role state")


@account.command()
@click.argument("name")
@option("--role", kind=ROLES, default="viewer")
@flag("--no-password", "It logs in with a provider of identities only.")
@_database
@shows(_CHANGED)
@command_options
def add(
    invocation: Invocation, name: str, role: str, no_password: bool, database: str | None
) -> None:
    """Make an account; its password is asked for, or the first line of the input."""
    _needs_packages()
    from vq.console.accounts.accounts import AccountRole, add_account

    password = _password(invocation, database, not no_password, make=True)
    _work(
        invocation,
        database,
        lambda connection: add_account(connection, name, AccountRole(role), password),
        make=True,
    )
    _tell(invocation, name, f"made: {role}, in {_database_name(invocation, database)}")


@account.command()
@click.argument("name")
@option("--role", "What it may do from now on.", ROLES)
@flag("--password", "Give it a new password.")
@option("--disable/--enable", "Whether it may log in.", default=None)
@_database
@shows(_CHANGED)
@command_options
def change(
    invocation: Invocation,
    name: str,
    role: str | None,
    password: bool,
    disable: bool | None,
    database: str | None,
) -> None:
    """Change an account; its sessions end."""
    _needs_packages()
    from vq.console.accounts.accounts import AccountRole, change_account

    if role is None and disable is None and not password:
        raise click.UsageError("say what is to change: --role, --password, --disable or --enable")
    given = _password(invocation, database, password)
    _work(
        invocation,
        database,
        lambda connection: change_account(
            connection,
            name,
            role=None if role is None else AccountRole(role),
            password=given,
            disabled=disable,
        ),
    )
    _tell(invocation, name, "changed")


@account.command()
@click.argument("name")
@_database
@yes_option
@shows(_CHANGED)
@command_options
def remove(invocation: Invocation, name: str, yes: bool, database: str | None) -> None:
    """Remove an account; what it did stays in the audit."""
    _needs_packages()
    from vq.console.accounts.accounts import read_account, remove_account

    found: Any = _work(invocation, database, lambda connection: read_account(connection, name))
    if not yes:
        _tell(invocation, name, f"({found.role}) would be removed", done=False)
        invocation.only_planned()
        return
    _work(invocation, database, lambda connection: remove_account(connection, name))
    _tell(invocation, name, "removed")


# Tokens ---------------------------------------------------------------------------------------
@console.group(cls=Commands)
def token() -> None:
    """List, make and revoke tokens, with which programs ask the console for an account."""


_TOKEN = record(
    account=str,
    name=str,
    role=str,
    state=str,
    made_by=str,
    created_s=float,
    expires_s=float,
    used_s=maybe(float),
)


@token.command(name="list")
@option("--account NAME", "Only those of this account.")
@_database
@shows(some(_TOKEN))
@command_options
def list_tokens(invocation: Invocation, account: str | None, database: str | None) -> None:
    """List the tokens of the console; the tokens themselves are nowhere."""
    _needs_packages()
    from vq.console.accounts.tokens import list_access_tokens

    found = _work(invocation, database, lambda each: list_access_tokens(each, account))
    rows = [
        {
            "account": each.account,
            "name": each.name,
            "role": str(each.role),
            "state": "ended" if each.has_ended else "good",
            "made_by": each.made_by,
            "created_s": each.created_ms / 1000,
            "expires_s": each.expires_ms / 1000,
            "used_s": None if each.used_ms is None else each.used_ms / 1000,
        }
        for each in found
    ]
    invocation.output.table(rows, columns="account name role state")


@token.command(name="add")
@click.argument("account")
@click.argument("name")
@option("--role", kind=ROLES, default="viewer")
@option("--days N", "It ends after so many days, 366 at most.", WholeNumber(1), default=90)
@_database
@shows(record(account=str, name=str, token=str))
@command_options
def add_token(
    invocation: Invocation, account: str, name: str, role: str, days: int, database: str | None
) -> None:
    """Make a token of an account; it is shown once, and the console has its hash only."""
    _needs_packages()
    from vq.console.accounts.accounts import AccountRole
    from vq.console.accounts.tokens import make_access_token

    made = _work(
        invocation,
        database,
        lambda each: make_access_token(each, account, name, AccountRole(role), days),
    )
    if invocation.output.document({"account": account, "name": name, "token": made}):
        return
    click.echo(made)
    invocation.output.remark("the token is shown this once")


@token.command()
@click.argument("account")
@click.argument("name")
@_database
@yes_option
@shows(_CHANGED)
@command_options
def revoke(
    invocation: Invocation, account: str, name: str, yes: bool, database: str | None
) -> None:
    """Revoke a token: from now on the console does not know it."""
    _needs_packages()
    from vq.console.accounts.tokens import UnknownToken, list_access_tokens, revoke_access_token

    if not yes:
        found = _work(invocation, database, lambda each: list_access_tokens(each, account))
        if name not in {each.name for each in found}:
            raise UnknownToken(f"account {account} has no token {name!r}")
    else:
        _work(invocation, database, lambda each: revoke_access_token(each, account, name))
    if not invocation.output.document({"done": yes, "name": name}):
        what = "revoked" if yes else "would be revoked"
        invocation.output.line(f"token {name} of {account} {what}")
    if not yes:
        invocation.only_planned()


# History --------------------------------------------------------------------------------------
@console.group(cls=Commands)
def history() -> None:
    """Export what the console has measured."""


@history.command()
@click.argument("file", type=click.Path(dir_okay=False, writable=True, path_type=Path))
@option(
    "--series BEGIN",
    "Only series whose names begin so, such as 'disk_used b1/'.  [all]",
    default="",
)
@_database
@shows(record(done=bool, file=str, samples=int))
@command_options
def export(invocation: Invocation, file: Path, series: str, database: str | None) -> None:
    """Write the measurements of a cluster as lines of JSON, one for each interval.

    Each has the name of the series, the begin and the width of the interval in seconds (time_s,
    step_s), the mean and the largest value, and how many were measured. --cluster says which
    cluster, as the console calls it. `vq report capacity --history FILE` forecasts from it.
    """
    _needs_packages()
    from vq.console.clusters.history import export_samples, kept_clusters

    cluster = invocation.client_config().cluster

    def write(connection: "Connection") -> int:
        known = kept_clusters(connection)
        if cluster not in known:
            raise InvalidArgument(
                f"the console has measured no cluster {cluster!r}; it has: "
                f"{', '.join(known) or 'none'}"
            )
        return export_samples(connection, cluster, file, begin=series)

    count = _work(invocation, database, write)
    if not invocation.output.document({"done": True, "file": str(file), "samples": count}):
        invocation.output.line(f"{count} samples of {cluster} written to {file}")
