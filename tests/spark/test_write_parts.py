"""The parts of the sink and of the tables that need no Spark: columns, options, repeats, rows."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    BinaryType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_vq.repeats import Repeats
from pyspark_vq.rows import check_columns, messages_of
from pyspark_vq.sink import ONCE_KEPT_S, is_forgotten
from pyspark_vq.table_rows import (
    LAG_SCHEMA,
    audit_rows,
    group_error_row,
    lag_rows,
    settings_of,
    topic_row,
)
from pyspark_vq.write_options import WriteOptions
from vq import Message, TopicSettings
from vq.admin import (
    GroupDescription,
    GroupMember,
    GroupProgress,
    PartitionEnds,
    TopicSummary,
    UncleanElection,
)
from vq.errors import InvalidArgument
from vq.model import TopicOrigin

TYPES = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "timestamp": TimestampType(),
    "map<string,int>": MapType(StringType(), IntegerType()),
}


def schema(text: str) -> StructType:
    """Return columns written as in SQL; Spark's own parser needs a session."""
    pairs = (each.split() for each in text.split(", "))
    return StructType([StructField(name, TYPES[kind]) for name, kind in pairs])


def no_text(*parts: bytes) -> pa.Array:
    """A column of strings as Spark makes it of a cast from binary."""
    column = pa.array(parts, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(column), column.buffers())


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("key string", "column 'value' (binary or string) is missing; the columns are key"),
        ("value int", "column 'value' is int; it must be binary or string"),
        ("value string, tag binary", "column 'tag' is binary; it must be string"),
        ("value string, key double", "column 'key' is double; it must be string, binary or an int"),
        (
            "value string, headers map<string,int>",
            "column 'headers' is map<string,int>; it must be map<string,string>",
        ),
        ("value string, headers string", "column 'headers' is string; it must be map<string,strin"),
        ("value string, partition string", "column 'partition' is string; it must be an integer"),
        ("value string, topic int", "column 'topic' is int; it must be string"),
        ("value string, tags string", "column 'tags' (string) cannot be written; the columns are"),
        ("value string, key string, key_type string", "column 'key_type' needs a column 'key'"),
    ],
)
def test_wrong_columns_are_named_with_their_type_and_what_is_allowed(
    columns: str, told: str
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_columns(schema(columns), "t")
    assert told in str(raised.value)


def test_the_topic_comes_from_the_option_or_a_column() -> None:
    check_columns(schema("value string"), "t")
    check_columns(schema("value binary, topic string, offset bigint, timestamp timestamp"), None)
    with pytest.raises(InvalidArgument, match="give the topic: option topic, or a column 'topic'"):
        check_columns(schema("value string"), None)


def batch(**columns: pa.Array) -> tuple[pa.RecordBatch, list[str]]:
    names = list(columns)
    return pa.record_batch(list(columns.values()), names=names), names


def test_columns_become_messages() -> None:
    rows, names = batch(
        value=pa.array(["one", ""]),
        key=pa.array([b"7", b"\xff"]),
        key_type=pa.array(["int", "bytes"]),
        tag=pa.array(["x", None]),
        headers=pa.array([[("a", "b")], []], pa.map_(pa.string(), pa.string())),
        topic=pa.array([None, "other"]),
        partition=pa.array([3, 0], pa.int32()),
    )
    assert list(messages_of(rows, names, "t")) == [
        Message("t", b"one", "x", 7, {"a": "b"}, 3),
        Message("other", b"", None, b"\xff", None, 0),
    ]
    rows, names = batch(value=pa.array([b"one"]), key=pa.array([""]))
    assert list(messages_of(rows, names, "t")) == [Message("t", b"one")]


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"value": pa.array(["a", None])}, "column 'value' is null in 1 rows: a message has a"),
        (
            {"value": pa.array(["a"]), "partition": pa.array([None], pa.int32())},
            "column 'partition' is null in 1 rows: give a number",
        ),
        (
            {"value": pa.array(["a"]), "key": pa.array([b"x"]), "key_type": pa.array(["int"])},
            "key b'x' does not fit key_type 'int'",
        ),
        (
            {"value": pa.array(["a"]), "key": pa.array([b"x"]), "key_type": pa.array(["long"])},
            "key_type 'long' is none of text, bytes and int",
        ),
        *(
            (
                {"value": pa.array(["a"]), "key": pa.array([key]), "key_type": pa.array(["int"])},
                f"key {key!r} does not fit key_type 'int'",
            )
            for key in (b" 1 ", b"1_0", b"+1", b"007", b"-0", b"", b"\xd9\xa3")
        ),
        (
            {"value": pa.array(["a"] * 2), "tag": no_text(b"ok", b"\xff")},
            "column tag: Invalid UTF8",
        ),
        ({"value": pa.array(["a"]), "key": no_text(b"\xff")}, "column key: Invalid UTF8"),
        ({"value": pa.array(["a"]), "topic": no_text(b"\xff")}, "column topic: Invalid UTF8"),
        (
            {
                "value": pa.array(["a"]),
                "headers": pa.MapArray.from_arrays([0, 1], pa.array(["name"]), no_text(b"\xff")),
            },
            "column headers, a text: Invalid UTF8",
        ),
    ],
)
def test_values_that_no_message_can_have(columns: dict[str, pa.Array], told: str) -> None:
    rows, names = batch(**columns)
    with pytest.raises(InvalidArgument) as raised:
        list(messages_of(rows, names, "t"))
    assert told in str(raised.value)


