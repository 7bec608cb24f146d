"""The project's speed targets as scenarios: the load, the baseline and the target.

A scenario is a generator of rounds. Each round is a list of figures; the baseline is measured just
before the figure that is compared with it. ``make bench`` runs the list ``SCENARIOS``.
"""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench import baseline
from bench.access import access, quotas
from bench.cluster import Cluster
from bench.console import TARGETS as CONSOLE_TARGETS
from bench.console import console
from bench.context import Context, Rounds
from bench.delays import delays
from bench.features import features
from bench.figures import Figure, Target
from bench.filters import filters
from bench.gateway import gateway
from bench.groups import TARGETS as GROUP_TARGETS
from bench.groups import groups
from bench.history import history
from bench.metadata import METADATA_PARTITIONS, metadata
from bench.modes import DISTURBED, WORKING_DISTURBED, modes
from bench.processor import memory_of, processor_s
from bench.replication import TARGETS as REPLICATION_TARGETS
from bench.replication import replication
from bench.requests import TARGETS as REQUEST_TARGETS
from bench.requests import requests
from bench.sends import sends
from bench.shared import TARGETS as SHARED_TARGETS
from bench.shared import shared
from bench.tls import TARGETS as TLS_TARGETS
from bench.tls import tls
from bench.transactions import TRANSFORMED, transactions
from vq.cli.bench.worker import on_schedule
from vq.client.producer.intake import appender

