"""``vq produce``: every line becomes a message; ends when each has its outcome."""

import contextlib
import dataclasses
import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import BinaryIO

import click

from vq.blocking import MessageFactory, MessageProducer
from vq.cli.errors import CommandFailed
from vq.cli.lines import (
    KEY_TYPES,
    LineFormat,
    LongLine,
    headers_of,
    key_of,
    lines_of,
    too_long,
)
from vq.cli.options import (
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    compression_options,
    no_effect,
)
from vq.cli.output import Output
from vq.client.config import OnUnavailable, ProducerConfig
from vq.client.producer.metrics import ProducerMetrics
from vq.client.producer.partitioner import (
    STRATEGIES,
    Keys,
    PartitionerSetting,
    TopicPartitions,
    strategy_of,
)
from vq.errors import InvalidArgument, OutcomeUnknown, Refused, VqError
from vq.model import Compression, Message, SendResult

_SHOWN_ERRORS = 5
_BY_KEY = "key"
#: Fastest ``--rate``, messages a second.
RATE_MAX = 1_000_000
#: After a wait of the producer, ``--rate`` makes up for at most so long.
_CATCH_UP_S = 0.01


class OnePartition:
    """Every message goes to the same partition."""

    def __init__(self, partition: int) -> None:
        self._partition = partition

    def choose(self, message: Message, partitions: TopicPartitions) -> int:
        """See ``Partitioner.choose``."""
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
    """Counts lines and their outcomes; called by the producer's thread and the command's.

    Attributes:
        begun: Lines that were read and are sent, or refused before.
        size: Bytes of their contents.
        keyless: Those that have no key although others have.
        acknowledged, refused, unknown: Lines by outcome.
        diverted: Of those acknowledged, sent to another partition than that of their key.
        failures: Lines by class of the error.
        errors: The first few errors, with the number of the line.
    """

    def __init__(self) -> None:
        self.begun = self.size = self.keyless = 0
        self.acknowledged = self.refused = self.unknown = 0
        self.diverted = 0
        self.failures: Counter[str] = Counter()
        self.errors: list[str] = []
        self._closed = False
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many lines have ended, one way or another."""
        return self.acknowledged + self.refused + self.unknown

    def ended(self, line: int, result: SendResult | None, error: VqError | None) -> None:
        """Count the outcome of one line."""
        with self._lock:
            if self._closed:
                return
            if error is None:
                self.acknowledged += 1
                self.diverted += result is not None and result.diverted
            else:
                self._failed(line, error)

    def give_up(self) -> None:
        """Count the lines without an outcome as unknown; later outcomes do not count."""
        with self._lock:
            waiting = self.begun - self.count
            if waiting:
                self.unknown += waiting
                self.failures["Interrupted"] += waiting
            self._closed = True

    def _failed(self, line: int, error: VqError) -> None:
        if isinstance(error, OutcomeUnknown):
            self.unknown += 1
        else:
            self.refused += 1
        self.failures[type(error).__name__] += 1
        if len(self.errors) < _SHOWN_ERRORS:
            self.errors.append(f"line {line}: {type(error).__name__}: {error}")


class Run:
    """One run of the command: reads lines, sends them, counts what becomes of them.

    Args:
        producer: Sends the messages.
        form: What a line means.
        tally: Counts.
        pace: When the next line is sent; None: at once.
    """

    def __init__(
        self, producer: MessageProducer, form: LineFormat, tally: Tally, pace: Pace | None
    ) -> None:
        self._producer = producer
        self._form = form
        self._tally = tally
        self._pace = pace

    def send_all(self, lines: Iterable[bytes | LongLine]) -> None:
        """Send every line; return once each has its outcome."""
        pace = self._pace
        for number, line in enumerate(lines, start=1):
            if pace is not None:
                time.sleep(pace.wait_s(time.monotonic()))
            self._tally.begun = number
            try:
                self._send(self._message(line), number)
            except (Refused, InvalidArgument) as error:
                self._tally.ended(number, None, error)
        self._producer.flush()

    def _message(self, line: bytes | LongLine) -> Message:
        if isinstance(line, LongLine):
            self._tally.size += line.size
            raise too_long(line)
        try:
            message = self._form.message(line)
        except InvalidArgument:
            self._tally.size += len(line)
            raise
        self._tally.size += len(message.content)
        self._tally.keyless += message.key is None and self._form.separator is not None
        return message

    def _send(self, message: Message, number: int) -> None:
        ended = self._tally.ended
        self._producer.send_async(message, lambda result, error: ended(number, result, error))


def partitioner_of(partition_by: str | None, partition: int | None) -> PartitionerSetting:
    """Return the partitioner that the options name; None: they name none, or ``key``."""
    if partition is not None:
        return OnePartition(partition)
    return None if partition_by == _BY_KEY else partition_by


def check_options(
    *,
    key: str | None,
    key_separator: str | None,
    key_type: str | None,
    allow_no_key: bool,
    partition_by: str | None,
    partition: int | None,
    compression: str | None,
    compression_threshold: int | None,
) -> None:
    """Check that each option that was given has an effect beside the others.

    Raises:
        click.UsageError: One has none, or two exclude one another.
    """
    if key is not None and key_separator is not None:
        raise click.UsageError("--key and --key-separator exclude one another")
    if key_separator == "":
        raise click.UsageError(
            "--key-separator is empty: give the text that ends the key of a line"
        )
    keyed = key is not None or key_separator is not None
    if key_type is not None and not keyed:
        raise no_effect(
            f"--key-type {key_type}", "without --key or --key-separator", "give one of them"
        )
    if allow_no_key and key_separator is None:
        raise no_effect("--allow-no-key", "without --key-separator", "give it, too")
    if partition is not None and partition_by is not None:
        raise click.UsageError(
            f"--partition {partition} and --partition-by {partition_by} exclude one another"
        )
    if partition_by == "hash" and (allow_no_key or not keyed):
        raise click.UsageError(
            "--partition-by hash needs a key in every message: give --key, or --key-separator "
            "without --allow-no-key; or leave --partition-by out"
        )
    if compression == Compression.NONE and compression_threshold is not None:
        raise no_effect(
            f"--compression-threshold {compression_threshold}",
            "with --compression none",
            "give another --compression",
        )


def check_on_unavailable(
    config: ProducerConfig, form: LineFormat, on_unavailable: str | None
) -> None:
    """Check that ``--on-unavailable`` has an effect: some messages have a partition of their own.

    Raises:
        click.UsageError: It has none.
    """
    strategy = strategy_of(config.partitioner)
    if on_unavailable is None or strategy is None or config.ordered:
        return
    if strategy.keys is Keys.IGNORED:
        raise no_effect(
            f"--on-unavailable {on_unavailable}",
            f"with --partition-by {config.partitioner}, which sends to available partitions",
            "give another --partition-by",
        )
    if form.key is None and form.separator is None:
        raise no_effect(
            f"--on-unavailable {on_unavailable}",
            "without --key, --key-separator or --partition",
            "give one of them",
        )


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
    "--allow-no-key",
    is_flag=True,
    help="With --key-separator: a line without TEXT is a message without a key. Without this "
    "option such a line is refused.",
)
@click.option(
    "--key-type",
    type=click.Choice(KEY_TYPES),
    help="What keys are: text, an integer, or bytes as hexadecimal digits.  [text]",
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
    help="How the partition is chosen: by a hash of the key, round robin without one; or by a "
    "partitioner of this name.  [key]",
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
    key_type: str | None,
    allow_no_key: bool,
    header_texts: tuple[str, ...],
    partition_by: str | None,
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
    partition. A line that cannot be sent is refused with its number, and the others go on. The
    summary counts lines by outcome, failures by error, bytes of contents, and with compression the
    bytes stored. Ctrl-C ends the input; the lines sent get their outcome. Exit code 1 if any
    message was refused or its outcome is unknown.
    """
    check_options(
        key=key,
        key_separator=key_separator,
        key_type=key_type,
        allow_no_key=allow_no_key,
        partition_by=partition_by,
        partition=partition,
        compression=compression,
        compression_threshold=compression_threshold,
    )
    key_type = key_type or KEY_TYPES[0]
    form = LineFormat(
        topic=topic,
        tag=tag,
        key=None if key is None else key_of(os.fsencode(key), key_type),
        separator=key_separator,
        key_type=key_type,
        may_lack_key=allow_no_key,
        headers=headers_of(header_texts),
    )
    form.check()
    config = invocation.producer_config(
        send_timeout_s=timeout,
        partitioner=partitioner_of(partition_by, partition),
        compression=compression,
        compression_threshold=compression_threshold,
        on_unavailable=on_unavailable,
    )
    if partition_by == _BY_KEY:  # whatever the file or a variable says
        config = dataclasses.replace(config, partitioner=None)
    check_on_unavailable(config, form, on_unavailable)
    output = invocation.output
    tally = Tally()
    started = time.monotonic()
    stopped: BaseException | None = None
    with contextlib.ExitStack() as held:
        factory = held.enter_context(MessageFactory(invocation.client_config()))
        producer = factory.create_producer(config)
        producer.publish(topic)
        if partition is not None:
            check_partition(topic, partition, len(factory.get_partitions_for_topic(topic)))
        run = Run(producer, form, tally, None if rate is None else Pace(rate, time.monotonic()))
        try:
            with output.progress(
                f"sending to {topic}", lambda: tally.count, total=limit, shared=file.isatty()
            ):
                run.send_all(itertools.islice(lines_of(file), limit))
        except (KeyboardInterrupt, OSError, VqError) as error:
            stopped = error
            if isinstance(error, KeyboardInterrupt):
                output.remark(
                    f"interrupted after {tally.begun} lines; waiting for the outcome of those sent "
                    f"(at most {config.send_timeout_s:g} s, ctrl-C again ends at once)"
                )
            try:
                producer.flush()
            except KeyboardInterrupt:
                tally.give_up()
                held.pop_all()  # do not close: that would wait for the outcomes
        metrics = producer.metrics()  # shown before closing, which may be interrupted, too
        _report(output, topic, tally, metrics, time.monotonic() - started)
    threshold_alone = config.compression is None and compression_threshold is not None
    if threshold_alone and tally.count and not metrics.total.messages_compressed:
        output.remark(
            f"--compression-threshold {compression_threshold} had no effect: topic {topic} is not "
            "compressed and no --compression was given, or every line was shorter"
        )
    if stopped is not None:
        raise stopped
    if tally.acknowledged != tally.count:
        raise CommandFailed(
            f"{tally.refused} of {tally.count} refused (not stored), {tally.unknown} unknown"
        )


def check_partition(topic: str, partition: int, count: int) -> None:
    """Check that a topic has this partition.

    Raises:
        InvalidArgument: It has not.
    """
    if partition >= count:
        raise InvalidArgument(
            f"--partition {partition} is outside [0, {count}), the partitions of topic {topic}"
        )


def _report(
    output: Output, topic: str, tally: Tally, metrics: ProducerMetrics, seconds: float
) -> None:
    total = metrics.total
    ratio = total.compression_ratio
    values = {
        "topic": topic,
        "sent": tally.count,
        "acknowledged": tally.acknowledged,
        "diverted": tally.diverted,
        "refused": tally.refused,
        "unknown": tally.unknown,
        "failures": dict(tally.failures),
        "without_key": tally.keyless,
        "bytes": tally.size,
        "stored_bytes": total.bytes_stored,
        "compression_ratio": None if ratio is None else round(ratio, 2),
        "seconds": round(seconds, 3),
    }
    hidden = {
        "failures": not tally.failures,
        "without_key": not tally.keyless,
        "stored_bytes": ratio is None,
        "compression_ratio": ratio is None,
    }
    output.record(values, shown=[name for name in values if not hidden.get(name)])
    for text in tally.errors:
        output.remark(text)
