"""An ephemeral node that says what this process is or has: taken, watched over, taken again.

ZooKeeper removes the node when the session ends. So this process has nothing any more from LOST or
CLOSED on, and takes the node again in the next session.

    LOST, CLOSED      nothing is held, at once
    hint, audit       held: look whether it still is, and take it again if not
                      not held: take it
    failure           look again, see ``keeper``
    LOST in a look    what it took does not count: look again

In here: when to take the node, and when it is lost. Not in here: how it is taken and from whom; see
``registry``, ``leases`` and ``slots``. The member of a consumer group takes its node in its rounds
(``client.consumer.group.membership``), since what it holds depends on their order.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from vq.backoff import Backoff, Draws
from vq.coordination.tree.coordinator import Coordinator, Node, SessionState, WatchEvent
from vq.coordination.tree.keeper import Keeper
from vq.errors import CoordinationError

T = TypeVar("T")


class OwnNode(ABC, Generic[T]):
    """A node of this process, taken again after it is lost, until ``stop``. Loop-bound.

    Args:
        coordinator: A started coordinator.
        what: The subject of log lines.
        audit_s, backoff, rng: See ``Keeper``.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        *,
        what: str,
        audit_s: float,
        backoff: Backoff,
        rng: Draws | None = None,
    ) -> None:
        self._coordinator = coordinator
        self._held: T | None = None
        self._losses = 0  # sessions that ended
        self._keeper = Keeper(
            coordinator, self._look, what=what, audit_s=audit_s, backoff=backoff, rng=rng
        )
        self._remove_listener: Callable[[], None] | None = None

    def wake(self) -> None:
        """Compare what is held with the tree soon; never blocks."""
        self._keeper.wake()

    async def stop(self) -> None:
        """Give the node back if ZooKeeper can be reached; otherwise it ends with the session."""
        if self._remove_listener is not None:
            self._remove_listener()
            self._remove_listener = None
        await self._keeper.stop()
        held, self._held = self._held, None
        await self._return(held)

    # For the node's class -----------------------------------------------------------------------
    @abstractmethod
    async def _take(self) -> T | None:
        """Take the node; return what is held now, None if another process has it.

        Set a watch that calls ``_hint`` when the node changes.
        """

    @abstractmethod
    async def _is_held(self, held: T) -> bool:
        """Return whether the tree has the node still; see to its value; set the watch again."""

    @abstractmethod
    async def _give_back(self, held: T | None) -> None:
        """Delete the node if it is ours; None: nothing is held as far as is known."""

    @abstractmethod
    def _changed(self, held: T | None) -> None:
        """Called with what is held whenever that has changed; must not block."""

    def _begin(self, held: T | None = None) -> None:
        """Keep the node from now on; ``held`` was taken just now, None: take it soon."""
        self._remove_listener = self._coordinator.add_listener(self._on_session)
        self._set(held)
        self._keeper.start()
        if held is None:
            self._keeper.wake()

    def _hint(self, _: WatchEvent) -> None:
        self._keeper.wake()

    async def _return(self, held: T | None) -> None:
        if self._coordinator.state is SessionState.CONNECTED:
            with contextlib.suppress(CoordinationError):
                await self._give_back(held)

    # Keeping ------------------------------------------------------------------------------------
    def _on_session(self, state: SessionState) -> None:
        if state in {SessionState.LOST, SessionState.CLOSED}:
            self._losses += 1
            self._set(None)
        if self._held is None:  # otherwise the watch tells that the connection ended
            self._keeper.wake()

    async def _look(self, _: bool) -> None:
        held = self._held
        if held is not None:
            if await self._is_held(held):
                return
            self._set(None)
        losses = self._losses
        taken = await self._take()
        if losses == self._losses:
            self._set(taken)

    def _set(self, held: T | None) -> None:
        if held != self._held:
            self._held = held
            self._changed(held)


async def delete_own(coordinator: Coordinator, path: str, is_own: Callable[[Node], bool]) -> None:
    """Delete a node if it is our own.

    Raises:
        CoordinationError: It may be deleted or not; ``NoNode``: there was none.
    """
    found = await coordinator.get(path)
    if is_own(found):
        await coordinator.delete(path, version=found.stat.version)
