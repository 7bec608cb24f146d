"""Stored messages as columns, for programs that analyse many of them.

``factory.admin.read_columns`` yields them; ``decode_columns`` makes them of bytes that a program
has already, such as ``StoredRange.data``. No Python object is made for a message: buffers have the
layout of Apache Arrow, so that ``pyarrow.Array.from_buffers`` takes them as they are.
"""

from vq.store.records.columns import (
    ALL,
    COLUMNS,
    KEY_TYPES,
    Headers,
    Selection,
    Table,
    Texts,
    decode_columns,
    is_compiled,
)

__all__ = [
    "ALL",
    "COLUMNS",
    "KEY_TYPES",
    "Headers",
    "Selection",
    "Table",
    "Texts",
    "decode_columns",
    "is_compiled",
]
