"""The parts of a node that are asked when somebody looks at it: by STATUS, metrics and health."""

from dataclasses import dataclass

from vq.broker.base.config import BrokerConfig
from vq.broker.base.histogram import Histogram
from vq.broker.base.jobs import Jobs
from vq.broker.disks.data_disks import DataDisks
from vq.broker.health.diverged_files import DivergedFiles
from vq.broker.health.repairing import Repairer
from vq.broker.health.scrubbing import Scrubber
from vq.broker.health.verifying import Verifier
from vq.broker.history.archive_runs import Archiver
from vq.broker.history.key_indexing import KeyIndexer
from vq.broker.history.retaining import Retainer
from vq.broker.partition.context import Context
from vq.broker.partition.gate import Gate
from vq.broker.partition.partitions import Partitions
from vq.broker.replication.following import Follower
from vq.broker.replication.lag import Lags
from vq.broker.replication.presence import Presence
from vq.broker.serving.server import Server

__all__ = ["Watched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """Each number is read where it is counted.

    Attributes:
        config: Names the node.
        context: Counters, the role, storers.
        partitions: All partitions of the node.
        jobs: What is done again and again, and how that goes.
        disks: Its data directories.
        flush_times: How long flushes took.
        server: The connections.
        gate: Why requests are refused.
        presence: Whether it is registered in ZooKeeper.
        follower: What it copies.
        lags: How far the nodes that copy from it are behind.
        verifier: The damage that is known.
        repairer: What was repaired.
        diverged: What was cut from logs.
        scrubber: How far the scrub is.
        retainer: What is kept only because somebody needs it.
        archiver: How far the last run of the archive is.
        indexer: How much has no key index yet.
    """

    config: BrokerConfig
    context: Context
    partitions: Partitions
    jobs: Jobs
    disks: DataDisks
    flush_times: Histogram
    server: Server
    gate: Gate
    presence: Presence
    follower: Follower
    lags: Lags
    verifier: Verifier
    repairer: Repairer
    diverged: DivergedFiles
    scrubber: Scrubber
    retainer: Retainer
    archiver: Archiver
    indexer: KeyIndexer
