"""The metrics of a node for Prometheus, made of what is counted anyway when somebody asks.

In here: names, units and meanings. Not in here: serving them (``monitor``). A number that is not
known has no sample; a family without samples still has its name and meaning. The page of reference
is compared with this module by a test.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

from vq.broker.base.histogram import Histogram
from vq.broker.disks.data_disk import DataDisk
from vq.broker.disks.disk_watch import DiskLevel
from vq.broker.observe.survey import STATES, Totals
from vq.broker.observe.watched import Watched
from vq.broker.replication.lag import Lag
from vq.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the parts of a node do not know by themselves, at the time of a scrape.

    Attributes:
        totals: What the partitions add up to.
        lags: How far the nodes that copy are behind; empty on a node that does not lead.
        connected: Whether ZooKeeper answers.
        sessions_ended: How many sessions with it have ended.
        registered: Whether this process is registered there.
        ready: Whether ``/readyz`` says so.
    """

    totals: Totals
    lags: dict[str, Lag]
    connected: bool
    sessions_ended: int
    registered: bool
    ready: bool


class BrokerMetrics:
    """Makes the families of one node.

    Args:
        watched: What is counted.

    Attributes:
        loop_lag: Written by ``monitor``.
    """

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self.loop_lag = Histogram()

    def families(self, facts: Facts) -> Iterator[Metric]:
        """Yield every family, each made when it is asked for."""
        yield from self._node(facts)
        yield from self._messages()
        yield from self._requests()
        yield from self._partitions(facts.totals)
        yield from self._copies(facts)
        yield from self._disk()
        yield from self._care(facts.totals)
        yield from self._jobs()

    def _node(self, facts: Facts) -> Iterator[Metric]:
        config, role = self._watched.config, self._watched.context.role
        names = {"cluster": config.cluster, "group": config.group, "node": config.node}
        yield InfoMetricFamily(
            "vq_node",
            "The names of this node; always 1.",
            value={**names, "version": __version__},
        )
        yield _gauge("vq_ready", "1 if /readyz says so, else 0.", facts.ready)
        yield _gauge(
            "vq_registered",
            "1 while this process is registered in ZooKeeper, else 0.",
            facts.registered,
        )
        yield _gauge(
            "vq_zookeeper_connected",
            "1 while ZooKeeper answers this node, else 0.",
            facts.connected,
        )
        yield _counter(
            "vq_zookeeper_sessions_ended",
            "Sessions with ZooKeeper that ended while the node ran.",
            facts.sessions_ended,
        )
        leads = role.epoch > 0
        yield _gauge("vq_leader", "1 if this node leads its group, else 0.", leads)
        yield _gauge(
            "vq_leader_may_act",
            "1 if it leads and takes messages: ZooKeeper answered not long ago, or (for "
            "replication = sync) all nodes in sync keep up; else 0.",
            role.acts,
        )
        yield _gauge(
            "vq_epoch",
            "Epoch in which this node leads; none while it does not.",
            role.epoch or None,
        )
        yield _gauge(
            "vq_in_sync_nodes",
            "Nodes in sync of the group, this one included; none while it does not lead.",
            role.named if leads else None,
        )
        yield _histogram(
            "vq_event_loop_lag_seconds",
            "How much later than planned a timer of the event loop ran; looked at four times a "
            "second.",
            self.loop_lag,
        )

    def _messages(self) -> Iterator[Metric]:
        counters = self._watched.context.counters
        yield _counter("vq_appended_messages", "Messages that were appended.", counters.messages_in)
        yield _counter("vq_appended_bytes", "Bytes of their batches.", counters.bytes_in)
        yield _counter("vq_appended_batches", "Batches that were appended.", counters.batches_in)
        yield _counter(
            "vq_repeated_batches",
            "Batches that were sent again and were stored already.",
            counters.duplicates,
        )
        yield _counter("vq_read_bytes", "Bytes that readers and copies got.", counters.bytes_out)
        times = self._watched.context.acknowledged
        yield _histogram(
            "vq_acknowledgement_seconds",
            "Time from the append of a batch to its acknowledgement: flush and copies included.",
            times or Histogram(),
        )
        yield _histogram("vq_flush_seconds", "Time of a flush.", self._watched.flush_times)
        yield _counter(
            "vq_flushed_logs",
            "Logs that flushes made durable; one flush may be of many.",
            self._watched.context.flushed_logs,
        )

    def _requests(self) -> Iterator[Metric]:
        server = self._watched.server
        yield _gauge("vq_connections", "Open connections.", len(server.sessions))
        yield _counter(
            "vq_ended_connections",
            "Connections that the node ended because of a bound or of what the peer did.",
            server.refused,
        )
        yield _gauge(
            "vq_waiting_requests",
            "Requests without an answer, reads not counted.",
            server.requests_waiting,
        )
        yield _gauge(
            "vq_waiting_reads",
            "Reads (GET, FETCH) without an answer: they wait for messages.",
            server.reads_waiting,
        )
        yield _gauge(
            "vq_waiting_put_bytes", "Bytes of sends that wait for an answer.", server.put_bytes
        )
        refused = CounterMetricFamily(
            "vq_refused_requests",
            "Requests that were answered with an error, by its name and number.",
            labels=("error", "status"),
        )
        for error, count in list(server.refusals.items()):
            refused.add_metric((error.__name__, str(error.status)), count)
        yield refused

    def _partitions(self, totals: Totals) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "vq_partitions", "Partitions on this node, by state.", labels=("state",)
        )
        for state in STATES:
            states.add_metric((state,), totals.states[state])
        yield states
        yield _gauge("vq_topics", "Topics with a partition on this node.", totals.topic_count)
        yield _gauge("vq_stored_bytes", "Bytes of all logs on this node.", totals.stored_bytes)
        yield _gauge(
            "vq_deleted_topics_bytes",
            "Of these, those of deleted topics that can be brought back.",
            totals.deleted_bytes,
        )
        topics = totals.topics
        for name, meaning, values in (
            (
                "vq_topic_partitions",
                "Partitions of a topic on this node.",
                {name: each.partitions for name, each in topics.items()},
            ),
            (
                "vq_topic_stored_bytes",
                "Bytes of the logs of a topic on this node.",
                {name: each.stored_bytes for name, each in topics.items()},
            ),
            (
                "vq_topic_start_offset_bytes",
                "Starts of the logs of a topic on this node, added up: it grows by deletions.",
                {name: each.start_bytes for name, each in topics.items()},
            ),
            (
                "vq_topic_end_offset_bytes",
                "Ends of the logs of a topic on this node, added up: it grows by what is appended.",
                {name: each.end_bytes for name, each in topics.items()},
            ),
        ):
            yield _by_label(name, meaning, "topic", values)

    def _copies(self, facts: Facts) -> Iterator[Metric]:
        lags = facts.lags
        yield _by_label(
            "vq_copy_partitions",
            "Partitions that another node of the group copies from this one.",
            "node",
            {node: lag.partitions for node, lag in lags.items()},
        )
        yield _by_label(
            "vq_copy_lag_bytes",
            "Bytes that the node has not stored.",
            "node",
            {node: lag.size for node, lag in lags.items()},
        )
        yield _by_label(
            "vq_copy_lag_seconds",
            "Age of the oldest batch that the node has not stored; 0 if it has all.",
            "node",
            {node: lag.ms / 1000 for node, lag in lags.items()},
        )
        yield _gauge(
            "vq_diverged_bytes",
            "Bytes that were cut from logs of this node and are kept aside.",
            self._watched.diverged.size,
        )
        yield _gauge(
            "vq_lost_messages",
            "Messages of topics with async replication that take-overs lost, while their files are "
            "kept.",
            facts.totals.lost_messages,
        )

    def _disk(self) -> Iterator[Metric]:
        known = [each for each in self._watched.disks.all if each.watch.total > 0]

        def family(name: str, meaning: str, value: Callable[[DataDisk], float | None]) -> Metric:
            values = {str(each.path): value(each) for each in known}
            told = {path: number for path, number in values.items() if number is not None}
            return _by_label(name, meaning, "directory", told)

        yield family(
            "vq_disk_free_bytes",
            "Free bytes of the disk with a data directory.",
            lambda disk: disk.watch.free,
        )
        yield family("vq_disk_size_bytes", "Size of that disk.", lambda disk: disk.watch.total)
        yield family(
            "vq_disk_free_files",
            "Files (inodes) that can still be made there; none if there is no bound.",
            lambda disk: disk.watch.files_free if disk.watch.files_total else None,
        )
        yield family(
            "vq_disk_files",
            "Files (inodes) that it can have; none if there is no bound.",
            lambda disk: disk.watch.files_total or None,
        )
        yield family(
            "vq_disk_refuses",
            "1 while messages are refused because the disk is too full, else 0.",
            lambda disk: disk.watch.level >= DiskLevel.REFUSE,
        )
        yield family(
            "vq_disk_level",
            "0: enough space, 1: a warning, 2: messages are deleted early where topics allow it, "
            "3: messages are refused, 4: nothing is copied to this node, either.",
            lambda disk: int(disk.watch.level),
        )
        yield family(
            "vq_disk_excess_bytes",
            "Bytes that should be deleted early; 0 below level 2.",
            lambda disk: disk.pressure_bytes,
        )
        yield family(
            "vq_disk_growth_bytes_per_second",
            "How fast the bytes in use grow, measured over two hours to a day; none until it is "
            "known, 20 minutes after the start.",
            lambda disk: disk.growth.bytes_per_s,
        )
        yield family(
            "vq_disk_full_in_seconds",
            "Time until messages are refused, at that growth; none if it is not known or the disk "
            "does not fill up.",
            lambda disk: disk.full_in_s,
        )
        yield family(
            "vq_data_directory_gone",
            "1 while the data directory is removed or unmounted, or does not answer, else 0.",
            lambda disk: disk.gone,
        )
        yield family(
            "vq_data_directory_silent_seconds",
            "For how long the data directory has not answered, 0 while it does.",
            lambda disk: disk.silent_s,
        )

    def _care(self, totals: Totals) -> Iterator[Metric]:
        position = self._watched.scrubber.position
        yield _gauge(
            "vq_damaged_ranges",
            "Ranges of offsets that are known to be damaged.",
            totals.damaged_ranges,
        )
        counters, held = self._watched.context.counters, self._watched.retainer.held
        yield _counter(
            "vq_deleted_bytes", "Bytes of logs that retention deleted.", counters.deleted_bytes
        )
        yield _counter(
            "vq_deleted_blocks", "Blocks that retention deleted.", counters.deleted_blocks
        )
        yield _counter(
            "vq_deleted_early_bytes",
            "Of vq_deleted_bytes: those before their time, since a disk was too full.",
            counters.deleted_early_bytes,
        )
        yield _counter(
            "vq_archived_bytes", "Bytes of blocks that became archives.", counters.archived_bytes
        )
        yield _counter(
            "vq_archived_blocks", "Blocks that became archives.", counters.archived_blocks
        )
        yield _counter(
            "vq_archived_early_bytes",
            "Of vq_archived_bytes: those before their time, since a disk was too full.",
            counters.archived_early_bytes,
        )
        run = self._watched.archiver.last
        ended_ms = run.result.ended_ms if run is not None else 0
        yield _gauge(
            "vq_archive_run_end_timestamp_seconds",
            "When the last run of the archive ended; none while it goes on, or before the first.",
            ended_ms / 1000 if ended_ms else None,
        )
        yield _gauge(
            "vq_archive_run_failed_blocks",
            "Blocks that the last run of the archive, under way or ended, could not archive.",
            run.result.total.failed if run is not None else None,
        )
        yield _gauge(
            "vq_unindexed_bytes",
            "Bytes of closed blocks that are to get a key index, and have none yet; none where "
            "the broker makes none.",
            self._watched.indexer.unindexed_bytes,
        )
        yield _gauge(
            "vq_held_bytes",
            "Bytes of topics with the retention policy keep that are kept only because a consumer "
            "group has not read them, on the node that leads.",
            sum(each.size_bytes for each in held.values()),
        )
        yield _counter(
            "vq_repairs",
            "Repairs of damaged ranges with bytes of another node.",
            self._watched.repairer.count,
        )
        yield _gauge(
            "vq_scrub_begin_timestamp_seconds",
            "When the last pass over all that is stored began; none before the first.",
            position.begun_ms / 1000 or None,
        )
        yield _gauge(
            "vq_scrub_end_timestamp_seconds",
            "When it ended; none while it goes on.",
            position.ended_ms / 1000 or None,
        )
        yield _gauge(
            "vq_scrub_read_bytes", "Bytes that this pass has verified.", position.read_bytes
        )

    def _jobs(self) -> Iterator[Metric]:
        jobs = self._watched.jobs.told()
        runs = CounterMetricFamily(
            "vq_job_runs",
            "Runs of a job, a timed duty of this node, that ended since the start.",
            labels=("name",),
        )
        failed = CounterMetricFamily(
            "vq_job_failed_runs", "Of these, those that failed.", labels=("name",)
        )
        for each in jobs:
            runs.add_metric((each.name,), each.runs)
            failed.add_metric((each.name,), each.failures)
        yield runs
        yield failed
        yield _by_label(
            "vq_job_failing",
            "1 if the last run of the job that ended failed, else 0.",
            "name",
            {each.name: bool(each.error) for each in jobs},
        )
        yield _by_label(
            "vq_job_begin_timestamp_seconds",
            "When the last run of the job began; none before the first.",
            "name",
            {each.name: each.begun_ms / 1000 for each in jobs if each.begun_ms},
        )
        yield _by_label(
            "vq_job_end_timestamp_seconds",
            "When it ended; none while it goes on.",
            "name",
            {each.name: each.ended_ms / 1000 for each in jobs if each.ended_ms},
        )
        yield _by_label(
            "vq_job_next_timestamp_seconds",
            "When the next run is due; none while the job runs, or has none on this node.",
            "name",
            {each.name: each.next_ms / 1000 for each in jobs if each.next_ms},
        )


def _gauge(name: str, meaning: str, value: float | None) -> Metric:
    """Return a gauge of one number; None: it is not known."""
    family = GaugeMetricFamily(name, meaning)
    if value is not None:
        family.add_metric((), value)
    return family


def _counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(name, meaning, value=value)


def _by_label(name: str, meaning: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, meaning, labels=(label,))
    for text, value in sorted(values.items()):
        family.add_metric((text,), value)
    return family


def _histogram(name: str, meaning: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, meaning)
    bounds: Sequence[str] = [*map(str, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    family.add_metric((), buckets, histogram.sum)
    return family
