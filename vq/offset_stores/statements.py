"""The tables of an SQL offset store, and the statements that read and write them.

    vq_offsets          one row for each key, see ``table``
    vq_offsets_schema   one row: the version of both tables, and the identity of the store

Only this module and ``sql`` import SQLAlchemy, and only once a store is made.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from vq import limits
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.offset_stores.table import Commit, Fence, Key, Row

#: Version of the tables; a store of a higher one is refused.
SCHEMA: Final = 1
#: Columns of the key, in the order of ``Key``.
_KEY: Final = ("cluster_name", "group_name", "topic_name", "partition_no")
#: Longest text of ``stopped`` that is kept.
_STOPPED_MAX: Final = 4_000


def _name() -> Any:
    """A name of vq: ASCII, and compared by its bytes, which MySQL does not do unless told so."""
    plain = sa.String(limits.NAME_CHARS_MAX)
    exact = mysql.VARCHAR(limits.NAME_CHARS_MAX, charset="ascii", collation="ascii_bin")
    return plain.with_variant(exact, "mysql", "mariadb")


class Statements:
    """The tables under one name, and what is done with them."""

    def __init__(self, table: str) -> None:
        self.metadata = sa.MetaData()
        options: dict[str, Any] = {
            f"{dialect}_{name}": value
            for dialect in ("mysql", "mariadb")
            for name, value in (("engine", "InnoDB"), ("charset", "utf8mb4"))
        }
        self.rows = sa.Table(
            table,
            self.metadata,
            *(sa.Column(name, _name(), primary_key=True) for name in _KEY[:3]),
            sa.Column("partition_no", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("life", sa.BigInteger, nullable=False),
            sa.Column("generation", sa.BigInteger, nullable=False),
            sa.Column("revision", sa.BigInteger, nullable=False),
            sa.Column("place", sa.BigInteger),
            sa.Column("message_id", sa.BigInteger),
            sa.Column("epoch", sa.BigInteger, nullable=False),
            sa.Column("time_ms", sa.BigInteger, nullable=False),
            sa.Column("member", sa.String(2 * limits.NAME_CHARS_MAX), nullable=False),
            sa.Column("topic_id", sa.String(64), nullable=False),
            sa.Column("stopped", sa.Text, nullable=False),
            **options,
        )
        self.schema = sa.Table(
            f"{table}_schema",
            self.metadata,
            sa.Column("only", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("version", sa.Integer, nullable=False),
            sa.Column("store_id", sa.String(32), nullable=False),
            **options,
        )
        columns = self.rows.c
        self._key = sa.tuple_(*(columns[name] for name in _KEY[2:]))
        #: Sets one row that is there, whatever it has.
        self.set_row = self.rows.update().where(
            *(columns[name] == sa.bindparam(f"at_{name}") for name in _KEY)
        )
        #: See ``SqlOffsetStore.commit_in``.
        self.commit_in = (
            self.rows.update()
            .where(
                *(columns[name] == sa.bindparam(f"at_{name}") for name in _KEY),
                columns.life == sa.bindparam("at_life"),
                columns.generation == sa.bindparam("at_generation"),
                columns.place <= sa.bindparam("at_place"),
            )
            .values(
                place=sa.bindparam("next_place"),
                message_id=sa.bindparam("next_id"),
                epoch=0,
                time_ms=sa.bindparam("now_ms"),
                member=sa.bindparam("by_member"),
                stopped="",
                revision=columns.revision + 1,
            )
        )
        #: Reads the row that ``commit_in`` did not find as it should be.
        self.row_at = sa.select(self.rows).where(
            *(columns[name] == sa.bindparam(f"at_{name}") for name in _KEY)
        )

    def of_group(self, cluster: str, group: str) -> Any:
        """Return the condition for the rows of a group."""
        return sa.and_(self.rows.c.cluster_name == cluster, self.rows.c.group_name == group)

    def of_topics(self, cluster: str, group: str, topics: Sequence[str]) -> Any:
        """Return what reads the rows of a group in some topics."""
        return sa.select(self.rows).where(
            self.of_group(cluster, group), self.rows.c.topic_name.in_(topics)
        )

    def read(self, keys: Sequence[Key]) -> Any:
        """Return what reads some rows of one group, in the order in which all lock them."""
        cluster, group, _, _ = keys[0]
        places = [(key.topic, key.partition) for key in keys]
        return (
            sa.select(self.rows)
            .where(self.of_group(cluster, group), self._key.in_(places))
            .order_by(*(self.rows.c[name] for name in _KEY))
        )

    def commit(self, commits: Sequence[Commit]) -> Any:
        """Return the one statement that writes progress of one group.

        It writes where the fence is that of the claim, and the progress not beyond it. A join with
        the values would be shorter, but MySQL then compares names without regard to their case.
        """
        cluster, group, _, _ = commits[0].key
        columns = self.rows.c
        at = [
            sa.and_(
                columns.topic_name == each.key.topic, columns.partition_no == each.key.partition
            )
            for each in commits
        ]
        writable = [
            sa.and_(
                where,
                columns.life == each.fence.life,
                columns.generation == each.fence.generation,
                *(
                    ()
                    if each.may_go_back
                    else (sa.or_(columns.place.is_(None), columns.place <= each.offset.offset),)
                ),
            )
            for where, each in zip(at, commits, strict=True)
        ]
        wanted = [progress_values(each.offset) for each in commits]
        values = {
            name: self._chosen(name, at, [each[name] for each in wanted]) for name in wanted[0]
        }
        return (
            self.rows.update()
            .where(self.of_group(cluster, group), sa.or_(*writable))
            .values(**values, revision=columns.revision + 1)
        )

    def _chosen(self, name: str, at: Sequence[Any], values: Sequence[Any]) -> Any:
        """Return the value of a column for each row; mostly all rows have the same."""
        kind = self.rows.c[name].type
        if all(each == values[0] for each in values):
            return sa.literal(values[0], kind)
        pairs = zip(at, values, strict=True)
        return sa.case(*((where, sa.literal(each, kind)) for where, each in pairs))


def key_values(key: Key, prefix: str = "") -> dict[str, Any]:
    """Return the columns of a key."""
    return {prefix + name: value for name, value in zip(_KEY, key, strict=True)}


def progress_values(offset: CommittedOffset | None) -> dict[str, Any]:
    """Return the columns of progress; of none, an empty place."""
    known = CommittedOffset(offset=0) if offset is None else offset
    return {
        "place": None if offset is None else offset.offset,
        "message_id": known.message_id,
        "epoch": known.epoch,
        "time_ms": known.time_ms,
        "member": known.member,
        "topic_id": known.topic_id,
        "stopped": _storable(known.stopped[:_STOPPED_MAX]),
    }


def _storable(text: str) -> str:
    """Return a text without what a database refuses: what a listener raised may have anything."""
    return text.replace("\0", "?").encode("utf-8", "replace").decode()


def row_values(row: Row) -> dict[str, Any]:
    """Return the columns of a row, without its key."""
    return {**row.fence._asdict(), "revision": row.revision, **progress_values(row.offset)}


def row_of(found: Mapping[str, Any]) -> tuple[Key, Row]:
    """Return a row as it was read."""
    offset = None
    if found["place"] is not None:
        offset = CommittedOffset(
            offset=found["place"],
            message_id=found["message_id"],
            epoch=found["epoch"],
            time_ms=found["time_ms"],
            member=found["member"],
            topic_id=found["topic_id"],
            stopped=found["stopped"],
        )
    key = Key(*(found[name] for name in _KEY))
    return key, Row(Fence(found["life"], found["generation"]), offset, found["revision"])