GB: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario: its name, its description, its function and its targets."""

    name: str
    about: str
    run: Callable[[Context], Rounds]
    targets: Mapping[str, Target] = field(default_factory=dict)


# Throughput -----------------------------------------------------------------------------------
def small_messages(context: Context) -> Rounds:
    """128 bytes: sent with a callback each, read back, received by a listener.

    With the client's loops as they are installed, then in Python.
    """
    count = context.pick(1_000_000, 100_000)
    kinds = ((True, ""), (False, ", loops in Python")) if appender.LOOPS_COMPILED else ((True, ""),)
    with context.cluster() as cluster:
        _warm_up(cluster, 128)
        for _ in range(context.rounds):
            figures = []
            for compiled, which in kinds:
                topic = cluster.topic()
                load = {"topic": topic, "size": 128, "compiled": compiled}
                space = baseline.pipelined(context.scratch, context.baseline_s)
                sent = cluster.run("send_async", count=count, **load)
                cluster.run("verify", sent=sent["sent"], **load)
                space_out = baseline.pipelined(context.scratch, context.baseline_s)
                got = cluster.run("consume", group=topic, count=count, **load)
                cluster.drop(topic)
                name, name_out = "send_async, callback per message", "consume, listener per message"
                figures.append(Figure(name + which, _rate(sent), "msg/s", space))
                figures.append(Figure(name_out + which, _rate(got), "msg/s", space_out))
            yield figures


def one_by_one(context: Context) -> Rounds:
    """128 bytes, each waiting for its acknowledgement: one thread, then four, then 64.

    The figures also show the baseline with client and server on a core each, the rate of one bare
    round trip plus one bare fdatasync, and what one thread needs beyond an fdatasync.
    """
    seconds = 1.0 if context.quick else 5.0
    with context.cluster() as cluster:
        _warm_up(cluster, 128)
        for _ in range(context.rounds):
            figures = []
            alone = 0.0  # the rate of one thread
            for threads in (1, 4, 64):
                topic = cluster.topic()
                space, round_trip_s = baseline.one_at_a_time(context.scratch, context.baseline_s)
                apart, apart_s = baseline.one_at_a_time(
                    context.scratch, context.baseline_s, apart=True
                )
                fdatasync_s = baseline.fdatasync_s(context.scratch)
                sent = cluster.run(
                    "send_sync", topic=topic, seconds=seconds, size=128, threads=threads
                )
                cluster.run("verify", topic=topic, size=128, sent=sent["sent"])
                cluster.drop(topic)
                name = f"send_sync, {threads} thread{'s' * (threads > 1)}"
                latency = sent["latency_ms"]
                figures.append(Figure(name, _rate(sent), "msg/s", space, details=latency))
                figures.append(Figure(f"{name}, p50", latency["p50"], "ms", round_trip_s * 1e3))
                figures.append(
                    Figure(f"{name} (baseline on two cores)", _rate(sent), "msg/s", apart)
                )
                if threads == 1:
                    alone = _rate(sent)
                    above_s = 1 / alone - fdatasync_s
                    figures += [
                        Figure(
                            f"{name} (round trip + fdatasync)",
                            alone,
                            "msg/s",
                            1 / (apart_s + fdatasync_s),
                        ),
                        Figure(f"{name}, beyond fdatasync", above_s * 1e3, "ms", apart_s * 1e3),
                    ]
                else:
                    figures.append(Figure(f"{name}, beside one", _rate(sent), "msg/s", alone))
                limit = (10 * round_trip_s + fdatasync_s) * 1e3
                figures.append(
                    Figure(f"{name}, p99", latency["p99"], "ms", round_trip_s * 1e3, limit)
                )
            yield figures


def large_messages(context: Context) -> Rounds:
    """1 KiB: in with callbacks, out to a listener, and the raw bytes without decoding.

    What comes in is shown beside bare frames that are stored into a log, too: for what is new in
    memory, the kernel has to find pages.
    """
    count = context.pick(250_000, 30_000)
    with context.cluster() as cluster:
        _warm_up(cluster, 1024)
        for _ in range(context.rounds):
            topic = cluster.topic()
            spaces = [baseline.large_bytes(context.scratch, context.baseline_s) / 1e6]
            log = baseline.large_bytes(context.scratch, context.baseline_s, log=True) / 1e6
            sent = cluster.run("send_async", topic=topic, count=count, size=1024)
            cluster.run("verify", topic=topic, size=1024, sent=sent["sent"])
            spaces.append(baseline.large_bytes(context.scratch, context.baseline_s) / 1e6)
            out = cluster.run("consume", topic=topic, group=topic, count=count, size=1024)
            spaces.append(baseline.large_bytes(context.scratch, context.baseline_s) / 1e6)
            raw = cluster.run(
                "raw_fetch",
                topic=topic,
                address=str(cluster.broker.spec.address),
                passes=context.pick(8, 3),
                size=1024,
                sent=sent["sent"],
            )
            cluster.drop(topic)
            yield [
                Figure("1 KiB in", _rate(sent) * 1024 / 1e6, "MB/s", spaces[0]),
                Figure("1 KiB in (baseline: into a log)", _rate(sent) * 1024 / 1e6, "MB/s", log),
                Figure("1 KiB out", _rate(out) * 1024 / 1e6, "MB/s", spaces[1]),
                Figure("raw fetch", raw["bytes"] / raw["seconds"] / 1e6, "MB/s", spaces[2]),
            ]


# Latency ----------------------------------------------------------------------------------------
def latency(context: Context) -> Rounds:
    """128 bytes at 5 000 a second: the time from a message's scheduled send to its listener."""
    rate, warm_up_s = 5_000, 1.0
    seconds = 2.0 if context.quick else 10.0
    with context.cluster() as cluster:
        _warm_up(cluster, 128)
        for _ in range(context.rounds):
            topic = cluster.topic()
            _, round_trip_s = baseline.one_at_a_time(context.scratch, context.baseline_s)
            fdatasync_s = baseline.fdatasync_s(context.scratch)
            receive = cluster.worker(
                "receive_on_schedule",
                topic=topic,
                group=topic,
                count=int(rate * (seconds + warm_up_s)),
                warm_up=int(rate * warm_up_s),
                rate=rate,
                size=128,
            )
            send = cluster.worker(
                "send_on_schedule", topic=topic, rate=rate, seconds=seconds + warm_up_s, size=128
            )
            with receive, send:
                sent, received = on_schedule(send, receive)
            cluster.run("verify", topic=topic, size=128, sent=sent["sent"])
            cluster.drop(topic)
            bare = (round_trip_s + fdatasync_s) * 1e3
            found = received["latency_ms"]
            details = {**found, "latest_send_ms": sent["latest_send_ms"]}
            yield [
                Figure("end to end at 5 000/s, p50", found["p50"], "ms", bare, details=details),
                Figure("end to end at 5 000/s, p99", found["p99"], "ms", bare),
            ]


