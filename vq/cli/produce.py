"""``vq produce``: every line becomes a message; ends when each has its outcome."""

import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import click

from vq import limits
from vq.blocking import MessageFactory, MessageProducer
from vq.cli.errors import CommandFailed
from vq.cli.options import (
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    compression_options,
)
from vq.cli.output import Advance
from vq.client.config import OnUnavailable
from vq.client.producer.partitioner import STRATEGIES, PartitionerSetting, TopicPartitions
from vq.errors import InvalidArgument, MessageTooLarge, OutcomeUnknown, Refused, VqError
from vq.model import Key, Message, SendResult
from vq.shown import shown

_SHOWN_ERRORS = 5
_BY_KEY = "key"
#: What ``--key-type`` takes.
KEY_TYPES = ("text", "int", "hex")
#: Fastest ``--rate``, messages a second.
RATE_MAX = 1_000_000
#: After a wait of the producer, ``--rate`` makes up for at most so long.
_CATCH_UP_S = 0.01
#: Content, key and separator of any message fit into this.
LINE_BYTES_MAX = 2 * limits.MESSAGE_BYTES_MAX


class OnePartition:
    """Every message goes to the same partition."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def choose(self, message: Message, partitions: TopicPartitions) -> int:
        """See ``Partitioner.choose``."""
        if self._partition >= partitions.count:
            raise InvalidArgument(
                f"partition {self._partition} is outside [0, {partitions.count}) of this topic"
            )
        return self._partition


class Pace:
    """A steady rate: says how long to wait before the next line.

    A pause of the input or a full buffer is not made up for later: no burst follows it. Waits that
    last a little too long are.

    Args:
        rate: Lines a second.
        now: Monotonic time; the first line is due now.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._interval_s = 1 / rate
        self._due = now

    def wait_s(self, now: float) -> float:
        """Return the seconds until the next line is due, 0 if it is; count it as sent then."""
        due = max(self._due, now - _CATCH_UP_S)
        self._due = due + self._interval_s
        return max(0.0, due - now)


class Tally:
    """Counts outcomes; called by the producer's thread, read by the command's."""

    def __init__(self, advance: Advance) -> None:
        self.acknowledged = self.refused = self.unknown = 0
        self.diverted = 0  # of those acknowledged
        self.errors: list[str] = []
        self._advance = advance
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many lines have ended, one way or another."""
        return self.acknowledged + self.refused + self.unknown

    def ended(self, line: int, result: SendResult | None, error: VqError | None) -> None:
        """Count the outcome of one line."""
        with self._lock:
            if error is None:
                self.acknowledged += 1
                self.diverted += result is not None and result.diverted
            elif isinstance(error, OutcomeUnknown):
                self.unknown += 1
            else:
                self.refused += 1
            if error is not None and len(self.errors) < _SHOWN_ERRORS:
                self.errors.append(f"line {line}: {type(error).__name__}: {error}")
        self._advance(1)


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line that no message can hold; only its size is kept."""

    size: int


def lines_of(file: BinaryIO) -> Iterator[bytes | LongLine]:
    """Yield the lines without their newline; a last line without one counts too.

    Input without newlines, such as /dev/zero, takes no more memory than the longest line.
    """
    while line := file.readline(LINE_BYTES_MAX + 1):
        size = len(line)
        if size <= LINE_BYTES_MAX or line.endswith(b"\n"):
            yield line.removesuffix(b"\n")
            continue
        while not line.endswith(b"\n") and (line := file.readline(LINE_BYTES_MAX)):
            size += len(line)
        yield LongLine(size - line.endswith(b"\n"))


def key_of(text: bytes, key_type: str) -> Key:
    """Return the key that a text means.

    Raises:
        InvalidArgument: It is no integer, or no bytes as hexadecimal digits.
    """
    key = text.decode(errors="replace")
    if key_type == "text":
        return key
    kind = int if key_type == "int" else bytes.fromhex
    try:
        return kind(key)
    except ValueError as error:
        wanted = "an integer" if key_type == "int" else "bytes as hexadecimal digits"
        raise InvalidArgument(f"key {shown(key)} is not {wanted}") from error


def headers_of(texts: Sequence[str]) -> Mapping[str, str] | None:
    """Return the headers that texts ``NAME=VALUE`` mean; None without any.

    Raises:
        InvalidArgument: A text has no name, or a name comes twice.
    """
    headers: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        if not found or not name:
            raise InvalidArgument(f"header {shown(text)} is not NAME=VALUE")
        if name in headers:
            raise InvalidArgument(f"header {shown(name)} is given twice; a name has one value")
        headers[name] = value
    return headers or None


def message_of(
    topic: str,
    line: bytes,
    *,
    tag: str | None,
    key: Key | None,
    separator: str | None,
    key_type: str = "text",
    headers: Mapping[str, str] | None = None,
) -> Message:
    """Return a line as a message; with ``separator`` the text before its first one is the key.

    Raises:
        InvalidArgument: That text is no key of the type.
    """
    if separator is not None:
        before, found, after = line.partition(os.fsencode(separator))  # the bytes that were typed
        if found:
            return Message(topic, after, tag=tag, key=key_of(before, key_type), headers=headers)
    return Message(topic, line, tag=tag, key=key, headers=headers)


def send(producer: MessageProducer, message: Message, number: int, tally: Tally) -> None:
    """Send one line; a refusal of the client is counted like one of the broker."""
    try:
        producer.send_async(message, lambda result, error: tally.ended(number, result, error))
    except Refused as error:
        tally.ended(number, None, error)


