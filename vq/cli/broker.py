"""``vq broker``: one broker process, in the foreground until SIGTERM or SIGINT."""

import logging
from pathlib import Path

import click

from vq.cli.logs import use_safe_lines
from vq.cli.options import Invocation, WholeNumber, command_options
from vq.cli.settings import build
from vq.devtools.processes import die_with
from vq.model import Address


@click.command()
@click.option(
    "--data", type=click.Path(file_okay=False, path_type=Path), help="Directory of the logs."
)
@click.option("--group", metavar="NAME", help="Broker group, the holder of partitions.")
@click.option("--node", metavar="NAME", help="Name of this node inside its group.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [127.0.0.1]")
@click.option(
    "--port", type=WholeNumber(0, 65535), metavar="N", help="Port to listen on; 0: any.  [8123]"
)
@click.option(
    "--advertised", metavar="HOST:PORT", help="What clients connect to.  [where it listens]"
)
@click.option("--pool", metavar="NAME", help="Pool of topics that this group may hold.")
@click.option(
    "--accept-data-loss",
    is_flag=True,
    default=None,
    help="Lead the group although its data directory was another one, which is lost.",
)
@click.option("--die-with", type=int, hidden=True, help="End when the parent of this id ends.")
@command_options
def broker(
    invocation: Invocation,
    data: Path | None,
    group: str | None,
    node: str | None,
    host: str | None,
    port: int | None,
    advertised: str | None,
    pool: str | None,
    accept_data_loss: bool | None,
    die_with: int | None,
) -> None:
    """Run one broker process until it is told to stop.

    Every setting can also stand in the [broker] table of the --config file, or in VQ_BROKER_*.
    SIGTERM and ctrl-C stop it gracefully: what was acknowledged is on disk, and its place in
    ZooKeeper is given back.
    """
    from vq.broker.config import BrokerConfig
    from vq.broker.main import run_broker

    _tie_to_parent(die_with)
    sources = invocation.sources.with_flags(
        data=data,
        group=group,
        node=node,
        host=host,
        port=port,
        advertised=None if advertised is None else Address.parse(advertised),
        pool=pool,
        accept_data_loss=accept_data_loss,
    )
    config = build(BrokerConfig, "broker", sources)
    logging.basicConfig(level=logging.INFO, force=True)
    use_safe_lines(
        f"%(asctime)s %(levelname)s broker={config.group}/{config.node} %(name)s: %(message)s"
    )
    run_broker(config)


def _tie_to_parent(parent: int | None) -> None:
    if parent is not None:
        die_with(parent)
