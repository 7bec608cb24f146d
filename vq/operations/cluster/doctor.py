"""Measures this machine, ZooKeeper and every broker; ``checks`` judges. Changes nothing.

Checks of the machine block for a moment; those of the cluster run on a loop.
"""

import asyncio
import contextlib
import os
import resource
import ssl
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from vq.branches import check_prepares, prepared_in
from vq.broker.base.config import BrokerConfig
from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.client.producer.intake import appender
from vq.coordination.groups import groups
from vq.coordination.leases import runs
from vq.coordination.topics.summaries import read_summaries
from vq.coordination.tree.coordinator import Unreadable
from vq.coordination.tree.paths import BROKERS
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values.group_terms import ANY_STORE, ZOOKEEPER
from vq.coordination.zookeeper.four_letter import four_letter_word, is_of_zookeeper
from vq.coordination.zookeeper.probe import why_no_session
from vq.errors import InvalidArgument, VqError
from vq.limits import PARTITIONS_PER_TOPIC_MAX
from vq.log_lines import get_logger
from vq.model import Address, NodeInfo, is_host
from vq.offset_stores.sql import engine_of
from vq.operations.archives.archive_runs import archive_history
from vq.operations.base.connect import cluster_client, cluster_names, there_are
from vq.operations.brokers.brokers import ping
from vq.operations.brokers.jobs import failing_jobs
from vq.operations.cluster import checks
from vq.operations.cluster.checks import (
    ArchiveFacts,
    BrokerAnswer,
    Finding,
    GroupOffsets,
    Level,
)
from vq.operations.cluster.cluster import BrokerReport, cluster_status
from vq.operations.topics.topics import readable_topics
from vq.operations.tree.securing import identities_of, open_at_top
from vq.remoting.ports import is_loopback
from vq.security.tls import TlsContexts
from vq.store.disk.real_disk import RealDisk

logger = get_logger(__name__)
_SAMPLES: Final = 7
#: A directory that has not answered for so long hangs.
ANSWER_S: Final = 10.0
_ZOOKEEPER_PORT: Final = 2181
#: A database of an application is asked for so long.
_DATABASE_S: Final = 5.0
#: A member takes what an operator sets within seconds.
ORDER_QUIET_MS: Final = 300_000


