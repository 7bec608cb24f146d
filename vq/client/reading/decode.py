"""From fetched bytes to messages.

The common kinds of records are read by the loop in ``store.records.codec``; everything else, errors
included, by ``store.records.record.decode_into``, which is the reference. A test holds the two
against each other.

A compressed record may be a thousand times smaller than its message. So a chunk is decoded in
steps: no more than ``STEP_BYTES`` are decompressed before the user is done with the last step.
"""

from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from vq import limits
from vq.client.reading.chunk import NO_REST, Chunk, Rest
from vq.errors import CorruptData, FilterFailed
from vq.message_filter import ALL, Filter
from vq.model import Message, TopicPartition
from vq.store.records.codec import decode_common
from vq.store.records.compression import decompress
from vq.store.records.format import (
    CONTROL_BYTES,
    CONTROL_MARK,
    CONTROL_MARK_AT,
    FLAG_COMPRESSION_MASK,
    FLAG_COMPRESSION_SHIFT,
    FLAG_CONTROL,
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    RECORD_LENGTH_MAX,
    decode_control,
)
from vq.store.records.record import Record, bytes_needed, decode_into, decode_properties

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
#: A record that two chunks share is decoded by itself if the second one has this many times its
#: bytes. Otherwise both are joined: the checksums of several records take less time together.
_ALONE_PART: Final = 64
_NOT_ALONE: Final = FLAG_CONTROL | FLAG_COMPRESSION_MASK
#: A step of decoding ends with the message that brings what was decompressed to this size.
STEP_BYTES: Final = 4 * limits.MIB


def to_message(
    partition: TopicPartition, record: Record, append_time_ms: int | None = None
) -> Message:
    """Return a record, of a batch that was appended at a time, as a user sees it.

    Raises:
        CorruptData: Its payload cannot be decompressed, or its properties or tag cannot be parsed.
    """
    offset, next_offset, message_id, flag, tag, properties, payload = record
    if flag & FLAG_COMPRESSION_MASK:
        payload = decompress(payload, (flag & FLAG_COMPRESSION_MASK) >> FLAG_COMPRESSION_SHIFT)
    key = headers = None
    if properties is not None:
        parsed = decode_properties(properties)
        key, headers = parsed.key, parsed.headers or None
    return Message(
        partition.topic,
        payload,
        None if tag is None else _text(tag, offset),
        key,
        headers,
        partition.partition,
        offset,
        next_offset,
        message_id,
        append_time_ms,
    )


def _text(tag: bytes, offset: int) -> str:
    try:
        return tag.decode()
    except UnicodeDecodeError as error:
        raise CorruptData(f"the tag of the record at offset {offset} is no UTF-8") from error


def decode_messages(
    data: bytes,
    base: int,
    partition: TopicPartition,
    out: list[Message],
    *,
    start: int = 0,
    times: list[int | None] | None = None,
) -> tuple[int, bool]:
    """Append the whole messages of ``data`` from ``start`` on to ``out``, verified.

    Args:
        data: Log bytes that begin at a record boundary.
        base: Offset of the first byte of ``data``.
        partition: Put into every message.
        out: Receives the messages in rising order of offsets.
        start: Position in ``data`` of the record to begin with.
        times: See ``codec.python_decode_common``.

    Returns:
        The position to go on at, and whether there are messages left, because ``STEP_BYTES`` were
        decompressed.

    Raises:
        CorruptData: A record is damaged; ``out`` holds every message before it.
    """
    topic, number = partition
    tags: dict[bytes, str] = {}
    position = start
    room = [STEP_BYTES]
    times = [None] if times is None else times
    while True:
        position = decode_common(data, position, base, topic, number, tags, out, times, room)
        if len(data) - position < RECORD_HEADER_BYTES:
            break
        if room[0] <= 0:
            return position, True
        length = RECORD_HEADER.unpack_from(data, position)[0]
        end = position + RECORD_HEADER_BYTES + length
        if end > len(data) and length <= RECORD_LENGTH_MAX:
            break  # the record goes on in the next chunk
        records: list[Record] = []
        read_to = decode_into(data[position:end], base + position, records)
        for record in records:
            try:
                message = to_message(partition, record, times[0])
            except CorruptData as error:
                error.details.setdefault("offset", record.offset)
                raise
            out.append(message)
            room[0] -= len(message.content)
        if not records:  # a control record of a later version: it may begin a batch
            times[0] = None
        position = read_to - base
    return position, False


