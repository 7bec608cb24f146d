"""The tables of a cluster without Spark and without a broker: their columns, what is hidden."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import DataType, LongType, StringType, StructField, StructType

from pyspark_vq import tables
from pyspark_vq.tables import TABLES, LagTable, TopicsTable
from vq.errors import CoordinationError, InvalidArgument, VqError


class Admin:
    """One topic and one group, both unreadable in ZooKeeper."""

    wrong = CoordinationError("znode 'x' has '{'")

    def readable_groups(self) -> tuple[list[Any], dict[str, VqError]]:
        return [], {"g": self.wrong}

    def readable_topics(self) -> tuple[list[Any], dict[str, VqError]]:
        return [], {"t": self.wrong}

    def deleted_topics(self) -> list[Any]:
        return []

    def describe_group(self, group: str) -> None:
        raise self.wrong


def schema_of(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


def rows_of(table: type, names: str, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Any]]:
    monkeypatch.setattr(tables, "factory_of", lambda _: SimpleNamespace(admin=Admin()))
    reader = table({}).reader(schema_of(*((name, StringType()) for name in names.split())))
    return [row for part in reader.partitions() for row in reader.read(part)]


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ([("lagg", LongType())], "there is no column 'lagg'; known: "),
        ([("error", LongType())], "column error is string, not bigint; read it as it is and cast"),
        ([("error", StringType())] * 2, "names column 'error' more than once"),
    ],
)
def test_a_schema_that_is_not_of_the_table_is_refused(
    table: type, schema: list[tuple[str, DataType]], wrong: str
) -> None:
    with pytest.raises(InvalidArgument, match=wrong):
        table({}).reader(schema_of(*schema))


def test_a_group_and_a_topic_that_cannot_be_read_have_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them, a report would say that there are none. Only the columns asked for come."""
    told = "znode 'x' has '{'"
    assert rows_of(LagTable, "error group cause", monkeypatch) == [(told, "g", "group_unreadable")]
    assert rows_of(TopicsTable, "topic state error", monkeypatch) == [("t", "unreadable", told)]