# Starting ---------------------------------------------------------------------------------------
def restart(context: Context) -> Rounds:
    """kill -9 while a producer sends; the time from the new process to its next acknowledgement."""
    size, step = 1024, 200_000
    wanted = context.pick(2 * GB, 100_000_000)
    with context.cluster() as cluster:
        topic = cluster.topic()
        sent = 0
        while sent * size < wanted:
            count = min(step, -(-wanted // size) - sent)
            cluster.run("send_async", topic=topic, count=count, size=size, first=sent)
            sent += count
        context.say(f"  {sent * size / GB:.1f} GB of log")
        streams = {"0": sent}
        for number in range(1, context.rounds + 1):
            figures = []
            for cold in (False, True):
                stream = number * 2 + cold
                first_ack_s, ready_s, sent_by = _killed(cluster, topic, size, stream, cold=cold)
                streams |= sent_by
                name = "first ack after kill -9" + (", page cache dropped" if cold else "")
                figures.append(Figure(name, first_ack_s, "s", details={"ready_s": ready_s}))
            yield figures
        context.say("  reading everything back")
        cluster.run("verify", topic=topic, size=size, sent=streams)


def _killed(
    cluster: Cluster, topic: str, size: int, stream: int, *, cold: bool
) -> tuple[float, float, dict[str, int]]:
    """Kill and start the broker while a client sends; return both times and the sent messages."""
    with cluster.worker("keep_sending", topic=topic, size=size, stream=stream) as sender:
        sender.wait_ready().go()
        sender.wait_ready()
        time.sleep(0.5)  # let it send for a while
        cluster.broker.kill()
        if cold:
            _drop_cache(cluster.log_files())
        begin = time.monotonic()
        cluster.broker.start()
        cluster.broker.wait_ready()
        ready_s = time.monotonic() - begin
        time.sleep(2.0)
        result = sender.go().result()
    gap = next(after for before, after in result["gaps"] if before <= begin < after)
    return gap - begin, ready_s, result["sent"]


def _drop_cache(files: list[Path]) -> None:
    """Drop the page cache of files, so that the next reads come from the disk."""
    for path in files:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# An idle broker ---------------------------------------------------------------------------------
def idle(context: Context) -> Rounds:
    """1 000 partitions with a message each, 500 connections whose GETs wait in all of them."""
    partitions, consumers = context.pick(1_000, 200), context.pick(500, 100)
    seconds = 4.0 if context.quick else 30.0  # two holds of a GET
    with context.cluster() as cluster:
        topic = cluster.topic(partitions)
        cluster.run("send_one_each", topic=topic, partitions=partitions, size=128)
        with cluster.worker(
            "idle_consumers",
            topic=topic,
            address=str(cluster.broker.spec.address),
            partitions=partitions,
            consumers=consumers,
        ) as waiting:
            waiting.wait_ready().go()
            waiting.wait_ready()
            time.sleep(1.0 if context.quick else 5.0)
            for _ in range(context.rounds):
                before, begin = processor_s(cluster.broker.pid), time.monotonic()
                time.sleep(seconds)
                used = processor_s(cluster.broker.pid) - before
                share = used / (time.monotonic() - begin) * 100
                memory = memory_of(cluster.broker.pid)
                yield [
                    Figure("idle broker, processor", share, "% of a core"),
                    Figure("idle broker, memory", memory["VmRSS"], "MB", details=memory),
                ]
            waiting.go().result()


# Many partitions --------------------------------------------------------------------------------
PARTITION_COUNTS: Final = (1, 4, 16, 64, 256)


def partitions(context: Context) -> Rounds:
    """One message in flight in each of k partitions; the baseline flushes k bare files."""
    seconds = 0.5 if context.quick else 3.0
    with context.cluster() as cluster:
        _warm_up(cluster, 128)
        for _ in range(context.rounds):
            figures = []
            for count in PARTITION_COUNTS:
                topic = cluster.topic(count)
                bare = baseline.flush_cycle(context.scratch, count, context.pick(30, 8))
                best_s = min(bare.fdatasync_s, bare.syncfs_s or bare.fdatasync_s)
                acked = cluster.run(
                    "acks_over_partitions", topic=topic, partitions=count, seconds=seconds, size=128
                )
                cluster.run("verify", topic=topic, size=128, sent=acked["sent"])
                cluster.drop(topic)
                figures.append(
                    Figure(
                        f"acks over {count} partition{'s' * (count > 1)}",
                        _rate(acked),
                        "acks/s",
                        count / best_s,
                        details={"fdatasync_s": bare.fdatasync_s, "syncfs_s": bare.syncfs_s},
                    )
                )
            yield figures


# A long backlog ---------------------------------------------------------------------------------
def backlog(context: Context) -> Rounds:
    """Send and read 128-byte messages at the end of a log of 0 to 4 GB: the cost must not grow."""
    levels = [each * context.pick(GB, 50_000_000) for each in range(context.pick(5, 3))]
    count, fill_size = context.pick(300_000, 30_000), 1024
    with context.cluster() as cluster:
        _warm_up(cluster, 128)
        topic = cluster.topic()
        first: tuple[float, float] | None = None
        number = 0
        for level in levels:
            while (end := cluster.run("end_offset", topic=topic)["offset"]) < level:
                fill = max(1, min(200_000, (level - end) // fill_size))
                cluster.run(
                    "send_async", topic=topic, count=fill, size=fill_size, stream=1, first=number
                )
                number += fill
            pairs = sorted(_at_the_end(cluster, topic, count) for _ in range(context.rounds))
            ins, outs = sorted(pair[0] for pair in pairs), sorted(pair[1] for pair in pairs)
            middle = ins[len(ins) // 2], outs[len(outs) // 2]
            first = first or middle
            name = f"at {level / GB:g} GB of backlog"
            yield [
                Figure(f"in, {name}", middle[0], "msg/s", first[0]),
                Figure(f"out, {name}", middle[1], "msg/s", first[1]),
            ]


def _at_the_end(cluster: Cluster, topic: str, count: int) -> tuple[float, float]:
    """Return the rates of sending and of reading back the last ``count`` messages."""
    offset = cluster.run("end_offset", topic=topic)["offset"]
    sent = cluster.run("send_async", topic=topic, count=count, size=128)
    read = cluster.run("read_from", topic=topic, offset=offset, count=count, size=128)
    return _rate(sent), _rate(read)


# A reader far behind ----------------------------------------------------------------------------
def behind(context: Context) -> Rounds:
    """Send one by one to one topic while another one, of 4 GB, is read from its beginning.

    From memory, then from the disk. The baseline is a process that reads the same files from the
    disk without a broker: it uses the processor and the disk, too.
    """
    level, fill_size = context.pick(4 * GB, 50_000_000), 1024
    seconds = 1.0 if context.quick else 4.0
    with context.cluster() as cluster:
        _warm_up(cluster, 128)
        old, new = cluster.topic(), cluster.topic()
        fill = level // fill_size
        cluster.run("send_async", topic=old, count=fill, size=fill_size)
        cluster.run("send_sync", topic=new, seconds=0.1, size=128, threads=1)
        paths = [path for path in cluster.log_files() if old in path.parts]
        address = str(cluster.broker.spec.address)
        from_broker = {"work": "read_raw", "address": address, "topic": old}
        readers: dict[str, dict[str, Any]] = {
            "nobody reads": {},
            "files are read": {"work": "read_files", "paths": [str(path) for path in paths]},
            "4 GB behind, in memory": from_broker,
            "4 GB behind, on disk": from_broker,
        }
        for _ in range(context.rounds):
            figures: list[Figure] = []
            baseline: float | None = None
            for name, reader in readers.items():
                if name != "4 GB behind, in memory":
                    _drop_cache(paths)
                else:
                    cluster.run("read_files", paths=[str(path) for path in paths], seconds=seconds)
                latency, read = _sent_beside(cluster, new, reader, seconds)
                if reader.get("work") == "read_files":
                    baseline = latency["p99"]
                figures.append(
                    Figure(
                        f"send_sync, p99, {name}",
                        latency["p99"],
                        "ms",
                        baseline,
                        details={**latency, "bytes_per_s": read},
                    )
                )
            yield figures


def _sent_beside(
    cluster: Cluster, topic: str, reader: dict[str, Any], seconds: float
) -> tuple[dict[str, float], float]:
    """Send while a reader works; return the latencies and the bytes a second that were read."""
    load: dict[str, Any] = {"topic": topic, "seconds": seconds, "size": 128, "threads": 1}
    if not reader:
        return cluster.run("send_sync", **load)["latency_ms"], 0.0
    reads_s = seconds + 0.5
    with cluster.worker(**reader, seconds=reads_s) as beside:
        with cluster.worker("send_sync", **load) as sender:
            sender.wait_ready()
            beside.wait_ready().go()
            sent = sender.go().result()
        read = beside.result()["bytes"]
    return sent["latency_ms"], read / reads_s


# Helpers ----------------------------------------------------------------------------------------
def _warm_up(cluster: Cluster, size: int) -> None:
    """Send some messages, so that the broker has imported and allocated what it needs."""
    topic = cluster.topic()
    cluster.run("send_async", topic=topic, count=20_000, size=size)
    cluster.run("consume", topic=topic, group=topic, count=20_000, size=size)
    cluster.drop(topic)


def _rate(measured: Mapping[str, Any]) -> float:
    return float(measured["messages"] / measured["seconds"])


SCENARIOS: Final = (
    Scenario(
        "small",
        "128-byte messages, sync flush, one partition",
        small_messages,
        {
            "send_async, callback per message": Target(ratio_min=0.7),
            "consume, listener per message": Target(ratio_min=0.35),
        },
    ),
    Scenario(
        "sync",
        "send_sync, sync flush",
        one_by_one,
        {
            "send_sync, 1 thread": Target(ratio_min=0.40),
            "send_sync, 1 thread, p99": Target(limit=True),
            "send_sync, 1 thread, beyond fdatasync": Target(ratio_max=3.0),
            "send_sync, 4 threads": Target(ratio_min=0.95),
            "send_sync, 4 threads, beside one": Target(ratio_min=2.5),
            "send_sync, 64 threads, beside one": Target(ratio_min=15.0),
        },
    ),
    Scenario(
        "large",
        "1 KiB messages, sync flush",
        large_messages,
        {
            "1 KiB in": Target(ratio_min=0.5),
            "1 KiB out": Target(ratio_min=0.8),
            "raw fetch": Target(ratio_min=0.70),
        },
    ),
    Scenario(
        "latency",
        "5 000 messages a second on schedule",
        latency,
        {
            "end to end at 5 000/s, p50": Target(value_max=0.8),
            "end to end at 5 000/s, p99": Target(value_max=2.5),
        },
    ),
    Scenario(
        "restart",
        "start after kill -9 with 2 GB of log",
        restart,
        {
            "first ack after kill -9": Target(value_max=2.0),
            "first ack after kill -9, page cache dropped": Target(value_max=2.0),
        },
    ),
    Scenario(
        "idle",
        "1 000 partitions, 500 waiting consumers",
        idle,
        {
            "idle broker, processor": Target(value_max=2.0),
            "idle broker, memory": Target(value_max=300.0),
        },
    ),
    Scenario("partitions", "acknowledgements over many partitions", partitions),
    Scenario(
        "backlog",
        "cost per message from 0 to 4 GB of backlog",
        backlog,
        {
            f"{way}, at {level} GB of backlog": Target(ratio_min=0.85)
            for way in ("in", "out")
            for level in (1, 2, 3, 4)
        },
    ),
    Scenario(
        "delays",
        "delayed messages",
        delays,
        {
            "idle, late by, p99": Target(value_max=50.0),
            "5 000/s, late by, p99": Target(value_max=250.0),
            "1000000 that wait, memory": Target(value_max=64.0),
            "1000000 that wait, restart": Target(value_max=5.0),
        },
    ),
    Scenario("gateway", "over HTTP, beside the client on asyncio", gateway),
    Scenario("tls", "TLS, beside the same loads without it", tls, TLS_TARGETS),
    Scenario(
        "console", "the web console: pages, memory, cost for a broker", console, CONSOLE_TARGETS
    ),
    Scenario(
        "transactions",
        "a transaction, beside a plain send of its messages",
        transactions,
        {
            "of one message": Target(ratio_max=3.0),
            "of 100 messages": Target(ratio_max=1.3),
            "of two messages to two topics": Target(ratio_max=3.0),
            "1000 prepared, plain batches": Target(ratio_max=1 / 0.95),
            "of 2 messages to two groups": Target(ratio_max=5.0),
            "of 100 messages to two groups": Target(ratio_max=5.0),
            "start with 100000 ended and 1000 prepared": Target(value_max=5.0),
            TRANSFORMED: Target(ratio_max=2.0),
        },
    ),
    Scenario(
        "requests", "a request and its reply, beside two one-way trips", requests, REQUEST_TARGETS
    ),
    Scenario(
        "shared", "a shared group beside a clustering one, by workers", shared, SHARED_TARGETS
    ),
    Scenario("features", "one feature at a time, beside plain messages", features),
    Scenario("sends", "one way to send after the other", sends),
    Scenario(
        "modes",
        "one working mode of a consumer after the other",
        modes,
        {
            "concurrent, 1 worker": Target(ratio_min=0.5),
            DISTURBED: Target(ratio_min=0.95),
            WORKING_DISTURBED: Target(ratio_min=0.95),
        },
    ),
    Scenario("filters", "filters on the broker, by processor time", filters),
    Scenario("access", "rules of access at the door of a broker, by processor time", access),
    Scenario("quotas", "the quota of a user at a broker, by processor time", quotas),
    Scenario("groups", "groups whose members change", groups, GROUP_TARGETS),
    Scenario("behind", "send_sync while a reader is 4 GB behind", behind),
    Scenario("history", "sends beside a search, an archive run and a deletion of 1 GB", history),
    Scenario("replication", "a broker group with copies", replication, REPLICATION_TARGETS),
    Scenario(
        "metadata",
        "topics of 20 partitions, and a group of four members",
        metadata,
        {
            **{
                f"make a topic, at {level} partitions": Target(limit=True)
                for level in METADATA_PARTITIONS[1:]
            },
            "make 1000 topics": Target(value_max=120.0),
            "vq topic list, at 20000 partitions": Target(value_max=2.0),
            "vq cluster status, at 20000 partitions": Target(value_max=2.0),
            "start of a broker, at 10000 partitions": Target(value_max=10.0),
            "4 members, 2000 partitions: balanced": Target(value_max=5.0),
            "4 members, 2000 partitions: one leaves": Target(value_max=3.0),
        },
    ),
)
