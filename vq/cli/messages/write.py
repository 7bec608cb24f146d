"""``vq write``: repeatable writes, which a sink of Spark makes, for one that was given up."""

import click

from vq.cli.base.completion import write_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import record, shows, some
from vq.cli.base.options import Commands, Invocation, command_options, yes_option
from vq.operations.messages.writes import end_write, list_writes


@click.group(cls=Commands)
def write() -> None:
    """List repeatable writes of Spark, and end one."""


@write.command(name="list")
@shows(some(record(write=str)))
@command_options
def list_(invocation: Invocation) -> None:
    """List the names of repeatable writes.

    A streaming query of Spark that writes to a topic has one for as long as its checkpoint is used.
    A batch query ends its own.
    """
    names = invocation.call(list_writes)
    invocation.output.table([{"write": each} for each in names], columns="write")
    if not names and not invocation.output.as_json:
        invocation.output.remark("there are no repeatable writes")


@write.command()
@click.argument("name", shell_complete=write_names)
@yes_option
@shows(record(done=bool, write=str))
@command_options
def end(invocation: Invocation, name: str, *, yes: bool) -> None:
    """End a repeatable write: what tells its repeated messages from new ones is forgotten.

    For a query that never comes back. One that still runs fails at its next micro-batch. If it is
    started again from its checkpoint, it may store rows of its last micro-batch once more.
    """
    names = invocation.call(list_writes)
    if name not in names:
        raise CommandFailed(f"there is no write {name!r}; `vq write list` shows them")
    if yes:
        invocation.call(end_write, name)
    invocation.show_act(
        {"write": name},
        yes=yes,
        did=f"ended write {name}",
        plan=f"end write {name}; this cannot be undone",
    )
