"""A database of the console: opened, brought to the newest schema, and worked with by threads."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, make_url

from vq.errors import InvalidArgument, VqError
from vq.shown import shown

T = TypeVar("T")
#: Connections, and threads that wait for the database.
_THREADS: Final = 4
_TIMEOUT_S: Final = 10
_UPGRADE_WAIT_S: Final = 60
_UPGRADE_LOCK: Final = 0x7671_636F  # a number of PostgreSQL's that means this to vq only
_KINDS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
}
_MIGRATIONS: Final = Path(__file__).parent / "migrations"


class DatabaseFailed(VqError):
    """The console's database does not do what it is asked."""

    hint = (
        "the console keeps accounts and its audit there: look at --database and "
        "VQ_CONSOLE_DATABASE, and whether this user may open it"
    )


class NoDatabase(DatabaseFailed):
    """There is no database of a console at this place; none was made."""

    hint = (
        "look at --database, VQ_CONSOLE_DATABASE and the working directory; `vq console account "
        "add`, and `vq console` itself, make one"
    )


class NoPlace(DatabaseFailed):
    """A database of SQLite cannot be where it is to be."""

    hint = "make the directory, or give another file with --database or VQ_CONSOLE_DATABASE"


class Database:
    """What the console remembers. Methods are for the loop; the work itself runs on threads.

    Args:
        url: For SQLAlchemy: ``sqlite:///FILE``, ``postgresql://…``, ``mariadb://…``, ``mysql://…``.

    Raises:
        InvalidArgument: The URL is of none of these.
    """

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._threads = ThreadPoolExecutor(_THREADS, "vq-console-db")

    @property
    def name(self) -> str:
        """The URL without a password and a driver, for people."""
        url = self._engine.url
        return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)

    def upgrade(self, *, make: bool = True) -> bool:
        """Bring the tables to the newest schema; for a thread of its own, or before the loop runs.

        Args:
            make: Make the tables, and the file of SQLite, where there are none.

        Returns:
            Whether there were none.

        Raises:
            NoDatabase: There are none, and none are to be made.
            NoPlace: See ``check_file``.
            DatabaseFailed: It cannot be reached, or its schema is of a newer vq.
        """
        self.check_file(make=make)
        config = Config()
        config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
        known = {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}
        try:
            with self._engine.connect() as connection, _alone(connection):
                present = _revision(connection)
                if present is None and not make:
                    raise NoDatabase(f"{self.name} has no tables of a console")
                if present is not None and present not in known:
                    raise DatabaseFailed(
                        f"{self.name} has schema {shown(present)}, which is of a newer vq: start "
                        "that one, or give another database"
                    )
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise DatabaseFailed(f"{self.name} cannot be opened: {_cause(error)}") from error
        return present is None

    def check_file(self, *, make: bool) -> None:
        """Check where SQLite has its file, before anything is made or asked for.

        Args:
            make: The file may be missing; its directory may not.

        Raises:
            NoDatabase: The file is missing: SQLite makes it as soon as it is opened.
            NoPlace: Its directory is missing, or it is a directory itself.
        """
        url = self._engine.url
        file = url.database if url.get_backend_name() == "sqlite" else None
        if not file or file == ":memory:" or file.startswith("file:"):
            return
        path = Path(file)
        if not make and not path.exists():
            raise NoDatabase(f"there is no database of a console: {shown(file)} does not exist")
        if path.is_dir():
            raise NoPlace(f"{self.name} names no file: {shown(file)} is a directory")
        if not path.parent.is_dir():
            raise NoPlace(
                f"{self.name} cannot be made: the directory {shown(str(path.parent))} does not "
                "exist"
            )

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run work in one transaction on a thread; return its result.

        Raises:
            DatabaseFailed: The database failed; the transaction did not happen, or nobody knows.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, self.run_here, work)

    def run_here(self, work: Callable[[Connection], T]) -> T:
        """Run work on this thread, as commands do that have no loop.

        Raises:
            DatabaseFailed: As ``run``.
        """
        try:
            with self._engine.begin() as connection:
                return work(connection)
        except sqlalchemy.exc.SQLAlchemyError as error:
            raise DatabaseFailed(f"{self.name}: {_cause(error)}") from error

    def close(self) -> None:
        """Close all connections once their work has ended."""
        self._threads.shutdown()
        self._engine.dispose()


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        driver = _KINDS[parsed.get_backend_name()]
    except (sqlalchemy.exc.ArgumentError, KeyError):
        raise InvalidArgument(
            f"database {shown(_without_password(url))} is not one of sqlite:///FILE, "
            "postgresql://USER:PASSWORD@HOST/NAME, mariadb://… or mysql://…"
        ) from None
    parsed = parsed.set(drivername=driver)
    if driver.startswith("sqlite"):
        engine = sqlalchemy.create_engine(
            parsed, connect_args={"timeout": _TIMEOUT_S}, pool_size=_THREADS
        )
        event.listen(engine, "connect", _prepare_sqlite)
        return engine
    return sqlalchemy.create_engine(
        parsed,
        pool_size=_THREADS,
        pool_timeout=_TIMEOUT_S,
        pool_pre_ping=True,
        connect_args={"connect_timeout": _TIMEOUT_S},
    )


def _prepare_sqlite(connection: object, _record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()


@contextlib.contextmanager
def _alone(connection: Connection) -> Iterator[None]:
    """Hold a transaction in which no other console that starts changes the tables.

    Raises:
        DatabaseFailed: Another one takes too long.
    """
    kind = connection.dialect.name
    if kind != "mysql":
        with connection.begin():
            if kind == "sqlite":
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            else:
                lock = sqlalchemy.func.pg_advisory_xact_lock(_UPGRADE_LOCK)
                connection.execute(sqlalchemy.select(lock))
            yield
        return
    lock = sqlalchemy.func.get_lock("vq-console", _UPGRADE_WAIT_S)
    held = connection.execute(sqlalchemy.select(lock)).scalar()
    connection.commit()
    if held != 1:
        raise DatabaseFailed(f"another console changes the tables for {_UPGRADE_WAIT_S} s already")
    try:
        with connection.begin():
            yield
    finally:  # after the commit: the next one has to see it
        connection.execute(sqlalchemy.select(sqlalchemy.func.release_lock("vq-console")))


def _revision(connection: Connection) -> str | None:
    if not sqlalchemy.inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(sqlalchemy.text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _cause(error: sqlalchemy.exc.SQLAlchemyError) -> str:
    """Return what the driver says, without the statement and what was in it."""
    cause = getattr(error, "orig", None) or error
    return str(cause).splitlines()[0] if str(cause) else type(cause).__name__


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