# This machine ---------------------------------------------------------------------------------
def check_machine(config: BrokerConfig) -> list[Finding]:
    """Look at this machine as a place for a broker with ``config``, and for clients."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        checks.client_loops(compiled=appender.LOOPS_COMPILED),
        checks.open_files(soft, hard),
        *(finding for path in config.directories for finding in _disk(path, config)),
    ]


def check_certificate(config: BrokerConfig) -> list[Finding]:
    """Look at the files of TLS of a broker with ``config``; [] without TLS."""
    if config.tls is None:
        return []
    host = config.host if config.advertised is None else config.advertised.host
    asked = config.tls_client_certificates
    try:
        contexts = TlsContexts(config.tls, client_certificates=asked, serves=True)
    except InvalidArgument as error:
        return [checks.certificate(0.0, str(error))]
    refusal = contexts.why_not_for(host)
    left_s = (contexts.expires_s or 0.0) - time.time()
    return [checks.certificate(left_s, refusal and f"others cannot reach {host}: {refusal}")]


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
    wanted = path.absolute()
    place = _existing(wanted)
    try:
        seconds = sync_times(place)
    except OSError as error:
        return [checks.data_directory(str(wanted), str(place), error.strerror or str(error))]
    free, total = RealDisk().free_space(place)
    return [
        checks.data_directory(str(wanted), str(place), None),
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


def sync_times(place: Path) -> list[float]:
    """Return how long fdatasync took after each of some small writes."""
    times = []
    with tempfile.TemporaryFile(dir=place, buffering=0) as file:
        for _ in range(_SAMPLES):
            file.write(b"\0" * 4096)
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - started)
    return times


# Databases of applications ----------------------------------------------------------------------
def check_database(url: str) -> Finding:
    """Look at a database that takes part in transactions.

    Raises:
        InvalidArgument: The URL is none of SQLAlchemy, or of a database that vq does not know.
    """
    engine = engine_of(url, _DATABASE_S)
    check = f"database {engine.url.database}"
    where = engine.url.render_as_string(hide_password=True)
    try:
        with contextlib.closing(engine.raw_connection()) as raw:
            check_prepares(raw.driver_connection)
            count = len(prepared_in(raw.driver_connection))
    except VqError as error:
        return checks.fail(check, f"{where}: {error.message}", error.hint)
    except Exception as error:  # noqa: BLE001 - drivers raise what they like
        told = f"{where}: {type(error).__name__}: {error}"
        return checks.fail(check, told, "is the server up?")
    finally:
        engine.dispose()
    return checks.ok(check, f"{where}: it takes part in transactions; {count} are prepared there")


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
    contexts = None if config.zookeeper_tls is None else TlsContexts(config.zookeeper_tls)
    context = None if contexts is None else contexts.client()
    versions = await asyncio.gather(
        *(asyncio.to_thread(server_version, server, context) for server in servers)
    )
    causes = "" if any(versions) else await why_no_session(",".join(servers), contexts)
    by_server = dict(zip(servers, versions, strict=True))
    found = checks.zookeeper_servers(by_server, causes, secure=contexts is not None)
    if found.level is Level.FAIL:
        return [found]
    try:
        async with cluster_client(config, must_exist=False) as cluster:
            session = checks.zookeeper_session(await _latencies(cluster), None)
            secured = await identities_of(cluster) is not None
            loopback = all(is_loopback(each.rpartition(":")[0] or each) for each in servers)
            tree = checks.tree(await open_at_top(cluster), secured=secured, loopback=loopback)
            is_known = await cluster.coordinator.exists(BROKERS) is not None
            others = "" if is_known else there_are(await cluster_names(config))
            brokers = await check_brokers(cluster, is_broker_here=is_broker_here, others=others)
            return [found, session, tree, *brokers]
    except VqError as error:
        said = error.message.removesuffix(f"; {error.hint}")  # it may be to run the doctor
        return [found, checks.zookeeper_session((), said)]


def server_version(server: str, context: ssl.SSLContext | None = None) -> str | None:
    """Return the version of a ZooKeeper server; "unknown": it hides it, None: no answer."""
    try:
        host, number = Address.parse(server)
    except InvalidArgument:
        host, number = server.strip("[]"), _ZOOKEEPER_PORT
    if not is_host(host):
        return None
    answer = four_letter_word(host, number, "srvr", context=context)
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
    alive = {report.group.group: report.group.alive for report in status.brokers}
    causes = {each.group.group: each.error for each in status.brokers if not each.name}
    if not alive:
        return [checks.no_brokers(is_first=is_broker_here, others=others)]
    found = checks.brokers(alive, answers, status.unsafe, causes)
    archive = checks.archive(await archive_facts(cluster))
    return [*found, *archive, *checks.offset_stores(await offset_facts(cluster))]


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
        certificate_left_s=_certificate_left_s(cluster, report),
    )


def _certificate_left_s(cluster: ClusterClient, report: BrokerReport) -> float | None:
    ends_ms = 0 if report.status is None else report.status.raw["tls_expires_ms"]
    return (ends_ms - cluster.clock.wall_ms()) / 1_000 if ends_ms else None


async def offset_facts(cluster: ClusterClient) -> list[GroupOffsets]:
    """Return what is to be known of the offsets of all groups that can be read.

    It lists the partitions of each; the offsets themselves are read where a store outside of
    ZooKeeper has them.
    """
    coordinator = cluster.coordinator
    counts, unreadable = await read_summaries(coordinator)
    partitions = {each.name: each.settings.partitions for each in counts}
    partitions |= dict.fromkeys(unreadable, PARTITIONS_PER_TOPIC_MAX)
    names = await groups.list_groups(coordinator)
    found = await gather_all(_offsets_of(cluster, each, partitions) for each in names)
    return [each for each in found if each is not None]


async def _offsets_of(
    cluster: ClusterClient, group: str, partitions: Mapping[str, int]
) -> GroupOffsets | None:
    try:
        contract = await groups.read_group(cluster.coordinator, group)
        if contract is None:
            return None
        homeless: list[str] = []
        for topic in await cluster.offsets.topics(group):
            numbers = await cluster.offsets.partitions(group, topic)
            if numbers and topic not in partitions:
                homeless.append(topic)
            count = partitions.get(topic, PARTITIONS_PER_TOPIC_MAX)
            homeless += [f"{topic}-{number}" for number in numbers if number >= count]
        orders: list[str] = []
        if contract.offset_store not in {ZOOKEEPER, ANY_STORE}:
            before_ms = cluster.clock.wall_ms() - ORDER_QUIET_MS
            read = await cluster.offsets.read(group, await cluster.offsets.topics(group))
            orders = [
                str(partition)
                for partition, offset in sorted(read.items())
                if not offset.copied and offset.time_ms < before_ms
            ]
        members = len(await groups.member_names(cluster.coordinator, group))
    except (Unreadable, InvalidArgument) as error:
        logger.info("offsets of a group cannot be read", group=group, error=error)
        return None
    return GroupOffsets(group, contract.offset_store, members, orders, homeless)


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
