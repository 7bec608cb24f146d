"""The channels of a node: made, opened, changed and removed as ZooKeeper says.

In here: which channels exist. Not in here: reading ZooKeeper (``topics_view``), opening, changing
and closing a log (``channel_logs``), moving partitions (``moving``), and what a channel does.

A log is opened before anybody can reach its channel when there is something of it on disk, and with
the first PUT when there is not: a thousand idle partitions cost no files.
"""

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from vq.broker.base.notice import Notice
from vq.broker.base.runner import Runner
from vq.broker.base.tasks import Tasks
from vq.broker.logs.channel_logs import ChannelLogs
from vq.broker.logs.channel_problems import channel_problems, ranges_of
from vq.broker.logs.leftovers import Leftovers
from vq.broker.logs.logs import Logs
from vq.broker.logs.topics_view import TopicsView
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context
from vq.broker.partition.partition_state import ChannelState, check_placement_version
from vq.coordination.brokers.registry import read_state
from vq.coordination.topics.topics import was_deleted
from vq.coordination.tree.coordinator import ConnectionLost, Coordinator, SessionExpired
from vq.coordination.tree.reading import TopicView
from vq.coordination.tree.values.topics import IN_GRACE, TopicNode
from vq.errors import (
    Busy,
    CoordinationError,
    InvalidRequest,
    NotMaster,
    StorageFailed,
    UnknownPartition,
    UnknownTopic,
    VqError,
)
from vq.limits import is_valid_name
from vq.log_lines import get_logger
from vq.model import FlushMode, PartitionPlacement, PartitionState, TopicPartition
from vq.shown import shown
from vq.store.directory.directory import NamesakeFound
from vq.store.log.log_config import LogBegin

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A channel that nobody reaches yet, and what there is of it on disk.

    Attributes:
        channel: The channel.
        is_there: Its usual log has a directory, or should have one.
        aside: The directories of its earlier ranges, in rising order.
        home: The data directory that has them; None: that cannot be told.
        problem: Why it could not be prepared.
    """

    channel: Channel
    is_there: bool = False
    aside: Sequence[Path] = ()
    home: Path | None = None
    problem: OSError | VqError | None = None


class Partitions:
    """All channels of this node, by topic and partition.

    Attributes:
        channels: What can be reached by clients.
        logs: Changes their logs.
        view: What ZooKeeper says.
        leftovers: Data on its disks of topics that are not there any more.
        added: Told when there is one more channel.
        applied: Told with a topic whose channels follow what ZooKeeper says now.
        unsealing: Told with a channel that is to take appends again after a move that ended.
    """

    def __init__(
        self,
        context: Context,
        coordinator: Coordinator,
        logs: Logs,
        *,
        runner: Runner,
        tasks: Tasks,
        refresh_interval_s: float,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._stored = logs
        self.logs = ChannelLogs(logs, runner=runner, tasks=tasks)
        self._runner = runner
        self._tasks = tasks
        # Order: ``_membership`` before ``logs.lock``.
        self._membership = asyncio.Lock()  # held while ``channels`` is made to fit a topic
        self.channels: dict[tuple[str, int], Channel] = {}
        self._by_topic: dict[str, dict[int, Channel]] = {}  # the same
        self._marked_unflushed = False
        self.unsealing = Notice[[Channel]]()
        self.added = Notice[[]]()
        self.applied = Notice[[str]]()
        self.view = TopicsView(coordinator, follower=self, interval_s=refresh_interval_s)
        self.leftovers = Leftovers(logs, self.view, coordinator, runner)

    def highest_epoch(self) -> int:
        """Return the highest epoch of a batch in the logs that are open; 0: there is none."""
        parts = (part for each in self.channels.values() for part in (*each.older, each))
        return max((part.log.epoch for part in parts if part.log is not None), default=0)

    def told_problems(self) -> list[str]:
        """Return what STATUS tells beside the states of partitions; bounded."""
        channels = self.channels.values()
        return [*self.view.told_problems(), *channel_problems(channels, self._context.clock)]

    async def look_at_losses(self) -> None:
        """Look which files with lost messages are still there."""
        for each in list(ranges_of(self.channels.values())):
            log = each.log
            if each.copies.cut and log is not None:
                found = await self._runner.run(partial(self._stored.cut_before, log))
                if each.log is log:
                    each.copies.cut = found

    def log_end_bytes(self) -> int:
        """Return where the logs end, added up."""
        logs = [each.log for each in self.channels.values() if each.log is not None]
        return sum(log.end_offset for log in logs)

    def knows_all(self) -> bool:
        """Whether there is a channel for each partition of which this group holds a part.

        A topic that cannot be followed may lack some: what is stored of them can be copied by
        nobody, and seems to be nothing.
        """
        return None not in self.view.not_followed() and not self.lacks_channel()

    def lacks_channel(self) -> bool:
        """Whether a partition of which this group holds a part has no channel, for a cause here.

        What this node has of it is not known, nor whether its end is intact.
        """
        views = self.view.not_followed()
        return any(view is not None and self._lacks(view) for view in views)

    def _lacks(self, view: TopicView) -> bool:
        group = self._context.group
        for number, placement in enumerate(view.partitions):
            if any(span.group == group for span in placement.spans):
                channel = self.channels.get((view.name, number))
                if channel is None or channel.topic_id != view.id:
                    return True
        return False

    # Finding ------------------------------------------------------------------------------------
    def resolve(
        self,
        partition: TopicPartition,
        then: Callable[[Channel | VqError], None],
        asker: object,
    ) -> None:
        """See ``dispatcher.Directory``."""

        def look_again(error: VqError | None) -> None:
            channel = self.channels.get(partition)
            if channel is not None:
                then(channel)
            elif error is not None:
                then(Busy(f"partition {partition} is not known here, and {error}"))
            else:
                then(self.view.why_not_followed(partition.topic) or self._why_unknown(partition))

        if is_valid_name(partition.topic):
            self.view.ask(partition.topic, look_again, asker)
        else:
            error = InvalidRequest(f"{shown(partition.topic)} is not a valid name for a topic")
            asyncio.get_running_loop().call_soon(then, error)

    def _why_unknown(self, partition: TopicPartition) -> VqError:
        topic = self.view.topics.get(partition.topic)
        if topic is None:
            return UnknownTopic(
                f"there is no topic {partition.topic!r}; create it: "
                f"`vq topic create {partition.topic} --partitions N`"
            )
        if topic.phase == IN_GRACE:
            return UnknownTopic(f"topic {partition.topic} was deleted")
        if not 0 <= partition.partition < len(topic.partitions):
            return UnknownPartition(
                f"topic {partition.topic!r} has partitions 0 to {len(topic.partitions) - 1}, "
                f"not {partition.partition}"
            )
        writer = topic.partitions[partition.partition].writer_group
        return NotMaster(f"partition {partition} lives on {writer}, not {self._context.group}")

    def is_changing(self, partition: TopicPartition) -> bool:
        """See ``dispatcher.Directory``."""
        return self.logs.changes.is_changing(partition)

    def open(self, channel: Channel, then: Callable[[], None]) -> None:
        """See ``dispatcher.Directory``."""
        self.logs.open(channel, then)

    # Following ZooKeeper ------------------------------------------------------------------------
    async def apply_topic(self, view: TopicView) -> None:
        """See ``TopicFollower``."""
        async with self._membership:
            await self._apply_changes(view)

    async def _apply_changes(self, view: TopicView) -> None:
        """Take every partition; what is wrong with one of them is raised after the others."""
        problem: OSError | VqError | None = None
        if self._is_here(view):
            await self._maybe_mark_unflushed(view)
        # A namesake that was deleted goes as a whole, and first: its data lie where those of this
        # topic will, and its logs are still open.
        for topic_id in self._topic_ids(view.name) - {view.id}:
            await self._close_topic(view.name, topic_id)
        changed = list(self._changed(view))
        prepared: dict[int, _Prepared] = {}
        try:
            prepared = await self._prepare(view, [n for n in changed if self._is_new(view, n)])
        except (ConnectionLost, SessionExpired):
            raise
        except (OSError, VqError) as error:
            problem = error
        for number in changed:
            try:
                if number in prepared:
                    await self._add(prepared[number])
                else:
                    await self._maybe_change(view, number)
            except (ConnectionLost, SessionExpired):
                raise
            except (OSError, VqError) as error:
                problem = problem or error
        self.applied.tell(view.name)
        if problem is not None:
            raise problem

    async def _maybe_mark_unflushed(self, view: TopicView) -> None:
        """Note on disk, before it may happen, that messages count that are not flushed.

        Raises:
            DiskFull, OSError: That is not noted.
        """
        if view.settings.flush is FlushMode.ASYNC and not self._marked_unflushed:
            await self._runner.run(self._stored.mark_unflushed)
            self._marked_unflushed = True

    def _is_here(self, view: TopicView) -> bool:
        """Whether this group holds a part of a topic."""
        group = self._context.group
        return any(span.group == group for each in view.partitions for span in each.spans)

    def _channels_of(self, name: str, topic_id: str) -> list[Channel]:
        channels = self._by_topic.get(name, {})
        return [each for each in channels.values() if each.topic_id == topic_id]

    def _topic_ids(self, name: str) -> set[str]:
        """Return the ids of the topics of that name which have channels: usually one at most."""
        return {each.topic_id for each in self._by_topic.get(name, {}).values()}

    def _remove(self, channel: Channel) -> None:
        """Have no client reach the channel any more."""
        topic, number = channel.partition
        del self.channels[channel.partition]
        del self._by_topic[topic][number]
        if not self._by_topic[topic]:
            del self._by_topic[topic]

    def _changed(self, view: TopicView) -> Iterable[int]:
        """Return the partitions of a topic that are not as they were applied last."""
        before = self.view.topics.get(view.name)
        if view.name in self.view.problems:  # what has not worked may have left no other trace
            return range(len(view.partitions))
        if before is None or before.settings != view.settings or before.phase != view.phase:
            return range(len(view.partitions))
        if (before.id, before.created) != (view.id, view.created):
            return range(len(view.partitions))
        versions = itertools.zip_longest(before.partition_versions, view.partition_versions)
        return [number for number, (was, now) in enumerate(versions) if was != now]

    def _is_new(self, view: TopicView, number: int) -> bool:
        """Whether this group holds a part of a partition that has no channel yet."""
        spans = view.partitions[number].spans
        is_here = any(span.group == self._context.group for span in spans)
        return is_here and (view.name, number) not in self.channels

    async def _maybe_change(self, view: TopicView, number: int) -> None:
        channel = self.channels.get((view.name, number))
        if channel is None:
            return
        was = channel.told
        channel.apply(
            view.settings,
            _placement(view, number),
            view.partition_versions[number],
        )
        await self._fit(channel)
        if channel.told != was:
            logger.info(
                "partition changed its state",
                partition=channel,
                state=channel.state,
                reason=channel.told[1] or None,
            )
        if not channel.held:
            await self._forget(channel)

    def start(self, _epoch: int) -> None:
        """Have all channels take what the role says now, and see to their logs: this node leads."""
        self.stop()
        self._tasks.start(self.lead())

    def stop(self) -> None:
        """Have all channels take what the role says now; see ``Channel.begin_epoch``."""
        for channel in self.channels.values():
            channel.begin_epoch()

    async def lead(self) -> None:
        """See that the logs are those that the placements ask for: this node leads now."""
        for channel in list(self.channels.values()):
            try:
                await self._fit(channel)
            except Exception as error:  # noqa: BLE001  the other partitions are led, too
                self.view.note_problem(channel.partition.topic, error)
                self.view.hint(channel.partition.topic)

    async def _fit(self, channel: Channel) -> None:
        """See that the log is the one that the placement asks for, on the node that leads.

        A copy has what the log of its master has, also while that is about to change.
        """
        span, log = channel.span, channel.log
        if span is None or log is None or channel.failed or not self._context.role.epoch:
            return
        if channel.unprepared:
            begin = LogBegin(span.start, number=span.first_number)
            if log.end_offset == span.start:
                begin = log.successor
            else:
                logger.warning(
                    "partition has no producer table from before the move, resends may repeat",
                    partition=channel,
                    start_offset=span.start,
                )
            await self.logs.adopt_log(channel, begin, version=channel.placement_version)
        if span.end is not None and log.end_offset < span.end:
            logger.error(
                "messages are missing, ZooKeeper says that the log is longer",
                partition=channel,
                missing_start=log.end_offset,
                missing_end=span.end,
            )
        if channel.state is ChannelState.UNSEALING:
            self.unsealing.tell(channel)

    async def _add(self, prepared: _Prepared) -> Channel:
        """Open what there is of a channel on disk, and let clients reach it.

        Raises:
            OSError, VqError: It could not be prepared.
        """
        channel, key = prepared.channel, prepared.channel.partition
        if prepared.problem is not None:
            raise prepared.problem
        if prepared.home is not None:
            channel.place = self._context.places[prepared.home]
        for path in prepared.aside:
            await self.logs.open_older(channel, path)
        if prepared.is_there:
            await self.logs.ensure_open(channel)
        self.channels[key] = channel
        self._by_topic.setdefault(key.topic, {})[key.partition] = channel
        self.added.tell()
        await self._fit(channel)
        return channel

    async def _prepare(self, view: TopicView, numbers: Sequence[int]) -> dict[int, _Prepared]:
        """Make the channels of a topic's partitions, and look at the disk for all of them at once.

        See ``Logs.prepare``; data of a namesake are moved out of the way. What is wrong with one
        partition is kept with it.
        """
        channels = {
            number: Channel(
                TopicPartition(view.name, number),
                topic_id=view.id,
                settings=view.settings,
                placement=_placement(view, number),
                placement_version=view.partition_versions[number],
                context=self._context,
            )
            for number in numbers
        }
        if not channels:
            return {}

        def prepare() -> dict[int, _Prepared]:
            return {number: self._look(channel) for number, channel in channels.items()}

        try:
            return await self._runner.run(prepare)
        except NamesakeFound as error:
            if self._channels_of(view.name, error.topic_id):
                raise Busy(
                    f"another topic is called {view.name!r} now (id {error.topic_id}, not "
                    f"{view.id}), and its logs are open"
                ) from error
            await self.leftovers.move_away(view.name, error.topic_id)
            return await self._runner.run(prepare)

    def _look(self, channel: Channel) -> _Prepared:
        """Look what there is of a channel on disk; blocks."""
        try:
            found = self._stored.prepare(channel.partition, channel.topic_id, channel.holds)
        except NamesakeFound:
            raise
        except (OSError, VqError) as error:
            return _Prepared(channel, problem=error)
        return _Prepared(channel, *found, home=self._stored.home(channel.partition))

    async def remove_topic(self, name: str) -> None:
        """See ``TopicFollower``."""
        async with self._membership:
            topic_ids = self._topic_ids(name)
            known = self.view.topics.get(name)
            if known is not None:
                topic_ids.add(known.id)
            if not topic_ids:  # nothing of it could be followed
                topic_ids.add(await self._runner.run(lambda: self._stored.stored_topic_id(name)))
            for topic_id in topic_ids - {""}:
                await self._close_topic(name, topic_id)

    async def _close_topic(self, name: str, topic_id: str) -> None:
        """Close a topic that was deleted, and move its data out of the way.

        A topic of the same name and another id keeps its channels and its data.

        Raises:
            CoordinationError: It is gone, but was not deleted; or ZooKeeper cannot be asked.
        """
        if await self._tree_was_lost():
            raise CoordinationError(
                f"topic {name!r} is gone from ZooKeeper, and so is the record of this broker's "
                "group: the tree was emptied, not the topic deleted. Its data are kept. Restore "
                "ZooKeeper's data, or give the broker an empty directory"
            )
        deleted = await was_deleted(self._coordinator, topic_id)
        if not deleted and await self._coordinator.exists(TopicNode.path(name)) is None:
            raise CoordinationError(
                f"topic {name!r} is gone from ZooKeeper and was not deleted (id {topic_id}): "
                "ZooKeeper was restored from a backup that is older than the "
                "topic. Its data are kept. Restore a newer backup; or, if the topic is not wanted "
                "any more, stop this broker and remove the topic's directory"
            )
        error = UnknownTopic(f"topic {name!r} was deleted")
        for channel in self._channels_of(name, topic_id):
            self._remove(channel)
            await self.logs.close(channel, error)
        await self.leftovers.move_away(name, topic_id)

    async def _tree_was_lost(self) -> bool:
        """Whether the group's record is gone or older than what this node has acted on."""
        state = await read_state(self._coordinator, self._context.group)
        return state is None or state.epoch < self._context.role.epoch

    async def _forget(self, channel: Channel) -> None:
        """Close a channel of which this group holds nothing any more; its files stay."""
        logger.info("partition is not held here any more", partition=channel)
        self._remove(channel)
        await self.logs.close(channel, NotMaster(f"partition {channel} was moved away"))

    # Moving -------------------------------------------------------------------------------------
    async def add_for_move(self, partition: TopicPartition, topic_id: str, version: int) -> Channel:
        """Return the channel of a partition that shall move here, made if there is none.

        Raises:
            UnknownTopic, PartitionReadOnly: The topic or the placement changed meanwhile.
            DiskFull, Busy: The disk that it would lie on takes no messages.
            StorageFailed: An I/O error ended it before.
        """
        async with self._membership:
            view = self.view.topics.get(partition.topic)
            if view is None or view.id != topic_id:
                raise self._why_unknown(partition)
            number = partition.partition
            check_placement_version(partition, view.partition_versions[number], version)
            await self._maybe_mark_unflushed(view)
            channel = self.channels.get(partition)
            if channel is None:
                channel = await self._add((await self._prepare(view, [number]))[number])
            check_placement_version(partition, channel.placement_version, version)
            if not channel.rules.adopt:
                raise StorageFailed(f"partition {partition} cannot be prepared: {channel.told[1]}")
            refusal = channel.place.to_raise()
            if refusal is not None:
                raise refusal
            channel.prepare()
            return channel

    # Closing ------------------------------------------------------------------------------------
    async def close_all(self, error: VqError, *, saves_s: float = math.inf) -> None:
        """Close every channel; who is parked is told ``error``.

        All are flushed together, then logs are closed one after the other. A checkpoint takes some
        milliseconds, so thousands may take longer than a stop has: after ``saves_s`` logs
        are closed without one, which costs the next start some time and nothing else.
        """
        now = self._context.clock.monotonic
        until_s = now() + saves_s
        await asyncio.gather(
            *(
                self.logs.close(channel, error, lambda: now() < until_s)
                for channel in list(self.channels.values())
            )
        )
        self.channels.clear()
        self._by_topic.clear()
        await self.save_begun()

    @property
    def all_flushed(self) -> bool:
        """Whether everything that was ever written is durable; only after ``close_all``."""
        return not self.channels and not self.logs.closed_unflushed

    async def save_begun(self) -> None:
        """Make durable which logs were begun here, without those of topics that are gone."""
        # A topic that cannot be followed is not gone.
        known = None if self.view.problems else {view.id for view in self.view.topics.values()}

        def save() -> None:
            if known is not None:
                self._stored.forget_begun(known)
            self._stored.save_begun()

        try:
            await self._runner.run(save)
        except OSError as error:
            logger.warning("list of begun logs cannot be saved", error=error)


def _placement(view: TopicView, number: int) -> PartitionPlacement:
    """Return the placement of a partition, with the state of one that can be brought back."""
    placement = view.partitions[number]
    return replace(placement, state=PartitionState.DELETED) if view.phase == IN_GRACE else placement
