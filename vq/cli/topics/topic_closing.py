"""``vq topic close``, ``open`` and ``drain``: taking a topic out of use without a lost message."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.options import Invocation, Seconds, command_options
from vq.cli.base.text import in_seconds, utc

if TYPE_CHECKING:
    from vq.operations.groups.groups import GroupProgress
    from vq.operations.topics.closing import ClosedTopic
    from vq.operations.topics.emptying import GroupDrain
from typing import Final

from vq.cli.base.json_schema import having, maybe, record, shows, some

_CLOSED_TOPIC: Final = record(
    topic=str,
    id=str,
    writable=bool,
    changed=bool,
    closed_s=maybe(float),
    partitions=some(record(partition=int, end=maybe(int))),
    unconfirmed=some(str),
)

_NAME = click.argument("name", shell_complete=topic_names)


@click.command()
@_NAME
@click.option(
    "--timeout",
    type=Seconds(min=0),
    metavar="SECONDS",
    default=10.0,
    help="How long to wait for the brokers.  [10]",
)
@shows(_CLOSED_TOPIC)
@command_options
def close(invocation: Invocation, name: str, timeout: float) -> None:
    """Close a topic for writes; what is stored is read as before.

    Returns when nothing is appended any more: a message that was sent meanwhile is acknowledged, or
    refused with `TopicClosed`. Closing it again is fine. `vq topic open` opens it.

    Exit code 1 if that is not known in time: a broker does not answer, or nodes in sync lack
    messages. The topic is closed all the same, and brokers follow when they can.
    """
    from vq.operations.topics.closing import close_topic

    found = invocation.call(close_topic, name, timeout=timeout)
    output = invocation.output
    if output.as_json:
        output.document(_closed_json(found))
    else:
        said = "is closed for writes" if found.changed else "was closed already"
        output.remark(f"{name} {said}")
        if found.closed_ms is not None:
            output.remark(f"nothing is appended to it since {utc(found.closed_ms)}")
        rows = [{"partition": number, "end": end} for number, end in sorted(found.ends.items())]
        output.table(rows, columns=("partition", "end"))
    _fail_unless_confirmed(found)


@click.command(name="open")
@_NAME
@shows(record(topic=str, id=str, writable=bool, changed=bool))
@command_options
def open_(invocation: Invocation, name: str) -> None:
    """Open a topic for writes again, after `vq topic close` or `drain`; also if it is open."""
    from vq.operations.topics.closing import open_topic

    found = invocation.call(open_topic, name)
    if invocation.output.as_json:
        invocation.output.document(
            {"topic": found.topic, "id": found.id, "writable": True, "changed": found.changed}
        )
    else:
        said = "is open for writes" if found.changed else "was open already"
        invocation.output.remark(f"{name} {said}")


@click.command()
@_NAME
@click.option(
    "--timeout",
    type=Seconds(min=0),
    metavar="SECONDS",
    default=600.0,
    help="How long to wait; 0: look once.  [600]",
)
@shows(
    having(
        _CLOSED_TOPIC,
        drained=bool,
        groups=some(
            record(
                group=str,
                members=maybe(int),
                by_stream=bool,
                done=bool,
                lag_bytes=maybe(int),
                behind=some(
                    record(
                        partition=int,
                        owner=maybe(str),
                        committed=maybe(int),
                        end=maybe(int),
                        lag_bytes=maybe(int),
                        lag_messages=maybe(int),
                        stopped=maybe(str),
                    )
                ),
                error=maybe(str),
            )
        ),
    )
)
@command_options
def drain(invocation: Invocation, name: str, timeout: float) -> None:
    """Close a topic for writes, and wait until every consumer group has handled all of it.

    A group has, when it has committed the end of every partition. The topic stays closed, also if
    the command is interrupted; `vq topic open` opens it.

    Exit code 1 if a group is still behind when the time is up; it names the groups and partitions,
    how far they are behind, and groups without members: nobody reads the rest for these.
    """
    from vq.operations.topics.emptying import drain_topic

    found = invocation.call(
        drain_topic,
        name,
        timeout=timeout,
        on_progress=lambda found: _tell(invocation, found.groups),
    )
    output = invocation.output
    if output.as_json:
        groups = [_group_json(each) for each in found.groups]
        document = {**_closed_json(found.closed), "drained": found.drained, "groups": groups}
        output.document(document)
    else:
        rows = [_row(group, each) for group in found.groups for each in group.behind]
        if rows:
            output.table(
                rows,
                columns=(
                    "group",
                    "partition",
                    "owner",
                    "committed",
                    "end",
                    "lag_bytes",
                    "lag_messages",
                    "stopped",
                ),
                optional=("owner", "committed", "stopped"),
            )
        if not found.groups:
            output.remark(f"no consumer group reads {name}")
    _fail_unless_confirmed(found.closed)
    if found.behind:
        told = "; ".join(group_sentence(each) for each in found.behind)
        raise CommandFailed(f"{name} is closed and not drained: {told}", retriable=True)
    if not output.as_json:
        output.remark(f"{name} is drained: {len(found.groups)} group(s) have handled all of it")


def _fail_unless_confirmed(found: "ClosedTopic") -> None:
    """Raise if something may still be appended.

    Raises:
        CommandFailed: So it is.
    """
    if found.unconfirmed:
        raise CommandFailed(
            f"{found.topic} is closed, and messages may still be appended: "
            f"{'; '.join(found.unconfirmed)}",
            retriable=True,
            facts={"unconfirmed": list(found.unconfirmed)},
        )


def _tell(invocation: Invocation, groups: "Sequence[GroupDrain]") -> None:
    for each in groups:
        if not each.done:
            invocation.output.remark(f"waiting for {group_sentence(each)}")


def group_sentence(found: "GroupDrain") -> str:
    """Say how far a group is behind, and why it may stay so."""
    if found.error:
        return f"group {found.group}, which cannot be read: {found.error}"
    size = "an unknown number of" if found.lag_bytes is None else str(found.lag_bytes)
    text = f"group {found.group}: {size} bytes behind in {len(found.behind)} partition(s)"
    if not found.members and not found.by_stream:
        text += ", and it has no members"
    if not all(each.readable for each in found.behind):
        text += ", and the topic is not readable"
    stopped = [each for each in found.behind if each.stopped]
    if stopped:
        first = stopped[0]
        text += f", and it stands in {first.topic}-{first.partition}: {first.stopped}"
    return text


def _row(group: "GroupDrain", found: "GroupProgress") -> dict[str, Any]:
    return {
        "group": group.group,
        "partition": found.partition,
        "owner": found.owner,
        "committed": found.committed,
        "end": found.end,
        "lag_bytes": found.lag_bytes,
        "lag_messages": found.lag_messages,
        "stopped": found.stopped,
    }


def _closed_json(found: "ClosedTopic") -> dict[str, Any]:
    return {
        "topic": found.topic,
        "id": found.id,
        "writable": False,
        "changed": found.changed,
        "closed_s": in_seconds(found.closed_ms),
        "partitions": [
            {"partition": number, "end": end} for number, end in sorted(found.ends.items())
        ],
        "unconfirmed": list(found.unconfirmed),
    }


def _group_json(found: "GroupDrain") -> dict[str, Any]:
    behind = [_row(found, each) for each in found.behind]
    for row in behind:
        del row["group"]
    return {
        "group": found.group,
        "members": found.members,
        "by_stream": found.by_stream,
        "done": found.done,
        "lag_bytes": found.lag_bytes,
        "behind": behind,
        "error": found.error or None,
    }
