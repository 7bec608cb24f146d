"""What a node keeps of archives in memory: chunks, and errors that wait for whoever asks."""

import pytest

from vq.errors import CorruptData
from vq.store.archive.archived_file import ChunkCache


def test_errors_that_nobody_asks_for_are_bounded() -> None:
    """The latest are kept, and each is told once."""
    cache = ChunkCache()
    keys = [("digest", number) for number in range(10_000)]
    for key in keys:
        cache.fail(key, CorruptData(f"chunk {key[1]} is damaged"))
    kept = [key for key in keys if cache.has(key)]
    assert 1 < len(kept) < 1_000
    assert kept == keys[-len(kept) :]
    with pytest.raises(CorruptData, match="chunk 9999"):
        cache.get(keys[-1])
    assert cache.get(keys[-1]) is None
