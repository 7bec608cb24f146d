"""``vq delayed``: the messages that are delivered later: listed, and recalled."""

import re
from collections.abc import Sequence
from typing import Any, Final

import click

from vq.cli.base import text
from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, maybe, record, shows, some
from vq.cli.base.options import Commands, Invocation, WholeNumber, command_options, option
from vq.cli.base.output import Output
from vq.cli.messages.message_format import key_text
from vq.client.cluster import ClusterClient
from vq.errors import OutcomeUnknown
from vq.model import Cancellation, SendResult
from vq.operations.messages.delayed import (
    DELAYED_MESSAGES,
    DELAYED_MESSAGES_MAX,
    DelayedMessage,
    DelayedMessages,
    cancel_delayed,
    look_at_delayed,
)

_HANDLE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,19}):([0-9]{1,19})")


@click.group(cls=Commands)
def delayed() -> None:
    """List and cancel messages that are delivered later."""


class Handle(click.ParamType[SendResult]):
    """Where a message waits, as ``vq delayed list`` prints it."""

    name = "handle"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> SendResult:
        """Return what the send of the message returned."""
        if isinstance(value, SendResult):
            return value
        found = _HANDLE.fullmatch(str(value))
        if found is None:
            self.fail(
                f"{value!r} is not PARTITION:OFFSET:ID, such as 3:81920:7318349394477056, as `vq "
                "delayed list` prints it"
            )
        return SendResult(int(found[1]), int(found[2]), int(found[3]))


def _handle(waits: SendResult) -> str:
    return f"{waits.partition}:{waits.offset}:{waits.id}"


def _key(message: DelayedMessage) -> str | None:
    return key_text(message.key) or None


_MESSAGE: Final = Shape(
    DelayedMessage,
    "handle=waits due_s topic partition key= tag bytes=record_bytes",
    handle=_handle,
    key=_key,
)


@delayed.command(name="list")
@click.argument("topic", required=False, shell_complete=topic_names)
@option(
    "--limit N",
    "List at most so many; all are counted.",
    WholeNumber(min=1, max=DELAYED_MESSAGES_MAX),
    default=DELAYED_MESSAGES,
)
@shows(record(topic=maybe(str), waiting=int, unreadable=int, messages=some(_MESSAGE)))
@command_options
def list_(invocation: Invocation, topic: str | None, limit: int) -> None:
    """List the messages that wait for their time, the one that is due first at the top.

    With TOPIC only those for it. The log of all that waits is read for that. A handle is what `vq
    delayed cancel` takes: where the message waits, and its id.

    Exit code 1 if a broker does not answer: what waits there is left out.
    """
    found, silent = invocation.call(look_at_delayed, topic, limit=limit)
    output = invocation.output
    _print(output, topic, found, is_whole=not silent)
    for error in silent:
        output.remark(error.message)
    if silent:
        raise CommandFailed(
            f"{len(silent)} partition(s) of what waits were not read, so messages are left out; "
            "`vq cluster status` shows which brokers are up"
        )


def _print(output: Output, topic: str | None, found: DelayedMessages, *, is_whole: bool) -> None:
    if output.document(
        {
            "topic": topic,
            "waiting": found.waiting,
            "unreadable": found.unreadable,
            "messages": _MESSAGE.all(found.first),
        }
    ):
        return
    rows = [{**_MESSAGE(each), "due": text.utc(each.due_ms)} for each in found.first]
    output.table(rows, columns=_COLUMNS, optional="key tag")
    if found.waiting > len(rows):
        output.remark(f"and {found.waiting - len(rows)} more that are due later (--limit)")
    if not rows and is_whole:
        output.remark("no message waits" if topic is None else f"no message for {topic} waits")
    if found.unreadable:
        output.remark(f"{found.unreadable} record(s) of what waits cannot be read: `vq doctor`")


_COLUMNS: Final = "handle due topic partition key tag bytes"


@delayed.command()
@click.argument("handles", metavar="HANDLE...", nargs=-1, required=True, type=Handle())
@shows(some(record(handle=str, outcome=str)))
@command_options
def cancel(invocation: Invocation, handles: Sequence[SendResult]) -> None:
    """Have delayed messages delivered to nobody, and print what became of each.

    `cancelled`: nobody gets it, also if it was cancelled before. `delivered`: it is in its
    partition, or on its way there. `unknown`: its broker did not answer in time; ask again. Then
    the exit code is 1.
    """

    async def work(cluster: ClusterClient) -> list[dict[str, str]]:
        return [
            {"handle": _handle(each), "outcome": (await cancel_delayed(cluster, each)).name.lower()}
            for each in handles
        ]

    rows = invocation.call(work)
    if not invocation.output.document(rows):
        invocation.output.table(rows, columns="handle outcome")
    unknown = sum(each["outcome"] == Cancellation.UNKNOWN.name.lower() for each in rows)
    if unknown:
        raise OutcomeUnknown(f"it is unknown whether {unknown} message(s) are cancelled; ask again")
