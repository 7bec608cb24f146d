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

from typing import Final, Protocol

from vq.broker.base.jobs import Every, Jobs, While
from vq.broker.base.notice import Notice
from vq.broker.disks.data_disks import DataDisks
from vq.broker.partition.channel import Channels
from vq.broker.replication.handing_over import HandOver
from vq.broker.standing.role import Role
from vq.clock import Clock
from vq.errors import CoordinationError, HandOverFailed, NotMaster
from vq.log_lines import get_logger

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


class KnowsDamage(Protocol):
    """Knows what is damaged; in practice ``verifying.Verifier``."""

    def any_damage(self) -> bool:
        """Whether any damage is known at this moment."""
        ...


class Soundness:
    """Has the group know whether this node has damage. Loop-bound.

    Args:
        role: What this node is in its group.
        clock: For durations.
        damage: What this node lacks.
        disks: Whether a directory is gone, and whether a disk refuses messages.
        channels: Those of the node.
        hand_over: Hands the group over to a node in sync without damage.
        jobs: Has this looked at.

    Attributes:
        damaged: What was told last.
        found: Something is to be repaired, and was not at once. Only ``repairing`` writes it.
        failed: An I/O error has ended writing to a log; a new start reads what the medium has. Or a
            partition has no channel, see ``Partitions.lacks_channel``. Likewise.
        changed: Told after a change of that, or of whether a disk refuses messages.
    """

    def __init__(
        self,
        role: Role,
        clock: Clock,
        *,
        damage: KnowsDamage,
        disks: DataDisks,
        channels: Channels,
        hand_over: HandOver,
        jobs: Jobs,
    ) -> None:
        self._role = role
        self._clock = clock
        self._damage = damage
        self._disks = disks
        self._channels = channels
        self._hand_over = hand_over
        self._since: float | None = None
        self._tried: float | None = None
        self._why_not = ""
        self.damaged = self.found = self.failed = False
        self.changed = Notice[[]]()
        self._told_full = False
        jobs.add("soundness", self.look, Every(LOOK_S), While.REGISTERED, at_once=True)

    @property
    def disk_full(self) -> bool:
        """Whether a disk refuses messages."""
        return self._disks.full

    def look_at_start(self) -> bool:
        """Look at what a start found; return whether there is damage."""
        self.damaged = self.found = self._damage.any_damage()
        return self.damaged

    def has_damage(self) -> bool:
        """Whether damage is known at this moment, also such as may be repaired at once.

        A data directory that was removed or unmounted is damage: this node keeps nothing there.
        """
        return self._disks.any_gone or self._damage.any_damage()

    async def look(self) -> None:
        """Look at the damage and the disks, and hand over if that is due."""
        self._look()
        if self._since is not None:
            await self._maybe_hand_over(self._since)

    def _look(self) -> None:
        damaged = self.found or self.failed or self._disks.any_gone
        if (damaged, self.disk_full) != (self.damaged, self._told_full):
            self.damaged, self._told_full = damaged, self.disk_full
            self.changed.tell()
        if not (damaged or self.disk_full) or not self._role.epoch or self._role.named < 2:
            self._since, self._tried, self._why_not = None, None, ""
        elif self._since is None:
            self._since = self._clock.monotonic()

    def _is_needed(self) -> bool:
        """Whether a topic takes messages now, and would not without this node."""
        named = self._role.named
        return any(each.settings.min_insync == named for each in self._channels.values())

    async def _maybe_hand_over(self, since_s: float) -> None:
        now = self._clock.monotonic()
        full = self.disk_full
        if now < hands_over_at(since_s, self._tried, full=full):
            return
        self._tried = now
        try:
            if not (full or self.found or self._disks.any_gone) and self._is_needed():
                raise HandOverFailed(
                    "a log has failed or cannot be opened, and topics need as many nodes in sync "
                    "as there are (min_insync): repair its disk, and restart this node"
                )
            heir = await self._hand_over.run()
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
