"""Compresses messages: which ones, how, and what is stored if that does not make them smaller.

The kind and the threshold come from the producer's settings, else from the topic's. This runs in
the thread that sends, after the size was checked and before the message takes buffer space.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from vq import limits
from vq.client.config import ProducerConfig
from vq.model import Compression, TopicSettings
from vq.store.records.compression import compress
from vq.store.records.format import (
    COMPRESSION_LZ4,
    COMPRESSION_NONE,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
    FLAG_COMPRESSION_SHIFT,
)

#: Takes the bytes of a content and those to store.
Count = Callable[[int, int], object]


def _ignore(before: int, after: int) -> None:
    """Count nothing."""


_KINDS: Final[Mapping[str, int]] = {
    Compression.NONE: COMPRESSION_NONE,
    Compression.ZLIB: COMPRESSION_ZLIB,
    Compression.ZSTD: COMPRESSION_ZSTD,
    Compression.LZ4: COMPRESSION_LZ4,
}


@dataclass(frozen=True, slots=True)
class Compressor:
    """The stage ``compress`` of one topic. Any thread, several at once.

    Attributes:
        kind: One of ``format.COMPRESSION_*``.
        threshold: Least bytes of a content that is compressed.
        count: Called for each content that is compressed, with its bytes and those to store.
    """

    kind: int
    threshold: int
    count: Count = field(default=_ignore, compare=False)

    def __call__(self, content: bytes) -> tuple[int, bytes]:
        """Return flag bits of the record, and the bytes to store.

        No bits and the content itself, if it is below the threshold or would not get smaller.
        """
        if len(content) >= self.threshold:
            compressed = compress(content, self.kind)
            self.count(len(content), min(len(content), len(compressed)))
            if len(compressed) < len(content):
                return self.kind << FLAG_COMPRESSION_SHIFT, compressed
        return 0, content


def compressor_of(
    config: ProducerConfig, settings: TopicSettings, *, count: Count = _ignore
) -> Compressor | None:
    """Return the compressor of a producer for a topic; None: nothing is compressed.

    Kind and threshold are two settings: a producer may take one of them from the topic.
    """
    kind = _KINDS[config.compression or settings.compression or Compression.NONE]
    if kind == COMPRESSION_NONE:
        return None
    for threshold in (config.compression_threshold, settings.compression_threshold):
        if threshold is not None:
            return Compressor(kind, threshold, count)
    return Compressor(kind, limits.COMPRESSION_THRESHOLD_BYTES, count)
