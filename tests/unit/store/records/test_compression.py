"""Payloads come back, and no payload makes a reader allocate more than its bound."""

import contextlib
import functools
import subprocess
import sys
import threading
import tracemalloc
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import lz4.frame
import pytest
import zstandard

from vq import limits
from vq.errors import CorruptData, InvalidArgument
from vq.store.records import compression
from vq.store.records.compression import compress, python_decompress
from vq.store.records.format import (
    COMPRESSION_LZ4,
    COMPRESSION_NONE,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    COMPRESSIONS,
)

KINDS = [COMPRESSION_ZLIB, COMPRESSION_ZSTD, COMPRESSION_LZ4]
TEXT = b"again and again " * 100
CONTENTS = [b"", b"x", TEXT, bytes(range(256)), bytes(limits.MESSAGE_BYTES_MAX)]
GOLDEN = {
    COMPRESSION_ZLIB: "78014b4c4fcccc5348cc4b514884b0e8cc070049e52c99",
    COMPRESSION_ZSTD: "28b52ffd2080ad000050616761696e20616e64200300666682140c9a1524",
    COMPRESSION_LZ4: "04224d18684080"
    "000000000000007d17000000a3616761696e20616e64200a000f100057506761696e2000000000",
}
#: A thousand and more times larger than it is.
BOMB_BYTES = 64 * limits.MIB
SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"

decompress = compression.decompress


