"""Tables of ``vq.columns`` as rows of plain values."""

import itertools
import struct
from typing import Any

from vq.columns import KEY_TYPES, Headers, Table, Texts

Row = tuple[Any, ...]


def rows_of(table: Table) -> list[Row]:
    """Return offset, id, timestamp, tag, key, its type, headers and value of each message."""
    count = table.rows
    key_types = [KEY_TYPES[each] for each in table.key_type or ()]
    columns = (
        _numbers(table.offset, "q"),
        _numbers(table.id, "q"),
        _numbers(table.timestamp, "q"),
        _texts(table.tag, count),
        _texts(table.key, count),
        key_types,
        _headers(table.headers, count),
        _pieces(table.value.ends, table.value.data) if table.value else [],
    )
    assert all(len(each) == count for each in columns)
    return list(zip(*columns, strict=True))


def _numbers(data: bytearray | None, kind: str) -> list[int]:
    return list(struct.unpack(f"<{len(data or b'') // struct.calcsize(kind)}{kind}", data or b""))


def _pieces(ends: bytearray, data: bytearray) -> list[bytes]:
    places = _numbers(ends, "i")
    assert places[0] == 0
    assert places[-1] == len(data)
    return [bytes(data[a:b]) for a, b in itertools.pairwise(places)]


def _bits(valid: bytearray, count: int) -> list[bool]:
    assert len(valid) == (count + 7) // 8
    assert not count % 8 or not valid[-1] >> count % 8
    return [bool(valid[row // 8] >> row % 8 & 1) for row in range(count)]


def _texts(texts: Texts | None, count: int) -> list[bytes | None]:
    assert texts is not None
    pieces, valid = _pieces(texts.ends, texts.data), _bits(texts.valid, count)
    assert not any(piece and not bit for piece, bit in zip(pieces, valid, strict=True))
    return [piece if bit else None for piece, bit in zip(pieces, valid, strict=True)]


def _headers(headers: Headers | None, count: int) -> list[list[tuple[bytes, bytes]] | None]:
    assert headers is not None
    names = _pieces(headers.name_ends, headers.name_data)
    texts = _pieces(headers.text_ends, headers.text_data)
    pairs = list(zip(names, texts, strict=True))
    places, valid = _numbers(headers.ends, "i"), _bits(headers.valid, count)
    assert places[-1] == len(pairs)
    found = [pairs[a:b] for a, b in itertools.pairwise(places)]
    return [each if bit else None for each, bit in zip(found, valid, strict=True)]
