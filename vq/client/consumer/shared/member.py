"""A member of a shared group: what it receives, its listeners, and where the group is.

Loop-bound. The lowest message of each partition that is not done is written to ZooKeeper as the
group's offset: retention, lag and operators go by it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from vq import limits
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig, ReadFrom
from vq.client.consumer.deliver.bad_records import BadRecords
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.shared.by_request import SharedByRequest
from vq.client.consumer.shared.desk import SharedTerms
from vq.client.consumer.shared.handles import MessageHandle, SettleKind
from vq.client.consumer.shared.place import record_lows
from vq.client.consumer.shared.receiver import SharedReceiver
from vq.client.consumer.shared.settler import retrieved
from vq.client.consumer.shared.sources import HeldMessage, SharedSources
from vq.client.consumer.shared.work import Settle, SharedMessage, SharedWork
from vq.client.consumer.troubles import Troubles
from vq.client.copies import MessageCopies
from vq.client.reading.nodes import Nodes
from vq.coordination.tree.values.group_terms import WorkingMode
from vq.errors import VqError
from vq.log_lines import get_logger
from vq.message_filter import Filter
from vq.model import Message, TopicPartition
from vq.tasks import begin_task

logger = get_logger(__name__)

#: What an application calls for a message.
Call = Callable[[Message], Awaitable[Any]]


class SharedMember:
    """See the module.

    Args:
        cluster: Where the group is.
        config: Of the consumer.
        member: Its name.
        policy: What follows a failure.
        copier: Makes dead letters.
        bad_records: Passes over records that nobody can read.
        troubles: Where it is told that a partition does not go on.
        by_request: Others ask for its messages, and say elsewhere what became of them.

    Attributes:
        receiver: Has the messages for listeners and calls.
        requested: Or has them for requests.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        config: ConsumerConfig,
        member: str,
        policy: PolicyInForce,
        copier: MessageCopies,
        bad_records: BadRecords,
        troubles: Troubles,
        *,
        by_request: bool,
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._member = member
        self._policy = policy
        self._copier = copier
        self._troubles = troubles
        is_keyed = config.mode is WorkingMode.KEYED
        most = limits.SHARED_KEYED_OPEN_MAX if is_keyed else limits.SHARED_OPEN_MAX
        terms = SharedTerms(
            round(config.lease_s * 1_000),
            min(config.window_messages, most),
            limits.SHARED_GROUP_OPEN_MAX,
            is_keyed,
        )
        common: dict[str, Any] = {
            "nodes": Nodes(cluster, ReadFrom(config.read_from), config.rack),
            "policy": policy,
            "bad_records": bad_records,
            "trouble": self._trouble,
        }
        self.receiver: SharedReceiver | None = None
        self.requested: SharedByRequest | None = None
        self._sources: SharedSources
        if by_request:
            self._sources = self.requested = SharedByRequest(
                cluster, config.group, terms, copier=copier, **common
            )
        else:
            self._sources = self.receiver = SharedReceiver(
                cluster,
                config.group,
                terms,
                workers=config.workers,
                buffer_bytes=config.buffer_bytes,
                **common,
            )
        self._work: SharedWork | None = None
        self._committing: asyncio.Task[None] | None = None
        self._committed: dict[TopicPartition, tuple[str, int]] = {}
        self._is_watched = False

    def be_pulled(self) -> None:
        """Have calls take messages, and no listeners; before ``start``."""
        if self.receiver is not None:
            self.receiver.be_pulled()

    def give_back(self, handles: Iterable[MessageHandle]) -> None:
        """Give back messages that calls have taken, and that have reached nobody."""
        if self.receiver is not None:
            self.receiver.give_back(handles)

    def be_watched(self) -> None:
        """See ``ConsumerCore.be_watched``."""
        self._is_watched = True

    def start(self, listener_of: Callable[[str], Call], settle: Settle) -> None:
        """Begin to receive.

        Args:
            listener_of: Returns what is awaited for a message of a topic.
            settle: What the methods of messages call.
        """
        self._sources.start()
        if self.receiver is not None:
            self._work = SharedWork(
                self.receiver,
                self._config.group,
                self._policy,
                self._copier,
                listener_of,
                settle,
                workers=self._config.workers,
                rng=self._cluster.rng,
                clock=self._cluster.clock,
                context=self._cluster.context,
            )
            self._work.start()
            if self._is_watched:
                self._work.be_watched(self._config.lease_s)
        self._committing = begin_task(self._commit_regularly())

    async def take_many(self, most: int) -> list[SharedMessage]:
        """Return up to so many messages for a call, waiting for a first one; none: it is closed.

        Raises:
            VqError: No message follows.
        """
        assert self._work is not None
        return await self._work.take_many(most)

    def fail(self, error: VqError) -> None:
        """Have calls that take messages told that none follows."""
        if self.receiver is not None:
            self.receiver.fail(error)

    def settle(self, item: HeldMessage, kind: SettleKind, time_ms: int) -> "asyncio.Future[None]":
        """Say what becomes of a message; it is sent whether the answer is awaited or not.

        Returns:
            What is done once it is so, or has the error: ``LeaseLost``: the member does not have it
            any more; ``OutcomeUnknown``: there was no answer; ``InvalidState``: the consumer is
            closed. Its cancellation changes nothing.
        """
        assert self._work is not None
        answer = asyncio.shield(self._work.settle(item, kind, time_ms))
        answer.add_done_callback(retrieved)
        return answer

    async def add(self, partition: TopicPartition, wanted: Filter, *, latest: bool) -> None:
        """Read a partition, too; see ``SharedSources.add``.

        Raises:
            VqError: It cannot be read now.
        """
        try:
            found = await self._cluster.offsets.at(self._config.group, partition)
            topic = (await self._cluster.track(partition.topic)).topic(partition.topic)
            committed = None
            if found is not None and found.topic_id in {"", topic.id}:
                committed = found.offset
            await self._sources.add(partition, wanted, latest=latest, committed=committed)
        except VqError as error:
            self._trouble(partition, 0, error)
            raise
        self._trouble(partition, 0, None)

    def partitions(self) -> list[TopicPartition]:
        """Return what is read, sorted."""
        return self._sources.partitions()

    async def remove(self, partition: TopicPartition) -> None:
        """Read a partition no more."""
        await self._sources.remove(partition)
        self._committed.pop(partition, None)

    async def close(self, timeout_s: float) -> None:
        """Finish what listeners are at, give back the rest, and write where the group is."""
        if self._committing is not None:
            self._committing.cancel()
            await asyncio.wait([self._committing])
        await self._sources.stop()
        if self._work is not None:
            await self._work.close(timeout_s)
        await self._sources.close()
        await self._try_commit()

    async def forsake(self) -> None:
        """Give back all at once, also what listeners are at, and write where the group is.

        Also while ``close`` waits for listeners. What they still do counts for nothing.
        """
        if self._work is not None:
            await self._work.close(0.0)
        await self.close(0.0)

    def _trouble(self, partition: TopicPartition, number: int, error: VqError | None) -> None:
        if error is None:
            self._troubles.over(partition)
        else:
            self._troubles.failed(partition, number, error)

    # Where the group is -------------------------------------------------------------------------
    async def _commit_regularly(self) -> None:
        while True:
            spread = 0.8 + 0.4 * self._cluster.rng.random()
            await asyncio.sleep(self._config.commit_interval_s * spread)
            await self._try_commit()

    async def _try_commit(self) -> None:
        try:
            await self.commit()
        except VqError as error:
            logger.warning(
                "commit failed, trying again later", group=self._config.group, error=error
            )
        except Exception:
            logger.exception("commit failed, trying again later", group=self._config.group)

    async def commit(self) -> None:
        """Write the lowest message of each partition that is not done, where it has moved.

        Raises:
            VqError: A broker or ZooKeeper does not answer; to be called again.
        """
        await self._sources.refresh()
        moved = {
            partition: low
            for partition, low in self._sources.lows().items()
            if self._committed.get(partition) != low
        }
        written = await record_lows(self._cluster, self._config.group, self._member, moved)
        self._committed |= {each: moved[each] for each in written}
