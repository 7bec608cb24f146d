"""``vq bench``: what this machine and this cluster give, measured from client processes.

Topics and groups of its own, deleted afterwards; each measurement is a process of its own
(``worker``) and everything sent is read back and compared. What the bare machine would give, other
queues, and the project's own targets are not known here: see ``bench/``.
"""

import contextlib
import dataclasses
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from vq.cli.base.json_schema import maybe, record, shows, some
from vq.cli.base.options import (
    Invocation,
    Seconds,
    WholeNumber,
    command_options,
    flag,
    no_effect,
    option,
)
from vq.cli.bench import worker
from vq.client.config import MessageFactoryConfig
from vq.client.environment import export_tls
from vq.coordination.groups import groups
from vq.coordination.topics import topics
from vq.devtools.processes import BrokerChild, BrokerSpec
from vq.devtools.zookeeper import EmbeddedZooKeeper
from vq.errors import InvalidArgument
from vq.model import Address, FlushMode, TopicSettings
from vq.operations.base.connect import cluster_client
from vq.remoting.ports import free_port

PARTS = ("async", "sync", "consume", "latency")
_COLUMNS = "benchmark messages per_second mb_per_s p50_ms p99_ms max_ms"
_WARM_UP_S = 1.0
#: The parts that an option has an effect on; ``consume`` receives what ``async`` would send.
_USED_BY = {
    "messages": ("async", "consume"),
    "seconds": ("sync", "latency"),
    "threads": ("async", "consume", "sync"),
    "rate": ("latency",),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send and receive; see the command's options."""

    parts: tuple[str, ...]
    messages: int
    size: int
    partitions: int
    threads: int
    flush: FlushMode
    seconds: float
    rate: int


class Bench:
    """The measurements, over one cluster; topics and groups have one random prefix."""

    def __init__(self, invocation: Invocation, config: MessageFactoryConfig, load: Load) -> None:
        self._invocation = invocation
        self._config = config
        self._load = load
        self._prefix = f"vq-bench-{secrets.token_hex(4)}"
        # Workers have the files of TLS from their environment.
        self._client = {
            item.name: getattr(config, item.name)
            for item in dataclasses.fields(config)
            if not item.name.endswith("tls")
        }

    def run(self) -> list[dict[str, Any]]:
        """Run every part that was asked for and return a row for each."""
        load, rows = self._load, []
        if "async" in load.parts or "consume" in load.parts:
            with self._topic("bulk") as topic:
                sent = self._send_async(topic)
                if "async" in load.parts:
                    rows.append(_row(_name("send_async", load), sent, load.size))
                if "consume" in load.parts:
                    rows.append(_row("consume, a listener", self._consume(topic, sent), load.size))
        if "sync" in load.parts:
            with self._topic("sync") as topic:
                rows.append(_row(_name("send_sync", load), self._send_sync(topic), load.size))
        if "latency" in load.parts:
            with self._topic("latency") as topic:
                name = f"end to end, {load.rate}/s"
                rows.append(_row(name, self._latency(topic), load.size))
        return rows

    def _send_async(self, topic: str) -> dict[str, Any]:
        load = self._load
        self._remark(f"send_async: {load.messages} messages of {load.size} bytes")
        sent = worker.run(
            "send_async",
            client=self._client,
            topic=topic,
            count=load.messages,
            size=load.size,
            threads=load.threads,
        )
        self._verify(topic, sent)
        return sent

    def _send_sync(self, topic: str) -> dict[str, Any]:
        load = self._load
        self._remark(f"send_sync: {load.seconds:g} s from {load.threads} thread(s)")
        sent = worker.run(
            "send_sync",
            client=self._client,
            topic=topic,
            seconds=load.seconds,
            size=load.size,
            threads=load.threads,
        )
        self._verify(topic, sent)
        return sent

    def _verify(self, topic: str, sent: dict[str, Any]) -> None:
        self._remark("  reading back and comparing")
        worker.run(
            "verify", client=self._client, topic=topic, size=self._load.size, sent=sent["sent"]
        )

    def _consume(self, topic: str, sent: dict[str, Any]) -> dict[str, Any]:
        count = sent["messages"]
        self._remark(f"consume: {count} messages")
        measured = worker.run(
            "consume",
            client=self._client,
            topic=topic,
            group=self._group,
            count=count,
            size=self._load.size,
            sent=sent["sent"],
        )
        return {**measured, "received": count}

    def _latency(self, topic: str) -> dict[str, Any]:
        load = self._load
        seconds = load.seconds + _WARM_UP_S
        self._remark(f"latency: {load.rate} messages/s for {seconds:g} s")
        receive = worker.Worker(
            "receive_on_schedule",
            client=self._client,
            topic=topic,
            group=self._group,
            count=int(load.rate * seconds),
            warm_up=int(load.rate * _WARM_UP_S),
            rate=load.rate,
            size=load.size,
        )
        send = worker.Worker(
            "send_on_schedule",
            client=self._client,
            topic=topic,
            rate=load.rate,
            seconds=seconds,
            size=load.size,
        )
        with receive, send:
            sent, received = worker.on_schedule(send, receive)
        self._verify(topic, sent)
        return {**sent, **received, "seconds": load.seconds}

    # Topics and groups --------------------------------------------------------------------------
    @property
    def _group(self) -> str:
        return f"{self._prefix}-group"

    @contextlib.contextmanager
    def _topic(self, name: str) -> Iterator[str]:
        """Make a topic for one part; delete it and the group afterwards."""
        topic = f"{self._prefix}-{name}"
        settings = TopicSettings(
            partitions=self._load.partitions, flush=self._load.flush, retention_hours=1
        )

        async def create() -> None:
            async with cluster_client(self._config) as cluster:
                await topics.create_topic(cluster.coordinator, topic, settings)

        async def delete() -> None:
            async with cluster_client(self._config) as cluster:
                if self._group in await groups.list_groups(cluster.coordinator):
                    await groups.delete_group(cluster.coordinator, self._group)
                await topics.delete_topic(cluster.coordinator, topic)

        self._invocation.run(create())
        try:
            yield topic
        finally:
            self._invocation.run(delete())

    def _remark(self, text: str) -> None:
        self._invocation.output.remark(text)


def _name(what: str, load: Load) -> str:
    return what if load.threads == 1 else f"{what}, {load.threads} threads"


def _row(name: str, measured: dict[str, Any], size: int) -> dict[str, Any]:
    timed = measured["messages"]  # of those received, all but the one that starts the clock
    rate = timed / measured["seconds"] if timed else None
    latency = measured.get("latency_ms", {})
    return {
        "benchmark": name,
        "messages": measured.get("received", timed),
        "seconds": round(measured["seconds"], 3),
        "per_second": None if rate is None else round(rate),
        "mb_per_s": None if rate is None else round(rate * size / 1e6, 3),
        **{f"{key}_ms": _ms(latency.get(key)) for key in ("p50", "p90", "p99", "p99.9", "max")},
    }


def _json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for a program: in bytes and seconds, and null for what was not measured."""
    values: dict[str, Any] = {}
    for name, value in row.items():
        if name == "mb_per_s":
            values["bytes_per_s"] = None if value is None else round(value * 1e6)
        elif name.endswith("_ms"):
            measured = None if value == "-" else round(value / 1000, 6)
            values[name.removesuffix("_ms") + "_s"] = measured
        else:
            values[name] = value
    return values


def _ms(value: float | None) -> float | str:
    return "-" if value is None else round(value, 3)


@contextlib.contextmanager
def temporary_cluster(cluster: str) -> Iterator[str]:
    """Start ZooKeeper and one broker in a temporary directory; yield ZooKeeper's address."""
    with (
        tempfile.TemporaryDirectory(prefix="vq-bench-") as scratch,
        EmbeddedZooKeeper(Path(scratch) / "zookeeper") as zookeeper,
    ):
        broker = BrokerChild(
            BrokerSpec(
                data=Path(scratch) / "b1",
                group="b1",
                node="n1",
                address=Address("127.0.0.1", free_port()),
                zookeeper=zookeeper.hosts,
                cluster=cluster,
            )
        )
        try:
            broker.start()
            broker.wait_ready()
            yield zookeeper.hosts
        finally:
            broker.stop()


def _parts(_context: click.Context, _option: click.Parameter, names: tuple[str, ...]) -> Any:
    return tuple(name for name in PARTS if name in names) if names else PARTS


def _given(context: click.Context) -> dict[str, Any]:
    """Return the options that stand on the command line, with their values."""
    typed = click.core.ParameterSource.COMMANDLINE
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is typed
    }


