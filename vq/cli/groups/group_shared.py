"""``vq group shared``: what is open of a shared group."""

from dataclasses import asdict

import click

from vq.cli.base.completion import group_names
from vq.cli.base.json_schema import Shape, shows
from vq.cli.base.options import Invocation, command_options
from vq.operations.groups.shared import SharedGroupDescription, describe_shared_group


@click.command()
@click.argument("name", shell_complete=group_names)
@shows(Shape(SharedGroupDescription))
@command_options
def shared(invocation: Invocation, name: str) -> None:
    """Show which messages of a shared group are not done.

    Messages are told by their numbers: all before low are done, from cursor on none was delivered.
    Of those between, open are not done: members have held of them, and waiting are due later, since
    they have failed; redelivered were delivered more than once. deliveries_max is how often one of
    these was delivered at most.
    """
    found, output = invocation.call(describe_shared_group, name), invocation.output
    if output.as_json:
        output.document(asdict(found))
        return
    columns = "topic partition low cursor open held waiting redelivered deliveries_max"
    output.table([asdict(each) for each in found.partitions], columns=columns)
    output.remark(f"{found.receiving} member(s) wait for messages")
