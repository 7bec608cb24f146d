"""``vq group failed``: what members on this machine have skipped: listed, run again, forgotten."""

from typing import Any, Final

import click

from vq.cli.base import text
from vq.cli.base.completion import group_names
from vq.cli.base.errors import check_known_ids
from vq.cli.base.json_schema import Shape, message_schema, record, shows, some
from vq.cli.base.options import (
    Commands,
    Invocation,
    command_options,
    ids_option,
    option,
    yes_option,
)
from vq.client.failed_file import FailedMessage, directory_of
from vq.clock import SystemClock
from vq.operations.groups.failed import (
    FailedRun,
    RunTo,
    forget_failed,
    list_failed,
    run_failed,
)

_NAME: Final = click.argument("name", shell_complete=group_names)
_COLUMNS: Final = "member topic partition offset id key attempts skipped state reason"


@click.group(cls=Commands)
def failed() -> None:
    """List, run again and forget the messages that members on this machine have skipped.

    Members with on_failure = skip record them in files below VQ_FAILED_DIR, without it
    ~/.vq/failed. No command sees those of another machine.
    """


# list -----------------------------------------------------------------------------------------
def _state(found: FailedMessage) -> str:
    return "sending" if found.is_sending else "open"


_FAILED: Final = Shape(
    FailedMessage,
    "member state= attempts=failure.attempts first_failed_s=failure.first_ms skipped_s=time_ms "
    "reason=failure.reason",
    state=_state,
)


@failed.command(name="list")
@_NAME
@ids_option
@shows(some(message_schema("next_offset", group=str, **_FAILED.fields)))
@command_options
def list_(invocation: Invocation, name: str, ids: tuple[int, ...]) -> None:
    """List what members of a group on this machine have skipped and nobody has run again since.

    `sending`: `vq group failed run` was interrupted, and finishes them when it is repeated. With
    --json, each has its whole message.
    """
    cluster = invocation.client_config().cluster
    found, unread = list_failed(cluster, name, ids)
    output = invocation.output
    if not output.document([_as_json(name, each) for each in found]):
        output.table([_as_row(each) for each in found], columns=_COLUMNS, optional="key")
        if not found:
            which = " with these ids" if ids else ""
            output.remark(
                f"no member of group {name} on this machine has skipped a message{which}, by the "
                f"files in {directory_of(cluster, name)}"
            )
    if unread:
        output.remark(
            f"{unread} bytes at the end of the files cannot be read: a write was cut off, or they "
            "are damaged; the next message that is skipped puts them aside"
        )


def _as_row(found: FailedMessage) -> dict[str, Any]:
    message, key = found.message, found.message.key
    return {
        "member": found.member,
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "id": message.id,
        "key": f"0x{key.hex()}" if isinstance(key, bytes) else key,
        "attempts": found.failure.attempts,
        "skipped": text.utc(found.time_ms),
        "state": _state(found),
        "reason": found.failure.reason,
    }


def _as_json(name: str, found: FailedMessage) -> dict[str, Any]:
    fields = text.as_fields(found.message)
    del fields["next_offset"]
    return {"group": name, **_FAILED(found), **fields}


# run, forget ----------------------------------------------------------------------------------
@failed.command()
@_NAME
@ids_option
@option(
    "--to",
    "The members of the group, or where the messages come from.",
    RunTo,
    default=str(RunTo.GROUP),
)
@yes_option
@shows(
    record(
        done=bool,
        group=str,
        open=int,
        sending=int,
        sent=int,
        finished=int,
        homeless=int,
    )
)
@command_options
def run(invocation: Invocation, name: str, ids: tuple[int, ...], to: str, yes: bool) -> None:
    """Have the messages handled again that members on this machine have skipped; each is sent once.

    With `--to group` they go to the group's retry topic: its members get them at once, with all
    their tries, wherever they run. With `--to origin` they go to the topic and partition that they
    come from, and all groups that read there get them. After an interrupt or an error repeat the
    command: it first finishes what was begun.

    Exit code 1 if an id is that of no message: the others are done.
    """
    found, _ = list_failed(invocation.client_config().cluster, name, ids)
    sending = sum(each.is_sending for each in found)
    done = FailedRun(0, 0, 0)
    if yes:
        done = invocation.call(run_failed, name, to=RunTo(to), ids=ids)
    where = "its members" if to == RunTo.GROUP else "where they come from"
    invocation.show_act(
        {
            "group": name,
            "open": len(found) - sending,
            "sending": sending,
            "sent": done.sent,
            "finished": done.finished,
            "homeless": done.homeless,
        },
        yes=yes,
        did=f"sent {done.sent} message(s) of group {name} again, and finished {done.finished} "
        "that were begun before",
        plan=f"send {len(found) - sending} message(s) of group {name} to {where}, and finish "
        f"{sending} begun before",
    )
    if done.homeless and not invocation.output.as_json:
        invocation.output.remark(
            f"left {done.homeless}: their topic or partition is not there, takes no messages, "
            "or none so large"
        )
    _check_known(name, ids, found)


@failed.command()
@_NAME
@ids_option
@yes_option
@shows(record(done=bool, group=str, messages=int))
@command_options
def forget(invocation: Invocation, name: str, ids: tuple[int, ...], yes: bool) -> None:
    """Forget messages that members on this machine have skipped: nothing runs them again.

    Of a batch that `vq group failed run` has begun, forget all or none: what is left of it is open
    again, and may have been sent.

    Exit code 1 if an id is that of no message: the others are done.
    """
    cluster = invocation.client_config().cluster
    found, _ = list_failed(cluster, name, ids)
    messages = len(found)
    if yes:
        messages = forget_failed(cluster, name, ids, SystemClock().wall_ms())
    invocation.show_act(
        {"group": name, "messages": messages},
        yes=yes,
        did=f"forgot {messages} message(s) of group {name}",
        plan=f"forget {messages} message(s) of group {name}; this cannot be undone",
    )
    _check_known(name, ids, found)


def _check_known(name: str, ids: tuple[int, ...], found: list[FailedMessage]) -> None:
    known = {each.message.id for each in found}
    check_known_ids(ids, known, f"is among those that `vq group failed list {name}` shows")
