"""The end-to-end probe over a cluster in memory: every group, through faults, beside the scrape."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import started
from support.http import http_get, samples

from vq import aio
from vq.cli.groups.lag_exporter import LagExporter
from vq.client.cluster import ClusterClient
from vq.coordination.topics import topics
from vq.errors import OutcomeUnknown
from vq.model import Address, Replication, TopicSettings
from vq.operations.cluster import probe as module
from vq.operations.cluster.probe import AUDIT_S, INTERVAL_S, ClusterProbe
from vq.operations.cluster.probed import LATE_S, ProbeResult
from vq.operations.groups.group_lags import GroupLags
from vq.remoting.memory import MemoryNetwork
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time
HERE = Address("exporter", 8122)


@asynccontextmanager
async def probing(cluster: MemoryCluster) -> AsyncIterator[ClusterProbe]:
    async with started(cluster) as client:
        made = ClusterProbe(client)
        running = asyncio.ensure_future(made.run())
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.wait({running})
            assert made.results() == []


@pytest.fixture
def cluster(two_groups: MemoryCluster) -> MemoryCluster:
    """The cluster of the fixture ``factory``, too."""
    return two_groups


@pytest.fixture
async def probe(two_groups: MemoryCluster) -> AsyncIterator[ClusterProbe]:
    async with probing(two_groups) as made:
        yield made


def of(probe: ClusterProbe, group: str) -> ProbeResult:
    """Return the result of a group; nothing yet if it is not probed."""
    return {each.group: each for each in probe.results()}.get(group, ProbeResult(group))


async def until_read(probe: ClusterProbe, group: str, more: int = 3) -> ProbeResult:
    """Return once some more messages were read back."""
    before = of(probe, group).received
    await until(lambda: of(probe, group).received >= before + more, timeout_s=120)
    return of(probe, group)


async def placed(cluster: MemoryCluster, group: str) -> tuple[str | None, TopicSettings]:
    async with cluster.admin() as coordinator:
        view = await topics.describe_topic(coordinator, f"_vq.probe.{group}")
    assert len(view.partitions) == 1
    return view.partitions[0].writer_group, view.settings


async def test_messages_go_through_each_group_and_come_back(
    two_groups: MemoryCluster, probe: ClusterProbe, factory: aio.MessageFactory
) -> None:
    begun_s = asyncio.get_running_loop().time()
    for group in ("b1", "b2"):
        result = await until_read(probe, group)
        assert (await placed(two_groups, group))[0] == group
        assert (result.failed, result.late, result.lost, result.error) == (0, 0, 0, "")
        assert result.last_s is not None
        assert 0 <= result.last_s < LATE_S
        assert sum(result.latency.counts) == result.received
        assert result.success_ms > 0
        passed_s = asyncio.get_running_loop().time() - begun_s
        assert result.sent <= passed_s / INTERVAL_S + 2, "one message a second"
    assert [each.name for each in await factory.admin.list_topics()] == ["t"]


async def test_the_topic_is_as_safe_as_new_ones_and_keeps_an_hour(
    two_groups: MemoryCluster, factory: aio.MessageFactory
) -> None:
    wanted = TopicSettings(
        replication=Replication.ASYNC, partitions=4, min_insync=2, retention_hours=500
    )
    settings = module.settings_of_probe(wanted, module.GroupView("b1", pool="p", nodes=1))
    assert (settings.partitions, settings.retention_hours, settings.pool) == (1, 1, "p")
    assert (settings.replication, settings.min_insync) == (Replication.ASYNC, 1)


async def test_a_group_that_is_down_fails_alone_and_comes_back(
    two_groups: MemoryCluster, probe: ClusterProbe
) -> None:
    await until_read(probe, "b2")
    await two_groups.nodes["b2"].stop()
    await until(lambda: of(probe, "b2").failed >= 3, timeout_s=120)
    down = of(probe, "b2")
    assert down.error
    assert (await until_read(probe, "b1")).failed == 0
    await two_groups.start("b2")
    up = await until_read(probe, "b2")
    assert (up.lost, up.error) == (0, "")
    assert up.received > down.received


async def test_a_switch_of_masters_loses_nothing(
    two_groups: MemoryCluster, probe: ClusterProbe
) -> None:
    await two_groups.start("b1", "n2")
    await two_groups.until_in_sync("n1", "n2")
    await until_read(probe, "b1")
    await two_groups.nodes["b1"].stop()
    result = await until_read(probe, "b1")
    assert result.lost == 0


async def test_a_message_that_its_broker_forgets_is_lost(
    probe: ClusterProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledged, and another one is stored in its place."""
    put, forgets = module.put_batch, ["once"]

    async def forget(cluster: ClusterClient, partition: Any, *rest: Any, **named: Any) -> int:
        if partition.topic == "_vq.probe.b1" and forgets:
            forgets.clear()
            return 0
        return await put(cluster, partition, *rest, **named)

    await until_read(probe, "b1")
    monkeypatch.setattr(module, "put_batch", forget)
    await until(lambda: of(probe, "b1").lost == 1, timeout_s=120)
    monkeypatch.undo()
    assert (await until_read(probe, "b1")).lost == 1
    assert of(probe, "b2").lost == 0


async def test_a_send_without_an_answer_is_no_loss(
    probe: ClusterProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: Any, **__: Any) -> int:
        raise OutcomeUnknown("no answer")

    await until_read(probe, "b1")
    monkeypatch.setattr(module, "put_batch", silent)
    await until(lambda: of(probe, "b1").failed >= 3, timeout_s=120)
    assert "no answer" in of(probe, "b1").error
    monkeypatch.undo()
    result = await until_read(probe, "b1")
    assert (result.lost, result.error) == (0, "")


