"""The users as this broker knows them: a mirror of ZooKeeper that is followed by watches.

While ZooKeeper does not answer, users stay known for ``STALE_S``. After that, new connections of
users are refused: a user may have been removed. Open connections go on, since each user of an open
connection was known when it began.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from vq.backoff import Backoff
from vq.clock import Clock
from vq.coordination.tree.coordinator import Coordinator, NoNode, Watch
from vq.coordination.tree.keeper import Keeper
from vq.coordination.tree.mirror import Mirror
from vq.coordination.tree.paths import USERS
from vq.coordination.tree.values.users import StoredUser
from vq.errors import Busy, CoordinationError
from vq.log_lines import get_logger

logger = get_logger(__name__)

#: How old the last look at all names may be when a user connects.
STALE_S: Final = 300.0
#: From one look at all names to the next; each reads some users again, since a watch may be lost.
AUDIT_S: Final = 30.0
#: After an unknown user or a wrong password, which anybody can send: at most one look in this time.
DOUBT_S: Final = 5.0
_BACKOFF: Final = Backoff(first_s=0.2, most_s=5.0, jitter=0.5)


class MirroredUsers:
    """See the module's text. Loop-bound.

    Args:
        coordinator: A started coordinator, when ``start`` is called.
        clock: For the age of the last look.
        rng: For back-off.
        on_change: Called with the name of a user that was changed, added or removed.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        rng: Random,
        on_change: Callable[[str], None],
    ) -> None:
        self._coordinator = coordinator
        self._now = clock.monotonic
        self._keeper = Keeper(
            coordinator, self._look, what="users", audit_s=AUDIT_S, backoff=_BACKOFF, rng=rng
        )
        self._mirror: Mirror[StoredUser] = Mirror(
            coordinator,
            USERS,
            self._read,
            on_hint=self._keeper.wake,
            on_value=lambda name, _: on_change(name),
        )
        self._looked_at = -STALE_S
        self._doubted_at = -DOUBT_S

    @property
    def known(self) -> Mapping[str, StoredUser]:
        """The users by name, however old that is."""
        return self._mirror.values

    @property
    def age_s(self) -> float:
        """How long ago they were equal to ZooKeeper's at the latest."""
        return self._now() - self._looked_at

    def find(self, name: str) -> StoredUser | None:
        """Return a user for a new connection; None: there is none.

        Raises:
            Busy: What is known is too old to be trusted.
        """
        if self.age_s > STALE_S:
            raise Busy(
                f"this broker has not read the users for more than {STALE_S:g} s, because "
                "ZooKeeper does not answer; it takes no new connections of users until it does"
            )
        return self._mirror.values.get(name)

    def doubt(self) -> None:
        """Look again soon: a user was not known, or a password was wrong."""
        if self._now() - self._doubted_at > DOUBT_S:
            self._doubted_at = self._now()
            self._mirror.mark_names()
            self._keeper.wake()

    async def start(self) -> None:
        """Read the users.

        Raises:
            CoordinationError: ZooKeeper did not answer.
        """
        await self._look(everything=True)

    def follow(self) -> None:
        """Follow their changes from now on."""
        self._keeper.start()

    async def stop(self) -> None:
        """Follow them no more."""
        await self._keeper.stop()

    async def _look(self, everything: bool) -> None:
        if everything:
            self._mirror.audit()
        at = self._now()
        await self._mirror.refresh()
        self._looked_at = at

    async def _read(self, name: str, watch: Watch) -> StoredUser | None:
        path = StoredUser.path(name)
        try:
            node = await self._coordinator.get(path, watch=watch)
        except NoNode:
            return None
        known = self._mirror.values.get(name)
        try:
            user = StoredUser.decode(path, node.data)
        except CoordinationError as error:
            logger.warning("user cannot be read, so it may not connect", user=name, error=error)
            return None
        return known if user == known else user
