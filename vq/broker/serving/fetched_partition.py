"""One partition of a fetch session: what was asked for, and whether there is something to tell.

In here: when it is looked at, when it is parked, and what is checked before it is read. Not in
here: the answer, which a session gathers from all its partitions (``fetching``).
"""

from typing import Protocol

from vq import limits
from vq.broker.base.parked import Parked
from vq.broker.partition.channel import Channel
from vq.broker.partition.cold_reads import Tries
from vq.broker.partition.places import check_epoch
from vq.broker.partition.ranges import holding
from vq.broker.serving.reach import Reach
from vq.broker.serving.reading import check_boundary
from vq.errors import OffsetOutOfRange, VqError
from vq.message_filter import Filter
from vq.remoting import wire_pb2 as wire
from vq.store.archive.archived_file import NotInMemory
from vq.store.log.log import Log


class Fetching(Protocol):
    """The session of a partition; in practice ``fetching.ServedSession``.

    Attributes:
        partitions: By handle.
        reach: How far its reads go.
    """

    partitions: "dict[int, FetchedPartition]"
    reach: Reach

    def ready(self, fetched: "FetchedPartition") -> None:
        """There is something to tell of a partition."""
        ...


class FetchedPartition:
    """One partition of a session: asked for and parked, ready, being looked up; or answered.

    Attributes:
        at_once: The client wants an answer also when there is nothing to read.
        channel: None while it is looked up.
        offset: What the client asked for last.
        position: Where to look for data; beyond ``offset`` when a filter picked nothing so far.
        failure: An error to be told instead of data.
        is_filtered: A filter picks what is wanted of it.
        validate, last_epoch: The offset, and the epoch of what was read before it, are to be
            checked, before an answer, while it is ``unchecked``.
        size: What it counts for in the bounds of its session.
        min_bytes: It waits for so many.
        told_deleted: Before which offset a copy was told to delete, see ``Reach.deleted``.
        topic: Of the partition, as the client asked for it.
        max_bytes: So many are told of it before it is asked for again.
        revoked: The client may not read it any more; told when it asks again, or waits.
        tries: How often bytes were fetched for it that were not in memory when they should be;
            None: never.
        warm: The bytes from this offset on were brought into memory; -1: none were.
        watch_above: A copy also wants an answer when the high watermark is above this; 0: it does
            not.
    """

    __slots__ = (
        "_log",
        "_parked_in",
        "at_once",
        "channel",
        "epoch",
        "failure",
        "handle",
        "is_filtered",
        "last_epoch",
        "max_bytes",
        "min_bytes",
        "offset",
        "position",
        "revoked",
        "session",
        "size",
        "told_deleted",
        "topic",
        "tries",
        "validate",
        "wanted",
        "warm",
        "watch_above",
    )

    def __init__(self, session: Fetching, handle: int, wanted: Filter, size: int) -> None:
        self.session = session
        self.handle = handle
        self.wanted = wanted
        self.is_filtered = bool(wanted)
        self.size = size
        self.min_bytes = 1
        self.told_deleted = 0
        self.channel: Channel | None = None
        self.topic = ""
        self.failure: VqError | None = None
        self.revoked: VqError | None = None
        self._log: Log | None = None  # that was read last
        self._parked_in: tuple[Parked, ...] = ()

    def ask(self, item: wire.FetchPartition) -> None:
        """Take what the client wants to read next."""
        self.unpark()
        if self.channel is not None:
            self.failure = self.revoked  # one of the look-up stays, to be told now
        self.offset = self.position = item.offset
        self.warm = -1
        self.tries: Tries | None = None
        self.max_bytes = min(item.max_bytes or limits.FETCH_BYTES_MAX, limits.FETCH_BYTES_MAX)
        self.epoch = item.epoch
        self.validate = item.validate
        self.last_epoch = item.last_epoch
        self.at_once = item.at_once
        self.watch_above = item.watch_above

    @property
    def unchecked(self) -> bool:
        """Whether the log is to be looked at before anything is told; see ``check``."""
        return self.validate or self.last_epoch > 0

    def may_go_on(self, offset: int, size: int) -> bool:
        """Whether it need not be asked for again, after so many bytes before an offset were told.

        Enough is left of what it was asked for with, and it waits then: with more to read, or with
        news without bytes, one request would have thousands of answers in one turn of the loop.
        What a filter or an error needs is asked anew.
        """
        left = self.max_bytes - size - limits.FETCH_ANSWER_BYTES
        is_simple = not (self.is_filtered or self.at_once or self.watch_above)
        if left < limits.FETCH_AGAIN_BYTES or not is_simple or self.channel is None:
            return False
        return self.session.reach.limit(self.channel) <= offset

    def go_on(self, offset: int, size: int) -> None:
        """Be asked for the next bytes, with what is left."""
        self.offset = self.position = offset
        self.max_bytes -= size + limits.FETCH_ANSWER_BYTES
        self.look()

    def found(self, channel: Channel | VqError) -> None:
        """Go on once the look-up has ended."""
        if self.session.partitions.get(self.handle) is not self:
            return  # removed meanwhile
        if isinstance(channel, VqError):
            self.failure = channel
            self.session.ready(self)
        else:
            self.channel = channel
            self.look()

    def look(self) -> None:
        """Become ready if there is something to tell; park until there is."""
        if self.failure is not None:
            self.session.ready(self)
            return
        if self.channel is None:
            return
        try:
            part = self.readable()
        except NotInMemory:
            pass  # whoever answers has it brought there
        except VqError as error:
            self.failure = error
        else:
            reach = self.session.reach
            if part is self.channel:  # not of an earlier range, which ended long ago
                reach.asked(part, self.offset)
            is_due = self.at_once or self.unchecked or self.is_news_due
            if reach.limit(part) < self.position + self.min_bytes and not is_due:
                self._parked_in = reach.park(part, self, watches=self.watch_above > 0)
                return
        self.session.ready(self)

    @property
    def is_news_due(self) -> bool:
        """Whether the high watermark alone is worth an answer, or what was deleted."""
        channel = self.channel
        return channel is not None and (
            0 < self.watch_above < channel.high_watermark
            or self.session.reach.deleted(channel) > self.told_deleted
        )

    def check(self) -> None:
        """Return if the log has what was read before the offset, and a record begins there.

        Raises:
            VqError: It is not so; or nothing can be read there.
        """
        part = self.readable()
        check_epoch(part, self.offset, self.last_epoch)  # tells more than no boundary
        if self.validate and part.log is not None:
            check_boundary(part, part.log, self.offset)
        self.validate, self.last_epoch = False, 0

    def readable(self) -> Channel:
        """Return the channel of the range to read from now.

        Raises:
            VqError: This group or this topic has nothing to read there.
        """
        channel = self.channel
        assert channel is not None
        reach = self.session.reach
        reach.check(channel, self.epoch)
        if channel.older:
            channel = holding(channel, self.position)
        try:
            reach.check_range(channel, self.position)
        except OffsetOutOfRange:
            check_epoch(channel, self.position, self.last_epoch)  # this tells more
            raise
        if channel.log is not self._log:
            if self._log is not None:
                reach.check_next_log(channel, self.position)
            self._log = channel.log
        return channel

    @property
    def waits(self) -> bool:
        """Whether it waits until there is something to read."""
        return bool(self._parked_in)

    def wake(self) -> None:
        """See ``parked.Woken``. Whoever answers looks; a filter would take a step of a turn."""
        self.unpark()
        if self.is_filtered or self.channel is None:
            self.look()
        else:
            self.session.ready(self)

    def unpark(self) -> None:
        """Wait for nothing any more."""
        for parked in self._parked_in:
            parked.pop(self, None)
        self._parked_in = ()
