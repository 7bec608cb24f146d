"""The channels of a node: made, opened, changed and removed as ZooKeeper says.

In here: which channels exist and when their logs are opened and closed. Not in here: reading
ZooKeeper (``topics_view``), moving partitions (``moving``), files (``logs``), and what a channel
does.

A log is opened before anybody can reach its channel when there is something of it on disk, and with
the first PUT when there is not: a thousand idle partitions cost no files.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from vq.broker.channel import Channel, check_placement_version
from vq.broker.context import Context
from vq.broker.logs import Logs, start_of
from vq.broker.partition_state import State
from vq.broker.runner import Lane, Runner
from vq.broker.tasks import Tasks
from vq.broker.topics_view import PROBLEMS_TOLD_MAX, TopicsView
from vq.coordination.coordinator import ConnectionLost, Coordinator, SessionExpired
from vq.coordination.paths import Topic
from vq.coordination.reading import TopicView
from vq.coordination.registry import read_state
from vq.coordination.topics import was_deleted
from vq.errors import (
    Busy,
    CoordinationError,
    DirectoryRefused,
    DiskFull,
    InvalidRequest,
    NotMaster,
    StorageFailed,
    UnknownPartition,
    UnknownTopic,
    VqError,
)
from vq.limits import is_valid_name
from vq.log_lines import get_logger
from vq.model import FlushMode, TopicPartition
from vq.shown import shown
from vq.store.directory import NamesakeFound
from vq.store.divergence import Diverged
from vq.store.log import Log, LogState

logger = get_logger(__name__)

#: How long a SEAL waits until the nodes in sync have the whole log; one that does not leaves the
#: set within this time.
COMMIT_WAIT_S = 6.0


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A channel that nobody reaches yet, and what there is of it on disk.

    Attributes:
        channel: The channel.
        is_there: Its usual log has a directory, or should have one.
        aside: The directories of its earlier ranges, in rising order.
        problem: Why it could not be prepared.
    """

    channel: Channel
    is_there: bool = False
    aside: Sequence[Path] = ()
    problem: OSError | VqError | None = None


