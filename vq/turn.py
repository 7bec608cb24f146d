"""Work gathered during a turn, one iteration of the event loop, and done once at its end.

All requests that arrive in one turn share one start of a flush and, per connection, one write.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from vq.log_lines import get_logger

logger = get_logger(__name__)


class Writer(Protocol):
    """Something that gathered output in this turn."""

    def write_out(self) -> None:
        """Hand the gathered output to the transport."""
        ...


class Turn:
    """Gathers writers and actions for the end of the loop's turn.

    Args:
        call_soon: Schedules a callback behind everything that is ready now.
    """

    __slots__ = (
        "_actions",
        "_call_soon",
        "_early",
        "_is_wanted",
        "_scheduled",
        "_writers",
        "_writes",
    )

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self._actions: tuple[Callable[[], None], ...] = ()
        self._early: tuple[Callable[[], None], ...] = ()
        self._scheduled = False
        self._is_wanted = False  # by something that came since ``begin``
        self._writes = False  # at this moment
        self._writers: list[Writer] = []

    def on_end(self, action: Callable[[], None], *, early: bool = False) -> None:
        """Have ``action`` called at the end of every turn in which ``schedule`` was called.

        With ``early`` also by ``hasten``.
        """
        self._actions += (action,)
        if early:
            self._early += (action,)

    def hasten(self) -> None:
        """Do what was gathered now: nothing more is expected that could share it.

        Those actions are called that are early; what they begin goes on beside the writes.
        """
        self._act(self._early)
        self.write_out()

    def schedule(self) -> None:
        """Have ``run`` called at the end of this turn."""
        self._is_wanted = True
        if not self._scheduled:
            self._scheduled = True
            self._call_soon(self.run)

    def add(self, writer: Writer) -> None:
        """Have ``writer`` write out at the end of this turn; add it once a turn."""
        self._writers.append(writer)
        if not self._writes:
            self.schedule()

    def begin(self) -> bool:
        """Schedule nothing from now on: the caller calls ``run`` itself, whatever is raised.

        A callback that is scheduled by a callback costs one more iteration of the loop.

        Returns:
            Whether nothing was scheduled before. If so, ``leave`` may take the place of ``run``.
        """
        begins = not self._scheduled
        self._scheduled, self._is_wanted = True, False
        return begins

    def leave(self, *, hastened: bool) -> None:
        """Have the turn end later; not if nothing is to be done, or all of it was ``hastened``."""
        self._scheduled = False
        if self._is_wanted and not hastened:
            self.schedule()

    def run(self) -> None:
        """End the turn now. Actions come first: what they start goes on beside the writes."""
        self._scheduled = False
        self._act(self._actions)
        self.write_out()

    @staticmethod
    def _act(actions: Iterable[Callable[[], None]]) -> None:
        for action in actions:
            try:
                action()
            except Exception:
                logger.exception("action at the end of a loop iteration failed")

    def write_out(self) -> None:
        """Have all write that gathered output so far."""
        self._writes = True
        try:
            while self._writers:  # a fetch session that answers makes its connection one of them
                writers, self._writers = self._writers, []
                for writer in writers:
                    try:
                        writer.write_out()
                    except Exception:
                        logger.exception("writing answers failed", connection=writer)
        finally:  # a signal handler raised
            self._writes = False
