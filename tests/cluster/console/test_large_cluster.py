"""What pages cost of a large cluster: reads of ZooKeeper counted; time and memory in the long form.

The long form makes the largest cluster, and prints what each page took::

    VQ_LONG=1 pytest -m long -s tests/cluster/console/test_large_cluster.py
"""

import gc
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from time import process_time as process_s

import pytest
from support import console as console_support
from support.console import running
from support.large_tree import TreeSize, large_cluster

from vq.console.clusters import site
from vq.console.database.database import Database
from vq.console.pages.table import PAGES
from vq.coordination.leases.runs import make_run
from vq.coordination.tree.values.runs import RunOrder, RunResult, RunState
from vq.testing.waiting import until

#: Processor seconds of a list page: the slowest but one of twenty. The bound of the wall clock is
#: 0.3 s on a machine that does nothing else; a test runs beside others.
LIST_PAGE_S = 0.3
FIRST_PAGE_S = 1.0
MEMORY_MB = 300

#: Pages that the count leaves out, and why.
NOT_COUNTED = {
    "/": "leads to the first cluster",
    "/login": "of the console itself",
    "/account": "of the console itself",
    "/accounts": "of the console itself",
    "/accounts/{name}": "of the console itself",
    "/account/tokens": "of the console itself",
    "/accounts/{name}/tokens": "of the console itself",
    "/c/{cluster}/events": "never ends",
    "/c/{cluster}/allocation/plans/{number}": "there is no plan",
    "/c/{cluster}/allocation/plans/{number}/file": "there is no plan",
    "/c/{cluster}/archive/restore": "without a topic it says so",
    "/c/{cluster}/audit/{number}": "there is no entry",
    "/c/{cluster}/acts/{name}": "there is no act",
    "/c/{cluster}/definitions/file": "has what defines the whole cluster",
    "/c/{cluster}/definitions/plans/{number}": "there is no plan",
    "/c/{cluster}/jobs/{number}": "there is no job",
    "/c/{cluster}/transactions/{number}": "there is no transaction",
    "/c/{cluster}/topics/{topic}/messages": "brokers of the tree hold no messages",
    "/c/{cluster}/topics/{topic}/content": "brokers of the tree hold no messages",
    "/c/{cluster}/descriptors": "of the console's database",
    "/c/{cluster}/descriptors/{name}": "of the console's database",
    "/c/{cluster}/series": "of the console's database",
}


async def _reads_of_pages(topics: int, groups: int, database: Database) -> dict[str, int]:
    size = TreeSize(
        groups=groups,
        topics=topics,
        partitions=topics * 2,
        consumer_groups=topics,
        member_of_each=2,
    )
    async with (
        large_cluster(size) as (cluster, made, _),
        running(cluster, database, open=True) as console,
    ):
        coordinator = console.site.cluster.coordinator
        order = RunOrder(as_of_ms=1, started_ms=1, by="a test", nonce="1")
        number = await make_run(coordinator, order)
        done = RunResult(state=RunState.DONE).encode()
        for node in made.addresses:
            await coordinator.create(RunResult.path(number, *node), done)
        browser = console.browser()
        found: dict[str, int] = {}
        for page in PAGES:
            if "GET" not in page.methods or page.path in NOT_COUNTED:
                continue
            about = "b000" if "/brokers/" in page.path else "readers-00002"
            path = page.path.format(cluster="test", topic="topic-0001", group=about, number="1")
            if path == "/c/test/allocation":  # what it shows is measured before
                await browser.get(path)
                await until(lambda: console.site.allocation is not None)
            before = cluster.ensemble.served
            response = await browser.get(path)
            assert response.status_code < 500, (path, response.text)
            found[page.path] = cluster.ensemble.served - before
        return found


