"""The ranges of one partition on this node: the present one, and earlier ones with gaps between.

A partition that was moved away and came back, or was given a new log, has a channel for each range.
Earlier ones are only read.
"""

from collections.abc import Sequence

from vq.broker.partition.channel import Channel
from vq.broker.partition.partition_state import ChannelEvent
from vq.errors import StorageFailed
from vq.model import Span
from vq.store.care.divergence import Diverged
from vq.store.log.log import Log
from vq.store.log.log_config import LogBegin, LogState


def add_older(
    channel: Channel, start: int, log: Log | BaseException, cut: Sequence[Diverged] = ()
) -> None:
    """Keep an earlier range of this partition, which begins at ``start``, for reading.

    If its log cannot be opened or read, requests for the range are refused with the reason: an
    empty answer would hide its messages.
    """
    older = Channel(
        channel.partition,
        topic_id=channel.topic_id,
        settings=channel.settings,
        placement=channel.placement,
        placement_version=channel.placement_version,
        context=channel.context,
    )
    older.earlier = True
    older.place = channel.place
    older.start_offset = older.high_watermark = start
    older.copies.cut = list(cut)
    if isinstance(log, BaseException):
        older.end(ChannelEvent.OPEN_FAILED, log)
    elif log.status.readable:
        older.attach(log)
    else:
        older.end(ChannelEvent.OPEN_FAILED, StorageFailed(log.reason))
    group = channel.context.group
    known = channel.placement.span_at(start)
    mine = known is not None and known.group == group and known.end is not None
    older.span = known if mine else Span(group, start, older.high_watermark)
    channel.older.append(older)


def holding(channel: Channel, offset: int) -> Channel:
    """Return the channel of the range that holds ``offset``: this one, or an older one."""
    for older in channel.older:
        if promised_start(older) <= offset < end_of_range(older):
            return older
    return channel


def range_at(channel: Channel, offset: int) -> tuple[Channel, int]:
    """Return the channel of the range that a copy which ends at ``offset`` is of.

    Also where the next range begins; 0: it is the last one.
    """
    ranges = [*channel.older, channel]
    for number, each in enumerate(ranges[:-1]):
        if offset <= end_of_range(each):
            return each, ranges[number + 1].start_offset
    return channel, 0


def end_of_range(channel: Channel) -> int:
    """Where an earlier range ends: also what cannot be read, or is lost, belongs to it."""
    log, span = channel.log, channel.span
    if span is None or span.end is None:
        return channel.read_limit
    return span.end if log is None or is_cut_short(channel) else channel.read_limit


def is_cut_short(channel: Channel) -> bool:
    """Whether messages behind the end of the log are missing, that of an earlier range."""
    log, span = channel.log, channel.span
    if log is None or span is None or span.end is None:
        return False
    return log.state is LogState.QUARANTINED or log.end_offset < span.end


def earliest(channel: Channel) -> int:
    """The first offset of this partition that is kept here, or should be."""
    return promised_start(channel.older[0]) if channel.older else promised_start(channel)


def promised_start(channel: Channel) -> int:
    """Where the log of this range begins, also if its first blocks are lost."""
    return channel.start_offset if channel.log is None else channel.log.status.promised_start


def log_begin(channel: Channel) -> LogBegin:
    """Return where the log of a channel begins, if there is none yet."""
    span, start = channel.span, channel.start_offset
    begins = span is not None and span.start == start
    return LogBegin(start, number=span.first_number if span is not None and begins else None)


def take_logs(channel: Channel) -> list[Log]:
    """Take all logs from the channels, to be closed."""
    logs = [each.log for each in (*channel.older, channel) if each.log is not None]
    channel.log = None
    channel.older = []
    return logs


def lost_in_take_overs(channel: Channel) -> list[Diverged]:
    """Return what a take-over has lost of a range that may have been acknowledged."""
    if not channel.acknowledges_alone:
        return []
    return [each for each in channel.copies.cut if not each.at_start]
