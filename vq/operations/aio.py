"""``factory.admin`` of ``vq.aio``: what an operator asks and changes, as coroutines."""

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from vq.client.cluster import ClusterClient
from vq.client.config import ReadFrom
from vq.client.kinds import check_whole, given_settings, settings_of
from vq.coordination.tree.values.audit import UncleanElection
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.errors import InvalidArgument, InvalidState, UnknownTopic, VqError
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
from vq.operations.archives import archive_runs, archives
from vq.operations.archives.archive_runs import ArchiveRun, RunListener
from vq.operations.archives.archives import ArchivedBlock, VerifiedArchive, VerifiedListener
from vq.operations.base.changes import ResetUnknown, unknown_when_cut
from vq.operations.base.connect import UnknownCluster
from vq.operations.brokers import blocks, brokers, diverged, draining, removing, switching, unclean
from vq.operations.brokers.blocks import HeldPartition, SilentNode
from vq.operations.brokers.diverged import CutFile, CutMessages
from vq.operations.brokers.draining import DrainedGroup, DrainedNode
from vq.operations.brokers.removing import Removal
from vq.operations.brokers.switching import Switched
from vq.operations.brokers.unclean import Unclean
from vq.operations.cluster import bulk, cluster, settings
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
from vq.operations.groups import groups, progress, resets
from vq.operations.groups.groups import (
    GroupDeletion,
    GroupDescription,
    GroupSummary,
    TopicForgetting,
)
from vq.operations.groups.resets import Reset, Target
from vq.operations.messages import finding, stored, writes
from vq.operations.messages.columns import FETCH_BYTES, StoredColumns, read_columns
from vq.operations.messages.columns import TIMEOUT_S as READ_TIMEOUT_S
from vq.operations.messages.finding import LIMIT, TIMEOUT_S
from vq.operations.messages.searched import FoundMessages
from vq.operations.messages.stored import RANGE_BYTES, StoredBytes, StoredRange
from vq.operations.messages.writes import WAIT_S, WriteAttempt, WrittenRange
from vq.operations.partitions import offsets, placements
from vq.operations.partitions.offsets import PartitionEnds
from vq.operations.partitions.placements import Move, Moved
from vq.operations.topics import closing, emptying, topics, verification
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

A = TypeVar("A", bound=type[Any])


def _in_a_cluster(cls: A) -> A:
    """Have each method say that the cluster does not exist, where that is why nothing is there.

    A misspelled name would look like a cluster without topics, groups and brokers. The question is
    asked of ZooKeeper only after an error, or when a list is empty.
    """
    for name, member in list(vars(cls).items()):
        if inspect.iscoroutinefunction(member):
            setattr(cls, name, _checked(member))
        elif inspect.isasyncgenfunction(member):
            setattr(cls, name, _checked_generator(member))
    return cls


async def _check_cluster(cluster: ClusterClient, error: VqError | None) -> None:
    """Raise an error if there is no such cluster; return if there is, or if nobody can say.

    What the caller did wrong, and a client that is closed, are not for the cluster to explain.
    """
    if isinstance(error, InvalidArgument | InvalidState | UnknownCluster):
        return
    kind = UnknownTopic if isinstance(error, UnknownTopic) else UnknownCluster
    try:
        await cluster.check_cluster(error, kind=kind)
    except kind:
        raise
    except VqError:  # ZooKeeper does not answer
        return


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(self: "Admin", *arguments: Any, **named: Any) -> Any:
        try:
            found = await method(self, *arguments, **named)
        except VqError as error:
            await _check_cluster(self._cluster, error)
            raise
        if isinstance(found, list) and not found:
            await _check_cluster(self._cluster, None)
        return found

    return call


