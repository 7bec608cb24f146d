"""Shared groups over HTTP: who asks, what was received, and handles as text. Loop-bound.

A handle says where a message is and with which grant it was received, so any gateway settles it,
and none has to keep it.
"""

import asyncio
import base64
import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from vq import limits
from vq.aio.factory import MessageFactory
from vq.aio.hosted import HostedShared, SharedDelivery, cluster_of
from vq.client.config import StartPosition
from vq.client.consumer.shared.desk import SharedSeat
from vq.client.consumer.shared.handles import PlacedHandle
from vq.coordination.tree.values.group_terms import WorkingMode
from vq.errors import VqError
from vq.gateway.config import ANSWER_BYTES_MAX
from vq.gateway.leases import LeasedMember
from vq.gateway.problems import BodyRefused
from vq.message_filter import Wanting
from vq.model import TopicPartition
from vq.tasks import begin_task

_NUMBER_MAX: Final = 2**63 - 1
#: So long requests have to end when the member leaves; a wait at the journal takes less.
_QUIET_S: Final = 10.0


class SharedAsk(NamedTuple):
    """What is asked for; equal ones get one member.

    Attributes:
        owner: The name of the token.
        group: The group.
        subscriptions: Topics, or patterns, and which messages of them.
        start: Where the group begins in a partition that is new to it.
        mode: ``concurrent``, or ``keyed`` for the order of keys.
    """

    owner: str
    group: str
    subscriptions: tuple[tuple[str, Wanting], ...]
    start: StartPosition
    mode: WorkingMode

    @property
    def topics(self) -> tuple[str, ...]:
        """The names and patterns."""
        return tuple(topic for topic, _ in self.subscriptions)


class SharedMembership(LeasedMember[HostedShared]):
    """The member for all who ask for the same.

    Args:
        budget: So many bytes may be given to all consumers now.
    """

    def __init__(
        self,
        number: str,
        owner: str,
        consumer: HostedShared,
        *,
        budget: Callable[[], int],
        **rest: Any,
    ) -> None:
        super().__init__(number, owner, consumer, **rest)
        self._budget = budget
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def size(self) -> int:
        """See ``LeasedMember``: of those that are being read."""
        return self.consumer.size

    async def receive(
        self,
        seat: SharedSeat,
        most: int,
        *,
        lease_s: float,
        wait_s: float,
        repeats: bool,
        gone: "asyncio.Future[None]",
    ) -> list[SharedDelivery]:
        """Return messages; see ``HostedShared.receive``.

        Raises:
            ConsumerGone: The member was ended, as when its group was given other terms.
            VqError: The journal does not answer, or refuses.
        """
        self._check()
        over = begin_task(_first_of(gone, self._ended))
        try:
            found = await self.consumer.receive(
                seat,
                most,
                lambda: min(ANSWER_BYTES_MAX, self._budget()),
                lease_s=lease_s,
                wait_s=wait_s,
                repeats=repeats,
                over=over,
            )
        finally:
            over.cancel()
        self.check_live()
        return found

    def end(self, why: VqError) -> bool:
        """See ``LeasedMember``: requests that wait are answered at once."""
        if not self._ended.done():
            self._ended.set_result(None)
        return super().end(why)

    async def leave(self) -> None:
        """See ``LeasedMember``: requests that wait end first, and give back what they got."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_QUIET_S):
                await self._unused.wait()
        await super().leave()


async def _first_of(*futures: "asyncio.Future[None]") -> None:
    """Return when one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


class SharedSeats:
    """Who the gateway is to the journals of shared groups: as many members as ask at a time.

    Args:
        factory: An open one.
    """

    def __init__(self, factory: MessageFactory) -> None:
        self._factory = factory
        self._free: list[SharedSeat] = []

    @contextmanager
    def taken(self) -> Iterator[SharedSeat]:
        """Provide a seat; one whose request has failed is left: it may be carried out yet."""
        seat = self._free.pop() if self._free else SharedSeat.drawn(cluster_of(self._factory).rng)
        yield seat
        self._free.append(seat)


def named_seat(owner: str, attempt: str) -> SharedSeat:
    """Return the seat of an attempt that a client has named; every gateway has the same."""
    named = json.dumps([owner, attempt]).encode()
    number = int.from_bytes(hashlib.sha256(named).digest()[:8], "big")
    return SharedSeat(number >> 1 | 1, attempt=1)


def handle_text(group: str, handle: PlacedHandle) -> str:
    """Return a handle as clients get it."""
    topic, partition = handle.partition
    parts = [group, topic, partition, handle.topic_id, handle.number, handle.grant]
    return base64.urlsafe_b64encode(json.dumps(parts).encode()).decode().rstrip("=")


def handles_of(group: str, texts: Sequence[str]) -> list[PlacedHandle]:
    """Return what handles of a group say.

    Raises:
        BodyRefused: One is no handle, or of another group, or a message is there twice.
    """
    found = [_handle_of(group, place, text) for place, text in enumerate(texts)]
    if len({each[:3] for each in found}) < len(found):
        raise BodyRefused("a message is in handles twice; give the handle received last")
    return found


def _handle_of(group: str, place: int, text: str) -> PlacedHandle:
    try:
        padded = text + "=" * (-len(text) % 4)
        of, topic, partition, topic_id, number, grant = json.loads(
            base64.b64decode(padded, b"-_", validate=True)
        )
        handle = PlacedHandle(TopicPartition(topic, partition), topic_id, number, grant)
        is_one = (
            isinstance(of, str)
            and isinstance(topic, str)
            and limits.is_valid_name(topic)
            and isinstance(topic_id, str)
            and limits.is_topic_id(topic_id)
            and type(partition) is type(number) is type(grant) is int
            and 0 <= partition < limits.PARTITIONS_PER_TOPIC_MAX
            and 0 <= number < _NUMBER_MAX
            and 0 < grant <= _NUMBER_MAX
        )
    except (ValueError, TypeError, RecursionError):
        is_one = False
    if not is_one:
        raise BodyRefused(
            f"handles.{place} is no handle",
            hint="send a handle as the answer to receive had it",
        )
    if of != group:
        raise BodyRefused(
            f"handles.{place} is of another group than {group!r}",
            hint="settle a message in the group that it was received for",
        )
    return handle
