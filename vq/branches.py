"""Branches of transactions in databases: begun, prepared, ended and listed through their drivers.

A branch is named by a xid: the format id of vq; the journal that decides, by its id, and the number
of the transaction there, in one text; and which branch of how many it is. So whoever finds one that
is prepared knows whom to ask. Drivers block: nothing here is for an event loop.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from vq.errors import InvalidArgument, InvalidState
from vq.model import Xid
from vq.shown import shown

#: ``vq`` as two letters.
FORMAT_ID: Final = 0x7671
#: Of psycopg: it is in a transaction, which has not failed. In any other state PostgreSQL prepares
#: nothing, and tells no error.
_IN_TRANSACTION: Final = 2
#: Of MariaDB and MySQL (XAER_OUTSIDE): the connection is in a transaction that is none of XA.
_WORK_OUTSIDE: Final = 1400


def global_id(journal_id: str, number: int) -> str:
    """Return the gtrid of a transaction.

    Args:
        journal_id: The id of the topic of transactions: no other cluster has one like it.
        number: Of the transaction.
    """
    return f"{journal_id}.{number}"


class FoundBranch(NamedTuple):
    """What a xid of vq says.

    Attributes:
        xid: The name.
        number: Of the transaction.
        which, among: Which of its branches it is, from 1 on, and of how many.
    """

    xid: Xid
    number: int
    which: int
    among: int


def found_in(xid: Xid, journal_id: str) -> FoundBranch | None:
    """Return what a xid says if it is of a journal; None: it is somebody else's."""
    id, _, number = xid.gtrid.rpartition(".")
    which, _, among = xid.bqual.partition(".")
    if xid.format_id != FORMAT_ID or id != journal_id:
        return None
    if not all(each.isascii() and each.isdecimal() for each in (number, which, among)):
        return None
    return FoundBranch(xid, int(number), int(which), int(among))


class Branch(Protocol):
    """One branch, on the connection on which it was begun."""

    def begin(self) -> None:
        """Begin it; what the connection does from now on is part of it."""

    def prepare(self) -> None:
        """Have it durable; it waits for the decision, also if the connection ends."""

    def commit(self) -> None:
        """Commit it; it is prepared."""

    def rollback(self) -> None:
        """Roll it back, prepared or not."""


def branch_of(connection: Any, xid: Xid) -> Branch:
    """Return a branch on a connection of a driver.

    Args:
        connection: A PEP 249 connection with the two-phase methods, such as psycopg's; or one of
            PyMySQL or mysqlclient, which have none, to MariaDB or MySQL.
        xid: Its name.

    Raises:
        InvalidArgument: The driver has no two phases.
    """
    if hasattr(connection, "tpc_begin"):
        return _PlainBranch(connection, xid)
    if _is_mysql(connection):
        return _XaBranch(connection, xid)
    raise InvalidArgument(
        f"connection = {shown(connection)} of {type(connection).__module__} has no two-phase "
        "methods; vq takes part with psycopg (PostgreSQL), and PyMySQL or mysqlclient (MariaDB, "
        "MySQL). SQLite has no two phases. Of SQLAlchemy give "
        "connection.connection.driver_connection"
    )


def _is_mysql(connection: Any) -> bool:
    """Whether it is a connection of these drivers; a cursor is none."""
    module = type(connection).__module__.partition(".")[0]
    return module in {"pymysql", "MySQLdb"} and hasattr(connection, "cursor")


class _PlainBranch:
    """A branch through the two-phase methods of PEP 249."""

    def __init__(self, connection: Any, xid: Xid) -> None:
        self._connection = connection
        self._xid = xid
        self._is_unsure = False  # its prepare has failed, or had no answer

    def begin(self) -> None:
        """See ``Branch``."""
        self._connection.tpc_begin(self._connection.xid(*self._xid))

    def prepare(self) -> None:
        """See ``Branch``."""
        info = getattr(self._connection, "info", None)
        status = getattr(info, "transaction_status", _IN_TRANSACTION)
        if status != _IN_TRANSACTION:
            raise InvalidState(
                "a statement has failed in the database's part of the transaction, or has ended "
                "it; it can only be rolled back"
            )
        self._is_unsure = True
        self._connection.tpc_prepare()
        self._is_unsure = False

    def commit(self) -> None:
        """See ``Branch``."""
        self._connection.tpc_commit()

    def rollback(self) -> None:
        """See ``Branch``.

        A driver takes what could not be prepared for prepared, and its connection is of no use any
        more: closed, the server rolls back what is not prepared.
        """
        if self._is_unsure:
            self._connection.close()
        else:
            self._connection.tpc_rollback()


