"""Whether an offset is still the same place in the log; OFFSETS, GET and FETCH ask for it.

A log that lost its end gives the same offsets to other messages. A reader knows the epoch of the
batch before its offset, and a consumer group commits it with the id of the message there. They tell
the places apart.
"""

from vq.broker.partition.channel import Channel
from vq.broker.partition.ranges import holding
from vq.broker.partition.replica_rules import parts_at
from vq.errors import (
    CorruptData,
    LogTruncated,
    OffsetNotBoundary,
    OffsetOutOfRange,
    PartitionQuarantined,
)
from vq.message_filter import Filter
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Place
from vq.store.archive.archived_file import NotInMemory
from vq.store.care.divergence import Diverged

Answer = tuple[Place, str]

_UNKNOWN: Answer = (Place.UNKNOWN, "")


def check_place(channel: Channel, header: wire.OffsetsRequest) -> Answer:
    """Return whether ``place_offset`` is the place that it was, and if not, why.

    The batch before it must have ``place_epoch``, and the message ``place_message_id`` lie before
    it, where they are known. Another epoch is another place, whatever lies there. The answer is
    unknown where the message is damaged, deleted by retention, or elsewhere. Reads the headers of a
    few batches at most.

    Raises:
        PartitionFailed: The medium cannot deliver what is needed to tell, or the range that holds
            the place cannot be read.
    """
    offset = header.place_offset
    channel = holding(channel, offset)
    if not channel.rules.read:
        raise channel.why_refused()
    log = channel.log
    if log is None or not channel.start_offset < offset:
        return _after_an_empty_log(channel, offset)
    wanted = Filter.of_request(header.place_tags)
    try:
        check_epoch(channel, offset, header.place_epoch)  # tells more than the end or no boundary
        log.reader.check_boundary(offset)
        found = log.reader.message_before(offset, wanted) if header.place_message_id else None
    except OffsetOutOfRange:
        return _behind_the_end(channel, offset)
    except (OffsetNotBoundary, LogTruncated) as error:
        return Place.OTHER, str(error)
    except (CorruptData, PartitionQuarantined):
        return _UNKNOWN
    if found is None:
        return _UNKNOWN
    if found == header.place_message_id:
        return Place.SAME, ""
    return (
        Place.OTHER,
        f"message {found} lies before offset {offset} of {channel}, not {header.place_message_id}",
    )


def _after_an_empty_log(channel: Channel, offset: int) -> Answer:
    """Of a channel without a log, or an offset at or before its start."""
    return _behind_the_end(channel, offset) if offset > channel.start_offset else _UNKNOWN


def _behind_the_end(channel: Channel, offset: int) -> Answer:
    """The range that this group holds ends before the offset, unless another group has the rest."""
    holder = channel.placement.span_at(offset)
    if holder is not None and holder.group != channel.context.group:
        return _UNKNOWN
    end = channel.high_watermark
    return Place.OTHER, f"offset {offset} lies beyond the end of {channel}, which is {end}"


def check_epoch(channel: Channel, offset: int, last_epoch: int) -> None:
    """Return if the log has what a reader has read up to ``offset``, as far as can be told.

    Args:
        channel: Of the range that has the offset.
        offset: Up to which was read.
        last_epoch: Epoch of the batch before it, as an answer told it; 0: not known.

    Raises:
        LogTruncated: It has not: bytes were lost, and other ones may be there now.
        PartitionQuarantined: Damage keeps this from being told.
        VqError: As ``LogReader.epoch_end``.
    """
    log = channel.log
    if not last_epoch or log is None:
        return
    try:
        end = log.reader.epoch_end(last_epoch)
    except CorruptData as error:
        channel.context.suspect(channel, int(error.details.get("offset", offset)))
        raise PartitionQuarantined(f"{channel}: {error}") from error
    at = parts_at(offset, last_epoch, end, start_offset=log.start_offset)
    if at is None:
        return
    topic, partition = channel.partition
    raise LogTruncated(
        f"what was read of {channel} from offset {at} to {offset} is gone: it was written in epoch "
        f"{last_epoch}, and the log of the master in epoch {channel.role.epoch} does not have it",
        details={
            "topic": topic,
            "partition": partition,
            "offset": offset,
            "parts_at": at,
            "last_epoch": last_epoch,
            "found_epoch": 0 if end is None else end.epoch,
            "epoch": channel.role.epoch,
        },
    )


def last_epoch(channel: Channel, offset: int) -> int:
    """Return the epoch of the batch before ``offset``, for ``check_epoch``; 0: not known.

    It is known of what was read: ``LogReader.cold`` has the index built that tells it.
    """
    try:
        return 0 if channel.log is None else channel.log.reader.epoch_before(offset)
    except NotInMemory:
        return 0


def lost_at_start(channel: Channel) -> list[Diverged]:
    """Return what a start took off the end of the log, and no other node brought back.

    A batch of the same epoch at the same place is the same batch: at most one master led in it.
    """
    log = channel.log
    return [
        each
        for each in channel.copies.cut
        if each.at_start
        and (
            log is None
            or not each.batches
            or log.end_offset < each.end_offset
            or last_epoch(channel, each.end_offset) != each.last_epoch
        )
    ]
