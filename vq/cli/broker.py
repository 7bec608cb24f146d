"""``vq broker``: one broker process, in the foreground until SIGTERM or SIGINT; and ``drain``."""

import logging
from dataclasses import asdict, replace
from pathlib import Path

import click

from vq.cli.errors import CommandFailed
from vq.cli.logs import use_safe_lines
from vq.cli.options import (
    Commands,
    Invocation,
    WholeNumber,
    command_options,
    no_effect,
    yes_option,
)
from vq.cli.settings import build
from vq.devtools.processes import die_with
from vq.model import Address


@click.group(cls=Commands, invoke_without_command=True, subcommand_metavar="[drain [OPTIONS] NAME]")
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
@click.option(
    "--metrics-host", metavar="ADDRESS", help="Address that metrics are read at.  [127.0.0.1]"
)
@click.option(
    "--metrics-port",
    type=WholeNumber(0, 65535),
    metavar="N",
    help="Port of metrics and health; 0: none.  [8124, or the next free one]",
)
@click.option("--pool", metavar="NAME", help="Pool of topics that this group may hold.")
@click.option("--rack", metavar="NAME", help="Where the machine is, for consumers near it.")
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
    metrics_host: str | None,
    metrics_port: int | None,
    pool: str | None,
    rack: str | None,
    accept_data_loss: bool | None,
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
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        pool=pool,
        rack=rack,
        accept_data_loss=accept_data_loss,
    )
    config = build(BrokerConfig, "broker", sources)
    logging.basicConfig(level=logging.INFO, force=True)
    use_safe_lines(
        f"%(asctime)s %(levelname)s broker={config.group}/{config.node} %(name)s: %(message)s"
    )
    run_broker(config)


@broker.command()
@click.argument("name", metavar="GROUP/NODE|GROUP")
@click.option("--undo", is_flag=True, help="Drain it no longer.")
@click.option("--move", is_flag=True, help="Move the open partitions of the group elsewhere.")
@yes_option
@command_options
def drain(invocation: Invocation, name: str, undo: bool, move: bool, yes: bool) -> None:
    """Take leadership from a node, or new partitions from a group.

    A node that is drained, such as b1/n2, hands over its group and goes on copying. It leads again
    only if no other node in sync can, and hands over as soon as one is.

    No new partitions are placed on a group that is drained, such as b1. With --move, those that
    are open on it are moved to other groups; what is stored stays readable where it is.

    A drained node or group stays so until --undo, also after restarts.
    """
    group, _, node = name.partition("/")
    if move and (undo or node):
        raise click.UsageError("--move is for draining a group: `vq broker drain GROUP --move`")
    if yes and not move:
        raise no_effect("--yes", "without --move", "give both")
    if node:
        _drain_node(invocation, group, node, undo=undo)
    else:
        _drain_group(invocation, group, undo=undo, move=move, yes=yes)


def _drain_node(invocation: Invocation, group: str, node: str, *, undo: bool) -> None:
    from vq.admin.connect import cluster_client
    from vq.admin.draining import DrainedNode, drain_node

    async def work() -> DrainedNode:
        async with cluster_client(invocation.client_config()) as client:
            return await drain_node(client, group, node, undo=undo)

    done = invocation.run(work())
    invocation.output.record(asdict(done))
    if done.drained and done.master == node:
        raise CommandFailed(
            f"{group}/{node} is drained and leads on: no other node that is not drained is in "
            "sync. It hands over when one is; see `vq cluster status`"
        )


def _drain_group(invocation: Invocation, group: str, *, undo: bool, move: bool, yes: bool) -> None:
    from vq.admin.connect import cluster_client
    from vq.admin.draining import DrainedGroup, drain_group, plan_emptying
    from vq.admin.placements import move_all

    async def work() -> DrainedGroup:
        async with cluster_client(invocation.client_config()) as client:
            done = await drain_group(client, group, undo=undo)
            if not move:
                return done
            moves = await plan_emptying(client, group)
            if yes:
                moved = await move_all(client, moves)
                return replace(done, partitions=done.partitions - len(moved))
            for each in moves:
                where = each.placement
                invocation.output.remark(
                    f"plan: {where.topic}-{where.partition} from {group} to {each.target.group}"
                )
            return done

    done = invocation.run(work())
    invocation.output.record(asdict(done))
    if move and not yes and done.partitions:
        raise CommandFailed("no partition was moved; add --yes to do it")
    if done.draining and done.partitions:
        invocation.output.remark(
            f"{done.partitions} partition(s) stay open on {group}; "
            f"`vq broker drain {group} --move` moves them"
        )


def _tie_to_parent(parent: int | None) -> None:
    if parent is not None:
        die_with(parent)
