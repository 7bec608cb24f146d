"""Options that belong together, outcomes counted by kind, and an even pace."""

import io
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import click
import pytest

from vq.cli.messages.lines import JsonFormat, LineFormat
from vq.cli.messages.outcomes import Tally
from vq.cli.messages.produce import (
    check_on_unavailable,
    check_options,
    check_partition,
    partitioner_of,
    portion_of,
    produce,
)
from vq.cli.messages.produce_run import LineRate, OnePartition, ProduceRun
from vq.client.config import ProducerConfig
from vq.client.producer.spread.partitioner import TopicPartitions
from vq.errors import InvalidArgument, InvalidState, NotSent
from vq.model import Message, SendResult

NOTHING: dict[str, Any] = {
    "key": None,
    "key_separator": None,
    "key_type": None,
    "allow_no_key": False,
    "partition_by": None,
    "partition": None,
    "compression": None,
    "compression_threshold": None,
}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"key": "a", "key_type": "int", "partition_by": "hash"},
        {"key_separator": ":", "key_type": "hex", "allow_no_key": True},
        {"partition": 0, "key": "a"},
        {"compression_threshold": 1},
        {"compression": "zstd", "compression_threshold": 1},
    ],
)
def test_options_that_belong_together(given: dict[str, Any]) -> None:
    check_options(**{**NOTHING, **given})


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"key": "a", "key_separator": ":"}, "--key and --key-separator exclude one another"),
        ({"key_separator": ""}, "--key-separator is empty"),
        ({"key_type": "int"}, "--key-type int has no effect without --key or --key-separator"),
        ({"key_type": "text"}, "--key-type text has no effect without --key or --key-separator"),
        ({"allow_no_key": True}, "--allow-no-key has no effect without --key-separator"),
        ({"key": "a", "allow_no_key": True}, "--allow-no-key has no effect without"),
        (
            {"partition": 3, "partition_by": "key"},
            "--partition 3 and --partition-by key exclude one another",
        ),
        ({"partition_by": "hash"}, "--partition-by hash needs a key"),
        (
            {"partition_by": "hash", "key_separator": ":", "allow_no_key": True},
            "--partition-by hash needs a key in every message.*without --allow-no-key",
        ),
        (
            {"compression": "none", "compression_threshold": 1},
            "--compression-threshold 1 has no effect with --compression none",
        ),
        (
            {"is_json": True, "says": ["--tag", "--header"]},
            "--tag and --input json exclude one another: each line of JSON says what",
        ),
    ],
)
def test_an_option_without_an_effect_is_refused_with_the_other_one(
    given: dict[str, Any], error: str
) -> None:
    with pytest.raises(click.UsageError, match=error):
        check_options(**{**NOTHING, **given})


@pytest.mark.parametrize(
    ("config", "form", "error"),
    [
        ({}, {}, "--on-unavailable fail has no effect without --key, --key-separator or"),
        ({"partitioner": "random"}, {"key": "a"}, "has no effect with --partition-by random"),
        ({"partitioner": OnePartition(1)}, {}, ""),
        ({}, {"key": "a"}, ""),
        ({}, {"separator": ":"}, ""),
        ({"ordered": True}, {}, ""),  # all messages stay at one partition
    ],
)
def test_on_unavailable_needs_messages_with_a_partition_of_their_own(
    config: dict[str, Any], form: dict[str, Any], error: str
) -> None:
    settings, lines = ProducerConfig(**config), LineFormat(topic="t", **form)
    check_on_unavailable(settings, lines, None)
    if not error:
        check_on_unavailable(settings, lines, "fail")
        return
    with pytest.raises(click.UsageError, match=error):
        check_on_unavailable(settings, lines, "fail")


def test_partitioners() -> None:
    assert partitioner_of(None, None) is None  # the producer's own way
    assert partitioner_of("key", None) is None
    assert partitioner_of("round-robin", None) == "round-robin"
    assert isinstance(partitioner_of(None, 4), OnePartition)
    message = Message("t", b"x", key="a")
    assert OnePartition(4).choose(message, TopicPartitions("t", 5, ())) == 4
    check_partition("t", 4, 5)
    with pytest.raises(InvalidArgument, match=r"--partition 5 is outside \[0, 5\).*topic t"):
        check_partition("t", 5, 5)


