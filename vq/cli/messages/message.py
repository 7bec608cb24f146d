"""``vq message``: reading by position, and finding, without a group."""

import sys
from collections.abc import Iterator

import click

from vq.blocking import MessageFactory
from vq.cli.base import text
from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import MESSAGE_SCHEMA, record, shows
from vq.cli.base.options import Commands, Invocation, WholeNumber, command_options, flag, option
from vq.cli.messages.decoding import Decoding, decodes
from vq.cli.messages.message_find import find
from vq.client.config import ConsumerConfig
from vq.errors import OffsetNotBoundary
from vq.limits import KIB
from vq.model import Message
from vq.operations.partitions.offsets import numbers_at, offsets_at_numbers

_LENGTH = 64 * KIB


@click.group(cls=Commands)
def message() -> None:
    """Look at single messages, and find them."""


@message.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("partition", type=WholeNumber(min=0))
@click.argument("offset", type=WholeNumber(min=0))
@option("--count N", "Go on until so many were printed, or the end.", WholeNumber(min=1), default=1)
@flag("--raw", "Only the content, byte for byte, without a newline.")
@flag(
    "--next as go_on", "When OFFSET is inside a record, go on at the next one instead of refusing."
)
@shows(MESSAGE_SCHEMA)
@command_options
@decodes
def get(
    invocation: Invocation,
    topic: str,
    partition: int,
    offset: int,
    count: int,
    raw: bool,
    go_on: bool,
    decoding: Decoding | None,
) -> None:
    """Print the message at OFFSET of a partition.

    If a control record begins there, print the first message behind it. Needs no group and moves
    none. An offset outside the partition is refused with the valid range.
    """
    if raw and invocation.output.as_json:
        raise click.UsageError("--raw and --json exclude one another")
    if raw and decoding is not None:
        raise click.UsageError("--raw and --as exclude one another")
    printed = 0
    with MessageFactory(invocation.client_config()) as factory:
        for some in _read(factory, topic, partition, offset, count, go_on=go_on):
            shown = some if decoding is None else [decoding(each) for each in some]
            _print(invocation, shown, raw=raw, first=not printed)
            printed += len(some)
    if not printed:
        raise CommandFailed(f"{topic}-{partition} ends at {offset}: no message is there yet")


def _read(
    factory: MessageFactory, topic: str, partition: int, offset: int, count: int, *, go_on: bool
) -> Iterator[list[Message]]:
    """Yield up to ``count`` messages, as they come: they may be more than memory takes."""
    with factory.create_consumer(ConsumerConfig()) as consumer:
        while count > 0:
            try:
                some = consumer.get(topic, partition, offset, _LENGTH)
            except OffsetNotBoundary as error:
                following = error.details.get("next")
                if not go_on or not isinstance(following, int):
                    raise
                offset = following
                continue
            if not some:
                break
            yield some[:count]
            count -= len(some)
            offset = some[-1].next_offset


def _print(invocation: Invocation, found: list[Message], *, raw: bool, first: bool) -> None:
    if raw:
        for each in found:
            sys.stdout.buffer.write(each.content)
        sys.stdout.buffer.flush()
    elif invocation.output.as_json:
        for each in found:
            sys.stdout.buffer.write(text.as_json_line(each))
        sys.stdout.buffer.flush()
    else:
        for number, each in enumerate(found):
            if number or not first:
                invocation.output.line("")
            invocation.output.record(text.as_record(each))


# number ---------------------------------------------------------------------------------------
@message.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("partition", type=WholeNumber(min=0))
@option("--offset N", "Which number is there?", WholeNumber(min=0))
@option("--number N", "Where is this message?", WholeNumber(min=0))
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


message.add_command(find)
