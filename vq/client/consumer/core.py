"""The consumer's core: the work of one group member. Loop-bound.

``Membership`` decides which partitions are held. Each of them has a fetcher, which reads ahead, and
a delivery, which decodes and calls the listener. ``commit`` writes the progress of deliveries to
ZooKeeper. A partition that is given up is first drained: no listener runs, and its position is
committed, before another member claims it. Its states are in ``hold_states``. Where a partition
begins, and what stops it, is in ``place``.
"""

import asyncio
import math
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, ReadFrom
from vq.client.consumer.deliver import time_limit
from vq.client.consumer.deliver.bad_records import BadRecords
from vq.client.consumer.deliver.by_mode import delivery_for
from vq.client.consumer.deliver.delivery import Delivery, DeliveryHooks, Executor
from vq.client.consumer.deliver.giving_up import Called, Copied, Spent
from vq.client.consumer.deliver.hands import Hand
from vq.client.consumer.deliver.inbox import Inbox
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.failed_messages import FailedMessages
from vq.client.consumer.fetch.fetch_sessions import Fetches
from vq.client.consumer.fetch.fetcher import PartitionFetcher
from vq.client.consumer.group.hold_states import Event, State
from vq.client.consumer.group.holds import Hold, Holds, Reading
from vq.client.consumer.group.membership import Membership
from vq.client.consumer.group.outside_offsets import MemberOffsets, OutsideOffsets
from vq.client.consumer.group.own_offsets import OwnOffsets
from vq.client.consumer.group.share import stale
from vq.client.consumer.group.subscriptions import Subscriptions
from vq.client.consumer.group.taken import InHand, TakenMessages
from vq.client.consumer.place.beginnings import Beginnings
from vq.client.consumer.place.steering import Steering
from vq.client.consumer.place.stops import Stops
from vq.client.consumer.reader import Reader
from vq.client.consumer.shared.handles import SettleKind
from vq.client.consumer.shared.member import SharedMember
from vq.client.consumer.shared.sources import HeldMessage
from vq.client.consumer.shared.work import Settle, SharedMessage
from vq.client.consumer.troubles import Troubles
from vq.client.loop_calls import call_soon
from vq.client.reading.nodes import Nodes
from vq.coordination.groups import claims
from vq.coordination.tree.values.group_terms import (
    FailurePolicy,
    GroupModel,
    WorkingMode,
)
from vq.errors import (
    CoordinationError,
    GenerationStale,
    InvalidState,
    VqError,
)
from vq.log_lines import get_logger
from vq.message_filter import Wanting
from vq.model import Message, PartitionTrouble, TopicPartition, check_name
from vq.tasks import begin_task
from vq.topic_pattern import is_pattern

logger = get_logger(__name__)
_DRAIN_WARNING_S = 10.0
CLOSE_S = 30.0
#: Pauses before a commit that messages wait for is tried again.
_COMMIT_AGAIN: Final = Backoff(first_s=0.1, most_s=5.0, jitter=0.5)
_NOTHING: Final = Called(None, None)


class Transacting(Protocol):
    """A transaction of a producer, as far as a consumer knows it."""

    def check_offsets(self, cluster: ClusterClient) -> None:
        """Return if it may have offsets of a consumer of a cluster."""
        ...

    def add_offsets(self, offsets: TakenMessages) -> None:
        """Have the offsets of a consumer moved when it is committed, and only then."""
        ...