def too_long(line: LongLine) -> MessageTooLarge:
    """Return the error for a line that is longer than any message."""
    return MessageTooLarge(
        f"line of {line.size} bytes; no message has more than {limits.MESSAGE_BYTES_MAX}"
    )


def partitioner_of(partition_by: str, partition: int | None) -> PartitionerSetting:
    """Return the partitioner of the messages; None: by key, round robin without one."""
    if partition is not None:
        return OnePartition(partition)
    return None if partition_by == _BY_KEY else partition_by


@click.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--tag", metavar="TEXT", help="Tag of every message.")
@click.option("--key", metavar="TEXT", help="Key (business id) of every message.")
@click.option(
    "--key-separator",
    metavar="TEXT",
    help="The text of a line before its first TEXT is the key, the rest the message.",
)
@click.option(
    "--key-type",
    type=click.Choice(KEY_TYPES),
    default="text",
    show_default=True,
    help="What keys are: text, an integer, or bytes as hexadecimal digits.",
)
@click.option(
    "--header",
    "header_texts",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header of every message; may be given several times.",
)
@click.option(
    "--partition-by",
    type=click.Choice([_BY_KEY, *STRATEGIES]),
    default=_BY_KEY,
    show_default=True,
    help="How the partition is chosen: by a hash of the key, round robin without one; or by a "
    "partitioner of this name.",
)
@click.option(
    "--partition", type=WholeNumber(min=0), metavar="N", help="Send everything to partition N."
)
@compression_options(
    "How to compress messages.", ("as the topic says", "as the topic says, or 128K")
)
@click.option(
    "--on-unavailable",
    type=click.Choice([each.value for each in OnUnavailable]),
    help="What happens to a message with a key, or with --partition, while its partition is "
    "unavailable: it waits until its deadline, fails at once, or goes to any other one.  [wait]",
)
@click.option(
    "--timeout",
    type=Seconds(min=0, min_open=True),
    metavar="SECONDS",
    help="Deadline of each message, all tries included.  [30]",
)
@click.option(
    "--rate",
    type=Seconds(min=0, min_open=True, max=RATE_MAX),
    metavar="N",
    help="Send at most N messages a second, evenly.",
)
@click.option(
    "--max", "limit", type=WholeNumber(min=1), metavar="N", help="Stop after so many lines."
)
@command_options
def produce(
    invocation: Invocation,
    topic: str,
    file: BinaryIO,
    tag: str | None,
    key: str | None,
    key_separator: str | None,
    key_type: str,
    header_texts: tuple[str, ...],
    partition_by: str,
    partition: int | None,
    compression: str | None,
    compression_threshold: int | None,
    on_unavailable: str | None,
    timeout: float | None,
    rate: float | None,
    limit: int | None,
) -> None:
    """Send the lines of a file or of standard input.

    Without FILE, or with -, standard input is read. Each line is one message, sent in order per
    partition. Exit code 1 if any message was refused or its outcome is unknown.
    """
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude one another")
    if key_separator == "":
        raise click.UsageError(
            "--key-separator is empty: give the text that ends the key of a line"
        )
    headers = headers_of(header_texts)
    common_key = None if key is None else key_of(os.fsencode(key), key_type)
    config = invocation.producer_config(
        send_timeout_s=timeout,
        partitioner=partitioner_of(partition_by, partition),
        compression=compression,
        compression_threshold=compression_threshold,
        on_unavailable=on_unavailable,
    )
    started = time.monotonic()
    sent = size = 0
    interrupted: KeyboardInterrupt | None = None
    with (
        MessageFactory(invocation.client_config()) as factory,
        factory.create_producer(config) as producer,
        invocation.output.progress(f"sending to {topic}", total=limit) as advance,
    ):
        producer.publish(topic)
        tally = Tally(advance)
        pace = None if rate is None else Pace(rate, time.monotonic())
        try:
            for number, line in enumerate(itertools.islice(lines_of(file), limit), start=1):
                if pace is not None:
                    time.sleep(pace.wait_s(time.monotonic()))
                sent = number
                if isinstance(line, LongLine):
                    size += line.size
                    tally.ended(number, None, too_long(line))
                    continue
                try:
                    message = message_of(
                        topic,
                        line,
                        tag=tag,
                        key=common_key,
                        separator=key_separator,
                        key_type=key_type,
                        headers=headers,
                    )
                except InvalidArgument as error:
                    size += len(line)
                    tally.ended(number, None, error)
                    continue
                size += len(message.content)
                send(producer, message, number, tally)
            producer.flush()
        except KeyboardInterrupt as error:
            interrupted = error
            invocation.output.remark(
                f"interrupted after {sent} lines; waiting for the outcome of those sent "
                f"(at most {config.send_timeout_s:g} s, ctrl-C again ends at once)"
            )
    if interrupted is not None:
        sent = tally.count  # the last line may have been read and not sent
    _report(invocation, topic, sent, size, tally, time.monotonic() - started)
    if interrupted is not None:
        raise interrupted
    if tally.acknowledged != sent:
        raise CommandFailed(
            f"{tally.refused} of {sent} refused (not stored), {tally.unknown} unknown"
        )


def _report(
    invocation: Invocation, topic: str, sent: int, size: int, tally: Tally, seconds: float
) -> None:
    output = invocation.output
    values = {
        "topic": topic,
        "sent": sent,
        "acknowledged": tally.acknowledged,
        "diverted": tally.diverted,
        "refused": tally.refused,
        "unknown": tally.unknown,
        "bytes": size,
        "seconds": round(seconds, 3),
    }
    output.record(values)
    for text in tally.errors:
        output.remark(text)
