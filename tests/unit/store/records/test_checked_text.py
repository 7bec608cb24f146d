"""Small JSON files with a checksum of themselves."""

import pytest

from vq.errors import CorruptData
from vq.store.records.checked_text import decode_text, encode_text

VALUES = {"topic": "orders", "id": "5d2f"}


def test_both_ways() -> None:
    """The bytes are fixed: stored data depend on them."""
    data = encode_text(2, VALUES)
    assert data == b'{"v": 2, "topic": "orders", "id": "5d2f", "crc": "d3bde30e"}\n'
    assert decode_text(data, version_max=2) == (2, VALUES)


def test_every_bit_counts() -> None:
    """A changed one is an error, or a version that the caller refuses."""
    data = encode_text(2, VALUES)
    for at in range(len(data) - 1):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                version, values = decode_text(bytes(damaged), version_max=2)
            except CorruptData:
                continue
            assert version > 2 or (version, values) == (2, VALUES)


@pytest.mark.parametrize("extra", ["", ', "crc": "00000000"'])
def test_the_first_version_needs_no_checksum(extra: str) -> None:
    """But if there is one, it must be right."""
    data = f'{{"v": 1, "id": "5d2f"{extra}}}'.encode()
    if extra:
        with pytest.raises(CorruptData, match="checksum"):
            decode_text(data, version_max=2)
    else:
        assert decode_text(data, version_max=2) == (1, {"id": "5d2f"})


@pytest.mark.parametrize("data", [b"", b"3", b"[]", b"{}", b'{"v": 1e999}', b"[" * 100_000])
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    """Whatever JSON makes of it."""
    with pytest.raises(CorruptData):
        decode_text(data, version_max=2)
