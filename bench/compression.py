"""The cost of compressing one message, without a broker: kinds, levels, sizes and contents.

    python -m bench.compression

For each content and size: the ratio (bytes before / bytes after), and microseconds of processor
time per message to compress and to decompress. The levels that vq uses go through its own code; the
others through the libraries. Takes half a minute.
"""

import sys
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import zstandard

from bench.contents import KINDS
from bench.figures import markdown_table, shown
from vq.store.records.compression import compress, decompress
from vq.store.records.format import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD

_SIZES: Final = {128: 64, 1024: 64, 64 * 1024: 16, 1024 * 1024: 4}  # size: different messages
_MEASURE_S: Final = 0.05
_TRIES: Final = 5

Work = Callable[[bytes], bytes]


def ways() -> dict[str, tuple[Work, Work]]:
    """Return, per name, the functions that compress and decompress."""
    found: dict[str, tuple[Work, Work]] = {}
    for name, kind in (
        ("zlib 1", COMPRESSION_ZLIB),
        ("zstd 1", COMPRESSION_ZSTD),
        ("lz4", COMPRESSION_LZ4),
    ):
        found[name] = partial(compress, kind=kind), partial(decompress, kind=kind)
    found["zlib 6"] = partial(zlib.compress, level=6), partial(decompress, kind=COMPRESSION_ZLIB)
    for level in (3, 6):
        worker = zstandard.ZstdCompressor(level=level)
        found[f"zstd {level}"] = worker.compress, partial(decompress, kind=COMPRESSION_ZSTD)

    def with_new_context(payload: bytes) -> bytes:
        return zstandard.ZstdCompressor(level=1).compress(payload)

    found["zstd 1, new context"] = with_new_context, partial(decompress, kind=COMPRESSION_ZSTD)
    return found


def cost_us(work: Work, inputs: Sequence[bytes]) -> float:
    """Return the processor time of one call: the best of some tries."""
    best = float("inf")
    for _ in range(_TRIES):
        calls, begin = 0, time.thread_time()
        while (took := time.thread_time() - begin) < _MEASURE_S:
            for each in inputs:
                work(each)
            calls += len(inputs)
        best = min(best, took / calls)
    return best * 1e6


def main() -> int:
    """Print a table per size."""
    for size, count in _SIZES.items():
        lines = []
        for name, (squeeze, expand) in ways().items():
            line = [name]
            for make in KINDS.values():
                inputs = [make(seed, size) for seed in range(count)]
                outputs = [squeeze(each) for each in inputs]
                ratio = size * count / sum(map(len, outputs))
                line.append(
                    f"{ratio:.2f} {shown(cost_us(squeeze, inputs))} "
                    f"{shown(cost_us(expand, outputs))}"
                )
            lines.append(line)
        print(f"\n{size} bytes: ratio, µs to compress, µs to decompress\n")
        print(markdown_table(("", *KINDS), lines), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
