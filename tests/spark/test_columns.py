"""Tables become Arrow batches with the columns that a query names, without Spark."""

import tracemalloc
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_vq.columns import SCHEMA, _topics, checked, first_offset, record_batch, wanted_columns
from vq.columns import Selection, Table
from vq.errors import InvalidArgument

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
ID = Selection.id_at(int(NOON.timestamp() * 1000))
ROWS: list[tuple[Any, ...]] = [
    (88, ID, b"a", "k", {"b": "2", "a": "1"}, b"one"),
    (200, ID + 1, None, None, None, b""),
    (300, ID + 2, "é".encode(), -7, {}, b"three"),
    (400, ID + 3, None, b"\xff", {"c": ""}, bytes(9)),
]


def table(schema: StructType, rows: list[tuple[Any, ...]]) -> Table:
    made = Table(wanted_columns(schema))
    for row in rows:
        made.append(*row)
    return made


def with_key_type() -> StructType:
    return StructType([*SCHEMA.fields, StructField("key_type", StringType())])


@pytest.mark.parametrize("count", [0, 1, 4, 9, 40])
def test_a_batch_has_all_columns_with_sparks_types(count: int) -> None:
    schema = with_key_type()
    rows = (ROWS * 10)[:count]
    batch = record_batch(table(schema, rows), "orders", 3, schema)
    batch.validate(full=True)
    expected = [
        {
            "topic": "orders",
            "partition": 3,
            "offset": offset,
            "id": number,
            "timestamp": NOON,
            "tag": tag and tag.decode(),
            "key": key if key is None or isinstance(key, bytes) else str(key).encode(),
            "headers": sorted(headers.items()) if headers else None,
            "value": value,
            "key_type": {type(None): None, str: "text", bytes: "bytes", int: "int"}[type(key)],
        }
        for offset, number, tag, key, headers, value in rows
    ]
    assert batch.to_pylist() == expected


@pytest.mark.parametrize("number", [None, 0, 2**40])
def test_numbers_go_on_from_the_first_row(number: int | None) -> None:
    schema = StructType([StructField("number", LongType())])
    made = table(schema, ROWS)
    assert first_offset(made) == ROWS[0][0]
    batch = record_batch(made, "t", 0, schema, number)
    batch.validate(full=True)
    rows = [None] * 4 if number is None else list(range(number, number + 4))
    assert batch.to_pylist() == [{"number": each} for each in rows]


def test_columns_come_in_the_order_of_the_schema() -> None:
    schema = StructType(
        [StructField("value", BinaryType()), StructField("partition", IntegerType())]
    )
    batch = record_batch(table(schema, ROWS), "t", 70_000, schema)
    assert batch.schema == pa.schema([("value", pa.binary()), ("partition", pa.int32())])
    assert batch.column("partition").to_pylist() == [70_000] * 4
    only = StructType([StructField("topic", StringType())])
    assert record_batch(table(only, ROWS), "t", 0, only).to_pylist() == [{"topic": "t"}] * 4


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("content", BinaryType()), "no column 'content'"),
        (StructField("value", StringType()), "value is binary, not string"),
        (StructField("offset", IntegerType()), "offset is bigint, not int"),
        (StructField("tag", StringType(), nullable=False), "tag may be null"),
        (StructField("headers", MapType(StringType(), LongType())), "headers is map"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(field: StructField, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        checked(StructType([field]))


def test_a_schema_has_a_column() -> None:
    with pytest.raises(InvalidArgument, match="no column"):
        checked(StructType([]))
    good = StructType([StructField("timestamp", TimestampType(), nullable=False)])
    assert checked(good) == good


def test_a_worker_that_reads_many_topics_keeps_little_of_their_names() -> None:
    """Workers are used again by later tasks; the column of a long name is larger than the data."""
    tracemalloc.start()
    try:
        for number in range(6):
            name = f"{number:0200d}"
            for rows in (1, 60_000):
                found = _topics(name, rows)
                assert (len(found), found[rows - 1].as_py()) == (rows, name)
        del found
        assert tracemalloc.get_traced_memory()[0] < 16 << 20
    finally:
        tracemalloc.stop()
