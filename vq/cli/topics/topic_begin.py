"""``vq topic begin``: have a lost partition begin anew at an offset that was never used."""

from typing import Final

import click

from vq.cli.base.completion import topic_names
from vq.cli.base.json_schema import Shape, record, shows
from vq.cli.base.options import Invocation, WholeNumber, command_options, yes_option
from vq.cli.topics.moves import RANGE
from vq.operations.topics.begins import NewBegin, begin_anew

_BEGIN: Final = Shape(NewBegin, given_up=RANGE)


@click.command()
@click.argument("name", shell_complete=topic_names)
@click.option(
    "--partition", type=WholeNumber(min=0), required=True, metavar="N", help="Which partition."
)
@click.option(
    "--at",
    "offset",
    type=WholeNumber(min=1),
    required=True,
    metavar="OFFSET",
    help="Where it begins: beyond every offset that it ever had.",
)
@yes_option
@shows(record(done=bool, **_BEGIN.fields))
@command_options
def begin(invocation: Invocation, name: str, *, partition: int, offset: int, yes: bool) -> None:
    """Have a partition whose log is lost begin anew, at an offset that was never used.

    What was stored before is given up. Stop the brokers of its group first, and move the
    partition's directory away on each. Then run this, start the brokers, and set every consumer
    group that reads the topic to the new begin: `vq group reset GROUP --to-earliest`.

    The command refuses offsets that are known to be used. Nobody knows where a lost log ended:
    choose one far beyond, such as 1000000000000.
    """

    found = invocation.call(begin_anew, name, partition, offset, do=yes)
    invocation.output.remark(_text(found))
    if invocation.output.as_json:
        invocation.output.document({"done": yes, **_BEGIN(found)})
    if not yes:
        invocation.only_planned()


def _text(found: NewBegin) -> str:
    ranges = ", ".join(
        f"[{each.start}, {'its end' if each.end is None else each.end}) on {each.group}"
        for each in found.given_up
    )
    committed = "no group has committed an offset there"
    if found.committed is not None:
        committed = f"groups have committed offsets up to {found.committed}"
    return (
        f"{found.topic}-{found.partition} begins at {found.offset} on {found.group}; given up: "
        f"{ranges}; {committed}. No message may ever have had an offset beyond {found.offset}: "
        "readers would take another one for it"
    )
