"""The parts of a started node, by name: for its start and stop, and for tests.

In here: what there is. Not in here: how they are put together, started and stopped (``node``).
"""

from dataclasses import dataclass

from vq.broker.base.runner import Runner
from vq.broker.base.tasks import Tasks
from vq.broker.disks.data_disks import DataDisks
from vq.broker.health.repairing import Repairer
from vq.broker.health.verifying import Verifier
from vq.broker.observe.monitor import Monitor
from vq.broker.observe.status import StatusReport
from vq.broker.partition.cold_reads import ColdReads
from vq.broker.partition.context import Context
from vq.broker.partition.logs import Logs
from vq.broker.partition.partitions import Partitions
from vq.broker.replication.doubt import Doubt
from vq.broker.replication.following import Follower
from vq.broker.replication.handing_over import HandOver
from vq.broker.replication.insync_set import InSyncSet
from vq.broker.replication.lease import Lease
from vq.broker.replication.mastership import Mastership
from vq.broker.replication.membership import Membership
from vq.broker.replication.presence import Presence
from vq.broker.replication.soundness import Soundness
from vq.broker.serving.dispatcher import Dispatcher
from vq.broker.serving.fetching import Fetches
from vq.broker.serving.finding import Finder
from vq.broker.serving.moving import Mover
from vq.broker.serving.server import Server
from vq.broker.upkeep import Upkeep
from vq.store.directory.directories import DataDirectories
from vq.store.disk.disk import Disk

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Built once, when the data directories are open. Each is used on the loop of the node.

    Attributes:
        tasks: What runs beside requests.
        runner: Blocking work.
        disk: The file system.
        directory: The data directories, locked, and whose they are.
        disks: The data directories: how full they are, and whether they are there.
        context: What all channels share: the role of the node, counters, storers, timers.
        partitions: The channels, their logs, and what ZooKeeper says of topics.
        logs: What is stored of partitions, in which directory.
        lease: Whether the node may still act as master.
        mastership: Whether it leads or follows, and in which epoch.
        insync: Which nodes are in sync with it, while it leads.
        hand_over: Hands the group over to another node.
        follower: Copies from the master, while it does not lead.
        membership: The cluster's secret.
        presence: What the group sees of the node.
        soundness: Whether it has damage, or full disks.
        doubt: Whether a loss of power took messages.
        verifier: Looks for damage, and knows what was found.
        repairer: Repairs damage from other nodes.
        upkeep: Scrub, retention, archive, key indexes, removals.
        finder: Searches for messages.
        mover: Seals and adopts partitions.
        fetches: The fetch sessions.
        cold_reads: Reads what is not in memory.
        dispatcher: Routes requests.
        server: The connections.
        status: The answer to STATUS.
        monitor: Metrics and health over HTTP.
    """

    tasks: Tasks
    runner: Runner
    disk: Disk
    directory: DataDirectories
    disks: DataDisks
    context: Context
    partitions: Partitions
    logs: Logs
    lease: Lease
    mastership: Mastership
    insync: InSyncSet
    hand_over: HandOver
    follower: Follower
    membership: Membership
    presence: Presence
    soundness: Soundness
    doubt: Doubt
    verifier: Verifier
    repairer: Repairer
    upkeep: Upkeep
    finder: Finder
    mover: Mover
    fetches: Fetches
    cold_reads: ColdReads
    dispatcher: Dispatcher
    server: Server
    status: StatusReport
    monitor: Monitor
