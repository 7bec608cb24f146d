"""Write docs/reference/broker-metrics.md from what a broker and `vq lag-exporter` export.

    python tools/broker_metrics.py        write the file

A test compares the committed file with `render()`, so that the page cannot go stale.
"""

import asyncio
import random
from collections.abc import Iterable
from pathlib import Path

from prometheus_client.metrics_core import Metric

from vq.broker.base.config import BrokerConfig
from vq.broker.base.runner import InlineRunner
from vq.broker.node import BrokerNode
from vq.clock import SystemClock
from vq.coordination.tree.memory import MemoryEnsemble
from vq.operations.cluster.probe_metrics import probe_families
from vq.operations.groups.group_lags import GroupLags
from vq.operations.groups.lag_metrics import lag_families
from vq.remoting.memory import MemoryNetwork
from vq.store.commit.flusher import FlushRunner, LoopFlusher
from vq.store.disk.memory_disk import MemoryDisk

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "docs" / "reference" / "broker-metrics.md"

PREFACE = """\
# Metrics of brokers and consumer groups

This page is written by `make docs` from what a broker and `vq lag-exporter` export; a test keeps it
so. [Monitor brokers](../howto/monitor-brokers.md) says how to scrape them and what to alert on.

Counters begin at 0 with each start of the process, so use `rate()` or `increase()`. A number that
is not known has no sample; it is never 0 instead. Times are in seconds, sizes in bytes.

A broker process also exports `process_…` of the client library: processor time, memory, open files
and the time of its start.
"""

BROKER = """\
## A broker

Numbers of partitions, topics and bytes are of this node, copies included: a sum over all nodes of a
group counts each message once for each node. The first 500 topics by name have numbers of their
own; those of all others are added up as `topic="(other)"`.
"""

GROUPS = """\
## Consumer groups: `vq lag-exporter`

All numbers are as old as `vq_lag_exporter_look_timestamp_seconds` says. The first 10,000 partitions
of groups have numbers of their own; the exporter says how many it left out.
"""

PROBE = """\
## Broker groups from end to end: `vq lag-exporter --probe`

By broker group, counted since the exporter began to probe it. A group that is removed, or that an
operator drains, has no numbers.
"""


def rows(families: Iterable[Metric]) -> str:
    """Return the table of some families."""
    lines = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in family._labelnames)
        lines.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(lines) + "\n"


def render() -> str:
    """Return the page."""
    broker = asyncio.run(broker_families())
    groups = lag_families(GroupLags())
    probe = probe_families(())
    return f"{PREFACE}\n{BROKER}\n{rows(broker)}\n{GROUPS}\n{rows(groups)}\n{PROBE}\n{rows(probe)}"


def all_families() -> list[Metric]:
    """Return every family of the page."""
    exported = [*lag_families(GroupLags()), *probe_families(())]
    return [*asyncio.run(broker_families()), *exported]


async def broker_families() -> list[Metric]:
    """Return the families of a broker in memory."""
    clock = SystemClock()
    node = BrokerNode(
        BrokerConfig(data=Path("/data"), group="b1", node="n1", metrics_port=0),
        coordinator=MemoryEnsemble(clock=clock).coordinator("page", session_timeout_s=10.0),
        network=MemoryNetwork(),
        disk=MemoryDisk(),
        clock=clock,
        rng=random.Random(1),
        flushers=(LoopFlusher(FlushRunner(clock), delay_s=0),),
        runner=InlineRunner(),
    )
    await node.start()
    try:
        return list(await node.families())
    finally:
        await node.stop()


if __name__ == "__main__":
    TARGET.write_text(render())
    print(f"wrote {TARGET.relative_to(ROOT)}")
