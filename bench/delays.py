"""Delayed messages: how late they come, and what a million that wait cost a broker."""

import time

from bench.cluster import Cluster
from bench.context import Context, Rounds
from bench.figures import Figure
from bench.processor import memory_of

#: How far ahead messages wait that nothing delivers while it is measured; less than ten minutes, so
#: that they share a partition with those that come soon.
FAR_S = 590


def delays(context: Context) -> Rounds:
    """One after the other, then 5,000 a second, then beside many that wait, and after a restart."""
    waiting = context.pick(1_000_000, 5_000)
    for _ in range(context.rounds):
        with context.cluster() as cluster:
            topic = cluster.topic()
            idle = cluster.run("delayed", topic=topic, count=context.pick(200, 20), rate=20)
            cluster.drop(topic)
            topic = cluster.topic()
            busy = cluster.run(
                "delayed", topic=topic, count=context.pick(50_000, 1_000), rate=5_000
            )
            cluster.drop(topic)
            topic = cluster.topic()
            before = memory_of(cluster.broker.pid)["RssAnon"]
            cluster.run("wait_long", topic=topic, count=waiting, ahead_s=FAR_S)
            memory = memory_of(cluster.broker.pid)["RssAnon"] - before
            restart_s = _restarted(cluster, topic)
            yield [
                Figure("idle, late by, p99", idle["late_ms"]["p99"], "ms", details=idle["late_ms"]),
                Figure(
                    "5 000/s, late by, p99", busy["late_ms"]["p99"], "ms", details=busy["late_ms"]
                ),
                Figure(f"{waiting} that wait, memory", memory, "MB"),
                Figure(f"{waiting} that wait, restart", restart_s, "s"),
            ]


def _restarted(cluster: Cluster, topic: str) -> float:
    """Kill and start the broker; return the time until a delayed message is delivered again."""
    cluster.broker.kill()
    begin = time.monotonic()
    cluster.broker.start()
    cluster.broker.wait_ready()
    cluster.run("delayed", topic=topic, count=1, rate=20)
    return time.monotonic() - begin
