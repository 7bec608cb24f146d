"""``vq doctor``: measures, and lets ``checks`` conclude. Changes nothing in the cluster."""

import asyncio
import os
import resource
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from vq.admin.brokers import broker_status
from vq.admin.partitions import ping
from vq.broker.config import BrokerConfig
from vq.cli import checks
from vq.cli.checks import BrokerAnswer, Finding, Level
from vq.cli.connect import cluster_client
from vq.cli.errors import CommandFailed
from vq.cli.options import Invocation, command_options
from vq.cli.settings import build, is_given
from vq.cli.verify import damage_text
from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.client.producer import accumulator
from vq.coordination import registry
from vq.coordination.reading import gather_all
from vq.devtools.processes import ask_status
from vq.devtools.zookeeper import (
    MissingPart,
    find_jars,
    find_java,
    four_letter_word,
)
from vq.errors import InvalidArgument, VqError
from vq.model import Address, NodeInfo, is_host

_SAMPLES = 7
_ZOOKEEPER_PORT = 2181
_MARKS = {Level.OK: "ok  ", Level.WARN: "WARN", Level.FAIL: "FAIL"}


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data directory of a broker here.  [that of the settings, else .]",
)
@click.option("--local", is_flag=True, help="Only this machine, not the cluster.")
@command_options
def doctor(invocation: Invocation, data: Path | None, local: bool) -> None:
    """Check machine and cluster, and say what to do.

    Exit code 1 when something fails; warnings alone are fine.
    """
    config = _broker_config(invocation, data)
    findings = check_machine(config)
    if not local:
        findings += asyncio.run(check_cluster(invocation.client_config()))
    _print(invocation, findings)
    failed = sum(finding.level is Level.FAIL for finding in findings)
    if failed:
        raise CommandFailed(f"{failed} of {len(findings)} checks failed")


def _broker_config(invocation: Invocation, data: Path | None) -> BrokerConfig:
    """Return the settings a broker here would have; what it must be told is filled in."""
    sources = invocation.sources.with_flags(data=data)
    for name, value in (("data", Path()), ("group", "doctor"), ("node", "doctor")):
        if not is_given("broker", name, sources):
            sources = sources.with_flags(**{name: value})
    return build(BrokerConfig, "broker", sources)


def _print(invocation: Invocation, findings: Sequence[Finding]) -> None:
    output = invocation.output
    if output.as_json:
        output.document(
            [
                {
                    "check": finding.check,
                    "level": str(finding.level),
                    "detail": finding.detail,
                    "remedy": finding.remedy,
                }
                for finding in findings
            ]
        )
        return
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        output.line(f"{_MARKS[finding.level]}  {finding.check.ljust(width)}  {finding.detail}")
        if finding.remedy:
            output.line(f"{' ' * (width + 6)}  -> {finding.remedy}")


# This machine ---------------------------------------------------------------------------------
def check_machine(config: BrokerConfig) -> list[Finding]:
    """Look at this machine as a place for a broker with ``config``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        _part("java", lambda: str(find_java())),
        _part("zookeeper jars", lambda: str(find_jars()[0].parent)),
        checks.client_loops(compiled=accumulator.LOOPS_COMPILED),
        checks.open_files(soft, hard),
        *_disk(config),
        _port(Address(config.host, config.port)),
    ]


def _part(check: str, find: Callable[[], str]) -> Finding:
    try:
        return checks.part(check, find(), "")
    except MissingPart as error:
        return checks.part(check, None, str(error))


def _disk(config: BrokerConfig) -> list[Finding]:
    place = _existing(config.data.absolute())
    try:
        seconds = _sync_times(place)
    except OSError as error:
        return [checks.data_directory(str(place), error.strerror or str(error))]
    usage = shutil.disk_usage(place)
    return [
        checks.data_directory(str(place), None),
        checks.disk_space(
            str(place),
            usage.free,
            usage.total,
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


def _port(address: Address) -> Finding:
    if address.port == 0:
        return checks.broker_port(str(address), None, None)
    error = None
    try:
        _bind_once(address)
    except OSError as refused:
        error = refused.strerror or str(refused)
    status = asyncio.run(ask_status(address)) if error is not None else None
    broker = None if status is None else f"broker {status.group}/{status.node} of {status.cluster}"
    return checks.broker_port(str(address), error, broker)


def _bind_once(address: Address) -> None:
    """Take the address and give it back, in each family that its host has.

    Raises:
        OSError: It cannot be had.
    """
    found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, kind, protocol, _, where in found:
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            probe.bind(where)


# The cluster ----------------------------------------------------------------------------------
async def check_cluster(config: MessageFactoryConfig) -> list[Finding]:
    """Look at ZooKeeper and every registered broker."""
    servers = [part.strip() for part in config.zookeeper.split(",")]
    versions = await asyncio.gather(*(asyncio.to_thread(_version, server) for server in servers))
    found = checks.zookeeper_servers(dict(zip(servers, versions, strict=True)))
    if found.level is Level.FAIL:
        return [found]
    try:
        async with cluster_client(config) as cluster:
            session = checks.zookeeper_session(await _latencies(cluster), None)
            return [found, session, *await _brokers(cluster)]
    except VqError as error:
        return [found, checks.zookeeper_session((), str(error))]


def _version(server: str) -> str | None:
    """Return a server's version, "unknown" when it answers but hides it, None without answer."""
    try:
        host, number = Address.parse(server)
    except InvalidArgument:
        host, number = server.strip("[]"), _ZOOKEEPER_PORT
    if not is_host(host):
        return None
    for line in four_letter_word(host, number, "srvr").splitlines():
        if line.startswith("Zookeeper version: "):
            return line.removeprefix("Zookeeper version: ").split(",")[0].split("-")[0]
    try:
        with socket.create_connection((host, number), timeout=1.0):
            return "unknown"
    except OSError:
        return None


async def _latencies(cluster: ClusterClient) -> list[float]:
    times = []
    for _ in range(_SAMPLES):
        started = time.perf_counter()
        await cluster.coordinator.sync()
        times.append(time.perf_counter() - started)
    return times


async def _brokers(cluster: ClusterClient) -> list[Finding]:
    views = await registry.groups(cluster.coordinator)
    nodes = await gather_all(registry.nodes(cluster.coordinator, view.group) for view in views)
    answers = await gather_all(_ask(cluster, node) for some in nodes for node in some)
    return checks.brokers({view.group: view.alive for view in views}, answers)


async def _ask(cluster: ClusterClient, node: NodeInfo) -> BrokerAnswer:
    name, address = f"{node.group}/{node.node}", str(node.address)
    try:
        trip_s, skew_s = await ping(cluster, node.address)
        status = await broker_status(cluster, node.address)
    except VqError as error:
        return BrokerAnswer(name, address, error=f"{type(error).__name__}: {error}")
    damage = [
        damage_text(part["topic"], part["partition"], node.group, each)
        for part in status.raw["partitions"]
        for each in part["damage"]
    ]
    bad = [
        f"{each['topic']}-{each['partition']} is {each['state']} ({each['reason']})"
        for each in status.raw["partitions"]
        if each["state"] in {"failed", "quarantined"}
    ]
    return BrokerAnswer(
        name,
        address,
        trip_s=trip_s,
        skew_s=skew_s,
        bad_partitions=bad,
        damage=damage,
        damaged_ranges=sum(part["damaged_ranges"] for part in status.raw["partitions"]),
        problems=status.raw["problems"],
    )
