"""The channels of a node: made, opened, changed and removed as ZooKeeper says.

In here: which channels exist and when their logs are opened and closed. Not in here: reading
ZooKeeper (``topics_view``), moving partitions (``moving``), and what a channel does.

A log is opened before anybody can reach its channel when there is something of it on disk, and with
the first PUT when there is not: a thousand idle partitions cost no files.
"""

import asyncio
import logging
from collections.abc import Callable

from vq.broker.channel import Channel
from vq.broker.context import Context
from vq.broker.runner import Runner
from vq.broker.tasks import Tasks
from vq.broker.topics_view import TopicsView
from vq.coordination.coordinator import Coordinator
from vq.coordination.paths import GroupState
from vq.coordination.reading import TopicView
from vq.errors import (
    Busy,
    CoordinationError,
    InvalidRequest,
    NotMaster,
    UnknownPartition,
    UnknownTopic,
    VqError,
)
from vq.model import PartitionPlacement, TopicPartition
from vq.store.block import BlockCache
from vq.store.directory import DataDirectory
from vq.store.disk import Disk
from vq.store.log import Log, LogConfig

logger = logging.getLogger(__name__)


class Partitions:
    """All channels of this node, by topic and partition.

    Attributes:
        channels: What can be reached by clients.
        view: What ZooKeeper says.
    """

    def __init__(
        self,
        context: Context,
        coordinator: Coordinator,
        directory: DataDirectory,
        *,
        disk: Disk,
        runner: Runner,
        log_config: LogConfig,
        tasks: Tasks,
        refresh_interval_s: float,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._directory = directory
        self._disk = disk
        self._runner = runner
        self._log_config = log_config
        self._cache = BlockCache()
        self._tasks = tasks
        self._opening: dict[Channel, list[Callable[[], None]]] = {}
        self.channels: dict[tuple[str, int], Channel] = {}
        self.on_sealed: Callable[[Channel], None] | None = None
        self.view = TopicsView(
            coordinator,
            on_topic=self._apply,
            on_gone=self._remove_topic,
            interval_s=refresh_interval_s,
        )

    # Finding and opening ------------------------------------------------------------------------
    def resolve(self, partition: TopicPartition, then: Callable[[Channel | VqError], None]) -> None:
        """See ``dispatcher.Directory``."""

        def look_again(error: VqError | None) -> None:
            channel = self.channels.get(partition)
            if channel is not None:
                then(channel)
            elif error is not None:
                then(Busy(f"partition {partition} is not known here, and {error}"))
            else:
                then(self._why_unknown(partition))

        self.view.ask(partition.topic, look_again)

    def _why_unknown(self, partition: TopicPartition) -> VqError:
        topic = self.view.topics.get(partition.topic)
        if topic is None:
            return UnknownTopic(
                f"there is no topic {partition.topic!r}; create it: "
                f"`vq topic create {partition.topic} --partitions N`"
            )
        if not 0 <= partition.partition < len(topic.partitions):
            return UnknownPartition(
                f"topic {partition.topic!r} has partitions 0 to {len(topic.partitions) - 1}, "
                f"not {partition.partition}"
            )
        writer = topic.partitions[partition.partition].writer_group
        return NotMaster(f"partition {partition} lives on {writer}, not {self._context.group}")

    def open(self, channel: Channel, then: Callable[[], None]) -> None:
        """See ``dispatcher.Directory``."""
        waiting = self._opening.get(channel)
        if waiting is not None:
            waiting.append(then)
            return
        self._opening[channel] = [then]
        self._tasks.start(self._open_and_tell(channel))

    async def ensure_open(self, channel: Channel) -> None:
        """Give the channel its log, or its failure."""
        if channel.log is None and channel.failure is None:
            await self._open(channel)

    async def _open_and_tell(self, channel: Channel) -> None:
        try:
            await self.ensure_open(channel)
        finally:
            for then in self._opening.pop(channel):
                then()

    async def _open(self, channel: Channel) -> None:
        try:
            log = await self._runner.run(
                lambda: self.open_log(channel, start_offset=channel.start_offset)
            )
        except (OSError, VqError) as error:
            logger.exception("partition %s cannot be opened", channel)
            channel.fail(error)
            return
        report = log.recovery
        if report.notes:
            logger.warning("partition %s: %s", channel, "; ".join(report.notes))
        channel.attach(log)

    def open_log(self, channel: Channel, *, start_offset: int, producers: bytes = b"") -> Log:
        """Open the channel's log; blocks, so call it through the runner. Raises as ``Log.open``."""
        return Log.open(
            self._directory.log_directory(*channel.partition),
            topic_id=channel.topic_id,
            config=self._log_config,
            disk=self._disk,
            clock=self._context.clock,
            start_offset=start_offset,
            producers=producers,
            cache=self._cache,
        )

    # Following ZooKeeper ------------------------------------------------------------------------
    async def _apply(self, view: TopicView) -> None:
        """Take a topic as ZooKeeper has it now."""
        group = self._context.group
        for placement, version in zip(view.partitions, view.partition_versions, strict=True):
            channel = self.channels.get((view.name, placement.partition))
            if channel is not None and channel.topic_id != view.id:
                logger.warning("topic %s was deleted and made anew", view.name)
                await self._remove_topic(view.name)
                channel = None
            if channel is not None:
                self._change(channel, view, placement, version)
                if channel.span is None and not channel.adopted:
                    await self._forget(channel)
            elif any(span.group == group for span in placement.spans):
                await self.add(view, placement, version)

    def _change(
        self, channel: Channel, view: TopicView, placement: PartitionPlacement, version: int
    ) -> None:
        was = channel.state
        channel.apply(view.settings, placement, version)
        self._check_seal(channel)
        if channel.state != was:
            logger.info("partition %s is %s now", channel, " ".join(channel.state).strip())

    def _check_seal(self, channel: Channel) -> None:
        """Look at a sealed log that should take appends: a move ended here, or was not ended."""
        if channel.needs_unseal and self.on_sealed is not None:
            self.on_sealed(channel)

    async def add(self, view: TopicView, placement: PartitionPlacement, version: int) -> Channel:
        """Make the channel of a partition and open what there is of it on disk."""
        channel = Channel(
            TopicPartition(view.name, placement.partition),
            topic_id=view.id,
            settings=view.settings,
            placement=placement,
            placement_version=version,
            context=self._context,
        )
        if await self._runner.run(lambda: self._prepare(channel)):
            await self.ensure_open(channel)
        self.channels[channel.partition] = channel
        self._check_seal(channel)
        return channel

    def _prepare(self, channel: Channel) -> bool:
        """Make the directory that of the right topic; whether it holds anything of the channel."""
        self._directory.claim_topic(channel.partition.topic, channel.topic_id)
        return self._disk.exists(self._directory.log_directory(*channel.partition))

    async def _remove_topic(self, name: str) -> None:
        """Close a topic that was deleted, and move its data out of the way."""
        if await self._tree_was_lost():
            raise CoordinationError(
                f"topic {name!r} is gone from ZooKeeper, and so is the record of this broker's "
                "group: the tree was emptied, not the topic deleted. Its data are kept. Restore "
                "ZooKeeper's data, or give the broker an empty directory"
            )
        logger.warning("topic %s was deleted; its data go to the trash", name)
        error = UnknownTopic(f"topic {name!r} was deleted")
        doomed = [each for each in self.channels.values() if each.partition.topic == name]
        for channel in doomed:
            del self.channels[channel.partition]
            await self._close(channel, error)
        await self._runner.run(lambda: self._directory.trash_topic(name))

    async def _tree_was_lost(self) -> bool:
        return await self._coordinator.exists(GroupState.path(self._context.group)) is None

    async def _forget(self, channel: Channel) -> None:
        """Close a channel of which this group holds nothing any more; its files stay."""
        logger.info("partition %s is not held here any more", channel)
        del self.channels[channel.partition]
        await self._close(channel, NotMaster(f"partition {channel} was moved away"))

    # Moving -------------------------------------------------------------------------------------
    async def adopt_log(self, channel: Channel, start_offset: int, producers: bytes) -> None:
        """Give the channel a log that goes on at ``start_offset``.

        Raises:
            InvalidRequest: There is one already that ends elsewhere, with data in it.
        """
        log = channel.log
        if log is not None and log.end_offset == start_offset:
            return  # it comes back to where it left, or this is the same ADOPT again
        if log is not None:
            if log.size_bytes:
                raise InvalidRequest(
                    f"partition {channel} has [{log.start_offset}, {log.end_offset}) here, which "
                    f"does not go on at {start_offset}; move it to another group"
                )
            channel.log = None
            await self._runner.run(log.close)
            await self._runner.run(lambda: self._disk.rmtree(log.directory))
        channel.attach(
            await self._runner.run(
                lambda: self.open_log(channel, start_offset=start_offset, producers=producers)
            )
        )

    # Closing ------------------------------------------------------------------------------------
    async def settle(self, channel: Channel) -> None:
        """Return once everything appended is durable, or given up, and no flush runs."""
        done = asyncio.get_running_loop().create_future()

        def callback() -> None:
            if not done.done():
                done.set_result(None)

        channel.when_settled(callback)
        await done

    async def _close(self, channel: Channel, error: VqError) -> None:
        channel.close(error)
        await self.settle(channel)
        log = channel.log
        if log is not None:
            channel.log = None
            try:
                await self._runner.run(log.close)
            except (OSError, VqError) as failure:
                logger.warning("partition %s was not closed cleanly: %s", channel, failure)

    async def close_all(self, error: VqError) -> None:
        """Close every channel; who is parked is told ``error``."""
        for channel in list(self.channels.values()):
            await self._close(channel, error)
        self.channels.clear()
