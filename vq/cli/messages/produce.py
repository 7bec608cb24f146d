"""``vq produce``: every line becomes a message; ends when each has its outcome."""

import contextlib
import dataclasses
import functools
import itertools
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import BinaryIO, TypeVar

import click

from vq.blocking import MessageFactory, MessageProducer
from vq.cli.base.completion import topic_names
from vq.cli.base.input import interruptible
from vq.cli.base.json_schema import mapping, maybe, record, shows
from vq.cli.base.moments import Delay, LaterMoment
from vq.cli.base.options import (
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    compression_options,
    flag,
    no_effect,
    option,
)
from vq.cli.base.output import Output
from vq.cli.messages.lines import (
    KEY_TYPES,
    InputFormat,
    JsonFormat,
    LineFormat,
    headers_of,
    key_of,
)
from vq.cli.messages.outcomes import Tally, failure_files
from vq.cli.messages.produce_run import LineRate, OnePartition, ProduceRun
from vq.client.config import OnUnavailable, ProducerConfig
from vq.client.producer.metrics import ProducerMetrics
from vq.client.producer.spread.partitioner import (
    STRATEGIES,
    Keys,
    PartitionerSetting,
    strategy_of,
)
from vq.errors import InvalidArgument, NotSent, UnknownTopic, VqError
from vq.limits import DELAY_S_MAX
from vq.model import Compression
from vq.operations.cluster.settings import read_settings

R = TypeVar("R")
_BY_KEY = "key"
#: What ``--input`` takes.
INPUTS = ("lines", "json")
#: Looks like a tab or a newline to who wrote it; a shell passes both characters on.
_ESCAPE = re.compile(r"\\[tnrx0]")
#: Fastest ``--rate``, messages a second.
RATE_MAX = 1_000_000


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
    is_json: bool = False,
    says: Sequence[str] = (),
) -> None:
    """Check that each option that was given has an effect beside the others.

    Args:
        key, key_separator, key_type, allow_no_key, partition_by, partition, compression,
            compression_threshold: The options.
        is_json: ``--input json``: each line says what its message has.
        says: The options that say that for all messages, by name.

    Raises:
        click.UsageError: One has none, or two exclude one another.
    """
    if is_json and says:
        raise click.UsageError(
            f"{says[0]} and --input json exclude one another: each line of JSON says what its "
            "message has"
        )
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
    if partition_by == "hash" and not is_json and (allow_no_key or not keyed):
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
    config: ProducerConfig, form: InputFormat, on_unavailable: str | None
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
    if not form.may_have_keys:
        raise no_effect(
            f"--on-unavailable {on_unavailable}",
            "without --key, --key-separator or --partition",
            "give one of them",
        )


def _one_of(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}"


