"""``vq cluster replace-secret``: another secret by which brokers know each other."""

import secrets

import click

from vq.cli.base.json_schema import record, shows
from vq.cli.base.options import Invocation, command_options, yes_option
from vq.client.cluster import ClusterClient
from vq.coordination.brokers.secret import replace_secret


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
