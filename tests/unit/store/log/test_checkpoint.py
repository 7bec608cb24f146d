"""The checkpoint's bytes."""

from dataclasses import replace
from pathlib import Path

import pytest

from vq.errors import CorruptData
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.manifest import HeldAs, ManifestEntry

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
    manifest=(ManifestEntry(10), ManifestEntry(2**62)),
)
#: What the first version and this one are on disk: such files exist.
FIRST = (
    "7671637001010000000000000000000a8000000000000000000000000000000300000000000001900000019774"
    "20dc000000000900000006000000050000000974c3a4706963696e64657870726f6475636572735737fa72"
)
SECOND = (
    "7671637002010000000000000000000a8000000000000000000000000000000300000000000001900000019774"
    "20dc00000000090000000600000005000000090000001274c3a4706963696e64657870726f6475636572730000"
    "0000000000000a004000000000000000625449c3"
)
FOURTH = (
    "7671637004010000000000000000000a8000000000000000000000000000000300000000000001900000019774"
    "20dc0000000009000000060000000500000009000000120000000000bc614e74c3a4706963696e64657870726f"
    "6475636572730000000000000000"
)


def test_bytes_come_back() -> None:
    """Every field, and the least there can be."""
    least = Checkpoint(topic_id="", start_offset=0, offset=0)
    for checkpoint in (FULL, least):
        assert Checkpoint.from_bytes(checkpoint.to_bytes()) == checkpoint


def test_a_checkpoint_that_names_an_archive_has_a_version_of_its_own() -> None:
    """An older vq does not take the archive for a block; without one it reads all it is given."""
    archived = replace(FULL, manifest=(ManifestEntry(10, HeldAs.ARCHIVE), ManifestEntry(2**62)))
    assert Checkpoint.from_bytes(archived.to_bytes()) == archived
    assert (archived.to_bytes()[4], FULL.to_bytes()[4]) == (3, 2)


def test_a_number_that_must_be_told_raises_the_version() -> None:
    """With and without archives; that of a log that begins at 0 need not be told."""
    numbered = replace(FULL, first_number=12345678)
    assert Checkpoint.from_bytes(numbered.to_bytes()) == numbered
    assert numbered.to_bytes().hex().startswith(FOURTH)
    archived = replace(numbered, manifest=(ManifestEntry(10, HeldAs.ARCHIVE),))
    assert Checkpoint.from_bytes(archived.to_bytes()) == archived
    assert (numbered.to_bytes()[4], archived.to_bytes()[4]) == (4, 4)
    from_the_first = Checkpoint(topic_id="t", start_offset=0, offset=5, first_number=0)
    assert from_the_first.to_bytes()[4] == 2


@pytest.mark.parametrize("first_number", [None, 12345678])
def test_damage_is_noticed(first_number: int | None) -> None:
    """Any cut, any flipped bit, anything appended."""
    data = replace(FULL, first_number=first_number).to_bytes()
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


def test_the_bytes_are_these() -> None:
    """Both versions, byte for byte; the first one had no manifest."""
    assert FULL.to_bytes().hex() == SECOND
    assert Checkpoint.from_bytes(bytes.fromhex(FIRST)) == replace(FULL, manifest=None)


@pytest.mark.parametrize("entries", [(5,), (10, 101), (11, 12)])
def test_a_manifest_that_contradicts_the_offsets_is_refused(entries: tuple[int, ...]) -> None:
    """It begins at the log's start and ends at the offset or below."""
    manifest = tuple(map(ManifestEntry, entries))
    lie = Checkpoint(topic_id="t", start_offset=10, offset=100, manifest=manifest)
    with pytest.raises(CorruptData, match="manifest"):
        Checkpoint.from_bytes(lie.to_bytes())


def test_a_checkpoint_of_a_later_version_is_refused() -> None:
    """It says which version it is; the log is verified instead."""
    data = bytearray(FULL.to_bytes())
    data[4] = 5
    with pytest.raises(CorruptData, match="version 5"):
        Checkpoint.from_bytes(bytes(data))


def test_the_example_of_the_document() -> None:
    """docs/formats.md shows these bytes."""
    first = Checkpoint(topic_id="ab", start_offset=0, offset=0, manifest=(ManifestEntry(0),))
    text = (Path(__file__).parents[4] / "docs" / "formats.md").read_text()
    example = text[text.index("    76716370 02") :].split("\n\n")[0]
    shown = "".join(line[4:50].replace(" ", "") for line in example.splitlines())
    assert shown == first.to_bytes().hex()
