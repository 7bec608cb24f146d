"""``vq doctor``: the checks of ``vq.admin``, and what ``vq standalone`` needs on this machine."""

import asyncio
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import click

from vq.broker.base.config import BrokerConfig
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, shows, some
from vq.cli.base.options import Invocation, command_options, directory, flag, option
from vq.cli.base.settings import build, is_given
from vq.client.config import MessageFactoryConfig
from vq.devtools.processes import ask_status
from vq.devtools.zookeeper import MissingPart, find_jars, find_java
from vq.model import Address
from vq.operations.cluster import checks
from vq.operations.cluster.checks import Finding, Level
from vq.operations.cluster.doctor import (
    check_certificate,
    check_cluster,
    check_database,
    check_machine,
)
from vq.remoting.ports import port_error
from vq.security.tls import Tls

#: A terminal that leaves fewer columns for details breaks them itself.
_ROOM_MIN: Final = 20
_MARKS = {Level.OK: "ok  ", Level.WARN: "WARN", Level.FAIL: "FAIL"}


_FINDING: Final = Shape(Finding, "check level detail remedy?")


@click.command()
@option("--data", "Data directory of a broker here.  [that of the settings, else .]", directory)
@flag("--local", "Only this machine, not the cluster.")
@option(
    "--database URL ... as databases",
    "Also a database that takes part in transactions, as `vq tx recover` takes it.",
)
@shows(some(_FINDING))
@command_options
def doctor(
    invocation: Invocation, data: Path | None, local: bool, databases: Sequence[str]
) -> None:
    """Check machine and cluster, and say what to do.

    Exit code 1 if a check fails; a warning is no failure.
    """
    config = _broker_config(invocation, data)
    findings = [
        _part("java", lambda: str(find_java())),
        _part("zookeeper jars", lambda: str(find_jars()[0].parent)),
        *check_machine(config),
        port_finding(
            Address(config.host, config.port),
            config.tls,
            config.advertised,
            operator=None if local else invocation.client_config(),
        ),
    ]
    is_broker_here = is_given("broker", "group", invocation.sources)
    if is_broker_here:
        findings += check_certificate(config)
    if not local:
        findings += asyncio.run(
            check_cluster(invocation.client_config(), is_broker_here=is_broker_here)
        )
    findings += map(check_database, databases)
    _print(invocation, findings)
    failed = sum(finding.level is Level.FAIL for finding in findings)
    if failed:
        raise CommandFailed(f"{failed} of {len(findings)} checks failed")


def _broker_config(invocation: Invocation, data: Path | None) -> BrokerConfig:
    """Return the settings of a broker here; required ones that are missing are filled in."""
    sources = invocation.sources.with_flags(data=data)
    for name, value in (("data", Path()), ("group", "doctor"), ("node", "doctor")):
        if not is_given("broker", name, sources):
            sources = sources.with_flags(**{name: value})
    return build(BrokerConfig, "broker", sources)


def _print(invocation: Invocation, findings: Sequence[Finding]) -> None:
    output = invocation.output
    if output.as_json:
        output.document(_FINDING.all(findings))
        return
    width = max(len(finding.check) for finding in findings)
    room = shutil.get_terminal_size().columns - width - 8 if output.to_terminal else 0
    for finding in findings:
        first, *more = _lines(finding.detail, room)
        output.line(f"{_MARKS[finding.level]}  {finding.check.ljust(width)}  {first}")
        if finding.remedy:
            first, *rest = _lines(finding.remedy, room - 3)
            more += [f"-> {first}", *(f"   {each}" for each in rest)]
        for each in more:
            output.line(f"{' ' * (width + 8)}{each}")


def _lines(told: str, room: int) -> list[str]:
    """Return a text in lines of a terminal, broken between words; whole where there is no room."""
    if room < _ROOM_MIN:
        return [told]
    return textwrap.wrap(told, room, break_long_words=False, break_on_hyphens=False) or [told]


# Checks of the development tools on this machine ----------------------------------------------
def _part(check: str, find: Callable[[], str]) -> Finding:
    try:
        return checks.part(check, find(), "")
    except MissingPart as error:
        return checks.part(check, None, str(error))


def port_finding(
    address: Address,
    tls: Tls | None = None,
    advertised: Address | None = None,
    *,
    operator: MessageFactoryConfig | None = None,
) -> Finding:
    """Look at the port of a broker; whoever has it is asked where clients connect to it.

    ``operator``: how to ask a broker that takes users alone.
    """
    if address.port == 0:
        return checks.broker_port(str(address), None, None)
    error = port_error(address)
    asked = address if advertised is None else advertised
    status = None
    if error is not None:
        status = asyncio.run(ask_status(asked, tls=tls, operator=operator))
    broker = None if status is None else f"broker {status.group}/{status.node} of {status.cluster}"
    return checks.broker_port(str(address), error, broker)
