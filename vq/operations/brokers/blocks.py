"""The blocks that nodes hold: where the bytes of topics lie, since when, and how many.

Loop-bound functions on a ``ClusterClient``. Nodes answer from what they know of their logs; no
message is read. Each node of a broker group has blocks of its own.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from vq.client.cluster import ClusterClient
from vq.coordination.brokers import registry
from vq.coordination.tree.reading import gather_all
from vq.errors import CorruptData, VqError
from vq.model import Address, NodeInfo, check_name
from vq.operations.brokers.brokers import address_of
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import BlocksRequest, BlocksResponse, HeldLog
from vq.remoting.wire_pb2 import HeldBlock as ToldBlock


@dataclass(frozen=True, slots=True)
class HeldBlock:
    """One block of a partition on one node: a block file, or an archive.

    Attributes:
        start, end: Offsets ``[start, end)``.
        first_ms, last_ms: When its first and last batch were appended, in ms since 1970 UTC; None:
            the node does not know that without reading the block.
        messages: In it; None like the times.
        is_open: It takes appends, so it grows.
        archive_bytes: Size of the zip that holds its bytes; None: a block file does.
        is_elsewhere: The zip does not lie beside the log.
    """

    start: int
    end: int
    first_ms: int | None
    last_ms: int | None
    messages: int | None
    is_open: bool
    archive_bytes: int | None
    is_elsewhere: bool

    @property
    def size_bytes(self) -> int:
        """Bytes of the block, not compressed."""
        return self.end - self.start

    @property
    def disk_bytes(self) -> int:
        """What it takes on the disk of the node: an archive elsewhere takes nothing there."""
        if self.archive_bytes is None:
            return self.size_bytes
        return 0 if self.is_elsewhere else self.archive_bytes


@dataclass(frozen=True, slots=True)
class HeldPartition:
    """What one node holds of a partition.

    Attributes:
        group, node: Which holds it.
        leads: Whether the node is the master of its group.
        topic, partition: Of what.
        topic_id: Tells the topic from a namesake that was deleted.
        directory: The data directory, on the node's machine.
        state: As in ``vq topic describe``.
        reason: Why the state is not a sound one; "": it is.
        is_whole: All of it could be read when the node started; else blocks are missing here.
        blocks: By offset; without those of ranges in other broker groups.
    """

    group: str
    node: str
    leads: bool
    topic: str
    partition: int
    topic_id: str
    directory: str
    state: str
    reason: str
    is_whole: bool
    blocks: tuple[HeldBlock, ...]


@dataclass(frozen=True, slots=True)
class SilentNode:
    """A node that did not tell its blocks.

    Attributes:
        group, node: Which.
        address: Of the node.
        error: Why not.
    """

    group: str
    node: str
    address: Address
    error: str


async def blocks_of(
    cluster: ClusterClient, address: Address | str, topic: str | None = None
) -> list[HeldPartition]:
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
    if topic is not None:
        check_name("topic", topic)
    found: dict[tuple[str, int, str], HeldPartition] = {}
    blocks: dict[tuple[str, int, str], list[HeldBlock]] = {}
    async for answer in _answers(cluster, address_of(address), topic):
        for log in answer.logs:
            key = (log.topic, log.partition, log.topic_id)
            found[key] = _partition(answer, log)
            blocks.setdefault(key, []).extend(map(_block, log.blocks))
    return [replace(each, blocks=tuple(blocks[key])) for key, each in sorted(found.items())]


async def list_blocks(
    cluster: ClusterClient, topic: str | None = None
) -> tuple[list[HeldPartition], list[SilentNode]]:
    """Return what all nodes hold, block by block, and which nodes did not answer, and why.

    Sorted by topic, partition, group and node: each node has blocks of its own.
    """
    nodes = await registry.all_nodes(cluster.coordinator)
    answers = await gather_all(_of_node(cluster, node, topic) for node in nodes)
    found = [each for answer in answers if isinstance(answer, list) for each in answer]
    found.sort(key=lambda each: (each.topic, each.partition, each.group, each.node))
    return found, [each for each in answers if isinstance(each, SilentNode)]


async def _of_node(
    cluster: ClusterClient, node: NodeInfo, topic: str | None
) -> list[HeldPartition] | SilentNode:
    try:
        return await blocks_of(cluster, node.address, topic)
    except VqError as error:
        text = f"{type(error).__name__}: {error}"
        return SilentNode(node.group, node.node, node.address, text)


async def _answers(
    cluster: ClusterClient, address: Address, topic: str | None
) -> AsyncIterator[BlocksResponse]:
    request = BlocksRequest(topic=topic or "")
    while True:
        answer, _ = await cluster.request(address, Command.BLOCKS, request)
        assert isinstance(answer, BlocksResponse)
        yield answer
        if not answer.more:
            return
        before = (request.from_topic, request.from_partition, request.from_offset)
        after = (answer.next_topic, answer.next_partition, answer.next_offset)
        if after <= before:
            raise CorruptData(f"the list of blocks of {address} does not get behind {before}")
        request.from_topic, request.from_partition, request.from_offset = after


def _partition(answer: BlocksResponse, log: HeldLog) -> HeldPartition:
    return HeldPartition(
        group=answer.group,
        node=answer.node,
        leads=answer.master,
        topic=log.topic,
        partition=log.partition,
        topic_id=log.topic_id,
        directory=log.directory,
        state=log.state,
        reason=log.reason,
        is_whole=log.whole,
        blocks=(),
    )


def _block(told: ToldBlock) -> HeldBlock:
    return HeldBlock(
        start=told.start_offset,
        end=told.end_offset,
        first_ms=told.first_append_ms if told.known else None,
        last_ms=told.last_append_ms if told.known else None,
        messages=told.messages if told.known else None,
        is_open=told.open,
        archive_bytes=told.archive_bytes if told.archived else None,
        is_elsewhere=told.elsewhere,
    )
