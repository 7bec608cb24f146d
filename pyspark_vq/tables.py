"""The formats ``vq.lag``, ``vq.topics``, ``vq.brokers`` and ``vq.audit``: a cluster as tables.

Each read is one look at the cluster through ``vq.admin``. What cannot be read gives rows with nulls
and an ``error``, such as those of a broker that does not answer. Without ZooKeeper the read fails.
``table_rows`` has the columns.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ClassVar, Final, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_vq import cells, table_rows
from pyspark_vq.connection import factory_of
from pyspark_vq.errors import untraced
from pyspark_vq.options import Connect, Given
from pyspark_vq.table_rows import Row
from vq import Admin
from vq.errors import InvalidArgument, UnknownTopic, VqError

T = TypeVar("T")
_Names = Callable[[Admin], Sequence[str]]
_Rows = Callable[[Admin, Sequence[str]], Iterator[Row]]

#: Tasks that one read of a table has at most: each has a session with ZooKeeper.
TASKS_MAX: Final = 8


class _Part(InputPartition):
    """The groups or topics that one task looks at."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)


class _Reader(DataSourceReader):
    """Reads a table: the names on the driver, all else in tasks.

    Raises:
        InvalidArgument: The schema has another column than the table, or one twice.
    """

    def __init__(
        self,
        connect: Connect,
        schema: StructType,
        columns: str,
        names: _Names | None,
        rows: _Rows,
    ) -> None:
        self._connect = connect
        self._columns = _columns(schema, columns)
        self._all = list(_kinds(columns))
        self._names = names
        self._rows = rows

    @untraced
    def partitions(self) -> list[InputPartition]:
        """Deal the names out to tasks."""
        if self._names is None:
            return [_Part(())]
        names = self._names(factory_of(self._connect).admin)
        tasks = max(1, min(TASKS_MAX, len(names)))
        return [_Part(names[number::tasks]) for number in range(tasks)]

    @untraced
    def read(self, partition: InputPartition) -> Iterator[Row]:
        """Return the rows of one task."""
        assert isinstance(partition, _Part)
        wanted = [self._all.index(name) for name in self._columns]
        for row in self._rows(factory_of(self._connect).admin, partition.names):
            whole = cells.fitting(row, self._all)
            yield tuple(whole[number] for number in wanted)


def _kinds(columns: str) -> dict[str, str]:
    """Return the type of each column in a schema as text; its parser is in Java, and not here."""
    found, depth, begin = {}, 0, 0
    for number, letter in enumerate(columns + ","):
        depth += (letter == "<") - (letter == ">")
        if letter == "," and not depth:
            name, kind = columns[begin:number].split()
            found[name.strip("`")] = kind
            begin = number + 1
    return found


def _columns(schema: StructType, columns: str) -> list[str]:
    """Return the columns that a query wants of a table.

    Raises:
        InvalidArgument: One is unknown, has another type, or is there twice.
    """
    known = _kinds(columns)
    for field in schema.fields:
        kind, given = known.get(field.name), field.dataType.simpleString()
        if kind is None:
            raise InvalidArgument(
                f"there is no column {field.name!r}; known: {', '.join(known)}. Leave the schema "
                "out to have them all"
            )
        if given != kind:
            raise InvalidArgument(
                f"column {field.name} is {kind}, not {given}; read it as it is and cast it"
            )
    names: list[str] = schema.fieldNames()
    if len(set(names)) < len(names):
        raise InvalidArgument(cells.twice(names))
    return names


def _groups(admin: Admin) -> list[str]:
    found, unreadable = admin.readable_groups()
    return [*(each.group for each in found), *unreadable]  # reading those says why


def _lags(admin: Admin, groups: Sequence[str]) -> Iterator[Row]:
    for group in groups:
        try:
            found = admin.describe_group(group)
        except VqError as error:
            yield table_rows.group_error_row(group, str(error))
        else:
            yield from table_rows.lag_rows(found, time.time_ns() // 1_000_000)


def _topic_names(admin: Admin) -> list[str]:
    found, unreadable = admin.readable_topics()
    deleted = [each.name for each in admin.deleted_topics()]
    return [*(each.name for each in found), *unreadable, *deleted]


def _topics(admin: Admin, names: Sequence[str]) -> Iterator[Row]:
    found, unreadable = admin.readable_topics()
    summaries = {each.name: each for each in found}
    deleted = {each.name: each for each in admin.deleted_topics()}
    for name in names:
        if name in unreadable:
            yield table_rows.topic_error_row(name, str(unreadable[name]))
        elif name in deleted:
            yield table_rows.deleted_topic_row(deleted[name])
        elif name in summaries:
            try:
                yield table_rows.topic_row(summaries[name], admin.bounds(name), None)
            except UnknownTopic:
                pass  # it was deleted a moment ago
            except VqError as error:
                yield table_rows.topic_row(summaries[name], None, str(error))


def _brokers(admin: Admin, _: Sequence[str]) -> Iterator[Row]:
    yield from map(table_rows.broker_row, admin.cluster_status().brokers)


def _audit(admin: Admin, _: Sequence[str]) -> Iterator[Row]:
    problems: list[Row] = []
    yield from table_rows.audit_rows(
        _told(partial(admin.list_topics, reserved=True), [], "topic_created", problems),
        _told(admin.deleted_topics, [], "topic_deleted", problems),
        _told(admin.archive_history, [], "archive_run", problems),
        _told(admin.unclean_elections, {}, "unclean_election", problems),
    )
    yield from problems


def _told(read: Callable[[], T], otherwise: T, kind: str, problems: list[Row]) -> T:
    """Return what is read; note a row with the error if it cannot be."""
    try:
        return read()
    except VqError as error:
        problems.append(table_rows.audit_error_row(kind, str(error)))
        return otherwise


class _Table(DataSource):
    """A table; the options are those that say where the cluster is."""

    #: The name of the format, and the columns.
    format: ClassVar[str]
    columns: ClassVar[str]
    #: What tells the names that are dealt out to tasks (None: one task), and the rows of some.
    look: ClassVar[tuple[_Names | None, _Rows]]

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return cls.format

    def schema(self) -> str:
        """Return the columns."""
        return self.columns

    @untraced
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader."""
        given = Given(self.options, Connect.NAMES)
        connect = Connect.taken(given)
        given.end()
        return _Reader(connect, schema, self.columns, *self.look)


class LagTable(_Table):
    """How far each consumer group is behind in each partition."""

    format, columns, look = "vq.lag", table_rows.LAG_SCHEMA, (_groups, _lags)


class TopicsTable(_Table):
    """All topics, with those that are deleted and can be brought back."""

    format, columns, look = "vq.topics", table_rows.TOPICS_SCHEMA, (_topic_names, _topics)


class BrokersTable(_Table):
    """The nodes of all broker groups."""

    format, columns, look = "vq.brokers", table_rows.BROKERS_SCHEMA, (None, _brokers)


class AuditTable(_Table):
    """What ZooKeeper remembers of acts that changed something."""

    format, columns, look = "vq.audit", table_rows.AUDIT_SCHEMA, (None, _audit)


TABLES: Final = (LagTable, TopicsTable, BrokersTable, AuditTable)
