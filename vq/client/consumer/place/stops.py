"""Whether a reading goes on: its place is compared first, and then it may fail, or be stopped.

Loop-bound. In here: what its fetcher and its delivery tell, which becomes a trouble that passes or
the end of the group's way in this partition until a reset. Not in here: where it begins
(``beginnings``), and the end of a reading that leaves or pauses (the consumer).
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.bad_records import BadRecords
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.fetch.fetch_sessions import DELAY_TOLD_S
from vq.client.consumer.group.hold_states import Event, State
from vq.client.consumer.group.holds import Reading
from vq.client.consumer.group.subscriptions import Subscriptions
from vq.client.consumer.place import places
from vq.client.consumer.reader import Reader
from vq.client.consumer.troubles import Troubles
from vq.client.reading.nodes import passes
from vq.coordination.tree.values.group_terms import BAD_RECORD, OnBadRecord
from vq.errors import ContentUnreadable, CorruptData, FilterFailed, ListenerFailed, VqError
from vq.log_lines import get_logger
from vq.tasks import begin_task

logger = get_logger(__name__)
#: Pauses before a broker that did not answer about a place is asked again.
_CHECK_AGAIN: Final = Backoff(first_s=0.1, most_s=5.0, jitter=0.5)


class Stops:
    """What keeps the readings of one consumer from going on.

    Args:
        cluster: Where the group is.
        config: Of the consumer.
        subscriptions: What it reads.
        reader: Asks brokers about places.
        troubles: Where it is told.
        policy: What follows failures and bad records.
        bad_records: What becomes of records that nobody can read.
        commit: Commits what is not committed yet.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        *,
        subscriptions: Subscriptions,
        reader: Reader,
        troubles: Troubles,
        policy: PolicyInForce,
        bad_records: BadRecords,
        commit: Callable[[], Awaitable[None]],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._subscriptions = subscriptions
        self._reader = reader
        self._troubles = troubles
        self._policy = policy
        self._bad_records = bad_records
        self._commit = commit

    def deliver(self, reading: Reading) -> None:
        """Read on; the first answer says whether the offset is one."""
        reading.hold.on(Event.DELIVER)
        reading.fetcher.start()

    def check(self, reading: Reading, begin: Progress) -> None:
        """Read on once a broker says that the log has the same messages there."""
        reading.hold.on(Event.CHECK)
        reading.task = begin_task(self._check_place(reading, begin))

    async def _check_place(self, reading: Reading, begin: Progress) -> None:
        """Start to fetch unless the broker says that the log has other messages there."""
        partition = reading.hold.partition
        wanted = self._subscriptions.of(partition.topic).wanted
        told_from = asyncio.get_running_loop().time() + DELAY_TOLD_S
        for tries in itertools.count(1):
            try:
                reason = await places.why_another(self._reader.partition(partition), begin, wanted)
                break
            except VqError as error:
                if not passes(error) or asyncio.get_running_loop().time() >= told_from:
                    self.fetch_reported(reading, error)
            if reading.hold.state is not State.CHECKING:
                return  # the error proves that what was handled is gone
            await asyncio.sleep(_CHECK_AGAIN.pause_s(tries, self._cluster.rng))
        self.fetch_reported(reading, None)
        if reason:
            self.stop(reading, reason)
        else:
            self.deliver(reading)

    async def why(self, reading: Reading) -> str:
        """Ask the broker whether messages were lost where a reading is now.

        Returns why the group is to be stopped there; "": it is not. The member's own question for
        that may still be open, and a seek must not end it.
        """
        progress, partition = reading.progress(), reading.hold.partition
        if reading.hold.stopped or (progress.message_id is None and not progress.epoch):
            return reading.hold.stopped
        wanted = self._subscriptions.of(partition.topic).wanted
        try:
            return await places.why_another(self._reader.partition(partition), progress, wanted)
        except VqError as error:
            if places.proves_a_loss(error, progress.position):
                return str(error)
            raise

    def stop(self, reading: Reading, reason: str, *, offset: int | None = None) -> None:
        """Stop the group here until a reset, for this member and every later one.

        ``offset`` is that of the message because of which; None: the lowest that is not handled.
        """
        hold = reading.hold
        hold.on(Event.STOP)
        reading.fetcher.stop()
        hold.stopped = reason
        self._report_stopped(reading, offset)
        if not hold.stop_is_committed:
            reading.task = begin_task(self._keep_stop())

    def _report_stopped(self, reading: Reading, offset: int | None = None) -> None:
        hold = reading.hold
        error = places.stopped_error(self._config, hold.partition, hold.stopped)
        at = reading.delivery.position if offset is None else offset  # what is fetched is far ahead
        self._troubles.failed(hold.partition, at, error)

    async def _keep_stop(self) -> None:
        """Commit that the group is stopped; if that fails, the next regular commit does."""
        try:
            await self._commit()
        except VqError as error:
            logger.info(
                "stopped partition cannot be committed, trying again later",
                group=self._config.group,
                error=error,
            )

    def listener_stops(self, reading: Reading, error: VqError) -> None:
        """A listener has failed too often, and the settings say that the group stops there.

        If the partition is about to leave or to pause, the next reading fails likewise.
        """
        if reading.is_current and reading.hold.may(Event.STOP):
            is_bad = isinstance(error.__cause__, ContentUnreadable)
            is_bad &= self._policy.now.on_bad_record == OnBadRecord.STOP
            why = BAD_RECORD if is_bad else places.LISTENER_FAILED
            reading.end()
            offset = error.details.get("offset")
            self.stop(reading, f"{why}: {error}", offset=None if offset is None else int(offset))

    async def meet_bad_record(self, reading: Reading, offset: int, damage: VqError) -> int | None:
        """Do about a record that nobody can read what the settings say; see the fetcher."""
        delivery, hold = reading.delivery, reading.hold
        if not reading.is_current:
            return None
        has_passed = delivery.has_passed(offset)
        policy = OnBadRecord.SKIP if has_passed else self._policy.now.on_bad_record
        if policy == OnBadRecord.STOP:
            # What is before it is handled first, so that the group stops right at it.
            if delivery.position >= reading.fetcher.position and hold.may(Event.STOP):
                reading.end()
                self.stop(reading, f"{BAD_RECORD}: {damage}")
            return None
        reader = self._reader.partition(hold.partition)
        following = await self._bad_records.settle(
            reader, offset, damage, keep=policy == OnBadRecord.DEAD_LETTER
        )
        reading.message_id = None  # nobody knows the one before the next
        delivery.pass_over(offset, following)
        return following

    def stuck(self, reading: Reading, error: VqError) -> None:
        """Messages that were fetched do not go on."""
        if reading.is_current:
            reading.fetch_failed = False
            at = reading.delivery.position
            if isinstance(error, ListenerFailed):  # others before it may be unfinished, too
                at = int(error.details.get("offset", at))
            self._troubles.failed(reading.hold.partition, at, error)

    def went_on(self, reading: Reading) -> None:
        """They do again."""
        if reading.is_current:
            self._troubles.over(reading.hold.partition)
            if reading.hold.stopped:
                self._report_stopped(reading)

    def fetch_again(self, reading: Reading, offset: int) -> None:
        """Bytes from an offset on could not be decoded, or filtered."""
        if reading.is_current:
            error = reading.delivery.error
            self._troubles.bad_reads += not isinstance(error, FilterFailed)
            damage = error if isinstance(error, CorruptData) else None
            reading.fetcher.fetch_again(offset, damage)

    def fetch_reported(self, reading: Reading, error: VqError | None) -> None:
        """Note an error of the fetcher, or with None that it is over."""
        partition, position = reading.hold.partition, reading.fetcher.position
        if error is not None and places.proves_a_loss(error, position):
            self.stop(reading, str(error))
        elif error is not None:
            reading.fetch_failed = True
            delayed_s = DELAY_TOLD_S if passes(error) else None
            self._troubles.failed(partition, position, error, delayed_s=delayed_s)
        elif reading.fetch_failed:
            reading.fetch_failed = False
            self._troubles.over(partition)
