"""The messages that nodes had to cut from their logs: listed, read, deleted.

A node that comes back cuts what its group's master does not have, and keeps it in files beside its
logs (``vq.store.care.divergence``). So does a node that starts after a crash with what looks like
the end of a write that was cut short. Loop-bound functions on a ``ClusterClient``.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

from vq import limits
from vq.bounds import check_whole
from vq.client.cluster import ClusterClient
from vq.client.reading.decode import decode_messages
from vq.coordination.brokers import registry
from vq.coordination.tree.reading import gather_all
from vq.errors import CorruptData, InvalidArgument, VqError
from vq.model import Address, Message, NodeInfo, TopicPartition
from vq.operations.base.acts import audited
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import DivergedFile, DivergedRequest, DivergedResponse
from vq.shown import shown
from vq.store.records.format import CUT_MARK


@dataclass(frozen=True, slots=True)
class CutFile:
    """One file of messages that a node had to cut from a log.

    Attributes:
        group: Of the node.
        node: Where it lies.
        address: Of the node.
        file: Below the node's data directory.
        topic: Of the log.
        partition: Of the log.
        start_offset: Of its first byte.
        end_offset: Behind the last one.
        messages: How many it has.
        first_epoch: In which the first of its batches was appended.
        last_epoch: In which the last one was.
        first_append_ms: When the first of its batches was appended (ms since 1970 UTC).
        last_append_ms: When the last one was.
    """

    group: str
    node: str
    address: Address
    file: str
    topic: str
    partition: int
    start_offset: int
    end_offset: int
    messages: int
    first_epoch: int
    last_epoch: int
    first_append_ms: int
    last_append_ms: int

    @property
    def name(self) -> str:
        """The name under which a command takes it: group, node and file."""
        return f"{self.group}/{self.node}/{self.file}"

    @property
    def at_start(self) -> bool:
        """Whether a start cut it, since it looked like a write that a crash had cut short.

        If it was damaged instead, it may have been acknowledged. Else: the master of the group did
        not have it.
        """
        return CUT_MARK in self.file

    @property
    def size(self) -> int:
        """How many bytes of batches it has."""
        return self.end_offset - self.start_offset

    @property
    def written(self) -> tuple[datetime, datetime]:
        """When its first and its last batch were appended."""
        return (
            datetime.fromtimestamp(self.first_append_ms / 1000, UTC),
            datetime.fromtimestamp(self.last_append_ms / 1000, UTC),
        )


async def list_cut(cluster: ClusterClient) -> tuple[list[CutFile], list[str]]:
    """Return the files of messages that nodes had to cut, and which nodes did not answer."""
    nodes = await registry.all_nodes(cluster.coordinator)
    answers = await gather_all(_of_node(cluster, node) for node in nodes)
    files = [file for answer in answers if not isinstance(answer, str) for file in answer]
    return files, [answer for answer in answers if isinstance(answer, str)]


async def find_cut(cluster: ClusterClient, name: str) -> CutFile:
    """Return the file with this name.

    Raises:
        InvalidArgument: There is none, or its node is not registered.
        VqError: The node did not answer.
    """
    group, _, rest = name.partition("/")
    node_name, _, file = rest.partition("/")
    if not (limits.is_valid_name(group) and limits.is_valid_name(node_name) and file):
        raise InvalidArgument(f"{name!r} names no file; `vq cluster diverged` lists them all")
    node = await registry.read_node(cluster.coordinator, group, node_name)
    if node is None:
        raise InvalidArgument(f"node {node_name!r} of group {group!r} is not registered; start it")
    for found in await _files(cluster, node):
        if found.file == file:
            return found
    raise InvalidArgument(f"{group}/{node_name} has no file {file!r}; `vq cluster diverged` lists")


@dataclass(frozen=True, slots=True)
class CutMessages:
    """Messages of such a file; ``position`` is where to read on, None at its end."""

    messages: tuple[Message, ...]
    position: int | None


async def read_part(cluster: ClusterClient, file: CutFile, position: int = 0) -> CutMessages:
    """Return messages of such a file from ``position`` on, as many as fit into one answer.

    Raises:
        CorruptData: A message is damaged.
        InvalidArgument: ``position`` is outside the file.
    """
    check_whole("position", position)
    if not 0 <= position < file.size:
        raise InvalidArgument(
            f"position = {shown(position)} is outside [0, {file.size}) of {file.name}"
        )
    messages: list[Message] = []
    async for some, at in _parts(cluster, file, position):
        messages += some
        if at > position:
            return CutMessages(tuple(messages), at if at < file.size else None)
    return CutMessages(tuple(messages), None)


async def read_cut(cluster: ClusterClient, file: CutFile) -> AsyncIterator[list[Message]]:
    """Yield the messages of a file, some at a time.

    Raises:
        CorruptData: A message is damaged; those before it were yielded.
        VqError: The node did not answer.
    """
    async for messages, _ in _parts(cluster, file, 0):
        if messages:
            yield messages


async def _parts(
    cluster: ClusterClient, file: CutFile, position: int
) -> AsyncIterator[tuple[list[Message], int]]:
    """Yield messages with the position of the answer that had them; it rises behind its last."""
    partition = TopicPartition(file.topic, file.partition)
    while position < file.size:
        request = DivergedRequest(
            file=file.file, position=position, max_bytes=limits.FETCH_BYTES_MAX
        )
        _, data = await cluster.request(file.address, Command.DIVERGED, request)
        at, more = 0, True
        while more:
            messages: list[Message] = []
            base = file.start_offset + position
            try:
                at, more = decode_messages(bytes(data), base, partition, messages, start=at)
            except CorruptData:
                if messages:  # those before the damaged one
                    yield messages, messages[-1].next_offset - file.start_offset
                raise
            yield messages, position if more else position + at
        if not at:
            raise CorruptData(f"{file.name} has no whole record at position {position}")
        position += at


@audited()
async def delete_cut(cluster: ClusterClient, file: CutFile) -> None:
    """Delete such a file; its messages are gone for good."""
    request = DivergedRequest(file=file.file, delete=True)
    await cluster.request(file.address, Command.DIVERGED, request)


async def _of_node(cluster: ClusterClient, node: NodeInfo) -> list[CutFile] | str:
    try:
        return await _files(cluster, node)
    except VqError as error:
        return f"{node.group}/{node.node} does not answer: {type(error).__name__}: {error}"


async def _files(cluster: ClusterClient, node: NodeInfo) -> list[CutFile]:
    found: list[DivergedFile] = []
    request, more = DivergedRequest(), True
    while more:
        answer, _ = await cluster.request(node.address, Command.DIVERGED, request)
        assert isinstance(answer, DivergedResponse)
        found += answer.files
        more = answer.more and bool(answer.files)
        if more:
            request.after = answer.files[-1].file
    return [
        CutFile(
            group=node.group,
            node=node.node,
            address=node.address,
            file=each.file,
            topic=each.topic,
            partition=each.partition,
            start_offset=each.start_offset,
            end_offset=each.end_offset,
            messages=each.messages,
            first_epoch=each.first_epoch,
            last_epoch=each.last_epoch,
            first_append_ms=each.first_append_ms,
            last_append_ms=each.last_append_ms,
        )
        for each in found
    ]