@pytest.mark.slow
async def test_what_a_page_reads_does_not_grow_with_the_cluster(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a cluster of twenty times the size, each page reads as often; lists read nothing."""
    for pause in ("BROKERS_S", "NAMES_S", "LAGS_S", "LIVE_S"):
        monkeypatch.setattr(site, pause, 3600.0)  # one look each, then pages alone
    few = await _reads_of_pages(10, 3, database)
    many = await _reads_of_pages(200, 60, database)
    assert many == few
    for page in ("", "/brokers", "/topics", "/groups", "/audit", "/jobs"):
        assert few[f"/c/{{cluster}}{page}"] == 0


@pytest.mark.long
@pytest.mark.timeout(1_200)
async def test_pages_of_the_largest_cluster_are_fast_and_memory_is_bounded(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 brokers, 2 000 topics, 20 000 partitions and 10 000 groups."""
    monkeypatch.setattr(console_support, "until", partial(until, timeout_s=300.0))
    async with AsyncExitStack() as stack:
        cluster, made, _ = await stack.enter_async_context(large_cluster(TreeSize()))
        gc.collect()
        gc.freeze()
        stack.callback(gc.unfreeze)
        before_mb, begun_s = _memory_mb(), time.monotonic()
        console = await stack.enter_async_context(running(cluster, database, open=True))
        print(f"\n{made.nodes_made} znodes; looked once after {time.monotonic() - begun_s:.0f} s")
        facts = console.site.facts
        await until(lambda: len(facts.lags) == made.size.consumer_groups, timeout_s=600.0)
        print(f"all groups seen after {time.monotonic() - begun_s:.0f} s")
        served, begun_cpu_s, begun_s = cluster.ensemble.served, process_s(), time.monotonic()
        since_ms = cluster.ensemble.clock.wall_ms()
        read = {each.group for each in facts.contracts if each.members}
        for name, groups in (("with members", read), ("", facts.lags.keys())):
            await until(
                lambda groups=groups: all(facts.lags[each].time_ms > since_ms for each in groups),  # type: ignore[misc]
                timeout_s=600.0,
            )
            took_s = time.monotonic() - begun_s
            print(
                f"{len(groups)} groups {name} seen again after {took_s:.0f} s, with "
                f"{cluster.ensemble.served - served} calls of ZooKeeper, and "
                f"{(process_s() - begun_cpu_s) / took_s:.0%} of a core, brokers included"
            )
        # Looks at lags go on, one after the other: pages are measured beside them.
        browser = console.browser()
        slow: list[str] = []
        for path in LISTS:
            cpu_s, wall_s = [], []
            for number in range(21):
                begun_s, begun_cpu_s = time.monotonic(), time.process_time()
                response = await browser.get(f"/c/test{path}")
                cpu_s.append(time.process_time() - begun_cpu_s)
                wall_s.append(time.monotonic() - begun_s)
                assert response.status_code == 200
                if not number and path == "/allocation":
                    await until(lambda: console.site.allocation is not None, timeout_s=120.0)
            first_s, p95_s = cpu_s[0], sorted(cpu_s[1:])[-2]
            clock = f"{wall_s[0] * 1000:4.0f} and {sorted(wall_s[1:])[-2] * 1000:4.0f}"
            print(
                f"{path or '/':36} first {first_s * 1000:4.0f} and p95 {p95_s * 1000:4.0f} ms of "
                f"the processor; {clock} ms of the clock"
            )
            if p95_s > LIST_PAGE_S or first_s > FIRST_PAGE_S:
                slow.append(path)
        used_mb = _memory_mb() - before_mb
        print(f"memory of the console: {used_mb:.0f} MB")
        assert not slow
        assert used_mb < MEMORY_MB


LISTS = (
    "",
    "/brokers",
    "/allocation",
    "/topics",
    "/topics?sort=lag_bytes&desc=1",
    "/topics?q=99",
    "/groups",
    "/groups?sort=verdict",
    "/groups?sort=lag_bytes&desc=1&page=7",
    "/groups?q=99",
    "/dead-letters",
    "/delayed",
    "/transactions",
    "/archive",
    "/audit",
    "/jobs",
)


def _memory_mb() -> float:
    text = Path("/proc/self/status").read_text()
    line = next(each for each in text.splitlines() if each.startswith("VmRSS"))
    return int(line.split()[1]) / 1024
