"""``factory.admin`` of ``vq``: what an operator asks and changes, for any thread."""

from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from vq.client.cluster import ClusterClient
from vq.client.config import ReadFrom
from vq.client.runtime import LoopThread
from vq.coordination.tree.values.audit import UncleanElection
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.errors import VqError
from vq.model import (
    Address,
    GroupView,
    Key,
    NodeInfo,
    PartitionPlacement,
    StatusResult,
    TopicPartition,
    TopicSettings,
)
from vq.operations import aio
from vq.operations.archives.archive_runs import ArchiveRun, RunListener
from vq.operations.archives.archives import ArchivedBlock, VerifiedArchive, VerifiedListener
from vq.operations.brokers.blocks import HeldPartition, SilentNode
from vq.operations.brokers.diverged import CutFile, CutMessages
from vq.operations.brokers.draining import DrainedGroup, DrainedNode
from vq.operations.brokers.removing import Removal
from vq.operations.brokers.switching import Switched
from vq.operations.brokers.unclean import Unclean
from vq.operations.cluster.bulk import (
    AT_ONCE,
    GroupContract,
    GroupPlace,
    GroupTopic,
    MeasuredRange,
    MessageRange,
    ReadPlacement,
    TopicState,
)
from vq.operations.cluster.checks import Finding
from vq.operations.cluster.cluster import ClusterStatus
from vq.operations.groups.groups import (
    GroupDeletion,
    GroupDescription,
    GroupSummary,
    TopicForgetting,
)
from vq.operations.groups.resets import Reset, Target
from vq.operations.messages.columns import FETCH_BYTES, StoredColumns
from vq.operations.messages.columns import TIMEOUT_S as READ_TIMEOUT_S
from vq.operations.messages.finding import LIMIT, TIMEOUT_S
from vq.operations.messages.searched import FoundMessages
from vq.operations.messages.stored import RANGE_BYTES, StoredBytes, StoredRange
from vq.operations.messages.writes import WAIT_S, WriteAttempt, WrittenRange
from vq.operations.partitions.offsets import PartitionEnds
from vq.operations.partitions.placements import Move, Moved
from vq.operations.topics.closing import CLOSE_WAIT_S, ClosedTopic, OpenedTopic
from vq.operations.topics.emptying import DRAIN_WAIT_S, DrainListener, TopicDrain
from vq.operations.topics.topics import (
    DeletedTopic,
    Deletion,
    Topic,
    TopicDescription,
    TopicSummary,
)
from vq.operations.topics.verification import ProgressListener, Verified
from vq.store.records.columns import ALL, COLUMNS, Selection

_T = TypeVar("_T")


