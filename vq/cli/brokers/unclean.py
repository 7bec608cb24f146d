"""``vq cluster unclean``: have a node lead that may lack acknowledged messages."""

from collections.abc import Sequence
from dataclasses import asdict

import click

from vq.cli.base.completion import broker_group_names
from vq.cli.base.json_schema import Shape, record, shows
from vq.cli.base.options import Invocation, command_options, yes_option
from vq.client.cluster import ClusterClient
from vq.operations.brokers.unclean import Unclean, elect_uncleanly, plan_unclean


@click.command()
@click.argument("group", shell_complete=broker_group_names)
@click.option("--node", required=True, metavar="NODE", help="The node that is to lead.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="A topic on the group; give each of them. Without one, the command names them.",
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
