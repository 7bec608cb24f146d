"""The checkpoint's bytes."""

import pytest

from vq.errors import CorruptData
from vq.store.checkpoint import Checkpoint

FULL = Checkpoint(
    topic_id="täpic",
    start_offset=10,
    offset=2**63,
    start_messages=3,
    messages=400,
    append_time_ms=1_750_000_000_000,
    epoch=9,
    sealed=True,
    index=b"index",
    producers=b"producers",
)


def test_bytes_come_back() -> None:
    """Every field, and the least there can be."""
    least = Checkpoint(topic_id="", start_offset=0, offset=0)
    for checkpoint in (FULL, least):
        assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


def test_damage_is_noticed() -> None:
    """Any cut, any flipped bit, anything appended."""
    data = FULL.to_bytes()
    for size in range(len(data)):
        with pytest.raises(CorruptData):
            Checkpoint.from_bytes(data[:size])
    for at in range(len(data)):
        with pytest.raises(CorruptData):
            Checkpoint.from_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(CorruptData):
        Checkpoint.from_bytes(data + b"x")


def test_a_checkpoint_that_contradicts_itself_is_refused() -> None:
    """The start cannot lie behind the offset."""
    with pytest.raises(CorruptData):
        Checkpoint.from_bytes(Checkpoint(topic_id="t", start_offset=5, offset=4).to_bytes())
