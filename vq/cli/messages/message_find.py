"""``vq message find``: messages by id, key, tag and time, and what was searched for them."""

import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click

from vq.cli.base import text
from vq.cli.base.completion import topic_names
from vq.cli.base.errors import CommandFailed
from vq.cli.base.json_schema import MESSAGE_SCHEMA, Shape, optional, record, shows, some
from vq.cli.base.moments import Moment, check_span
from vq.cli.base.options import (
    Invocation,
    Seconds,
    Size,
    WholeNumber,
    command_options,
    no_effect,
    option,
    partitions_option,
)
from vq.cli.messages.decoding import Decoding, decodes
from vq.cli.messages.lines import KEY_TYPES, key_of
from vq.cli.messages.message_format import NAMES, MessageFormat
from vq.model import Key, Message
from vq.operations.messages.finding import LIMIT, TIMEOUT_S, find_messages
from vq.operations.messages.searched import FoundMessages, GapKind, SearchedPartition, SearchGap
from vq.operations.messages.stored import COUNT_MAX

#: With more partitions, those searched without anything special are told together.
_TOLD_APART: Final = 8
_PLACE: Final = re.compile(r"([0-9]{1,4}):([0-9]{1,20})")
_STOPPED: Final = {
    "limit": "enough messages were found",
    "bytes": "enough bytes were searched",
    "timeout": "the time was up",
}


