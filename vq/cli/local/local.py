"""``vq local``: a queue inside one process: served, filled, looked at, requeued, purged."""

import contextlib
import os
import shlex
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from vq.cli.base import text
from vq.cli.base.input import interruptible
from vq.cli.base.json_schema import Shape, message_schema, record, shows, some
from vq.cli.base.moments import Delay
from vq.cli.base.options import (
    Commands,
    Invocation,
    WholeNumber,
    command_options_without_cluster,
    flag,
    ids_option,
    option,
    yes_option,
)
from vq.cli.base.output import Output
from vq.errors import InvalidArgument, Unreachable
from vq.limits import DELAY_S_MAX, MESSAGE_BYTES_MAX
from vq.local import (
    DamagedMessages,
    ListedMessage,
    LocalQueue,
    LocalQueueClient,
    LocalQueueServer,
    MessageStanding,
)
from vq.model import Message

_DIRECTORY: Final = click.argument(
    "directory", type=click.Path(file_okay=False, path_type=Path), metavar="DIR"
)
_COLUMNS: Final = "id state priority attempts due key content"
_CONTENT_CHARS: Final = 60
_LIMIT: Final = 100


@click.group(cls=Commands)
def local() -> None:
    """Look at a queue inside one process, put into it, and serve it to others.

    A command opens the queue in DIR itself, or asks the process that serves it. One that a process
    has open without serving it is refused, and its pid named.
    """


def _is_queue(directory: Path) -> bool:
    return (directory / "@queue").exists()


@contextlib.contextmanager
def _queue(directory: Path) -> Iterator[LocalQueue | LocalQueueClient]:
    """Give the queue of a directory, which must be there."""
    if not _is_queue(directory):
        raise InvalidArgument(
            f"{directory} has no local queue; give the directory that a LocalQueue was opened "
            f"with, or make a queue there: `vq local serve {shlex.quote(str(directory))}`"
        )
    queue: LocalQueue | LocalQueueClient
    try:
        queue = LocalQueueClient(directory)
    except Unreachable:
        queue = LocalQueue(directory)
    with queue:
        yield queue


# serve ----------------------------------------------------------------------------------------
@local.command()
@_DIRECTORY
@command_options_without_cluster
def serve(invocation: Invocation, directory: Path) -> None:
    """Open the queue in DIR and serve it to processes of this machine and user.

    They connect with vq.local.LocalQueueClient(DIR). Runs until ctrl-C or SIGTERM. What a process
    had taken when it ended is given to others.
    """
    is_new = not _is_queue(directory)
    with LocalQueue(directory) as queue:
        if is_new:
            invocation.output.remark(f"made a new queue in {directory}: there was none")
        with LocalQueueServer(queue) as server:
            invocation.output.remark(f"serving {len(queue)} message(s) at {server.path}")
            threading.Event().wait()


# put ------------------------------------------------------------------------------------------
@local.command()
@_DIRECTORY
@click.argument("content", metavar="CONTENT")
@option("--key TEXT", "Of the message: mailboxes keep its order.")
@option("--tag TAG", "Of the message.")
@option(
    "--delay TIME as delay_s",
    "It is given after so many seconds, or so long: 90s, 15m, 2h, 7d.",
    Delay(min=0, max=DELAY_S_MAX),
)
@option("--priority N", "0 to 2: a higher one goes first.  [0]", WholeNumber(0, 2), default=0)
@option(
    "--idempotency-key KEY",
    "Put nothing if a message with this key was put within the last minutes.",
)
@shows(record(put=bool))
@command_options_without_cluster
def put(
    invocation: Invocation,
    directory: Path,
    content: str,
    key: str | None,
    tag: str | None,
    delay_s: float | None,
    priority: int,
    idempotency_key: str | None,
) -> None:
    """Put one message into the queue in DIR, and wait until it is durable.

    CONTENT is what you type, byte by byte; - is all of standard input.
    """
    if content == "-":
        with interruptible(sys.stdin.buffer) as source:
            data = source.read(MESSAGE_BYTES_MAX + 1)
    else:
        data = os.fsencode(content)
    with _queue(directory) as queue:
        is_new = queue.put(
            Message(queue.name, data, tag=tag, key=key),
            delay_s=delay_s,
            priority=priority,
            idempotency_key=idempotency_key,
        )
    if invocation.output.as_json:
        invocation.output.document({"put": is_new})
    elif is_new:
        invocation.output.line("put 1 message")
    else:
        invocation.output.line(f"put nothing: {idempotency_key!r} was seen already")


