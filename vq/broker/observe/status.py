"""The answer to STATUS. Every number is read where it is counted."""

from typing import Final

from vq import limits
from vq.broker.base.jobs import JobFacts
from vq.broker.base.session import Session
from vq.broker.disks.data_disk import DataDisk
from vq.broker.observe.watched import Watched
from vq.broker.partition.channel import Channel
from vq.broker.partition.old_blocks import ahead_ms_of
from vq.model import Replication
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.version import __version__

#: Size at which an answer takes no further partition; the client asks for the rest.
_PARTITIONS_BYTES: Final = limits.FRAME_HEADER_BYTES_MAX // 2
#: Extra bytes of a partition and of a damaged range in Hessian, which names every field.
_PARTITION_EXTRA_BYTES: Final = 192
_RANGE_EXTRA_BYTES: Final = 64
#: Damaged ranges of one partition, and in one answer; VERIFY returns all of a partition.
RANGES_PER_PARTITION: Final = 4
RANGES_PER_ANSWER: Final = 256
#: Longest reason, in characters.
_REASON_CHARS_MAX: Final = 1_000


class StatusReport:
    """Builds status answers.

    Args:
        watched: What is told.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._started = watched.context.clock.monotonic()

    def ping(self, session: Session, request_id: RequestId, _header: wire.PingRequest) -> None:
        """PING: answer with the time of the wall clock."""
        wall_ms = self._watched.context.clock.wall_ms()
        session.reply(request_id, wire.PingResponse(wall_ms=wall_ms))

    def answer(self, session: Session, request_id: RequestId, header: wire.StatusRequest) -> None:
        """STATUS: answer with role, partitions and counters of this node."""
        session.reply(request_id, self.report(header))

    def report(self, request: wire.StatusRequest) -> wire.StatusResponse:
        """Return the node's status, with an entry for each partition that fits if asked."""
        watched = self._watched
        config, context, server = watched.config, watched.context, watched.server
        role = context.role
        counters = context.counters
        channels = watched.partitions.channels
        disks, scrub, diverged = watched.disks, watched.scrubber, watched.diverged
        response = wire.StatusResponse(
            cluster=config.cluster,
            group=config.group,
            node=config.node,
            broker_version=__version__,
            uptime_ms=int((context.clock.monotonic() - self._started) * 1000),
            epoch=role.epoch,
            master=role.acts,
            partition_count=len(channels),
            connections=len(server.sessions),
            messages_in=counters.messages_in,
            bytes_in=counters.bytes_in,
            bytes_out=counters.bytes_out,
            flushes=context.flushes,
            disk_bytes_free=disks.free_bytes,
            disk_bytes_total=disks.total_bytes,
            disks=map(_disk, disks.all),
            # The request being answered is one of those without an answer.
            requests_waiting=server.requests_waiting + server.reads_waiting - 1,
            problems=self._problems(),
            copies=[
                wire.CopyStatus(
                    node=node,
                    partitions=lag.partitions,
                    bytes_behind=lag.size,
                    ms_behind=lag.ms,
                )
                for node, lag in sorted(watched.lags.told().items() if role.epoch else ())
            ],
            follows=role.follows,
            diverged_files=diverged.count,
            diverged_bytes=diverged.size,
            scrub_begun_ms=scrub.position.begun_ms,
            scrub_ended_ms=scrub.position.ended_ms,
            scrub_read_bytes=scrub.position.read_bytes,
            scrub_bytes_per_s=config.scrub_bytes_per_s,
            repairs=watched.repairer.count,
            scrub_next_ms=scrub.next_ms(),
        )
        if request.with_partitions:
            if not request.after_topic:
                response.jobs.extend(map(_job, watched.jobs.told()))
            self._tell_partitions(response, (request.after_topic, request.after_partition))
        return response

    def _problems(self) -> list[str]:
        """Return what is wrong with the node as a whole."""
        watched = self._watched
        gate, disks = watched.gate, watched.disks
        # To follow another node is no problem.
        refusal = None if gate.refusal is not None else gate.put_refusal
        of_disks = disks.problems(follows=bool(watched.context.role.follows))
        gone = disks.main.gone
        found = [
            watched.server.trouble,
            *of_disks,
            "" if gone or str(refusal) in of_disks else str(refusal or ""),
            "" if gone else watched.follower.problem,
            watched.context.role.waits,
        ]
        return [*filter(None, found), *watched.partitions.told_problems()]

    def _tell_partitions(self, response: wire.StatusResponse, after: tuple[str, int]) -> None:
        watched = self._watched
        channels, verifier = watched.partitions.channels, watched.verifier
        ranges, size = RANGES_PER_ANSWER, 0
        not_copied = watched.follower.not_copied()
        for key in sorted(channels if not after[0] else [k for k in channels if k > after]):
            if size >= _PARTITIONS_BYTES:
                response.more = True
                return
            channel = channels[key]
            told = response.partitions.add()
            told.CopyFrom(_partition(channel))
            told.ahead_ms = ahead_ms_of(channel, watched.context.clock)
            told.not_copied = not_copied.get(channel, "")[:_REASON_CHARS_MAX]
            held = watched.retainer.held.get(channel)
            if held is not None:
                told.held_by, told.held_from = held.by[:_REASON_CHARS_MAX], held.offset
                told.held_bytes, told.held_since_ms = held.size_bytes, held.since_ms
            told.damaged_ranges = verifier.count_damage(channel)
            damage = verifier.damage(channel, at_most=min(ranges, RANGES_PER_PARTITION))
            told.damage.extend(damage)
            ranges -= len(damage)
            size += told.ByteSize() + _PARTITION_EXTRA_BYTES + len(damage) * _RANGE_EXTRA_BYTES


def _disk(disk: DataDisk) -> wire.DiskStatus:
    watch, growth, full_in_s = disk.watch, disk.growth.bytes_per_s, disk.full_in_s
    return wire.DiskStatus(
        directory=str(disk.path),
        bytes_free=watch.free,
        bytes_total=watch.total,
        level=_level(disk),
        growth_known=growth is not None,
        growth_bytes_per_hour=round((growth or 0) * 3_600),
        fills=full_in_s is not None,
        full_in_s=round(full_in_s or 0),
        excess_bytes=disk.pressure_bytes,
        files_free=watch.files_free,
        files_total=watch.files_total,
        file_system=disk.file_system,
    )


def _job(job: JobFacts) -> wire.JobStatus:
    return wire.JobStatus(
        name=job.name,
        trigger=job.trigger,
        state=job.state,
        why_off=job.why_off,
        runs=job.runs,
        failures=job.failures,
        begun_ms=job.begun_ms,
        ended_ms=job.ended_ms,
        late_ms=round(job.late_s * 1_000),
        error=job.error[:_REASON_CHARS_MAX],
        next_ms=job.next_ms,
    )


def _level(disk: DataDisk) -> str:
    if disk.silent:
        return "silent"
    return "gone" if disk.gone else disk.watch.level.name.lower()


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
