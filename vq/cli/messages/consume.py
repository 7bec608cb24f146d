"""``vq consume``: a member of a group that prints what it receives; or a reader without one."""

import asyncio
import contextlib
import functools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

import click

from vq.blocking import MessageFactory
from vq.cli.base import text
from vq.cli.base.completion import group_names, topic_names
from vq.cli.base.json_schema import MESSAGE_SCHEMA, shows
from vq.cli.base.moments import Moment
from vq.cli.base.options import (
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    flag,
    no_effect,
    option,
    partitions_option,
)
from vq.cli.messages.decoding import Decoding, decodes
from vq.cli.messages.message_format import NAMES, MessageFormat
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, ReadFrom, StartPosition
from vq.limits import MIB
from vq.log_lines import Line
from vq.message_filter import Filter, Wanting, Where
from vq.model import Message
from vq.operations.messages.stored import COUNT_MAX
from vq.operations.messages.streams import Begin, messages
from vq.waits import Latch

_FETCH_BYTES = 1 * MIB
_TICK_S = 0.1


class Enough(Exception):
    """Raised for messages after the last one wanted, so that they do not count as consumed."""


class Printer:
    """The listener: writes each message and flushes before it counts as consumed.

    Called by one worker thread; the command's thread waits for ``ended``.

    Args:
        stream: Where messages are written.
        form: How a message is written.
        limit: So many are wanted; None: all.
        warn: Called once, with the first message that a program does not get back as it was.

    Attributes:
        count: Messages that were printed.
        torn: Of these, those with a newline inside: as they are, they take several lines.
        binary: Of these, those that are not UTF-8.
    """

    def __init__(
        self,
        stream: BinaryIO,
        form: Callable[[Message], bytes],
        *,
        limit: int | None,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        self.ended = Latch()
        self.count = self.torn = self.binary = 0
        self.last_at = time.monotonic()
        self.failure: OSError | None = None
        self._stream = stream
        self._form = form
        self._limit = limit
        self._warn = warn

    def __call__(self, message: Message) -> None:
        """Print one message.

        Raises:
            Enough: It is not wanted any more; it stays unconsumed.
        """
        if self.ended.is_set:
            raise Enough
        try:
            self._stream.write(self._form(message))
            self._stream.flush()
        except OSError as error:
            self.failure = error
            self.ended.set()
            raise Enough from error
        self.count += 1
        self.last_at = time.monotonic()
        if self._warn is not None:
            self._look(message, self._warn)
        if self.count == self._limit:
            self.ended.set()

    def _look(self, message: Message, warn: Callable[[str], object]) -> None:
        """Count a message that is no line of text; tell of the first one at once.

        The command may have no end, and what it printed is with another program already.
        """
        is_torn, is_binary = b"\n" in message.content, not _is_text(message.content)
        is_first = not (self.torn or self.binary)
        self.torn += is_torn
        self.binary += is_binary
        if is_first and (is_torn or is_binary):
            what = "has a newline" if is_torn else "is not UTF-8"
            warn(
                f"warning: the message at offset {message.offset} of {message.topic}-"
                f"{message.partition} {what}: a program that reads lines of text does not get it "
                "back. To copy messages, use `vq consume --json | vq produce --input json`"
            )

    @property
    def warning(self) -> str:
        """What is told at the end to whoever reads the output by lines; empty: nothing."""
        if self._warn is None or not (self.torn or self.binary):
            return ""
        return (
            f"warning: of {self.count} messages, {self.torn} have newlines and {self.binary} are "
            "not UTF-8"
        )

    def wait(self, idle_s: float | None) -> None:
        """Wait until enough was printed, or nothing came for ``idle_s`` seconds."""
        while not self.ended.wait(_TICK_S):
            if idle_s is not None and time.monotonic() - self.last_at >= idle_s:
                return


def _is_text(content: bytes) -> bool:
    if content.isascii():
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def hide_enough(record: logging.LogRecord) -> bool:
    values = record.msg.fields.values() if isinstance(record.msg, Line) else ()
    return not any(
        isinstance(value, BaseException) and isinstance(value.__cause__, Enough) for value in values
    )


def form_of(
    *, as_json: bool, verbose: bool, terminal: bool, pattern: str | None = None
) -> Callable[[Message], bytes]:
    """Return how a message is written: to a pipe as it is, to a terminal made safe."""
    if as_json:
        return text.as_json_line
    if pattern is not None:
        return functools.partial(MessageFormat.parse(pattern).line, terminal=terminal)
    if verbose:
        return text.as_verbose_line
    return text.as_terminal_line if terminal else text.as_line


def _decoded_form(
    decoding: Decoding, form: Callable[[Message], bytes]
) -> Callable[[Message], bytes]:
    return lambda message: form(decoding(message))


@click.command()
@click.argument("topic", shell_complete=topic_names)
@option("--group NAME", "The consumer group; its progress is kept.", shell_complete=group_names)
@option(
    "--from as start",
    "Where to begin; with --group: where it has no progress yet.  [earliest]",
    ["earliest", "latest"],
)
@option(
    "--since",
    "Without a group: from the first message stored at or after this time, such as 15m (ago) "
    "or 2026-11-22T09:30.",
    Moment(),
)
@option("--last N", "Without a group: the last N messages of the topic.", WholeNumber(1, COUNT_MAX))
@option(
    "--offset OFFSET",
    "Without a group: from this offset on; with one --partition.",
    WholeNumber(min=0),
)
@partitions_option("Without a group: only this one; may repeat.")
@flag("-f,--follow", "Without a group: do not end at the end, but print what comes.")
@option("--tag EXPRESSION", "Only messages of this tag, or of a || b.")
@option(
    "--where EXPRESSION",
    "Only messages of which this is true, such as \"price > 10 AND region IN ('hz', 'sh')\".",
)
@option("--max N as limit", "End after so many messages.", WholeNumber(min=1))
@option(
    "--timeout SECONDS",
    "End when no message came for so long; without it, a group's member and --follow run "
    "until ctrl-C.",
    Seconds(min=0, min_open=True),
)
@option(
    "--read-from",
    "With --group: nodes of a broker group to read from.  [master]",
    ["master", "any", "nearest"],
)
@option("--rack NAME", "Where this machine is; for --read-from nearest.")
@flag("-v,--verbose", "Partition, offset, id, tag and key before the content.")
@option(
    "--format PATTERN as pattern",
    f"How a message is printed, such as '{{time}} {{key}} {{content}}'; it takes "
    f"{', '.join(f'{{{each}}}' for each in NAMES)}.",
)
@shows(MESSAGE_SCHEMA)
@command_options
@decodes
def consume(
    invocation: Invocation,
    topic: str,
    group: str | None,
    start: str | None,
    since: int | None,
    last: int | None,
    offset: int | None,
    partitions: Sequence[int],
    follow: bool,
    tag: str | None,
    where: str | None,
    limit: int | None,
    timeout: float | None,
    read_from: str | None,
    rack: str | None,
    verbose: bool,
    pattern: str | None,
    decoding: Decoding | None,
) -> None:
    """Print messages, as a member of a group or without one.

    One message a line, or one JSON object a line with --json. A pipe gets the content byte for
    byte; a terminal, and -v, get control characters escaped. A message with a newline takes several
    lines of a pipe, and one that is not UTF-8 is no text: a warning tells of the first one, and of
    how many there were. --json keeps each on one line, and `vq produce --input json` sends these
    again as they were.

    With --group, what was printed counts as consumed: the group's progress is committed every few
    seconds and at the end. At least once: after a crash the last seconds may be printed again.

    Without a group no progress is kept. The command prints what is there, ordered by the time at
    which it was sent as far as the order of each partition allows it, and ends; or it goes on with
    --follow.
    """
    if verbose and invocation.output.as_json:
        raise no_effect("-v", "with --json, which shows every field", "leave --json out")
    if tag is not None and where is not None:
        raise click.UsageError("--tag and --where exclude one another; in --where, TAGS is the tag")
    message_filter: Wanting = tag if where is None else Where(where)
    if pattern is not None and (verbose or invocation.output.as_json):
        other = "-v" if verbose else "--json"
        raise click.UsageError(f"--format and {other} exclude one another")
    form = form_of(
        as_json=invocation.output.as_json,
        verbose=verbose,
        terminal=sys.stdout.isatty(),
        pattern=pattern,
    )
    # Of the other forms, none has the content as it is; a person sees it made safe.
    in_pattern = pattern is not None and "{content}" in pattern and not sys.stdout.isatty()
    as_it_is = decoding is None and (form is text.as_line or in_pattern)
    if decoding is not None:
        form = _decoded_form(decoding, form)
    warn = invocation.output.remark if as_it_is else None
    printer = Printer(sys.stdout.buffer, form, limit=limit, warn=warn)
    places = {"--since": since, "--last": last, "--offset": offset}
    chosen = [name for name, value in places.items() if value is not None]
    alone = [*chosen, *["--partition"] * bool(partitions), *["--follow"] * follow]
    config = invocation.consumer_config(
        group=group,
        start_position=None if start is None else StartPosition(start),
        read_from=None if read_from is None else ReadFrom(read_from),
        rack=rack,
    )
    if group is not None and alone:
        raise click.UsageError(
            f"{alone[0]} is for reading without a group; a group goes on where it is, and "
            "`vq group reset` sets where that is"
        )
    as_member = bool(config.group) and not alone
    if not as_member:
        if read_from is not None or rack is not None:
            raise click.UsageError("--read-from and --rack are for members of a group")
        if len(chosen) + (start is not None) > 1:
            names = [*chosen, *["--from"] * (start is not None)]
            raise click.UsageError(f"{' and '.join(names)} exclude one another")
        if start == "latest" and not follow:
            raise no_effect("--from latest", "without --follow", "give both")
    try:
        if as_member:
            _consume_as_member(invocation, topic, config, message_filter, printer, timeout)
        else:
            begin = Begin(latest=start == "latest", since_ms=since, offset=offset, last=last)
            wanted = Filter.of(message_filter, "tag")
            _read_alone(
                invocation, topic, begin, partitions, wanted, printer, timeout, follow=follow
            )
    finally:  # ctrl-C ends the command, too
        if printer.warning:
            invocation.output.remark(printer.warning)
    if printer.failure is not None:
        raise printer.failure
    if sys.stderr.isatty():
        invocation.output.remark(f"{printer.count} message{'s' * (printer.count != 1)}")


def _consume_as_member(
    invocation: Invocation,
    topic: str,
    config: ConsumerConfig,
    message_filter: Wanting,
    printer: Printer,
    timeout: float | None,
) -> None:
    for handler in logging.getLogger().handlers:
        handler.addFilter(hide_enough)
    with (
        MessageFactory(invocation.client_config()) as factory,
        factory.create_consumer(config) as consumer,
    ):
        consumer.subscribe(topic, _FETCH_BYTES, printer, message_filter)
        printer.last_at = time.monotonic()
        consumer.start()
        printer.wait(timeout)


def _read_alone(
    invocation: Invocation,
    topic: str,
    begin: Begin,
    partitions: Sequence[int],
    wanted: Filter,
    printer: Printer,
    timeout: float | None,
    *,
    follow: bool,
) -> None:
    """Print messages without a group, until there are no more, or enough, or none came for long."""

    async def work(cluster: ClusterClient) -> None:
        stream = messages(
            cluster, topic, begin, partitions=partitions, wanted=wanted, follow=follow
        )
        async with contextlib.aclosing(stream):
            while not printer.ended.is_set:
                try:
                    async with asyncio.timeout(timeout):
                        some = await anext(stream)
                except (TimeoutError, StopAsyncIteration):
                    return
                with contextlib.suppress(Enough):
                    for each in some:
                        printer(each)

    invocation.call(work)
