"""Frames: cut from a stream in any chunks, bounded, and refused when they are none."""

import itertools
import sys
import tracemalloc

import pytest

from vq import limits
from vq.errors import FrameTooLarge, InvalidArgument, ProtocolError, UnsupportedVersion
from vq.remoting.format import PREFIX, PREFIX_BYTES
from vq.remoting.frames import Frame, FrameParser, encode_frame


def frame_bytes(correlation_id: int = 1, header: bytes = b"head", body: bytes = b"body") -> bytes:
    """A whole frame of command 10."""
    return encode_frame(10, 0, correlation_id, 0, header, len(body)) + body


def prefix(
    length: int = 16, magic: bytes = b"vq\x01", header_bytes: int = 0, correlation_id: int = 9
) -> bytes:
    """Twenty bytes that may lie."""
    return PREFIX.pack(length, magic, 0, 10, 0, correlation_id, header_bytes)


def drip(parser: FrameParser, data: bytes) -> None:
    """Feed one byte at a time."""
    for byte in data:
        parser.feed(bytes([byte]))


STREAM = b"".join(
    frame_bytes(number, b"h" * (number % 5), b"b" * (number * 37 % 300)) for number in range(40)
)
FRAMES = [
    Frame(10, 0, number, 0, b"h" * (number % 5), b"b" * (number * 37 % 300)) for number in range(40)
]


def test_a_stream_in_one_chunk() -> None:
    """All frames come out, in order, and nothing is kept."""
    parser = FrameParser()
    assert parser.feed(STREAM) == FRAMES
    assert (parser.frames, parser.pending_frame, parser.pending_bytes) == (40, None, 0)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 19, 20, 21, 64, 255, 1_000])
def test_a_stream_in_chunks_of_any_size(size: int) -> None:
    """Byte by byte, and in pieces that cut prefixes, headers and bodies."""
    parser = FrameParser()
    chunks = (STREAM[start : start + size] for start in range(0, len(STREAM), size))
    assert list(itertools.chain.from_iterable(parser.feed(chunk) for chunk in chunks)) == FRAMES
    assert parser.frames == 40


@pytest.mark.parametrize("size", [1_000, 4_095, 4_096, 70_000, 262_144, 10**7])
def test_a_large_frame_is_gathered(size: int) -> None:
    """Small and large chunks alike; what follows it in the same chunk is parsed, too."""
    header = bytes(range(256)) * 40
    body = bytes(range(251)) * 12_000
    stream = frame_bytes(1) + frame_bytes(2, header, body) + frame_bytes(3)
    parser = FrameParser()
    frames = []
    for start in range(0, len(stream), size):
        frames += parser.feed(stream[start : start + size])
    assert [frame.correlation_id for frame in frames] == [1, 2, 3]
    assert frames[1].header == header
    assert frames[1].body == body
    assert all(type(frame.body) is bytes for frame in frames)


def test_an_empty_chunk_changes_nothing() -> None:
    """Before, inside and after a frame."""
    parser = FrameParser()
    data = frame_bytes()
    out = parser.feed(b"") + parser.feed(data[:5]) + parser.feed(b"") + parser.feed(data[5:30])
    out += parser.feed(b"") + parser.feed(data[30:]) + parser.feed(b"")
    assert len(out) == 1


def test_an_incomplete_frame_is_known_by_its_number() -> None:
    """It stays the same number while the frame drips in, and None when nothing has begun."""
    parser = FrameParser()
    data = frame_bytes()
    assert (parser.pending_frame, parser.pending_bytes) == (None, 0)
    parser.feed(data + data[:1])
    assert (parser.pending_frame, parser.pending_bytes) == (1, 1)
    parser.feed(data[1:25])
    assert (parser.pending_frame, parser.pending_bytes, parser.missing_bytes) == (1, 25, 3)
    parser.feed(data[25:])
    assert parser.pending_frame is None
    assert parser.missing_bytes == PREFIX_BYTES


def test_feeding_what_is_missing_never_goes_past_a_frame() -> None:
    """``missing_bytes`` at a time gives one frame at a time."""
    parser = FrameParser()
    position = 0
    for expected in FRAMES:
        out: list[Frame] = []
        while not out:
            missing = parser.missing_bytes
            out = parser.feed(STREAM[position : position + missing])
            position += missing
        assert out == [expected]


def test_a_frame_of_exactly_the_bound_passes_and_one_byte_more_does_not() -> None:
    """The bound counts the whole frame, prefix included."""
    data = frame_bytes(body=b"x" * 76)
    assert len(data) == 100
    assert len(FrameParser(100).feed(data)) == 1
    with pytest.raises(FrameTooLarge, match="frame of 100 bytes; at most 99") as caught:
        FrameParser(99).feed(data)
    assert caught.value.details == {"max_bytes": 99}


