"""A partition of a shared group: its messages by their numbers. Loop-bound."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from vq.client.cluster import ClusterClient
from vq.client.consumer.shared.desk import SeenCut
from vq.client.reading.damage import bad_record_in
from vq.client.reading.decode import Decoder
from vq.client.reading.forward import READ_BYTES
from vq.client.reading.last_read import LastRead
from vq.client.reading.nodes import Nodes
from vq.client.reading.partition_reader import PartitionReader
from vq.errors import (
    Busy,
    CorruptData,
    LogTruncated,
    OffsetNotBoundary,
    OffsetOutOfRange,
    PartitionQuarantined,
    VqError,
)
from vq.limits import KIB
from vq.model import Message, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import GetRequest

#: Places behind what was read last; what follows it is mostly read next.
_PLACES_MAX: Final = 64
#: A read is for about as many bytes as its messages have, by the last ones; at least for so many.
_READ_BYTES_MIN: Final = 4 * KIB
#: So often in a row a read may bring nothing of what is there, each time after a second.
_IDLE_MAX: Final = 15


class NumbersUnknown(CorruptData):
    """No broker knows the numbers of a partition, and a shared group goes by them."""


class NumberGone(OffsetOutOfRange):
    """The message of a number is not kept any more."""


class NumberMissing(OffsetOutOfRange):
    """The partition ends before the message of a number, which somebody has seen there."""


class RecordUnreadable(CorruptData):
    """A record that no node has so that it can be read; what precedes it was yielded.

    Attributes:
        offset: Where it is.
        damage: What is wrong with it.
    """

    def __init__(self, offset: int, damage: VqError) -> None:
        super().__init__(str(damage), details=damage.details)
        self.offset = offset
        self.damage = damage


class SourceReader:
    """See the module.

    Args:
        cluster: Where.
        partition: Which.
        nodes: From which nodes it is read.

    Attributes:
        partition: Which.
        topic_id: Of its topic.
        begin: The number with which the group begins, if it has not begun.
        end: The number of the first message that is not there, as last looked up.
        by_position: Reads it by position.
        cut: That the partition has lost its end, which the journal does not know yet.
        each_bytes: A message has about so many, by those that were read last.
    """

    def __init__(self, cluster: ClusterClient, partition: TopicPartition, nodes: Nodes) -> None:
        self.partition: Final = partition
        self.topic_id = ""
        self.begin = self.end = 0
        self._last_read = LastRead()
        self.by_position: Final = PartitionReader(
            cluster, partition, nodes=nodes, last_read=self._last_read
        )
        self.cut: SeenCut | None = None
        self._cuts = 0  # the journal knows of so many
        self._cursor = 0  # from here on the group was given no message, as the journal has told
        self._is_end_old = True  # it may be of before a cut that is known
        self._ends_at = 0
        self._places: dict[int, int] = {}  # offsets by the numbers of messages
        self.each_bytes = float(KIB)

    async def open(self, *, latest: bool, committed: int | None) -> None:
        """Look up where the group begins, if it has not begun.

        Args:
            latest: At the end, and not at the first message that is kept.
            committed: At this offset; None: the group has committed none.

        Raises:
            NumbersUnknown: Numbers are not known here.
            VqError: A broker does not answer.
        """
        await self.look()
        self.topic_id = self.by_position.topic_id
        self.begin = self.end
        if committed is not None or not latest:
            bounds = await self.by_position.bounds()
            at = bounds.earliest if committed is None else committed
            at = min(max(at, bounds.earliest), bounds.latest)
            begin = await self.by_position.number_at(at)
            if begin is None:
                raise self._unknown()
            self.begin = min(begin, self.end)

    async def look(self) -> bool:
        """Look up the end; return whether there is more than before.

        Raises:
            NumbersUnknown: Numbers are not known here.
            VqError: A broker does not answer.
        """
        cuts, known = self._cuts, max(self._cursor, 0 if self._is_end_old else self.end)
        offset, number = await self.by_position.end()
        if number is None:
            raise self._unknown()
        is_more = number > self.end
        if number < known:  # so many were there before this look
            self._see_cut(await self._cut_before(offset, number), cuts)
        if number < self.end or offset < self._ends_at:
            self._forget()
        if cuts == self._cuts:
            self._is_end_old = False
        self.begin, self.end, self._ends_at = min(self.begin, number), number, offset
        self._note(number, offset)
        return is_more

    def know_cuts(self, cursor: int, cuts: int) -> None:
        """Take what the journal tells: how far the group is, and how often the log was cut."""
        self._cursor = cursor
        if cuts != self._cuts:
            self._cuts, self.cut, self._is_end_old = cuts, None, True
            self.end = min(self.end, max(self.begin, cursor))
            self._forget()

    def _see_cut(self, number: int, cuts: int) -> None:
        """Note that what was there from a message on is gone, to be told to the journal."""
        if cuts == self._cuts:
            before = number if self.cut is None else self.cut.number
            self.cut = SeenCut(min(number, before), cuts)

    async def _parted(self, error: LogTruncated, cuts: int) -> None:
        """Note where the log has become another one."""
        self._see_cut(await self._number_where_it_parts(error), cuts)
        self._forget()

    async def _number_where_it_parts(self, error: LogTruncated) -> int:
        bounds = await self.by_position.bounds()
        at = max(int(error.details["parts_at"]), bounds.earliest)
        number = await self.by_position.number_at(at)
        if number is None:
            raise self._unknown() from error
        return number

    async def _cut_before(self, offset: int, number: int) -> int:
        """Return from which message on a log is another one that ends before where it did.

        It is where the log parts from the last epoch that was read here before its last one. If
        none was, nobody here knows what it was before; then it is where the last one begins.
        """
        epoch = self._last_read.last(self.partition, self.by_position.group_at(offset))
        try:
            answer, _ = await self.by_position.get(GetRequest(offset=offset, max_bytes=1))
            if not 0 < epoch < answer.last_epoch:
                epoch = answer.last_epoch - 1
            if epoch > 0:
                request = GetRequest(offset=offset, max_bytes=1, last_epoch=epoch)
                await self.by_position.request(offset, Command.GET, request)
        except LogTruncated as error:
            return min(number, await self._number_where_it_parts(error))
        except OffsetOutOfRange:
            pass  # it was cut once more: the next look finds that
        return number

    async def until_more(self, wait_s: float) -> None:
        """Return once there may be more than when it was looked up, or after so long.

        Raises:
            LogTruncated: The log has lost its end since; that is told once.
            VqError: A broker does not answer.
        """
        cuts, at = self._cuts, self._ends_at
        try:
            if not self._last_read.epoch(self.partition, self.by_position.group_at(at), at):
                # The answer tells the epoch there. Without it, a log that is cut meanwhile and
                # then gets more than it lost looks like one that has grown.
                await self.by_position.get(GetRequest(offset=at, max_bytes=1))
            await self.by_position.get(GetRequest(offset=at, max_bytes=1), wait_s)
        except LogTruncated as error:
            await self._parted(error, cuts)
            raise
        except (OffsetOutOfRange, OffsetNotBoundary):
            await self.look()  # otherwise it would be asked there again
            raise

    def _forget(self) -> None:
        """Know of no places and no epochs: they may be of a log that was cut since."""
        self._places.clear()
        self._last_read.note(self.partition, "", 0, 0)

    def _note(self, number: int, offset: int) -> None:
        self._places.pop(number, None)
        self._places[number] = offset
        if len(self._places) > _PLACES_MAX:
            del self._places[next(iter(self._places))]

    async def read(self, first: int, messages: int) -> AsyncIterator[tuple[int, Sequence[Message]]]:
        """Go through messages, in steps: the number of the first one of each, and these.

        Raises:
            NumberGone: The first one is not kept; ``details["number"]`` is the first one that is.
            NumberMissing: The partition ends before it.
            RecordUnreadable: One can be read from no node; what precedes it was yielded.
            CorruptData: Some cannot be read now; the same.
            VqError: A broker does not answer.
        """
        cuts = self._cuts
        try:
            async for step in self._read(first, messages):
                yield step
        except LogTruncated as error:
            await self._parted(error, cuts)
            raise
        except (OffsetOutOfRange, OffsetNotBoundary):
            self._forget()
            raise

    async def _read(
        self, first: int, messages: int
    ) -> AsyncIterator[tuple[int, Sequence[Message]]]:
        offset = self._places.get(first)
        if offset is None:
            offset = await self.by_position.offset_at_number(first)
            found = None if offset is None else await self.by_position.number_at(offset)
            if offset is None or found is None:
                raise self._unknown()
            if found < first:
                raise self._missing(first, found)
            if found != first:
                raise NumberGone(
                    f"message {first} of {self.partition} is not kept any more; the first one that "
                    f"is has number {found}",
                    details={"number": found},
                )
        number, left = first, messages
        size = round(1.25 * self.each_bytes * messages)
        size = min(max(size, _READ_BYTES_MIN), READ_BYTES)
        idle = 0
        read = self.by_position.read(offset, Decoder(self.partition), size=size, wait_s=1.0)
        while left > 0:
            try:
                step = (await anext(read))[:left]
            except (CorruptData, PartitionQuarantined) as error:
                at = bad_record_in(error)  # what lies before it, if anything, is no message
                if at is not None and await read.is_bad_everywhere(at):
                    self._note(number, at)
                    raise RecordUnreadable(at, error) from error
                raise
            if step:
                each = (step[-1].next_offset - step[0].offset) / len(step)
                self.each_bytes += (each - self.each_bytes) / 4
                self._note(number + len(step), step[-1].next_offset)
                idle = 0
                yield number, step
                number, left = number + len(step), left - len(step)
            elif read.is_idle:
                # A master that has just begun to lead shows less than the one before it did. The
                # end it tells only once it knows it.
                _, end = await self.by_position.end()
                if end is None:
                    raise self._unknown()
                if end <= number:
                    raise self._missing(number, end)
                idle += 1
                if idle > _IDLE_MAX:
                    raise Busy(f"{self.partition} does not show message {number}; its end is {end}")

    async def number_of(self, offset: int) -> int:
        """Return the number of the message at an offset, to read on there.

        Raises:
            NumbersUnknown: It is not known.
            VqError: A broker does not answer.
        """
        number = await self.by_position.number_at(offset)
        if number is None:
            raise self._unknown()
        self._note(number, offset)
        return number

    def _missing(self, number: int, end: int) -> NumberMissing:
        return NumberMissing(
            f"{self.partition} ends at message {end}, before message {number}: it was cut after an "
            "unclean election or a power cut; what is sent next has these numbers",
            details={"number": end},
        )

    def _unknown(self) -> NumbersUnknown:
        return NumbersUnknown(
            f"no broker knows the numbers of the messages of {self.partition}, and a shared group "
            "goes by them: read it with another model, or have its messages sent to a new topic",
            details={"offset": 0},
        )
