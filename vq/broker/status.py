"""What a node says of itself in answer to STATUS. Every number is read where it is counted."""

from collections.abc import Callable

from vq.broker.channel import Channel
from vq.broker.config import BrokerConfig
from vq.broker.context import Context
from vq.broker.disk_watch import DiskWatch
from vq.broker.partitions import Partitions
from vq.broker.server import Server
from vq.remoting import wire_pb2 as wire
from vq.version import __version__


class StatusReport:
    """Builds status answers.

    Attributes:
        server: Set once there is one.
        problems: Tells what is wrong with the node as a whole; set with ``server``.
        damage: Tells what damage is known of a partition; set with ``server``.
    """

    def __init__(
        self,
        config: BrokerConfig,
        context: Context,
        partitions: Partitions,
        disk_watch: DiskWatch,
    ) -> None:
        self._config = config
        self._context = context
        self._partitions = partitions
        self._disk_watch = disk_watch
        self._started = context.clock.monotonic()
        self.server: Server | None = None
        self.problems: Callable[[], list[str]] = list
        self.damage: Callable[[Channel], list[wire.DamagedRange]] = lambda channel: []

    def report(self, with_partitions: bool) -> wire.StatusResponse:
        """Return the node's status, with one entry for each partition if asked."""
        config, context, server = self._config, self._context, self.server
        counters = context.counters
        channels = self._partitions.channels
        response = wire.StatusResponse(
            cluster=config.cluster,
            group=config.group,
            node=config.node,
            broker_version=__version__,
            uptime_ms=int((context.clock.monotonic() - self._started) * 1000),
            epoch=context.epoch,
            master=context.epoch > 0 and context.may_acknowledge(),
            partition_count=len(channels),
            connections=len(server.sessions) if server is not None else 0,
            messages_in=counters.messages_in,
            bytes_in=counters.bytes_in,
            bytes_out=counters.bytes_out,
            flushes=context.storer.flushes,
            disk_bytes_free=self._disk_watch.free,
            disk_bytes_total=self._disk_watch.total,
            # The request being answered is one of those without an answer.
            requests_waiting=(
                server.requests_waiting + server.reads_waiting - 1 if server is not None else 0
            ),
            problems=self.problems(),
        )
        if with_partitions:
            response.partitions.extend(
                _partition(channels[key], self.damage(channels[key])) for key in sorted(channels)
            )
        return response


def _partition(channel: Channel, damage: list[wire.DamagedRange]) -> wire.PartitionStatus:
    state, reason = channel.state
    log = channel.log
    return wire.PartitionStatus(
        topic=channel.partition.topic,
        partition=channel.partition.partition,
        log_start_offset=channel.start_offset,
        log_end_offset=log.end_offset if log is not None else channel.high_watermark,
        high_watermark=channel.high_watermark,
        state=state,
        size_bytes=log.size_bytes if log is not None else 0,
        reason=reason,
        damage=damage,
    )