class Admin:
    """What an operator asks and changes. ``MessageFactory.admin`` has it; usable from many threads.

    Results are values of ``vq.admin``; numbers that a silent broker would have to tell are None.
    What takes something away, or moves something, is planned first: look at the plan, then give it
    back to be carried out. Every method raises ``CoordinationError`` when ZooKeeper does not
    answer, and one that changes something raises ``OutcomeUnknown`` when ZooKeeper went away
    meanwhile.
    """

    def __init__(self, client: ClusterClient, runtime: LoopThread) -> None:
        self._admin = aio.Admin(client)
        self._run = runtime.run

    # Topics
    def create_topic(
        self, topic: str, settings: TopicSettings | None = None, *, if_not_exists: bool = False
    ) -> Topic:
        """Make a topic and place its partitions evenly on the live broker groups.

        Without ``settings`` it gets the defaults of the cluster (``cluster_settings().defaults``):
        its blocks become archives after 24 hours, and are deleted after 72.
        ``if_not_exists``: return a topic of this name as it is, also with other settings.

        Raises:
            TopicExists: There is one of this name; nothing was changed. Also with
                ``if_not_exists`` if it was made or deleted in part.
            CoordinationError: No broker group can take partitions.
        """
        return self._run(self._admin.create_topic(topic, settings, if_not_exists=if_not_exists))

    def list_topics(self) -> list[TopicSummary]:
        """Return all topics, sorted by name; without those that cannot be read in ZooKeeper."""
        return self._run(self._admin.list_topics())

    def readable_topics(self) -> tuple[list[TopicSummary], dict[str, VqError]]:
        """Return all topics, sorted by name, and by name the errors of those that cannot be read.

        For programs to which a topic that is missing in the list would mean that there is none.
        """
        return self._run(self._admin.readable_topics())

    def get_topic(self, topic: str) -> Topic:
        """Return a topic as ZooKeeper knows it; asks no broker.

        Raises:
            UnknownTopic: There is none of this name.
        """
        return self._run(self._admin.get_topic(topic))

    def describe_topic(self, topic: str) -> TopicDescription:
        """Return a topic with the state, the offsets and the damage of every partition.

        Raises:
            UnknownTopic: There is none of this name.
        """
        return self._run(self._admin.describe_topic(topic))

    def change_settings(self, topic: str, settings: TopicSettings) -> Topic:
        """Replace a topic's settings; the number of partitions must stay the same.

        Begin with the present ones: ``dataclasses.replace(described.topic.settings, …)``.

        Raises:
            UnknownTopic: There is none of this name.
            InvalidArgument: The number of partitions differs, or a group that takes its messages
                has fewer nodes than the new ``min_insync``.
        """
        return self._run(self._admin.change_settings(topic, settings))

    def alter_topic(self, topic: str, *, partitions: int | None = None, **changes: Any) -> Topic:
        """Change single settings of a topic, then give it more partitions.

        Args:
            topic: Its name.
            partitions: How many it is to have; None: as many as it has. See ``add_partitions`` for
                what that does to the order of keys.
            **changes: Settings by their names in ``TopicSettings``; others keep their values.

        Raises:
            UnknownTopic: There is none of this name.
            InvalidArgument: A setting is unknown or unusable, or it would have fewer partitions, or
                too many, or a group that takes its messages has fewer nodes than the new
                ``min_insync``; nothing was changed.
            CoordinationError: No broker group can take partitions; the settings were changed.
        """
        return self._run(self._admin.alter_topic(topic, partitions=partitions, **changes))

    def add_partitions(self, topic: str, count: int) -> Topic:
        """Give a topic ``count`` more partitions, 1 to 500 at once.

        Keys go to other partitions afterwards: messages of a key that were sent before and after
        are not in one order.

        Raises:
            UnknownTopic: There is none of this name.
            InvalidArgument: It would have too many, or ``count`` is out of range.
        """
        return self._run(self._admin.add_partitions(topic, count))

    def close_topic(self, topic: str, *, timeout: float = CLOSE_WAIT_S) -> ClosedTopic:
        """Close a topic for writes, and wait until nothing is appended to it any more.

        A message that is sent meanwhile is acknowledged, or refused with ``TopicClosed``; stored
        ones are read as before. ``closed_ms`` of the result is None if that is not known within
        ``timeout`` seconds; the topic is closed all the same. Closing it again is fine.

        Raises:
            UnknownTopic: There is none of this name.
            InvalidState: Somebody opened it meanwhile.
        """
        return self._run(self._admin.close_topic(topic, timeout=timeout))

    def open_topic(self, topic: str) -> OpenedTopic:
        """Open a topic for writes again; also if it is open.

        Raises:
            UnknownTopic: There is none of this name.
        """
        return self._run(self._admin.open_topic(topic))

    def drain_topic(
        self,
        topic: str,
        *,
        timeout: float = DRAIN_WAIT_S,
        on_progress: DrainListener | None = None,
    ) -> TopicDrain:
        """Close a topic, and wait until every consumer group has committed the end of it.

        Returns after ``timeout`` seconds at the latest; ``drained`` of the result says whether it
        is so, and ``behind`` names the groups that are not so far. The topic stays closed.

        Args:
            topic: Its name.
            timeout: How long to wait, in seconds; 0: look once.
            on_progress: Called on the factory's thread with what was found, when that changes.

        Raises:
            UnknownTopic: There is none of this name, or it was deleted meanwhile.
            InvalidState: Somebody opened it meanwhile.
        """
        return self._run(self._admin.drain_topic(topic, timeout=timeout, on_progress=on_progress))

    def plan_delete(self, topic: str, *, now: bool = False) -> Deletion:
        """Return what deleting a topic would take away; changes nothing.

        ``now``: for good, at once.

        Raises:
            UnknownTopic: There is none of this name.
            InvalidState: It cannot be read, so it could not be brought back; ``now`` deletes it.
        """
        return self._run(self._admin.plan_delete(topic, now=now))

    def delete_topic(self, topic: str, *, now: bool = False) -> None:
        """Delete a topic: clients see it no more, and it can be brought back for a while.

        ``ClusterSettings.delete_grace_hours`` says for how long. After that, brokers remove it for
        good, with its messages and every group's progress on it. Until then its name is not free.
        Deleting it again is fine.

        ``now``: remove it for good at once, also one that is deleted already; cannot be undone.

        Raises:
            UnknownTopic: There is none of this name.
            InvalidState: It cannot be read, so it could not be brought back; nothing was changed.
        """
        self._run(self._admin.delete_topic(topic, now=now))

    def undelete_topic(self, topic: str) -> Topic:
        """Bring a deleted topic back as it was, with its messages and every group's progress.

        One that is not deleted stays as it is.

        Raises:
            UnknownTopic: There is none of this name, or it is removed for good.
        """
        return self._run(self._admin.undelete_topic(topic))

    def deleted_topics(self) -> list[DeletedTopic]:
        """Return the topics that can be brought back, sorted by name."""
        return self._run(self._admin.deleted_topics())

    # Placements
    def placements(self, topic: str) -> list[PartitionPlacement]:
        """Return where the partitions of a topic live, in rising order.

        Raises:
            UnknownTopic: There is no such topic.
        """
        return self._run(self._admin.placements(topic))

    def plan_moves(self, topic: str, partitions: Iterable[int], group: str) -> list[Move]:
        """Return the moves that bring partitions to a broker group; changes nothing.

        Those that are there already are left out.

        Raises:
            UnknownTopic, UnknownPartition: There is none.
            InvalidArgument: There is no such group, or its pool is not the topic's.
            NotMaster: The old or the new group has no master.
        """
        return self._run(self._admin.plan_moves(topic, partitions, group))

    def plan_emptying(self, group: str) -> list[Move]:
        """Return the moves that bring all open partitions of a broker group to others.

        Raises:
            CoordinationError: No other group can take those of a topic.
            NotMaster: A group has no running master.
        """
        return self._run(self._admin.plan_emptying(group))

    def move(self, planned: Sequence[Move]) -> list[Moved]:
        """Carry out planned moves, one after the other: an error leaves the rest where it was.

        Copies nothing. What is there stays readable where it was written; producers and consumers
        follow by themselves.

        Raises:
            CoordinationError: A partition was changed meanwhile; it was not moved.
            Refused: A broker refused; that partition was not moved.
            OutcomeUnknown: A step did not come back; ``describe_topic`` says whether it was moved.
        """
        return self._run(self._admin.move(planned))

    # Consumer groups
    def list_groups(self) -> list[GroupSummary]:
        """Return all consumer groups, sorted by name; without those that cannot be read."""
        return self._run(self._admin.list_groups())

    def readable_groups(self) -> tuple[list[GroupSummary], dict[str, VqError]]:
        """Return all groups, sorted by name, and why others cannot be read, by name."""
        return self._run(self._admin.readable_groups())

    def describe_group(self, group: str, *, count: bool = True) -> GroupDescription:
        """Return a consumer group with its members, and its lag in every partition.

        The lag is in bytes, in messages, and as the age of the oldest message in it. ``count``:
        also in messages, which brokers have to count.

        Raises:
            UnknownGroup: There is none of this name.
        """
        return self._run(self._admin.describe_group(group, count=count))

    def plan_reset(
        self,
        group: str,
        target: Target,
        *,
        only_topics: Collection[str] = (),
        only_partitions: Collection[int] = (),
        only_stopped: bool = False,
    ) -> list[Reset]:
        """Return what setting a group's progress would do, by partition; changes nothing.

        Args:
            group: Its name.
            target: Where it is to go on.
            only_topics: Of the group's topics; all of them when empty.
            only_partitions: Of these topics; all of them when empty.
            only_stopped: Only where the group was stopped, or its offset lies beyond the end.

        Raises:
            UnknownGroup, UnknownPartition: There is none.
            InvalidArgument: The group does not read such a topic, or the target does not fit.
            NotMaster: A broker that must be asked does not answer.
            OffsetOutOfRange, OffsetNotBoundary: The partition has no such offset.
        """
        return self._run(
            self._admin.plan_reset(
                group,
                target,
                only_topics=only_topics,
                only_partitions=only_partitions,
                only_stopped=only_stopped,
            )
        )

    def reset(self, group: str, planned: Sequence[Reset], *, fence: bool = False) -> None:
        """Set where a consumer group goes on, as planned.

        ``fence``: also while members are alive. What they have not committed by then counts for
        nothing, and they go on from the new offsets.

        Raises:
            InvalidState: The group has members, and they are not to be fenced; nothing was changed.
        """
        self._run(self._admin.reset(group, planned, fence=fence))

    def plan_delete_group(self, group: str) -> GroupDeletion:
        """Return what deleting a consumer group would take away; changes nothing.

        Raises:
            UnknownGroup: There is none of this name.
        """
        return self._run(self._admin.plan_delete_group(group))

    def delete_group(self, group: str) -> None:
        """Delete a consumer group without live members: where it is, is forgotten.

        Raises:
            UnknownGroup: There is none of this name.
            InvalidState: It has members; nothing was deleted.
        """
        self._run(self._admin.delete_group(group))

    def plan_forget_topic(self, group: str, topic: str) -> TopicForgetting:
        """Return what a consumer group would forget with a topic; changes nothing.

        Raises:
            UnknownGroup: There is no such group.
            InvalidArgument: It does not read the topic.
        """
        return self._run(self._admin.plan_forget_topic(group, topic))

    def forget_topic(self, group: str, topic: str) -> None:
        """Have a group forget a topic that none of its members subscribes to any more.

        Its progress there is deleted, and what it keeps from being deleted
        (``retention_policy = keep``) may go. A member that subscribes to the topic later begins
        where its setting ``start_position`` says.

        Raises:
            UnknownGroup: There is no such group.
            InvalidArgument: It does not read the topic.
            InvalidState: A member subscribes to it; nothing was changed. Or one came meanwhile.
        """
        self._run(self._admin.forget_topic(group, topic))

    def commit_progress(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, str],
        tags: Sequence[str] = (),
    ) -> None:
        """Write how far a group is whose readers are no members, such as a Spark query.

        So its lag is seen, and judged by how it moves: ``by_stream`` of its description is True.
        The first commit makes the group. An offset that is lower than the committed one changes
        nothing, unless that one is of a topic that was deleted since. May be repeated.

        Args:
            group: Its name; nobody else may read with it.
            offsets: Where the next messages to read begin.
            topic_ids: By topic its id, as ``get_topic`` tells it.
            tags: Only messages with these are read; none: all.

        Raises:
            InvalidState: The group has members; nothing was written.
            InvalidArgument: The group reads a topic with other tags, or an offset is negative.
        """
        self._run(self._admin.commit_progress(group, offsets, topic_ids=topic_ids, tags=tags))

    # Offsets and stored messages
    def bounds(self, topic: str | Topic) -> dict[int, PartitionEnds | None]:
        """Return the offsets that each partition holds, by number; None: a broker is silent.

        ``topic``: its name; or what ``get_topic`` has returned just now, which saves the reads of
        its partitions in ZooKeeper. Then another topic that has the name now counts as silent.

        Raises:
            UnknownTopic: There is no such topic.
            PermissionRefused: It is not readable.
        """
        return self._run(self._admin.bounds(topic))

    def offsets_at_time(self, topic: str, time_ms: int) -> dict[int, int | None]:
        """Return, by partition, the first batch stored at or after ``time_ms`` (since 1970, UTC).

        A partition's end where none is that young; None: a broker is silent.

        Raises:
            UnknownTopic: There is no such topic.
            PermissionRefused: It is not readable.
        """
        return self._run(self._admin.offsets_at_time(topic, time_ms))

    def boundaries(self, topic: str, wanted: Mapping[int, int]) -> dict[int, int]:
        """Return, by partition, the first place at or behind an offset where a message begins.

        The end of a partition is such a place, too.

        Args:
            topic: Its name.
            wanted: By partition an offset that it holds.

        Raises:
            UnknownTopic, UnknownPartition: There is none.
            OffsetOutOfRange: An offset is not kept; the valid range is in ``details``.
            PartitionQuarantined: It lies in damage.
        """
        return self._run(self._admin.boundaries(topic, wanted))

    def read_range(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        max_bytes: int = RANGE_BYTES,
    ) -> StoredRange:
        """Return the stored bytes of a partition between two offsets, for tools.

        Whole records as they are on disk, control records included; ``messages()`` of the result
        decodes them. Read on at its ``next_offset``; it is empty at the end of the partition. No
        group is needed and none moves.

        Args:
            topic: The partition's topic.
            partition: Its number.
            start: Where a record starts, such as ``bounds(topic)[partition].earliest``.
            end: Return no record that ends behind this offset; None: up to the partition's end.
            max_bytes: At most so many, 1 to 16 MiB; more only if the first record is larger.

        Raises:
            UnknownTopic, UnknownPartition: There is none.
            InvalidArgument: A number is out of range.
            OffsetOutOfRange, OffsetNotBoundary: No record starts there; ``details`` say where one
                does.
        """
        return self._run(self._admin.read_range(topic, partition, start, end, max_bytes=max_bytes))

    def read_columns(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        columns: Collection[str] = COLUMNS,
        selection: Selection = ALL,
        topic_id: str = "",
        read_from: ReadFrom | Literal["master", "any"] = ReadFrom.MASTER,
        archives_directly: bool = False,
        max_bytes: int = FETCH_BYTES,
        timeout: float = READ_TIMEOUT_S,
    ) -> Iterator[StoredColumns]:
        """Yield the messages that begin in ``[start, end)`` as columns, some at a time.

        For programs that analyse many messages: no Python object is made for one. The next bytes
        are asked for meanwhile. Checksums are verified, and damaged bytes are read again, also from
        copies. Memory: about three times ``max_bytes``, and what is decompressed, 5 MiB at a time.

        Args:
            topic: The partition's topic.
            partition: Its number.
            start: A place inside a message means the start of the next one.
            end: An offset up to the partition's end.
            columns: Of ``vq.columns.COLUMNS``; the others stay None.
            selection: Which messages are wanted; the others are read and left out.
            topic_id: The topic must be this one; "": the one that has the name at the first read.
            read_from: ``master``, or ``any``: nodes in sync in turn, so that masters have less
                to do.
            archives_directly: Read archives at URLs in this process, with fsspec (the extra
                ``archive``), and so that brokers have less to do. They still say before each part
                that it may be read. What cannot be read here, within 20 s, is asked of the broker;
                a warning says so, once for each place.
            max_bytes: Of one request, 1 KiB to 8 MiB.
            timeout: How long a broker is asked again while it is away, in seconds.

        Raises:
            UnknownTopic, UnknownPartition: There is none; or it was deleted meanwhile, also if
                another one has its name now.
            InvalidArgument: A number is out of range, or a column is unknown.
            OffsetOutOfRange: Some of it is not kept any more; ``details`` have the valid range.
            CorruptData, PartitionQuarantined: Some is damaged; what is before it was yielded.
        """
        found = self._admin.read_columns(
            topic,
            partition,
            start,
            end,
            columns=columns,
            selection=selection,
            topic_id=topic_id,
            read_from=read_from,
            archives_directly=archives_directly,
            max_bytes=max_bytes,
            timeout=timeout,
        )
        yield from self._each(found)

    def _each(self, found: AsyncGenerator[_T, None]) -> Iterator[_T]:
        """Yield what a generator of the loop yields; it is closed at the end."""

        async def following() -> _T | None:
            return await anext(found, None)

        try:
            while (each := self._run(following())) is not None:
                yield each
        finally:
            self._run(found.aclose())

    def read_bytes(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        max_bytes: int = RANGE_BYTES,
        node: Address | str | None = None,
    ) -> StoredBytes:
        """Return the stored bytes of a partition as one node has them, for tools that check them.

        They are not verified and not cut at records, and reading them reports no damage.
        ``ContentCheck`` verifies them. Read on at ``next_offset`` of the result; it is empty at the
        end of the partition.

        Args:
            topic: The partition's topic.
            partition: Its number.
            start: An offset; a record need not start there.
            max_bytes: At most so many, 1 to 16 MiB. A node may send fewer: up to the end of a
                block, or of a part of an archive.
            node: Read the copy of the node with this address; None: the master's. A copy that
                knows of nothing more is waited for up to a second: it learns meanwhile what is
                committed.

        Raises:
            UnknownTopic, UnknownPartition: There is none.
            InvalidArgument: A number is out of range.
            NotMaster: The node does not copy the partition at this moment.
            OffsetOutOfRange: It is before what is kept, or behind the end; ``details`` have both.
            PartitionQuarantined: Bytes are lost there.
            PartitionFailed: The medium does not deliver these bytes, or their archive is damaged.
            Busy: The place of their archive cannot be reached.
        """
        return self._run(
            self._admin.read_bytes(topic, partition, start, max_bytes=max_bytes, node=node)
        )

    def find_messages(
        self,
        topic: str,
        *,
        id: int | None = None,
        key: Key | None = None,
        tag: str | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        partitions: Sequence[int] = (),
        offsets: Mapping[int, int] | None = None,
        limit: int = LIMIT,
        max_bytes: int | None = None,
        timeout: float = TIMEOUT_S,
    ) -> FoundMessages:
        """Return the messages of a topic that have all that is given, and what was searched.

        Brokers search; what a key index rules out is not read. No group is needed and none moves.
        Look at ``complete`` of the result before you take a message for missing: ``gaps`` are the
        ranges that could not be searched, ``rest`` says what is left after a bound was met.

        Args:
            topic: Its name.
            id: Of the message, in [1, 2**63). Without ``since_ms`` and ``until_ms``, batches stored
                up to an hour before and after the time in the id are searched: give them to search
                further.
            key: Of the message, of the same type: text, bytes, or an integer.
            tag: Of the message; ``a || b`` is one of both.
            since_ms: Stored at or after this time, in milliseconds since 1970 UTC.
            until_ms: Stored before this time.
            partitions: Only these.
            offsets: Only these partitions, each from an offset on: ``rest`` of an earlier result.
            limit: At most so many messages, 1 to 100,000.
            max_bytes: Stop after about so many bytes were searched; None: no bound.
            timeout: Stop after so many seconds.

        Raises:
            UnknownTopic, UnknownPartition: There is none.
            InvalidArgument, MessageTooLarge: Nothing is asked for, or what no message can have.
            PermissionRefused: The topic is not readable.
        """
        return self._run(
            self._admin.find_messages(
                topic,
                id=id,
                key=key,
                tag=tag,
                since_ms=since_ms,
                until_ms=until_ms,
                partitions=partitions,
                offsets=offsets,
                limit=limit,
                max_bytes=max_bytes,
                timeout=timeout,
            )
        )

    # Repeatable writes
    def begin_write(self, write: str) -> None:
        """Begin a repeatable write: one whose tasks may be tried again, and store nothing twice.

        For programs such as a sink of Spark. A write has batches with rising numbers, each with
        tasks. An attempt of a task calls ``begin_attempt``, ``enter_topic`` before its first
        message to a topic, and sends with a producer of the attempt's identity. If it repeats
        another attempt, it leaves out what ``read_written`` gives. Beginning a write again changes
        nothing. It is in ZooKeeper until ``end_write``.

        Raises:
            InvalidArgument: That is no name.
        """
        self._run(self._admin.begin_write(write))

    def end_write(self, write: str) -> None:
        """Forget a repeatable write: no attempt of it can begin any more. May be repeated."""
        self._run(self._admin.end_write(write))

    def list_writes(self) -> list[str]:
        """Return the names of all repeatable writes, sorted."""
        return self._run(self._admin.list_writes())

    def begin_attempt(self, write: str, batch: int, task: int) -> WriteAttempt:
        """Begin an attempt of a task: it has an epoch that is higher than those of earlier ones.

        Give its ``identity`` to the producer, see ``vq.ProducerConfig``.

        Args:
            write: A write that was begun.
            batch: The batch's number; all tasks of earlier batches have ended.
            task: The task's number within the batch.

        Raises:
            InvalidState: A later batch has begun, or the write is not there.
        """
        return self._run(self._admin.begin_attempt(write, batch, task))

    def tasks_begun(self, write: str, batch: int) -> list[int]:
        """Return the tasks of a batch of which attempts have begun, sorted."""
        return self._run(self._admin.tasks_begun(write, batch))

    def enter_topic(
        self, attempt: WriteAttempt, topic: str, *, timeout: float = WAIT_S
    ) -> dict[int, tuple[int, int]]:
        """Make a topic ready for an attempt, before its first message to the topic.

        A repeated attempt so has all partitions refuse what earlier attempts still send.

        Args:
            attempt: The attempt.
            topic: The topic. A missing one is created if producers may do so.
            timeout: How long to wait for the brokers of all partitions, in seconds.

        Returns:
            By partition, the range of offsets in which earlier attempts may have stored messages;
            nothing for a first attempt. Read all of it with ``read_written`` before sending.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidState: A later batch has begun, or the write is not there.
            ProducerFenced: A later attempt of the task has begun.
            VqError: A partition gave no answer in time, or takes no messages.
        """
        return self._run(self._admin.enter_topic(attempt, topic, timeout=timeout))

    def read_written(
        self,
        attempt: WriteAttempt,
        topic: str,
        partition: int,
        start: int,
        end: int,
        *,
        max_bytes: int = RANGE_BYTES,
        timeout: float = WAIT_S,
    ) -> WrittenRange:
        """Return the messages that earlier attempts have stored in a part of ``[start, end)``.

        Read on at the ``next_offset`` of the result until that is ``end``.

        Args:
            attempt: A repeated attempt.
            topic: A topic that it has entered.
            partition: The partition's number.
            start: As ``enter_topic`` says, or the ``next_offset`` of the reading before.
            end: As ``enter_topic`` says.
            max_bytes: Stored bytes to look at, those of others included, 1 to 8 MiB; more only if
                a batch is larger.
            timeout: How long to wait, in seconds, for messages that readers do not get yet,
                because copies are behind.

        Raises:
            OffsetOutOfRange: Retention has deleted a part of it, so that it cannot be told.
            NotMaster: Readers still do not get the message at ``start``.
            CorruptData: A record is damaged.
        """
        return self._run(
            self._admin.read_written(
                attempt,
                topic,
                partition,
                start,
                end,
                max_bytes=max_bytes,
                timeout=timeout,
            )
        )

    # Many at once, for reports on a whole cluster
    def read_contracts(self) -> list[GroupContract]:
        """Return all consumer groups with what they read; also those that cannot be read.

        Two reads of ZooKeeper for each group, and none of its partitions.
        """
        return self._run(self._admin.read_contracts())

    def read_topic_states(self) -> list[TopicState]:
        """Return all topics in any phase, without partitions; also those that cannot be read."""
        return self._run(self._admin.read_topic_states())

    def list_broker_groups(self) -> list[GroupView]:
        """Return the broker groups with their pools, sorted by name."""
        return self._run(self._admin.list_broker_groups())

    def read_placements(self, partitions: Mapping[str, int]) -> list[ReadPlacement]:
        """Return where the partitions 0 to n-1 of topics live, given n by topic.

        ZooKeeper is asked for up to 200 nodes with one request, four at a time. A partition that
        is not there, or cannot be read, has its error in the result.
        """
        return self._run(self._admin.read_placements(partitions))

    def read_places(self, wanted: Sequence[GroupTopic]) -> list[GroupPlace]:
        """Return where consumer groups are in all partitions of topics, and who owns these.

        ZooKeeper is read as by ``read_placements``: a hundred thousand places take seconds. A node
        that cannot be read has its error in the result.
        """
        return self._run(self._admin.read_places(wanted))

    def bounds_on(self, group: str) -> dict[TopicPartition, PartitionEnds | None]:
        """Return the ends of all partitions that a broker group has, as its master says.

        None for a partition whose log the master cannot read. ``bounds`` asks for each partition
        alone; this costs one request for some hundred. A partition that was moved has its older
        messages at another group.

        Raises:
            NotMaster: The group has no master now.
            Unreachable, TimedOut: The master does not answer.
        """
        return self._run(self._admin.bounds_on(group))

    def measure(
        self, ranges: Sequence[MessageRange], *, count: bool = True, at_once: int = AT_ONCE
    ) -> list[MeasuredRange]:
        """Return how many messages ranges of partitions have, and how old the first one is.

        Args:
            ranges: Any number; the same one may come several times and is asked for once.
            count: Count the messages, which brokers have to do; False: only the age.
            at_once: Ranges that brokers are asked for at a time, 1 to 256.

        Raises:
            InvalidArgument: ``at_once`` is out of bounds.
        """
        return self._run(self._admin.measure(ranges, count=count, at_once=at_once))

    # The archive
    def start_archive_run(
        self, topic: str | None = None, *, as_of_ms: int | None = None, dry_run: bool = False
    ) -> int:
        """Have every node archive now what the daily run would; return the number of the run.

        Args:
            topic: Only this one; None: all topics.
            as_of_ms: What the daily run would do at that time, in ms since 1970; None: now.
            dry_run: Nodes only say what they would do.

        Raises:
            UnknownTopic: There is no such topic.
            InvalidArgument: The blocks of the topic, or of all topics, do not become archives.
            ArchiveRunUnknown: ZooKeeper went away; the run was made or not. To make it again does
                no harm.
        """
        return self._run(self._admin.start_archive_run(topic, as_of_ms=as_of_ms, dry_run=dry_run))

    def wait_for_archive_run(
        self,
        number: int,
        *,
        timeout: float | None = None,
        on_progress: RunListener | None = None,
    ) -> ArchiveRun:
        """Return a run of the archive once every registered node has ended it.

        That may take hours: nodes archive slowly, beside their other work, and go on if this call
        is interrupted. After ``timeout`` seconds it returns in any case, and after three minutes
        if none of the nodes that have not ended works on a run; then its ``state`` is
        ``"running"``. ``on_progress`` is called with the run when something has changed, on the
        factory's thread; it must be short.

        Raises:
            InvalidArgument: There is no such run, or it cannot be read.
        """
        return self._run(
            self._admin.wait_for_archive_run(number, timeout=timeout, on_progress=on_progress)
        )

    def list_archives(
        self,
        topic: str | None = None,
        *,
        partitions: Sequence[int] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> tuple[list[ArchivedBlock], list[str]]:
        """Return the archived blocks of all nodes, and which nodes did not answer, and why.

        Each node of a broker group has archives of its own. A node that was in sync once and does
        not run is one that does not answer.

        Args:
            topic: Only of this one; None: of all.
            partitions: Only of these; all when empty.
            since_ms, until_ms: Only with messages that were stored in ``[since_ms, until_ms)``.

        Raises:
            UnknownTopic: There is no such topic.
        """
        return self._run(
            self._admin.list_archives(
                topic, partitions=partitions, since_ms=since_ms, until_ms=until_ms
            )
        )

    def verify_archives(
        self, blocks: Sequence[ArchivedBlock], *, on_progress: VerifiedListener | None = None
    ) -> list[VerifiedArchive]:
        """Have nodes read archives whole, each node one at a time; return what that has shown.

        ``on_progress`` is called with how many were read and how many there are, on the factory's
        thread; it must be short.
        """
        return self._run(self._admin.verify_archives(blocks, on_progress=on_progress))

    def restore_archive(self, block: ArchivedBlock) -> None:
        """Have a node make a block file of an archive again, and delete the archive.

        The next run archives the block again while its topic has blocks of that age archived.

        Raises:
            InvalidRequest: The node has no such archive any more.
            CorruptData: The archive is damaged.
            Busy: Its place cannot be reached, or it is in use.
            DiskFull: There is no space for the block.
        """
        self._run(self._admin.restore_archive(block))

    def archive_history(self) -> list[ArchiveRun]:
        """Return the last 30 runs, and those not done yet, the newest first, with their results."""
        return self._run(self._admin.archive_history())

    # Brokers and the cluster
    def list_brokers(self) -> list[NodeInfo]:
        """Return the registered brokers of all groups, sorted by group and node."""
        return self._run(self._admin.list_brokers())

    def broker_status(self, address: Address | str) -> StatusResult:
        """Ask one broker for its status.

        Raises:
            Unreachable, TimedOut: It does not answer.
        """
        return self._run(self._admin.broker_status(address))

    def blocks_of(self, address: Address | str, topic: str | None = None) -> list[HeldPartition]:
        """Return what one node holds, block by block, sorted by topic and partition.

        The node answers from what it knows of its logs, some thousand blocks at a time; no message
        is read.

        Args:
            address: Of the node, such as ``"host:9500"``.
            topic: Only of this one; None: of all.

        Raises:
            Unreachable, TimedOut: It does not answer.
            UnknownCommand: It is of a vq that does not tell its blocks.
        """
        return self._run(self._admin.blocks_of(address, topic))

    def list_blocks(self, topic: str | None = None) -> tuple[list[HeldPartition], list[SilentNode]]:
        """Return what all nodes hold, block by block, and which nodes did not answer, and why.

        Sorted by topic, partition, group and node: each node has blocks of its own.
        """
        return self._run(self._admin.list_blocks(topic))

    def drain_node(self, group: str, node: str) -> DrainedNode:
        """Have a node hand over its group, and lead no more while another node in sync can.

        It stays so, also after restarts, until ``undrain_node``. Returns when another node leads,
        at most after 10 s: ``master`` of the result says which one does.

        Raises:
            InvalidArgument: There is no such group or node.
        """
        return self._run(self._admin.drain_node(group, node))

    def undrain_node(self, group: str, node: str) -> DrainedNode:
        """Let a node lead its group again.

        Raises:
            InvalidArgument: There is no such group.
        """
        return self._run(self._admin.undrain_node(group, node))

    def drain_group(self, group: str) -> DrainedGroup:
        """Place no new partitions on a broker group, until ``undrain_group``.

        ``plan_emptying`` and ``move`` take away those that are open there.

        Raises:
            InvalidArgument: There is no such group.
        """
        return self._run(self._admin.drain_group(group))

    def undrain_group(self, group: str) -> DrainedGroup:
        """Place new partitions on a broker group again.

        Raises:
            InvalidArgument: There is no such group.
        """
        return self._run(self._admin.undrain_group(group))

    def plan_removal(self, group: str, node: str = "") -> Removal:
        """Return what stands in the way of removing a broker group or a node; changes nothing.

        Raises:
            InvalidArgument: There is no such group or node.
        """
        return self._run(self._admin.plan_removal(group, node))

    def remove_broker(
        self, group: str, node: str = "", *, accept_data_loss: bool = False
    ) -> Removal:
        """Remove a broker group, or one node of it, from the cluster.

        Nothing of it may run, and no message may be stored on the group. A broker that is started
        later makes the group anew; for that it needs an empty data directory.

        Args:
            group: The broker group.
            node: The node; "": the group.
            accept_data_loss: The disk of the group is lost for good: give up the messages in
                ``Removal.ranges``. Their partitions begin behind them; a consumer group that has
                not handled them stands still until it is reset.

        Raises:
            InvalidArgument: There is no such group or node.
            InvalidState: ``plan_removal`` names an obstacle; nothing was changed.
        """
        return self._run(self._admin.remove_broker(group, node, accept_data_loss=accept_data_loss))

    def switch_master(self, group: str, node: str = "") -> Switched:
        """Have ``node``, or any node in sync, lead a broker group, without a failed send.

        Raises:
            InvalidArgument: There is no such group.
            NotMaster: It has no running master.
            HandOverFailed: The master goes on; the message says why.
            OutcomeUnknown: The master went away, and nobody leads yet.
        """
        return self._run(self._admin.switch_master(group, node))

    def plan_unclean(self, group: str, node: str, topics: Collection[str]) -> Unclean:
        """Return what ``elect_uncleanly`` would do; changes nothing.

        Raises:
            InvalidArgument, MastershipRefused: As ``elect_uncleanly``.
        """
        return self._run(self._admin.plan_unclean(group, node, topics))

    def elect_uncleanly(self, group: str, node: str, topics: Collection[str]) -> Unclean:
        """Have a node lead that may lack acknowledged messages: the last resort.

        ``topics`` must name every topic whose messages may be lost. The decision is written down in
        ZooKeeper.

        Raises:
            InvalidArgument: There is no such group, the node is not registered, or a topic is
                missing.
            MastershipRefused: A node in sync leads, or will.
        """
        return self._run(self._admin.elect_uncleanly(group, node, topics))

    def unclean_elections(self) -> dict[str, tuple[UncleanElection, ...]]:
        """Return the unclean elections that were decided, the oldest first, by broker group.

        The last 20 of each group are kept.
        """
        return self._run(self._admin.unclean_elections())

    def list_cut(self) -> tuple[list[CutFile], list[str]]:
        """Return the files of messages that nodes had to cut, and which nodes did not answer."""
        return self._run(self._admin.list_cut())

    def read_cut(self, file: CutFile, position: int = 0) -> CutMessages:
        """Return messages of such a file from ``position`` on, as many as fit into one answer.

        Raises:
            CorruptData: A message is damaged.
            InvalidArgument: ``position`` is outside the file.
        """
        return self._run(self._admin.read_cut(file, position))

    def delete_cut(self, file: CutFile) -> None:
        """Delete such a file; its messages are gone for good."""
        self._run(self._admin.delete_cut(file))

    def check_brokers(self) -> list[Finding]:
        """Check every broker as ``vq doctor`` does: answers, clocks, versions, damage."""
        return self._run(self._admin.check_brokers())

    def cluster_status(self) -> ClusterStatus:
        """Ask every registered broker for its status; a silent one is told with the reason."""
        return self._run(self._admin.cluster_status())

    def cluster_settings(self) -> ClusterSettings:
        """Return the settings of the cluster."""
        return self._run(self._admin.cluster_settings())

    def set_auto_create(self, wanted: TopicSettings | None) -> ClusterSettings:
        """Let producers create topics that are missing, with these settings; None: forbid it.

        The settings are kept while it is forbidden: ``cluster_settings().new_topics`` has them.

        Raises:
            InvalidArgument: No producer could create such a topic: it has more than 500 partitions,
                is not writable, or no broker group is in its pool.
            ChangeUnknown: ZooKeeper went away; it is changed or not.
        """
        return self._run(self._admin.set_auto_create(wanted))

    def verify(
        self,
        topics: Sequence[str] | None = None,
        *,
        partitions: Sequence[int] = (),
        again: bool = False,
        on_progress: ProgressListener | None = None,
    ) -> list[Verified]:
        """Have brokers read what they store and look for damage; returns when all have ended.

        That may take hours: brokers read slowly, beside their other work, and go on if this call is
        interrupted.

        Args:
            topics: Their names; None: all there are.
            partitions: Of each of these topics; all of them when empty.
            again: Read also what was found intact within a day.
            on_progress: Called every two seconds meanwhile, on the factory's thread; it must be
                short.

        Raises:
            UnknownTopic: There is no topic of one of these names.
            InvalidArgument: A topic has no such partition.
        """
        return self._run(
            self._admin.verify(topics, partitions=partitions, again=again, on_progress=on_progress)
        )
