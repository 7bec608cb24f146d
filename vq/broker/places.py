"""Whether an offset is still the same place in the log; OFFSETS asks for it.

A consumer group commits an offset and the id of the message before it. A log that lost its end
gives the same offsets to other messages; the id tells the places apart.
"""

from vq.broker.channel import Channel
from vq.errors import CorruptData, OffsetNotBoundary, OffsetOutOfRange, PartitionQuarantined
from vq.remoting import wire_pb2 as wire
from vq.remoting.format import Place

Answer = tuple[Place, str]

_UNKNOWN: Answer = (Place.UNKNOWN, "")


def check_place(channel: Channel, header: wire.OffsetsRequest) -> Answer:
    """Return whether ``place_message_id`` is the message before ``place_offset``, and if not, why.

    The answer is unknown where the message is damaged, deleted by retention, or elsewhere. Reads
    the headers of a few batches at most.

    Raises:
        PartitionFailed: The medium cannot deliver what is needed to tell, or the range that holds
            the place cannot be read.
    """
    offset = header.place_offset
    channel = channel.holding(offset)
    if not channel.rules.read:
        raise channel.why_refused()
    log = channel.log
    if log is None or not channel.start_offset < offset:
        return _after_an_empty_log(channel, offset)
    tags = [tag.encode() for tag in header.place_tags]
    try:
        log.reader.check_boundary(offset)
        found = log.reader.message_before(offset, tags) if header.place_message_id else None
    except OffsetOutOfRange:
        return _behind_the_end(channel, offset)
    except OffsetNotBoundary as error:
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