# list -----------------------------------------------------------------------------------------
_LISTED: Final = Shape(ListedMessage, "state=standing priority attempts due_s")
#: What a message of a local queue has not.
_NO_PLACE: Final = ("partition", "offset", "next_offset")


@local.command(name="list")
@_DIRECTORY
@option("--state", "Only those in line, with takers, or waiting for a time.", MessageStanding)
@option("--limit N", f"At most so many.  [{_LIMIT}]", WholeNumber(1, 100_000), default=_LIMIT)
@flag(
    "--damaged as is_of_damaged",
    "What could not be read and was set aside, with the files that have its bytes.",
)
@shows(
    some(message_schema(*_NO_PLACE, **_LISTED.fields)),
    damaged=some(record(log=str, offset=int, number=int, messages=int, path=str)),
)
@command_options_without_cluster
def list_(
    invocation: Invocation, directory: Path, state: str | None, limit: int, is_of_damaged: bool
) -> None:
    """List messages that are not completed: with takers, in line, and waiting for a time.

    With --json, each has its whole content. Messages that cannot be read are set aside when their
    turn comes, and the others go on; nothing removes the files with their bytes.
    """
    output = invocation.output
    with _queue(directory) as queue:
        if is_of_damaged:
            _show_damaged(output, directory, queue.damaged())
            return
        found = queue.list(limit, standing=state)
        damaged = queue.metrics().damaged
    if damaged:
        output.remark(f"{damaged} message(s) could not be read; --damaged lists them")
    if output.document([_as_json(each) for each in found]):
        return
    output.table([_as_row(each) for each in found], columns=_COLUMNS, optional="due key")
    if not found:
        which = "message" if state is None else f"message that is {state!r}"
        output.remark(f"the queue in {directory} has no {which}")


def _show_damaged(output: Output, directory: Path, found: Sequence[DamagedMessages]) -> None:
    rows = [{**each._asdict(), "path": str(each.path)} for each in found]
    if output.document(rows):
        return
    output.table(rows, columns=" ".join(DamagedMessages._fields))
    if not found:
        output.remark(f"nothing of the queue in {directory} was set aside")


def _as_row(found: ListedMessage) -> dict[str, Any]:
    message, key = found.message, found.message.key
    return {
        "id": message.id,
        "state": str(found.standing),
        "priority": found.priority,
        "attempts": found.attempts,
        "due": None if found.due_ms is None else text.utc(found.due_ms),
        "key": f"0x{key.hex()}" if isinstance(key, bytes) else key,
        "content": text.safe_content(message.content)[:_CONTENT_CHARS],
    }


def _as_json(found: ListedMessage) -> dict[str, Any]:
    fields = text.as_fields(found.message)
    return {
        **_LISTED(found),
        **{name: each for name, each in fields.items() if name not in _NO_PLACE},
    }


# requeue, purge -------------------------------------------------------------------------------
@local.command()
@_DIRECTORY
@ids_option
@shows(record(requeued=int))
@command_options_without_cluster
def requeue(invocation: Invocation, directory: Path, ids: tuple[int, ...]) -> None:
    """Give messages now that wait for a time: failed ones, and delayed ones.

    Without --id all of them.
    """
    with _queue(directory) as queue:
        count = queue.requeue(ids or None)
        if count and isinstance(queue, LocalQueue):
            queue.flush()
    if not invocation.output.document({"requeued": count}):
        invocation.output.line(f"requeued {count} message(s)")


@local.command()
@_DIRECTORY
@yes_option
@shows(record(waiting=int, purged=int))
@command_options_without_cluster
def purge(invocation: Invocation, directory: Path, yes: bool) -> None:
    """Drop all messages that no taker has: those in line, and those that wait for a time."""
    output = invocation.output
    with _queue(directory) as queue:
        found = queue.metrics()
        waiting = found.ready + found.later
        purged = queue.purge() if yes else 0
    if output.as_json:
        output.document({"waiting": waiting, "purged": purged})
    elif yes:
        output.line(f"purged {purged} message(s)")
    else:
        output.line(f"plan: drop {waiting} message(s)")
    if not yes:
        invocation.only_planned()