def _check_used(parts: tuple[str, ...], given: Mapping[str, Any]) -> None:
    """Check that some part that is measured uses each option that was given.

    Raises:
        click.UsageError: None does.
    """
    for name, users in _USED_BY.items():
        if name in given and not set(users) & set(parts):
            raise no_effect(
                f"--{name} {given[name]}",
                "with --only " + " --only ".join(parts),
                f"add --only {users[-1]}",
            )


@click.command()
@flag("--standalone", "Measure a temporary cluster of one broker, started here.")
@option("--only ... as parts", "Measure only this; may be given again.", PARTS, callback=_parts)
@option(
    "--messages N", "How many for async and consume.", WholeNumber(1, 50_000_000), default=200_000
)
@option("--seconds S", "How long for sync and latency.", Seconds(0.1, 3600), default=3.0)
@option("--size BYTES", "Content of each message.", WholeNumber(8, 1 << 20), default=128)
@option("--partitions N", "Partitions of each topic made.", WholeNumber(1, 256), default=1)
@option("--threads N", "Sending threads for async and sync.", WholeNumber(1, 64), default=1)
@option(
    "--flush",
    "sync: acknowledged after fdatasync; async: after the write.",
    FlushMode,
    default=str(FlushMode.SYNC),
)
@option("--rate N", "Messages a second for latency.", WholeNumber(1, 1_000_000), default=5_000)
@shows(
    some(
        record(
            benchmark=str,
            messages=int,
            seconds=float,
            per_second=maybe(int),
            bytes_per_s=maybe(int),
            **{f"{name}_s": maybe(float) for name in ("p50", "p90", "p99", "p99.9", "max")},
        )
    )
)
@command_options
def bench(invocation: Invocation, *, standalone: bool, flush: str, **values: Any) -> None:
    """Measure throughput and latency of the cluster.

    async and sync send, consume receives with a listener, latency sends by the clock and measures
    from when each message was due. Everything acknowledged is read back and compared; exit code 1
    when anything is missing, doubled, altered or out of order. Topics are deleted afterwards.
    """
    _check_used(values["parts"], _given(click.get_current_context()))
    load = Load(flush=FlushMode(flush), **values)
    config = invocation.client_config()
    with contextlib.ExitStack() as stack:
        if standalone:
            if "zookeeper" in invocation.sources.flags:
                raise InvalidArgument("--standalone starts its own ZooKeeper: leave --zookeeper")
            invocation.output.remark("starting a temporary ZooKeeper and broker ...")
            hosts = stack.enter_context(temporary_cluster(config.cluster))
            config = dataclasses.replace(config, zookeeper=hosts, tls=None, zookeeper_tls=None)
        export_tls(config.tls, config.zookeeper_tls)
        rows = Bench(invocation, config, load).run()
    if not invocation.output.document([_json(row) for row in rows]):
        invocation.output.table(rows, columns=_COLUMNS)
