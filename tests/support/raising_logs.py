"""An application whose logging has a bug: a handler that raises for every line."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class RaisingHandler(logging.Handler):
    """Raises, and counts how often.

    Attributes:
        error: What it raises.
        lines: The messages that it was given.
    """

    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self.error = error
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """See ``logging.Handler``."""
        self.lines.append(record.getMessage())
        raise self.error("a bug of the application")


@contextmanager
def raising_logs(
    name: str = "vq", error: type[BaseException] = RuntimeError, *, level: int = logging.DEBUG
) -> Iterator[RaisingHandler]:
    """Have a logger and those below it raise for every line of a level and above."""
    handler = RaisingHandler(error)
    logger = logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