def parsed(stream: bool = False, **options: str) -> WriteOptions:
    return WriteOptions.parsed({"zookeeper": "z:1", "cluster": "c", **options}, stream=stream)


def test_options_of_a_write() -> None:
    found = parsed(topic="t", WRITEID="w", batchid="7", timeout="5")
    assert (found.topic, found.write_id, found.batch_id, found.timeout_s) == ("t", "w", 7, 5.0)
    assert found.idempotent
    assert not parsed(stream=True, idempotent="false", checkpointLocation="/x").idempotent


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"writeId": "w", "stream": True}, "writeId and batchId are for batch writes"),
        ({"batchId": "1"}, "batchId = 1 needs writeId"),
        ({"writeId": "w", "idempotent": "false"}, "exclude one another"),
        ({"batchId": "-1", "writeId": "w"}, "batchId = '-1' is not a whole number in"),
        ({"path": "/x"}, "save() takes no path here"),
        ({"maxBytes": "1"}, "there is no option 'maxBytes' here"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        parsed(**options)
    assert told in str(raised.value)


def test_repeats_count_equal_rows_and_look_at_everything_but_the_place() -> None:
    repeats = Repeats(by_partition=False)
    one = Message("t", b"one", "tag", 7, {"a": "b", "c": "d"})
    for partition in (0, 1):
        repeats.add(one._replace(partition=partition, offset=5, id=9))
    same = one._replace(headers={"c": "d", "a": "b"})
    others = [
        one._replace(key="7"),
        one._replace(key=None),
        one._replace(topic="u"),
        one._replace(tag=None),
        one._replace(headers=None),
        one._replace(content=b"two"),
    ]
    assert not any(map(repeats.met, others))
    assert [repeats.met(same) for _ in range(3)] == [True, True, False]
    assert repeats.left == 0


def test_repeats_look_at_the_partition_where_rows_name_it() -> None:
    repeats = Repeats(by_partition=True)
    repeats.add(Message("t", b"one", partition=1))
    assert not repeats.met(Message("t", b"one", partition=0))
    assert repeats.met(Message("t", b"one", partition=1))


def test_a_write_without_a_name_is_forgotten_after_a_while() -> None:
    now = 1_800_000_000
    assert is_forgotten(f"spark-once-{now - ONCE_KEPT_S - 1}-abc", now)
    assert not is_forgotten(f"spark-once-{now - ONCE_KEPT_S}-abc", now)
    assert not is_forgotten("spark-stream-1-abc", now)
    assert not is_forgotten("spark-once-x", now)


def test_the_rows_of_a_group_have_the_verdicts_of_the_lag_report() -> None:
    """Also what it has no partition for; a lag that means nothing is null."""
    place = GroupProgress(
        topic="t", partition=0, owner="m", committed=3, start=5, end=9, lag_bytes=4,
        lag_messages=1, lag_s=1.0,
    )  # fmt: skip
    member = GroupMember("m", "h", 1, 1, ("t",), 0)
    found = GroupDescription("g", "clustering", "latest", {"t": ""}, ("u",), (member,), (place,))
    names = [each.split(" ")[0].strip("`") for each in LAG_SCHEMA.split(", ")]

    def told(found: GroupDescription) -> list[dict[str, Any]]:
        rows = list(lag_rows(found, 1_000_000))
        return [dict(zip(names, row, strict=True)) for row in rows]

    overtaken, deleted = told(found)
    assert (overtaken["verdict"], overtaken["cause"]) == ("warning", "overtaken")
    assert (overtaken["start"], overtaken["committed"], overtaken["lag_bytes"]) == (5, 3, 4)
    assert (deleted["topic"], deleted["verdict"], deleted["cause"]) == (
        "u",
        "unknown",
        "topic_deleted",
    )
    [radio, _] = told(replace(found, model="broadcasting"))
    assert (radio["cause"], radio["lag_bytes"], radio["end"]) == ("broadcasting", None, 9)
    wanted = replace(found, partitions=(replace(place, filter="a"),))
    assert [each["filter"] for each in told(wanted)] == ["a", None]
    copied = replace(found, partitions=(replace(place, committed_is_copy=True),))
    assert [each["committed_is_copy"] for each in told(copied)] == [True, None]
    shut = replace(found, partitions=(replace(place, end=None, lag_bytes=None, readable=False),))
    [closed, _] = told(shut)
    assert (closed["verdict"], closed["cause"]) == ("unknown", "not_readable")
    assert closed["error"] == "the topic is not readable"
    [nothing] = told(replace(found, topics={}, deleted_topics=(), partitions=()))
    assert (nothing["group"], nothing["cause"]) == ("g", "no_topics")
    broken = dict(zip(names, group_error_row("g", "why"), strict=True))
    assert (broken["verdict"], broken["cause"]) == ("unknown", "group_unreadable")
    assert broken["error"] == "why"


def test_a_topic_of_which_a_broker_is_silent_has_no_size() -> None:
    topic = TopicSummary("t", "id", TopicSettings(partitions=2), {"b1": 2})
    row = topic_row(topic, {0: PartitionEnds(10, 30, 30), 1: None}, None)
    assert (row[6], row[7]) == (None, 1)
    assert row[-1] == "the brokers of 1 partitions do not answer"
    row = topic_row(topic, {0: PartitionEnds(10, 30, 30), 1: PartitionEnds(0, 5, 5)}, None)
    assert (row[6], row[7], row[-1]) == (25, 0, None)
    assert topic_row(topic, None, "why")[6:8] == (None, None)


def test_settings_are_texts_and_those_that_are_null_are_left_out() -> None:
    found = settings_of(TopicSettings(partitions=2, retention_hours=None))
    assert found["flush"] == "sync"
    assert found["partitions"] == "2"
    assert found["writable"] == "true"
    assert "retention_hours" not in found


def test_the_audit_is_in_order_of_time() -> None:
    topic = TopicSummary(
        "t",
        "id",
        TopicSettings(),
        {"b1": 1},
        TopicOrigin(client="c", host="h", time_ms=2_000, auto=True),
    )
    election = UncleanElection(1_000, "me", "n2", 4, ("n1",), ("t",))
    rows = audit_rows([topic], [], [], {"b1": [election]})
    assert [row[1] for row in rows] == ["unclean_election", "topic_created"]
    assert rows[0][2:6] == ("me", None, "b1", "n2")
    assert rows[1][2:4] == ("c@h", "t")
