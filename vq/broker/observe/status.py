"""The answer to STATUS. Every number is read where it is counted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from vq import limits
from vq.broker.base.config import BrokerConfig
from vq.broker.disks.data_disk import DataDisk
from vq.broker.health.diverged_files import DivergedFiles
from vq.broker.health.scrubbing import Position
from vq.broker.history.archive_runs import LastRun
from vq.broker.history.retaining import Held
from vq.broker.partition.channel import Channel
from vq.broker.partition.context import Context
from vq.broker.partition.old_blocks import ahead_ms_of
from vq.broker.partition.partitions import Partitions
from vq.broker.replication.lag import Lag
from vq.broker.serving.server import Server
from vq.model import Replication
from vq.remoting import wire_pb2 as wire
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


class KnowsDamage(Protocol):
    """Has the damage found; in practice ``verifying.Verifier``."""

    def damage(self, channel: Channel, *, at_most: int | None = None) -> list[wire.DamagedRange]:
        """Return the damage known of a partition."""
        ...

    def count_damage(self, channel: Channel) -> int:
        """Return how many ranges there are."""
        ...


class StatusReport:
    """Builds status answers.

    Attributes:
        server: Set once there is one.
        problems: Tells what is wrong with the node as a whole; set with ``server``.
        lags: Tells how far the nodes that copy are behind.
        diverged: What this node cut from its logs.
        not_copied: Tells which partitions this node cannot copy, and why.
        held: Tells what is kept only because somebody needs it.
        archive_run: Tells how far the last run of the archive is.
        unindexed_bytes: Tells how much has no key index yet; None: that is not known.
    """

    def __init__(
        self,
        config: BrokerConfig,
        context: Context,
        partitions: Partitions,
        disks: Sequence[DataDisk],
        known: KnowsDamage,
    ) -> None:
        self._config = config
        self._context = context
        self._partitions = partitions
        self._disks = disks
        self._known = known
        self._started = context.clock.monotonic()
        self.server: Server | None = None
        self.problems: Callable[[], list[str]] = list
        self.lags: Callable[[], dict[str, Lag]] = dict
        self.not_copied: Callable[[], dict[Channel, str]] = dict
        self.held: Callable[[], Mapping[Channel, Held]] = dict
        self.archive_run: Callable[[], LastRun | None] = lambda: None
        self.unindexed_bytes: Callable[[], int | None] = lambda: None
        self.diverged: DivergedFiles | None = None
        self.scrub: Callable[[], Position] = Position
        self.next_scrub_ms: Callable[[], int] = int
        self.repairs: Callable[[], int] = int

    def report(self, request: wire.StatusRequest) -> wire.StatusResponse:
        """Return the node's status, with an entry for each partition that fits if asked."""
        config, context, server = self._config, self._context, self.server
        role = context.role
        counters = context.counters
        channels = self._partitions.channels
        response = wire.StatusResponse(
            cluster=config.cluster,
            group=config.group,
            node=config.node,
            broker_version=__version__,
            uptime_ms=int((context.clock.monotonic() - self._started) * 1000),
            epoch=role.epoch,
            master=role.acts,
            partition_count=len(channels),
            connections=len(server.sessions) if server is not None else 0,
            messages_in=counters.messages_in,
            bytes_in=counters.bytes_in,
            bytes_out=counters.bytes_out,
            flushes=context.flushes,
            disk_bytes_free=sum(each.watch.free for each in self._disks),
            disk_bytes_total=sum(each.watch.total for each in self._disks),
            disks=map(_disk, self._disks),
            # The request being answered is one of those without an answer.
            requests_waiting=(
                server.requests_waiting + server.reads_waiting - 1 if server is not None else 0
            ),
            problems=self.problems(),
            copies=[
                wire.CopyStatus(
                    node=node,
                    partitions=lag.partitions,
                    bytes_behind=lag.size,
                    ms_behind=lag.ms,
                )
                for node, lag in sorted(self.lags().items() if role.epoch else ())
            ],
            follows=role.follows,
            diverged_files=self.diverged.count if self.diverged is not None else 0,
            diverged_bytes=self.diverged.size if self.diverged is not None else 0,
            scrub_begun_ms=self.scrub().begun_ms,
            scrub_ended_ms=self.scrub().ended_ms,
            scrub_read_bytes=self.scrub().read_bytes,
            scrub_bytes_per_s=config.scrub_bytes_per_s,
            repairs=self.repairs(),
            scrub_next_ms=self.next_scrub_ms(),
        )
        if request.with_partitions:
            self._tell_partitions(response, (request.after_topic, request.after_partition))
        return response

    def _tell_partitions(self, response: wire.StatusResponse, after: tuple[str, int]) -> None:
        channels = self._partitions.channels
        ranges, size = RANGES_PER_ANSWER, 0
        not_copied = self.not_copied()
        for key in sorted(channels if not after[0] else [k for k in channels if k > after]):
            if size >= _PARTITIONS_BYTES:
                response.more = True
                return
            channel = channels[key]
            told = response.partitions.add()
            told.CopyFrom(_partition(channel))
            told.ahead_ms = ahead_ms_of(channel, self._context.clock)
            told.not_copied = not_copied.get(channel, "")[:_REASON_CHARS_MAX]
            held = self.held().get(channel)
            if held is not None:
                told.held_by, told.held_from = held.by[:_REASON_CHARS_MAX], held.offset
                told.held_bytes, told.held_since_ms = held.size_bytes, held.since_ms
            told.damaged_ranges = self._known.count_damage(channel)
            damage = self._known.damage(channel, at_most=min(ranges, RANGES_PER_PARTITION))
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