@click.command()
@click.argument("topic", shell_complete=topic_names)
@click.argument("file", type=click.File("rb"), default="-")
@option(
    "--input as input_format",
    "What a line is: the content of a message; or with json a whole message with key, tag and "
    "headers, as `vq consume --json` prints it.  [lines]",
    INPUTS,
    default=INPUTS[0],
)
@option("--tag TEXT", "Tag of every message.")
@option("--key TEXT", "Key (business id) of every message.")
@option(
    "--key-separator TEXT",
    "The text of a line before its first TEXT is the key, the rest the message.",
)
@flag(
    "--allow-no-key",
    "With --key-separator: a line without TEXT is a message without a key. Without this "
    "option such a line is refused.",
)
@option(
    "--key-type",
    "What keys are: text, an integer, or bytes as hexadecimal digits.  [text]",
    KEY_TYPES,
)
@option(
    "--header NAME=VALUE ... as header_texts",
    "Header of every message; may be given several times.",
)
@option(
    "--partition-by NAME",
    "How the partition is chosen: key, by a hash of the key, round robin without one; or by "
    f"the partitioner {_one_of(STRATEGIES)}.  [key]",
    [_BY_KEY, *STRATEGIES],
)
@option("--partition N", "Send everything to partition N.", WholeNumber(min=0))
@compression_options(
    "How to compress messages.", ("as the topic says", "as the topic says, or 128K")
)
@option(
    "--on-unavailable",
    "What happens to a message with a key, or with --partition, while its partition is "
    "unavailable: it waits until its deadline, fails at once, or goes to any other one.  [wait]",
    OnUnavailable,
)
@option(
    "--timeout SECONDS",
    "Deadline of each message, all tries included, and of what comes before the first.  [30]",
    Seconds(min=0, min_open=True),
)
@option(
    "--delay SECONDS",
    "Deliver each message so long after it was sent, such as 90 or 2h; at most 40 days.",
    Delay(min=0, min_open=True, max=DELAY_S_MAX),
)
@option(
    "--deliver-at TIME",
    "Deliver each message at this time, such as 2026-11-22T09:30, at most 40 days ahead.",
    LaterMoment(),
)
@option(
    "--rate N",
    "Send at most N messages a second, evenly.",
    Seconds(min=0, min_open=True, max=RATE_MAX),
)
@option("--max N as limit", "Stop after so many lines.", WholeNumber(min=1))
@option(
    "--unacknowledged FILE",
    "Write the lines that are refused or unknown to a new FILE, to send them again.",
    click.Path(dir_okay=False),
)
@option(
    "--errors FILE",
    "Write the number and the error of each such line to a new FILE, in the same order.",
    click.Path(dir_okay=False),
)
@shows(
    record(
        topic=str,
        sent=int,
        acknowledged=int,
        diverted=int,
        refused=int,
        unknown=int,
        failures=mapping(int),
        without_key=int,
        bytes=int,
        stored_bytes=maybe(int),
        compression_ratio=maybe(float),
        seconds=float,
    )
)
@command_options
def produce(
    invocation: Invocation,
    topic: str,
    file: BinaryIO,
    input_format: str,
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
    delay: float | None,
    deliver_at: float | None,
    rate: float | None,
    limit: int | None,
    unacknowledged: str | None,
    errors: str | None,
) -> None:
    """Send the lines of a file or of standard input.

    Without FILE, or with -, standard input is read. Each line is one message, sent in order per
    partition. A line that cannot be sent is refused with its number, and the others go on; the
    first five such lines are listed. The summary counts lines by outcome, failures by error, bytes
    of contents, and with compression the bytes stored. Ctrl-C ends the input; the lines sent get
    their outcome. Exit code 1 if any message was refused or its outcome is unknown.

    `vq consume FROM --json | vq produce TO --input json` copies messages exactly: contents of any
    bytes, keys with their type, tags and headers. An input that ends within a message is an error;
    after a whole one it is not, so let the shell tell whether the first command failed (in bash
    `set -o pipefail`).

    A missing topic is created if `vq cluster settings` allows it, by the first line that the new
    topic can take. Without such a line no topic is created.

    With --delay or --deliver-at an acknowledged message waits, and is delivered then; `vq delayed
    list` shows what waits, `vq delayed cancel` recalls it.
    """
    if delay is not None and deliver_at is not None:
        raise click.UsageError("--delay and --deliver-at exclude one another")
    given = {"delay_s": delay, "deliver_at": deliver_at}
    later = {name: value for name, value in given.items() if value is not None}
    is_json = input_format != INPUTS[0]
    of_all = {
        "--tag": tag is not None,
        "--key": key is not None,
        "--key-separator": key_separator is not None,
        "--key-type": key_type is not None,
        "--allow-no-key": allow_no_key,
        "--header": header_texts,
    }
    check_options(
        key=key,
        key_separator=key_separator,
        key_type=key_type,
        allow_no_key=allow_no_key,
        partition_by=partition_by,
        partition=partition,
        compression=compression,
        compression_threshold=compression_threshold,
        is_json=is_json,
        says=[name for name, value in of_all.items() if value],
    )
    form: InputFormat
    if is_json:
        form = JsonFormat(topic=topic)
    else:
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
        exit_flush_s=0.0,  # left open only by a second ctrl-C, which ends at once
    )
    if partition_by == _BY_KEY:  # whatever the file or a variable says
        config = dataclasses.replace(config, partitioner=None)
    check_on_unavailable(config, form, on_unavailable)
    output = invocation.output
    if key_separator is not None and _ESCAPE.search(key_separator):
        output.remark(_escape_text(key_separator))
    pace_of = None if rate is None else functools.partial(LineRate, rate)
    with failure_files(unacknowledged, errors, as_json=output.as_json) as files:
        tally = Tally(files)
        started = time.monotonic()
        stopped: BaseException | None = None
        with contextlib.ExitStack() as held:
            try:
                factory = held.enter_context(MessageFactory(invocation.client_config()))
                producer, count = within(
                    config.send_timeout_s, lambda: begin(invocation, factory, config, topic)
                )
            except (KeyboardInterrupt, NotSent) as error:
                if isinstance(error, KeyboardInterrupt):
                    output.remark("interrupted before a line was read; nothing was sent")
                _report(output, topic, tally, None, time.monotonic() - started)
                raise
            if partition is not None:
                check_partition(topic, partition, count)
            run = ProduceRun(
                producer,
                form,
                tally,
                None if pace_of is None else pace_of(time.monotonic()),
                later,
            )
            try:
                with (
                    output.progress(
                        f"sending to {topic}",
                        lambda: tally.count,
                        total=limit,
                        portion=None if limit else portion_of(file, tally),
                        shared=file.isatty(),
                    ),
                    interruptible(file) as lines,
                ):
                    run.send_all(itertools.islice(form.lines(lines), limit))
            except (KeyboardInterrupt, OSError, VqError) as error:
                stopped = error
                try:  # a second ctrl-C may come as soon as it is asked for
                    if isinstance(error, KeyboardInterrupt):
                        output.remark(f"interrupted after {tally.begun} lines")
                        output.remark(
                            "waiting for the outcome of those sent, at most "
                            f"{config.send_timeout_s:g} s; ctrl-C again ends at once"
                        )
                    producer.flush()
                except KeyboardInterrupt:
                    held.pop_all()  # do not close: that would wait for the outcomes
                tally.give_up()
            metrics = producer.metrics()  # shown before closing, which may be interrupted, too
            files.flush()
            _report(output, topic, tally, metrics, time.monotonic() - started)
            list_failures(output, tally, unacknowledged, errors)
    threshold_alone = config.compression is None and compression_threshold is not None
    if threshold_alone and tally.count and not metrics.total.messages_compressed:
        output.remark(
            f"--compression-threshold {compression_threshold} had no effect: topic {topic} is not "
            "compressed and no --compression was given, or every line was shorter"
        )
    failed = stopped or files.problem or tally.error()
    if failed is not None:
        raise failed


