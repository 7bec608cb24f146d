"""``vq consume``: a member of a group that prints what it receives."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

import click

from vq.blocking import MessageFactory
from vq.cli import text
from vq.cli.logs import log_to_stderr
from vq.cli.options import Invocation, Seconds, WholeNumber, command_options, no_effect
from vq.client.config import ReadFrom, StartPosition
from vq.errors import InvalidArgument
from vq.limits import MIB
from vq.log_lines import Line
from vq.model import Message

_FETCH_BYTES = 1 * MIB
_TICK_S = 0.1


class Enough(Exception):
    """Raised for messages after the last one wanted, so that they do not count as consumed."""


class Printer:
    """The listener: writes each message and flushes before it counts as consumed.

    Called by one worker thread; the command's thread waits for ``ended``.
    """

    def __init__(
        self, stream: BinaryIO, form: Callable[[Message], bytes], *, limit: int | None
    ) -> None:
        self.ended = threading.Event()
        self.count = 0
        self.last_at = time.monotonic()
        self.failure: OSError | None = None
        self._stream = stream
        self._form = form
        self._limit = limit

    def __call__(self, message: Message) -> None:
        """Print one message.

        Raises:
            Enough: It is not wanted any more; it stays unconsumed.
        """
        if self.ended.is_set():
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
        if self.count == self._limit:
            self.ended.set()

    def wait(self, idle_s: float | None) -> None:
        """Wait until enough was printed, or nothing came for ``idle_s`` seconds."""
        while not self.ended.wait(_TICK_S):
            if idle_s is not None and time.monotonic() - self.last_at >= idle_s:
                return


def _hide_enough(record: logging.LogRecord) -> bool:
    values = record.msg.fields.values() if isinstance(record.msg, Line) else ()
    return not any(
        isinstance(value, BaseException) and isinstance(value.__cause__, Enough) for value in values
    )


def form_of(*, as_json: bool, verbose: bool, terminal: bool) -> Callable[[Message], bytes]:
    """Return how a message is written: to a pipe as it is, to a terminal made safe."""
    if as_json:
        return text.as_json_line
    if verbose:
        return text.as_verbose_line
    return text.as_terminal_line if terminal else text.as_line


@click.command()
@click.argument("topic")
@click.option("--group", metavar="NAME", help="The consumer group; its progress is kept.")
@click.option(
    "--from",
    "start",
    type=click.Choice(["earliest", "latest"]),
    help="Where a group without progress begins.  [earliest]",
)
@click.option("--tag", metavar="EXPRESSION", help="Only messages of this tag, or of a || b.")
@click.option(
    "--max", "limit", type=WholeNumber(min=1), metavar="N", help="End after so many messages."
)
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True),
    metavar="SECONDS",
    help="End when no message came for so long; without it, run until ctrl-C.",
)
@click.option(
    "--read-from",
    type=click.Choice(["master", "any", "nearest"]),
    help="Nodes of a broker group to read from.  [master]",
)
@click.option("--rack", metavar="NAME", help="Where this machine is; for --read-from nearest.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Partition, offset, id, tag and key before the content."
)
@command_options
def consume(
    invocation: Invocation,
    topic: str,
    group: str | None,
    start: str | None,
    tag: str | None,
    limit: int | None,
    timeout: float | None,
    read_from: str | None,
    rack: str | None,
    verbose: bool,
) -> None:
    """Print messages as a member of a group.

    One message a line, or one JSON object a line with --json. A pipe gets the content byte for
    byte; a terminal, and -v, get control characters escaped. What was printed counts as consumed:
    the group's progress is committed every few seconds and at the end. At least once: after a
    crash the last seconds may be printed again.
    """
    if verbose and invocation.output.as_json:
        raise no_effect("-v", "with --json, which shows every field", "leave --json out")
    position = None if start is None else StartPosition(start)
    config = invocation.consumer_config(
        group=group,
        start_position=position,
        read_from=None if read_from is None else ReadFrom(read_from),
        rack=rack,
    )
    if not config.group:
        raise InvalidArgument(
            "no consumer group: give --group NAME (its progress is kept), or read by position with "
            "`vq message get`"
        )
    log_to_stderr()
    for handler in logging.getLogger().handlers:
        handler.addFilter(_hide_enough)
    form = form_of(as_json=invocation.output.as_json, verbose=verbose, terminal=sys.stdout.isatty())
    printer = Printer(sys.stdout.buffer, form, limit=limit)
    with (
        MessageFactory(invocation.client_config()) as factory,
        factory.create_consumer(config) as consumer,
    ):
        consumer.subscribe(topic, _FETCH_BYTES, printer, tag)
        printer.last_at = time.monotonic()
        consumer.start()
        printer.wait(timeout)
    if printer.failure is not None:
        raise printer.failure
    if sys.stderr.isatty():
        invocation.output.remark(f"{printer.count} messages")
