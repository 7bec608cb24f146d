"""``vq broker``: one broker process, in the foreground until SIGTERM or SIGINT.

``drain``, ``undrain`` and ``remove`` are in ``broker_groups``, ``jobs`` is in ``jobs``.
"""

from dataclasses import replace
from pathlib import Path

import click

from vq.broker.base.config import AuthenticationMode
from vq.cli.base.errors import exit_code_of
from vq.cli.base.options import (
    CLIENT_CERTIFICATES,
    Commands,
    Invocation,
    WholeNumber,
    command_options,
    directory,
    flag,
    option,
    plaintext_option,
)
from vq.cli.base.settings import Sources, build
from vq.cli.brokers.broker_groups import drain, remove, undrain
from vq.cli.brokers.jobs import jobs
from vq.devtools.processes import die_with
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.model import Address
from vq.security.tls import TlsMode

logger = get_logger(__name__)


@click.group(
    cls=Commands,
    invoke_without_command=True,
    subcommand_metavar="[drain|undrain|remove|jobs [OPTIONS] NAME]",
)
@option(
    "--data ...",
    "Directory of the logs; given several times: one on each disk, the main one first.",
    directory,
)
@option("--without-data ID ...", "Go on without this data directory of the node, which is lost.")
@option("--group NAME", "Broker group, the holder of partitions.")
@option("--node NAME", "Name of this node inside its group.")
@option("--host ADDRESS", "Address to listen on.  [127.0.0.1]")
@option("--port N", "Port to listen on; 0: any.  [8123]", WholeNumber(0, 65535))
@option("--advertised HOST:PORT", "What clients connect to.  [where it listens]")
@option("--metrics-host ADDRESS", "Address that metrics are read at.  [127.0.0.1]")
@option(
    "--metrics-port N",
    "Port of metrics and health; 0: none.  [8124, or the next free one]",
    WholeNumber(0, 65535),
)
@option("--tls-mode", "Steps from plain TCP to TLS; the first two serve both.  [required]", TlsMode)
@option(
    "--tls-client-certificates",
    "Whether clients and other nodes must show a certificate.  [none]",
    CLIENT_CERTIFICATES,
)
@option(
    "--metrics-client-certificates",
    "The same for those that read metrics.  [none]",
    CLIENT_CERTIFICATES,
)
@plaintext_option
@option(
    "--authentication",
    "Whether clients say who they are; 'off': nobody, the network is yours alone.  [loopback]",
    AuthenticationMode,
)
@option("--pool NAME", "Pool of topics that this group may hold.")
@option("--rack NAME", "Where the machine is, for consumers near it.")
@option("--archive-at HH:MM", "Local time of the daily run of the archive.  [02:00]")
@flag(
    "--accept-data-loss",
    "Lead the group although its data directory was another one, which is lost.",
    default=None,
)
@flag(
    "--adopt-archives",
    "Own the archives at URLs of the data directory that this one is a copy of.",
    default=None,
)
@option("--die-with", "End when the parent of this id ends.", int, hidden=True)
@command_options
def broker(
    invocation: Invocation,
    data: tuple[Path, ...],
    without_data: tuple[str, ...],
    group: str | None,
    node: str | None,
    host: str | None,
    port: int | None,
    advertised: str | None,
    metrics_host: str | None,
    metrics_port: int | None,
    tls_mode: str | None,
    tls_client_certificates: str | None,
    metrics_client_certificates: str | None,
    plaintext: bool | None,
    authentication: str | None,
    pool: str | None,
    rack: str | None,
    archive_at: str | None,
    accept_data_loss: bool | None,
    adopt_archives: bool | None,
    die_with: int | None,
) -> None:
    """Run one broker process until it is told to stop.

    Every setting can also stand in the [broker] table of the --config file, or in VQ_BROKER_*.
    SIGTERM and ctrl-C stop it gracefully: what was acknowledged is on disk, and its place in
    ZooKeeper is given back. A master hands over to a node in sync first.

    Metrics for Prometheus are at /metrics of the metrics port, health at /healthz and /readyz.
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    _tie_to_parent(die_with)
    sources = invocation.sources.with_flags(
        data=data or None,
        without_data=without_data or None,
        group=group,
        node=node,
        host=host,
        port=port,
        advertised=None if advertised is None else Address.parse(advertised),
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        tls_mode=tls_mode,
        tls_client_certificates=tls_client_certificates,
        metrics_client_certificates=metrics_client_certificates,
        plaintext=plaintext,
        authentication=authentication,
        pool=pool,
        rack=rack,
        archive_at=archive_at,
        accept_data_loss=accept_data_loss,
        adopt_archives=adopt_archives,
    )
    try:
        _run(invocation, sources)
    except (VqError, OSError) as error:
        if invocation.logs.form != "json" or invocation.output.as_json:
            raise
        # The last line says why it ended: a program that reads the log gets it as any other line.
        hint = error.hint if isinstance(error, VqError) else ""
        logger.error("broker ended", error=error, hint=hint)
        raise click.exceptions.Exit(exit_code_of(error)) from error


def _run(invocation: Invocation, sources: Sources) -> None:
    from vq.broker.base.config import BrokerConfig
    from vq.broker.main import run_broker

    config = build(BrokerConfig, "broker", sources)
    # They are shown on other machines, and noted for a start from another working directory.
    config = replace(config, data=tuple(each.absolute() for each in config.directories))
    invocation.logs.start("info", broker=f"{config.group}/{config.node}")
    run_broker(config)


def _tie_to_parent(parent: int | None) -> None:
    if parent is not None:
        die_with(parent)


for _command in (drain, undrain, remove, jobs):
    broker.add_command(_command)