def _ends_with_control(data: bytes, end: int) -> bool:
    """Whether what lies before ``end`` is the control record of a batch with messages."""
    start = end - CONTROL_BYTES
    if start < 0 or not data.startswith(CONTROL_MARK, start + CONTROL_MARK_AT):
        return False
    try:
        header = decode_control(data, start)
    except CorruptData:  # the bytes only look like one
        return False
    return header is not None and header.record_count > 0


class ChunkDecoder(Protocol[T_co]):
    """Takes the chunks of one partition apart, in steps; joins records that two chunks share."""

    @property
    def error(self) -> CorruptData | None:
        """A record is damaged. What precedes it was returned; there is no more."""
        ...

    @property
    def has_more(self) -> bool:
        """The chunk has something that was not returned yet: call ``more``."""
        ...

    @property
    def rest(self) -> Rest:
        """What is kept of the chunks that ended."""
        ...

    @property
    def next_offset(self) -> int:
        """Behind what was returned, and behind the batches there that have nothing to return."""
        ...

    def begin(self, chunk: Chunk) -> None:
        """Have ``more`` return what ``chunk`` completes."""
        ...

    def more(self) -> Sequence[T_co]:
        """Return what the next step gives, which may be nothing."""
        ...

    def start_again(self) -> None:
        """Forget the error and what was not returned: the next chunk begins at ``next_offset``."""
        ...


class RawDecoder(Generic[T]):
    """A ``ChunkDecoder`` of raw bytes.

    Args:
        step: Takes data, the offset of their first byte, and the position of a record. Returns what
            a step gives, the position behind it, and whether the data have whole records left.
            Raises ``CorruptData`` if it gives nothing.
    """

    def __init__(self, step: Callable[[bytes, int, int], tuple[Sequence[T], int, bool]]) -> None:
        self.error: CorruptData | None = None
        self.has_more = False
        self._step = step
        self._data = b""
        self._base = 0  # offset of its first byte
        self._at = 0
        self._at_end = False

    @property
    def rest(self) -> Rest:
        """See ``ChunkDecoder``."""
        size = len(self._data) - self._at
        if not size or self.has_more or self.error is not None:
            return NO_REST
        return Rest(size, bytes_needed(memoryview(self._data)[self._at :]) - size)

    @property
    def next_offset(self) -> int:
        """See ``ChunkDecoder``."""
        return self._base + self._at

    def begin(self, chunk: Chunk) -> None:
        """See ``ChunkDecoder``."""
        rest = self._data[self._at :]
        self._data = rest + chunk.body if rest else chunk.body
        self._base, self._at = chunk.offset - len(rest), 0
        self._at_end = chunk.at_end
        self.has_more = True

    def more(self) -> Sequence[T]:
        """See ``ChunkDecoder``."""
        found: Sequence[T] = ()
        self.has_more = False
        try:
            found, self._at, self.has_more = self._step(self._data, self._base, self._at)
        except CorruptData as error:
            self.error = error
        else:
            if self._at_end and not self.has_more and self._at < len(self._data):
                self.error = _cut_short(self.next_offset, self._base + len(self._data))
        return found

    def start_again(self) -> None:
        """See ``ChunkDecoder``."""
        self._base, self._data, self._at = self.next_offset, b"", 0
        self.error, self.has_more = None, False


def _cut_short(offset: int, end: int, name: str = "") -> CorruptData:
    return CorruptData(
        f"{name}the record at offset {offset} claims to go on beyond the end of what is stored, "
        f"{end}",
        details={"offset": offset},
    )


