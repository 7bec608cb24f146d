"""``vq gateway``: the cluster over HTTP, and tokens of its clients."""

import asyncio
from pathlib import Path
from typing import Any

import click

from vq.cli.base.json_schema import maybe, record, shows
from vq.cli.base.options import (
    CLIENT_CERTIFICATES,
    Commands,
    Invocation,
    WholeNumber,
    command_options,
    https_options,
    option,
)
from vq.cli.base.settings import build
from vq.errors import InvalidArgument, InvalidState
from vq.extras import install_command


@click.group(cls=Commands, invoke_without_command=True, subcommand_metavar="[token [OPTIONS] NAME]")
@option("--host ADDRESS", "Address to listen on.  [127.0.0.1]")
@option("--port N", "Port to listen on; 0: any.  [8125]", WholeNumber(0, 65535))
@option(
    "--tokens FILE",
    "File of tokens; without one, only on loopback.",
    click.Path(dir_okay=False, path_type=Path),
)
@option(
    "--allowed-host NAME ...",
    "A name of the gateway in the header Host; '*': any.  [the address it listens on]",
)
@option(
    "--allow-origin ORIGIN ...",
    "Web pages of this origin may call it, such as https://shop.example.  [none]",
)
@option("--metrics-host ADDRESS", "Address that metrics are read at.  [127.0.0.1]")
@option("--metrics-port N", "Port of metrics and health; 0: none.  [8126]", WholeNumber(0, 65535))
@option(
    "--metrics-client-certificates",
    "Whether those that read metrics must show a certificate.  [none]",
    CLIENT_CERTIFICATES,
)
@https_options
@command_options
def gateway(
    invocation: Invocation,
    host: str | None,
    port: int | None,
    tokens: Path | None,
    allowed_host: tuple[str, ...],
    allow_origin: tuple[str, ...],
    metrics_host: str | None,
    metrics_port: int | None,
    **https: Any,
) -> None:
    """Serve the cluster over HTTP, for programs without a client of vq.

    Every setting can also stand in the [gateway] table of the --config file, or in VQ_GATEWAY_*.
    Runs until ctrl-C or SIGTERM: consumers leave their groups, and requests that wait are answered
    with 503. /openapi.json describes all routes.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    from vq.gateway.config import GatewayConfig

    sources = invocation.sources.with_flags(
        host=host,
        port=port,
        tokens=tokens,
        allowed_hosts=allowed_host or None,
        origins=allow_origin or None,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        **https,
    )
    config = build(GatewayConfig, "gateway", sources)
    try:
        from vq.gateway.server import run_gateway
    except ImportError as missing:
        raise InvalidState(
            f"vq gateway needs the package {missing.name}: {install_command('web')}"
        ) from missing
    invocation.logs.start("info")
    work = run_gateway(config, invocation.client_config(), invocation.output.remark)
    try:
        import uvloop
    except ImportError:  # no wheel for this platform: slower, not different
        asyncio.run(work)
    else:
        uvloop.run(work)


@gateway.command()
@click.argument("name")
@option("--write TOPIC ...", "It may send to a topic or pattern.")
@option("--read TOPIC ...", "It may read a topic or pattern.")
@option("--group GROUP ...", "It may join a group or pattern.")
@option(
    "--tokens FILE",
    "Write the entry into this file of tokens, which is made if there is none.",
    click.Path(dir_okay=False, path_type=Path),
)
@shows(record(name=str, token=str, entry=str, file=maybe(str)))
@command_options
def token(
    invocation: Invocation,
    name: str,
    write: tuple[str, ...],
    read: tuple[str, ...],
    group: tuple[str, ...],
    tokens: Path | None,
) -> None:
    """Make a token, and the entry that the file of tokens needs for it.

    The token is shown once and is nowhere else: the file has its SHA-256. A gateway that runs reads
    the file again when it has changed. Patterns are as in `vq consume`: 'orders.*'.
    """
    from vq.gateway.bearer import make_token
    from vq.gateway.tokens import add_entry, entry_of

    if not (write or read or group):
        raise InvalidArgument(
            f"token {name!r} would have no right: give --write, --read or --group"
        )
    made = make_token()
    entry = entry_of(name, made, write=write, read=read, groups=group)
    if tokens is not None:
        add_entry(tokens, entry)
    output = invocation.output
    file = None if tokens is None else str(tokens)
    if output.document({"name": name, "token": made, "entry": entry, "file": file}):
        return
    click.echo(made)
    if file is not None:
        output.remark(f"the entry is in {file}; the token is shown this once")
        return
    output.remark("the token is shown this once; write this entry into the file of --tokens:")
    click.echo()
    click.echo(entry, nl=False)
