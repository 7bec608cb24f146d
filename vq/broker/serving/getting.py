"""GET: a fetch session of one partition, which ends with its answer.

It waits, filters and reads as every other one. In here is what is its own: the form of its answer,
``min_bytes``, and the place of an archive instead of bytes.
"""

from vq.broker.base.session import Session
from vq.broker.partition.channel import Channel
from vq.broker.partition.places import check_epoch, last_epoch
from vq.broker.partition.ranges import holding
from vq.broker.serving.fetch_answer import FetchAnswer, FetchWait, reply
from vq.broker.serving.fetched_partition import FetchedPartition
from vq.broker.serving.fetching import ServedSession, ServedSessions
from vq.broker.serving.reach import COPY_READERS, READERS
from vq.broker.serving.reading import FILTER_SCAN_BYTES
from vq.errors import VqError
from vq.message_filter import Filter
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId


def get(
    fetches: ServedSessions, session: Session, request_id: RequestId, header: wire.GetRequest
) -> None:
    """GET: read bytes, now or when there are some."""
    GetSession(fetches, session, header).begin(request_id, header)


class GetAnswer(FetchAnswer):
    """The answer to a GET: one result, or an error."""

    __slots__ = ("_error", "_got")

    may_be_empty = False

    def __init__(self) -> None:
        super().__init__()
        self._error: VqError | None = None
        self._got: wire.GetResponse | None = None

    def add(
        self,
        fetched: FetchedPartition,
        channel: Channel,
        next_offset: int,
        slices: list[memoryview],
        offsets: list[int],
    ) -> None:
        """See ``FetchAnswer``. It tells of the range that has the offset."""
        part = holding(channel, fetched.offset)
        filtered = bool(fetched.wanted)
        self._got = wire.GetResponse(
            offset=fetched.offset,
            next_offset=next_offset,
            high_watermark=part.high_watermark,
            log_start_offset=part.start_offset,
            epoch=part.read_epoch,
            filtered=filtered,
            offsets=offsets,
            last_epoch=0 if filtered else last_epoch(part, next_offset),
        )
        self.results = 1
        self.parts += slices
        self.size += sum(map(len, slices))

    def name_archive(self, url: str, start: int, end: int, size: int) -> None:
        """Tell where an archive is."""
        assert self._got is not None
        self._got.archive_url, self._got.archive_bytes = url, size
        self._got.archive_start, self._got.archive_end = start, end

    def add_error(self, handle: int, offset: int, error: VqError) -> None:
        """See ``FetchAnswer``."""
        self._error, self.results = error, 1

    def send(self, session: Session, request_id: RequestId) -> None:
        """See ``FetchAnswer``."""
        if self._error is not None:
            session.refuse(request_id, self._error)
        elif self._got is not None:
            reply(session, request_id, self._got, self.parts)


class GetSession(ServedSession):
    """One GET. No other request knows it. What bounds reads bounds its memory, but for filters."""

    __slots__ = ("_archives",)

    _new_answer = GetAnswer

    def __init__(self, fetches: ServedSessions, session: Session, header: wire.GetRequest) -> None:
        super().__init__(fetches, session, 0, COPY_READERS if header.from_copy else READERS)
        self._archives = header.archives and not (header.tags or header.where)

    def begin(self, request_id: RequestId, header: wire.GetRequest) -> None:
        """Answer now, or when there is something to tell."""
        waiting = self._wait(request_id, header)
        item = wire.FetchPartition(
            handle=1,
            offset=header.offset,
            max_bytes=header.max_bytes,
            epoch=header.epoch,
            validate=header.validate,
            topic=header.topic,
            partition=header.partition,
            topic_id=header.topic_id,
            at_once=waiting.timed_out,
            last_epoch=header.last_epoch,
        )
        try:
            wanted = Filter.of_request(header.tags, header.where)
            fetched = self._fetched(item.handle, wanted, 0)
        except VqError as error:
            self._answer.add_error(item.handle, item.offset, error)
        else:
            if not fetched.wanted:
                fetched.min_bytes = max(1, min(header.min_bytes, waiting.max_bytes))
            self._join(fetched, item)
        try:
            self._begin(waiting)
        except Exception:
            self.cancel()  # whoever called this answers
            raise

    def _expire(self, waiting: FetchWait) -> None:
        for fetched in self.partitions.values():
            fetched.at_once = True
            if fetched not in self._cold:
                fetched.wake()
        super()._expire(waiting)

    def _read(self, fetched: FetchedPartition, room: int) -> bool:
        return (self._archives and self._named(fetched)) or super()._read(fetched, room)

    def _scans_on(self, waiting: FetchWait) -> bool:
        """Whoever asks for little still comes on by a whole step."""
        return not waiting.timed_out or any(
            fetched.position - fetched.offset < FILTER_SCAN_BYTES for fetched in self._scans
        )

    def _named(self, fetched: FetchedPartition) -> bool:
        """Answer with the place of the archive that has the bytes; False: they are to be sent.

        Not of a block whose end readers must not see yet.
        """
        if fetched.failure is not None:
            return False
        try:
            part = fetched.readable()
            check_epoch(part, fetched.offset, fetched.last_epoch)
            block = None if part.log is None else part.log.reader.block_at(fetched.offset)
        except VqError:
            return False  # ``_read`` meets it, too
        archive = None if block is None else block.archive
        if archive is None or not archive.url or archive.end_offset > part.read_limit:
            return False
        self._tell(fetched, fetched.offset, [])
        assert isinstance(self._answer, GetAnswer)
        self._answer.name_archive(
            archive.url, archive.start_offset, archive.end_offset, archive.zip_bytes
        )
        return True

    def _send(self, waiting: FetchWait) -> None:
        super()._send(waiting)
        self.cancel()

    def _forget(self) -> None:
        pass