class Decoder:
    """Turns chunks of one partition into messages, verified: a ``ChunkDecoder``.

    Attributes:
        error, has_more: See ``ChunkDecoder``.
    """

    def __init__(
        self,
        partition: TopicPartition,
        append_time_ms: int | None = None,
        *,
        wanted: Filter = ALL,
    ) -> None:
        """Make a decoder; the append time is that of the batch the first chunk begins in.

        ``wanted``: what it does not take is not returned, whatever the broker sent.
        """
        self.error: CorruptData | None = None
        self.has_more = False
        self._partition = partition
        self._rest = b""  # an incomplete record at the end of the last chunk
        self._chunk: Chunk | None = None
        self._data = b""  # the rest and the chunk; or the chunk, and in
        self._shared = b""  # this the record that begins with the rest
        self._at = 0  # position in the data of what comes next; below 0: it is the shared record,
        self._count = 0  # and how many messages of a filtered chunk come before that
        self._behind_last = 0  # where the message ends that was looked at last
        self._check = wanted.check
        self._checked: Sequence[Message] = ()  # those of the last step, with those left out
        self._times = [append_time_ms]  # append time of the batch at ``_at``
        # All of them as they were before the last step.
        self._step: tuple[int, int, int | None] = 0, 0, None

    @property
    def append_time_ms(self) -> int | None:
        """Append time of the batch that was decoded last; None: not known."""
        return self._times[0]

    @property
    def rest(self) -> Rest:
        """What is kept of the chunks that ended."""
        size = len(self._rest)
        return Rest(size, bytes_needed(self._rest) - size) if size else NO_REST

    @property
    def read_to(self) -> int:
        """Where the next record begins, once the chunk has no more messages.

        That is behind the last message, and also behind batches without any. It is where a batch
        begins of which only the control record is here: a reader that begins there knows its time.
        """
        chunk = self._chunk
        assert chunk is not None
        end = chunk.next_offset - len(self._rest)
        if (
            chunk.offsets is None
            and self._behind_last != end  # whatever that message ends with
            and _ends_with_control(self._data, self._at)
        ):
            return end - CONTROL_BYTES
        return end

    @property
    def next_offset(self) -> int:
        """See ``ChunkDecoder``."""
        chunk = self._chunk
        if chunk is None:
            return self._behind_last
        if chunk.offsets is None:
            here = self._base(chunk) + self._at
        else:
            is_done = self.error is None and not self.has_more
            here = chunk.next_offset if is_done else chunk.offset
        return max(here, self._behind_last)

    def start_again(self) -> None:
        """See ``ChunkDecoder``."""
        self._behind_last = self.next_offset
        self.end_chunk()
        self._rest = b""
        self.error, self.has_more = None, False

    def decode(self, chunk: Chunk) -> list[Message]:
        """Return the first messages that ``chunk`` completes, verified; see also ``has_more``."""
        self.begin(chunk)
        return self.more()

    def begin(self, chunk: Chunk) -> None:
        """Have ``more`` return the messages that ``chunk`` completes."""
        self._chunk = chunk
        self._data, self._shared = chunk.body, b""
        self._at = self._count = 0
        self.has_more = True
        if chunk.offsets is None and self._rest:
            self._join(self._rest, chunk.body)

    def _join(self, rest: bytes, body: bytes) -> None:
        """Have the record whole that the two share: alone if it is small, so that ``body`` is not
        copied.

        A control record, and one that is compressed, is decoded with what is around it.
        """
        head = rest + body[:RECORD_HEADER_BYTES]
        if len(head) >= RECORD_HEADER_BYTES:
            length, _, _, flag = RECORD_HEADER.unpack_from(head)
            size = RECORD_HEADER_BYTES + length
            if size * _ALONE_PART <= len(body) and not flag & _NOT_ALONE:
                self._shared = rest + body[: size - len(rest)]
                self._at = -len(rest)
                return
        self._data = rest + body

    def more(self) -> list[Message]:
        """Return the next messages of the chunk; see also ``error`` and ``has_more``."""
        messages: list[Message] = []
        chunk = self._chunk
        is_due, self.has_more = self.has_more, False
        if not is_due or self.error is not None or chunk is None:
            return messages
        self._step = self._at, self._count, self._times[0]
        try:
            if chunk.offsets is None:
                self._decode_raw(chunk, messages)
            else:
                self._decode_filtered(chunk, chunk.offsets, messages)
        except CorruptData as error:
            self.error = error
        if messages:
            self._behind_last = messages[-1].next_offset
            if self._check is not None:
                return self._passing(messages, self._check)
        return messages

    def _passing(
        self, messages: Sequence[Message], check: Callable[[Message], bool]
    ) -> list[Message]:
        """Return those that pass; up to the first one that the filter of the application fails for.

        Raises:
            FilterFailed: That is the first of all.
        """
        self._checked = messages
        passing: list[Message] = []
        for index, message in enumerate(messages):
            try:
                if check(message):
                    passing.append(message)
            except FilterFailed:
                if not index:
                    raise
                self._go_back(messages, index)
                self._behind_last = messages[index - 1].next_offset
                break
        return passing

    def take_back(self, messages: Sequence[Message], index: int) -> None:
        """Have those from ``index`` on of the ``messages`` returned last returned once more."""
        if self._check is not None:
            offset = messages[index].offset
            messages = self._checked
            index = sum(each.offset < offset for each in messages)
        self._go_back(messages, index)

    def _go_back(self, messages: Sequence[Message], index: int) -> None:
        chunk = self._chunk
        assert chunk is not None
        self._at, self._count, self._times[0] = self._step
        if index:
            self._times[0] = messages[index - 1].append_time_ms
        if chunk.offsets is None:
            if index:
                self._at += messages[index - 1].next_offset - (self._base(chunk) + self._at)
        else:
            self._at += sum(each.next_offset - each.offset for each in messages[:index])
            self._count += index
        self.error = None
        self.has_more = True

    def end_chunk(self) -> None:
        """Keep nothing of the chunk but the beginning of a record that goes on in the next one."""
        self._chunk = None
        self._data = self._shared = b""
        self._checked = ()

    def _base(self, chunk: Chunk) -> int:
        """Return the offset of the first byte of ``_data``."""
        return chunk.offset + len(chunk.body) - len(self._data)

    def _decode_raw(self, chunk: Chunk, out: list[Message]) -> None:
        data, base, start = self._data, self._base(chunk), self._at
        if start < 0:
            decode_messages(self._shared, base + start, self._partition, out, times=self._times)
            start += len(self._shared)
        end, self.has_more = decode_messages(
            data, base, self._partition, out, start=start, times=self._times
        )
        self._at = end
        if self.has_more:
            return
        self._rest = data[end:] if end < len(data) else b""
        if self._rest and chunk.at_end:
            raise _cut_short(base + end, chunk.next_offset, f"{self._partition}: ")

    def _decode_filtered(self, chunk: Chunk, offsets: Sequence[int], out: list[Message]) -> None:
        """Decode records picked by the broker: whole ones, each with an offset of its own."""
        found: list[Message] = []
        first = self._count
        try:
            end, self.has_more = decode_messages(
                chunk.body, 0, self._partition, found, start=self._at
            )
        except CorruptData as error:
            count = first + len(found)
            at = offsets[count] if count < len(offsets) else chunk.offset
            raise CorruptData(
                f"{self._partition}: the record at offset {at} is damaged: {error}",
                details={"offset": at},
            ) from error
        finally:
            # Fewer offsets than records: what has none is not delivered, see below.
            out += [
                message._replace(
                    offset=offset, next_offset=offset + message.next_offset - message.offset
                )
                for message, offset in zip(found, offsets[first:], strict=False)
            ]
        self._at = end
        self._count = count = first + len(found)
        if count > len(offsets) or (
            not self.has_more and (count != len(offsets) or end != len(chunk.body))
        ):
            self.has_more = False
            raise CorruptData(
                f"{self._partition}: an answer for offset {chunk.offset} has {len(offsets)} "
                f"offsets for {count} records and {len(chunk.body) - end} bytes behind them",
                details={"offset": chunk.offset},
            )
