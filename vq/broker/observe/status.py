"""The answer to STATUS: the facts that have a field there, problems, and the partitions.

What is told of a partition is in here, and not among the facts: nobody else tells it, and an answer
has as much of it as fits.
"""

from collections.abc import Iterable
from typing import Any, Final

from google.protobuf.message import Message

from vq import limits
from vq.broker.base.facts import Fact, Facts, Table
from vq.broker.base.session import Session
from vq.broker.health.verifying import Verifier
from vq.broker.history.retaining import Retainer
from vq.broker.logs.old_blocks import ahead_ms_of
from vq.broker.observe.exposure import Exposure
from vq.broker.observe.vitals import Vitals
from vq.broker.partition.channel import Channel, Channels
from vq.broker.replication.following import Follower
from vq.broker.serving.reading import latest_number
from vq.clock import Clock
from vq.model import Replication
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId

#: Size at which an answer takes no further partition; the client asks for the rest.
_PARTITIONS_BYTES: Final = limits.FRAME_HEADER_BYTES_MAX // 2
#: Extra bytes of a partition and of a damaged range in Hessian, which names every field.
_PARTITION_EXTRA_BYTES: Final = 240
_RANGE_EXTRA_BYTES: Final = 64
#: Damaged ranges of one partition, and in one answer; VERIFY returns all of a partition.
RANGES_PER_PARTITION: Final = 4
RANGES_PER_ANSWER: Final = 256
#: Longest reason, in characters.
_REASON_CHARS_MAX: Final = 1_000
#: What is told only with partitions, and in the first answer.
_FIRST_ANSWER: Final = frozenset({"jobs"})


class StatusReport:
    """Builds status answers.

    Args:
        table: The facts of the node.
        vitals: What is wrong with it.
        channels: Its partitions.
        follower: Which of them it cannot copy.
        retainer: What of them is kept only because somebody needs it.
        verifier: Their damage.
        clock: Time.
        exposure: How it takes clients.
    """

    def __init__(
        self,
        table: Table,
        vitals: Vitals,
        channels: Channels,
        *,
        follower: Follower,
        retainer: Retainer,
        verifier: Verifier,
        clock: Clock,
        exposure: Exposure,
    ) -> None:
        self._exposure = exposure
        self._fields = [
            (each, told) for each in table if (told := [fact for fact in each.facts if fact.status])
        ]
        self._vitals = vitals
        self._channels = channels
        self._follower = follower
        self._retainer = retainer
        self._verifier = verifier
        self._clock = clock

    def ping(self, session: Session, request_id: RequestId, _header: wire.PingRequest) -> None:
        """PING: answer with the time of the wall clock."""
        session.reply(request_id, wire.PingResponse(wall_ms=self._clock.wall_ms()))

    def answer(self, session: Session, request_id: RequestId, header: wire.StatusRequest) -> None:
        """STATUS: answer with role, partitions and counters of this node."""
        response = self.report(header)
        response.requests_waiting -= 1  # this one
        if header.with_security:
            response.security.CopyFrom(self._exposure.report(session))
        session.reply(request_id, response)

    def report(self, request: wire.StatusRequest) -> wire.StatusResponse:
        """Return the node's status, with an entry for each partition that fits if asked."""
        response = wire.StatusResponse(problems=self._vitals.problems())
        more = request.with_partitions and not request.after_topic
        for facts, told in self._fields:
            if facts.status not in _FIRST_ANSWER or more:
                _tell(response, facts, told)
        if request.with_partitions:
            self._tell_partitions(response, request)
        return response

    def _tell_partitions(self, response: wire.StatusResponse, asked: wire.StatusRequest) -> None:
        channels, verifier = self._channels, self._verifier
        after = asked.after_topic, asked.after_partition
        ranges, size = RANGES_PER_ANSWER, 0
        not_copied = self._follower.not_copied()
        for key in sorted(channels if not after[0] else [k for k in channels if k > after]):
            if size >= _PARTITIONS_BYTES:
                response.more = True
                return
            channel = channels[key]
            told = response.partitions.add()
            told.CopyFrom(_partition(channel))
            told.ahead_ms = ahead_ms_of(channel, self._clock)
            if asked.with_numbers:
                number = latest_number(channel)
                told.next_number, told.number_known = number or 0, number is not None
            told.not_copied = not_copied.get(channel, "")[:_REASON_CHARS_MAX]
            held = self._retainer.held.get(channel)
            if held is not None:
                told.held_by, told.held_from = held.by[:_REASON_CHARS_MAX], held.offset
                told.held_bytes, told.held_since_ms = held.size_bytes, held.since_ms
            told.damaged_ranges = verifier.count_damage(channel)
            damage = verifier.damage(channel, at_most=min(ranges, RANGES_PER_PARTITION))
            told.damage.extend(damage)
            ranges -= len(damage)
            size += told.ByteSize() + _PARTITION_EXTRA_BYTES + len(damage) * _RANGE_EXTRA_BYTES


def _tell(response: wire.StatusResponse, facts: Facts[Any], told: Iterable[Fact[Any]]) -> None:
    """Write facts into the answer, or into a message of it for each thing."""
    for labels, thing in facts.things().items():
        message: Message = response
        if facts.status:
            message = getattr(response, facts.status).add()
            for name, label in zip(facts.labels, labels, strict=True):
                setattr(message, name, label)
        for fact in told:
            value = fact.read(thing)
            if isinstance(value, str):
                value = value[:_REASON_CHARS_MAX]
            elif isinstance(value, float):
                value = round(value)
            if value is not None:
                setattr(message, fact.status, value)


def _partition(channel: Channel) -> wire.PartitionStatus:
    state, reason = channel.told
    log = channel.log
    return wire.PartitionStatus(
        topic=channel.partition.topic,
        partition=channel.partition.partition,
        log_start_offset=channel.start_offset,
        log_end_offset=log.end_offset if log is not None else channel.high_watermark,
        high_watermark=channel.high_watermark,
        end_unknown=channel.role.epoch > 0 and not channel.knows_end,
        state=state,
        size_bytes=log.size_bytes if log is not None else 0,
        reason=reason[:_REASON_CHARS_MAX],
        min_insync=channel.settings.min_insync,
        flush_async=not channel.sync,
        replication_async=channel.settings.replication is Replication.ASYNC,
    )
