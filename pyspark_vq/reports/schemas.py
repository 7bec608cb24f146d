"""Schemas in Spark's own notation: ``"topic string, ids array<bigint>"``; no session reads them."""

from typing import Final

from pyspark.sql import types as T

_KINDS: Final = {
    each.simpleString(): each
    for each in (
        *(T.StringType(), T.IntegerType(), T.LongType(), T.DoubleType(), T.BooleanType()),
        *(T.BinaryType(), T.ArrayType(T.LongType(), containsNull=False)),
    )
}


def schema_of(columns: str) -> T.StructType:
    """Return a schema; a column is ``name type``, or ``name type not null``."""
    words = [column.split() for column in columns.split(", ")]
    return T.StructType(
        [T.StructField(name, _KINDS[kind], nullable=not rest) for name, kind, *rest in words]
    )
