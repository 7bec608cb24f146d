"""What of one channel may be read, and what a filter takes of it; OFFSETS and EPOCH_END."""

from collections.abc import Callable
from functools import partial
from typing import Final

from vq import limits
from vq.broker.base.session import Session
from vq.broker.partition.channel import Channel
from vq.broker.partition.cold_reads import Tries, read_again
from vq.broker.partition.partition_state import ChannelState
from vq.broker.partition.places import check_place
from vq.broker.partition.ranges import earliest, is_cut_short, log_begin, range_at
from vq.broker.standing.role import Role
from vq.errors import (
    Busy,
    CorruptData,
    NotMaster,
    OffsetOutOfRange,
    PartitionQuarantined,
    PartitionRangeElsewhere,
    PermissionRefused,
    StaleEpoch,
    UnknownTopic,
    VqError,
)
from vq.message_filter import Filter
from vq.model import PartitionState
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.shown import shown
from vq.store.archive.archived_file import NotInMemory
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.store.records.format import RECORD_HEADER, RECORD_HEADER_BYTES
from vq.store.records.record_filter import filter_records

#: What one step of a filtered read looks at. Bounds both the time the loop is held (about 2 ms) and
#: the offsets in one answer: their list must fit into a frame's header.
FILTER_SCAN_BYTES: Final = 128 * limits.KIB
#: An expression of many operands has steps that are up to so many times as short.
_COST_MAX: Final = 64

#: An OFFSETS waits so long for the end of a partition to be known; shorter than requests time out.
END_WAIT_S: Final = 1.5

assert FILTER_SCAN_BYTES // RECORD_HEADER_BYTES * 9 < limits.FRAME_HEADER_BYTES_MAX


def _try_again(
    channel: Channel,
    session: Session,
    request_id: RequestId,
    error: NotInMemory,
    tries: Tries,
    again: Callable[[], None],
) -> None:
    """Handle a request again once what it lacks is in memory, unless that was done too often."""
    try:
        tries.spend(error)
    except VqError as refusal:
        session.refuse(request_id, refusal)
    else:
        read_again(channel.context, session, error, again)


def cold(
    channel: Channel, offset: int, max_bytes: int, limit: int | None = None
) -> Callable[[], None] | None:
    """Return what must be called on a thread before such bytes are read; None: nothing.

    ``limit`` is where the read stops; None: where those of clients do.

    Raises:
        VqError: They cannot be read.
    """
    log = channel.log
    if limit is None:
        limit = channel.read_limit
    return None if log is None or offset >= limit else log.reader.cold(offset, max_bytes, limit)


def check_boundary(channel: Channel, log: Log, offset: int) -> None:
    """Return if a record starts at ``offset``.

    Raises:
        PartitionQuarantined: Damage keeps this from being told.
        VqError: As ``LogReader.check_boundary``.
    """
    try:
        log.reader.check_boundary(offset)
    except CorruptData as error:
        channel.context.suspect(channel, offset)
        raise PartitionQuarantined(f"{channel}: {error}") from error


def check_readable(channel: Channel, epoch: int, *, from_copy: bool = False) -> None:
    """Return if the channel may be read by somebody who knows ``epoch``.

    ``from_copy``: also where it is copied at this moment, from a master that the reader knows, or
    from a newer one.

    Raises:
        NotMaster: Another node leads the group, and this one may not answer instead of it; or it is
            not known yet which one does.
        StaleEpoch: The reader knows a newer master.
        UnknownTopic: The topic was deleted, and can be brought back.
        PermissionRefused: The topic is not readable.
        Busy: Its data directory does not answer: a read would hang.
        VqError: The channel is closing.
    """
    role = channel.role
    if channel.state is ChannelState.CLOSED:
        raise channel.why_refused()
    if role.follows:
        if not from_copy or not channel.copies.epoch or epoch > channel.copies.epoch:
            raise not_master(channel)
    elif epoch > role.epoch:
        raise channel.stale_epoch(epoch)
    elif not role.epoch and not role.shows:
        raise role.refusal or not_master(channel)
    if channel.placement.state is PartitionState.DELETED:
        raise UnknownTopic(f"topic {channel.partition.topic} was deleted")
    if not channel.settings.readable:
        raise PermissionRefused(f"topic {channel.partition.topic} is not readable")
    if channel.place.silent:
        check_answers(channel)


