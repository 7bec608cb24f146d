"""Two people who change accounts at the same moment."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Connection, event
from sqlalchemy.engine import Engine

from vq.console.database.database import Database

_WAIT_S = 30.0


def at_the_same_time(
    database: Database, first: Callable[[Connection], Any], second: Callable[[Connection], Any]
) -> list[BaseException | None]:
    """Run two transactions; the first ends when the second has come to its first change.

    Returns:
        What each has raised.
    """
    writes = threading.Event()
    raised: list[BaseException | None] = [None, None]

    def other() -> None:
        try:
            database.run_here(second)
        except Exception as error:
            raised[1] = error
        finally:
            writes.set()

    thread = threading.Thread(target=other)

    def both(connection: Connection) -> None:
        first(connection)
        thread.start()
        assert writes.wait(_WAIT_S), "the second transaction changes nothing"

    with _told(writes, lambda: threading.current_thread() is thread):
        try:
            database.run_here(both)
        except Exception as error:
            raised[0] = error
        thread.join(_WAIT_S)
    assert not thread.is_alive()
    return raised


@contextlib.contextmanager
def _told(writes: threading.Event, is_other: Callable[[], bool]) -> Iterator[None]:
    """Have it told when the other thread is about to change something."""

    def look(_conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if is_other() and statement.startswith(("UPDATE", "DELETE", "INSERT")):
            writes.set()

    event.listen(Engine, "before_cursor_execute", look)
    try:
        yield
    finally:
        event.remove(Engine, "before_cursor_execute", look)
