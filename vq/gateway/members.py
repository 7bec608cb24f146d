"""Members of groups that the gateway hosts, each with a lease. Loop-bound.

A client that has no client of vq cannot hold a session with ZooKeeper. Here it has a *lease*: each
use of its consumer renews it, and a consumer whose lease ends leaves its group, as a process does
whose session ends. What it has not committed, another member gets.

    JOINING ──▶ LIVE ──▶ LEAVING ──▶ GONE
       └──────────────────┘ it could not join
"""

import asyncio
import contextlib
import enum
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from vq import limits
from vq.aio.factory import MessageFactory
from vq.aio.hosted import HostedConsumer
from vq.client.config import ConsumerConfig, StartPosition
from vq.errors import CoordinationError, InvalidState, VqError
from vq.gateway.config import ANSWER_BYTES_MAX, GatewayConfig
from vq.gateway.counts import GatewayCounts
from vq.gateway.problems import AtLimit, ConsumerGone, GatewayStopping, ReceiveTakenOver
from vq.log_lines import get_logger
from vq.message_filter import Wanting
from vq.model import Message
from vq.tasks import begin_task

logger = get_logger(__name__)

#: How long joining a group may take.
JOIN_S: Final = 30.0
#: Memory of what is fetched ahead for one member.
_BUFFER_BYTES: Final = limits.MIB
_PREFETCH_BYTES: Final = 256 * limits.KIB
#: Contents that one member was given and has not committed, but for the message that exceeds it.
WINDOW_BYTES: Final = 4 * limits.MIB


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