class _XaBranch:
    """A branch of MariaDB or MySQL, by statements."""

    def __init__(self, connection: Any, xid: Xid) -> None:
        self._connection = connection
        self._xid = xid
        self._is_active = False

    def begin(self) -> None:
        """See ``Branch``.

        Raises:
            InvalidState: The connection is in a transaction. What it has done there is left alone.
        """
        try:
            self._execute("XA START")
        except Exception as error:
            if error.args[:1] != (_WORK_OUTSIDE,):
                raise
            raise InvalidState(
                "the connection is in a transaction of its own, which a statement has begun; "
                "commit it or roll it back before the one with messages begins"
            ) from error
        self._is_active = True

    def prepare(self) -> None:
        """See ``Branch``."""
        self._end()
        self._execute("XA PREPARE")

    def _end(self) -> None:
        if self._is_active:
            self._is_active = False
            self._execute("XA END")

    def commit(self) -> None:
        """See ``Branch``."""
        self._execute("XA COMMIT")

    def rollback(self) -> None:
        """See ``Branch``.

        What the server has ended by itself, as after a deadlock, it does not let end once more.
        """
        with contextlib.suppress(Exception):  # drivers raise what they like; what follows tells
            self._end()
        self._execute("XA ROLLBACK")

    def _execute(self, statement: str) -> None:
        _xa(self._connection, statement, self._xid)


def _xa(connection: Any, statement: str, xid: Xid) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"{statement} %s, %s, %s", (xid.gtrid, xid.bqual, xid.format_id))


class _PreparedBranch(NamedTuple):
    """A branch that is prepared in a database, and how to end it."""

    xid: Xid
    commit: Callable[[], None]
    rollback: Callable[[], None]


def prepared_in(connection: Any) -> list[_PreparedBranch]:
    """Return all branches that are prepared in the database of a connection, whoever did it.

    Raises:
        InvalidArgument: The driver has no two phases.
    """
    if hasattr(connection, "tpc_recover"):
        return list(_plainly_prepared(connection))
    if _is_mysql(connection):
        return list(_xa_prepared(connection))
    raise InvalidArgument(f"a connection of {type(connection).__module__} has no two phases")


def _plainly_prepared(connection: Any) -> Iterator[_PreparedBranch]:
    here = getattr(getattr(connection, "info", None), "dbname", None)
    for each in connection.tpc_recover():
        if getattr(each, "database", here) != here:
            continue  # PostgreSQL lists those of all its databases
        xid = Xid(each.format_id, str(each.gtrid), str(each.bqual or ""))
        yield _PreparedBranch(
            xid,
            partial(connection.tpc_commit, each),
            partial(connection.tpc_rollback, each),
        )


def _xa_prepared(connection: Any) -> Iterator[_PreparedBranch]:
    with connection.cursor() as cursor:
        cursor.execute("XA RECOVER")
        rows = cursor.fetchall()
    connection.autocommit(True)  # otherwise the server ends no branch that another one has begun
    for format_id, gtrid_length, bqual_length, data in rows:
        raw = data.encode(errors="surrogateescape") if isinstance(data, str) else bytes(data)
        parts = raw[:gtrid_length], raw[gtrid_length : gtrid_length + bqual_length]
        xid = Xid(int(format_id), *(each.decode(errors="replace") for each in parts))
        yield _PreparedBranch(
            xid,
            partial(_xa, connection, "XA COMMIT", xid),
            partial(_xa, connection, "XA ROLLBACK", xid),
        )


def check_prepares(connection: Any) -> None:
    """Return if the server of a connection can prepare anything.

    Raises:
        InvalidState: It is a PostgreSQL that is set to prepare nothing, as it is at first.
    """
    if type(connection).__module__.partition(".")[0] not in {"psycopg", "psycopg2"}:
        return
    with connection.cursor() as cursor:
        cursor.execute("SHOW max_prepared_transactions")
        (most,) = cursor.fetchone()
    if int(most) == 0:
        raise InvalidState(
            "max_prepared_transactions = 0: this PostgreSQL prepares no transaction",
            hint="set max_prepared_transactions = 100 in postgresql.conf, and restart the server",
        )