class ConsumerCore:
    """One consumer. Create it on the loop it will live on.

    Args:
        cluster, config: See below.
        permit: While it lasts, messages may be delivered.
        by_request: A member of a shared group for whose messages others ask; see ``SharedMember``.

    Attributes:
        shared: What it has of a shared group; None: its group is none.
        cluster: Where its group is.
        config: How it fetches and commits.
        member: The name of this member inside its group.
        closed: ``close`` was called.
        holds: What it has of its group's partitions.
        reader: Reads without the group.
        policy: What follows a failed message.
        failed: Where messages go that listeners failed for.
        stops: What keeps a reading from going on.
        steering: Seeks, pauses and resumes.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        permit: Permit,
        by_request: bool = False,
    ) -> None:
        self.config = config
        self.member = config.member_id or _member_name(cluster)
        self.closed = False
        self.cluster = self._cluster = cluster
        self._permit = permit
        self._loop = asyncio.get_running_loop()
        self._fetches = Fetches(
            cluster,
            max_wait_s=config.max_wait_s,
            buffer_bytes=config.buffer_bytes,
            nodes=Nodes(cluster, ReadFrom(config.read_from), config.rack),
        )
        self._subscriptions = Subscriptions(config)
        self._membership: Membership | None = None
        self._starting = False
        self._start_is_over = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self.holds = Holds(config.group, self.member)
        self._tasks: list[asyncio.Task[None]] = []  # commit, publish and watch regularly
        self._owing: set[Reading] = set()  # has handled so much that it is to be committed now
        self._is_owing = asyncio.Event()
        self._troubles = Troubles(config.group, self.member, cluster.clock)
        self.policy = PolicyInForce(config)
        self.failed = FailedMessages(cluster, config.group, self.member, self.policy)
        self._own_offsets: OwnOffsets | None = None
        if config.model is GroupModel.BROADCASTING and config.group:
            keeps = bool(config.member_id)
            self._own_offsets = OwnOffsets(cluster, config.group, self.member, keeps=keeps)
        self._bad_records = BadRecords(cluster, config.group, self.failed.copier)
        self.shared: SharedMember | None = None
        if config.model is GroupModel.SHARED and config.group:
            self.shared = SharedMember(
                cluster,
                config,
                self.member,
                self.policy,
                self.failed.copier,
                self._bad_records,
                self._troubles,
                by_request=by_request,
            )
        self.reader = Reader(cluster, self._troubles)
        self.stops = Stops(
            cluster,
            config,
            subscriptions=self._subscriptions,
            reader=self.reader,
            troubles=self._troubles,
            policy=self.policy,
            bad_records=self._bad_records,
            commit=self.commit,
        )
        self.steering = Steering(self)
        store, in_order = config.offset_store, config.mode is WorkingMode.ORDERLY
        self._outside = (
            None
            if store is None
            else OutsideOffsets(
                store,
                cluster=cluster.config.cluster,
                coordinator=cluster.coordinator,
                clock=cluster.clock,
                in_order=in_order,
            )
        )

        self._offsets: MemberOffsets = self._own_offsets or self._outside or cluster.offsets
        if self.shared is not None:  # nothing is claimed, and where the group is, others know
            self._offsets = OwnOffsets(cluster, config.group, self.member, keeps=False)
        self._beginnings = Beginnings(
            cluster,
            config,
            subscriptions=self._subscriptions,
            own_offsets=self._own_offsets,
            reader=self.reader,
            troubles=self._troubles,
            begin=self._begin,
        )

    def check_open(self) -> None:
        """Check that ``close`` was not called.

        Raises:
            InvalidState: It was.
        """
        if self.closed:
            raise InvalidState("this consumer is closed; make another one")

    # Subscriptions ------------------------------------------------------------------------------
    def subscribe(
        self,
        topic_or_pattern: str,
        length: int,
        message_filter: Wanting,
        executor: Executor,
        called: Called = _NOTHING,
        redelivered: Called | None = None,
    ) -> None:
        """See ``MessageConsumer.subscribe``; the executor gets the messages, and what it calls.

        ``redelivered`` is called for the group's retry topic, which the members read, too. Where
        each of them gets everything they do not: the group may have one from the time before that.
        """
        self.check_open()
        if self._membership is not None or self._starting:
            raise InvalidState("subscribe comes before start")
        self.failed.check_topic(topic_or_pattern)
        if self.shared is not None and called.listener is None:
            self.shared.be_pulled()
        self._subscriptions.add(topic_or_pattern, length, message_filter, executor, called)
        shares = self._own_offsets is None and self.shared is None
        if self.failed.retry_topic and redelivered is not None and shares:
            self._subscriptions.add_retries(self.failed.retry_topic, length, executor, redelivered)

    async def copy(self, spent: Sequence[Spent]) -> Copied:
        """Copy messages that have used up their attempts; return once that is done.

        Before the first copy in the retry topic, the group is to read that.
        """
        try:
            retried = next((each for each in spent if self.failed.is_retried(each)), None)
            if self._membership is not None and retried is not None:
                await self.failed.open(retried.message)
                await self._membership.read_retries()
        except Exception as error:  # noqa: BLE001 - it is the answer
            return 0, error
        return await self.failed.copy_all(spent)

    async def start(self, settle: Settle | None = None) -> None:
        """See ``MessageConsumer.start``.

        ``settle``: what the methods of messages of a shared group call; None: ``self.settle``.
        """
        if not self._subscriptions:
            raise InvalidState("nothing is subscribed: call subscribe(topic, length, listener)")
        if not self.config.group:
            raise InvalidState(
                "this consumer has no group, and reads with get() alone; to receive, make it with "
                "ConsumerConfig(group=...)"
            )
        self.check_open()
        if self._membership is not None or self._starting:
            raise InvalidState(
                "this consumer runs already: start is called once, or get_many or `async for` "
                "have done it"
            )
        self._starting = True
        self._start_is_over.clear()
        try:
            wanted = self._subscriptions.filters()
            for topic in wanted:
                if not is_pattern(topic):
                    await self._cluster.track(topic)
            await self._cluster.check_taken()
            if self._own_offsets is not None:
                await self._own_offsets.open()
            if self._outside is not None:
                await self._outside.open()
            membership = self._membership = Membership(
                self._cluster,
                self.config,
                member=self.member,
                filters=wanted,
                offsets=self._offsets,
                holds=self.holds,
                consumer=self,
                permit=self._permit,
                retry_topic=self._subscriptions.retry_topic,
            )
            await membership.start()
            if self.shared is not None:
                self.shared.start(self._listener_of, settle or self.settle)
            if self._closing is not None:
                await membership.close(CLOSE_S)
                raise InvalidState("this consumer was closed while it started")
        except BaseException:
            self._membership = None  # ``start`` may be tried again
            if self._own_offsets is not None:
                await self._own_offsets.close()
            raise
        finally:
            self._starting = False
            self._start_is_over.set()
        self._tasks = [
            begin_task(self._commit_regularly()),
            begin_task(self._commit_owed()),
            begin_task(self._troubles.publish(membership.share.report)),
        ]
        limit_s = self.config.listener_timeout_s
        if limit_s is not None:
            listeners = [each.called.listener for each in self._subscriptions]
            watch = time_limit.watch(listeners, limit_s, self._troubles, self.held)
            self._tasks.append(begin_task(watch))

    async def ensure_started(self, settle: Settle | None = None) -> None:
        """Start unless that was done; wait for a start that is under way. See ``start``."""
        while self._starting:
            await self._start_is_over.wait()
        if self._membership is None:
            await self.start(settle)

    def be_watched(self) -> None:
        """Count on a parent that ends what hangs and counts what kills; before ``start``.

        In a shared group leases then last as long as listeners are at messages.
        """
        if self.shared is not None:
            self.shared.be_watched()

    @property
    def is_shared(self) -> bool:
        """Whether it is a member of a shared group."""
        return self.shared is not None

    async def take_many(self, most: int) -> list[SharedMessage]:
        """See ``SharedMember.take_many``."""
        assert self.shared is not None
        return await self.shared.take_many(most)

    def give_back(self, messages: Iterable[SharedMessage]) -> None:
        """Give back messages of a shared group that have reached nobody."""
        assert self.shared is not None
        self.shared.give_back(each._handle for each in messages)

    def _listener_of(self, topic: str) -> Callable[[Message], Awaitable[Any]]:
        """Return what is awaited for a message of a shared group."""
        subscription = self._subscriptions.of(topic)
        return partial(subscription.executor.call, subscription.called.listener)

    def settle(self, item: HeldMessage, kind: SettleKind, time_ms: int) -> "asyncio.Future[None]":
        """See ``SharedMember.settle``."""
        assert self.shared is not None
        return self.shared.settle(item, kind, time_ms)

    async def settled(self, item: HeldMessage, kind: SettleKind, time_ms: int) -> None:
        """Return once that has become of a message; see ``settle``."""
        await self.settle(item, kind, time_ms)

    def held(self) -> list[TopicPartition]:
        """Return the partitions this member consumes now, sorted."""
        if self.shared is not None:
            return self.shared.partitions()
        return [reading.hold.partition for reading in self.holds.readings()]

    # Events of the membership -------------------------------------------------------------------
    def follow(self, failure: FailurePolicy) -> None:
        """See ``GroupConsumer``."""
        if not self.policy.follow(failure):
            return
        for reading in self.holds.readings():
            reading.delivery.listener = self._called(reading.hold.partition.topic)
        for each in self._subscriptions:
            each.executor.end_pauses()

    def _called(self, topic: str) -> Any:
        """Return what the executor calls for messages of a topic, by the policy in force."""
        called = self._subscriptions.of(topic).called
        return called.giving_up if self.failed.copies(topic) else called.listener

    async def claimed(self, hold: Hold) -> None:
        """Begin to consume a partition that was claimed."""
        self._expect_target()
        assert self._membership is not None
        if self.shared is None:
            await self._beginnings.claimed(hold, self._membership)
            return
        topic = hold.partition.topic
        latest = self._membership.contract.start == "latest" and not await claims.is_younger(
            self._cluster.coordinator,
            self.config.group,
            hold.partition,
            by_pattern=not self._subscriptions.names(topic),
        )
        await self.shared.add(hold.partition, self._subscriptions.of(topic).wanted, latest=latest)
        if hold.may(Event.DELIVER):
            hold.on(Event.DELIVER)

    def _begin(self, hold: Hold, begin: Progress) -> None:
        """Deliver a partition from ``begin`` on, if the log still has the same messages there."""
        partition, position = hold.partition, begin.position
        subscription = self._subscriptions.of(partition.topic)
        hooks = DeliveryHooks(
            consumed=lambda size, rest: fetcher.finished(size, rest),
            stuck=lambda error: call_soon(self._loop, self.stops.stuck, reading, error),
            went_on=lambda: call_soon(self._loop, self.stops.went_on, reading),
            fetch_again=lambda offset: call_soon(
                self._loop, self.stops.fetch_again, reading, offset
            ),
            stop=lambda error: call_soon(self._loop, self.stops.listener_stops, reading, error),
            owes=lambda: call_soon(self._loop, self._owes, reading),
        )
        config = subscription.executor.settings(self.config)
        if partition.topic == self.failed.retry_topic:  # lists would mix topics
            config = replace(config, batch_size=1, batch_wait_ms=0)
        delivery = delivery_for(
            partition,
            position,
            self._called(partition.topic),
            config,
            self.policy,
            self._cluster.rng,
            self._cluster.clock.wall_ms,
            executor=subscription.executor,
            permit=self._permit,
            hooks=hooks,
            wanted=subscription.wanted,
            ahead=begin.ahead,
            owed=begin.owed,
        )
        fetcher = PartitionFetcher(
            self._fetches,
            partition,
            position,
            length=subscription.length,
            prefetch_bytes=self.config.prefetch_bytes,
            wanted=subscription.wanted,
            last_epoch=begin.epoch,
            on_chunk=delivery.add,
            on_error=lambda error: self.stops.fetch_reported(reading, error),
            # A new master: its log may not have what was handled.
            on_new_epoch=lambda: self.stops.check(reading, reading.progress()),
            on_bad_record=lambda offset, why: self.stops.meet_bad_record(reading, offset, why),
        )
        reading = hold.reading = Reading(hold, delivery, fetcher, begin.message_id)
        if hold.stopped:
            self.stops.stop(reading, hold.stopped)
        elif begin.message_id is None:
            self.stops.deliver(reading)  # its first read checks the offset, and its epoch
        else:
            self.stops.check(reading, begin)

    # Troubles -------------------------------------------------------------------------------------
    @property
    def last_error(self) -> VqError | None:
        """See ``MessageConsumer.last_error``."""
        return self._troubles.last_error

    @property
    def bad_reads(self) -> int:
        """See ``MessageConsumer.bad_reads``."""
        return self._troubles.bad_reads

    @property
    def bad_records(self) -> int:
        """See ``MessageConsumer.bad_records``."""
        return self._bad_records.passed

    def troubles(self) -> dict[TopicPartition, PartitionTrouble]:
        """See ``MessageConsumer.troubles``."""
        return self._troubles.present()

    # Ends and pauses ----------------------------------------------------------------------------
    async def drain(self, hold: Hold) -> None:
        """See ``GroupConsumer``."""
        self._expect_target()
        if self.shared is not None:
            await self.shared.remove(hold.partition)
        if hold.reading is not None:
            await self._wait_drained(hold.reading)
        if hold.state is State.LOST:
            progress = hold.progress()
            if progress is not None and not hold.stopped:
                self._beginnings.lost(hold, progress)
            self._forget(hold)

    async def _wait_drained(self, reading: Reading) -> None:
        """Wait until no listener runs for a partition any more, but no longer than its limit.

        What a listener does behind the limit counts for nothing: nobody asks this reading any more.
        """
        drained = reading.end()
        left_s = self.config.listener_timeout_s or math.inf
        while not drained.done() and left_s > 0:
            wait_s = min(_DRAIN_WARNING_S, left_s)
            left_s -= wait_s
            await asyncio.wait([drained], timeout=wait_s)
            if not drained.done():
                logger.warning(
                    "partition waits for its listener to return before it is handed over",
                    group=self.config.group,
                    partition=reading.hold.partition,
                    left_s=left_s,
                )

    async def commit_last(self, hold: Hold) -> None:
        """See ``GroupConsumer``.

        Raises:
            CoordinationError: ZooKeeper did not take the commit now; to be called again.
        """
        try:
            if self._membership is not None:
                await self._membership.share.settle(hold)
            await self._commit([hold], is_last=True)
            if self._outside is not None:
                await self._outside.copy_now(hold.partition)
        except VqError as error:
            if isinstance(error, CoordinationError) and error.retriable:
                raise
            logger.warning(
                "last commit before a hand-over was refused",
                group=self.config.group,
                partition=hold.partition,
                error=error,
            )
        self._forget(hold)

    def _forget(self, hold: Hold) -> None:
        hold.reading = None
        self._troubles.forget(hold.partition)

    def suspend(self) -> None:
        """Ownership can no longer be proved: deliver nothing until it can."""
        for reading in self.holds.readings():
            self.pause(reading)

    def pause(self, reading: Reading) -> None:
        """See ``Steered``."""
        hold = reading.hold
        if hold.may(Event.PAUSE):
            hold.on(Event.PAUSE)
        if hold.state is not State.PAUSING:
            return  # it is given up, or lost
        try:
            drained = reading.end()
        except Exception:
            logger.exception(
                "delivery cannot pause, trying again",
                group=self.config.group,
                partition=hold.partition,
            )
        else:
            drained.add_done_callback(lambda _: self._paused(reading))

    def _paused(self, reading: Reading) -> None:
        """No listener runs any more; go on if ownership was proved meanwhile."""
        if reading.is_current and reading.hold.state is State.PAUSING:
            reading.hold.on(Event.DRAINED)
            self.go_on_if_owned(reading)

    def go_on_if_owned(self, reading: Reading) -> None:
        """See ``Steered``."""
        if self._membership is None or self._membership.is_paused:
            return
        if not reading.hold.is_set_aside:
            self._go_on(reading)

    def resume(self) -> None:
        """What is held is still owned: go on where delivery stopped."""
        for reading in self.holds.readings():
            if reading.hold.may(Event.RESUME):
                if not reading.hold.is_set_aside:
                    self._go_on(reading)
            elif reading.hold.state is State.PAUSING:
                self.pause(reading)  # its listener still runs, or its stop failed

    def _go_on(self, reading: Reading) -> None:
        hold = reading.hold
        hold.on(Event.RESUME)
        self._troubles.forget(hold.partition)
        begin, hold.sought = hold.sought or reading.progress(), None
        self._begin(hold, begin)

    def ended(self, error: VqError) -> None:
        """Ownership can never be proved again: deliver nothing from now on."""
        readings = self.holds.readings()
        positions = {each.hold.partition: each.progress().position for each in readings}
        self._troubles.end(positions, error)
        if self.shared is not None:
            self.shared.fail(error)
        for each in self._subscriptions:
            each.executor.fail(error)

    def _expect_target(self) -> None:
        """Divide buffer space by the partitions that it is to hold, claimed already or not."""
        if self._membership is not None:
            self._fetches.expect(self._membership.target_count)

    # Commits --------------------------------------------------------------------------------------
    async def _commit_regularly(self) -> None:
        while True:
            await asyncio.sleep(
                self.config.commit_interval_s * (0.8 + 0.4 * self._cluster.rng.random())
            )
            await self._try_commit(self.holds)
            if self._outside is not None and await self._outside.copy_when_due():
                assert self._membership is not None
                self._membership.wake()

    def _owes(self, reading: Reading) -> None:
        self._owing.add(reading)
        self._is_owing.set()

    async def _commit_owed(self) -> None:
        """Commit what has so many handled messages that it waits, or will soon wait, for that."""
        failures = 0
        while True:
            await self._is_owing.wait()
            owing = {each for each in self._owing if each.is_current}
            self._owing.clear()
            self._is_owing.clear()
            done = await self._try_commit([each.hold for each in owing])
            if done and not any(each.hold.deciding for each in owing):
                failures = 0
                continue
            for each in owing:
                self._owes(each)
            failures += 1
            await asyncio.sleep(_COMMIT_AGAIN.pause_s(failures, self._cluster.rng))

    async def _try_commit(self, holds: Iterable[Hold]) -> bool:
        try:
            await self._commit(holds)
            return True
        except VqError as error:
            logger.warning(
                "commit failed, trying again later", group=self.config.group, error=error
            )
        except Exception:
            logger.exception("commit failed, trying again later", group=self.config.group)
        return False

    async def commit(self) -> None:
        """Commit the position of every partition that has moved.

        Raises:
            CoordinationError: ZooKeeper did not take it; it is tried again at the next interval.
        """
        if self.shared is not None:
            await self.shared.commit()
        await self._commit(self.holds)

    async def commit_and_forsake(self) -> None:
        """Commit all that is handled, also ahead, and wait for no listener; for vq only.

        The process ends its session and then itself: what listeners still do counts for nothing.

        Raises:
            CoordinationError: ZooKeeper did not take it.
        """
        self.closed = True
        if self.shared is not None:
            await self.shared.forsake()
        await self._commit(self.holds, is_last=True)

    async def _commit(self, holds: Iterable[Hold], *, is_last: bool = False) -> None:
        membership = self._membership
        if membership is None:
            return
        holds = list(holds)
        unsettled: CoordinationError | None = None
        for hold in holds:
            if hold.has_left_transactions and not is_last:
                try:
                    await membership.share.settle(hold, only_left=True)
                except CoordinationError as unknown:  # the others can be committed
                    unsettled = unknown
        dirty, counts = {}, {}
        for hold in holds:
            progress = hold.to_commit(is_last=is_last)
            reading = hold.reading
            if progress is not None:
                dirty[hold.partition] = progress
                if reading is not None:
                    counts[hold.partition] = reading.delivery, reading.delivery.count_of(progress)
            elif reading is not None and hold.is_owned and not hold.deciding:
                # Its application has committed it, or a transaction.
                reading.delivery.committed(reading.delivery.delivered)
        outcome = await membership.share.commit(dirty)
        for partition, error in outcome.items():
            if error is None and partition in counts:
                delivery, count = counts[partition]
                delivery.committed(count)
            if isinstance(error, GenerationStale):
                logger.warning(
                    "partition was taken over by another member",
                    group=self.config.group,
                    partition=partition,
                    error=error,
                )
                membership.wake()
        for error in outcome.values():
            if error is not None and not isinstance(error, GenerationStale):
                raise error
        if unsettled is not None:
            raise unsettled

    # Transactions ---------------------------------------------------------------------------------
    def take(
        self, transaction: Transacting | None, hand: Hand | None, inbox: Inbox | None
    ) -> TakenMessages | None:
        """Have a transaction finish what is in hand; None: there is nothing in hand.

        If that cannot be, what was asked for comes again: the next call would count it as handled.

        Args:
            transaction: Which one; None: there is none.
            hand: That of the listener that asks, if it is one.
            inbox: What the messages are asked of; None: listeners get them.

        Raises:
            InvalidState: There is no transaction, or no listener of this consumer asks; or its
                offsets are not in ZooKeeper.
            GenerationStale: A message is of a partition that another member has now.
            TransactionRefused: The time of the transaction is over.
        """
        try:
            taken = self._take(transaction, hand, inbox)
            if taken is not None and transaction is not None:
                transaction.add_offsets(taken)
        except VqError as error:
            if inbox is not None and inbox.taken is None:
                inbox.put_back(str(error))
            raise
        if inbox is not None and taken is not None:
            inbox.taken_by(taken)
        return taken

    def _take(
        self, transaction: Transacting | None, hand: Hand | None, inbox: Inbox | None
    ) -> TakenMessages | None:
        if transaction is None:
            raise InvalidState(
                "this thread, or task, has no open transaction of this producer; "
                "begin_transaction() begins one"
            )
        transaction.check_offsets(self.cluster)
        if self._membership is None or self._offsets is not self.cluster.offsets:
            raise InvalidState(
                "send_offsets is for a member of a group whose offsets are in ZooKeeper: it was "
                "not started, has an offset_store, or its model is 'broadcasting' or 'shared'",
                hint="with offsets in a database, keep them with your results there: see "
                "docs/howto/store-offsets.md",
            )
        if inbox is not None:
            if isinstance(inbox.taken, TakenMessages):
                return inbox.taken
            in_hand = inbox.take()
            if not in_hand:
                return None
            taken = self._taken(in_hand, lambda done: inbox.give_back(taken, finished=done))
            return taken
        if hand is None or hand.delivery.permit is not self._permit:
            raise InvalidState(
                "send_offsets is called by a listener of this consumer: it finishes the messages "
                "that the listener has in hand; this thread, or task, is in none"
            )
        if isinstance(hand.taken, TakenMessages) and not hand.taken.is_over:
            return hand.taken
        messages = hand.in_hand()
        if not messages or not hand.delivery.is_entered:
            raise InvalidState(
                "send_offsets came when the listener had returned, and with that its messages are "
                "handled; call it in the listener, or in what the listener awaits"
            )
        taken = hand.taken = self._taken([(hand.delivery, messages)], lambda _: None)
        return taken

    def _taken(
        self,
        in_hand: Sequence[tuple[Delivery, Sequence[Message]]],
        give_back: Callable[[bool], None],
    ) -> TakenMessages:
        found = []
        for delivery, messages in in_hand:
            hold = self.holds.get(delivery.partition)
            if hold is None:
                raise stale(delivery.partition)
            each = InHand(hold, hold.claim.generation, delivery, messages)
            if not each.is_ours:
                raise stale(delivery.partition)
            found.append(each)
        assert self._membership is not None
        return TakenMessages(
            self._membership.share,
            self._cluster,
            self.config.group,
            self.member,
            found,
            give_back=give_back,
        )

    async def committed(self, topic: str) -> dict[TopicPartition, int]:
        """See ``MessageConsumer.get_offset``."""
        if not self.config.group:
            raise InvalidState("get_offset needs ConsumerConfig(group=...)")
        check_name("topic", topic)
        if self._own_offsets is not None:
            await self._own_offsets.open()
        elif self._outside is not None and not self._outside.identity:
            await self._outside.open()
        offsets = self._offsets if self.shared is None else self.cluster.offsets
        found = await offsets.read(self.config.group, [topic])
        return {partition: value.offset for partition, value in found.items()}

    @property
    def stopped(self) -> bool:
        """Whether ``close`` has ended: the group was left."""
        return self._closing is not None and self._closing.done()

    async def close(self) -> None:
        """Finish the messages in hand, commit, leave the group. Calling it again is fine."""
        self.closed = True
        if self._closing is None:
            self._closing = begin_task(self._finish())
        await asyncio.shield(self._closing)

    async def _finish(self) -> None:
        tasks = [*self._tasks, *self._beginnings.tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        readings = self.holds.readings()
        try:
            if self.shared is not None:
                await self.shared.close(CLOSE_S)
            if self._membership is not None:
                await self._membership.close(CLOSE_S)
        finally:
            for reading in readings:
                reading.fetcher.stop()
            if self._own_offsets is not None:
                await self._own_offsets.close()
            if self._outside is not None:
                self._outside.close()
            self.failed.close()


def _member_name(cluster: ClusterClient) -> str:
    host = "".join(c if c.isalnum() or c in "._-" else "-" for c in socket.gethostname())[:60]
    return f"{host}-{os.getpid()}-{cluster.rng.getrandbits(32):08x}"
