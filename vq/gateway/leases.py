"""Members of groups that leave when nobody has used them for a time. Loop-bound.

JOINING ──▶ LIVE ──▶ LEAVING ──▶ GONE
   └──────────────────┘ it could not join
"""

import asyncio
import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeAlias, TypeVar

from vq.aio.hosted import Hosted
from vq.errors import InvalidState, VqError
from vq.log_lines import get_logger

logger = get_logger(__name__)

MemberT = TypeVar("MemberT", bound=Hosted)


class MemberStage(enum.Enum):
    """How far a hosted member is."""

    JOINING = "joining"
    LIVE = "live"
    LEAVING = "leaving"
    GONE = "gone"


_NEXT: Final = {
    MemberStage.JOINING: (MemberStage.LIVE, MemberStage.LEAVING),
    MemberStage.LIVE: (MemberStage.LEAVING,),
    MemberStage.LEAVING: (MemberStage.GONE,),
    MemberStage.GONE: (),
}


class LeasedMember(Generic[MemberT]):
    """A member that leaves its group when it was not used for a time.

    Attributes:
        id: What it is known by.
        owner: The name of the token that made it.
        group: Its group.
        topics: The names and patterns that it subscribed.
        consumer: The member.
        lease_s: It leaves when it was not used for so long.
    """

    def __init__(
        self,
        number: str,
        owner: str,
        consumer: MemberT,
        *,
        group: str,
        topics: tuple[str, ...],
        lease_s: float,
        on_lapse: Callable[["Member"], None],
        on_end: Callable[["Member", VqError], None],
    ) -> None:
        self.id = number
        self.owner = owner
        self.group = group
        self.topics = topics
        self.consumer = consumer
        self.lease_s = lease_s
        self._end: VqError = InvalidState("it has not joined its group yet")
        self._stage = MemberStage.JOINING
        self._on_lapse = on_lapse
        self._on_end = on_end
        self._now = asyncio.get_running_loop().time
        self._used_at = self._now()
        self._under_way = 0  # requests that use it
        self._unused = asyncio.Event()  # there is none
        self._unused.set()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stage(self) -> MemberStage:
        """How far it is."""
        return self._stage

    @property
    def size(self) -> int:
        """Bytes of messages that count as given."""
        return 0

    def _on(self, stage: MemberStage) -> None:
        assert stage in _NEXT[self._stage], f"{self._stage} to {stage}"
        self._stage = stage

    # The lease ------------------------------------------------------------------------------------
    def joined(self) -> None:
        """It is a member now; its lease begins."""
        self._on(MemberStage.LIVE)
        self.touch()
        self._wait_for_lapse()

    @property
    def left_s(self) -> float:
        """How long its lease lasts if it is not used."""
        return max(0.0, self._used_at + self.lease_s - self._now())

    def touch(self) -> None:
        """Renew the lease."""
        self._used_at = self._now()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep the lease inside the block.

        Raises:
            ConsumerGone: It is no member any more.
        """
        self.check_live()
        self._under_way += 1
        self._unused.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._unused.set()
            self.touch()

    def check_live(self) -> None:
        """Return if it is a member.

        Raises:
            ConsumerGone, GatewayStopping: It is not.
        """
        if self._stage is not MemberStage.LIVE:
            raise self._end.with_traceback(None)

    @property
    def _is_kept(self) -> bool:
        """Whether its lease is renewed without a request."""
        return False

    def _wait_for_lapse(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(self.left_s, 0.05), self._look)

    def _look(self) -> None:
        if self._under_way or self._is_kept:
            self.touch()
        if self._stage is MemberStage.LIVE and not self.left_s:
            self._on_lapse(self)
        elif self._stage is MemberStage.LIVE:
            self._wait_for_lapse()

    def _check(self) -> None:
        """Return if it is a member, and gets messages.

        Raises:
            ConsumerGone: It is not, or does not.
        """
        if self.consumer.error is not None:
            self._on_end(self, self.consumer.error)
        self.check_live()

    # The end --------------------------------------------------------------------------------------
    def end(self, why: VqError) -> bool:
        """Give nothing more, and tell every request why; return whether ``leave`` follows."""
        if self._stage in {MemberStage.LEAVING, MemberStage.GONE}:
            return False
        self._end = why
        self._on(MemberStage.LEAVING)
        if self._timer is not None:
            self._timer.cancel()
        return True

    async def leave(self) -> None:
        """Leave the group; what is not committed is delivered again."""
        try:
            await self.consumer.close()
        except VqError as error:
            logger.warning(
                "consumer did not leave its group cleanly",
                group=self.group,
                member=self.consumer.member,
                error=error,
            )
        finally:
            self._on(MemberStage.GONE)


#: Of whatever kind.
Member: TypeAlias = LeasedMember[Any]
