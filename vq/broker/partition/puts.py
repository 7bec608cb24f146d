"""PUT: the checks of a batch, its append, and when its producer gets the answer.

    put ── checks ── producer table ── log.append ── storer.mark ──▶ flush (thread)
                          │ seen before                                  │
                          ▼                                              ▼
                  first result, once that is durable            acknowledge, move the HW

In here: one request. Not in here: what the state of its partition allows (``partition_state``), who
waits (``acknowledgements``), and up to where all is stored (``channel``).
"""

from typing import Final

from vq.broker.base.parked import wake_all
from vq.broker.base.session import Session
from vq.broker.partition.acknowledgements import Acknowledgement
from vq.broker.partition.batch_check import check_batch, check_empty
from vq.broker.partition.channel import Channel
from vq.broker.partition.partition_state import RULES, ChannelState
from vq.errors import DiskFull, InvalidRequest, MessageTooLarge, NotEnoughInSync, VqError
from vq.limits import MESSAGE_BYTES_MAX, PRODUCER_EPOCH_MAX
from vq.model import FlushMode, ProducerStamp, Replication
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.remoting.format import Access
from vq.store.log.log_config import LogState
from vq.store.records.format import CONTROL_BYTES, records_mark
from vq.store.records.producers import Records
from vq.store.records.record import has_tag

# Looked up for each batch.
_SYNC: Final = FlushMode.SYNC
_ALONE: Final = Replication.ASYNC  # the master alone acknowledges
#: A log whose table of producers holds.
_KNOWS: Final = frozenset((LogState.OK, LogState.SEALED))
#: What is stored is known there, and nothing more is appended.
_CLOSED: Final = frozenset((ChannelState.NOT_WRITABLE, ChannelState.READS))
_new: Final = tuple.__new__  # of a named tuple: the same without its Python-level wrapper


def put(
    channel: Channel, session: Session, request_id: RequestId, header: wire.PutRequest, body: bytes
) -> None:
    """Append a batch and have it acknowledged once it may be; open the log before."""
    context, settings = channel.context, channel.settings
    log = channel.log
    try:
        if (
            RULES[channel.state].refusal is not None
            or header.epoch > channel.role.epoch
            or log is None
            or channel.place.refusal is not None
        ):
            if acknowledge_known(channel, session, request_id, header):
                return
            raise channel.why_refused(header.epoch)
        if settings.min_insync > channel.role.named:
            raise _too_few(channel)
        count, crc = header.record_count, header.crc
        producer_id = header.producer_id
        if count or body:
            try:
                check_batch(
                    body,
                    record_count=count,
                    crc=crc,
                    max_message_bytes=settings.max_message_bytes,
                )
            except MessageTooLarge:  # the topic took more when it was sent first, perhaps
                if header.resend and _acknowledge_stored(channel, session, request_id, header):
                    return
                if not header.accepted:
                    raise
                check_batch(body, record_count=count, crc=crc, max_message_bytes=MESSAGE_BYTES_MAX)
            if channel.own_tag is not None and channel.own_tag in body:
                _check_tags(channel, session, body, channel.own_tag)
        else:
            check_empty(producer_id, header.sequence)
            crc = 0
        stamp = None
        if producer_id:
            producer_epoch = header.producer_epoch
            if producer_epoch > PRODUCER_EPOCH_MAX:
                raise InvalidRequest(
                    f"producer epoch {producer_epoch} is above {PRODUCER_EPOCH_MAX}"
                )
            stamp = _new(ProducerStamp, (producer_id, producer_epoch, header.sequence))
            first = log.producers.check(stamp, resend=header.resend)
            if first is not None:
                log.producers.compare(stamp, Records(count, records_mark(crc)))
                _acknowledge_again(channel, session, request_id, first)
                return
        start = log.append(
            body,
            record_count=count,
            records_crc=crc,
            epoch=channel.role.epoch,
            stamp=stamp,
            transaction_id=header.transaction_id,
        )
    except VqError as error:
        channel.acks.refuse(session, request_id, error)
        if log is not None and log.state is LogState.FAILED:
            channel.fail(error)
        return
    size, end = len(body), log.status.end_offset
    counters = context.counters
    counters.batches_in += 1
    counters.messages_in += count
    counters.bytes_in += size
    if channel.copies.parked:
        wake_all(channel.partition, channel.copies.parked)
    since = 0.0 if context.acknowledged is None else context.clock.monotonic()
    if settings.flush is _SYNC:
        ack = (end, session, request_id, start + CONTROL_BYTES, False, since)
        channel.acks.waiting.append(_new(Acknowledgement, ack))
        channel.place.storer.mark(channel)
        return
    channel.flush_due.appended(count, settings)
    role = channel.role
    others = role.insync
    waits = bool(others) and settings.replication is not _ALONE
    if role.leaving:
        channel.place.storer.mark(channel)  # acknowledgements may wait for a flush meanwhile
        waits = waits or channel.counts_flushed()
    if waits:
        ack = (end, session, request_id, start + CONTROL_BYTES, False, since)
        channel.acks.waiting.append(_new(Acknowledgement, ack))
        return
    if context.acknowledged is not None:
        context.acknowledged.observe(0.0)
    channel.acks.give(session, request_id, start + CONTROL_BYTES, duplicate=False)
    if not others:
        channel.move_high_watermark(end)


