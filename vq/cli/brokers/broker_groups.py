"""``vq broker drain``, ``undrain`` and ``remove``: taking brokers out of a cluster."""

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from vq.cli.base.completion import broker_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.options import Invocation, command_options, flag, no_effect, yes_option

if TYPE_CHECKING:
    from vq.operations.brokers.draining import DrainedGroup
from typing import Final

from vq.cli.base.json_schema import maybe, optional, record, shows, some
from vq.cli.topics.moves import MOVES_SCHEMA

_DRAINED: Final = optional(
    record(group=str),
    draining=bool,
    partitions=int,
    node=str,
    drained=bool,
    master=str,
    done=bool,
    moves=MOVES_SCHEMA,
)

_NAME = click.argument("name", metavar="GROUP/NODE|GROUP", shell_complete=broker_names)


@click.command()
@_NAME
@flag("--undo", "The same as `vq broker undrain`.")
@flag("--move", "Move the open partitions of the group elsewhere.")
@yes_option
@shows(_DRAINED)
@command_options
def drain(invocation: Invocation, name: str, undo: bool, move: bool, yes: bool) -> None:
    """Take leadership from a node, or new partitions from a group.

    A node that is drained, such as b1/n2, hands over its group and goes on copying. It leads again
    only if no other node in sync can, and hands over as soon as one is.

    No new partitions are placed on a group that is drained, such as b1. With --move, those that
    are open on it are moved to other groups; what is stored stays readable where it is.

    A drained node or group stays so until `vq broker undrain`, also after restarts.
    """
    group, _, node = name.partition("/")
    if move and (undo or node):
        raise click.UsageError("--move is for draining a group: `vq broker drain GROUP --move`")
    if yes and not move:
        raise no_effect("--yes", "without --move", "give both")
    if node:
        _drain_node(invocation, group, node, undo=undo)
    elif move:
        _move_all(invocation, group, yes=yes)
    else:
        _drain_group(invocation, group, undo=undo)


@click.command()
@_NAME
@shows(_DRAINED)
@command_options
def undrain(invocation: Invocation, name: str) -> None:
    """Let a node lead again, or place new partitions on a group again."""
    group, _, node = name.partition("/")
    if node:
        _drain_node(invocation, group, node, undo=True)
    else:
        _drain_group(invocation, group, undo=True)


@click.command()
@_NAME
@flag(
    "--accept-data-loss",
    "The disk of the group is lost for good: give up the messages that only it had.",
)
@yes_option
@shows(
    record(
        done=bool,
        group=str,
        node=maybe(str),
        running=some(str),
        open_partitions=int,
        topics=some(str),
        ranges=some(record(topic=str, partition=int, start=int, end=int)),
        obstacle=maybe(str),
    )
)
@command_options
def remove(invocation: Invocation, name: str, accept_data_loss: bool, yes: bool) -> None:
    """Remove a broker group, or a node of one, from the cluster for good.

    Stop its broker first. A group must have no partitions and no stored messages: see `vq broker
    drain --move` and `vq topic delete`. A node must have left the nodes in sync. A broker that is
    started later makes the group anew; for that it needs an empty data directory.

    With --accept-data-loss the group may have stored messages. The plan says which ranges are given
    up. Their partitions begin behind them; a consumer group that has not handled them stands still
    until it is reset.

    Exit code 1 if something stands in the way.
    """
    from vq.client.cluster import ClusterClient
    from vq.operations.brokers.removing import Removal, plan_removal, remove_broker

    group, _, node = name.partition("/")

    async def work(client: ClusterClient) -> Removal:
        if not yes:
            return await plan_removal(client, group, node)
        return await remove_broker(client, group, node, accept_data_loss=accept_data_loss)

    found = invocation.call(work)
    obstacle = found.obstacle_to_loss if accept_data_loss else found.obstacle
    output = invocation.output
    is_told = output.document(
        {
            "done": yes,
            "group": group,
            "node": node or None,
            "running": list(found.running),
            "open_partitions": found.open,
            "topics": list(found.topics),
            "ranges": [asdict(each) for each in found.ranges],
            "obstacle": obstacle or None,
        }
    )
    if not is_told and not obstacle:
        for lost in found.ranges:
            output.remark(f"{'gave' if yes else 'plan: give'} up {lost}")
        if yes:
            output.remark(f"removed {name}")
    if obstacle:
        raise CommandFailed(f"{name} cannot be removed: {obstacle}")
    if not yes:
        output.remark(f"plan: remove {name} from the cluster")
        invocation.only_planned()


def _drain_node(invocation: Invocation, group: str, node: str, *, undo: bool) -> None:
    from vq.operations.brokers.draining import drain_node, undrain_node

    done = invocation.call(undrain_node if undo else drain_node, group, node)
    invocation.output.record(asdict(done))
    if done.drained and done.master == node:
        raise CommandFailed(
            f"{group}/{node} is drained and leads on: no other node that is not drained is in "
            "sync. It hands over when one is; see `vq cluster status`"
        )


def _drain_group(invocation: Invocation, group: str, *, undo: bool) -> None:
    from vq.operations.brokers.draining import drain_group, undrain_group

    _show_group(invocation, invocation.call(undrain_group if undo else drain_group, group))


def _show_group(invocation: Invocation, done: "DrainedGroup") -> None:
    invocation.output.record(asdict(done))
    if done.draining and done.partitions:
        invocation.output.remark(
            f"{done.partitions} partition(s) stay open on {done.group}; "
            f"`vq broker drain {done.group} --move` moves them"
        )


def _move_all(invocation: Invocation, group: str, *, yes: bool) -> None:
    from vq.cli.topics.moves import move_rows
    from vq.client.cluster import ClusterClient
    from vq.operations.brokers.draining import DrainedGroup, drain_group
    from vq.operations.partitions.placements import Move, Moved, move_all, plan_emptying

    async def work(client: ClusterClient) -> tuple[DrainedGroup, list[Move], list[Moved]]:
        done = await drain_group(client, group)
        moves = await plan_emptying(client, group)
        moved = await move_all(client, moves) if yes else []
        return replace(done, partitions=done.partitions - len(moved)), moves, moved

    found, planned, moved = invocation.call(work)
    rows = move_rows(planned, moved if yes else None)
    if not invocation.output.document({**asdict(found), "done": yes, "moves": rows}):
        for row in rows:
            verb = "moved" if yes else "plan:"
            invocation.output.remark(
                f"{verb} {row['topic']}-{row['partition']} from {row['from']} to {row['to']}"
            )
        invocation.output.record(asdict(found))
    if planned and not yes:
        invocation.only_planned("no partition was moved")
