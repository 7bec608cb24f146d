"""The manifest's bytes."""

import pytest

from vq.errors import CorruptData
from vq.store.log.manifest import (
    MANIFEST_ENTRY_BYTES,
    HeldAs,
    ManifestEntry,
    pack_manifest,
    unpack_manifest,
)


def test_both_ways() -> None:
    """The bytes are fixed: such files exist."""
    entries = (ManifestEntry(0), ManifestEntry(4064, HeldAs.BLOCK))
    data = pack_manifest(entries)
    assert data.hex() == "00" + "00" * 8 + "00" + "0000000000000fe0"
    assert len(data) == 2 * MANIFEST_ENTRY_BYTES
    assert unpack_manifest(data) == entries
    assert unpack_manifest(b"") == ()


@pytest.mark.parametrize(
    "data",
    [b"\0", bytes(10), b"\2" + bytes(8), bytes(18), bytes(8) + b"\2" + bytes(8) + b"\1"],
    ids=["short", "long", "unknown kind", "twice", "falling"],
)
def test_what_makes_no_sense_is_refused(data: bytes) -> None:
    """Then the whole checkpoint is of no use."""
    with pytest.raises(CorruptData, match="manifest"):
        unpack_manifest(data)
