"""Measures this machine, ZooKeeper and every broker; ``checks`` judges. Changes nothing.

Checks of the machine block for a moment; those of the cluster run on a loop.
"""

import asyncio
import os
import resource
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from vq.broker.base.config import BrokerConfig
from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.client.producer.intake import appender
from vq.coordination.leases import runs
from vq.coordination.tree.four_letter import four_letter_word, is_of_zookeeper
from vq.coordination.tree.paths import BROKERS
from vq.coordination.tree.probe import why_no_session
from vq.coordination.tree.reading import gather_all
from vq.errors import InvalidArgument, VqError
from vq.model import Address, NodeInfo, is_host
from vq.operations.archives.archive_runs import archive_history
from vq.operations.base.connect import cluster_client, cluster_names, there_are
from vq.operations.brokers.brokers import ping
from vq.operations.brokers.jobs import failing_jobs
from vq.operations.cluster import checks
from vq.operations.cluster.checks import ArchiveFacts, BrokerAnswer, Finding, Level
from vq.operations.cluster.cluster import BrokerReport, cluster_status
from vq.operations.topics.topics import readable_topics
from vq.store.disk.real_disk import RealDisk

_SAMPLES: Final = 7
#: A directory that has not answered for so long hangs.
ANSWER_S: Final = 10.0
_ZOOKEEPER_PORT: Final = 2181


