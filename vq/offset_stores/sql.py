"""Progress in an SQL database: SQLite, PostgreSQL, MariaDB or MySQL, through SQLAlchemy.

A claim reads its row under a lock and puts its fence in, in one transaction. A batch of commits is
one statement, which the fences guard. ``commit_in`` does the same inside a transaction of the
application, so that an offset and the results it stands for are stored together or not at all.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from vq import limits
from vq.bounds import check_within
from vq.clock import SystemClock
from vq.errors import (
    AlreadyHandled,
    GenerationStale,
    InvalidArgument,
    InvalidState,
    OffsetStoreFailed,
)
from vq.extras import install_command
from vq.model import Message, check_name
from vq.offset_stores.table import (
    Commit,
    Fence,
    Key,
    OffsetTable,
    Outcome,
    Row,
    RowClaim,
    begun,
    committed,
)
from vq.shown import shown

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

T = TypeVar("T")
#: What a URL says, and the driver that is taken if it names none.
_DRIVERS: Final = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
#: How often something is tried again that another process did at the same moment.
_TRIES: Final = 3
#: Option of a connection whose transaction writes nothing.
_ONLY_READS: Final = "vq_only_reads"
#: Longest name of a table: PostgreSQL has 63 characters, and the second table adds seven.
_TABLE_CHARS_MAX: Final = 50


class _Served(NamedTuple):
    """A claim of a member of this process, for ``commit_in``."""

    key: Key
    begin: RowClaim


class SqlOffsetStore(OffsetTable):
    """Keeps the offsets of groups in an SQL database, in tables that it makes by itself.

    Args:
        url: Of SQLAlchemy: ``sqlite:////var/lib/shop/offsets.db``,
            ``postgresql://user:password@host/database``, ``mariadb://…`` or ``mysql://…``. A
            driver may be named (``mysql+mysqldb``); without one it is psycopg and PyMySQL.
        table: Name of the table; a second one has its name with ``_schema`` behind it. Two clusters
            of the same name need two tables.
        timeout_s: Bound of a connection, of waiting for a lock and of a statement.
    """

    def __init__(self, url: str, *, table: str = "vq_offsets", timeout_s: float = 5.0) -> None:
        check_name("table", table)
        if not table.isidentifier() or len(table) > _TABLE_CHARS_MAX:
            raise InvalidArgument(
                f"table = {shown(table)} is not 1 to {_TABLE_CHARS_MAX} letters, digits and _"
            )
        check_within("timeout_s", timeout_s, 0.1, limits.TIMEOUT_S_MAX)
        try:
            import sqlalchemy

            from vq.offset_stores.statements import Statements
        except ImportError as error:
            raise InvalidState(
                f"vq.SqlOffsetStore needs SQLAlchemy: {install_command('sql')}"
            ) from error
        self._timeout_s = float(timeout_s)
        self._engine = engine_of(url, self._timeout_s)
        self._statements = Statements(table)
        self._sqlalchemy_error = sqlalchemy.exc.SQLAlchemyError
        self._integrity_error = sqlalchemy.exc.IntegrityError
        self._clock = SystemClock()
        self._mutex = threading.Lock()
        self._id = ""
        self._served: dict[tuple[str, int], dict[str, _Served]] = {}
        self._of_application: dict[Key, Fence] = {}  # where it has committed in its transactions

    def __repr__(self) -> str:
        return f"SqlOffsetStore({self._engine.url.render_as_string(hide_password=True)!r})"

    @property
    def timeout_s(self) -> float:
        """See ``OffsetTable``: a connection, and a few statements that wait for locks."""
        return 4 * self._timeout_s

    @property
    def shown(self) -> str:
        """See ``OffsetTable``."""
        url = self._engine.url
        where = "/".join(part for part in (url.host or "", url.database or "") if part)
        return f"{self._engine.dialect.name} {where}, table {self._statements.rows.name}"

    def open(self) -> str:
        """See ``OffsetTable``."""
        if not self._id:
            self._id = self._retried(self._open)
        kind = self._engine.dialect.name
        return f"{'mysql' if kind == 'mariadb' else kind}:{self._id}"

    def begin(self, claimed: Mapping[Key, RowClaim]) -> Outcome:
        """See ``OffsetTable``. For vq only."""
        if not claimed:
            return {}
        outcome = self._retried(lambda connection: self._begin(connection, claimed))
        with self._mutex:
            for key, begin in claimed.items():
                if not isinstance(outcome[key], GenerationStale):
                    of_place = self._served.setdefault((key.topic, key.partition), {})
                    of_place[key.group] = _Served(key, begin)
        return outcome

    def commit(self, commits: Sequence[Commit]) -> Outcome:
        """See ``OffsetTable``. For vq only.

        Where the application commits in transactions of its own, one of them may have locked the
        row, which would hold up the other rows. So those are read first, which waits for nobody.
        """
        with self._mutex:
            theirs = [each for each in commits if self._of_application.get(each.key) == each.fence]
        outcome: Outcome = {}
        if theirs:
            found = self._in_transaction(lambda each: self._read(each, theirs), only_reads=True)
            for each in theirs:
                row = found.get(each.key)
                if row is None or row.offset is None or row.fence != each.fence:
                    continue
                if row.offset.offset >= each.offset.offset and not each.may_go_back:
                    outcome[each.key] = row
        rest = [each for each in commits if each.key not in outcome]
        if rest:
            outcome |= self._in_transaction(lambda connection: self._commit(connection, rest))
        return outcome

    def read(self, cluster: str, group: str, topics: Collection[str]) -> dict[Key, Row]:
        """See ``OffsetTable``. For vq only."""
        statement = self._statements.of_topics(cluster, group, list(topics))
        return self._in_transaction(lambda each: _rows(each, statement), only_reads=True)

    def forget(self, cluster: str, group: str) -> int:
        """See ``OffsetTable``."""
        self.open()
        delete = self._statements.rows.delete().where(self._statements.of_group(cluster, group))
        return self._in_transaction(lambda connection: int(connection.execute(delete).rowcount))

    def close(self) -> None:
        """See ``OffsetTable``; it may be used again, and then connects anew."""
        self._engine.dispose()

    # With the application's data ------------------------------------------------------------------
    def commit_in(
        self, connection: Any, message: Message | Sequence[Message], *, group: str = ""
    ) -> None:
        """Commit a message inside a transaction of the application, with the results of it.

        The listener calls it before it ends the transaction. The offset and the results are then
        stored together or not at all: after a crash no result is missing and none is there twice.
        What it raises must leave the transaction, so that this is rolled back, and the listener.

        Args:
            connection: Of the store's database: a SQLAlchemy ``Connection`` or ``Session`` (of the
                asynchronous ones: ``await session.run_sync(store.commit_in, message)``), or a
                PEP 249 connection of the same kind of driver. Its transaction must not be in
                autocommit mode.
            message: The message, or the list of them, that the listener got.
            group: The group; only needed if consumers of several groups share this store.

        Raises:
            AlreadyHandled: The results of an earlier try are stored; the consumer takes the message
                as handled.
            GenerationStale: Another member has the partition now.
            InvalidState: The consumer handles several messages of a partition at a time, no
                consumer of this process has the partition, the connection is in autocommit mode, or
                the message comes from the group's retry topic.
        """
        messages = [message] if isinstance(message, Message) else list(message)
        if not messages:
            return
        first, last = messages[0], messages[-1]
        if last.next_offset < 0:
            raise InvalidState(
                f"message {last.offset} of {last.topic}-{last.partition} comes from the retry topic"
                " of its group, or from no consumer: its place was passed by when it was "
                "copied there, so no offset can be stored with its results; with commit_in give "
                "on_failure = 'hold', 'stop' or 'dead-letter'"
            )
        served = self._served_at(first, group)
        values = {
            **_key_values(served.key),
            "at_life": served.begin.fence.life,
            "at_generation": served.begin.fence.generation,
            "at_place": first.offset,
            "next_place": last.next_offset,
            "next_id": last.id,
            "now_ms": self._clock.wall_ms(),
            "by_member": served.begin.member,
        }
        execute = self._executor(connection)
        count, _ = execute(self._statements.commit_in, values)
        if count != 1:
            _, found = execute(self._statements.row_at, _key_values(served.key))
            raise self._why_not_in(served, messages, found)
        with self._mutex:
            self._of_application[served.key] = served.begin.fence

    def _served_at(self, message: Message, group: str) -> _Served:
        with self._mutex:
            found = dict(self._served.get((message.topic, message.partition), {}))
        if group:
            found = {name: each for name, each in found.items() if name == group}
        if not found:
            of_group = f" of group {group!r}" if group else ""
            raise InvalidState(
                f"no consumer{of_group} with this store in this process has had partition "
                f"{message.topic}-{message.partition}: give ConsumerConfig(offset_store=...) the "
                "same store"
            )
        if len(found) > 1:
            raise InvalidState(
                f"groups {', '.join(sorted(found))} of this process read "
                f"{message.topic}-{message.partition} with this store: say which, commit_in(…, "
                "group=...)"
            )
        [served] = found.values()
        if not served.begin.in_order:
            raise InvalidState(
                f"a consumer of group {served.key.group!r} handles several messages of a partition "
                "at a time, so an offset says nothing of one of them; commit_in needs "
                "ConsumerConfig(mode='orderly')"
            )
        return served

    def _why_not_in(
        self, served: _Served, messages: Sequence[Message], found: Mapping[str, Any] | None
    ) -> Exception:
        """Return why a transaction of the application was not to commit."""
        key, fence = served.key, served.begin.fence
        if found is None:
            return OffsetStoreFailed(
                f"{self.shown} has no row for {key}: it was deleted, or the transaction is of "
                "another database than the store's"
            )
        if (found["life"], found["generation"]) != fence:
            return GenerationStale(
                f"{key} belongs to another claim now: {self.shown} has "
                f"{(found['life'], found['generation'])}, this member {tuple(fence)}"
            )
        place = found["place"]
        if place is None:
            return OffsetStoreFailed(f"{self.shown} has no offset for {key}; it is tried again")
        done = sum(each.offset < place for each in messages)
        return AlreadyHandled(
            f"the results of {done} of {len(messages)} message(s) from offset "
            f"{messages[0].offset} of {key} on are stored already, up to offset {place}",
            details={"done": done, "offset": place},
        )

    def _executor(
        self, connection: Any
    ) -> Callable[[Any, dict[str, Any]], tuple[int, Mapping[str, Any] | None]]:
        """Return what executes a statement: its row count, and the first row of a SELECT."""
        from sqlalchemy import Connection, Engine
        from sqlalchemy.orm import Session

        if isinstance(connection, Engine) or not (
            isinstance(connection, Connection | Session) or hasattr(connection, "cursor")
        ):
            raise InvalidArgument(
                f"connection = {shown(connection)} is {type(connection).__name__}; give a "
                "SQLAlchemy Connection or Session, or a PEP 249 connection, in a transaction"
            )
        if not isinstance(connection, Connection | Session):
            _check_transaction(connection)
            return lambda statement, values: self._execute_plainly(connection, statement, values)

        of = connection if isinstance(connection, Connection) else connection.connection()
        if not of.in_transaction():
            of.begin()  # as its first statement would
        _check_transaction(of.connection.dbapi_connection)

        def execute(statement: Any, values: dict[str, Any]) -> tuple[int, Mapping[str, Any] | None]:
            result: Any = of.execute(statement, values)
            if result.returns_rows:
                row = result.mappings().first()
                return 0, None if row is None else dict(row)
            return result.rowcount, None

        return execute

    def _execute_plainly(
        self, connection: Any, statement: Any, values: dict[str, Any]
    ) -> tuple[int, Mapping[str, Any] | None]:
        """Execute a statement on a PEP 249 connection, in its driver's style of parameters."""
        compiled = statement.compile(dialect=self._engine.dialect)
        # Values that the statement has itself are among its parameters, too.
        known = compiled.construct_params(values)
        given = [known[name] for name in compiled.positiontup] if compiled.positional else known
        cursor = connection.cursor()
        try:
            cursor.execute(str(compiled), given)
            if cursor.description is None:
                return cursor.rowcount, None
            names = [each[0] for each in cursor.description]
            row = cursor.fetchone()
            return 0, None if row is None else _named(names, row)
        finally:
            cursor.close()

    # In a transaction of the store ----------------------------------------------------------------
    def _open(self, connection: "Connection") -> str:
        import secrets

        import sqlalchemy as sa

        from vq.offset_stores.statements import SCHEMA

        self._statements.metadata.create_all(connection)
        schema = self._statements.schema
        found = connection.execute(sa.select(schema)).mappings().first()
        if found is None:
            identity = secrets.token_hex(8)
            connection.execute(
                schema.insert(), {"only": 1, "version": SCHEMA, "store_id": identity}
            )
            return identity
        if found["version"] > SCHEMA:
            raise InvalidState(
                f"the tables of {self.shown} have version {found['version']}, this vq knows "
                f"{SCHEMA}; upgrade vq here"
            )
        return str(found["store_id"])

    def _begin(self, connection: "Connection", claimed: Mapping[Key, RowClaim]) -> Outcome:
        from vq.offset_stores.statements import row_values

        keys = sorted(claimed)
        read = self._statements.read(keys).with_for_update()
        found = _rows(connection, read)
        outcome = {key: begun(key, found.get(key), claimed[key]) for key in keys}
        new, changed = [], []
        for key, row in outcome.items():
            if isinstance(row, GenerationStale):
                continue
            if key not in found:
                new.append({**_key_values(key, prefix=""), **row_values(row)})
            elif row != found[key]:
                changed.append({**_key_values(key), **row_values(row)})
        if new:
            connection.execute(self._statements.rows.insert(), new)
        if changed:
            connection.execute(self._statements.set_row, changed)
        return outcome

    def _commit(self, connection: "Connection", commits: Sequence[Commit]) -> Outcome:
        result = connection.execute(self._statements.commit(commits))
        if result.rowcount == len(commits):
            return {each.key: Row(each.fence, each.offset, each.revision + 1) for each in commits}
        return self._sorted_out(connection, commits)

    def _sorted_out(self, connection: "Connection", commits: Sequence[Commit]) -> Outcome:
        """Return what became of commits of which some were not written."""
        found = self._read(connection, commits)
        outcome: Outcome = {}
        for each in commits:
            row = found.get(each.key)
            is_written = row is not None and row.fence == each.fence and row.offset == each.offset
            outcome[each.key] = row if is_written and row is not None else committed(row, each)
        return outcome

    def _read(self, connection: "Connection", commits: Sequence[Commit]) -> dict[Key, Row]:
        return _rows(connection, self._statements.read(sorted(each.key for each in commits)))

    def _retried(self, work: "Callable[[Connection], T]") -> T:
        """Do ``work`` in a transaction; again where another process made the same at the moment."""
        for _ in range(_TRIES - 1):
            try:
                return self._in_transaction(work)
            except OffsetStoreFailed as error:
                failed = error
                if not (isinstance(error.__cause__, self._integrity_error) or self._is_made(error)):
                    raise
        try:
            return self._in_transaction(work)
        except OffsetStoreFailed as error:
            raise error from failed

    def _is_made(self, error: OffsetStoreFailed) -> bool:
        """Whether a table was made by another process while this one was about to."""
        return "already exists" in str(error)

    def _in_transaction(self, work: "Callable[[Connection], T]", *, only_reads: bool = False) -> T:
        engine = self._engine.execution_options(**{_ONLY_READS: only_reads})
        try:
            with engine.begin() as connection:
                return work(connection)
        except (self._sqlalchemy_error, OSError) as error:
            raise OffsetStoreFailed(f"{self.shown}: {_text(error)}") from error


