"""``vq cluster raise-epoch``: bring the record of a group up to its data directories."""

from dataclasses import asdict

import click

from vq.cli.base.completion import broker_group_names
from vq.cli.base.json_schema import record, shows
from vq.cli.base.options import Invocation, WholeNumber, command_options, yes_option
from vq.operations.brokers.epochs import raise_epoch


@click.command(name="raise-epoch")
@click.argument("group", shell_complete=broker_group_names)
@click.option(
    "--to",
    "epoch",
    type=WholeNumber(min=1),
    required=True,
    metavar="EPOCH",
    help="At least what the data directories of the group have acted in.",
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
