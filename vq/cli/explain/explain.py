"""``vq explain``: why something does not happen, what that rests on, and what mends it."""

import os
import re
from typing import Any, Final

import click

from vq.cli.base.completion import broker_names, group_names, topic_names
from vq.cli.base.json_schema import Shape, having, shows, some
from vq.cli.base.options import (
    Commands,
    Invocation,
    Size,
    WholeNumber,
    command_options,
    no_effect,
    option,
)
from vq.cli.base.output import Output
from vq.cli.messages.lines import KEY_TYPES, key_of
from vq.model import Key
from vq.operations.base.sizes import bytes_text
from vq.operations.explain.answers import Explanation
from vq.operations.explain.disk_causes import TopicOnDisk
from vq.operations.explain.disks import explain_disk
from vq.operations.explain.messages import explain_message
from vq.operations.explain.partition import explain_partition
from vq.operations.explain.sends import explain_key, explain_send

ANSWER: Final = Shape(
    Explanation,
    "question subject cause=found.cause text=found.text commands=found.commands certain=is_certain "
    "also not_ruled_out=open unknown facts",
)
_TOPIC: Final = Shape(
    TopicOnDisk,
    "topic disk_bytes growth_bytes_per_day oldest_s retention_hours=settings.retention_hours "
    "retention_bytes=settings.retention_bytes retention_policy=settings.retention_policy "
    "deleted=is_deleted held_bytes held_by? unarchived_bytes overdue_bytes moved_bytes",
)
_PLACE: Final = re.compile(r"(?P<topic>[^/]+)[/-](?P<partition>[0-9]{1,10})")
_OFFSET: Final = re.compile(r"(?P<partition>[0-9]{1,10})[:@](?P<offset>[0-9]{1,20})")
#: Topics of a disk that a table for people has.
_TOPICS_SHOWN: Final = 20


