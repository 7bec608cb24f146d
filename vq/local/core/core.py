"""A local queue without its API: its parts, and the thread that commits and watches times."""

import os
import threading
import weakref
from pathlib import Path
from typing import Final

from vq.clock import Clock
from vq.errors import DiskFull, InvalidState
from vq.local.core.base import QueueBase
from vq.local.core.commits import Commits
from vq.local.core.puts import Puts
from vq.local.core.takes import Takes
from vq.local.settings import LocalQueueConfig
from vq.log_lines import get_logger
from vq.store.disk.disk import Disk

logger = get_logger(__name__)

_JOIN_S: Final = 60.0
_FORKED: Final = "the process was forked after the queue was opened: open it in the child"
_MADE: "weakref.WeakSet[QueueCore]" = weakref.WeakSet()


class QueueCore:
    """One queue of one process. ``LocalQueue`` and ``vq.aio.LocalQueue`` are its API.

    Args:
        directory: Where it is; None: in memory only.
        config: How it behaves.
        disk: The disk.
        clock: The clock.

    Attributes:
        base: What all parts use.
        puts: For puts.
        commits: For whoever waits until something is durable.
        takes: For takers.
        is_served: To other processes.
    """

    def __init__(
        self, directory: Path | None, config: LocalQueueConfig, disk: Disk, clock: Clock
    ) -> None:
        self.base = base = QueueBase(directory, config, disk, clock)
        self.puts = Puts(base)
        self.commits = Commits(base)
        self.takes = Takes(base)
        self.is_served = False
        if base.storage is not None:
            try:
                self.commits.save_at_open(base.storage)
            except BaseException:
                base.storage.close()
                raise
        self._thread = threading.Thread(target=self._work, name="vq-local", daemon=True)
        self._thread.start()
        _MADE.add(self)

    def _work(self) -> None:
        sleeper = self.base.sleeper
        self.base.thread = threading.get_ident()
        try:
            while True:
                self.commits.work()
                wait_s = self.takes.watch_times()
                if sleeper.is_ending and self.commits.is_done:
                    return
                sleeper.sleep(wait_s)
        except BaseException as error:  # somebody waits for this thread
            logger.exception("local queue failed", queue=self.base.name)
            self.commits.stop(error)
        finally:
            self.base.thread_ended()

    def end(self) -> None:
        """Commit what came in, save a snapshot, and give the files back. May be called again.

        Raises:
            StorageFailed, DiskFull: What was not durable may be lost.
            InvalidState: A signal handler has interrupted a call of the same thread, or a callback
                of a send calls it.
        """
        base = self.base
        if isinstance(base.refusal, InvalidState) or base.sleeper.is_ending:
            return
        base.check_may_wait()
        base.sleeper.is_ending = True
        base.sleeper.kick()
        self._thread.join(_JOIN_S)
        has_ended = base.leading.acquire(timeout=_JOIN_S)  # a caller that commits has returned
        try:
            self._end_storage()
        finally:
            if has_ended:
                base.leading.release()
        if base.intake.unwritten is not None:
            raise DiskFull(
                f"queue {base.name!r} is closed, and its disk was full: a loss of power may have "
                f"what was completed last given again: {base.intake.unwritten}",
                hint="messages of puts that waited are stored, others may not be; free space, then "
                "open it",
            )

    def _end_storage(self) -> None:
        base = self.base
        storage, closed = base.storage, InvalidState(f"queue {base.name!r} is closed")
        if storage is not None:
            try:
                if base.refusal is None:
                    self.commits.save(storage)
                    storage.given.keep(())  # no message has ended the process
            finally:
                base.end_with(closed)
                storage.close()
        base.refusal = None
        base.end_with(closed)
        base.opened.clear()

    def abandon_in_child(self) -> None:
        """Refuse every use from now on; called in the child of a fork."""
        base = self.base
        base.refusal = InvalidState(_FORKED)
        base.opened.clear()
        base.state.lines[0].ready.clear()
        if base.storage is not None:
            base.storage.leave_lock()


def _abandon_all() -> None:
    for core in list(_MADE):
        core.abandon_in_child()


os.register_at_fork(after_in_child=_abandon_all)
