"""The printing listener: what was not printed does not count as consumed."""

import io
import json
import random
import time

import click
import pytest
from support.delivery import Told, endless

from vq.cli import main
from vq.cli.messages.consume import Enough, Printer, consume, form_of, hide_enough
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.failures import Failures
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.workers import Workers
from vq.client.consumer.troubles import Troubles
from vq.client.reading.chunk import Chunk
from vq.clock import ManualClock
from vq.model import Message, TopicPartition
from vq.store.records.record import encode_record
from vq.testing.waiting import WAIT_S, block_until

MESSAGE = Message(
    "t", b"a\xc3\xa9", tag="x", key="k", headers={"h": "1"}, partition=1, offset=88, next_offset=120
)


def test_messages_after_the_last_one_wanted_are_not_taken() -> None:
    stream = io.BytesIO()
    printer = Printer(stream, form_of(as_json=False, verbose=False, terminal=False), limit=2)
    printer(MESSAGE)
    assert not printer.ended.is_set
    printer(MESSAGE)
    assert printer.ended.is_set
    with pytest.raises(Enough):
        printer(MESSAGE)
    assert stream.getvalue() == b"a\xc3\xa9\n" * 2
    assert printer.count == 2


def test_a_reader_that_went_away_ends_it_and_the_message_is_not_consumed() -> None:
    class Gone(io.BytesIO):
        def flush(self) -> None:
            raise BrokenPipeError(32, "Broken pipe")

    printer = Printer(Gone(), form_of(as_json=False, verbose=False, terminal=False), limit=None)
    with pytest.raises(Enough):
        printer(MESSAGE)
    assert printer.ended.is_set
    assert isinstance(printer.failure, BrokenPipeError)


def test_waiting_ends_when_nothing_came_for_the_idle_time() -> None:
    printer = Printer(
        io.BytesIO(), form_of(as_json=False, verbose=False, terminal=False), limit=None
    )
    printer.last_at -= 100.0
    printer.wait(50.0)
    assert not printer.ended.is_set


def test_a_message_begins_the_idle_time_anew() -> None:
    printer = Printer(
        io.BytesIO(), form_of(as_json=False, verbose=False, terminal=False), limit=None
    )
    printer.last_at -= 100.0
    printer(MESSAGE)
    assert time.monotonic() - printer.last_at < 50.0


def test_messages_that_are_no_lines_of_text_are_told_at_once_and_counted() -> None:
    """``vq consume | vq produce`` makes several messages of one with newlines."""
    told: list[str] = []
    form = form_of(as_json=False, verbose=False, terminal=False)
    printer = Printer(io.BytesIO(), form, limit=None, warn=told.append)
    printer(MESSAGE)
    assert not told
    assert not printer.warning
    for content in (b"two\nlines", b"", b"\n", b"\xff", b"\xff\n"):
        printer(MESSAGE._replace(content=content))
    (warning,) = told
    assert warning.startswith("warning: the message at offset 88 of t-1 has a newline: ")
    assert "vq consume --json | vq produce --input json" in warning
    assert printer.warning == "warning: of 6 messages, 3 have newlines and 2 are not UTF-8"


def test_bytes_that_are_not_utf_8_are_told_of() -> None:
    told: list[str] = []
    form = form_of(as_json=False, verbose=False, terminal=False)
    printer = Printer(io.BytesIO(), form, limit=None, warn=told.append)
    printer(MESSAGE._replace(content=b"\xff"))
    assert told[0].startswith("warning: the message at offset 88 of t-1 is not UTF-8: ")


def test_forms() -> None:
    assert (
        form_of(as_json=False, verbose=True, terminal=False)(MESSAGE)
        == b"1\t88\t0\tx\tk\ta\xc3\xa9\n"
    )
    line = form_of(as_json=True, verbose=False, terminal=False)(MESSAGE)
    assert b'"offset": 88' in line
    assert '"content": "aé"'.encode() in line


@pytest.mark.parametrize("hidden", [False, True])
def test_only_the_log_lines_of_our_own_refusal_are_hidden(
    hidden: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Those that a delivery really writes when its listener raises."""
    errors: list[BaseException] = []

    def listener(_: Message) -> None:
        error = Enough() if hidden else ValueError()
        errors.append(error)
        raise error

    workers = Workers(1, name="test")
    told = Told()
    config = ConsumerConfig(group="g", retry_backoff=(60.0, 60.0))
    where = TopicPartition("t", 0)
    failures = Failures(where, "g", PolicyInForce(config), random.Random(0), lambda: 0)
    delivery = InTurn(
        where,
        0,
        listener,
        failures,
        hooks=told.hooks,
        executor=workers,
        permit=endless(),
        most=10,
    )
    record = encode_record(1, b"one")
    delivery.add(Chunk(0, len(record), record, None))
    block_until(lambda: told.errors)
    assert workers.close(WAIT_S)
    troubles = Troubles("g", "m", ManualClock())
    troubles.failed(where, 0, told.errors[0])
    troubles.over(where)
    assert caplog.records
    assert [hide_enough(record) for record in caplog.records] == [not hidden] * len(caplog.records)


def test_json_shows_every_field_already() -> None:
    with pytest.raises(click.UsageError, match="-v has no effect with --json"):
        consume.main(["t", "--group", "g", "-v", "--json"], standalone_mode=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--group g --last 3", "--last is for reading without a group"),
        ("--group g --follow", "--follow is for reading without a group"),
        ("--last 3 --since 5m", "--since and --last exclude one another"),
        ("--last 3 --from earliest", "--last and --from exclude one another"),
        ("--from latest", "--from latest has no effect without --follow"),
        ("--read-from any", "--read-from and --rack are for members of a group"),
        ("--format {key} --json", "--format and --json exclude one another"),
        ("--format {key} -v", "--format and -v exclude one another"),
        ("--format {nix}", "{nix} is none of {topic}"),
        ("--last 0", "--last"),
        ("--since yesterday", "is not a time like"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    arguments: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["consume", "t", *arguments.split()]) == 2
    assert said in json.loads(text_of(capsys, arguments))["message"]


def text_of(capsys: pytest.CaptureFixture[str], arguments: str) -> str:
    """Return what was said as JSON, whatever the form was."""
    said = capsys.readouterr().err
    return said if "--json" in arguments else json.dumps({"message": said})