def _rows(connection: "Connection", statement: Any) -> dict[Key, Row]:
    from vq.offset_stores.statements import row_of

    return dict(row_of(dict(each)) for each in connection.execute(statement).mappings())


def _named(names: Sequence[str], row: Any) -> Mapping[str, Any]:
    return row if isinstance(row, Mapping) else dict(zip(names, row, strict=True))


def _key_values(key: Key, prefix: str = "at_") -> dict[str, Any]:
    from vq.offset_stores.statements import key_values

    return key_values(key, prefix)


def _text(error: Exception) -> str:
    """Return what a driver said; SQLAlchemy adds the whole statement to it."""
    said = str(getattr(error, "orig", None) or error).strip()
    return f"{type(error).__name__}: {said.splitlines()[0] if said else 'no reason given'}"


def _check_transaction(connection: Any) -> None:
    """Refuse a connection that would commit the next statement by itself.

    Drivers say it in different ways; one that says it in none of them is taken.
    """
    alone: bool | None = None
    if hasattr(connection, "in_transaction"):  # sqlite3; ``autocommit`` is of Python 3.12 and later
        by_itself = getattr(connection, "autocommit", -1) is True
        alone = (by_itself or connection.isolation_level is None) and not connection.in_transaction
    elif hasattr(connection, "info"):  # psycopg, psycopg2
        idle = int(getattr(connection.info, "transaction_status", 1)) == 0
        alone = bool(getattr(connection, "autocommit", False)) and idle
    elif hasattr(connection, "get_autocommit"):  # PyMySQL, mysqlclient
        begun_by_hand = bool(getattr(connection, "server_status", 0) & 1)
        alone = bool(connection.get_autocommit()) and not begun_by_hand
    if alone:
        raise InvalidState(
            "the connection is in autocommit mode: the offset would be committed without "
            "the results of the message; begin a transaction"
        )