def _check_tags(channel: Channel, session: Session, body: bytes, own_tag: bytes) -> None:
    """Return if no message has a tag that is this node's own, or a node of the group sends it.

    Raises:
        InvalidRequest: A client sends one.
    """
    if session.principal.may(Access.GROUP, channel.context.group):
        return
    if has_tag(body, own_tag):
        raise InvalidRequest(
            f"a record has the tag {own_tag.decode()!r}, with which only brokers write to "
            f"{channel.partition.topic}"
        )


def acknowledge_known(
    channel: Channel, session: Session, request_id: RequestId, header: wire.PutRequest
) -> bool:
    """Answer a batch that is stored already with its first result; return whether it is.

    For a topic that was closed, a disk that is full, and a partition whose appends another group
    takes now: its producer has lost the answer, and would not learn the outcome from a refusal.
    Nothing looks at the body: the header has its
    CRC, which says whether it is the batch that is stored.
    """
    log, role, place = channel.log, channel.role, channel.place
    is_closed = channel.state in _CLOSED
    is_full = channel.state is ChannelState.WRITES and isinstance(place.refusal, DiskFull)
    if not (is_closed or is_full) or place.gone or not header.producer_id:
        return False
    if log is None or log.state not in _KNOWS or not header.epoch <= role.epoch > 0:
        return False
    return _acknowledge_stored(channel, session, request_id, header)


def _acknowledge_stored(
    channel: Channel, session: Session, request_id: RequestId, header: wire.PutRequest
) -> bool:
    """Answer a batch with its first result if the log, which knows, has it; return whether."""
    log = channel.log
    assert log is not None
    if not header.producer_id:
        return False
    stamp = ProducerStamp(header.producer_id, header.producer_epoch, header.sequence)
    try:
        first = log.producers.check(stamp)
        if first is None:
            return False
        crc = header.crc if header.record_count else 0
        log.producers.compare(stamp, Records(header.record_count, records_mark(crc)))
    except VqError:
        return False
    _acknowledge_again(channel, session, request_id, first)
    return True


def _acknowledge_again(
    channel: Channel, session: Session, request_id: RequestId, start: int
) -> None:
    """Answer a resend with the first result, but not before that may be acknowledged."""
    channel.context.counters.duplicates += 1
    log = channel.log
    assert log is not None
    offset = start + CONTROL_BYTES
    if start >= channel.acknowledgeable(log, channel.committed(log)):
        # Both end between batches: once one is beyond the start, all of the batch is stored.
        ack = Acknowledgement(start + 1, session, request_id, offset, True, 0.0)
        channel.acks.waiting.append(ack)
        channel.place.storer.mark(channel)
    else:
        channel.acks.give(session, request_id, offset, duplicate=True)


def _too_few(channel: Channel) -> NotEnoughInSync:
    role, wanted = channel.role, channel.settings.min_insync
    return NotEnoughInSync(
        f"partition {channel}: {role.named} node(s) of group {role.group} in sync, the topic's "
        f"min_insync is {wanted}",
        details={"in_sync": role.named, "min_insync": wanted},
    )
