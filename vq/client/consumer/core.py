"""The consumer's core: reads by position, and the work of one group member.

Loop-bound. ``Membership`` decides which partitions are held; for each of them there is a fetcher
(bytes ahead of time) and a delivery (decode, call the listener); ``commit`` moves what deliveries
finished into ZooKeeper. A partition that is to be given up is first drained: no listener is running
and its position is committed before anybody else may claim it.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer import places
from vq.client.consumer.decode import Decoder
from vq.client.consumer.delivery import Delivery, DeliveryHooks, DeliveryMaker, Listener, Progress
from vq.client.consumer.fetch_sessions import Fetches, passes
from vq.client.consumer.fetcher import Chunk, PartitionFetcher, chunk_of
from vq.client.consumer.filters import tags_of
from vq.client.consumer.membership import Membership, MembershipHooks
from vq.client.consumer.permit import Permit
from vq.client.consumer.troubles import Troubles
from vq.coordination import claims, commits
from vq.errors import (
    ConnectionCut,
    CoordinationError,
    GenerationStale,
    InvalidArgument,
    InvalidState,
    OffsetOutOfRange,
    TimedOut,
    VqError,
)
from vq.model import (
    Message,
    OffsetBounds,
    PartitionTrouble,
    TopicPartition,
    check_name,
    check_timeout,
)
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import GetRequest, GetResponse, OffsetsRequest, OffsetsResponse
from vq.store.record import bytes_needed

logger = logging.getLogger(__name__)
_DRAIN_WARNING_S = 10.0
_CLOSE_S = 30.0
#: A partition still unknown after pauses up to this one, and fresh routes, is taken to be none.
_LOOK_AGAIN_S = 0.1
#: Longest pause before a broker that did not tell about a place is asked again.
_CHECK_AGAIN_MAX_S = 5.0
#: How often ``get`` reads bytes that fail a check before it says so.
_READS_OF_DAMAGE = 3
#: What an offset on the wire can be.
_OFFSET_MAX = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic of a consumer: how much to fetch at a time, for whom, and which tags."""

    topic: str
    length: int
    listener: Listener
    tags: tuple[str, ...]


@dataclass(slots=True)
class _Held:
    """A partition this member owns now."""

    where: TopicPartition
    delivery: Delivery
    fetcher: PartitionFetcher
    committed: int
    message_id: int | None  # of the last message handled before the delivery began, by anybody
    fetch_failed: bool = False  # the trouble this partition has is one of the fetcher
    stopped: str = ""  # why the group goes on here only after a reset
    told_stopped: bool = False  # whether that is in the tree
    checking: "asyncio.Task[None] | None" = field(default=None)
    drained: "asyncio.Future[None] | None" = field(default=None)

    def progress(self) -> Progress:
        position, message_id = self.delivery.progress()
        return Progress(position, self.message_id if message_id is None else message_id)


