"""The timed duties of a node, as STATUS and metrics tell of them, and what is left of tasks."""

import asyncio

import pytest
from support.broker import MemoryCluster
from support.node_pair import NodePair

from vq.broker.base.jobs import JobFacts, JobState
from vq.broker.node import BrokerNode
from vq.errors import StorageFailed
from vq.store.disk.memory_disk import MemoryDisk

pytestmark = pytest.mark.virtual_time

JOBS = {
    *("acts", "archives elsewhere", "daily archive", "disk /data", "early archives", "key indexes"),
    *("lags", "load", "relief", "repair", "retention", "scrub", "soundness", "tidying"),
    *("topic removal", "trash"),
}
#: Tasks that an idle node may have for as long as it runs.
ENDLESS_MAX = 12


def jobs(node: BrokerNode) -> dict[str, JobFacts]:
    return {each.name: each for each in node.parts.jobs.told()}


async def test_all_that_a_node_does_again_and_again_is_a_job(served) -> None:
    await asyncio.sleep(400)
    status = await served.client.status(with_partitions=True)
    told = {each.name: each for each in status.jobs}
    assert told.keys() == JOBS
    assert [name for name, each in told.items() if each.state == "off"] == []
    assert [name for name, each in told.items() if not each.runs] == []
    assert [name for name, each in told.items() if each.failures] == []
    plain = await served.client.status()
    assert list(plain.jobs) == []


async def test_an_idle_node_has_few_endless_tasks(cluster: MemoryCluster) -> None:
    others = asyncio.all_tasks()
    node = await cluster.start()
    await cluster.create_topic("t", partitions=2)
    await asyncio.sleep(5)
    before = asyncio.all_tasks()
    await asyncio.sleep(60)
    endless = (before & asyncio.all_tasks()) - others
    assert len(endless) <= ENDLESS_MAX, endless
    await node.stop()
    assert asyncio.all_tasks() - others == set(), "a stop leaves none"


async def test_a_copy_measures_no_lags_until_it_leads(node_pair: NodePair) -> None:
    nodes = node_pair.nodes
    lags = {name: jobs(node)["lags"] for name, node in nodes.items()}
    leader = node_pair.leader()
    [copy] = nodes.keys() - {leader}
    assert (lags[leader].state, lags[leader].why_off) == (JobState.WAITS, "")
    assert (lags[copy].state, lags[copy].why_off) == (JobState.OFF, "another node leads")
    await nodes[leader].stop()
    await asyncio.sleep(30)
    assert jobs(nodes[copy])["lags"].state is JobState.WAITS


async def test_what_settings_switch_off_says_which(cluster: MemoryCluster) -> None:
    node = await cluster.start(scrub_bytes_per_s=0, key_index_bytes_per_s=0)
    found = jobs(node)
    assert found["scrub"].why_off == "scrub_bytes_per_s is 0"
    assert found["key indexes"].why_off == "key_index_bytes_per_s is 0"
    assert {found[name].state for name in ("scrub", "key indexes")} == {JobState.OFF}


async def test_a_job_that_fails_is_told_in_metrics(
    served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And goes on once it can; the others do all the while."""

    async def due_trash(_: float) -> None:
        raise StorageFailed("the medium is away")

    monkeypatch.setattr(served.node.parts.partitions.leftovers, "due", due_trash)
    await asyncio.sleep(200)
    assert caplog.text.count("the medium is away") == 1
    found = {
        (sample.name, sample.labels.get("name")): sample.value
        for family in await served.node.families()
        for sample in family.samples
        if family.name.startswith("vq_job")
    }
    assert found["vq_job_failing", "trash"] == 1
    assert found["vq_job_failed_runs_total", "trash"] >= 3
    assert found["vq_job_failing", "tidying"] == 0
    assert found["vq_job_runs_total", "tidying"] >= 3
    monkeypatch.undo()
    await asyncio.sleep(60)
    assert jobs(served.node)["trash"].error == ""


async def test_a_stop_does_not_wait_for_a_run(cluster: MemoryCluster) -> None:
    """One that hangs ends with the node."""
    node = await cluster.start(disk_interval_s=0.5)
    assert isinstance(cluster.disks["b1"], MemoryDisk)
    with cluster.runners["b1"].held():
        await asyncio.sleep(2)
        assert jobs(node)["disk /data"].state is JobState.RUNS
    begun = asyncio.get_running_loop().time()
    assert await node.stop()
    assert asyncio.get_running_loop().time() - begun < 10
    assert jobs(node)["disk /data"].state is JobState.OFF