class PlaceParam(click.ParamType[tuple[int, int]]):
    """A partition and an offset in it, such as ``3:134217728``."""

    name = "place"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return both numbers.

        Raises:
            click.BadParameter: It is something else.
        """
        found = _PLACE.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is not PARTITION:OFFSET, such as 3:134217728", param, ctx)
        return int(found[1]), int(found[2])


_FOUND: Final = Shape(
    FoundMessages,
    "since_s until_s complete stopped searched",
    searched=Shape(
        SearchedPartition,
        "partition start end next_offset done read_bytes skipped_bytes first_stored_s=first_ms "
        "last_stored_s=last_ms gaps",
    ),
)


@click.command()
@click.argument("topic", shell_complete=topic_names)
@option(
    "--id ID as message_id",
    "The message with this id. Without --since and --until, what was stored up to an hour "
    "before and after the time in the id is searched.",
    WholeNumber(min=1, max=(1 << 63) - 1),
)
@option("--key TEXT", "Messages with this key.")
@option(
    "--key-type",
    "What the key is: text, an integer, or bytes as hexadecimal digits.  [text]",
    KEY_TYPES,
)
@option("--tag EXPRESSION", "Messages with this tag, or one of a || b.")
@option(
    "--where EXPRESSION",
    "Messages of which this is true, such as \"price > 10 AND region IN ('hz', 'sh')\".",
)
@option("--since", "Stored at or after this time, such as 15m (ago) or 2026-11-22T09:30.", Moment())
@option("--until", "Stored before this time.", Moment())
@partitions_option("Search only this one; may repeat.")
@option(
    "--go-on PARTITION:OFFSET ... as places",
    "Go on where an earlier search stopped, as it told; may repeat.",
    PlaceParam(),
)
@option(
    "--limit N", "Stop when so many messages were found.", WholeNumber(1, COUNT_MAX), default=LIMIT
)
@option(
    "--max-bytes BYTES", "Stop when about so many bytes were searched, such as 10G.", Size(min=1)
)
@option(
    "--timeout SECONDS", "Stop after so long.", Seconds(min=0, min_open=True), default=TIMEOUT_S
)
@option(
    "--format PATTERN as pattern",
    f"How a message is printed, such as '{{time}} {{key}} {{content}}'; it takes "
    f"{', '.join(f'{{{each}}}' for each in NAMES)}.",
)
@shows(record(messages=some(optional(MESSAGE_SCHEMA, stored_s=float)), **_FOUND.fields))
@command_options
@decodes
def find(
    invocation: Invocation,
    topic: str,
    *,
    message_id: int | None,
    key: str | None,
    key_type: str | None,
    tag: str | None,
    where: str | None,
    since: int | None,
    until: int | None,
    partitions: Sequence[int],
    places: Sequence[tuple[int, int]],
    limit: int,
    max_bytes: int | None,
    timeout: float,
    pattern: str | None,
    decoding: Decoding | None,
) -> None:
    """Find messages by id, key, tag, headers and time.

    A message must have all that is given. Brokers search what readers can read, in all partitions;
    no group is needed and none moves.

    Standard error tells what was searched, and each range that could not be: deleted, damaged, or
    on a broker that does not answer. The command fails if there is one of the last two kinds. If it
    stopped early, it tells how to go on.
    """
    if key_type is not None and key is None:
        raise no_effect(f"--key-type {key_type}", "without --key", "give a key")
    if pattern is not None and invocation.output.as_json:
        raise click.UsageError("--format and --json exclude one another")
    if (message_id, key, tag, where, since, until) == (None,) * 6:
        raise click.UsageError(
            "give at least one of --id, --key, --tag, --where, --since and --until"
        )
    if tag is not None and where is not None:
        raise click.UsageError("--tag and --where exclude one another; in --where, TAGS is the tag")
    check_span(since, until)
    if places and partitions:
        raise click.UsageError("--go-on names the partitions: leave --partition out")
    form = None if pattern is None else MessageFormat.parse(pattern)
    wanted_key: Key | None = None
    if key is not None:
        wanted_key = key_of(os.fsencode(key), key_type or KEY_TYPES[0])

    found = invocation.call(
        find_messages,
        topic,
        id=message_id,
        key=wanted_key,
        tag=tag,
        where=where,
        since_ms=since,
        until_ms=until,
        partitions=partitions,
        offsets=dict(places),
        limit=limit,
        max_bytes=max_bytes,
        timeout=timeout,
    )
    if not invocation.output.document(_document(found)):
        messages = found.messages if decoding is None else map(decoding, found.messages)
        _print(invocation, messages, form)
        for line in _report(topic, found, is_by_id=message_id is not None):
            invocation.output.remark(line)
        if not found.messages and isinstance(wanted_key, str) and wanted_key.isdecimal():
            invocation.output.remark(
                f"searched the text {wanted_key!r}: for an integer key, add --key-type int"
            )
    lost = [gap for _, gap in found.gaps if gap.kind is not GapKind.DELETED]
    if lost:
        raise CommandFailed(
            f"{len(lost)} range(s) could not be searched: there may be messages not found",
            outcome="unknown",
            facts={"gaps": len(lost)},
        )


def _print(invocation: Invocation, found: Iterable[Message], form: MessageFormat | None) -> None:
    for number, each in enumerate(found):
        if form is not None:
            sys.stdout.buffer.write(form.line(each, terminal=sys.stdout.isatty()))
            continue
        if number:
            invocation.output.line("")
        invocation.output.record(text.as_record(each))
    sys.stdout.buffer.flush()


def _report(topic: str, found: FoundMessages, *, is_by_id: bool) -> list[str]:
    """Return what people read of a search, line by line."""
    count = len(found.messages)
    lines = [f"{count} message{'' if count == 1 else 's'} found"]
    if found.since_ms is not None or found.until_ms is not None:
        lines[0] += f", stored {_times(found.since_ms, found.until_ms)}"
    together = [each for each in found.searched if each.done and not each.gaps]
    if len(together) > _TOLD_APART:
        lines.append(
            f"searched {len(together)} partitions of {topic} as a whole: "
            f"{sum(each.read_bytes for each in together)} bytes read, "
            f"{sum(each.skipped_bytes for each in together)} ruled out by key indexes"
        )
    else:
        lines += [_searched(topic, each) for each in together]
    for each in found.searched:
        if not (each.done and not each.gaps):
            lines.append(_searched(topic, each))
            lines += [_gap(topic, each.partition, gap) for gap in each.gaps]
    if found.stopped is not None and found.rest:
        places = " ".join(f"--go-on {number}:{at}" for number, at in sorted(found.rest.items()))
        lines.append(f"stopped, as {_STOPPED[found.stopped]}; to go on, add: {places}")
    elif not count and is_by_id:
        lines.append("another range of times may have it: give --since and --until")
    return lines


def _times(since_ms: int | None, until_ms: int | None) -> str:
    parts = []
    if since_ms is not None:
        parts.append(f"from {text.utc(since_ms)}")
    if until_ms is not None:
        parts.append(f"before {text.utc(until_ms)}")
    return " ".join(parts)


def _searched(topic: str, each: SearchedPartition) -> str:
    line = (
        f"searched {topic}-{each.partition}: offsets {each.start} to {each.next_offset}, "
        f"{each.read_bytes} bytes read, {each.skipped_bytes} ruled out by key indexes"
    )
    if each.first_ms is not None:
        line += f", stored {text.utc(each.first_ms)} to {text.utc(each.last_ms)}"
    return line


def _gap(topic: str, partition: int, gap: SearchGap) -> str:
    end = "the end" if gap.end is None else gap.end
    return (
        f"NOT searched, {gap.kind}: {topic}-{partition}, offsets {gap.start} to {end}: {gap.reason}"
    )


def _document(found: FoundMessages) -> dict[str, Any]:
    messages = [
        {**text.as_fields(each), "stored_s": text.in_seconds(each.append_time_ms)}
        for each in found.messages
    ]
    return {"messages": messages, **_FOUND(found)}