class _Wait:
    """Waits until the high watermark of a channel is at an offset, or the channel is closed."""

    def __init__(self, channel: Channel, offset: int) -> None:
        self.done = asyncio.Event()
        self._channel = channel
        self._offset = offset
        channel.parked[self] = None

    def wake(self) -> None:
        """See ``copies.Woken``."""
        if self._channel.high_watermark >= self._offset or not self._channel.rules.read:
            self.done.set()


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
        logs: Logs,
        *,
        runner: Runner,
        tasks: Tasks,
        refresh_interval_s: float,
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._logs = logs
        self._runner = runner
        self._tasks = tasks
        # Order: ``_membership`` before ``files``.
        self._membership = asyncio.Lock()  # held while ``channels`` is made to fit a topic
        self._files: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()
        self._opening: dict[Channel, list[Callable[[], None]]] = {}
        self.channels: dict[tuple[str, int], Channel] = {}
        self._by_topic: dict[str, dict[int, Channel]] = {}  # the same
        self._marked_unflushed = False
        self._closed_unflushed = False  # a log, of which something may not be durable
        self.on_sealed: Callable[[Channel], None] | None = None
        self.on_added: Callable[[], None] = lambda: None
        self.on_cut: Callable[[], None] = lambda: None
        self.view = TopicsView(
            coordinator,
            on_topic=self._apply,
            on_gone=self._remove_topic,
            interval_s=refresh_interval_s,
        )

    def told_problems(self) -> list[str]:
        """Return what STATUS tells beside the states of partitions; bounded."""
        damaged = [
            f"an earlier range of partition {channel} is {older.state}: "
            f"{older.log.reason if older.log is not None else older.cause}"
            for channel in self.channels.values()
            for older in channel.older
            if older.state in {State.QUARANTINED, State.UNREADABLE}
        ]
        damaged += [
            f"an earlier range of partition {channel} ends at {older.log.end_offset}, not "
            f"{older.end_of_range}"
            for channel in self.channels.values()
            for older in channel.older
            if older.log is not None and older.state is not State.QUARANTINED and older.is_cut_short
        ]
        told = damaged[:PROBLEMS_TOLD_MAX]
        if len(damaged) > len(told):
            told.append(f"{len(damaged) - len(told)} more earlier ranges are damaged or unreadable")
        return [*self.view.told_problems(), *told, *self._told_losses()]

    def _told_losses(self) -> list[str]:
        """Return what was lost in take-overs, until the files with it are moved away; bounded."""
        lost = [(each, file) for each in self._ranges() for file in each.lost]
        told = [
            f"a take-over lost up to {file.messages} acknowledged messages of partition {each}, "
            f"whose topic has replication = async: the new master had nothing of offsets "
            f"[{file.start_offset}, {file.end_offset}). They are kept in {file.path}; this is told "
            "until that file is moved away"
            for each, file in lost[:PROBLEMS_TOLD_MAX]
        ]
        if len(lost) > len(told):
            messages = sum(file.messages for _, file in lost[len(told) :])
            told.append(
                f"{len(lost) - len(told)} more ranges with up to {messages} messages were lost so"
            )
        return told

    async def look_at_losses(self) -> None:
        """Look which files with lost messages are still there."""
        for each in list(self._ranges()):
            log = each.log
            if each.copies.cut and log is not None:
                found = await self._runner.run(partial(self._logs.cut_before, log))
                if each.log is log:
                    each.copies.cut = found

    def _ranges(self) -> Iterator[Channel]:
        """Yield all channels, and those of earlier ranges."""
        for channel in self.channels.values():
            yield channel
            yield from channel.older

    def files(self, partition: tuple[str, int]) -> asyncio.Lock:
        """Return the lock held while a log of a partition is opened, sealed, put aside or closed.

        One for each partition: a slow disk, or a long recovery, of one holds up no other.
        """
        lock = self._files.get(partition)
        if lock is None:
            lock = self._files[partition] = asyncio.Lock()
        return lock

    # Finding and opening ------------------------------------------------------------------------
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
            error = InvalidRequest(f"{shown(partition.topic)} is no name a topic can have")
            asyncio.get_running_loop().call_soon(then, error)

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

    def is_changing(self, partition: TopicPartition) -> bool:
        """See ``dispatcher.Directory``."""
        lock = self._files.get(partition)
        return lock is not None and lock.locked()

    def open(self, channel: Channel, then: Callable[[], None]) -> None:
        """See ``dispatcher.Directory``."""
        waiting = self._opening.get(channel)
        if waiting is not None:
            waiting.append(then)
            return
        self._opening[channel] = [then]
        self._tasks.start(self._open_and_tell(channel))

    async def ensure_open(self, channel: Channel) -> None:
        """Give the channel its log, or its failure.

        Raises:
            DiskFull: There is no space for it now; it may be tried again.
        """
        async with self.files(channel.partition):
            if channel.log is None and channel.rules.read:
                await self._open(channel)

    async def _open_and_tell(self, channel: Channel) -> None:
        try:
            await self.ensure_open(channel)
        except DiskFull as error:
            logger.warning(
                "log cannot be opened, trying again at the next request",
                partition=channel,
                error=error,
            )
        finally:
            for then in self._opening.pop(channel):
                try:
                    then()
                except Exception:  # the others wait, too
                    logger.exception("request that waited for a log failed", partition=channel)

    async def _open(
        self,
        channel: Channel,
        start_offset: int = -1,
        producers: bytes = b"",
        *,
        lane: Lane = Lane.LOGS,
    ) -> None:
        """Open the usual log; a new one begins at ``start_offset`` (-1: where the span does)."""
        start = channel.start_offset if start_offset < 0 else start_offset

        def open_log() -> tuple[Log, list[Diverged]]:
            log = self._logs.open(
                channel.partition,
                channel.topic_id,
                start_offset=start,
                producers=producers,
                holds=channel.holds,
            )
            return log, self._logs.cut_before(log)

        try:
            log, channel.copies.cut = await self._runner.run(open_log, lane)
        except DiskFull:
            raise  # no failure of this log: whoever asks next tries again
        except (OSError, VqError) as error:
            logger.error("log cannot be opened", partition=channel, error=error)
            channel.fail(error)
        else:
            channel.attach(log)

    # Following ZooKeeper ------------------------------------------------------------------------
    async def _apply(self, view: TopicView) -> None:
        """Take a topic as ZooKeeper has it now."""
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
        if problem is not None:
            raise problem

    async def _maybe_mark_unflushed(self, view: TopicView) -> None:
        """Note on disk, before it may happen, that messages count that are not flushed.

        Raises:
            DiskFull, OSError: That is not noted.
        """
        if view.settings.flush is FlushMode.ASYNC and not self._marked_unflushed:
            await self._runner.run(self._logs.mark_unflushed)
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
        if before is None or before.settings != view.settings:
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
        channel.apply(view.settings, view.partitions[number], view.partition_versions[number])
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

    def begin_epoch(self) -> None:
        """See ``Channel.begin_epoch``."""
        for channel in self.channels.values():
            channel.begin_epoch()

    async def lead(self) -> None:
        """See that the logs are those that the placements ask for: this node leads now."""
        for channel in list(self.channels.values()):
            try:
                await self._fit(channel)
            except (OSError, VqError) as error:
                logger.warning(
                    "log cannot be prepared, trying again when its placement changes",
                    partition=channel,
                    error=error,
                )

    async def _fit(self, channel: Channel) -> None:
        """See that the log is the one that the placement asks for, on the node that leads.

        A copy has what the log of its master has, also while that is about to change.
        """
        span, log = channel.span, channel.log
        if span is None or log is None or channel.failed or not self._context.role.epoch:
            return
        if channel.unprepared:
            logger.warning(
                "partition has no producer table from before the move, resends may repeat",
                partition=channel,
                start_offset=span.start,
            )
            await self.adopt_log(channel, span.start, b"", version=channel.placement_version)
        if span.end is not None and log.end_offset < span.end:
            logger.error(
                "messages are missing, ZooKeeper says that the log is longer",
                partition=channel,
                missing_start=log.end_offset,
                missing_end=span.end,
            )
        if channel.state is State.UNSEALING and self.on_sealed is not None:
            self.on_sealed(channel)

    async def _add(self, prepared: _Prepared) -> Channel:
        """Open what there is of a channel on disk, and let clients reach it.

        Raises:
            OSError, VqError: It could not be prepared.
        """
        channel, key = prepared.channel, prepared.channel.partition
        if prepared.problem is not None:
            raise prepared.problem
        for path in prepared.aside:
            await self._add_older(channel, path)
        if prepared.is_there:
            await self.ensure_open(channel)
        self.channels[key] = channel
        self._by_topic.setdefault(key.topic, {})[key.partition] = channel
        self.on_added()
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
                placement=view.partitions[number],
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
            await self._move_away(view.name, error.topic_id)
            return await self._runner.run(prepare)

    def _look(self, channel: Channel) -> _Prepared:
        """Look what there is of a channel on disk; blocks."""
        try:
            found = self._logs.prepare(channel.partition, channel.topic_id, channel.holds)
        except NamesakeFound:
            raise
        except (OSError, VqError) as error:
            return _Prepared(channel, problem=error)
        return _Prepared(channel, *found)

    async def _move_away(self, topic: str, topic_id: str) -> None:
        """Move a topic's data: to the trash if the tree says it was deleted, else to stay."""
        deleted = await was_deleted(self._coordinator, topic_id)
        path = await self._runner.run(
            lambda: self._logs.move_topic(topic, topic_id, keep=not deleted)
        )
        if path is None:
            return  # there are no data of that topic here
        if deleted:
            logger.warning(
                "topic was deleted, its data are moved", topic=topic, topic_id=topic_id, path=path
            )
        else:
            logger.warning(
                "topic has another id and was not deleted, its data are kept",
                topic=topic,
                topic_id=topic_id,
                path=path,
                hint="was ZooKeeper restored from a backup?",
            )

    async def look_for_strangers(self) -> None:
        """Look at data of topics that ZooKeeper does not have: deleted meanwhile, or to be kept.

        Raises:
            CoordinationError: ZooKeeper cannot be asked.
        """
        try:
            found = await self._runner.run(self._logs.local_topics)
            kept = await self._runner.run(self._logs.kept)
        except OSError as error:
            logger.warning("data directory cannot be listed", error=error)
            return
        for local in found:
            if local.topic in self.view.topics or local.topic in self.view.problems:
                continue
            if local.topic_id and await was_deleted(self._coordinator, local.topic_id):
                try:
                    await self._move_away(local.topic, local.topic_id)
                except (OSError, DiskFull, DirectoryRefused) as error:
                    logger.warning(
                        "data of a deleted topic stay until the next start",
                        topic=local.topic,
                        error=error,
                    )
            else:
                logger.warning(
                    "topic is gone from ZooKeeper and was not deleted, its data are kept",
                    topic=local.topic,
                    topic_id=local.topic_id or None,
                    hint="was ZooKeeper restored from a backup?",
                )
        for path in kept:
            logger.warning(
                "kept data found, ZooKeeper does not say that the topic was deleted", path=path
            )

    async def _add_older(self, channel: Channel, path: Path) -> None:
        """Open an earlier range of the partition, for reading; one that cannot be is noted."""

        def open_log() -> tuple[Log, list[Diverged]]:
            log = self._logs.open(
                channel.partition, channel.topic_id, path=path, holds=channel.holds
            )
            return log, self._logs.cut_before(log)

        try:
            log, cut = await self._runner.run(open_log)
        except (OSError, VqError) as error:
            logger.error(
                "earlier range of a log cannot be opened", partition=channel, path=path, error=error
            )
            channel.add_older(start_of(path), error)
        else:
            channel.add_older(start_of(path), log, cut)

    async def _remove_topic(self, name: str) -> None:
        async with self._membership:
            topic_ids = self._topic_ids(name)
            known = self.view.topics.get(name)
            if known is not None:
                topic_ids.add(known.id)
            if not topic_ids:  # nothing of it could be followed
                topic_ids.add(await self._runner.run(lambda: self._logs.stored_topic_id(name)))
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
        if not deleted and await self._coordinator.exists(Topic.path(name)) is None:
            raise CoordinationError(
                f"topic {name!r} is gone from ZooKeeper and was not deleted (id {topic_id}): "
                "ZooKeeper was restored from a backup that is older than the "
                "topic. Its data are kept. Restore a newer backup; or, if the topic is not wanted "
                "any more, stop this broker and remove the topic's directory"
            )
        error = UnknownTopic(f"topic {name!r} was deleted")
        for channel in self._channels_of(name, topic_id):
            self._remove(channel)
            await self._close(channel, error)
        await self._move_away(name, topic_id)

    async def _tree_was_lost(self) -> bool:
        """Whether the group's record is gone or older than what this node has acted on."""
        state = await read_state(self._coordinator, self._context.group)
        return state is None or state.epoch < self._context.role.epoch

    async def _forget(self, channel: Channel) -> None:
        """Close a channel of which this group holds nothing any more; its files stay."""
        logger.info("partition is not held here any more", partition=channel)
        self._remove(channel)
        await self._close(channel, NotMaster(f"partition {channel} was moved away"))

    # Moving -------------------------------------------------------------------------------------
    async def add_for_move(self, partition: TopicPartition, topic_id: str, version: int) -> Channel:
        """Return the channel of a partition that shall move here, made if there is none.

        Raises:
            UnknownTopic, PartitionReadOnly: The topic or the placement changed meanwhile.
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
            channel.prepare()
            return channel

    async def adopt_log(
        self, channel: Channel, start_offset: int, producers: bytes, *, version: int
    ) -> None:
        """Give the channel a log that goes on at ``start_offset``; one that does not is put aside.

        The channel's state says if that did not work.

        Raises:
            PartitionReadOnly: The placement is not the one of ``version`` any more: whoever asks
                slept, and what the log holds may be acknowledged by now.
        """
        async with self.files(channel.partition):
            self._check_current(channel, version)
            if channel.log is None and channel.rules.read:
                await self._open(channel, start_offset, producers, lane=Lane.MOVES)
            log = channel.log
            if log is None:
                return
            if log.end_offset == start_offset and log.state is not LogState.QUARANTINED:
                return  # it comes back to where it left, or this is the same ADOPT again
            await self.settle(channel)
            self._check_current(channel, version)
            if channel.failed:
                return
            await self._renew(channel, log, start_offset, producers)

    async def _renew(self, channel: Channel, log: Log, start_offset: int, producers: bytes) -> None:
        """Put the log of a channel, which is settled, aside, and begin one at ``start_offset``."""
        channel.put_aside()
        try:
            path = await self._runner.run(
                lambda: self._logs.put_aside(channel.partition, log), Lane.MOVES
            )
        except (OSError, VqError):
            await self._open(channel)  # it is closed by now; whoever asks again finds it
            raise
        if path is not None:
            await self._add_older(channel, path)
        await self._open(channel, start_offset, producers, lane=Lane.MOVES)

    async def seal_log(self, channel: Channel, version: int) -> tuple[int, bytes]:
        """Seal the channel's log for a move that was decided under ``version``.

        Returns:
            The end of the log and its producer table: everything in it, and the seal itself, is
            durable.

        Raises:
            PartitionFailed, PartitionQuarantined, PartitionReadOnly: It cannot be sealed, or the
                placement changed meanwhile.
            StorageFailed: The seal may not be durable.
        """
        await self.ensure_open(channel)
        async with self.files(channel.partition):
            self._check_current(channel, version)
            channel.seal_log()
            await self.settle(channel)
            await self._committed(channel)
            log = channel.log
            if log is None or log.state is not LogState.SEALED or channel.unprepared:
                raise channel.why_refused()
            try:
                await self._runner.run(log.save_seal, Lane.MOVES)
            finally:
                channel.look_at_log()
            self._check_current(channel, version)
            return log.end_offset, log.producers.to_bytes()

    async def _committed(self, channel: Channel) -> None:
        """Return once all that is in the log is where it has to be.

        Raises:
            Busy: That takes too long.
        """
        log = channel.log
        if log is None or channel.high_watermark >= log.end_offset or not channel.role.insync:
            return
        wait = _Wait(channel, log.end_offset)
        try:
            async with asyncio.timeout(COMMIT_WAIT_S):
                await wait.done.wait()
        except TimeoutError:
            raise Busy(
                f"the nodes in sync have not stored partition {channel} up to {log.end_offset} "
                f"within {COMMIT_WAIT_S:g} s"
            ) from None
        finally:
            channel.parked.pop(wait, None)

    async def unseal_log(self, channel: Channel) -> bool:
        """Have a sealed log take appends again, if nothing speaks against it; whether it does.

        Not while a seal is being saved: that is done by another thread.
        """
        async with self.files(channel.partition):
            if channel.state is not State.UNSEALING or channel.log is None:
                return False
            channel.unseal_log(channel.log)
            return True

    def _check_current(self, channel: Channel, version: int) -> None:
        if channel.state is State.CLOSED:
            raise channel.why_refused()
        channel.check_version(version)

    # Copying ------------------------------------------------------------------------------------
    async def begin_log(self, channel: Channel, start_offset: int, producers: bytes) -> None:
        """Give a channel without a log an empty one that begins at ``start_offset``.

        Raises:
            DiskFull: There is no space for it now; it may be tried again.
        """
        async with self.files(channel.partition):
            if channel.log is None and channel.rules.read:
                await self._open(channel, start_offset, producers)

    async def unseal_copy(self, channel: Channel) -> None:
        """Have the log of a copy take appends: it was sealed when this node led.

        The move for which it was sealed is over; its mover is refused in the present epoch.
        """
        async with self.files(channel.partition):
            if channel.log is not None and channel.log.state is LogState.SEALED:
                channel.log.unseal()

    async def renew_log(self, channel: Channel, start_offset: int, producers: bytes) -> None:
        """Put the log of a copy aside, an earlier range, and begin one at ``start_offset``.

        Raises:
            VqError, OSError: It could not be put aside, or no log begun.
        """
        await self._whole(self._renew_copy(channel, start_offset, producers))

    async def _renew_copy(self, channel: Channel, start_offset: int, producers: bytes) -> None:
        async with self.files(channel.partition):
            await self._renew(channel, await self._settled_copy(channel), start_offset, producers)

    async def _settled_copy(self, channel: Channel) -> Log:
        """Return the log of a copy once all of it is durable.

        Raises:
            NotMaster: This node leads by now, and may have acknowledged what is in the log.
            VqError: It is closed, or an I/O error ended it.
        """
        await self.settle(channel)
        if channel.role.epoch:
            raise NotMaster(
                f"the log of {channel} is not changed: its master was replaced by this node"
            )
        log = channel.log
        if log is None or channel.failed or channel.state is State.CLOSED:
            raise channel.why_refused()
        return log

    async def _whole(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the whole of a change of files, also if whoever waits for it is cancelled."""
        await asyncio.shield(asyncio.get_running_loop().create_task(work))

    async def cut_log(self, channel: Channel, offset: int) -> None:
        """Have the log of a copy end at ``offset``; what followed is kept beside it.

        Raises:
            VqError, OSError: It could not be cut; the channel has its log, or says why not.
        """
        await self._whole(self._cut_copy(channel, offset))

    async def _cut_copy(self, channel: Channel, offset: int) -> None:
        async with self.files(channel.partition):
            log = await self._settled_copy(channel)
            channel.detach()
            channel.copies.told = min(channel.copies.told, offset)  # what follows was taken back
            try:
                files = await self._runner.run(
                    lambda: self._logs.cut_back(channel.partition, log, offset)
                )
            finally:
                await self._open(channel)
        for each in files:
            _tell_cut(channel, each)
        if files:
            self.on_cut()

    # Repairing ----------------------------------------------------------------------------------
    async def open_again(self, channel: Channel, part: Channel) -> None:
        """Close a damaged log, of ``channel`` or of an earlier range of it, and open what is there.

        Its files may have been repaired meanwhile.
        """
        await self._whole(self._open_again(channel, part))

    async def _open_again(self, channel: Channel, part: Channel) -> None:
        async with self.files(channel.partition):
            log = part.log
            if log is None or channel.state is State.CLOSED:
                return
            if part is channel:
                await self.settle(channel)
                channel.put_aside()
                await self._runner.run(log.close)
                await self._open(channel)
            elif part in channel.older:
                channel.older.remove(part)
                part.close(Busy(f"an earlier range of {channel} is being opened"))
                await self._runner.run(log.close)
                await self._add_older(channel, log.directory)
                channel.older.sort(key=lambda each: each.start_offset)

    async def give_up(self, channel: Channel) -> list[Path]:
        """Put all logs of a copy out of the way, damaged as they are; return where they are now.

        The copy begins anew. This node must not be in sync.
        """
        paths: list[Path] = []
        await self._whole(self._give_up(channel, paths))
        return paths

    async def _give_up(self, channel: Channel, paths: list[Path]) -> None:
        async with self.files(channel.partition):
            if channel.state is State.CLOSED:
                return
            await self.settle(channel)
            logs = [each.log for each in (*channel.older, channel) if each.log is not None]
            for older in channel.older:
                older.close(Busy(f"the log of {channel} is copied anew"))
            channel.older = []
            channel.put_aside()
            for log in logs:
                try:
                    await self._runner.run(log.close)
                except (OSError, VqError) as error:
                    logger.warning("log was not closed cleanly", partition=channel, error=error)
            paths += await self._runner.run(
                lambda: self._logs.give_up(channel.partition, channel.topic_id), Lane.MOVES
            )
            channel.apply(channel.settings, channel.placement, channel.placement_version)

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
        async with self.files(channel.partition):
            await self.settle(channel)
            for log in channel.take_logs():
                self._closed_unflushed |= log.state is LogState.FAILED
                try:
                    await self._runner.run(log.close)
                except (OSError, VqError) as failure:
                    self._closed_unflushed = True
                    logger.warning("log was not closed cleanly", partition=channel, error=failure)

    async def close_all(self, error: VqError) -> None:
        """Close every channel; who is parked is told ``error``."""
        for channel in list(self.channels.values()):
            await self._close(channel, error)
        self.channels.clear()
        self._by_topic.clear()
        await self.save_begun()

    @property
    def all_flushed(self) -> bool:
        """Whether everything that was ever written is durable; only after ``close_all``."""
        return not self.channels and not self._closed_unflushed

    async def save_begun(self) -> None:
        """Make durable which logs were begun here, without those of topics that are gone."""
        # A topic that cannot be followed is not gone.
        known = None if self.view.problems else {view.id for view in self.view.topics.values()}

        def save() -> None:
            if known is not None:
                self._logs.forget_begun(known)
            self._logs.save_begun()

        try:
            await self._runner.run(save)
        except OSError as error:
            logger.warning("list of begun logs cannot be saved", error=error)


def _tell_cut(channel: Channel, file: Diverged) -> None:
    """Log what was cut from the log of a copy; louder if somebody was told that it is stored."""
    epochs = f"{file.first_epoch}-{file.last_epoch}"
    if channel.acknowledges_alone:
        logger.error(
            "messages that may have been acknowledged are lost in a take-over, cut and kept",
            partition=channel,
            file=file.path,
            start_offset=file.start_offset,
            end_offset=file.end_offset,
            messages=file.messages,
            epochs=epochs,
        )
    else:
        logger.warning(
            "batches that the master does not have are cut and kept",
            partition=channel,
            file=file.path,
            start_offset=file.start_offset,
            end_offset=file.end_offset,
            messages=file.messages,
            epochs=epochs,
        )
