"""``vq topic close``, ``open`` and ``drain``: taking a topic out of use without a lost message."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import click

from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import Shape, having, record, shows, some
from vq.cli.base.options import Invocation, Seconds, command_options, option
from vq.cli.base.text import utc
from vq.operations.groups.groups import GroupProgress
from vq.operations.topics.closing import ClosedTopic, close_topic, open_topic
from vq.operations.topics.emptying import GroupDrain


class _End(NamedTuple):
    partition: int
    end: int | None


def _ends(ends: Mapping[int, int | None]) -> list[_End]:
    return [_End(*each) for each in sorted(ends.items())]


def _closed(_: ClosedTopic) -> bool:
    return False


_CLOSED_TOPIC: Final = Shape(
    ClosedTopic,
    "topic id writable= changed closed_s partitions=ends unconfirmed",
    writable=_closed,
    partitions=_ends,
)
_BEHIND: Final = Shape(
    GroupProgress, "partition owner committed end lag_bytes lag_messages stopped"
)
_DRAINED: Final = Shape(
    GroupDrain, "group members by_stream done lag_bytes behind error?", behind=_BEHIND
)


_NAME = click.argument("name", shell_complete=topic_names)


@click.command()
@_NAME
@option(
    "--timeout SECONDS", "How long to wait for the brokers.  [10]", Seconds(min=0), default=10.0
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
    found = invocation.call(close_topic, name, timeout=timeout)
    output = invocation.output
    if not output.document(_CLOSED_TOPIC(found)):
        said = "is closed for writes" if found.changed else "was closed already"
        output.remark(f"{name} {said}")
        if found.closed_ms is not None:
            output.remark(f"nothing is appended to it since {utc(found.closed_ms)}")
        output.table([each._asdict() for each in _ends(found.ends)], columns=" ".join(_End._fields))
    _fail_unless_confirmed(found)


@click.command(name="open")
@_NAME
@shows(record(topic=str, id=str, writable=bool, changed=bool))
@command_options
def open_(invocation: Invocation, name: str) -> None:
    """Open a topic for writes again, after `vq topic close` or `drain`; also if it is open."""
    found = invocation.call(open_topic, name)
    if not invocation.output.document(
        {"topic": found.topic, "id": found.id, "writable": True, "changed": found.changed}
    ):
        said = "is open for writes" if found.changed else "was open already"
        invocation.output.remark(f"{name} {said}")


@click.command()
@_NAME
@option(
    "--timeout SECONDS", "How long to wait; 0: look once.  [600]", Seconds(min=0), default=600.0
)
@shows(having(_CLOSED_TOPIC, drained=bool, groups=some(_DRAINED)))
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
        groups = _DRAINED.all(found.groups)
        closed = _CLOSED_TOPIC(found.closed)
        output.document({**closed, "drained": found.drained, "groups": groups})
    else:
        rows = [{"group": of.group, **_BEHIND(each)} for of in found.groups for each in of.behind]
        if rows:
            output.table(
                rows,
                columns=" ".join(("group", *_BEHIND.fields)),
                optional="owner committed stopped",
            )
        if not found.groups:
            output.remark(f"no consumer group reads {name}")
    _fail_unless_confirmed(found.closed)
    if found.behind:
        told = "; ".join(group_sentence(each) for each in found.behind)
        raise CommandFailed(f"{name} is closed and not drained: {told}", retriable=True)
    if not output.as_json:
        output.remark(f"{name} is drained: {len(found.groups)} group(s) have handled all of it")


def _fail_unless_confirmed(found: ClosedTopic) -> None:
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


def _tell(invocation: Invocation, groups: Sequence[GroupDrain]) -> None:
    for each in groups:
        if not each.done:
            invocation.output.remark(f"waiting for {group_sentence(each)}")


def group_sentence(found: GroupDrain) -> str:
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