async def test_new_groups_are_probed_and_draining_ones_are_left_alone(
    two_groups: MemoryCluster, probe: ClusterProbe, factory: aio.MessageFactory
) -> None:
    """Emptying a group moves the topic away, and nobody moves it back before it takes some."""
    admin = factory.admin
    await until_read(probe, "b2")
    await two_groups.start("b3")
    await until_read(probe, "b3")
    await admin.drain_group("b2")
    await until(lambda: "b2" not in {each.group for each in probe.results()}, timeout_s=120)
    await admin.move(await admin.plan_emptying("b2"))
    await asyncio.sleep(2 * AUDIT_S)
    assert (await placed(two_groups, "b2"))[0] != "b2"
    await admin.undrain_group("b2")
    await until_read(probe, "b2")
    assert (await placed(two_groups, "b2"))[0] == "b2"


async def test_a_topic_that_somebody_deletes_is_made_again(
    two_groups: MemoryCluster, probe: ClusterProbe, factory: aio.MessageFactory
) -> None:
    before = await until_read(probe, "b1")
    await factory.admin.delete_topic("_vq.probe.b1", now=True)
    result = await until_read(probe, "b1", more=5)
    assert result.received > before.received, "counters go on"
    assert result.lost == 0


async def test_a_group_in_a_pool_has_its_topic_there(two_groups: MemoryCluster) -> None:
    await two_groups.start("b4", pool="fast")
    async with probing(two_groups) as probe:
        await until_read(probe, "b4")
        group, settings = await placed(two_groups, "b4")
    assert (group, settings.pool) == ("b4", "fast")


async def test_zookeeper_away_leaves_the_probe_at_work(
    two_groups: MemoryCluster,
    probe: ClusterProbe,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it knows goes on; the complaint is logged once."""
    await until_read(probe, "b1")

    async def away(*_: Any) -> Any:
        raise module.CorruptData("cannot be read")

    monkeypatch.setattr(module.group_views, "groups", away)
    await asyncio.sleep(3 * AUDIT_S)
    assert (await until_read(probe, "b1")).failed == 0
    assert caplog.text.count("broker groups cannot be probed") == 1


async def test_groups_beyond_the_bound_are_left_out_and_told(
    two_groups: MemoryCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "GROUPS_MAX", 1)
    async with probing(two_groups) as probe:
        await until_read(probe, "b1")
        await asyncio.sleep(3 * AUDIT_S)
        assert [each.group for each in probe.results()] == ["b1"]
    assert caplog.text.count("1 beyond the first 1 are left out") == 1


async def test_a_reader_behind_the_end_of_a_log_goes_on_at_its_end(
    two_groups: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is after an election that cut the log."""
    read, jumped = module.PartitionReader.read, []

    def jump(self: Any, start: int, *rest: Any, **named: Any) -> Any:
        if not jumped:
            jumped.append(start)
            start += 1_000_000
        return read(self, start, *rest, **named)

    monkeypatch.setattr(module.PartitionReader, "read", jump)
    async with probing(two_groups) as probe:
        for group in ("b1", "b2"):
            assert (await until_read(probe, group)).error == ""
    assert jumped


async def test_a_message_without_an_answer_is_received_if_it_was_stored(
    probe: ClusterProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, silent = module.put_batch, [True]

    async def store(cluster: ClusterClient, partition: Any, *rest: Any, **named: Any) -> int:
        offset = await put(cluster, partition, *rest, **named)
        if partition.topic == "_vq.probe.b1" and silent:
            silent.clear()
            raise OutcomeUnknown("no answer")
        return offset

    await until_read(probe, "b1")
    monkeypatch.setattr(module, "put_batch", store)
    await until(lambda: of(probe, "b1").failed == 1, timeout_s=120)
    result = await until_read(probe, "b1")
    assert (result.lost, result.error) == (0, "")
    assert result.received >= result.sent, "it was received and never acknowledged"


async def test_a_scrape_has_the_newest_numbers_and_waits_for_no_broker(
    two_groups: MemoryCluster, probe: ClusterProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look() -> GroupLags:
        return GroupLags(1_000, 0.5)

    network = MemoryNetwork()
    exporter = LagExporter(look, interval_s=3600, probe=probe)
    await exporter.serve(network, HERE)
    looking = asyncio.ensure_future(exporter.run())
    await until_read(probe, "b1")
    label = '{broker_group="b1"}'

    async def page() -> dict[str, float]:
        return samples((await http_get(network, HERE, "/metrics")).text)

    first = await page()
    assert first[f"vq_probe_received_total{label}"] >= 3
    await until_read(probe, "b1")
    second = await page()
    assert second[f"vq_probe_received_total{label}"] > first[f"vq_probe_received_total{label}"]
    assert second[f"vq_probe_lost_total{label}"] == 0
    assert second["vq_lag_exporter_look_timestamp_seconds"] == 1

    async def hang(*_: Any, **__: Any) -> int:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(module, "put_batch", hang)
    await asyncio.sleep(60)
    before_s = asyncio.get_running_loop().time()
    assert f"vq_probe_sent_total{label}" in await page()
    assert asyncio.get_running_loop().time() - before_s < 1
    looking.cancel()
    await exporter.close()
