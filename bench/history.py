"""What archives, searches and deletions cost the sends meanwhile, and how fast they are.

Sends to one topic go on by the clock while an operator works on another one, whose blocks lie in
the page cache. Archives and searches last longer than the sends are timed, a deletion does not.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

import vq
from bench.cluster import Cluster
from bench.context import Context, Rounds
from bench.figures import Figure

RATE: Final = 5_000
SIZE: Final = 128
OLD_SIZE: Final = 1024
DAY_MS: Final = 86_400_000
#: Seconds between the begin of the sends and that of the work: the first sends open connections.
WARM_UP_S: Final = 1.0


def history(context: Context) -> Rounds:
    """Latency of sends at a fixed rate: alone, and while history is searched, archived, deleted."""
    for _ in range(context.rounds):
        with context.cluster() as cluster:
            yield _round(context, cluster)


def _round(context: Context, cluster: Cluster) -> list[Figure]:
    size = context.pick(1_000_000_000, 60_000_000)
    old = _filled(cluster, size)
    config = vq.MessageFactoryConfig(**cluster.client)
    took: dict[str, float] = {}
    with vq.MessageFactory(config) as factory:
        admin = factory.admin

        def archive() -> None:
            admin.alter_topic(old, retention_policy="archive", archive_after_hours=1)
            number = admin.start_archive_run(old, as_of_ms=int(time.time() * 1e3) + 2 * DAY_MS)
            run = admin.wait_for_archive_run(number, timeout=600)
            assert run.total.size_bytes > 0.9 * size, run

        def search() -> None:
            found = admin.find_messages(old, tag="nothing has it", timeout=600)
            assert found.complete, found.gaps

        works: dict[str, Callable[[], None]] = {
            "alone": lambda: None,
            "beside a search": search,
            "beside an archive run": archive,
            "beside a deletion": lambda: admin.delete_topic(old, now=True),
        }
        latencies = {name: _sends_beside(context, cluster, name, works, took) for name in works}
    alone = latencies["alone"]
    figures = [
        Figure(f"send at 5 000/s, {name}, {p}", own[p], "ms", alone[p], details=own)
        for name, own in latencies.items()
        for p in ("p50", "p99")
    ]
    return [
        *figures,
        Figure("search of all, beside sends", size / took["beside a search"] / 1e6, "MB/s"),
        Figure("archive run, beside sends", size / took["beside an archive run"] / 1e6, "MB/s"),
    ]


def _filled(cluster: Cluster, size: int) -> str:
    """Return a topic with so many bytes of orders, each with a key."""
    topic = cluster.topic()
    count = size // OLD_SIZE // 4
    for _ in range(4):  # the client has all contents of a run in memory
        fields = {"key": "customer-17"}
        cluster.run(
            "send_orders", topic=topic, count=count, size=OLD_SIZE, fields=fields, settings={}
        )
    return topic


def _sends_beside(
    context: Context,
    cluster: Cluster,
    name: str,
    works: dict[str, Callable[[], None]],
    took: dict[str, float],
) -> dict[str, float]:
    """Return the latencies of sends while a work goes on, and wait until both have ended."""
    topic = cluster.topic()
    load = {"rate": RATE, "seconds": 1.0 if context.quick else 8.0, "warm_up_s": WARM_UP_S}

    def work() -> None:
        begin = time.monotonic()
        works[name]()
        took[name] = time.monotonic() - begin

    with cluster.worker("acks_on_schedule", topic=topic, size=SIZE, **load) as sender:
        sender.wait_ready().go()
        time.sleep(WARM_UP_S)
        beside = threading.Thread(target=work)
        beside.start()
        measured = sender.result()
        beside.join()
    assert name in took, f"{name} failed"
    cluster.run("verify", topic=topic, size=SIZE, sent=measured["sent"])
    cluster.drop(topic)
    latency: dict[str, float] = measured["latency_ms"]
    return latency
