"""Frames: cut from a stream in any chunks, bounded, and refused when they are none."""

import itertools
import sys
import tracemalloc
from collections.abc import Iterable

import pytest

from vq import limits
from vq.errors import FrameTooLarge, InvalidArgument, ProtocolError, UnsupportedVersion
from vq.remoting import frames, room
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


def receive(parser: FrameParser, data: bytes, sizes: Iterable[int], *, rooms: int) -> list[Frame]:
    """Receive ``data`` in chunks; 1: into rooms where there are some, 0: never, 2: every other."""
    got, at = [], 0
    for turn, size in enumerate(sizes):
        place = parser.room if rooms and (rooms == 1 or turn % 2) else None
        chunk = data[at : at + (size if place is None else min(size, len(place)))]
        if not chunk:
            break
        if place is None:
            got += parser.feed(chunk)
        else:
            place[: len(chunk)] = chunk
            got += parser.filled(len(chunk))
        at += len(chunk)
    assert at == len(data)
    return got


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


@pytest.fixture(params=["compiled", "python"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Which twin makes rooms."""
    if request.param == "python":
        monkeypatch.setattr(frames, "new_room", room.python_new_room)
        monkeypatch.setattr(frames, "contents", room.python_contents)
    elif room.new_room is room.python_new_room:
        pytest.skip("nothing compiled it")
    return str(request.param)


@pytest.mark.parametrize("rooms", [0, 1, 2])
@pytest.mark.parametrize("size", [1_000, 4_095, 4_096, 70_000, 262_144, 10**7])
def test_a_large_frame_is_gathered(size: int, rooms: int, kind: str) -> None:
    """Small and large chunks alike, in rooms or not; what follows in its chunk is parsed, too."""
    header = bytes(range(256)) * 40
    body = bytes(range(251)) * 12_000
    stream = frame_bytes(1) + frame_bytes(2, header, body) + frame_bytes(3)
    parser = FrameParser()
    got = receive(parser, stream, itertools.repeat(size), rooms=rooms)
    assert [frame.correlation_id for frame in got] == [1, 2, 3]
    assert got[1].header == header
    assert got[1].body == body
    assert all(type(frame.body) is bytes for frame in got)
    assert (parser.frames, parser.pending_frame, parser.pending_bytes, parser.room) == (
        *(3, None, 0, None),
    )


def test_a_large_frame_cut_at_any_byte(kind: str) -> None:
    """In three pieces, the second one in a room if there is one; all of them come out the same."""
    body = bytes(range(251)) * 400
    stream = frame_bytes(1) + frame_bytes(2, b"h" * 300, body) + frame_bytes(3)
    whole = FrameParser().feed(stream)
    assert [len(each.body) for each in whole] == [4, len(body), 4]
    near = [*range(700), *range(32_500, 33_500), *range(len(stream) - 200, len(stream))]
    for first in near:
        for second in (1, 31, 40_000, len(stream)):
            sizes = itertools.chain((first or 1, second), itertools.repeat(len(stream)))
            assert receive(FrameParser(), stream, sizes, rooms=1) == whole


def test_a_frame_takes_at_most_four_times_what_has_come() -> None:
    """However large it says that it is; and in front of its room little more than what has come."""
    parser = FrameParser()
    stream = prefix(length=limits.FRAME_BYTES_MAX - 4) + bytes(3_000_000)
    for at in range(0, len(stream), 10_007):
        parser.feed(stream[at : at + 10_007])
        came = min(len(stream), at + 10_007)
        assert came <= parser.pending_bytes <= 4 * came + PREFIX_BYTES
        assert parser.missing_bytes == limits.FRAME_BYTES_MAX - came


@pytest.mark.parametrize("rooms", [0, 1, 2])
def test_bytes_that_there_is_no_room_for_are_kept_as_they_come(rooms: int) -> None:
    """Whether there was room for some of them before, or there is for the last ones."""
    left = iter([10**9, 0, 0, 0, 0, 10**9])
    parser = FrameParser(room_left=lambda: next(left, 0))
    body = bytes(range(251)) * 4_000
    stream = frame_bytes(1, b"head", body) + frame_bytes(2)
    got = receive(parser, stream[:600_000], itertools.repeat(50_000), rooms=rooms)
    assert not got
    exact = FrameParser(room_left=lambda: 0)
    exact.feed(stream[:600_000])
    assert (exact.pending_bytes, exact.room) == (600_000, None)
    got = receive(parser, stream[600_000:], itertools.repeat(50_000), rooms=rooms)
    assert [len(each.body) for each in got] == [len(body), 4]
    assert got[0].body == body
    assert exact.feed(stream[600_000:]) == got


def test_a_dropped_frame_has_no_room_any_more() -> None:
    """What it took is free."""
    parser = FrameParser()
    parser.feed(frame_bytes(body=bytes(300_000))[:100_000])
    assert parser.room is not None
    parser.drop()
    assert (parser.room, parser.pending_bytes, parser.pending_frame) == (None, 0, None)


def test_a_body_that_was_received_in_its_room_is_not_copied() -> None:
    """Its bytes are where the transport has put them."""
    if room.new_room is room.python_new_room:
        pytest.skip("only the compiled twin can")
    parser = FrameParser()
    stream = frame_bytes(body=bytes(1_000_000))
    parser.feed(stream[:300_000])
    view = parser.room
    assert view is not None
    view[:] = stream[300_000:]
    tracemalloc.start()
    (frame,) = parser.filled(len(view))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert frame.body == bytes(1_000_000)
    assert taken < 10_000


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
    got = parser.feed(frame_bytes(1) + frame_bytes(2) + b"garbage, twenty bytes or more")
    assert [frame.correlation_id for frame in got] == [1, 2]
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