def check_answers(channel: Channel) -> None:
    """Return if the data directory of a partition answers.

    Raises:
        Busy: It does not: a read would hang.
    """
    if channel.place.silent:
        raise channel.place.to_raise() or Busy(f"the data directory of {channel} does not answer")


def not_master(channel: Channel) -> NotMaster:
    """Return the error for a read of a partition whose group another node leads."""
    role = channel.role
    return NotMaster(f"group {role.group} is led by {role.follows or 'no node'}, not by this one")


def not_followed(role: Role, node: str, epoch: int) -> VqError:
    """Return the error for a node that follows another epoch than the one in which we lead."""
    return (StaleEpoch if epoch > role.epoch else NotMaster)(
        f"node {shown(node)} follows epoch {epoch} of group {role.group}; this node leads in "
        f"epoch {role.epoch}",
        details={"epoch": role.epoch},
    )


def check_range(channel: Channel, offset: int) -> None:
    """Return if ``offset`` is in what is kept here, or just behind it while more may come.

    Raises:
        PartitionFailed: What is kept here could not be read at the start: it is unknown.
        Busy: The log that holds it, or will hold it, is being opened or prepared.
        PartitionQuarantined: It lies at the damage, behind which nothing is served, or where a
            range lacks its end that gets nothing more: a reader would wait there for ever.
        PartitionRangeElsewhere: Another group holds it; reading goes on there.
        OffsetOutOfRange: Nobody holds it; the details carry the valid range.
    """
    log, last = channel.log, channel.high_watermark
    if log is not None:
        status = log.status
        if not status.readable:
            status.check_readable()
        # What is stored here and not committed yet may have been read from the master before this.
        if status.end_offset > last:
            last = status.end_offset
    elif not channel.rules.read:
        raise channel.why_refused()
    elif offset < last:
        raise Busy(f"the log of {channel} is being opened")
    span = channel.span
    end = span.end if span is not None else None
    if channel.start_offset <= offset <= last and (end is None or offset < end):
        if log is not None and log.status.state is LogState.QUARANTINED:
            log.status.check_more(offset)
        if offset < last or not _lacks_end(channel):
            return
    if log is not None and _lacks_end(channel) and last <= offset < (end or 0):
        log.status.check_more(offset)
        raise PartitionQuarantined(
            f"[{last}, {end}) of {channel} is missing here: it was damaged or lost where the log "
            "was copied from, or this node led without it",
            details={"earliest": earliest(channel), "latest": last},
        )
    holder = channel.placement.span_at(offset)
    if holder is not None and holder.group != channel.context.group:
        raise PartitionRangeElsewhere(
            f"offset {offset} of {channel} is on group {holder.group}",
            details={"next_offset": offset, "group": holder.group},
        )
    if channel.unprepared:
        raise Busy(f"the log of {channel} is being prepared for a move")
    if log is not None:
        log.status.check_more(offset)
    raise OffsetOutOfRange(
        f"offset {offset} of {channel} is outside [{earliest(channel)}, {channel.high_watermark}]",
        details={"earliest": earliest(channel), "latest": channel.high_watermark},
    )


def _lacks_end(channel: Channel) -> bool:
    """Whether the range gets nothing more, and has not all that it should have.

    The range of a partition that was moved away is such a range for a master. A copy still gets it.
    """
    return channel.earlier or (bool(channel.role.epoch) and is_cut_short(channel))


_TELL_NO_END: Final = frozenset(
    {ChannelState.QUARANTINED, ChannelState.FAILED, ChannelState.UNREADABLE, ChannelState.CLOSED}
)


