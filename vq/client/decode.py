"""From fetched bytes to messages.

The common kinds of records (plain, with a tag or a key) are read by the loop in ``store.codec``;
everything else, errors included, by ``store.record.decode_into``, which is the reference. A test
holds the two against each other.
"""

from collections.abc import Sequence

from vq.client.fetcher import Chunk
from vq.errors import CorruptData
from vq.model import Message, TopicPartition
from vq.store.codec import decode_common
from vq.store.format import FLAG_COMPRESSION_MASK, RECORD_HEADER, RECORD_HEADER_BYTES
from vq.store.record import Record, decode_into, decode_properties, decompress


def to_message(where: TopicPartition, record: Record) -> Message:
    """Return a record as a user sees it.

    Raises:
        CorruptData: Its payload cannot be decompressed, or its properties or tag cannot be parsed.
    """
    offset, next_offset, message_id, flag, tag, properties, payload = record
    if flag & FLAG_COMPRESSION_MASK:
        payload = decompress(payload, flag)
    key = headers = None
    if properties is not None:
        parsed = decode_properties(properties)
        key, headers = parsed.key, parsed.headers or None
    return Message(
        where.topic,
        payload,
        None if tag is None else _text(tag, offset),
        key,
        headers,
        where.partition,
        offset,
        next_offset,
        message_id,
    )


def _text(tag: bytes, offset: int) -> str:
    try:
        return tag.decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"the tag of the record at offset {offset} is no UTF-8") from error


def decode_messages(data: bytes, base: int, where: TopicPartition, out: list[Message]) -> int:
    """Append every whole message of ``data`` to ``out``, verified; return where to read on.

    Args:
        data: Log bytes that begin at a record boundary.
        base: Offset of the first byte of ``data``.
        where: Put into every message.
        out: Receives the messages in rising order of offsets.

    Raises:
        CorruptData: A record is damaged; ``out`` holds every message before it.
    """
    topic, partition = where
    tags: dict[bytes, str] = {}
    position = 0
    while True:
        position = decode_common(data, position, base, topic, partition, tags, out)
        if len(data) - position < RECORD_HEADER_BYTES:
            break
        length = RECORD_HEADER.unpack_from(data, position)[0]
        end = position + RECORD_HEADER_BYTES + length
        records: list[Record] = []
        read_to = decode_into(data[position:end], base + position, records)
        out += [to_message(where, record) for record in records]
        if read_to == base + position:
            break  # the record goes on in the next chunk
        position = read_to - base
    return base + position


class Decoder:
    """Turns chunks of one partition into messages; joins records that two chunks share.

    Attributes:
        error: A record is damaged. The messages before it were returned; there are no more.
    """

    def __init__(self, where: TopicPartition) -> None:
        self.error: CorruptData | None = None
        self._where = where
        self._rest = b""  # an incomplete record at the end of the last chunk

    def decode(self, chunk: Chunk) -> list[Message]:
        """Return the messages that ``chunk`` completes, verified; see also ``error``."""
        messages: list[Message] = []
        if self.error is None:
            try:
                if chunk.offsets is None:
                    self._decode_raw(chunk, messages)
                else:
                    self._decode_filtered(chunk, chunk.offsets, messages)
            except CorruptData as error:
                self.error = error
        return messages

    def _decode_raw(self, chunk: Chunk, out: list[Message]) -> None:
        base = chunk.offset - len(self._rest)
        data = self._rest + chunk.body if self._rest else chunk.body
        end = decode_messages(data, base, self._where, out)
        self._rest = data[end - base :] if end - base < len(data) else b""
        if self._rest and chunk.at_end:
            raise CorruptData(
                f"{self._where}: the record at offset {end} claims to go on beyond the end of what "
                f"is stored, {chunk.next_offset}",
                details={"offset": end},
            )

    def _decode_filtered(self, chunk: Chunk, offsets: Sequence[int], out: list[Message]) -> None:
        """Decode records picked by the broker: whole ones, each with an offset of its own."""
        found: list[Message] = []
        try:
            end = decode_messages(chunk.body, 0, self._where, found)
        except CorruptData as error:
            at = offsets[len(found)] if len(found) < len(offsets) else chunk.offset
            raise CorruptData(
                f"{self._where}: the record at offset {at} is damaged: {error}",
                details={"offset": at},
            ) from error
        finally:
            # Fewer offsets than records: what has none is not delivered, see below.
            out += [
                message._replace(
                    offset=offset, next_offset=offset + message.next_offset - message.offset
                )
                for message, offset in zip(found, offsets, strict=False)
            ]
        if len(found) != len(offsets) or end != len(chunk.body):
            raise CorruptData(
                f"{self._where}: an answer for offset {chunk.offset} has {len(offsets)} offsets "
                f"for {len(found)} records and {len(chunk.body) - end} bytes behind them",
                details={"offset": chunk.offset},
            )
