"""What follows for a node's role from damage in its logs that is not repaired, and a full disk.

A log that an I/O error has ended counts as damaged: this node keeps nothing in it. So does a topic
that cannot be followed here: its logs are not open. So the node leaves the in-sync set once another
one leads. If a topic then had too few nodes in sync (``min_insync``), one
log that failed would end the sends to all its partitions: the master leads on.

    damage stays ──▶ the registration says so ──▶ no other node waits for this one to lead
                 └─▶ this node claims no group that another one in sync can lead
                 └─▶ a master that has it for ``HAND_OVER_AFTER_S`` hands over

A disk that refuses messages is told likewise: the node leads only if no other one can, and a master
hands over at once.

Not in here: finding damage (``verifying``), repairing it (``repairing``), and who may lead
(``coordination.brokers.insync``). A node that is in sync alone goes on as it is.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from vq.broker.partition.context import Role
from vq.clock import Clock
from vq.errors import CoordinationError, HandOverFailed, NotMaster
from vq.log_lines import get_logger

__all__ = ["Soundness", "hands_over_at"]

logger = get_logger(__name__)

#: How often it is looked whether there is damage; most is repaired before that.
LOOK_S: Final = 0.5
#: A master repairs damage for so long before it hands over.
HAND_OVER_AFTER_S: Final = 5.0
#: Pause before a master that could not hand over tries again.
RETRY_S: Final = 30.0


def hands_over_at(since_s: float, tried_s: float | None, *, full: bool = False) -> float:
    """Return from when on a master with damage, or with a full disk, hands over.

    Args:
        since_s: Since when it has had that without a break, while others were in sync.
        tried_s: When it tried last to hand over; None: not since then.
        full: A disk refuses messages: nothing is gained by waiting.
    """
    at = since_s if full else since_s + HAND_OVER_AFTER_S
    return at if tried_s is None else max(at, tried_s + RETRY_S)


class Repairs(Protocol):
    """What a node knows of its damage; in practice ``repairing.Repairer``.

    Attributes:
        found: Whether there is damage now that was not repaired at once.
        failed: Whether an I/O error has ended a log, or a log could not be looked at.
    """

    found: bool
    failed: bool

    def damaged(self) -> bool:
        """Whether any damage is known at this moment."""
        ...

    async def is_behind(self) -> bool:
        """Whether another node in sync has more of a log than this one, which starts."""
        ...


class Soundness:
    """Has the group know whether this node has damage. Loop-bound.

    Args:
        role: What this node is in its group.
        clock: For durations.
        repairs: What this node lacks, and what was done about it.
        tell: Called after a change of that. Must not block.
        hand_over: Hands the group over to a node in sync without damage.
        suspend: Has this node copy nothing while its argument, the reason, is not empty.
        is_needed: Returns whether a topic takes messages now, and would not without this node.

    Attributes:
        damaged: What was told last.
        directory_gone: A data directory was removed or unmounted: this node keeps nothing there.
        disk_full: A disk refuses messages.
    """

    def __init__(
        self,
        role: Role,
        clock: Clock,
        repairs: Repairs,
        *,
        tell: Callable[[], None],
        hand_over: Callable[[], Awaitable[str]],
        suspend: Callable[[str], None],
        is_needed: Callable[[], bool],
    ) -> None:
        self._is_needed = is_needed
        self._role = role
        self._clock = clock
        self._repairs = repairs
        self._tell = tell
        self._hand_over = hand_over
        self._suspend = suspend
        self._since: float | None = None
        self._tried: float | None = None
        self._why_not = ""
        self.damaged = False
        self.directory_gone = False
        self.disk_full = False
        self._told_full = False

    async def may_lack_messages(self) -> bool:
        """Look at what a start found: whether this node may lack what others in sync have."""
        self.damaged = self._repairs.found = self._repairs.damaged()
        return self.damaged or await self._repairs.is_behind()

    def has_damage(self) -> bool:
        """Whether damage is known at this moment, also such as may be repaired at once."""
        return self.directory_gone or self._repairs.damaged()

    def note_directory(self, *, gone: bool, main: bool) -> None:
        """Note whether a data directory is gone, and whether the main one is."""
        self.directory_gone = gone
        self._suspend("the data directory is gone" if main else "")

    def note_disks(self, *, full: bool) -> None:
        """Note whether a disk refuses messages."""
        self.disk_full = full

    async def run(self) -> None:
        """Look at the damage and the disks, for ever."""
        while True:
            self._look()
            if self._since is not None:
                await self._maybe_hand_over(self._since)
            await asyncio.sleep(LOOK_S)

    def _look(self) -> None:
        damaged = self._repairs.found or self._repairs.failed or self.directory_gone
        if (damaged, self.disk_full) != (self.damaged, self._told_full):
            self.damaged, self._told_full = damaged, self.disk_full
            self._tell()
        if not (damaged or self.disk_full) or not self._role.epoch or self._role.named < 2:
            self._since, self._tried, self._why_not = None, None, ""
        elif self._since is None:
            self._since = self._clock.monotonic()

    async def _maybe_hand_over(self, since_s: float) -> None:
        now = self._clock.monotonic()
        full = self.disk_full
        if now < hands_over_at(since_s, self._tried, full=full):
            return
        self._tried = now
        try:
            if not (full or self._repairs.found or self.directory_gone) and self._is_needed():
                raise HandOverFailed(
                    "a log has failed or cannot be opened, and topics need as many nodes in sync "
                    "as there are (min_insync): repair its disk, and restart this node"
                )
            heir = await self._hand_over()
        except (CoordinationError, HandOverFailed, NotMaster) as error:
            if self._why_not != str(error):
                logger.warning(
                    "unsound master leads on",
                    group=self._role.group,
                    cause="full disk" if full else "damage",
                    why=error,
                )
            self._why_not = str(error)
        else:
            logger.warning(
                "group is handed over by an unsound master",
                group=self._role.group,
                cause="full disk" if full else "damage",
                successor=heir,
            )