class PartitionParam(click.ParamType[Any]):
    """A partition, such as ``orders/3``; or as vq writes one, ``orders-3``."""

    name = "partition"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return topic and number."""
        found = _PLACE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is not TOPIC/N, such as orders/3", param, ctx)
        return found["topic"], int(found["partition"])


class MessageParam(click.ParamType[Any]):
    """A message: its id, or partition and offset, such as ``3:1024``."""

    name = "message"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> dict[str, int]:
        """Return the arguments that name it."""
        if found := _OFFSET.fullmatch(value):
            return {"partition": int(found["partition"]), "offset": int(found["offset"])}
        if not (value.isascii() and value.isdigit()):
            self.fail(f"{value!r} is not an id, nor PARTITION:OFFSET, such as 3:1024", param, ctx)
        return {"id": int(value)}


_group_option: Final = option(
    "--group GROUP", "Of consumers.", required=True, shell_complete=group_names
)


@click.group(cls=Commands)
def explain() -> None:
    """Say why something does not happen, what that rests on, and what mends it."""


@explain.command()
@click.argument("place", metavar="TOPIC/N", type=PartitionParam())
@_group_option
@shows(ANSWER)
@command_options
def partition(invocation: Invocation, place: tuple[str, int], group: str) -> None:
    """Say why a consumer group does not consume a partition.

    The first cause that the facts show is the answer; `also` has further ones. What could not be
    asked is said, and the answer is not certain if that could hide an earlier cause.
    """
    found = invocation.call(explain_partition, group, *place)
    _show(invocation.output, found)


@explain.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("key")
@option(
    "--key-type",
    "What the key is: text, an integer, or bytes as hexadecimal digits.",
    KEY_TYPES,
    default=KEY_TYPES[0],
)
@shows(ANSWER)
@command_options
def key(invocation: Invocation, topic: str, key: str, key_type: str) -> None:
    """Say to which partition a key goes, where that is, and what would change it.

    For producers without a partitioner of their own, or with the strategy hash.
    """
    found = invocation.call(explain_key, topic, key_of(os.fsencode(key), key_type))
    _show(invocation.output, found)


@explain.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("message", metavar="ID|PARTITION:OFFSET", type=MessageParam())
@_group_option
@shows(ANSWER)
@command_options
def message(invocation: Invocation, topic: str, message: dict[str, int], group: str) -> None:
    """Say why a consumer group did not get a message.

    With an id, topics are searched: TOPIC, delayed messages, transactions, and the group's retries
    and dead letters; of TOPIC what was stored up to an hour before and after the time in the id.
    """
    found = invocation.call(explain_message, group, topic, **message)
    _show(invocation.output, found)


@explain.command()
@click.argument("name", metavar="GROUP/NODE|GROUP", shell_complete=broker_names)
@shows(having(ANSWER, topics=some(_TOPIC)))
@command_options
def disk(invocation: Invocation, name: str) -> None:
    """Say why the disk of a broker fills up, and what holds what.

    Of several data directories the fullest disk is looked at; of a group with several nodes, the
    node with the fullest one.
    """
    found = invocation.call(explain_disk, name)
    rows = _TOPIC.all(found.topics)
    if invocation.output.document({**ANSWER(found.answer), "topics": rows}):
        return
    _show(invocation.output, found.answer)
    invocation.output.title("")
    invocation.output.table(
        [
            {
                **row,
                "bytes": bytes_text(row["disk_bytes"]),
                "a_day": bytes_text(row["growth_bytes_per_day"]),
                "held": bytes_text(row["held_bytes"]),
                "kept": _kept_text(each),
            }
            for row, each in zip(rows[:_TOPICS_SHOWN], found.topics, strict=False)
        ],
        columns="topic bytes a_day held kept",
    )
    if len(rows) > _TOPICS_SHOWN:
        invocation.output.remark(f"{len(rows) - _TOPICS_SHOWN} more topics; --json has them all")


@explain.command()
@click.argument("topic", shell_complete=topic_names)
@option("--key TEXT", "Of the message: only its partition is looked at.")
@option(
    "--key-type",
    "What the key is: text, an integer, or bytes as hexadecimal digits.  [text]",
    KEY_TYPES,
)
@option("--partition N", "Look only at this one.", WholeNumber(min=0))
@option("--size BYTES", "Of the content, such as 64K.", Size(min=0))
@option(
    "--sender USER", "Whose quota is looked at: a user, or anonymous.  [the user of the command]"
)
@shows(ANSWER)
@command_options
def send(
    invocation: Invocation,
    topic: str,
    key: str | None,
    key_type: str | None,
    partition: int | None,
    size: int | None,
    sender: str | None,
) -> None:
    """Say why a message to a topic is refused now, or may be slow, or that nothing refuses it.

    Nothing is sent: the settings of the topic, the masters and what they say of disks, partitions
    and nodes in sync, and the quota of the sender are looked at.
    """
    if key_type is not None and key is None:
        raise no_effect(f"--key-type {key_type}", "without --key", "give a key")
    if key is not None and partition is not None:
        raise click.UsageError("--key and --partition exclude one another: a key has its partition")
    wanted: Key | None = None
    if key is not None:
        wanted = key_of(os.fsencode(key), key_type or KEY_TYPES[0])
    found = invocation.call(
        explain_send, topic, key=wanted, partition=partition, size=size, sender=sender
    )
    _show(invocation.output, found)


# Showing ----------------------------------------------------------------------------------------


def _show(output: Output, found: Explanation) -> None:
    if output.document(ANSWER(found)):
        return
    output.line(f"{found.subject}: {found.found.text}")
    for command in found.found.commands:
        output.line(f"  -> {command}")
    for also in found.also:
        output.line(f"also ({also.cause}): {also.text}")
        for command in also.commands:
            output.line(f"  -> {command}")
    for unknown in found.unknown:
        output.line(f"not known: {unknown}")
    if not found.is_certain:
        output.line(f"not certain, since not ruled out: {', '.join(found.open)}")
    output.title("")
    told = {each.name: each.value for each in found.facts}
    output.record({"cause": found.found.cause, **told})


def _kept_text(topic: TopicOnDisk) -> str | None:
    """Say what bounds a topic; None: not known."""
    settings = topic.settings
    if topic.is_deleted:
        return "deleted, can be brought back"
    if settings is None:
        return None
    bounds = [f"{settings.retention_hours} h"] * (settings.retention_hours is not None)
    if settings.retention_bytes is not None:
        bounds.append(f"{bytes_text(settings.retention_bytes)} a partition")
    return f"{settings.retention_policy}: {' or '.join(bounds) or 'for ever'}"
