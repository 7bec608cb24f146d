"""The columns that are written: which there may be, and messages from Arrow batches. Pure."""

import re
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from vq import Message
from vq.errors import InvalidArgument

#: An integer key as the source gives it; Python's own ``int`` takes " 1 " and "1_0", too.
_INTEGER: Final = re.compile(rb"0|-?[1-9][0-9]*")
_INTEGERS: Final = (ByteType, ShortType, IntegerType, LongType)
_TEXT_OR_BYTES: Final = (BinaryType, StringType)
#: By column: the types it may have, as classes and in words.
_ALLOWED: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    "value": (_TEXT_OR_BYTES, "binary or string"),
    "key": ((*_TEXT_OR_BYTES, *_INTEGERS), "string, binary or an integer"),
    "key_type": ((StringType,), "string"),
    "tag": ((StringType,), "string"),
    "headers": ((MapType,), "map<string,string>"),
    "topic": ((StringType,), "string"),
    "partition": (_INTEGERS, "an integer"),
}
#: What a DataFrame that was read has besides; it says where its messages came from.
_IGNORED: Final = frozenset({"offset", "id", "timestamp"})


def check_columns(schema: StructType, topic: str | None) -> None:
    """Return if a DataFrame with these columns can be written.

    Args:
        schema: Its columns.
        topic: The topic of rows without one, from the options.

    Raises:
        InvalidArgument: A column is missing, unknown, twice there, or of another type.
    """
    names = [each.name for each in schema.fields]
    for field in schema.fields:
        name, kind = field.name, field.dataType
        if name in _IGNORED:
            continue
        if name not in _ALLOWED:
            raise InvalidArgument(
                f"column {name!r} ({kind.simpleString()}) cannot be written; the columns are "
                f"{', '.join(_ALLOWED)}. Select what is to be written"
            )
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} is there {names.count(name)} times")
        types, words = _ALLOWED[name]
        if not isinstance(kind, types) or (isinstance(kind, MapType) and not _is_text(kind)):
            raise InvalidArgument(f"column {name!r} is {kind.simpleString()}; it must be {words}")
    if "key_type" in names and not _is_binary(schema, "key"):
        raise InvalidArgument("column 'key_type' needs a column 'key' that is binary")
    if "value" not in names:
        shown = ", ".join(names) or "none"
        raise InvalidArgument(
            f"column 'value' (binary or string) is missing; the columns are {shown}"
        )
    if "topic" not in names and topic is None:
        raise InvalidArgument("give the topic: option topic, or a column 'topic' (string)")


def _is_binary(schema: StructType, name: str) -> bool:
    return any(each.name == name and isinstance(each.dataType, BinaryType) for each in schema)


def _is_text(kind: MapType) -> bool:
    return isinstance(kind.keyType, StringType) and isinstance(kind.valueType, StringType)


def messages_of(batch: pa.RecordBatch, names: list[str], topic: str | None) -> Iterator[Message]:
    """Return the messages of an Arrow batch, in order; columns are converted whole.

    Args:
        batch: Rows of a DataFrame.
        names: Its columns, which ``check_columns`` has found right.
        topic: The topic of rows without one.

    Raises:
        InvalidArgument: A value, topic or partition is null where it must not be, a text is no
            UTF-8, or a key is none of its type.
    """
    columns = dict(zip(names, batch.columns, strict=True))
    _check_texts(columns)
    values = columns["value"]
    _check_no_null("value", values, "a message has a content, perhaps an empty one")
    if not pa.types.is_binary(values.type) and not pa.types.is_large_binary(values.type):
        large = pa.types.is_large_string(values.type)
        values = values.cast(pa.large_binary() if large else pa.binary())
    return map(
        Message,
        _topics(columns.get("topic"), topic),
        values.to_pylist(),
        _cells(columns.get("tag")),
        _keys(columns.get("key"), columns.get("key_type")),
        _headers(columns.get("headers")),
        _partitions(columns.get("partition")),
    )


def _check_texts(columns: Mapping[str, pa.Array]) -> None:
    """Return if texts are UTF-8, which Spark's may not be: a cast from binary checks nothing."""
    for name, column in columns.items():
        parts = {name: column}
        if pa.types.is_map(column.type):
            parts = {f"{name}, a name": column.keys, f"{name}, a text": column.items}
        for what, part in parts.items():
            if name == "value" or not _is_string(part.type):
                continue
            try:
                part.validate(full=True)
            except pa.ArrowInvalid as error:
                raise InvalidArgument(
                    f"column {what}: {error}; a string is UTF-8, so leave such a column binary or "
                    "decode it"
                ) from error


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _topics(column: pa.Array | None, topic: str | None) -> Any:
    if column is None:
        return repeat(topic)
    if topic is None:
        _check_no_null("topic", column, "give it, or the option topic for such rows")
    return [topic if each is None else each for each in column.to_pylist()]


def _cells(column: pa.Array | None) -> Any:
    return repeat(None) if column is None else column.to_pylist()


def _keys(column: pa.Array | None, types: pa.Array | None) -> Any:
    if column is None:
        return repeat(None)
    keys = column.to_pylist()
    if types is not None:
        keys = [_typed(key, kind) for key, kind in zip(keys, types.to_pylist(), strict=True)]
    # An empty text is no key: a reader gets none.
    return [None if each == "" else each for each in keys]


def _typed(key: bytes | None, kind: str | None) -> Any:
    """Return the key that the source gives as these bytes."""
    try:
        if key is None or kind is None or kind == "bytes":
            return key
        if kind == "text":
            return key.decode()
        if kind == "int":
            if _INTEGER.fullmatch(key) is None:
                raise ValueError("not as the source writes it")
            return int(key)
    except ValueError as error:
        raise InvalidArgument(f"key {key!r:.60} does not fit key_type {kind!r}") from error
    raise InvalidArgument(f"key_type {kind!r:.60} is none of text, bytes and int")


def _headers(column: pa.Array | None) -> Any:
    if column is None:
        return repeat(None)
    return [dict(each) if each else None for each in column.to_pylist()]


def _partitions(column: pa.Array | None) -> Any:
    if column is None:
        return repeat(-1)
    _check_no_null("partition", column, "give a number, or leave the column out")
    return column.to_pylist()


def _check_no_null(name: str, column: pa.Array, rule: str) -> None:
    if column.null_count:
        raise InvalidArgument(f"column {name!r} is null in {column.null_count} rows: {rule}")
