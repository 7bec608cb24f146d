"""``vq cluster raise-epoch``, ``unclean`` and ``replace-secret``: last resorts."""

import secrets
from collections.abc import Sequence
from dataclasses import asdict

import click

from vq.cli.base.completion import broker_group_names
from vq.cli.base.json_schema import Shape, record, shows
from vq.cli.base.options import Invocation, WholeNumber, command_options, option, yes_option
from vq.client.cluster import ClusterClient
from vq.coordination.brokers.secret import replace_secret
from vq.operations.brokers.epochs import raise_epoch
from vq.operations.brokers.unclean import Unclean, elect_uncleanly, plan_unclean


@click.command(name="raise-epoch")
@click.argument("group", shell_complete=broker_group_names)
@option(
    "--to EPOCH as epoch",
    "At least what the data directories of the group have acted in.",
    WholeNumber(min=1),
    required=True,
)
@yes_option
@shows(record(done=bool, group=str, before=int, epoch=int))
@command_options
def raise_epoch_command(invocation: Invocation, group: str, *, epoch: int, yes: bool) -> None:
    """Raise the epoch of a broker group, after ZooKeeper was restored from an older backup.

    A broker whose data directory acted in a higher epoch than ZooKeeper gives does not lead, and
    names that epoch. Stop the brokers of the group, and give this command the highest one that they
    name. First make sure that this is the right ZooKeeper, and that no newer backup is at hand.
    """

    found = invocation.call(raise_epoch, group, epoch, do=yes)
    invocation.output.record({"done": yes, **asdict(found)})
    if not yes:
        invocation.only_planned()


@click.command()
@click.argument("group", shell_complete=broker_group_names)
@option("--node NODE", "The node that is to lead.", required=True)
@option(
    "--topic NAME ... as topics",
    "A topic on the group; give each of them. Without one, the command names them.",
)
@yes_option
@shows(record(done=bool, **Shape(Unclean).fields))
@command_options
def unclean(
    invocation: Invocation, group: str, *, node: str, topics: Sequence[str], yes: bool
) -> None:
    """Have a node lead that may lack acknowledged messages: the last resort.

    Only when no node in sync comes back. Messages that NODE lacks are lost, and so is the progress
    of groups beyond them. First make sure that the processes of all nodes that were in sync have
    ended. The decision is written down in ZooKeeper: `vq cluster status` shows it.
    """

    async def work(cluster: ClusterClient) -> Unclean:
        planned = await plan_unclean(cluster, group, node, topics)
        invocation.output.remark(_plan_text(planned))
        return await elect_uncleanly(cluster, group, node, topics) if yes else planned

    found = invocation.call(work)
    invocation.output.record({"done": yes, **asdict(found)})
    if not yes:
        invocation.only_planned()


def _plan_text(planned: Unclean) -> str:
    topics = ", ".join(planned.topics) or "no topic"
    return (
        f"{planned.group}/{planned.node} is to lead without what it lacks of epoch "
        f"{planned.epoch}, which {planned.master} led. In sync were "
        f"{', '.join(planned.insync)}: make sure that their processes have ended; what they take "
        f"from now on is lost, too. Messages may be lost of: {topics}"
    )


@click.command(name="replace-secret")
@yes_option
@shows(record(done=bool))
@command_options
def replace_secret_command(invocation: Invocation, yes: bool) -> None:
    """Replace the secret by which the brokers of the cluster know each other.

    Do this when somebody may have read it. No command shows it. Then restart the brokers, one after
    the other, each time when the one before is in sync again: connections that were proved with the
    old secret go on until their brokers restart.
    """

    async def work(cluster: ClusterClient) -> None:
        if yes:
            await replace_secret(cluster.coordinator, secrets.token_bytes)

    invocation.call(work)
    invocation.show_act(
        {},
        yes=yes,
        did="the secret is replaced; restart the brokers, one after the other",
        plan="replace the secret of the cluster; then restart the brokers",
    )