class HostedMember:
    """One consumer of a client of the gateway.

    Attributes:
        id: What the client names it by; nobody can guess it.
        owner: The name of the token that made it.
        group: Its group.
        topics: The names and patterns that it subscribed.
        consumer: The member.
        lease_s: It leaves when it was not used for so long.
        window: So many messages it is given without a commit.
        committed: Set by each commit: there may be room for more messages.
    """

    def __init__(
        self,
        owner: str,
        consumer: HostedConsumer,
        *,
        group: str,
        topics: tuple[str, ...],
        lease_s: float,
        window: int,
        budget: Callable[[], int],
        on_lapse: Callable[["HostedMember"], None],
        on_end: Callable[["HostedMember", VqError], None],
    ) -> None:
        self.id = secrets.token_urlsafe(18)
        self.owner = owner
        self.group = group
        self.topics = topics
        self.consumer = consumer
        self.lease_s = lease_s
        self.window = window
        self.committed = asyncio.Event()
        self._end: VqError = InvalidState("it has not joined its group yet")
        self._stage = MemberStage.JOINING
        self._budget = budget
        self._on_lapse = on_lapse
        self._on_end = on_end
        self._now = asyncio.get_running_loop().time
        self._used_at = self._now()
        self._under_way = 0  # requests that use it
        self._streams = 0
        self._timer: asyncio.TimerHandle | None = None
        self._receiving: asyncio.Task[list[Message]] | None = None
        self._receiver = 0  # number of the last request that receives

    @property
    def stage(self) -> MemberStage:
        """How far it is."""
        return self._stage

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
        try:
            yield
        finally:
            self._under_way -= 1
            self.touch()

    def check_live(self) -> None:
        """Return if it is a member.

        Raises:
            ConsumerGone, GatewayStopping: It is not.
        """
        if self._stage is not MemberStage.LIVE:
            raise self._end.with_traceback(None)

    def _wait_for_lapse(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(self.left_s, 0.05), self._look)

    def _look(self) -> None:
        if self._under_way or (self._streams and not self.consumer.count):
            self.touch()
        if self._stage is MemberStage.LIVE and not self.left_s:
            self._on_lapse(self)
        elif self._stage is MemberStage.LIVE:
            self._wait_for_lapse()

    # Receiving ------------------------------------------------------------------------------------
    def enter(self) -> int:
        """Begin to receive, in place of an earlier request that does; return a number for it."""
        self.check_live()
        self._receiver += 1
        if self._receiving is not None:
            self._receiving.cancel()
        return self._receiver

    async def receive(
        self, receiver: int, most: int, wait_s: float, *, gone: "asyncio.Future[None] | None" = None
    ) -> list[Message]:
        """Return messages that were not given before; none within the time, or with a full window.

        Args:
            receiver: What ``enter`` has returned.
            most: How many at most.
            wait_s: How long to wait for a first one.
            gone: Done when the client has gone away; it gets none then.

        Raises:
            ReceiveTakenOver: A later request receives.
            ConsumerGone: It is no member any more.
        """
        self._check_receiver(receiver)
        messages = self._take_now(most)
        if messages or wait_s <= 0:
            return messages
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while not messages and loop.time() < deadline and not (gone and gone.done()):
            most_now, most_bytes = self._room(most)
            left_s = deadline - loop.time()
            self._receiving = begin_task(self._taken(most_now, most_bytes, left_s))
            waits: set[asyncio.Future[object]] = {self._receiving}  # type: ignore[arg-type]
            if gone is not None:
                waits.add(gone)  # type: ignore[arg-type]
            task = self._receiving
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
                if self._receiving is task:
                    self._receiving = None
            self._check_receiver(receiver)
            if not task.cancelled():
                messages = task.result()
        return messages

    async def _taken(self, most: int, most_bytes: int, wait_s: float) -> list[Message]:
        if most > 0:
            return await self.consumer.take(most, most_bytes, wait_s)
        self.committed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(wait_s, _FULL_S)):
                await self.committed.wait()
        return []

    def _take_now(self, most: int) -> list[Message]:
        most, most_bytes = self._room(most)
        return self.consumer.take_now(most, most_bytes) if most > 0 else []

    def _room(self, most: int) -> tuple[int, int]:
        """Return how many messages, and bytes, it may be given now."""
        consumer = self.consumer
        most_bytes = min(WINDOW_BYTES - consumer.size, ANSWER_BYTES_MAX, self._budget())
        if not consumer.count:  # so much that it goes on
            most_bytes = max(most_bytes, 1)
        return (min(most, self.window - consumer.count) if most_bytes > 0 else 0), most_bytes

    def _check_receiver(self, receiver: int) -> None:
        if self.consumer.error is not None:
            self._on_end(self, self.consumer.error)
        self.check_live()
        if receiver != self._receiver:
            raise ReceiveTakenOver("a later request receives for this consumer")

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Note that a stream is open; it keeps the lease while nothing waits for a commit."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1

    # The end --------------------------------------------------------------------------------------
    def end(self, why: VqError) -> bool:
        """Give nothing more, and tell every request why; return whether ``leave`` follows."""
        if self._stage in {MemberStage.LEAVING, MemberStage.GONE}:
            return False
        self._end = why
        self._on(MemberStage.LEAVING)
        if self._timer is not None:
            self._timer.cancel()
        if self._receiving is not None:
            self._receiving.cancel()
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


#: How often a request looks whether there is room for messages again: other members may make it.
_FULL_S: Final = 1.0


