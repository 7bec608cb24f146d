"""The blocks that one node holds, as its logs know them, for reports on capacity.

In here: BLOCKS, from the request to the reply. No message is read: offsets and sizes are in memory;
when a block begins and ends in time, and how many messages it has, is there too or in the small
index beside it. What an answer reads of these is bounded, so a long list takes several.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from vq import limits
from vq.broker.base.config import BrokerConfig
from vq.broker.base.runner import Lane, Runner
from vq.broker.base.session import Session
from vq.broker.disks.data_disk import DataDisk
from vq.broker.partition.channel import Channel, Channels
from vq.broker.partition.context import Context
from vq.errors import CorruptData, InvalidRequest
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.store.disk.disk import Disk
from vq.store.log.block import Block
from vq.store.log.block_facts import BlockFacts, read_facts, read_first_ms
from vq.store.log.log import Log
from vq.store.log.piece import Piece

#: Size at which an answer takes no further block; in Hessian, which names every field, a block
#: takes some hundred bytes more.
ANSWER_BYTES: Final = limits.FRAME_HEADER_BYTES_MAX // 4
_BLOCK_EXTRA_BYTES: Final = 192
_LOG_EXTRA_BYTES: Final = 192
#: Partitions that one answer looks at; the loop is held for a few milliseconds.
LOGS_MAX: Final = 2_000
#: Blocks of one answer of which a small file is read.
READS_MAX: Final = 64
_REASON_CHARS_MAX: Final = 200

_Place = tuple[str, int, int]


class _Known(NamedTuple):
    """The facts of a block that a reply tells."""

    first_ms: int
    last_ms: int
    messages: int


class HeldBlocks:
    """Answers BLOCKS. Loop-bound.

    Args:
        channels: Of the node.
        context: Says whether the node leads.
        config: Names it.
        disks: Of its data directories.
        disk, runner: To read indexes.
    """

    def __init__(
        self,
        channels: Channels,
        context: Context,
        config: BrokerConfig,
        disks: Sequence[DataDisk],
        *,
        disk: Disk,
        runner: Runner,
    ) -> None:
        self._channels = channels
        self._context = context
        self._config = config
        self._disks = disks
        self._disk = disk
        self._runner = runner

    async def answer(
        self, _session: Session, _request_id: RequestId, header: wire.BlocksRequest
    ) -> wire.BlocksResponse:
        """Answer a BLOCKS."""
        if not header.from_topic and (header.from_partition or header.from_offset):
            raise InvalidRequest("BLOCKS has a place to go on from without a topic")
        role = self._context.role
        response = wire.BlocksResponse(
            group=self._config.group,
            node=self._config.node,
            master=role.acts,
        )
        unread = self._list(header, response)
        if unread:
            facts = await self._runner.run(
                lambda: [_read(self._disk, piece) for _, piece, _ in unread], Lane.VERIFY
            )
            for (block, _, told), known in zip(unread, facts, strict=True):
                if known is not None:
                    if block.facts is None:
                        block.facts = BlockFacts(known.last_ms, known.messages)
                    _fill(told, known)
        return response

    def _list(
        self, header: wire.BlocksRequest, response: wire.BlocksResponse
    ) -> list[tuple[Block, Piece, wire.HeldBlock]]:
        """Put what fits into the answer; return the blocks of which facts are still to be read."""
        unread: list[tuple[Block, Piece, wire.HeldBlock]] = []
        size = 0
        for number, key in enumerate(self._keys(header)):
            channel = self._channels[key]
            if size >= ANSWER_BYTES or number >= LOGS_MAX:
                return _stop(response, (*key, 0), unread)
            told = self._log(channel)
            response.logs.append(told)
            told = response.logs[-1]
            size += told.ByteSize() + _LOG_EXTRA_BYTES
            first = header.from_offset if key == _start(header) else 0
            for log, block in _blocks(channel):
                if block.start_offset < first:
                    continue
                full = size >= ANSWER_BYTES or len(unread) >= READS_MAX
                if full and (number or told.blocks):  # each answer gets further
                    return _stop(response, (*key, block.start_offset), unread)
                row = told.blocks.add()
                _describe(row, log, block)
                size += row.ByteSize() + _BLOCK_EXTRA_BYTES
                known = _known(log, block)
                if known is not None:
                    _fill(row, known)
                elif block is not log.open_block:
                    piece = Piece(
                        block.path, block.start_offset, block.start_offset, block.end_offset
                    )
                    unread.append((block, piece, row))
        return unread

    def _keys(self, header: wire.BlocksRequest) -> list[tuple[str, int]]:
        """Return the partitions that an answer may tell, in order."""
        keys = sorted(key for key in self._channels if not header.topic or key[0] == header.topic)
        return keys[bisect_left(keys, _start(header)) :] if header.from_topic else keys

    def _log(self, channel: Channel) -> wire.HeldLog:
        state, reason = channel.told
        topic, partition = channel.partition
        return wire.HeldLog(
            topic=topic,
            partition=partition,
            topic_id=channel.topic_id,
            directory=next(
                (str(each.path) for each in self._disks if each.place is channel.place), ""
            ),
            state=state,
            reason=reason[:_REASON_CHARS_MAX],
            whole=all(
                part.log is not None and part.log.status.can_flush
                for part in (*channel.older, channel)
                if part.log is not None or part.high_watermark > part.start_offset
            ),
        )


def _start(header: wire.BlocksRequest) -> tuple[str, int]:
    return header.from_topic, header.from_partition


def _stop(
    response: wire.BlocksResponse,
    place: _Place,
    unread: list[tuple[Block, Piece, wire.HeldBlock]],
) -> list[tuple[Block, Piece, wire.HeldBlock]]:
    response.more = True
    response.next_topic, response.next_partition, response.next_offset = place
    return unread


def _blocks(channel: Channel) -> Iterator[tuple[Log, Block]]:
    """Yield the blocks of a partition with bytes in them, those of earlier ranges first."""
    for part in (*channel.older, channel):
        log = part.log
        if log is None:
            continue
        blocks = list(log.closed_blocks)
        if log.open_block is not None:
            blocks.append(log.open_block)
        yield from ((log, block) for block in blocks if block.length)


def _describe(row: wire.HeldBlock, log: Log, block: Block) -> None:
    row.start_offset, row.end_offset = block.start_offset, block.end_offset
    row.open = block is log.open_block
    archive = block.archive
    if archive is not None:
        row.archived, row.archive_bytes = True, archive.zip_bytes
        row.elsewhere = bool(archive.url)


def _known(log: Log, block: Block) -> _Known | None:
    """Return what is in memory of a block; None: not all of it is."""
    archive = block.archive
    if archive is not None:
        return _Known(archive.first.append_time_ms, archive.last_ms, archive.messages)
    index = block.index
    if index is None or not len(index):
        return None
    first_ms = index.at_offset(block.start_offset).append_time_ms
    if block.facts is not None:
        return _Known(first_ms, *block.facts)
    if block.messages >= 0 and block.end_offset == log.end_offset:
        return _Known(first_ms, log.last_append_time_ms, block.messages)
    return None


def _read(disk: Disk, piece: Piece) -> _Known | None:
    """Read the facts of a closed block from its index; None: damage, or the medium, hides them."""
    try:
        facts = read_facts(disk, piece)
        return _Known(read_first_ms(disk, piece), *facts)
    except (CorruptData, OSError):
        return None


def _fill(row: wire.HeldBlock, known: _Known) -> None:
    row.known = True
    row.first_append_ms, row.last_append_ms, row.messages = known
