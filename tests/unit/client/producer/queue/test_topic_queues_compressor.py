"""Which messages are compressed, and whose settings count."""

import random

import pytest
from support.queues import meter_of

from vq import limits
from vq.client.config import ProducerConfig
from vq.client.producer.queue.topic_queues import Compressor, compressor_of
from vq.model import Compression, TopicSettings
from vq.store.records.compression import decompress
from vq.store.records.format import (
    COMPRESSION_LZ4,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    FLAG_COMPRESSION_SHIFT,
)

NUMBERS = {"zlib": COMPRESSION_ZLIB, "zstd": COMPRESSION_ZSTD, "lz4": COMPRESSION_LZ4}
TEXT = b"a line of a log, " * 20


@pytest.mark.parametrize("name", NUMBERS)
def test_a_message_is_stored_smaller_and_its_flag_says_how(name: str) -> None:
    flag, stored = Compressor(NUMBERS[name], 0, meter_of())(TEXT)
    assert flag == NUMBERS[name] << FLAG_COMPRESSION_SHIFT
    assert len(stored) < len(TEXT)
    assert decompress(stored, NUMBERS[name]) == TEXT


@pytest.mark.parametrize("kind", NUMBERS.values())
@pytest.mark.parametrize("content", [b"", b"x", random.Random(1).randbytes(5_000)], ids=len)
def test_what_does_not_get_smaller_is_stored_as_it_is(kind: int, content: bytes) -> None:
    flag, stored = Compressor(kind, 0, meter_of())(content)
    assert flag == 0
    assert stored is content


def test_a_small_message_is_stored_compressed_if_it_saves_an_eighth() -> None:
    compressor = Compressor(COMPRESSION_ZSTD, 0, meter_of())
    noise = random.Random(1).randbytes(2_000)
    for size in (128, 1_000):
        enough = size // 8 + 16  # what a frame has beside its content
        flag, stored = compressor(noise[: size - enough] + bytes(enough + 16))
        assert flag
        assert len(stored) <= size + 16 - (size + 16) // 8
        flag, _ = compressor(noise[: size - enough + 20] + bytes(enough - 20))
        assert not flag
    flag, stored = compressor(noise[:1_000] + bytes(30))  # a larger one only has to get smaller
    assert flag
    assert len(stored) > 900


def test_the_threshold_is_the_smallest_message_that_is_compressed() -> None:
    compressor = Compressor(COMPRESSION_ZSTD, 100, meter_of())
    assert compressor(b"a" * 99) == (0, b"a" * 99)
    flag, stored = compressor(b"a" * 100)
    assert flag
    assert len(stored) < 100


@pytest.mark.parametrize(
    ("own", "of_topic", "kind"),
    [
        (None, None, None),
        (None, "none", None),
        (None, "zstd", "zstd"),
        ("lz4", None, "lz4"),
        ("lz4", "zstd", "lz4"),
        ("lz4", "none", "lz4"),
        ("none", "zstd", None),
        ("none", None, None),
    ],
)
def test_the_producers_own_kind_comes_before_the_topics(
    own: str | None, of_topic: str | None, kind: str | None
) -> None:
    made = compressor_of(
        ProducerConfig(compression=own), TopicSettings(compression=of_topic), meter_of()
    )
    assert made == (kind and Compressor(NUMBERS[kind], 128 * limits.KIB, meter_of()))


@pytest.mark.parametrize(
    ("own", "of_topic", "threshold"),
    [(None, None, 131_072), (None, 0, 0), (None, 9, 9), (5, None, 5), (5, 9, 5), (0, 9, 0)],
)
def test_the_producers_own_threshold_comes_before_the_topics(
    own: int | None, of_topic: int | None, threshold: int
) -> None:
    """Each setting for itself: the kind may be the topic's and the threshold the producer's."""
    settings = TopicSettings(compression="zlib", compression_threshold=of_topic)
    made = compressor_of(ProducerConfig(compression_threshold=own), settings, meter_of())
    assert made == Compressor(COMPRESSION_ZLIB, threshold, meter_of())


def test_there_is_a_number_for_each_kind() -> None:
    for kind in Compression:
        made = compressor_of(ProducerConfig(compression=kind), TopicSettings(), meter_of())
        assert (made is None) is (kind is Compression.NONE)
