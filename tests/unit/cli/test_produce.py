"""Lines become messages, and outcomes are counted by kind."""

import io

import pytest

from vq.cli.produce import (
    LINE_BYTES_MAX,
    LongLine,
    OnePartition,
    Pace,
    Tally,
    headers_of,
    lines_of,
    message_of,
    partitioner_of,
)
from vq.client.producer.partitioner import TopicPartitions
from vq.errors import DiskFull, InvalidArgument, TimedOut
from vq.model import DivertedResult, Key, Message, SendResult


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"one", [b"one"]),
        (b"one\n", [b"one"]),
        (b"one\n\ntwo\r\n", [b"one", b"", b"two\r"]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
def test_a_line_is_what_stands_before_a_newline(data: bytes, lines: list[bytes]) -> None:
    assert list(lines_of(io.BytesIO(data))) == lines


@pytest.mark.parametrize("end", [b"", b"\n", b"\nnext", b"\nnext\n"])
@pytest.mark.parametrize("more", [0, 1, 2, LINE_BYTES_MAX, 3 * LINE_BYTES_MAX])
def test_a_line_that_no_message_holds_is_counted_and_not_kept(end: bytes, more: int) -> None:
    """/dev/zero has no newline: reading it as one line took all the memory there was."""
    size = LINE_BYTES_MAX + more
    first, *others = lines_of(io.BytesIO(b"x" * size + end))
    assert first == (LongLine(size) if more else b"x" * size)
    assert others == ([b"next"] if b"next" in end else [])


@pytest.mark.parametrize(
    ("line", "separator", "content", "key"),
    [
        (b"k:v:w", None, b"k:v:w", None),
        (b"k:v:w", ":", b"v:w", "k"),
        (b"no key", ":", b"no key", None),
        (b":v", ":", b"v", ""),
        (b"k\xffv", "\udcff", b"v", "k"),  # how an argument arrives that is not UTF-8
    ],
)
def test_the_key_is_the_text_before_the_first_separator(
    line: bytes, separator: str | None, content: bytes, key: str | None
) -> None:
    made = message_of("t", line, tag="x", key=None, separator=separator)
    assert made == Message("t", content, tag="x", key=key)


@pytest.mark.parametrize(
    ("line", "key_type", "key"),
    [
        (b"1001:x", "text", "1001"),
        (b"1001:x", "int", 1001),
        (b"-7:x", "int", -7),
        (b"00fF:x", "hex", b"\x00\xff"),
        (b":x", "hex", b""),
    ],
)
def test_the_type_of_a_key_is_chosen(line: bytes, key_type: str, key: Key) -> None:
    made = message_of("t", line, tag=None, key=None, separator=":", key_type=key_type)
    assert (made.key, type(made.key)) == (key, type(key))


@pytest.mark.parametrize(
    ("line", "key_type", "wanted"),
    [
        (b"x:", "int", "key 'x' is not an integer"),
        (b":", "int", "key '' is not an integer"),
        (b"\xff:", "int", "is not an integer"),
        (b"f:", "hex", "key 'f' is not bytes as hexadecimal digits"),
    ],
)
def test_a_key_of_another_type_is_refused(line: bytes, key_type: str, wanted: str) -> None:
    with pytest.raises(InvalidArgument, match=wanted):
        message_of("t", line, tag=None, key=None, separator=":", key_type=key_type)


def test_partitioners() -> None:
    assert partitioner_of("key", None) is None  # the producer's own way
    assert partitioner_of("round-robin", None) == "round-robin"
    assert isinstance(partitioner_of("key", 4), OnePartition)
    message = Message("t", b"x", key="a")
    assert OnePartition(4).choose(message, TopicPartitions("t", 5, ())) == 4
    with pytest.raises(InvalidArgument, match=r"partition 5 is outside \[0, 5\)"):
        OnePartition(5).choose(message, TopicPartitions("t", 5, ()))


def test_outcomes_are_counted_by_kind_and_the_first_errors_are_kept() -> None:
    counted: list[int] = []
    tally = Tally(counted.append)
    tally.ended(1, SendResult(0, 88, 1), None)
    tally.ended(2, None, TimedOut("3 s"))
    for line in range(3, 20):
        tally.ended(line, None, DiskFull("90 %"))
    tally.ended(20, DivertedResult(1, 88, 1), None)
    assert (tally.acknowledged, tally.unknown, tally.refused) == (2, 1, 17)
    assert tally.diverted == 1
    assert tally.errors[:2] == ["line 2: TimedOut: 3 s", "line 3: DiskFull: 90 %"]
    assert len(tally.errors) == 5
    assert sum(counted) == 20


def test_headers_are_names_and_values() -> None:
    assert headers_of(()) is None
    assert headers_of(("a=1", "b=x=y", "c=")) == {"a": "1", "b": "x=y", "c": ""}
    made = message_of("t", b"k:v", tag=None, key=None, separator=":", headers={"a": "1"})
    assert made == Message("t", b"v", key="k", headers={"a": "1"})


@pytest.mark.parametrize(
    ("texts", "error"),
    [(("a",), "'a' is not NAME=VALUE"), (("=1",), "not NAME=VALUE"), (("a=1", "a=2"), "twice")],
)
def test_a_header_needs_a_name_of_its_own(texts: tuple[str, ...], error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        headers_of(texts)


def test_a_pace_is_even() -> None:
    pace = Pace(4, now=100.0)
    assert [pace.wait_s(100.0) for _ in range(4)] == [0.0, 0.25, 0.5, 0.75]


def test_waits_that_last_a_little_too_long_do_not_lower_the_rate() -> None:
    pace, now = Pace(1_000, now=0.0), 0.0
    for _ in range(2_000):
        now += pace.wait_s(now) + 0.000_3
    assert now == pytest.approx(2.0, abs=0.01)


def test_no_burst_follows_a_pause() -> None:
    pace = Pace(1_000, now=0.0)
    at_once = sum(pace.wait_s(5.0) == 0.0 for _ in range(1_000))
    assert at_once <= 12