@pytest.fixture(autouse=True, params=["python", "compiled"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each test has both: the packages for Python, and the system's libraries before them."""
    taken = python_decompress if request.param == "python" else compression.decompress
    monkeypatch.setattr(sys.modules[__name__], "decompress", taken)
    way: str = request.param
    return way


def bomb(kind: int) -> bytes:
    """Return a stream that is much smaller than its content."""
    content = bytes(BOMB_BYTES)
    if kind == COMPRESSION_ZLIB:
        return zlib.compress(content, 9)
    if kind == COMPRESSION_ZSTD:
        return zstandard.ZstdCompressor(level=1).compress(content)
    return bytes(lz4.frame.compress(content, store_size=False))


def zstd_frame(content: bytes, stated: int, *, checksum: bool = False) -> bytes:
    """Return a zstd frame of a stored block whose header states any content size up to 2**32."""
    header = bytes([0b1010_0000 | checksum << 2]) + stated.to_bytes(4, "little")
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    return b"\x28\xb5\x2f\xfd" + header + block


def zstd_runs(stated: int, blocks: int) -> bytes:
    """Return a zstd frame of so many runs of 128 KiB, 4 bytes each, with any content size."""
    frame = zstd_frame(b"", stated)[:9]
    run = (128 * limits.KIB << 3 | 1 << 1).to_bytes(3, "little") + b"z"
    last = (128 * limits.KIB << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"z"
    return frame + run * (blocks - 1) + last


@pytest.mark.parametrize("content", CONTENTS, ids=len)
@pytest.mark.parametrize("kind", COMPRESSIONS)
def test_content_comes_back(kind: int, content: bytes) -> None:
    assert decompress(compress(content, kind), kind, len(content)) == content


@pytest.mark.parametrize("kind", KINDS)
def test_these_bytes_are_read_for_ever(kind: int) -> None:
    """They are on disk; a later version of a library may write others."""
    assert decompress(bytes.fromhex(GOLDEN[kind]), kind) == b"again and again " * 8


@pytest.mark.parametrize("kind", KINDS)
def test_what_repeats_gets_smaller(kind: int) -> None:
    assert len(compress(TEXT, kind)) < len(TEXT) / 10


def test_what_other_writers_make_is_read() -> None:
    """Levels, checksums, block sizes and windows of other writers are theirs to choose."""
    for content in CONTENTS:
        for level in (-5, 3, 19):
            worker = zstandard.ZstdCompressor(level=level, write_checksum=True)
            assert decompress(worker.compress(content), COMPRESSION_ZSTD) == content
        for block_size in (lz4.frame.BLOCKSIZE_MAX64KB, lz4.frame.BLOCKSIZE_MAX1MB):
            frame = lz4.frame.compress(
                content,
                block_size=block_size,
                compression_level=9,
                content_checksum=True,
                block_checksum=True,
                block_linked=False,
                store_size=False,
            )
            assert decompress(frame, COMPRESSION_LZ4) == content
        assert decompress(zlib.compress(content, 9), COMPRESSION_ZLIB) == content


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("content", CONTENTS[:4], ids=len)
def test_a_payload_is_one_whole_stream(kind: int, content: bytes) -> None:
    """Cut off at any byte, followed by a byte or by another stream, it is damage."""
    stream = compress(content, kind)
    bad = [stream[:size] for size in range(len(stream))]
    bad += [stream + b"\0", stream + stream, stream + compress(b"", kind), b"no stream at all"]
    for payload in bad:
        with pytest.raises(CorruptData, match=f"payload of {len(payload)} bytes"):
            decompress(payload, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_altered_bytes_never_raise_anything_else(kind: int) -> None:
    """Not every kind has a checksum: an altered payload is damage, or it has another content."""
    stream = compress(TEXT, kind)
    for at in range(len(stream)):
        for mask in (0x01, 0x80, 0xFF):
            altered = bytearray(stream)
            altered[at] ^= mask
            try:
                assert len(decompress(bytes(altered), kind, 4096)) <= 4096
            except CorruptData:
                pass


@pytest.mark.skipif(compression._codec is None, reason="it was not compiled here")
@pytest.mark.parametrize("kind", KINDS)
def test_the_systems_library_takes_no_more_than_the_package(kind: int) -> None:
    """Wherever a stream ends, and whatever one byte of it becomes.

    Versions of a library differ in which altered streams they notice; contents do not differ.
    """
    stream = compress(bytes(range(64)) + TEXT[:150], kind)
    altered = [
        stream[:at] + bytes([stream[at] ^ mask]) + stream[at + 1 :]
        for at in range(len(stream))
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255)
    ]
    ended = [stream + b"x", stream + stream, SKIPPABLE + stream, stream + SKIPPABLE]
    ended += [stream[:end] for end in range(len(stream))]
    for payload in ended:
        assert compression._codec.decompress(payload, kind) is None
    taken = 0
    for payload in [stream, *altered]:
        content = compression._codec.decompress(payload, kind)
        if content is not None:
            taken += 1
            with contextlib.suppress(CorruptData):
                assert python_decompress(payload, kind) == content
    assert taken or not is_here(kind)


def is_here(kind: int) -> bool:
    """Whether the system has the library of a kind."""
    return compression._codec.decompress(compress(b"x" * 99, kind), kind) is not None


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_exact(kind: int) -> None:
    """As many bytes as the bound are taken, one more is damage."""
    payload = compress(bytes(100), kind)
    assert decompress(payload, kind, 100) == bytes(100)
    with pytest.raises(CorruptData, match=r"more than 99"):
        decompress(payload, kind, 99)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        *((kind, functools.partial(bomb, kind)) for kind in KINDS),
        (COMPRESSION_ZSTD, lambda: zstd_runs(BOMB_BYTES, BOMB_BYTES >> 17)),
        (COMPRESSION_ZSTD, lambda: zstd_runs(limits.MIB, BOMB_BYTES >> 17)),
        (COMPRESSION_ZSTD, lambda: zstd_runs(limits.MIB, 1)),
        (COMPRESSION_ZSTD, lambda: zstd_runs(2**32 - 1, 1)),
        (COMPRESSION_ZSTD, lambda: zstd_runs(0, BOMB_BYTES >> 17)),
        (COMPRESSION_LZ4, lambda: bomb(COMPRESSION_LZ4)[:-4]),
    ],
    ids=[
        "zlib",
        "zstd",
        "lz4",
        "zstd of runs",
        "zstd, states less",
        "zstd, states more",
        "zstd, states 4 GiB",
        "zstd, states nothing",
        "lz4 without an end",
    ],
)
def test_a_bomb_does_not_go_off(kind: int, make: Callable[[], bytes]) -> None:
    """Whatever a payload states of its content, a reader allocates about its bound."""
    bytes_max, payload = limits.MESSAGE_BYTES_MAX, make()
    decompress(compress(b"x", kind), kind)  # imports what is needed
    tracemalloc.start()
    try:
        with pytest.raises(CorruptData):
            decompress(payload, kind, bytes_max)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * bytes_max + 256 * limits.KIB


def test_lz4_that_lies_about_its_content_size_is_damage() -> None:
    frame = bytearray(lz4.frame.compress(bytes(1000), store_size=True))
    for stated in (1, 999, 1001, 1 << 20, 1 << 40):
        frame[6:14] = stated.to_bytes(8, "little")
        frame[14] = _lz4_header_checksum(bytes(frame[4:14]))
        with pytest.raises(CorruptData, match=r"damaged|more than"):
            decompress(bytes(frame), COMPRESSION_LZ4)


def _lz4_header_checksum(descriptor: bytes) -> int:
    """Find the second byte of the xxh32 by asking the library: it refuses all but one value."""
    for value in range(256):
        try:
            lz4.frame.get_frame_info(b"\x04\x22\x4d\x18" + descriptor + bytes([value]) + bytes(16))
        except RuntimeError:
            continue
        return value
    raise AssertionError


def test_an_lz4_frame_of_4_mib_blocks_is_refused() -> None:
    """Its reader would hold two blocks."""
    frame = lz4.frame.compress(
        bytes(range(256)) * 20_000, block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=False
    )
    with pytest.raises(CorruptData, match="blocks have 4 MiB, more than 1 MiB"):
        decompress(frame, COMPRESSION_LZ4)


def test_a_zstd_frame_states_its_content_size() -> None:
    """So a reader knows what to allocate; without it, a window would come on top."""
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(TEXT)
    with pytest.raises(CorruptData, match="does not state its content size"):
        decompress(frame, COMPRESSION_ZSTD)


def test_a_zstd_frame_needs_no_dictionary() -> None:
    words = zstandard.ZstdCompressionDict(TEXT, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    trained = zstandard.train_dictionary(1024, [TEXT[:99] + bytes([n]) * 9 for n in range(200)])
    frame = zstandard.ZstdCompressor(dict_data=trained).compress(TEXT)
    with pytest.raises(CorruptData, match=f"needs dictionary {trained.dict_id()}"):
        decompress(frame, COMPRESSION_ZSTD)
    frame = zstandard.ZstdCompressor(dict_data=words).compress(TEXT)  # it does not say that
    with pytest.raises(CorruptData, match="damaged"):
        decompress(frame, COMPRESSION_ZSTD)


@pytest.mark.parametrize("kind", [COMPRESSION_ZSTD, COMPRESSION_LZ4])
def test_a_skippable_frame_is_no_payload(kind: int) -> None:
    """Neither alone nor in front of a frame."""
    for payload in (SKIPPABLE, SKIPPABLE + compress(TEXT, kind)):
        with pytest.raises(CorruptData, match="is no"):
            decompress(payload, kind)


@pytest.mark.parametrize("kind", [4, 7, -1])
def test_other_kinds_are_unknown(kind: int) -> None:
    """The error names those that are known."""
    known = r"known: 0 \(none\), 1 \(zlib\), 2 \(zstd\), 3 \(lz4\)"
    with pytest.raises(CorruptData, match=f"compression {kind} is unknown; {known}"):
        decompress(b"x", kind)
    with pytest.raises(InvalidArgument, match=known):
        compress(b"x", kind)


def test_nothing_is_done_without_compression() -> None:
    assert compress(TEXT, COMPRESSION_NONE) is TEXT
    assert decompress(TEXT, COMPRESSION_NONE, 1) is TEXT


@pytest.mark.parametrize("kind", KINDS)
def test_threads_do_not_share_a_context(kind: int) -> None:
    """They compress and decompress at a time, while the library has released the lock."""
    threads = 4
    together = threading.Barrier(threads)

    def work(seed: int) -> int:
        contents = [bytes([seed, number % 251]) * 50_000 for number in range(100)]
        together.wait()
        return sum(decompress(compress(each, kind), kind) == each for each in contents)

    with ThreadPoolExecutor(threads) as pool:
        assert list(pool.map(work, range(threads))) == [100] * threads


def test_the_packages_are_imported_at_first_use() -> None:
    """A client that meets no compressed message does not pay for them."""
    code = (
        "import sys, vq\n"
        "from vq.client.reading import decode\n"
        "from vq.store.records.compression import compress, decompress\n"
        "decompress(compress(b'x', 1), 1)\n"
        "assert not {'zstandard', 'lz4'} & sys.modules.keys()\n"
        "for kind, name in ((2, 'zstandard'), (3, 'lz4')):\n"
        "    compress(b'x', kind)\n"
        "    assert name in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