def test_the_bound_may_rise_between_two_calls() -> None:
    """As it does after HELLO."""
    parser = FrameParser(30)
    assert len(parser.feed(frame_bytes())) == 1
    parser.max_bytes = 1_000
    assert len(parser.feed(frame_bytes(body=b"x" * 500))) == 1


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", ProtocolError, r"b'/ '"),
        (bytes(20), ProtocolError, "magic|starts with"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20), ProtocolError, "speaks TLS"),
        (prefix(magic=b"vq\x02"), UnsupportedVersion, "version 2; this peer supports 1"),
        (prefix(magic=b"vq\x00"), UnsupportedVersion, "version 0"),
        (prefix(length=2**32 - 1), FrameTooLarge, "4294967299 bytes"),
        (prefix(length=15), ProtocolError, "length 15"),
        (prefix(length=0), ProtocolError, "length 0"),
        (prefix(length=20, header_bytes=5), ProtocolError, "header of 5 bytes"),
        (prefix(length=2**20, header_bytes=2**32 - 1), ProtocolError, "header of 4294967295"),
        (
            prefix(length=2 * limits.MIB, header_bytes=limits.FRAME_HEADER_BYTES_MAX + 1),
            ProtocolError,
            "at most 1048576",
        ),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, error: type[Exception], text: str) -> None:
    """With its own error, from the prefix alone, whole or byte by byte, and again ever after."""
    parser = FrameParser()
    with pytest.raises(error, match=text):
        parser.feed(data)
    with pytest.raises(error, match=text):
        parser.feed(frame_bytes())
    dripped = FrameParser()
    with pytest.raises(error, match=text):
        drip(dripped, data)
    assert dripped.pending_bytes == 0


def test_the_refused_frame_can_be_answered() -> None:
    """Command and correlation id are known whenever the magic is right."""
    parser = FrameParser(100)
    with pytest.raises(FrameTooLarge):
        parser.feed(prefix(length=1_000, correlation_id=77))
    assert parser.suspect == (10, 77)
    for strange in (bytes(20), b"GET / HTTP/1.1\r\nHost"):
        stranger = FrameParser()
        with pytest.raises(ProtocolError):
            stranger.feed(strange)
        assert stranger.suspect == (0, 0)


def test_frames_in_front_of_damage_are_not_lost() -> None:
    """They are returned; ``failure`` tells of the damage at once, and the next call raises it."""
    parser = FrameParser()
    frames = parser.feed(frame_bytes(1) + frame_bytes(2) + b"garbage, twenty bytes or more")
    assert [frame.correlation_id for frame in frames] == [1, 2]
    assert isinstance(parser.failure, ProtocolError)
    with pytest.raises(ProtocolError):
        parser.feed(b"")
    assert parser.frames == 2


def test_damage_behind_a_gathered_frame() -> None:
    """The gathered frame comes out first here, too."""
    parser = FrameParser()
    data = frame_bytes(5)
    assert parser.feed(data[:-1]) == []
    assert [frame.correlation_id for frame in parser.feed(data[-1:] + bytes(30))] == [5]
    assert parser.failure is not None


def test_an_announced_frame_takes_no_memory_before_it_arrives() -> None:
    """A thousand peers that announce 16 MiB each cost what they sent."""
    announcement = prefix(length=limits.FRAME_BYTES_MAX - 4)
    tracemalloc.start()
    parsers = [FrameParser() for _ in range(1_000)]
    for parser in parsers:
        parser.feed(announcement + b"x")
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 1_500_000


def test_dripped_bytes_take_little_more_memory_than_there_are() -> None:
    """One byte at a time: no object is kept for each."""
    parser = FrameParser()
    parser.feed(prefix(length=limits.FRAME_BYTES_MAX - 4))
    tracemalloc.start()
    drip(parser, bytes(20_000))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert parser.pending_bytes == 20_020
    assert taken < 50_000


def test_a_body_does_not_keep_its_chunk() -> None:
    """A small PUT that waits for a flush must not hold the 256 KiB it came in."""
    chunk = frame_bytes(body=b"small") * 1_000
    kept = FrameParser().feed(chunk)[0].body
    before = sys.getrefcount(chunk)
    assert (kept, before) == (b"small", sys.getrefcount(chunk))
    assert type(kept) is bytes


def test_a_frame_that_no_peer_would_take_is_not_encoded() -> None:
    """The caller learns it before anything is sent."""
    with pytest.raises(InvalidArgument, match="exceeds 16777216"):
        encode_frame(10, 0, 1, 0, b"", limits.FRAME_BYTES_MAX)
    with pytest.raises(InvalidArgument, match="header 1048577"):
        encode_frame(10, 0, 1, 0, bytes(limits.FRAME_HEADER_BYTES_MAX + 1))
    largest = limits.FRAME_BYTES_MAX - PREFIX_BYTES
    assert len(encode_frame(10, 0, 1, 0, b"", largest)) == PREFIX_BYTES


def test_a_frame_shows_sizes_not_contents() -> None:
    """Whatever a peer sent can be logged."""
    (frame,) = FrameParser().feed(frame_bytes(body=b"secret\n" * 1_000))
    assert "secret" not in repr(frame)
    assert "body=7000 bytes" in repr(frame)
