"""``vq cluster diverged``: the messages that nodes had to cut from their logs."""

import sys
from typing import Any, Final

import click

from vq.cli.base import text
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, having, shows, some
from vq.cli.base.options import Invocation, command_options, flag, yes_option
from vq.client.cluster import ClusterClient
from vq.operations.base.sizes import bytes_text
from vq.operations.brokers import diverged as admin
from vq.operations.brokers.diverged import CutFile

_CUT_FILE: Final = Shape(
    CutFile,
    "file=name group node topic partition at_start start_offset end_offset bytes=size messages "
    "first_epoch last_epoch first_written_s=first_append_ms last_written_s=last_append_ms",
)


@click.command()
@click.argument("file", required=False)
@flag("--delete", "Delete FILE: its messages are gone for good.")
@yes_option
@shows(some(_CUT_FILE), delete=having(_CUT_FILE, done=bool))
@command_options
def diverged(invocation: Invocation, file: str | None, *, delete: bool, yes: bool) -> None:
    """List, print or delete messages that nodes had to cut from their logs.

    A node that comes back cuts what the master of its group does not have, and keeps it in a file
    beside the log. A node that starts after a crash does so with what looks like a write that was
    cut short (cause: start); if it is damage instead, it may have been acknowledged.

    Without FILE, all files are listed. With FILE, which is a name as the list has it, the messages
    are printed as `vq consume` prints them, up to a damaged one; --json shows every field.

    Exit code 1 if a broker does not answer.
    """
    if file is None:
        if delete or yes:
            raise click.UsageError("--delete needs the FILE")
        _list(invocation)
    elif delete:
        _delete(invocation, file, yes=yes)
    elif yes:
        raise click.UsageError("--yes has no effect without --delete")
    else:
        _print(invocation, file)


def _list(invocation: Invocation) -> None:

    files, silent = invocation.call(admin.list_cut)
    if not invocation.output.document(_CUT_FILE.all(files)):
        columns = "file cause messages bytes offsets epochs written"
        invocation.output.table([_row(each) for each in files], columns=columns)
        if not (files or silent):
            invocation.output.remark("no node keeps messages that it had to cut")
    for each in silent:
        invocation.output.remark(each)
    if silent:
        raise CommandFailed(f"{len(silent)} broker(s) do not answer, see above")


def _row(file: CutFile) -> dict[str, Any]:
    first, last = (text.utc(round(each.timestamp() * 1000)) for each in file.written)
    known = bool(file.last_append_ms)
    return {
        "file": file.name,
        "cause": "start" if file.at_start else "master",
        "messages": file.messages,
        "bytes": file.size,
        "offsets": f"{file.start_offset}-{file.end_offset}",
        "epochs": f"{file.first_epoch}-{file.last_epoch}" if known else "",
        "written": f"{first} to {last}" if known else "",
    }


def _print(invocation: Invocation, name: str) -> None:
    to_terminal = sys.stdout.isatty()
    form = text.as_terminal_line if to_terminal else text.as_line
    if invocation.output.as_json:
        form = text.as_json_line

    async def work(cluster: ClusterClient) -> None:
        async for messages in admin.read_cut(cluster, await admin.find_cut(cluster, name)):
            for each in messages:
                sys.stdout.buffer.write(form(each))
            sys.stdout.buffer.flush()

    invocation.call(work)


def _delete(invocation: Invocation, name: str, *, yes: bool) -> None:
    async def work(cluster: ClusterClient) -> CutFile:
        found = await admin.find_cut(cluster, name)
        invocation.output.remark(
            f"{found.name}: {found.messages} message(s) of {found.topic}-{found.partition}, "
            f"{bytes_text(found.size)}"
        )
        if yes:
            await admin.delete_cut(cluster, found)
        return found

    found = invocation.call(work)
    if not invocation.output.document({"done": yes, **_CUT_FILE(found)}) and yes:
        invocation.output.remark(f"deleted {found.name}")
    if not yes:
        invocation.only_planned("nothing was deleted")
