"""The archives of one node, as operators ask for them: listed, verified, restored.

In here: ARCHIVE, from the request to the reply. Not in here: the steps on files (``archiving``),
and the runs that make archives (``archive_runs``).
"""

import enum
from typing import Final

from vq import limits
from vq.broker.base.session import Session
from vq.broker.logs.channel_logs import ChannelLogs
from vq.broker.partition.channel import Channel, Channels
from vq.broker.serving.under_way import UnderWay
from vq.errors import InvalidRequest, InvalidState
from vq.log_lines import get_logger
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.shown import shown
from vq.store.archive.archive import Archive
from vq.store.log.block import Block

logger = get_logger(__name__)

#: Size at which an answer takes no further block; in Hessian, which names every field, a block
#: takes some hundred bytes more.
LIST_BYTES: Final = limits.FRAME_HEADER_BYTES_MAX // 2
_BLOCK_EXTRA_BYTES: Final = 256


class Action(enum.IntEnum):
    """What ARCHIVE asks for."""

    LIST = 0
    VERIFY = 1
    RESTORE = 2


class _Asked:
    """A request under way. A verification ends with its connection; what is restored is."""

    def __init__(self) -> None:
        self.is_wanted = True

    def cancel(self) -> None:
        """See ``session.Cancellable``."""
        self.is_wanted = False


class Archives:
    """Answers ARCHIVE. Loop-bound.

    Args:
        channels: Of the node.
        logs: Changes their blocks.
    """

    def __init__(self, channels: Channels, logs: ChannelLogs) -> None:
        self._channels = channels
        self._logs = logs
        self._under_way = UnderWay("archives that are verified or restored")

    async def answer(
        self, session: Session, _request_id: RequestId, header: wire.ArchiveRequest
    ) -> wire.ArchiveResponse:
        """Answer an ARCHIVE: a list at once, else when the archive was verified or restored."""
        if header.action == Action.LIST:
            return self._list(header)
        self._under_way.begin(
            session,
            per_connection_max=limits.ARCHIVES_PER_CONNECTION_MAX,
            total_max=limits.ARCHIVES_MAX,
        )
        asked = _Asked()
        session.waiting[asked] = None
        try:
            return await self._do(header, asked)
        except InvalidState as error:  # it has no number on the wire
            raise InvalidRequest(str(error)) from error
        finally:
            session.waiting.pop(asked, None)
            self._under_way.end(session)

    async def _do(self, header: wire.ArchiveRequest, asked: _Asked) -> wire.ArchiveResponse:
        channel, block = self._find(header)
        if header.action == Action.VERIFY:
            found = await self._logs.archiving.verify(channel, block, lambda: asked.is_wanted)
            return wire.ArchiveResponse(batches=found.batches, problem=found.problem)
        if header.action == Action.RESTORE:
            await self._logs.archiving.restore(channel, block)
            logger.info(
                "archive restored on request of an operator", partition=channel, file=block.path
            )
            return wire.ArchiveResponse()
        raise InvalidRequest(f"action {header.action} of ARCHIVE is not known; known: 0, 1, 2")

    def _find(self, header: wire.ArchiveRequest) -> tuple[Channel, Block]:
        """Return the block that a request names.

        Raises:
            InvalidRequest: There is none, or it is no archive.
        """
        channel = self._channels.get((header.topic, header.partition))
        place = f"{shown(header.topic)} partition {header.partition}"
        if channel is None or header.topic_id not in {"", channel.topic_id}:
            raise InvalidRequest(f"this node does not hold {place}, or another topic of that name")
        for block, _ in _archived(channel):
            if block.start_offset == header.start_offset:
                return channel, block
        raise InvalidRequest(f"there is no archive at offset {header.start_offset} of {place}")

    def _list(self, header: wire.ArchiveRequest) -> wire.ArchiveResponse:
        after = (header.after_topic, header.after_partition)
        response, size = wire.ArchiveResponse(), 0
        for key in sorted(each for each in self._channels if not after[0] or each >= after):
            if header.topic and key[0] != header.topic:
                continue
            channel = self._channels[key]
            for block, archive in _archived(channel):
                if key == after and block.start_offset <= header.after_offset:
                    continue
                if size >= LIST_BYTES:
                    response.more = True
                    return response
                told = _told(channel, archive)
                response.blocks.append(told)
                size += told.ByteSize() + _BLOCK_EXTRA_BYTES
        return response


def _archived(channel: Channel) -> list[tuple[Block, Archive]]:
    """Return the archived blocks of a partition, those of earlier ranges too, by offset."""
    found = [
        (block, block.archive)
        for part in (*channel.older, channel)
        if part.log is not None
        for block in part.log.closed_blocks
        if block.archive is not None
    ]
    return sorted(found, key=lambda each: each[0].start_offset)


def _told(channel: Channel, archive: Archive) -> wire.ArchivedBlock:
    return wire.ArchivedBlock(
        topic=channel.partition.topic,
        partition=channel.partition.partition,
        start_offset=archive.start_offset,
        end_offset=archive.end_offset,
        first_append_ms=archive.first.append_time_ms,
        last_append_ms=archive.last_ms,
        messages=archive.messages,
        zip_bytes=archive.zip_bytes,
        url=archive.url,
        topic_id=channel.topic_id,
    )