def epoch_end(
    channel: Channel,
    session: Session,
    request_id: RequestId,
    header: wire.EpochEndRequest,
    tries: Tries | None = None,
) -> None:
    """Answer an EPOCH_END."""
    tries, asked = tries or Tries(), channel
    channel, next_start = range_at(channel, earliest(channel) if header.new else header.end)
    log = channel.log
    response = wire.EpochEndResponse(
        epoch=channel.role.epoch,
        found=True,
        end_offset=channel.start_offset,
        log_start_offset=channel.start_offset,
        next_start=next_start,
    )
    try:
        if log is None or channel.state in _TELL_NO_END or log.state is LogState.QUARANTINED:
            if not next_start or channel.state is ChannelState.CLOSED:
                # A copy would cut what is missing here. It may be the only place that has it.
                raise Busy(
                    f"the log of {channel} is not whole here ({channel.state}): {channel.told[1]}"
                )
            # An earlier range gets nothing more: the copy takes what is whole, and goes on.
            response.damaged = True
            response.whole_end = channel.start_offset
            if log is not None and log.status.readable:
                response.whole_end = log.end_offset
        if log is not None and log.status.readable:
            end = log.reader.epoch_end(header.of_epoch)
            response.found = end is not None
            response.end_epoch, response.end_offset = end or (0, 0)
            response.producers = log.producers.before(log.start_offset).to_bytes()
            if log.status.first_number is not None:
                response.number = log.status.first_number + log.status.start_messages
                response.number_known = True
    except CorruptData as error:
        channel.context.suspect(channel, int(error.details.get("offset", channel.start_offset)))
        session.refuse(request_id, PartitionQuarantined(f"{channel}: {error}"))
    except NotInMemory as error:
        again = partial(epoch_end, asked, session, request_id, header, tries)
        _try_again(channel, session, request_id, error, tries, again)
    except VqError as error:
        session.refuse(request_id, error)
    else:
        session.reply(request_id, response)


def scan(
    channel: Channel, position: int, wanted: Filter, max_bytes: int
) -> tuple[list[memoryview], list[int], int]:
    """Filter the next bytes; a record that begins there is always taken whole.

    Otherwise no more than ``max_bytes`` are picked.

    Returns:
        The matching records, their offsets, and where to go on.

    Raises:
        VqError: The bytes cannot be read, or are damaged.
    """
    log, limit = channel.log, channel.read_limit
    if log is None or position >= limit:
        return [], [], position
    size = FILTER_SCAN_BYTES // min(wanted.cost, _COST_MAX)
    view = log.reader.read(position, size, limit)
    try:
        found = filter_records(view, position, wanted)
        if sum(map(len, found[0])) > max_bytes:
            # What is picked of so much fits; it tells at least how long the first record is.
            view = log.reader.read(position, max(max_bytes, RECORD_HEADER_BYTES), limit)
            found = filter_records(view, position, wanted)
        if found[2] == position and len(view) >= RECORD_HEADER_BYTES:
            size = RECORD_HEADER_BYTES + RECORD_HEADER.unpack_from(view)[0]
            found = filter_records(log.reader.read(position, size, limit), position, wanted)
    except CorruptData as error:
        channel.context.suspect(channel, position)
        check_boundary(channel, log, position)
        raise _bad_record(position, f"{channel}: {error}") from error
    if found[2] == position:
        check_boundary(channel, log, position)
        raise _bad_record(position, f"{channel}: the record at {position} is incomplete")
    return found


def _bad_record(position: int, what: str) -> PartitionQuarantined:
    return PartitionQuarantined(what, details={"offset": position})


class WaitingOffsets:
    """An OFFSETS that waits until it is known where the partition ends."""

    __slots__ = ("_answer", "_channel", "_epoch", "_session", "_timer")

    def __init__(
        self, channel: Channel, session: Session, epoch: int, answer: Callable[[], None]
    ) -> None:
        self._channel = channel
        self._session = session
        self._epoch = epoch
        self._answer = answer
        channel.park(self)
        session.waiting[self] = None
        self._timer = channel.context.call_later(END_WAIT_S, self._finish)

    def wake(self) -> None:
        """See ``parked.Woken``."""
        try:
            check_readable(self._channel, self._epoch)
        except VqError:
            self._finish()
        else:
            if self._channel.knows_end:
                self._finish()

    def cancel(self) -> None:
        """See ``session.Cancellable``."""
        self._channel.parked.pop(self, None)
        self._session.waiting.pop(self, None)
        self._timer.cancel()

    def _finish(self) -> None:
        self.cancel()
        self._answer()