# This machine ---------------------------------------------------------------------------------
def check_machine(config: BrokerConfig) -> list[Finding]:
    """Look at this machine as a place for a broker with ``config``, and for clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        checks.client_loops(compiled=appender.LOOPS_COMPILED),
        checks.open_files(soft, hard),
        *(finding for path in config.directories for finding in _disk(path, config)),
    ]


def _disk(path: Path, config: BrokerConfig) -> list[Finding]:
    """Return what is found of a directory; of one that hangs, such as a mount, that it does."""
    found: Future[list[Finding]] = Future()

    def look() -> None:
        try:
            found.set_result(_look(path, config))
        except BaseException as error:  # noqa: BLE001  raised below
            found.set_exception(error)

    threading.Thread(target=look, name="vq-doctor-disk", daemon=True).start()
    try:
        return found.result(ANSWER_S)
    except TimeoutError:
        return [checks.silent_directory(str(path), ANSWER_S)]


def _look(path: Path, config: BrokerConfig) -> list[Finding]:
    place = _existing(path.absolute())
    try:
        seconds = _sync_times(place)
    except OSError as error:
        return [checks.data_directory(str(place), error.strerror or str(error))]
    free, total = RealDisk().free_space(place)
    return [
        checks.data_directory(str(place), None),
        checks.disk_space(
            str(place),
            free,
            total,
            warn_at=config.disk_warn,
            refuse_at=config.disk_refuse,
        ),
        checks.disk_sync(str(place), seconds),
    ]


def _existing(path: Path) -> Path:
    """Return ``path`` or the nearest directory above it that is there."""
    while not path.exists():
        path = path.parent
    return path


def _sync_times(place: Path) -> list[float]:
    """Return how long fdatasync took after each of some small writes."""
    times = []
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        for _ in range(_SAMPLES):
            file.write(b"\0" * 4096)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return times


# The cluster ----------------------------------------------------------------------------------
async def check_cluster(
    config: MessageFactoryConfig, *, is_broker_here: bool = False
) -> list[Finding]:
    """Look at ZooKeeper and every registered broker.

    Args:
        config: Where the cluster is.
        is_broker_here: The settings are those of a broker, which may be the cluster's first: that
            none has registered is a warning then.
    """
    servers = [part.strip() for part in config.zookeeper.split(",")]
    versions = await asyncio.gather(
        *(asyncio.to_thread(server_version, server) for server in servers)
    )
    causes = "" if any(versions) else await why_no_session(",".join(servers))
    found = checks.zookeeper_servers(dict(zip(servers, versions, strict=True)), causes)
    if found.level is Level.FAIL:
        return [found]
    try:
        async with cluster_client(config, must_exist=False) as cluster:
            session = checks.zookeeper_session(await _latencies(cluster), None)
            is_known = await cluster.coordinator.exists(BROKERS) is not None
            others = "" if is_known else there_are(await cluster_names(config))
            brokers = await check_brokers(cluster, is_broker_here=is_broker_here, others=others)
            return [found, session, *brokers]
    except VqError as error:
        said = error.message.removesuffix(f"; {error.hint}")  # it may be to run the doctor
        return [found, checks.zookeeper_session((), said)]


def server_version(server: str) -> str | None:
    """Return the version of a ZooKeeper server; "unknown": it hides it, None: no answer."""
    try:
        host, number = Address.parse(server)
    except InvalidArgument:
        host, number = server.strip("[]"), _ZOOKEEPER_PORT
    if not is_host(host):
        return None
    answer = four_letter_word(host, number, "srvr")
    for line in answer.splitlines():
        if line.startswith("Zookeeper version: "):
            return line.removeprefix("Zookeeper version: ").split(",")[0].split("-")[0]
    return "unknown" if is_of_zookeeper(answer) else None


async def _latencies(cluster: ClusterClient) -> list[float]:
    times = []
    for _ in range(_SAMPLES):
        started = time.perf_counter()
        await cluster.coordinator.sync()
        times.append(time.perf_counter() - started)
    return times


async def check_brokers(
    cluster: ClusterClient, *, is_broker_here: bool = False, others: str = ""
) -> Sequence[Finding]:
    """Look at every registered broker, at the groups without a master, and at what is unsafe.

    ``others``: which clusters there are, if this one has never had a broker.
    """
    status = await cluster_status(cluster)
    answers = await gather_all(
        _answer(cluster, report, report.node)
        for report in status.brokers
        if report.node is not None
    )
    groups = {report.group.group: report.group.alive for report in status.brokers}
    causes = {each.group.group: each.error for each in status.brokers if not each.name}
    if not groups:
        return [checks.no_brokers(is_first=is_broker_here, others=others)]
    found = checks.brokers(groups, answers, status.unsafe, causes)
    return [*found, *checks.archive(await archive_facts(cluster))]


async def _answer(cluster: ClusterClient, report: BrokerReport, node: NodeInfo) -> BrokerAnswer:
    name, address = f"{node.group}/{node.node}", str(node.address)
    if report.error:
        return BrokerAnswer(name, address, error=report.error)
    try:
        trip_s, skew_s = await ping(cluster, node.address)
    except VqError as error:
        return BrokerAnswer(name, address, error=f"{type(error).__name__}: {error}")
    return BrokerAnswer(
        name,
        address,
        trip_s=trip_s,
        skew_s=skew_s,
        bad_partitions=[
            f"{each.topic}-{each.partition} is {each.state} ({each.reason})"
            for each in report.bad_partitions
            if each.failed
        ],
        damage=[str(each) for each in report.damage],
        damaged_ranges=report.damaged_ranges,
        problems=report.problems,
        disks=report.disks,
        deleted=report.deleted_topics,
        failing_jobs=failing_jobs([] if report.status is None else report.status.raw["jobs"]),
    )


async def archive_facts(cluster: ClusterClient) -> ArchiveFacts:
    """Return what ``vq doctor`` judges."""
    topics, _ = await readable_topics(cluster, reserved=True)
    wanted = sum(each.settings.archived_after_hours is not None for each in topics)
    if not wanted:
        return ArchiveFacts(0)
    now_ms = cluster.clock.wall_ms()
    newest = next((each for each in await archive_history(cluster) if not each.dry_run), None)
    failure = ""
    if newest is not None and newest.state in {"failed", "unreadable"}:
        failure = newest.error or newest.total.error or "it is not said why"
    found = await runs.read_runs(cluster.coordinator)
    made = [each.started_ms for each in found.known.values() if each.due_ms is not None]
    quiet_ms = now_ms - max([*made, found.since_ms])
    # Without either nobody has held the lease yet: the brokers are older than this vq, or starting.
    return ArchiveFacts(wanted, failure, quiet_ms / 1000 if made or found.since_ms else None)
