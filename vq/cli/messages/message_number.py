"""``vq message number``: between the offsets of messages and their numbers."""

import click

from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import record, shows
from vq.cli.base.options import Invocation, WholeNumber, command_options
from vq.operations.partitions.offsets import numbers_at, offsets_at_numbers


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("partition", type=WholeNumber(min=0))
@click.option("--offset", type=WholeNumber(min=0), metavar="N", help="Which number is there?")
@click.option("--number", type=WholeNumber(min=0), metavar="N", help="Where is this message?")
@shows(record(partition=int, number=int, offset=int))
@command_options
def number(
    invocation: Invocation, topic: str, partition: int, offset: int | None, number: int | None
) -> None:
    """Tell the number of the first message at an offset or behind it, or the offset of a number.

    The number of a message is how many messages its partition had before it, from the first one
    ever, whatever was deleted since. A number that no message has yet is at the end.

    Exit code 1 when it is not known: the offset is not kept any more, the messages were stored
    before numbers were kept, or they are damaged.
    """
    if (offset is None) == (number is None):
        raise click.UsageError("give one of --offset and --number")

    if offset is not None:
        asked = f"the number at offset {offset}"
        number = invocation.call(numbers_at, topic, {partition: offset})[partition]
    elif number is not None:
        asked = f"the offset of message {number}"
        offset = invocation.call(offsets_at_numbers, topic, {partition: number})[partition]
    if number is None or offset is None:
        raise CommandFailed(
            f"{asked} in {topic}-{partition} is not known: its broker does not answer, does not "
            "keep it any more, or cannot tell how many messages lie before it"
        )
    invocation.output.record({"partition": partition, "number": number, "offset": offset})