class ConsumerCore:
    """One consumer. Create it on the loop it will live on."""

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        make_delivery: DeliveryMaker,
        permit: Permit,
    ) -> None:
        self.config = config
        self.member = config.member or _member_name(cluster)
        self.closed = False
        self._cluster = cluster
        self._make_delivery = make_delivery
        self._permit = permit
        self._loop = asyncio.get_running_loop()
        self._fetches = Fetches(
            cluster, max_wait_s=config.max_wait_s, buffer_bytes=config.buffer_bytes
        )
        self._subscriptions: dict[str, Subscription] = {}
        self._membership: Membership | None = None
        self._starting = False
        self._closing: asyncio.Task[None] | None = None
        self._held: dict[TopicPartition, _Held] = {}
        self._commit_task: asyncio.Task[None] | None = None
        self._publish_task: asyncio.Task[None] | None = None
        self._commit_lock = asyncio.Lock()
        self._troubles = Troubles(config.group, self.member, cluster.clock)

    # Reading by position ------------------------------------------------------------------------
    async def get(
        self, topic: str, partition: int, offset: int, length: int, timeout: float | None = None
    ) -> list[Message]:
        """See ``MessageConsumer.get``."""
        if not 1 <= length <= limits.FETCH_BYTES_MAX:
            raise InvalidArgument(f"length {length} is outside [1, {limits.FETCH_BYTES_MAX}] bytes")
        where = TopicPartition(topic, partition)
        await self._cluster.track(topic)
        # What no field of a request holds needs no asking.
        if not 0 <= partition < limits.PARTITIONS_PER_TOPIC_MAX:
            self._cluster.routes.placement(where)  # says which partitions there are
        if not 0 <= offset <= _OFFSET_MAX:
            bounds = await self.bounds(topic, partition)
            raise OffsetOutOfRange(
                f"offset {offset} of {where} is outside [{bounds.earliest}, {bounds.latest}]",
                details={"earliest": bounds.earliest, "latest": bounds.latest},
            )
        bound = 0.0 if timeout is None else check_timeout(timeout)
        deadline = self._cluster.clock.monotonic() + bound
        damaged = 0
        while True:
            left = max(0.0, deadline - self._cluster.clock.monotonic())
            wait_s = min(left, limits.LONG_POLL_S_MAX)
            chunk = await self._fetch(where, offset, length, wait_s, anew=damaged > 0)
            decoder = Decoder(where)
            messages = decoder.decode(chunk)
            if messages:
                return messages
            if decoder.error is not None:
                damaged += 1
                self._troubles.bad_reads += 1
                if damaged >= _READS_OF_DAMAGE:
                    raise decoder.error
                await asyncio.sleep(_LOOK_AGAIN_S * self._cluster.rng.random())
            elif chunk.body:  # a control record alone, or a record larger than ``length``
                offset, length = _further(chunk, offset, length)
            elif self._cluster.clock.monotonic() >= deadline:
                return []

    async def _fetch(
        self, where: TopicPartition, offset: int, length: int, wait_s: float, *, anew: bool
    ) -> Chunk:
        response, body = await self._request(
            where,
            offset,
            Command.GET,
            GetRequest(
                topic=where.topic,
                partition=where.partition,
                offset=offset,
                max_bytes=length,
                max_wait_ms=int(wait_s * 1000),
                validate=True,
            ),
            wait_s,
            anew=anew,
        )
        assert isinstance(response, GetResponse)
        return chunk_of(response, body)

    async def _request(
        self,
        where: TopicPartition,
        offset: int,
        command: int,
        message: GetRequest | OffsetsRequest,
        extra_s: float = 0.0,
        *,
        anew: bool = False,
    ) -> tuple[object, bytes]:
        """Ask whoever holds ``offset``, following it once or twice when it moved.

        ``anew``: on a connection that is used for nothing else.
        """
        deadline = self._cluster.clock.monotonic() + self._cluster.config.request_timeout_s
        pause = 0.02
        while True:
            try:
                address, message.epoch = self._cluster.master_at(where, offset)
                message.topic_id = self._cluster.routes.topic(where.topic).id
                left = max(0.01, deadline - self._cluster.clock.monotonic())
                return await self._cluster.request(
                    address, command, message, timeout=left + extra_s, anew=anew
                )
            except VqError as error:
                late = self._cluster.clock.monotonic() + pause >= deadline
                cut = isinstance(error, ConnectionCut)  # asking twice does no harm
                if late or not (cut or error.retriable or error.refresh_routes):
                    raise
                if pause > _LOOK_AGAIN_S and self._is_beyond(where):
                    raise
                self._cluster.refresh(where.topic)
            await asyncio.sleep(pause)
            pause = min(0.5, pause * 2)

    def _is_beyond(self, where: TopicPartition) -> bool:
        """Whether the topic has no such partition, as far as is known here."""
        view = self._cluster.routes.topics.get(where.topic)
        return view is not None and where.partition >= len(view.partitions)

    async def offsets(
        self, where: TopicPartition, *, time_ms: int | None = None
    ) -> OffsetsResponse:
        """Return the earliest and latest offset of a partition, and the one for a time.

        Raises:
            UnknownTopic, UnknownPartition: There is none.
        """
        await self._cluster.track(where.topic)
        placement = self._cluster.routes.placement(where)
        last = placement.spans[-1]
        at = last.start if last.end is None else last.end - 1
        request = OffsetsRequest(topic=where.topic, partition=where.partition)
        if time_ms is not None:
            request.by_time, request.time_ms = True, time_ms
        response, _ = await self._request(where, at, Command.OFFSETS, request)
        assert isinstance(response, OffsetsResponse)
        if len(placement.spans) > 1:  # the oldest bytes may lie in another group
            first, _ = await self._request(
                where, placement.spans[0].start, Command.OFFSETS, request
            )
            assert isinstance(first, OffsetsResponse)
            response.earliest = min(response.earliest, first.earliest)
        return response

    async def bounds(self, topic: str, partition: int) -> OffsetBounds:
        """See ``MessageConsumer.get_bounds``."""
        found = await self.offsets(TopicPartition(topic, partition))
        return OffsetBounds(found.earliest, found.latest)

    # Subscriptions ------------------------------------------------------------------------------
    def subscribe(
        self, topic: str, length: int, listener: Listener, message_filter: str | None
    ) -> None:
        """See ``MessageConsumer.subscribe``."""
        if self._membership is not None or self._starting or self.closed:
            raise InvalidState("subscribe comes before start")
        if topic in self._subscriptions:
            raise InvalidArgument(f"topic {topic!r} is subscribed already")
        if not 1 <= length <= limits.FETCH_BYTES_MAX:
            raise InvalidArgument(f"length {length} is outside [1, {limits.FETCH_BYTES_MAX}] bytes")
        check_name("topic", topic)
        tags = () if message_filter is None else tags_of(message_filter)
        self._subscriptions[topic] = Subscription(topic, length, listener, tags)

    async def start(self) -> None:
        """See ``MessageConsumer.start``."""
        if not self._subscriptions:
            raise InvalidState("nothing is subscribed: call subscribe(topic, length, listener)")
        if not self.config.group:
            raise InvalidState("start needs ConsumerConfig(group=...)")
        if self._membership is not None or self._starting or self.closed:
            raise InvalidState("this consumer was started or closed before")
        self._starting = True
        try:
            for topic in self._subscriptions:
                await self._cluster.track(topic)
            membership = self._membership = Membership(
                self._cluster,
                self.config,
                member=self.member,
                filters={each.topic: "||".join(each.tags) for each in self._subscriptions.values()},
                hooks=MembershipHooks(self._claimed, self._revoke, self._suspend, self._resume),
                permit=self._permit,
            )
            await membership.start()
            if self._closing is not None:
                await membership.close(_CLOSE_S)
                raise InvalidState("this consumer was closed while it started")
        except BaseException:
            self._membership = None  # ``start`` may be tried again
            raise
        finally:
            self._starting = False
        self._commit_task = asyncio.create_task(self._commit_regularly())
        self._publish_task = asyncio.create_task(self._troubles.publish(membership.tell))

    def held(self) -> list[TopicPartition]:
        """Return the partitions this member owns now, sorted."""
        return sorted(self._held)

    # What membership tells ----------------------------------------------------------------------
    async def _claimed(self, claim: claims.Claim) -> None:
        """A partition is ours: find where to begin, and begin."""
        where = claim.partition
        self._expect_target()
        if claim.committed is not None:
            begin = Progress(claim.committed.offset, claim.committed.message_id)
            stopped = await places.why_stopped(self._cluster, where, claim.committed)
            self._begin(
                where,
                begin,
                committed=begin.position,
                stopped=stopped,
                told_stopped=bool(claim.committed.stopped),
            )
            return
        assert self._membership is not None
        offsets = await self.offsets(where)
        latest = self._membership.contract.start == "latest" and not await claims.is_younger(
            self._cluster.coordinator, self.config.group, where
        )
        begin = Progress(offsets.latest if latest else offsets.earliest)
        # Kept at once: what arrives from now on must not be skipped after a crash.
        error = (await self._membership.commit({where: begin}))[where]
        if error is not None:
            raise error
        self._begin(where, begin, committed=begin.position)

    def _begin(
        self,
        where: TopicPartition,
        begin: Progress,
        *,
        committed: int,
        stopped: str = "",
        told_stopped: bool = False,
    ) -> None:
        """Deliver a partition from ``begin`` on, if it is still the same place."""
        subscription = self._subscriptions[where.topic]
        position = begin.position
        hooks = DeliveryHooks(
            consumed=lambda size, rest: self._soon(fetcher.consumed, size, rest),
            stuck=lambda error: self._soon(self._stuck, held, error),
            went_on=lambda: self._soon(self._went_on, held),
            fetch_again=lambda offset: self._soon(self._fetch_again, held, offset),
        )
        delivery = self._make_delivery(where, position, subscription.listener, hooks)
        fetcher = PartitionFetcher(
            self._fetches,
            where,
            position,
            length=subscription.length,
            prefetch_bytes=self.config.prefetch_bytes,
            tags=subscription.tags,
            on_chunk=delivery.add,
            on_error=lambda error: self._fetch_told(held, error),
            on_new_epoch=lambda: self._look_again(held),
        )
        held = _Held(where, delivery, fetcher, committed, begin.message_id)
        self._held[where] = held
        if stopped:
            held.told_stopped = told_stopped
            self._stop(held, stopped)
        elif begin.message_id is None:
            fetcher.start()  # its first GET asks whether there is such an offset
        else:
            held.checking = self._loop.create_task(self._check_place(held, begin))

    # The place a group goes on from -----------------------------------------------------------
    async def _check_place(self, held: _Held, begin: Progress) -> None:
        """Start to fetch once the broker has not said that it is another place."""
        tags = self._subscriptions[held.where.topic].tags
        pause_s = _LOOK_AGAIN_S
        while True:
            try:
                reason = await places.why_another(self._request, held.where, begin, tags)
                break
            except VqError as error:
                if not passes(error):
                    self._fetch_told(held, error)
                await asyncio.sleep(pause_s * (0.5 + self._cluster.rng.random()))
                pause_s = min(_CHECK_AGAIN_MAX_S, pause_s * 2)
        self._fetch_told(held, None)
        if reason:
            self._stop(held, reason)
        else:
            held.fetcher.start()

    def _stop(self, held: _Held, reason: str) -> None:
        """Go on only after a reset, this member and every later one."""
        held.fetcher.stop()
        held.stopped = reason
        self._tell_stopped(held)
        if not held.told_stopped:
            held.checking = self._loop.create_task(self._keep_stop())

    def _tell_stopped(self, held: _Held) -> None:
        error = places.stopped_error(self.config.group, held.where, held.stopped)
        self._troubles.failed(held.where, held.fetcher.position, error)

    async def _keep_stop(self) -> None:
        """Write down that the group was stopped; the next regular commit tries again."""
        try:
            await self.commit()
        except VqError as error:
            logger.info("group %s: a stop is committed later: %s", self.config.group, error)

    def _look_again(self, held: _Held) -> None:
        """The broker came up anew: is what was handled still there?"""
        held.checking = self._loop.create_task(self._check_place(held, held.progress()))

    def _soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        """Call back on the loop, from any thread; too late is no error."""
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
            self._loop.call_soon_threadsafe(callback, *arguments)

    # What keeps a partition from going on ---------------------------------------------------------
    @property
    def last_error(self) -> VqError | None:
        """See ``MessageConsumer.last_error``."""
        return self._troubles.last_error

    @property
    def bad_reads(self) -> int:
        """See ``MessageConsumer.bad_reads``."""
        return self._troubles.bad_reads

    def troubles(self) -> dict[TopicPartition, PartitionTrouble]:
        """See ``MessageConsumer.troubles``."""
        return self._troubles.present()

    def _stuck(self, held: _Held, error: VqError) -> None:
        if self._held.get(held.where) is held:
            held.fetch_failed = False
            self._troubles.failed(held.where, held.delivery.position, error)

    def _went_on(self, held: _Held) -> None:
        if self._held.get(held.where) is held:
            self._troubles.over(held.where)
            if held.stopped:
                self._tell_stopped(held)

    def _fetch_again(self, held: _Held, offset: int) -> None:
        if self._held.get(held.where) is held:
            self._troubles.bad_reads += 1
            held.fetcher.fetch_again(offset)

    def _fetch_told(self, held: _Held, error: VqError | None) -> None:
        """The fetcher cannot go on, or can again."""
        if error is not None and places.proves_a_loss(error, held.fetcher.position):
            self._stop(held, str(error))
        elif error is not None:
            held.fetch_failed = True
            self._troubles.failed(held.where, held.fetcher.position, error)
        elif held.fetch_failed:
            held.fetch_failed = False
            self._troubles.over(held.where)

    async def _drain(self, held: _Held) -> None:
        """Return once no listener runs for a partition any more."""
        held.fetcher.stop()
        if held.checking is not None:
            held.checking.cancel()
        if held.drained is None:
            drained = held.drained = self._loop.create_future()
            try:
                held.delivery.stop(lambda: self._soon(_settle, drained))
            except BaseException:
                held.drained = None  # nobody settles it: the next try asks again
                raise
        while not held.drained.done():
            await asyncio.wait([held.drained], timeout=_DRAIN_WARNING_S)
            if not held.drained.done():
                logger.warning(
                    "%s waits for its listener to return before it can be given up",
                    held.where,
                )

    async def _revoke(self, where: TopicPartition, commit: bool) -> None:
        """A partition is to be given up: drain it, commit what was done, forget it.

        Raises:
            CoordinationError: ZooKeeper did not take the commit now; to be called again.
        """
        held = self._held.get(where)
        if held is None:
            return
        self._expect_target()
        await self._drain(held)
        if commit:
            try:
                await self._commit([held])
            except VqError as error:
                if isinstance(error, CoordinationError) and error.retriable:
                    raise
                logger.warning("%s: the last commit before release was refused: %s", where, error)
        self._held.pop(where, None)
        self._troubles.forget(where)

    def _expect_target(self) -> None:
        """Share memory out for all partitions that are to be held, claimed already or not."""
        if self._membership is not None:
            self._fetches.expect(self._membership.target_count)

    async def _suspend(self) -> None:
        """Ownership can no longer be proved: deliver nothing until it can."""
        await asyncio.gather(*(self._drain(held) for held in self._held.values()))

    def _resume(self) -> None:
        """The same session is back and still owns what it held: go on where delivery stopped."""
        for held in list(self._held.values()):
            if held.drained is not None and held.drained.done():
                self._troubles.forget(held.where)
                self._begin(
                    held.where,
                    held.progress(),
                    committed=held.committed,
                    stopped=held.stopped,
                    told_stopped=held.told_stopped,
                )

    # Commits --------------------------------------------------------------------------------------
    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(
                self.config.commit_interval_s * (0.8 + 0.4 * self._cluster.rng.random())
            )
            try:
                await self.commit()
            except VqError as error:
                logger.warning(
                    "group %s: commit failed, tried again later: %s", self.config.group, error
                )
            except Exception:
                logger.exception("group %s: a commit stumbled, and goes on", self.config.group)

    async def commit(self) -> None:
        """Commit the position of every partition that has moved.

        Raises:
            CoordinationError: ZooKeeper did not take it; it is tried again at the next interval.
        """
        await self._commit(list(self._held.values()))

    async def _commit(self, partitions: list[_Held]) -> None:
        membership = self._membership
        if membership is None:
            return
        async with self._commit_lock:
            dirty = {
                held.where: held.progress()
                for held in partitions
                if held.delivery.position != held.committed
                or (held.stopped and not held.told_stopped)
            }
            if not dirty:
                return
            stopped = {held.where: held.stopped for held in partitions if held.stopped}
            outcome = await membership.commit(dirty, stopped=stopped)
            for where, error in outcome.items():
                held = self._held.get(where)
                if error is None:
                    if held is not None:
                        held.committed = dirty[where].position
                        held.told_stopped = where in stopped
                elif isinstance(error, GenerationStale):
                    logger.warning("%s was taken over by another member: %s", where, error)
                    membership.wake()

    async def committed(self, topic: str) -> dict[TopicPartition, int]:
        """See ``MessageConsumer.get_offset``."""
        if not self.config.group:
            raise InvalidState("get_offset needs ConsumerConfig(group=...)")
        found = await commits.read_offsets(self._cluster.coordinator, self.config.group, [topic])
        return {where: value.offset for where, value in found.items()}

    async def close(self) -> None:
        """Finish the messages in hand, commit, leave the group. May be called again."""
        self.closed = True
        if self._closing is None:
            self._closing = self._loop.create_task(self._finish())
        await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        for task in (self._commit_task, self._publish_task):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        try:
            if self._membership is not None:
                await self._membership.close(_CLOSE_S)
        finally:
            for held in self._held.values():
                held.fetcher.stop()


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _further(chunk: Chunk, offset: int, length: int) -> tuple[int, int]:
    """Return the offset and length to read with when ``chunk`` held no whole message.

    Raises:
        TimedOut: Never in practice: the record would have to be larger than any frame.
    """
    position = 0
    while len(chunk.body) - position >= 20:
        size = bytes_needed(memoryview(chunk.body)[position:])
        if position + size > len(chunk.body):
            if size > limits.FETCH_BYTES_MAX:
                raise TimedOut(f"the record at {offset + position} has {size} bytes")
            return offset + position, max(length, size)
        position += size
    return offset + position, max(length, 64)


def _member_name(cluster: ClusterClient) -> str:
    host = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname())[:60]
    return f"{host}-{os.getpid()}-{cluster.rng.getrandbits(32):08x}"
