"""Frames as properties: whatever is encoded comes out again, in whatever chunks it travels."""

from hypothesis import given
from hypothesis import strategies as st

from vq.remoting.frames import Frame, FrameParser, encode_frame

u8 = st.integers(0, 0xFF)
u16 = st.integers(0, 0xFFFF)
u32 = st.integers(0, 0xFFFF_FFFF)
bodies = st.one_of(
    st.binary(max_size=200),
    st.integers(0, 30_000).map(lambda size: b"0123456789" * (size // 10)),
    st.integers(30_000, 300_000).map(lambda size: b"0123456789" * (size // 10)),
)
frames = st.builds(Frame, u16, u16, u32, u8, st.binary(max_size=300), bodies)
chunk_sizes = st.lists(st.integers(1, 9_000), min_size=1, max_size=20)


def encoded(frame: Frame) -> bytes:
    """The frame's bytes."""
    command, status, correlation_id, flags, header, body = frame
    return encode_frame(command, status, correlation_id, flags, header, len(body)) + body


def chunks(data: bytes, sizes: list[int]) -> list[bytes]:
    """``data`` cut into pieces of these sizes, over and over."""
    out, position, turn = [], 0, 0
    while position < len(data):
        size = sizes[turn % len(sizes)]
        out.append(data[position : position + size])
        position, turn = position + size, turn + 1
    return out


@given(st.lists(frames, max_size=8), chunk_sizes, st.lists(st.booleans(), min_size=1, max_size=9))
def test_chunks_do_not_matter(sent: list[Frame], sizes: list[int], rooms: list[bool]) -> None:
    """The same frames in the same order, and nothing is left, in rooms or not."""
    parser = FrameParser()
    got = []
    stream = b"".join(map(encoded, sent))
    for turn, chunk in enumerate(chunks(stream, sizes)):
        room = parser.room if rooms[turn % len(rooms)] else None
        if room is not None:
            piece, chunk = chunk[: len(room)], chunk[len(room) :]
            room[: len(piece)] = piece
            got += parser.filled(len(piece))
        got += parser.feed(chunk)
    assert got == sent
    assert (parser.pending_bytes, parser.pending_frame, parser.frames) == (0, None, len(sent))


@given(st.lists(frames, min_size=1, max_size=4), st.data())
def test_a_cut_stream_gives_the_whole_frames_in_front_of_the_cut(
    sent: list[Frame], data: st.DataObject
) -> None:
    """And keeps the rest, with some room."""
    pieces = [encoded(frame) for frame in sent]
    stream = b"".join(pieces)
    cut = data.draw(st.integers(0, len(stream)), "cut")
    parser = FrameParser()
    got = parser.feed(stream[:cut])
    whole = len(b"".join(pieces[: len(got)]))
    assert got == sent[: len(got)]
    assert cut - whole <= parser.pending_bytes <= 4 * (cut - whole) + 20 + 300
    assert (parser.pending_frame is None) == (cut == whole)
    assert got + parser.feed(stream[cut:]) == sent