def _checked_generator(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def call(self: "Admin", *arguments: Any, **named: Any) -> Any:
        found = method(self, *arguments, **named)
        async with contextlib.aclosing(found):
            try:
                async for each in found:
                    yield each
            except VqError as error:
                await _check_cluster(self._cluster, error)
                raise

    return call


@_in_a_cluster
class Admin:
    """What an operator asks and changes, on one loop. ``MessageFactory.admin`` has it.

    Results and errors are those of ``vq.Admin``; so is what each method promises.
    """

    def __init__(self, client: ClusterClient) -> None:
        self._cluster = client

    @property
    def _client(self) -> ClusterClient:
        """The cluster, for a coroutine on the factory's loop; see ``ClusterClient.check_loop``."""
        self._cluster.check_loop()
        return self._cluster

    # Topics
    async def create_topic(
        self, topic: str, settings: TopicSettings | None = None, *, if_not_exists: bool = False
    ) -> Topic:
        """Make a topic; see ``vq.Admin.create_topic``."""
        wanted = settings
        if settings is not None:
            wanted = settings_of(TopicSettings, settings, "settings")
        if if_not_exists:
            return (await topics.ensure_topic(self._client, topic, wanted))[0]
        return await topics.create_topic(self._client, topic, wanted)

    async def list_topics(self) -> list[TopicSummary]:
        """Return all topics, sorted by name."""
        return await topics.list_topics(self._client)

    async def readable_topics(self) -> tuple[list[TopicSummary], dict[str, VqError]]:
        """Return all topics, and why others cannot be read; see ``vq.Admin.readable_topics``."""
        found, unreadable = await topics.readable_topics(self._client)
        return found, dict(unreadable)

    async def get_topic(self, topic: str) -> Topic:
        """Return a topic as ZooKeeper knows it; see ``vq.Admin.get_topic``."""
        return await topics.get_topic(self._client, topic)

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Return a topic with what brokers say of it; see ``vq.Admin.describe_topic``."""
        return await topics.describe_topic(self._client, topic)

    async def change_settings(self, topic: str, settings: TopicSettings) -> Topic:
        """Replace a topic's settings; see ``vq.Admin.change_settings``."""
        given_settings(TopicSettings, settings, "settings", "give vq.TopicSettings(...)")
        return await topics.change_settings(self._client, topic, settings)

    async def alter_topic(
        self, topic: str, *, partitions: int | None = None, **changes: Any
    ) -> Topic:
        """Change single settings of a topic; see ``vq.Admin.alter_topic``."""
        return await topics.alter_topic(
            self._client, topic, topics.changed(changes), partitions=partitions
        )

    async def add_partitions(self, topic: str, count: int) -> Topic:
        """Give a topic more partitions; see ``vq.Admin.add_partitions``."""
        check_whole("count", count)
        return await topics.add_partitions(self._client, topic, count)

    async def close_topic(self, topic: str, *, timeout: float = CLOSE_WAIT_S) -> ClosedTopic:
        """Close a topic for writes; see ``vq.Admin.close_topic``."""
        return await closing.close_topic(self._client, topic, timeout_s=timeout)

    async def open_topic(self, topic: str) -> OpenedTopic:
        """Open a topic for writes again; see ``vq.Admin.open_topic``."""
        return await closing.open_topic(self._client, topic)

    async def drain_topic(
        self,
        topic: str,
        *,
        timeout: float = DRAIN_WAIT_S,
        on_progress: DrainListener | None = None,
    ) -> TopicDrain:
        """Close a topic, and wait for its consumer groups; see ``vq.Admin.drain_topic``.

        ``on_progress`` is called on the loop.
        """
        return await emptying.drain_topic(
            self._client, topic, timeout_s=timeout, on_progress=on_progress
        )

    async def plan_delete(self, topic: str, *, now: bool = False) -> Deletion:
        """Return what deleting a topic would take away; see ``vq.Admin.plan_delete``."""
        return await topics.plan_delete(self._client, topic, now=now)

    async def delete_topic(self, topic: str, *, now: bool = False) -> None:
        """Delete a topic with its messages; see ``vq.Admin.delete_topic``."""
        await topics.delete_topic(self._client, topic, now=now)

    async def undelete_topic(self, topic: str) -> Topic:
        """Bring a deleted topic back; see ``vq.Admin.undelete_topic``."""
        return (await topics.undelete_topic(self._client, topic))[0]

    async def deleted_topics(self) -> list[DeletedTopic]:
        """Return the topics that can be brought back, sorted by name."""
        return (await topics.deleted_topics(self._client))[0]

    # Placements
    async def placements(self, topic: str) -> list[PartitionPlacement]:
        """Return where the partitions of a topic live; see ``vq.Admin.placements``."""
        return await placements.partitions_of(self._client, topic)

    async def plan_moves(self, topic: str, partitions: Iterable[int], group: str) -> list[Move]:
        """Return the moves that bring partitions to a group; see ``vq.Admin.plan_moves``."""
        return await placements.plan_moves(self._client, topic, partitions, group)

    async def plan_emptying(self, group: str) -> list[Move]:
        """Return the moves that empty a broker group; see ``vq.Admin.plan_emptying``."""
        return await draining.plan_emptying(self._client, group)

    async def move(self, planned: Sequence[Move]) -> list[Moved]:
        """Carry out planned moves; see ``vq.Admin.move``."""
        return await placements.move_all(self._client, planned)

    # Consumer groups
    async def list_groups(self) -> list[GroupSummary]:
        """Return all consumer groups, sorted by name."""
        return await groups.list_groups(self._client)

    async def readable_groups(self) -> tuple[list[GroupSummary], dict[str, VqError]]:
        """Return all groups, and why others cannot be read; see ``vq.Admin.readable_groups``."""
        return await groups.readable_groups(self._client)

    async def describe_group(self, group: str, *, count: bool = True) -> GroupDescription:
        """Return a consumer group with its lag; see ``vq.Admin.describe_group``."""
        return await groups.describe_group(self._client, group, count=count)

    async def plan_reset(
        self,
        group: str,
        target: Target,
        *,
        only_topics: Collection[str] = (),
        only_partitions: Collection[int] = (),
        only_stopped: bool = False,
    ) -> list[Reset]:
        """Return what a reset would do; see ``vq.Admin.plan_reset``."""
        return await resets.plan_reset(
            self._client,
            group,
            target,
            only_topics=only_topics,
            only_partitions=only_partitions,
            only_stopped=only_stopped,
        )

    async def reset(self, group: str, planned: Sequence[Reset], *, fence: bool = False) -> None:
        """Set where a consumer group goes on, as planned; see ``vq.Admin.reset``."""
        with unknown_when_cut(f"resetting {group}", ResetUnknown):
            await resets.carry_out(self._client, group, planned, fence=fence)

    async def plan_delete_group(self, group: str) -> GroupDeletion:
        """Return what deleting a group would take away; see ``vq.Admin.plan_delete_group``."""
        return await groups.plan_delete_group(self._client, group)

    async def delete_group(self, group: str) -> None:
        """Delete a consumer group without live members; see ``vq.Admin.delete_group``."""
        await groups.delete_group(self._client, group)

    async def plan_forget_topic(self, group: str, topic: str) -> TopicForgetting:
        """Return what a group would forget; see ``vq.Admin.plan_forget_topic``."""
        return await groups.plan_forget_topic(self._client, group, topic)

    async def forget_topic(self, group: str, topic: str) -> None:
        """Have a group forget a topic; see ``vq.Admin.forget_topic``."""
        await groups.forget_topic(self._client, group, topic)

    async def commit_progress(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int],
        *,
        topic_ids: Mapping[str, str],
        tags: Sequence[str] = (),
    ) -> None:
        """Write how far a group without members is; see ``vq.Admin.commit_progress``."""
        await progress.commit_progress(self._client, group, offsets, topic_ids=topic_ids, tags=tags)

    # Offsets and stored messages
    async def bounds(self, topic: str | Topic) -> dict[int, PartitionEnds | None]:
        """Return the offsets that partitions hold, by number; see ``vq.Admin.bounds``."""
        if isinstance(topic, Topic):
            return await offsets.ends_of(self._client, topic.partitions, topic.id)
        return await offsets.offset_bounds(self._client, topic)

    async def offsets_at_time(self, topic: str, time_ms: int) -> dict[int, int | None]:
        """Return the offsets of a time, by number; see ``vq.Admin.offsets_at_time``."""
        return await offsets.offsets_at_time(self._client, topic, time_ms)

    async def boundaries(self, topic: str, wanted: Mapping[int, int]) -> dict[int, int]:
        """Return where messages begin behind offsets; see ``vq.Admin.boundaries``."""
        return await stored.boundaries_of(self._client, topic, wanted)

    async def read_range(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        max_bytes: int = RANGE_BYTES,
    ) -> StoredRange:
        """Return stored bytes of a partition between two offsets; see ``vq.Admin.read_range``."""
        return await stored.read_range(
            self._client, topic, partition, start, end, max_bytes=max_bytes
        )

    async def read_columns(
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
    ) -> AsyncGenerator[StoredColumns, None]:
        """Yield a range of a partition as columns; see ``vq.Admin.read_columns``."""
        found = read_columns(
            self._client,
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
        async with contextlib.aclosing(found):
            async for each in found:
                yield each

    async def read_bytes(
        self,
        topic: str,
        partition: int,
        start: int,
        *,
        max_bytes: int = RANGE_BYTES,
        node: Address | str | None = None,
    ) -> StoredBytes:
        """Return the stored bytes of one node as they are; see ``vq.Admin.read_bytes``."""
        return await stored.read_bytes(
            self._client,
            topic,
            partition,
            start,
            max_bytes=max_bytes,
            node=None if node is None else _address(node),
        )

    async def find_messages(
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
        """Return messages with an id, a key or a tag; see ``vq.Admin.find_messages``."""
        return await finding.find_messages(
            self._client,
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

    # Repeatable writes
    async def begin_write(self, write: str) -> None:
        """Begin a repeatable write; see ``vq.Admin.begin_write``."""
        await writes.begin_write(self._client, write)

    async def end_write(self, write: str) -> None:
        """Forget a repeatable write; see ``vq.Admin.end_write``."""
        await writes.end_write(self._client, write)

    async def list_writes(self) -> list[str]:
        """Return the names of all repeatable writes, sorted."""
        return await writes.list_writes(self._client)

    async def begin_attempt(self, write: str, batch: int, task: int) -> WriteAttempt:
        """Begin an attempt of a task; see ``vq.Admin.begin_attempt``."""
        return await writes.begin_attempt(self._client, write, batch, task)

    async def tasks_begun(self, write: str, batch: int) -> list[int]:
        """Return the tasks of a batch that have begun; see ``vq.Admin.tasks_begun``."""
        return await writes.tasks_begun(self._client, write, batch)

    async def enter_topic(
        self, attempt: WriteAttempt, topic: str, *, timeout: float = WAIT_S
    ) -> dict[int, tuple[int, int]]:
        """Make a topic ready for an attempt; see ``vq.Admin.enter_topic``."""
        return await writes.enter_topic(self._client, attempt, topic, timeout=timeout)

    async def read_written(
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
        """Return what earlier attempts have stored; see ``vq.Admin.read_written``."""
        return await writes.read_written(
            self._client,
            attempt,
            topic,
            partition,
            start,
            end,
            max_bytes=max_bytes,
            timeout=timeout,
        )

    # Many at once, for reports on a whole cluster
    async def read_contracts(self) -> list[GroupContract]:
        """Return all groups with what they read; see ``vq.Admin.read_contracts``."""
        return await bulk.read_contracts(self._client)

    async def read_topic_states(self) -> list[TopicState]:
        """Return all topics in any phase; see ``vq.Admin.read_topic_states``."""
        return await bulk.read_topic_states(self._client)

    async def list_broker_groups(self) -> list[GroupView]:
        """Return the broker groups with their pools, sorted by name."""
        return await bulk.list_broker_groups(self._client)

    async def read_placements(self, partitions: Mapping[str, int]) -> list[ReadPlacement]:
        """Return where partitions of many topics live; see ``vq.Admin.read_placements``."""
        return await bulk.read_placements(self._client, partitions)

    async def read_places(self, wanted: Sequence[GroupTopic]) -> list[GroupPlace]:
        """Return where groups are in all partitions; see ``vq.Admin.read_places``."""
        return await bulk.read_places(self._client, wanted)

    async def bounds_on(self, group: str) -> dict[TopicPartition, PartitionEnds | None]:
        """Return the ends of all partitions of a broker group; see ``vq.Admin.bounds_on``."""
        return await bulk.bounds_on(self._client, group)

    async def measure(
        self, ranges: Sequence[MessageRange], *, count: bool = True, at_once: int = AT_ONCE
    ) -> list[MeasuredRange]:
        """Return how many messages ranges have, and how old they are; see ``vq.Admin.measure``."""
        return await bulk.measure(self._client, ranges, count=count, at_once=at_once)

    # The archive
    async def start_archive_run(
        self, topic: str | None = None, *, as_of_ms: int | None = None, dry_run: bool = False
    ) -> int:
        """Have every node archive now; see ``vq.Admin.start_archive_run``."""
        return await archive_runs.start_archive_run(
            self._client, topic, as_of_ms=as_of_ms, dry_run=dry_run
        )

    async def wait_for_archive_run(
        self,
        number: int,
        *,
        timeout: float | None = None,
        on_progress: RunListener | None = None,
    ) -> ArchiveRun:
        """Return a run once all nodes have ended it; see ``vq.Admin.wait_for_archive_run``."""
        return await archive_runs.wait_for_archive_run(
            self._client, number, timeout=timeout, on_progress=on_progress
        )

    async def list_archives(
        self,
        topic: str | None = None,
        *,
        partitions: Sequence[int] = (),
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> tuple[list[ArchivedBlock], list[str]]:
        """Return the archived blocks of all nodes; see ``vq.Admin.list_archives``."""
        return await archives.list_archives(
            self._client, topic, partitions=partitions, since_ms=since_ms, until_ms=until_ms
        )

    async def verify_archives(
        self, blocks: Sequence[ArchivedBlock], *, on_progress: VerifiedListener | None = None
    ) -> list[VerifiedArchive]:
        """Have nodes read archives whole; see ``vq.Admin.verify_archives``."""
        return await archives.verify_archives(self._client, blocks, on_progress=on_progress)

    async def restore_archive(self, block: ArchivedBlock) -> None:
        """Make a block file of an archive again; see ``vq.Admin.restore_archive``."""
        await archives.restore_archive(self._client, block)

    async def archive_history(self) -> list[ArchiveRun]:
        """Return the last runs, the newest first; see ``vq.Admin.archive_history``."""
        return await archive_runs.archive_history(self._client)

    # Brokers and the cluster
    async def list_brokers(self) -> list[NodeInfo]:
        """Return the registered brokers of all groups, sorted by group and node."""
        return await brokers.list_brokers(self._client)

    async def broker_status(self, address: Address | str) -> StatusResult:
        """Ask one broker for its status; see ``vq.Admin.broker_status``."""
        return await brokers.broker_status(self._client, _address(address))

    async def blocks_of(
        self, address: Address | str, topic: str | None = None
    ) -> list[HeldPartition]:
        """Return what one node holds, by block; see ``vq.Admin.blocks_of``."""
        return await blocks.blocks_of(self._client, _address(address), topic)

    async def list_blocks(
        self, topic: str | None = None
    ) -> tuple[list[HeldPartition], list[SilentNode]]:
        """Return what all nodes hold, by block; see ``vq.Admin.list_blocks``."""
        return await blocks.list_blocks(self._client, topic)

    async def drain_node(self, group: str, node: str) -> DrainedNode:
        """Have a node lead no more; see ``vq.Admin.drain_node``."""
        return await draining.drain_node(self._client, group, node)

    async def undrain_node(self, group: str, node: str) -> DrainedNode:
        """Let a node lead again; see ``vq.Admin.undrain_node``."""
        return await draining.drain_node(self._client, group, node, undo=True)

    async def drain_group(self, group: str) -> DrainedGroup:
        """Place no new partitions on a group; see ``vq.Admin.drain_group``."""
        return await draining.drain_group(self._client, group)

    async def undrain_group(self, group: str) -> DrainedGroup:
        """Place new partitions on a group again; see ``vq.Admin.undrain_group``."""
        return await draining.drain_group(self._client, group, undo=True)

    async def plan_removal(self, group: str, node: str = "") -> Removal:
        """Return what stands in the way of a removal; see ``vq.Admin.plan_removal``."""
        return await removing.plan_removal(self._client, group, node)

    async def remove_broker(
        self, group: str, node: str = "", *, accept_data_loss: bool = False
    ) -> Removal:
        """Remove a broker group, or a node of one; see ``vq.Admin.remove_broker``."""
        return await removing.remove_broker(
            self._client, group, node, accept_data_loss=accept_data_loss
        )

    async def switch_master(self, group: str, node: str = "") -> Switched:
        """Have another node lead a group; see ``vq.Admin.switch_master``."""
        return await switching.switch_master(self._client, group, node)

    async def plan_unclean(self, group: str, node: str, topics: Collection[str]) -> Unclean:
        """Return what an unclean election would do; see ``vq.Admin.plan_unclean``."""
        return await unclean.elect_uncleanly(self._client, group, node, topics, do=False)

    async def elect_uncleanly(self, group: str, node: str, topics: Collection[str]) -> Unclean:
        """Have a node lead that may lack messages; see ``vq.Admin.elect_uncleanly``."""
        return await unclean.elect_uncleanly(self._client, group, node, topics, do=True)

    async def unclean_elections(self) -> dict[str, tuple[UncleanElection, ...]]:
        """Return the unclean elections, by broker group; see ``vq.Admin.unclean_elections``."""
        return await unclean.unclean_elections(self._client)

    async def list_cut(self) -> tuple[list[CutFile], list[str]]:
        """Return the messages that nodes had to cut, by file; see ``vq.Admin.list_cut``."""
        return await diverged.list_cut(self._client)

    async def read_cut(self, file: CutFile, position: int = 0) -> CutMessages:
        """Return messages of such a file; see ``vq.Admin.read_cut``."""
        return await diverged.read_part(self._client, file, position)

    async def delete_cut(self, file: CutFile) -> None:
        """Delete such a file; see ``vq.Admin.delete_cut``."""
        await diverged.delete_cut(self._client, file)

    async def check_brokers(self) -> list[Finding]:
        """Check the brokers as ``vq doctor`` does; see ``vq.Admin.check_brokers``."""
        from vq.operations.cluster import (
            doctor,  # an application that does not ask need not load it
        )

        return list(await doctor.check_brokers(self._client))

    async def cluster_status(self) -> ClusterStatus:
        """Ask every registered broker for its status; see ``vq.Admin.cluster_status``."""
        return await cluster.cluster_status(self._client)

    async def cluster_settings(self) -> ClusterSettings:
        """Return the settings of the cluster."""
        return await settings.read_settings(self._client)

    async def set_auto_create(self, wanted: TopicSettings | None) -> ClusterSettings:
        """Let producers create topics, or not; see ``vq.Admin.set_auto_create``."""
        return await settings.set_auto_create(self._client, wanted)

    async def verify(
        self,
        topics: Sequence[str] | None = None,
        *,
        partitions: Sequence[int] = (),
        again: bool = False,
        on_progress: ProgressListener | None = None,
    ) -> list[Verified]:
        """Have brokers read what they store and look for damage; see ``vq.Admin.verify``."""
        return await verification.verify(
            self._client, topics, partitions=partitions, again=again, on_progress=on_progress
        )


def _address(given: Address | str) -> Address:
    return given if isinstance(given, Address) else Address.parse(given)