class Producer:
    """Refuses what has the key 1, as a producer refuses a key that no message can have."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_async(self, message: Message, callback: Any) -> None:
        if message.key == 1:
            raise InvalidArgument("key 1")
        self.sent.append(message.content)
        callback(SendResult(0, 88, 1), None)

    def flush(self) -> None:
        """Everything has its outcome."""


def test_a_line_that_is_refused_does_not_end_the_others() -> None:
    producer, tally = Producer(), Tally()
    form = LineFormat(topic="t", separator=":", key_type="int")
    run = ProduceRun(producer, form, tally, None)  # type: ignore[arg-type]
    run.send_all([b"0:a", b"1:b", b"c", b"x:d", b"2:e"])
    assert producer.sent == [b"a", b"e"]
    assert (tally.begun, tally.count, tally.acknowledged, tally.refused) == (5, 5, 2, 3)
    assert [each.line for each in tally.first] == [2, 3, 4]


def test_messages_of_json_are_sent_whole_and_a_cut_one_is_told_with_its_number() -> None:
    producer, tally = Producer(), Tally()
    run = ProduceRun(producer, JsonFormat(topic="t"), tally, None)  # type: ignore[arg-type]
    cut = JsonFormat(topic="t").lines(io.BytesIO(b'{"content": "a\\n"}\n{"key": 1'))
    run.send_all(cut)
    assert producer.sent == [b"a\n"]
    assert (tally.acknowledged, tally.refused, tally.keyless) == (1, 1, 0)
    (failure,) = tally.first
    assert (failure.line, failure.outcome, failure.error) == (2, "refused", "InvalidArgument")
    assert failure.message.startswith("the input ends within this message, after 9 bytes of it")


def test_lines_without_a_key_are_counted() -> None:
    producer, tally = Producer(), Tally()
    form = LineFormat(topic="t", separator=":", may_lack_key=True)
    ProduceRun(producer, form, tally, None).send_all([b"0:a", b"b"])  # type: ignore[arg-type]
    assert (tally.acknowledged, tally.keyless, tally.size) == (2, 1, 2)


def test_a_pace_is_even() -> None:
    pace = LineRate(4, now=100.0)
    assert [pace.wait_s(100.0) for _ in range(4)] == [0.0, 0.25, 0.5, 0.75]


def test_waits_that_last_a_little_too_long_do_not_lower_the_rate() -> None:
    pace, now = LineRate(1_000, now=0.0), 0.0
    for _ in range(2_000):
        now += pace.wait_s(now) + 0.000_3
    assert now == pytest.approx(2.0, abs=0.01)


def test_no_burst_follows_a_pause() -> None:
    pace = LineRate(1_000, now=0.0)
    at_once = sum(pace.wait_s(5.0) == 0.0 for _ in range(1_000))
    assert at_once <= 12


def test_help_fits_into_80_columns() -> None:
    context = click.Context(produce, info_name="produce", terminal_width=80)
    assert max(map(len, produce.get_help(context).splitlines())) <= 80


def test_the_portion_of_a_regular_file_that_has_its_outcome(tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\nbcde\nf\n")
    tally = Tally()
    with (tmp_path / "lines").open("rb") as file:
        portion = portion_of(file, tally)
    assert portion is not None
    assert portion() == 0.0
    tally.begin(1, b"a")
    tally.begin(2, b"bcd")
    assert portion() == 0.0
    tally.ended(1, SendResult(0, 88, 1), None)
    assert portion() == pytest.approx(0.333, abs=0.01)
    assert portion_of(io.BytesIO(b"a"), tally) is None


class SilentFactory:
    """A factory whose ZooKeeper was lost when its session had begun: no call ends by itself."""

    def __init__(self, _config: object) -> None:
        self.shut = threading.Event()

    def __enter__(self) -> "SilentFactory":
        return self

    def __exit__(self, *_: object) -> None:
        self.shut.set()

    def get_partitions_for_topic(self, _topic: str) -> list[Any]:
        assert self.shut.wait(60)
        raise InvalidState("the factory is shut down")


def test_a_wait_for_zookeeper_before_the_first_line_counts_as_its_time_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vq.cli.messages.produce.MessageFactory", SilentFactory)
    arguments = ["orders", "--timeout", "0.05", "--json"]
    with pytest.raises(NotSent, match=r"within 0.05 s.*no line was read, and nothing was sent"):
        produce.main(arguments, standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert [told[each] for each in ("sent", "acknowledged", "refused", "unknown")] == [0] * 4


def test_an_interrupt_before_the_first_line_says_that_nothing_was_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here a thread raises the signal while the command waits for ZooKeeper."""

    class Interrupting(SilentFactory):
        def get_partitions_for_topic(self, topic: str) -> list[Any]:
            os.kill(os.getpid(), signal.SIGINT)
            return super().get_partitions_for_topic(topic)

    monkeypatch.setattr("vq.cli.messages.produce.MessageFactory", Interrupting)
    with pytest.raises((KeyboardInterrupt, click.Abort)):
        produce.main(["orders"], standalone_mode=False)
    told = capsys.readouterr()
    assert "interrupted before a line was read; nothing was sent" in told.err
    fields = dict(line.split() for line in told.out.splitlines())
    assert [fields[each] for each in ("acknowledged", "refused", "unknown")] == ["0"] * 3