def offsets(
    channel: Channel,
    session: Session,
    request_id: RequestId,
    header: wire.OffsetsRequest,
    tries: Tries | None = None,
    *,
    waited: bool = False,
) -> None:
    """Answer an OFFSETS: the range kept here, and what else was asked.

    A master that has just begun to lead may not know yet how much its predecessor has shown. Then
    the answer waits: a number below that would have a reader begin too early, or miss messages.
    """
    tries = tries or Tries()
    try:
        check_readable(channel, header.epoch)
        if not channel.knows_end and not header.place:
            if waited:
                raise Busy(
                    f"this node leads {channel} since a moment ago; until the other nodes in sync "
                    "told what they have, it does not know where the partition ends"
                )
            answer = partial(offsets, channel, session, request_id, header, tries, waited=True)
            WaitingOffsets(channel, session, header.epoch, answer)
            return
        session.reply(request_id, _offsets(channel, header))
    except NotInMemory as error:
        again = partial(offsets, channel, session, request_id, header, tries, waited=waited)
        _try_again(channel, session, request_id, error, tries, again)
    except VqError as error:
        session.refuse(request_id, error)


def _offsets(channel: Channel, header: wire.OffsetsRequest) -> wire.OffsetsResponse:
    parts = [*channel.older, channel]
    log = channel.log
    if log is not None:
        log.status.check_readable()
    elif not channel.rules.read:
        raise channel.why_refused()
    response = wire.OffsetsResponse(
        earliest=earliest(channel),
        latest=channel.high_watermark,
        log_end_offset=log.end_offset if log is not None else channel.high_watermark,
        epoch=channel.role.epoch,
        end_unknown=not channel.knows_end,
    )
    number = latest_number(channel)
    response.latest_number, response.latest_number_known = number or 0, number is not None
    if header.by_time:
        response.offset = min(_offset_at_time(parts, header.time_ms), channel.read_limit)
    if header.by_number:
        found = _offset_at_number(parts, header.at_number)
        response.offset, response.offset_known = found or 0, found is not None
    if header.number:
        number = _number_at(parts, header.number_offset)
        response.number, response.number_known = number or 0, number is not None
    if header.count:
        _count(response, parts, header.from_offset, header.to_offset)
    if header.place:
        response.place, response.place_reason = check_place(channel, header)
    return response


def _offset_at_time(parts: list[Channel], time_ms: int) -> int:
    """Return the first batch appended at or after the time in any of the ranges kept here.

    Raises:
        PartitionFailed: An earlier range cannot be read, so it is unknown.
    """
    for part in parts:
        if not part.rules.read:
            raise part.why_refused()
        if part.log is not None:
            found = part.log.reader.offset_at_time(time_ms)
            if found < part.read_limit:
                return found
    return parts[-1].read_limit


def _offset_at_number(parts: list[Channel], number: int) -> int | None:
    """Return the first message of the number or a higher one in any of the ranges kept here.

    None: it is not known.

    Raises:
        PartitionFailed: An earlier range cannot be read, so it is unknown.
    """
    for part in parts:
        if not part.rules.read:
            raise part.why_refused()
        if part.log is not None:
            found = part.log.reader.offset_at_number(number)
            if found is None or found < part.read_limit:
                return found
    return parts[-1].read_limit


def _number_at(parts: list[Channel], offset: int) -> int | None:
    """Return the number of the first message from ``offset`` on; None: it is not known here."""
    for part in parts:
        if part.log is not None and part.start_offset <= offset <= part.read_limit:
            return part.log.reader.number_at(offset)
        if part.log is None and offset == part.start_offset:
            return log_begin(part).number
    return None


def latest_number(channel: Channel) -> int | None:
    """Return the number of the first message behind what readers see; None: it is not known."""
    try:
        return _number_at([channel], channel.read_limit)
    except VqError:
        return None


def _count(response: wire.OffsetsResponse, parts: list[Channel], begin: int, end: int) -> None:
    """Count the messages in ``[begin, end)``; not exact where that leaves what is kept here."""
    covered = 0
    exact = True
    for part in parts:
        low, high = max(begin, part.start_offset), min(end, part.read_limit)
        if part.log is not None and low < high:
            count, counted_exactly = part.log.reader.count(low, high)
            response.count += count
            exact = exact and counted_exactly
            covered += high - low
    last = parts[-1]
    if last.log is None or not last.log.status.is_lost(last.log.end_offset):
        end = min(end, last.read_limit)  # behind the end of a whole log there is nothing
    response.count_exact = exact and covered == max(0, end - begin)
