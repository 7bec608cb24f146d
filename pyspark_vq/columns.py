"""The columns of ``format("vq")``: their Spark types, and Arrow batches made of vq's tables.

A query reads only the columns of its schema. Spark does not tell a Python source which columns a
query needs, so the user does: ``.schema("partition INT, value BINARY")``.
"""

from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_vq.cells import twice
from vq.columns import KEY_TYPES, Headers, Table, Texts
from vq.errors import InvalidArgument

_FIELDS: Final[dict[str, DataType]] = {
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "id": LongType(),
    "timestamp": TimestampType(),
    "tag": StringType(),
    "key": BinaryType(),
    "headers": MapType(StringType(), StringType()),
    "value": BinaryType(),
    "key_type": StringType(),
    "number": LongType(),
}
#: Columns that a query gets only if its schema names them.
ON_DEMAND: Final = frozenset({"key_type", "number"})
_MAY_BE_NULL: Final = frozenset({"tag", "key", "headers", "key_type", "number"})
SCHEMA: Final = StructType(
    [StructField(name, kind) for name, kind in _FIELDS.items() if name not in ON_DEMAND]
)
#: Those that are the same in all rows of one partition.
_CONSTANT: Final = frozenset({"topic", "partition"})


def checked(schema: StructType) -> StructType:
    """Return the schema of a query if the source has all of its columns.

    Raises:
        InvalidArgument: A column is unknown, or has another type.
    """
    for field in schema.fields:
        kind = _FIELDS.get(field.name)
        if kind is None:
            raise InvalidArgument(f"there is no column {field.name!r}; known: {', '.join(_FIELDS)}")
        if _shown(field.dataType) != _shown(kind):
            raise InvalidArgument(
                f"column {field.name} is {_shown(kind)}, not {_shown(field.dataType)}; read it as "
                "it is and cast it"
            )
        if not field.nullable and field.name in _MAY_BE_NULL:
            raise InvalidArgument(f"column {field.name} may be null; leave NOT NULL out")
    if not schema.fields:
        raise InvalidArgument("the schema has no column; name one, such as offset LONG")
    if len(set(schema.fieldNames())) < len(schema.fields):
        raise InvalidArgument(twice(schema.fieldNames()))
    return schema


def _shown(kind: DataType) -> str:
    return str(kind.simpleString())


def wanted_columns(schema: StructType) -> frozenset[str]:
    """Return which columns of ``vq.columns`` a schema needs; at least one, to count rows."""
    names = frozenset(schema.fieldNames()) - _CONSTANT
    return names - {"number"} | {"offset"} if is_numbered(schema) else names


def is_numbered(schema: StructType) -> bool:
    """Whether a query wants the numbers of messages."""
    return "number" in schema.fieldNames()


def first_offset(table: Table) -> int:
    """Return the offset of the first row of a table that has the column."""
    assert table.offset is not None
    return memoryview(table.offset).cast("q")[0]


def record_batch(
    table: Table, topic: str, partition: int, schema: StructType, number: int | None = None
) -> pa.RecordBatch:
    """Return a table as an Arrow batch with the columns of ``schema``; buffers are not copied.

    ``number`` is that of the first row, which the others follow; None: it is not known.
    """
    arrays = [
        _topics(topic, table.rows)
        if field.name == "topic"
        else _numbers(pa.int32(), _repeated(partition, table.rows))
        if field.name == "partition"
        else _counted(number, table.rows)
        if field.name == "number"
        else _MAKERS[field.name](table)
        for field in schema.fields
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=_arrow_schema(schema))


_ARROW: Final[dict[str, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "binary": pa.binary(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Return what Spark expects of a batch, which it compares with what comes."""
    return pa.schema(
        [
            pa.field(field.name, _ARROW[_shown(field.dataType)], nullable=field.nullable)
            for field in schema.fields
        ]
    )


def _numbers(kind: pa.DataType, data: bytes | bytearray | None) -> pa.Array:
    assert data is not None
    count = len(data) * 8 // kind.bit_width
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _texts(kind: pa.DataType, texts: Texts | None, rows: int) -> pa.Array:
    assert texts is not None
    valid = pa.py_buffer(texts.valid) if texts.valid else None
    return pa.Array.from_buffers(
        kind, rows, [valid, pa.py_buffer(texts.ends), pa.py_buffer(texts.data)]
    )


def _headers(headers: Headers | None, rows: int) -> pa.Array:
    assert headers is not None
    entries = len(headers.name_ends) // 4 - 1
    names = pa.Array.from_buffers(
        pa.string(),
        entries,
        [None, pa.py_buffer(headers.name_ends), pa.py_buffer(headers.name_data)],
    )
    texts = pa.Array.from_buffers(
        pa.string(),
        entries,
        [None, pa.py_buffer(headers.text_ends), pa.py_buffer(headers.text_data)],
    )
    kind = _ARROW["map<string,string>"]
    pairs = pa.StructArray.from_arrays([names, texts], fields=[kind.key_field, kind.item_field])
    return pa.Array.from_buffers(
        kind, rows, [pa.py_buffer(headers.valid), pa.py_buffer(headers.ends)], children=[pairs]
    )


def _key_types(table: Table) -> pa.Array:
    """Return the names of the types of keys; null without a key."""
    assert table.key_type is not None
    indices = pa.Array.from_buffers(pa.int8(), table.rows, [None, pa.py_buffer(table.key_type)])
    return pa.DictionaryArray.from_arrays(indices, pa.array(KEY_TYPES)).dictionary_decode()


_MAKERS: Final[dict[str, Callable[[Table], pa.Array]]] = {
    "offset": lambda table: _numbers(pa.int64(), table.offset),
    "id": lambda table: _numbers(pa.int64(), table.id),
    "timestamp": lambda table: _numbers(_ARROW["timestamp"], table.timestamp),
    "tag": lambda table: _texts(pa.string(), table.tag, table.rows),
    "key": lambda table: _texts(pa.binary(), table.key, table.rows),
    "headers": lambda table: _headers(table.headers, table.rows),
    "value": lambda table: _texts(pa.binary(), table.value, table.rows),
    "key_type": _key_types,
}


def _counted(number: int | None, rows: int) -> pa.Array:
    if number is None:
        return pa.nulls(rows, pa.int64())
    return _numbers(pa.int64(), array("q", range(number, number + rows)).tobytes())


def _repeated(partition: int, rows: int) -> bytes:
    return partition.to_bytes(4, "little") * rows


def _topics(topic: str, rows: int) -> pa.Array:
    """Return a column with the same text in every row."""
    most = 1 << max(rows, 1).bit_length()  # a few sizes, so that most calls find one ready
    if most * (len(topic.encode()) + _END_BYTES) > _TOPICS_BYTES_MAX:
        return _many_topics.__wrapped__(topic, rows)
    return _many_topics(topic, most).slice(0, rows)


#: A worker process lives long and reads many topics: so many columns are kept, of such a size.
_TOPICS_KEPT: Final = 4
_TOPICS_BYTES_MAX: Final = 4 * 1024 * 1024
_END_BYTES: Final = 4


@lru_cache(maxsize=_TOPICS_KEPT)
def _many_topics(topic: str, rows: int) -> pa.Array:
    text = topic.encode()
    ends: Any = array("i", range(0, len(text) * (rows + 1), len(text)))
    return pa.Array.from_buffers(
        pa.string(), rows, [None, pa.py_buffer(ends), pa.py_buffer(text * rows)]
    )
