"""Members of groups that the gateway hosts, each with a lease. Loop-bound.

A client that has no client of vq cannot hold a session with ZooKeeper. Here it has a *lease*: each
use of its consumer renews it, and a consumer whose lease ends leaves its group, as a process does
whose session ends. What it has not committed, another member gets.

Of a shared group the gateway hosts one member for all requests of a token that ask for the same
subscriptions. It leaves when nobody has asked for so long.
"""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from vq import limits
from vq.aio.factory import MessageFactory
from vq.aio.hosted import HostedConsumer, HostedShared
from vq.client.config import ConsumerConfig, StartPosition
from vq.coordination.tree.values.group_terms import GroupModel
from vq.errors import CoordinationError, VqError
from vq.gateway.config import ANSWER_BYTES_MAX, GatewayConfig
from vq.gateway.counts import GatewayCounts
from vq.gateway.leases import LeasedMember, Member, MemberStage
from vq.gateway.problems import AtLimit, ConsumerGone, GatewayStopping, ReceiveTakenOver
from vq.gateway.shared_members import SharedAsk, SharedMembership
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


class HostedMember(LeasedMember[HostedConsumer]):
    """One consumer of a client of the gateway; nobody can guess its id.

    Attributes:
        window: So many messages it is given without a commit.
        committed: Set by each commit: there may be room for more messages.
    """

    def __init__(
        self,
        owner: str,
        consumer: HostedConsumer,
        *,
        window: int,
        budget: Callable[[], int],
        **rest: Any,
    ) -> None:
        super().__init__(secrets.token_urlsafe(18), owner, consumer, **rest)
        self.window = window
        self.committed = asyncio.Event()
        self._budget = budget
        self._streams = 0
        self._receiving: asyncio.Task[list[Message]] | None = None
        self._receiver = 0  # number of the last request that receives

    @property
    def size(self) -> int:
        """See ``LeasedMember``: those that are not committed."""
        return self.consumer.size

    @property
    def _is_kept(self) -> bool:
        return self._streams > 0 and not self.consumer.count

    def end(self, why: VqError) -> bool:
        """See ``LeasedMember``."""
        is_first = super().end(why)
        if is_first and self._receiving is not None:
            self._receiving.cancel()
        return is_first

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
        self._check()
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
        self._members: dict[str, Member] = {}
        self._shared: dict[SharedAsk, asyncio.Task[SharedMembership]] = {}
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
        """Bytes of messages that were given and not committed, or are being given."""
        return sum(each.size for each in self._members.values())

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
            budget=self._budget,
            on_lapse=self._lapse,
            on_end=self._ended,
        )
        await self._join(member)
        return member

    def _budget(self) -> int:
        return self._config.given_bytes_max - self.given_bytes

    async def _join(self, member: Member) -> None:
        """Have a member join its group.

        Raises:
            GatewayStopping: The gateway is being stopped.
            VqError: It cannot join.
        """
        group, consumer = member.group, member.consumer
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
        token = member.owner or None
        logger.info("consumer joined", group=group, member=consumer.member, token=token)

    async def shared(self, ask: SharedAsk) -> SharedMembership:
        """Return the member for those who ask so; it joins if there is none.

        Raises:
            AtLimit: There are too many.
            GatewayStopping: The gateway is being stopped.
            VqError: It cannot join.
        """
        joining = self._shared.get(ask)
        if joining is None or (joining.done() and not _is_live(joining)):
            self._check_room(ask.owner)
            joining = self._shared[ask] = begin_task(self._join_shared(ask))
            joining.add_done_callback(lambda _: self._forget(ask))
        return await asyncio.shield(joining)

    def has_shared(self, group: str) -> bool:
        """Whether it hosts a member of a shared group."""
        return any(each.group == group for each in self._shared)

    async def _join_shared(self, ask: SharedAsk) -> SharedMembership:
        settings = ConsumerConfig(
            group=ask.group, model=GroupModel.SHARED, mode=ask.mode, start_position=ask.start
        )
        consumer = HostedShared(self._factory, settings)
        for topic, wanted in ask.subscriptions:
            consumer.subscribe(topic, wanted)
        member = SharedMembership(
            secrets.token_urlsafe(18),
            ask.owner,
            consumer,
            group=ask.group,
            topics=ask.topics,
            lease_s=self._config.lease_s,
            budget=self._budget,
            on_lapse=self._idle,
            on_end=self._ended,
        )
        await self._join(member)
        return member

    def _forget(self, ask: SharedAsk) -> None:
        """Keep nothing of a member that could not join, or has left."""
        joining = self._shared.get(ask)
        if joining is not None and joining.done() and not _is_live(joining):
            del self._shared[ask]

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
        if not isinstance(member, HostedMember) or member.owner != owner:
            raise ConsumerGone(
                "there is no consumer of this id: its lease has ended, or it was deleted, or the "
                "gateway was restarted"
            )
        member.check_live()
        return member

    async def delete(self, member: Member) -> None:
        """Have a member leave, and wait until it has."""
        task = self._begin_leave(member, ConsumerGone("the consumer was deleted"))
        if task is not None:
            await asyncio.shield(task)

    def _lapse(self, member: Member) -> None:
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

    def _idle(self, member: Member) -> None:
        logger.info(
            "nobody receives, consumer leaves shared group",
            group=member.group,
            member=member.consumer.member,
        )
        self._begin_leave(member, ConsumerGone("nobody has received for a time"))

    def _ended(self, member: Member, error: VqError) -> None:
        """A member gets no more messages, as when its group was given other terms."""
        self._begin_leave(member, ConsumerGone(f"the consumer was ended: {error}"))

    def _begin_leave(self, member: Member, end: VqError) -> "asyncio.Task[None] | None":
        self._members.pop(member.id, None)
        if not member.end(end):
            return None
        for ask in list(self._shared):
            self._forget(ask)
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


def _is_live(joining: "asyncio.Task[SharedMembership]") -> bool:
    """Whether a member has joined, and is still one."""
    return (
        not joining.cancelled()
        and joining.exception() is None
        and joining.result().stage is MemberStage.LIVE
    )
