"""``vq audit``: what operators did, see ``vq.operations.cluster.audit``."""

from typing import Final

import click

from vq.cli.base.json_schema import Shape, shows, some
from vq.cli.base.moments import Moment
from vq.cli.base.options import Commands, Invocation, WholeNumber, command_options, option
from vq.cli.base.text import utc
from vq.operations.cluster.audit import COUNT, OperatorAct, list_acts

_ACT: Final = Shape(
    OperatorAct,
    "record time=time_ms who user identity person act subject arguments before after outcome "
    "error ended=ended_ms changed",
)


@click.group(cls=Commands)
def audit() -> None:
    """Show what operators did: who, what, to what, with which outcome."""


@audit.command(name="list")
@option("--by TEXT", "Only of users, machines, identities, people.", default="")
@option("--what TEXT", "Only acts or subjects with this text.", default="")
@option("--since as since_ms", "Only since then.", Moment())
@option("--count N", "At most so many.", WholeNumber(1, 100_000), default=COUNT)
@shows(some(_ACT))
@command_options
def list_(invocation: Invocation, by: str, what: str, since_ms: int | None, count: int) -> None:
    """List acts, the newest first.

    Each was written into ZooKeeper before it began, and its outcome after it: "begun" has none.
    --json has its arguments, and what was there before and after. The last 5,000 acts are kept;
    brokers have a log line of each.
    """
    found = invocation.call(list_acts, by=by, what=what, since_ms=since_ms, count=count)
    output = invocation.output
    if output.document(_ACT.all(found)):
        return
    output.table(
        [
            {
                "time": utc(each.time_ms),
                "who": each.person or each.user or each.who,
                "act": each.act,
                "subject": each.subject or None,
                "outcome": f"{each.outcome}, changed since" if each.changed else each.outcome,
                "error": each.error or None,
            }
            for each in found
        ],
        columns="time who act subject outcome error",
        optional="subject error",
    )