def within(seconds: float, work: Callable[[], R]) -> R:
    """Return the result of ``work``, what is done before the first line is read.

    Each call to ZooKeeper has a bound and is tried again; all of them together have this one. Work
    that is late ends when the factory that it uses is shut down.

    Raises:
        NotSent: It took longer.
    """
    done: Future[R] = Future()

    def call() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001  raised below
            done.set_exception(error)

    threading.Thread(target=call, name="vq-produce-begin", daemon=True).start()
    if not wait([done], seconds).done:
        raise NotSent(
            f"ZooKeeper did not say within {seconds:g} s where messages go; no line was read, and "
            "nothing was sent",
            hint="check that ZooKeeper answers: `vq doctor`; or give more time with --timeout",
        )
    return done.result()


def begin(
    invocation: Invocation, factory: MessageFactory, config: ProducerConfig, topic: str
) -> tuple[MessageProducer, int]:
    """Return a producer that may send to a topic, and the number of the topic's partitions."""
    check_exists(invocation, factory, topic)  # before the producer leases a slot
    producer = factory.create_producer(config)
    return producer, publish(invocation, factory, producer, topic)


def check_exists(invocation: Invocation, factory: MessageFactory, topic: str) -> None:
    """Refuse a cluster that does not exist; a missing topic may be created later.

    Raises:
        UnknownCluster: No broker has ever registered in it; its tree is left as it was.
    """
    try:
        factory.get_partitions_for_topic(topic)
    except UnknownTopic:
        invocation.topic_names()


def publish(
    invocation: Invocation, factory: MessageFactory, producer: MessageProducer, topic: str
) -> int:
    """Publish a topic; a missing one is left to the first send, which may create it.

    Returns:
        The number of its partitions, also before it is created.

    Raises:
        UnknownTopic: It is missing, and producers may not create it.
    """
    try:
        count = len(factory.get_partitions_for_topic(topic))
    except UnknownTopic:
        found = invocation.call(read_settings)
        if found.may_create:
            return found.new_topics.partitions
        producer.publish(topic)  # raises, and says what an operator can do
        return publish(invocation, factory, producer, topic)  # somebody has created it meanwhile
    producer.publish(topic)
    return count


def portion_of(file: BinaryIO, tally: Tally) -> Callable[[], float] | None:
    """Return what says which part of a regular file has its outcome; None: it is another file."""
    try:
        status = os.fstat(file.fileno())
        size = status.st_size - file.tell()
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode) or size <= 0:
        return None
    return lambda: min(1.0, tally.read / size * tally.count / max(1, tally.begun))


def _escape_text(separator: str) -> str:
    return (
        f"--key-separator has {len(separator)} characters, one of them a backslash; for a tab give "
        "$'\\t' (bash, zsh)"
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
    output: Output, topic: str, tally: Tally, metrics: ProducerMetrics | None, seconds: float
) -> None:
    total = None if metrics is None else metrics.total  # None: nothing was sent
    ratio = None if total is None else total.compression_ratio
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
        "stored_bytes": 0 if total is None else total.bytes_stored,
        "compression_ratio": None if ratio is None else round(ratio, 2),
        "seconds": round(seconds, 3),
    }
    hidden = {
        "failures": not tally.failures,
        "without_key": not tally.keyless,
        "stored_bytes": ratio is None,
        "compression_ratio": ratio is None,
    }
    output.record(values, shown=" ".join(name for name in values if not hidden.get(name)))


def list_failures(
    output: Output, tally: Tally, unacknowledged: str | None, errors: str | None
) -> None:
    """Say which lines failed, how many more there are, and how to get all of them."""
    for each in tally.first:
        output.failure(f"line {each.line}: {each.error}: {each.message}", each.as_json())
    more = tally.failed - len(tally.first)
    told = f"and {more} more" if tally.first else f"{more} line(s) without an outcome"
    wanted = [path for path in (unacknowledged, errors) if path is not None]
    if more and not wanted:
        output.remark(
            f"{told}; with --unacknowledged FILE all such lines are written to a file, "
            "with --errors FILE their numbers and errors"
        )
    elif more:
        output.remark(f"{told}, see {' and '.join(wanted)}")
    if tally.files.too_long:
        output.remark(
            f"{unacknowledged} is without {tally.files.too_long} line(s) that are longer than any "
            "message"
        )
    if tally.files.problem is not None:
        output.remark(f"{' and '.join(wanted)}: not complete")