class HostedMembers:
    """All members that the gateway hosts.

    Args:
        config: The bounds.
        factory: Makes them.
        counts: Counts leases that ended.
    """

    def __init__(
        self, config: GatewayConfig, factory: MessageFactory, counts: GatewayCounts
    ) -> None:
        self._config = config
        self._counts = counts
        self._factory = factory
        self._members: dict[str, HostedMember] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._waiting: Counter[str] = Counter()  # requests that wait, by token
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._members)

    @property
    def waiting(self) -> int:
        """How many requests wait for messages."""
        return self._waiting.total()

    @property
    def given_bytes(self) -> int:
        """Bytes of messages that were given and not committed."""
        return sum(each.consumer.size for each in self._members.values())

    @contextmanager
    def wait(self, owner: str) -> Iterator[None]:
        """Count a request that waits for messages inside the block.

        Raises:
            AtLimit: Too many do.
        """
        config = self._config
        if self.waiting >= config.waiting_max:
            raise AtLimit(f"{config.waiting_max} requests wait for messages, no more may")
        if self._waiting[owner] >= config.waiting_per_token_max:
            raise AtLimit(
                f"{config.waiting_per_token_max} requests of token {owner!r} wait for messages, no "
                "more may"
            )
        self._waiting[owner] += 1
        try:
            yield
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner]

    async def create(
        self,
        owner: str,
        group: str,
        subscriptions: Iterable[tuple[str, Wanting]],
        *,
        start: StartPosition = StartPosition.EARLIEST,
        lease_s: float | None = None,
        window: int,
    ) -> HostedMember:
        """Have a new member join a group.

        Raises:
            AtLimit: There are too many.
            GatewayStopping: The gateway is being stopped.
            VqError: It cannot join.
        """
        self._check_room(owner)
        settings = ConsumerConfig(
            group=group,
            start_position=start,
            buffer_bytes=_BUFFER_BYTES,
            prefetch_bytes=_PREFETCH_BYTES,
            window_messages=max(window, 2),
            window_bytes=WINDOW_BYTES,
        )
        consumer = HostedConsumer(self._factory, settings)
        subscribed = tuple(subscriptions)
        for topic, wanted in subscribed:
            consumer.subscribe(topic, wanted)
        member = HostedMember(
            owner,
            consumer,
            group=group,
            topics=tuple(topic for topic, _ in subscribed),
            lease_s=lease_s or self._config.lease_s,
            window=window,
            budget=lambda: self._config.given_bytes_max - self.given_bytes,
            on_lapse=self._lapse,
            on_end=self._ended,
        )
        self._members[member.id] = member
        try:
            async with asyncio.timeout(JOIN_S):
                await consumer.start()
        except BaseException as error:
            self._begin_leave(member, ConsumerGone("it could not join its group"))
            if self._is_stopping:
                raise _stopping() from error
            if isinstance(error, TimeoutError):
                raise CoordinationError(
                    f"group {group!r} could not be joined within {JOIN_S:g} s"
                ) from error
            raise
        member.joined()
        logger.info("consumer joined", group=group, member=consumer.member, token=owner or None)
        return member

    def _check_room(self, owner: str) -> None:
        config = self._config
        if self._is_stopping:
            raise _stopping()
        if len(self._members) >= config.consumers_max:
            raise AtLimit(f"the gateway hosts {config.consumers_max} consumers, no more may be")
        own = sum(each.owner == owner for each in self._members.values())
        if own >= config.consumers_per_token_max:
            raise AtLimit(
                f"token {owner!r} has {own} consumers, and one may have "
                f"{config.consumers_per_token_max}: delete some, or wait until their leases end"
            )

    def get(self, owner: str, number: str) -> HostedMember:
        """Return a member of a token.

        Raises:
            ConsumerGone: The token has none of this id.
        """
        member = self._members.get(number)
        if member is None or member.owner != owner:
            raise ConsumerGone(
                "there is no consumer of this id: its lease has ended, or it was deleted, or the "
                "gateway was restarted"
            )
        member.check_live()
        return member

    async def delete(self, member: HostedMember) -> None:
        """Have a member leave, and wait until it has."""
        task = self._begin_leave(member, ConsumerGone("the consumer was deleted"))
        if task is not None:
            await asyncio.shield(task)

    def _lapse(self, member: HostedMember) -> None:
        self._counts.lapsed += 1
        logger.warning(
            "lease ended, consumer leaves its group",
            group=member.group,
            member=member.consumer.member,
            lease_s=member.lease_s,
            uncommitted=member.consumer.count,
        )
        end = ConsumerGone(
            f"the consumer was not used for {member.lease_s:g} s, so its lease has ended"
        )
        self._begin_leave(member, end)

    def _ended(self, member: HostedMember, error: VqError) -> None:
        """A member gets no more messages, as when its group was given other terms."""
        self._begin_leave(member, ConsumerGone(f"the consumer was ended: {error}"))

    def _begin_leave(self, member: HostedMember, end: VqError) -> "asyncio.Task[None] | None":
        self._members.pop(member.id, None)
        if not member.end(end):
            return None
        task = begin_task(member.leave())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)
        return task

    async def stop(self) -> None:
        """Have all members leave; return once they have, or after the time of the settings."""
        self._is_stopping = True
        for member in list(self._members.values()):
            self._begin_leave(member, _stopping())
        if self._leaving:
            _, left = await asyncio.wait(self._leaving, timeout=self._config.stop_timeout_s)
            if left:
                logger.warning("consumers did not leave their groups in time", consumers=len(left))


def _stopping() -> GatewayStopping:
    return GatewayStopping("the gateway is being stopped")