def engine_of(given: str, timeout_s: float) -> "Engine":
    """Return an engine for a URL, whose every wait has a bound."""
    import sqlalchemy as sa

    try:
        url = sa.make_url(given)
    except sa.exc.ArgumentError as error:
        raise InvalidArgument(
            "url is not one of SQLAlchemy, such as postgresql://user@host/database"
        ) from error
    kind = url.get_backend_name()
    if kind not in _DRIVERS:
        raise InvalidArgument(
            f"url names a database of {kind}; vq takes {', '.join(sorted(_DRIVERS))}"
        )
    if url.drivername == kind:
        url = url.set(drivername=_DRIVERS[kind])
    seconds, whole_ms = max(1, round(timeout_s)), int(timeout_s * 1000)
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 2, "pool_timeout": timeout_s}
    arguments: dict[str, Any] = {}
    if kind == "sqlite":
        if not url.database or url.database == ":memory:" or "mode=memory" in str(url):
            raise InvalidArgument(
                "url is of a database in memory, which a restart loses; name a file"
            )
        arguments = {"timeout": timeout_s, "check_same_thread": False}
    elif kind == "postgresql":
        limited = f"-c statement_timeout={whole_ms} -c lock_timeout={whole_ms}"
        arguments = {"connect_timeout": seconds, "options": limited, "tcp_user_timeout": whole_ms}
    elif url.get_driver_name() == "pymysql":
        arguments = {
            "connect_timeout": seconds,
            "read_timeout": 2 * seconds,
            "write_timeout": 2 * seconds,
            "init_command": f"SET innodb_lock_wait_timeout = {seconds}",
        }
    if kind != "sqlite":
        options |= {"pool_pre_ping": True, "isolation_level": "READ COMMITTED"}
    try:
        engine = sa.create_engine(url, connect_args=arguments, **options)
    except ImportError as error:
        raise InvalidState(
            f"url needs the driver {url.drivername}, which is not installed: {error}; "
            f"{install_command('sql')}"
        ) from error
    if kind == "sqlite":
        _begin_with_lock(engine)
    return engine


def _begin_with_lock(engine: "Engine") -> None:
    """Have a transaction of SQLite that will write take its lock at the beginning.

    Otherwise one that reads before it writes is refused, when another one wrote in between.
    """
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # the driver begins nothing by itself

    @event.listens_for(engine, "begin")
    def _begins(connection: Any) -> None:
        only_reads = connection.get_execution_options().get(_ONLY_READS)
        connection.exec_driver_sql("BEGIN" if only_reads else "BEGIN IMMEDIATE")
