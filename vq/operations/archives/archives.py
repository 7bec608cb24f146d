"""The archives of a cluster: listed, verified, restored.

Loop-bound functions on a ``ClusterClient``. Each node of a broker group has archives of its own, so
each is asked.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from vq.bounds import check_whole
from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.topics import topics
from vq.coordination.tree.reading import gather_all
from vq.errors import CorruptData, DiskFull, InvalidRequest, Unreachable, VqError
from vq.model import Address, NodeInfo
from vq.operations.base.acts import audited
from vq.operations.partitions.offsets import check_time
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import ArchivedBlock as ToldBlock
from vq.remoting.wire_pb2 import ArchiveRequest, ArchiveResponse
from vq.store.archive.archive import place_of

_LIST, _VERIFY, _RESTORE = range(3)
#: A node reads a zip slowly; an answer within this time is one.
ANSWER_S: Final = 3_600.0
AWAY_AFTER: Final = 3


@dataclass(frozen=True, slots=True)
class ArchivedBlock:
    """One archived block on one node.

    Attributes:
        group, node: Which has it.
        address: Of the node.
        topic, partition: Of the block.
        topic_id: Tells the topic from a namesake that was deleted.
        start, end: Offsets ``[start, end)``.
        first_ms, last_ms: When its first and last batch were appended, in ms since 1970 UTC.
        messages: In it.
        zip_bytes: Size of the zip.
        url: Where the zip is; "": beside the log of the node.
    """

    group: str
    node: str
    address: Address
    topic: str
    partition: int
    topic_id: str
    start: int
    end: int
    first_ms: int
    last_ms: int
    messages: int
    zip_bytes: int
    url: str

    @property
    def size_bytes(self) -> int:
        """Bytes of the block."""
        return self.end - self.start

    def __str__(self) -> str:
        return (
            f"{self.topic}-{self.partition} on {self.group}/{self.node}: "
            f"offsets [{self.start}, {self.end})"
        )


@dataclass(frozen=True, slots=True)
class VerifiedArchive:
    """What reading an archive whole has shown.

    Attributes:
        block: Which.
        batches: So many are intact; None: it could not be read.
        problem: What is wrong with it; "": nothing.
        error: Why it could not be read, so that nothing is known; "": it could.
    """

    block: ArchivedBlock
    batches: int | None
    problem: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class RestoredArchive:
    """What became of an archive that was to be restored.

    Attributes:
        block: Which.
        error: Why it was not restored, or whether is not known; "": it was.
    """

    block: ArchivedBlock
    error: str = ""


R = TypeVar("R")
#: Called with how many were taken, and how many there are.
ArchiveListener = Callable[[int, int], object]


async def list_archives(
    cluster: ClusterClient,
    topic: str | None = None,
    *,
    partitions: Sequence[int] = (),
    since_ms: int | None = None,
    until_ms: int | None = None,
) -> tuple[list[ArchivedBlock], list[str]]:
    """Return the archived blocks of all nodes, and which nodes did not answer, and why.

    Each node of a broker group has archives of its own. A node that was in sync once and does
    not run is one that does not answer. Of a topic, only the groups that have some of it are asked.

    Args:
        topic: Only of this one; None: of all.
        partitions: Only of these; all when empty.
        since_ms, until_ms: Only with messages that were stored in ``[since_ms, until_ms)``.

    Raises:
        UnknownTopic: There is no such topic.
    """
    for name, value in (("since_ms", since_ms), ("until_ms", until_ms)):
        if value is not None:
            check_time(name, value)
    groups = await _groups(cluster, topic)
    nodes = await registry.all_nodes(cluster.coordinator, groups)
    answers = await gather_all(_of_node(cluster, node, topic) for node in nodes)
    away = await gather_all(_away(cluster, group, nodes) for group in groups)
    found = [
        each
        for answer in answers
        if not isinstance(answer, str)
        for each in answer
        if (not partitions or each.partition in partitions)
        and (since_ms is None or each.last_ms >= since_ms)
        and (until_ms is None or each.first_ms < until_ms)
    ]
    found.sort(key=lambda each: (each.topic, each.partition, each.start, each.group, each.node))
    silent = [answer for answer in answers if isinstance(answer, str)]
    return found, [*silent, *(each for some in away for each in some)]


@audited()
async def verify_archives(
    cluster: ClusterClient,
    blocks: Sequence[ArchivedBlock],
    *,
    on_progress: ArchiveListener | None = None,
) -> list[VerifiedArchive]:
    """Have nodes read archives whole, each node one at a time; return what that has shown.

    ``on_progress`` is called with how many were read and how many there are, on the factory's
    thread; it must be short.
    """

    def told(block: ArchivedBlock, answer: ArchiveResponse | None, error: str) -> VerifiedArchive:
        if answer is None:
            return VerifiedArchive(block, None, error=error)
        return VerifiedArchive(block, answer.batches, answer.problem)

    return await _each(cluster, blocks, _VERIFY, told, on_progress)


@audited()
async def restore_archives(
    cluster: ClusterClient,
    blocks: Sequence[ArchivedBlock],
    *,
    on_progress: ArchiveListener | None = None,
) -> list[RestoredArchive]:
    """Have nodes make block files of archives again, and delete the archives.

    Each node does one at a time. One that fails does not keep the others from being done. The next
    run archives the blocks again while their topic has blocks of that age archived.

    ``on_progress`` is called with how many were taken and how many there are, on the factory's
    thread; it must be short.
    """

    def told(block: ArchivedBlock, _: ArchiveResponse | None, error: str) -> RestoredArchive:
        return RestoredArchive(block, error)

    return await _each(cluster, blocks, _RESTORE, told, on_progress)


@audited()
async def restore_archive(cluster: ClusterClient, block: ArchivedBlock) -> None:
    """Have a node make a block file of an archive again, and delete the archive.

    The next run archives the block again while its topic has blocks of that age archived.

    Raises:
        InvalidRequest: The node has no such archive any more.
        CorruptData: The archive is damaged.
        Busy: Its place cannot be reached, or it is in use.
        DiskFull: There is no space for the block.
        Unreachable: The node is not registered.
        OutcomeUnknown: The node did not answer; the block is restored, or not.
    """
    await _ask(cluster, block, _RESTORE, await _addresses(cluster))


async def _each(
    cluster: ClusterClient,
    blocks: Sequence[ArchivedBlock],
    action: int,
    told: Callable[[ArchivedBlock, ArchiveResponse | None, str], R],
    on_progress: ArchiveListener | None,
) -> list[R]:
    """Ask for something to be done with blocks, each node for one at a time."""
    addresses = await _addresses(cluster)
    done = 0

    async def of_node(some: list[ArchivedBlock]) -> list[R]:
        nonlocal done
        found: list[R] = []
        away: Counter[str] = Counter()  # by place: how many in turn could not be reached
        for block in some:
            place = place_of(block.url)
            answer, error = None, ""
            if block.url and away[place] >= AWAY_AFTER:
                error = f"not asked for: {place} did not answer for {AWAY_AFTER} archives in turn"
            else:
                try:
                    answer = await _ask(cluster, block, action, addresses)
                except VqError as raised:
                    error = f"{type(raised).__name__}: {raised}"
                    is_away = not isinstance(raised, CorruptData | DiskFull | InvalidRequest)
                    away[place] = away[place] + is_away
                else:
                    away[place] = 0
            found.append(told(block, answer, error))
            done += 1
            if on_progress is not None:
                on_progress(done, len(blocks))
        return found

    by_node: dict[tuple[str, str], list[ArchivedBlock]] = {}
    for block in blocks:
        by_node.setdefault((block.group, block.node), []).append(block)
    answers = await gather_all(of_node(some) for some in by_node.values())
    found = {
        block: each
        for some, answer in zip(by_node.values(), answers, strict=True)
        for block, each in zip(some, answer, strict=True)
    }
    return [found[block] for block in blocks]


async def _groups(cluster: ClusterClient, topic: str | None) -> list[str]:
    """Return the broker groups that have messages of a topic; all groups if none is given."""
    if topic is None:
        return await registry.group_names(cluster.coordinator)
    view = await topics.describe_topic(cluster.coordinator, topic)
    return sorted({span.group for placement in view.partitions for span in placement.spans})


async def _away(cluster: ClusterClient, group: str, nodes: Sequence[NodeInfo]) -> list[str]:
    """Return which nodes of a group do not run and may have archives, and why."""
    try:
        state = await registry.read_state(cluster.coordinator, group)
    except VqError as error:
        return [f"group {group}: {type(error).__name__}: {error}"]
    if state is None:
        return []
    away = {*state.insync, *state.left} - {each.node for each in nodes if each.group == group}
    return [f"{group}/{node} is not registered" for node in sorted(away)]


async def _of_node(
    cluster: ClusterClient, node: NodeInfo, topic: str | None
) -> list[ArchivedBlock] | str:
    try:
        return [each async for each in _blocks(cluster, node, topic)]
    except VqError as error:
        return f"{node.group}/{node.node} at {node.address}: {type(error).__name__}: {error}"


async def _blocks(
    cluster: ClusterClient, node: NodeInfo, topic: str | None
) -> AsyncIterator[ArchivedBlock]:
    request = ArchiveRequest(action=_LIST, topic=topic or "")
    while True:
        answer, _ = await cluster.request(node.address, Command.ARCHIVE, request)
        assert isinstance(answer, ArchiveResponse)
        for told in answer.blocks:
            yield _block(node, told)
        if not answer.more or not answer.blocks:
            return
        last = answer.blocks[-1]
        request.after_topic, request.after_partition = last.topic, last.partition
        request.after_offset = last.start_offset


def _block(node: NodeInfo, told: ToldBlock) -> ArchivedBlock:
    return ArchivedBlock(
        group=node.group,
        node=node.node,
        address=node.address,
        topic=told.topic,
        partition=told.partition,
        topic_id=told.topic_id,
        start=told.start_offset,
        end=told.end_offset,
        first_ms=told.first_append_ms,
        last_ms=told.last_append_ms,
        messages=told.messages,
        zip_bytes=told.zip_bytes,
        url=told.url,
    )


async def _addresses(cluster: ClusterClient) -> Mapping[tuple[str, str], Address]:
    """Return where nodes are now: a block may come from far, and says only where its node was."""
    nodes = await registry.all_nodes(cluster.coordinator)
    return {(each.group, each.node): each.address for each in nodes}


async def _ask(
    cluster: ClusterClient,
    block: ArchivedBlock,
    action: int,
    addresses: Mapping[tuple[str, str], Address],
) -> ArchiveResponse:
    check_whole("start", block.start)
    address = addresses.get((block.group, block.node))
    if address is None:
        raise Unreachable(f"{block.group}/{block.node} is not registered")
    request = ArchiveRequest(
        action=action,
        topic=block.topic,
        partition=block.partition,
        start_offset=block.start,
        topic_id=block.topic_id,
    )
    answer, _ = await cluster.request(address, Command.ARCHIVE, request, timeout=ANSWER_S)
    assert isinstance(answer, ArchiveResponse)
    return answer
