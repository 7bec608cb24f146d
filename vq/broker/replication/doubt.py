"""What a node takes to be missing from its logs, told to its next start.

In here: when the mark of ``store.log.unflushed`` is written and taken back. Not in here: what the
mark says, and what follows from it for who may lead (``coordination.brokers.insync``).
"""

from vq.broker.base.runner import Runner
from vq.broker.base.tasks import Tasks
from vq.log_lines import get_logger
from vq.store.log.unflushed import Unflushed

logger = get_logger(__name__)


class Doubt:
    """Loop-bound.

    Args:
        unflushed: The mark.
        runner: To write it.
        tasks: To write it beside everything else.
    """

    def __init__(self, unflushed: Unflushed, runner: Runner, tasks: Tasks) -> None:
        self._unflushed = unflushed
        self._runner = runner
        self._tasks = tasks

    @property
    def lost(self) -> bool:
        """Whether something may be missing."""
        return self._unflushed.lost

    async def begin(self) -> None:
        """Note that something is missing, however that came, until this node has caught up."""
        try:
            await self._runner.run(self._unflushed.doubt)
        except OSError as error:
            logger.warning("next start may not know that messages are missing", error=error)

    def begin_now(self) -> None:
        """The same at once: a repair may come before the disk."""
        self._unflushed.lost = True
        self._tasks.start(self.begin())

    def end(self) -> None:
        """Note that this node has all that counts, whatever a loss of power took before."""
        if self._unflushed.lost:
            self._unflushed.lost = False
            self._tasks.start(self._settle())

    async def _settle(self) -> None:
        try:
            await self._runner.run(self._unflushed.settle)
        except OSError as error:  # the next start may wait for other nodes without need
            logger.warning("mark of a loss of power cannot be removed", error=error)

    async def clear(self) -> None:
        """Note that a loss of power takes nothing from here on: everything is flushed."""
        try:
            await self._runner.run(self._unflushed.clear)
        except OSError as error:
            logger.warning("mark of a clean stop cannot be written", error=error)
