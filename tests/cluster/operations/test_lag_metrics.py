"""The lag of groups as metrics: what is known has a sample, what is not has none."""

import asyncio
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.consumers import consumer_of
from support.http import http_get, samples

from vq import aio
from vq.cli.groups import lag_exporter
from vq.cli.groups.lag_exporter import LagExporter
from vq.client.cluster import ClusterClient
from vq.coordination.tree.coordinator import NotConnected
from vq.errors import CoordinationError, TimedOut
from vq.model import Address
from vq.operations.cluster.lag_looks import look_at_groups
from vq.operations.groups.group_lags import GroupLags
from vq.operations.groups.groups import GroupDescription, GroupProgress
from vq.operations.groups.lag_metrics import lag_families
from vq.remoting.exposition import metrics_page
from vq.remoting.memory import MemoryNetwork
from vq.testing.waiting import until
from vq.version import __version__

pytestmark = pytest.mark.virtual_time

HERE = Address("exporter", 8122)
KNOWN = GroupProgress(
    topic="t",
    partition=0,
    committed=5,
    end=9,
    lag_bytes=4,
    lag_messages=1,
    lag_s=7.5,
    owner="m",
)
SILENT = GroupProgress(topic="t", partition=1)


def of(*partitions: GroupProgress) -> GroupDescription:
    return GroupDescription("g", "clustering", "earliest", {"t": ""}, (), (), partitions)


async def told(found: GroupLags) -> dict[str, float]:
    return samples((await metrics_page(lag_families(found, cluster="c"))).body.decode())


async def test_a_lag_that_is_not_known_is_absent() -> None:
    found = await told(GroupLags(1_000, 0.5, {"g": of(KNOWN, SILENT)}))
    labels = '{group="g",partition="0",topic="t"}'
    assert found[f"vq_group_lag_bytes{labels}"] == 4
    assert found[f"vq_group_lag_messages{labels}"] == 1
    assert found[f"vq_group_lag_seconds{labels}"] == 7.5
    assert found[f"vq_group_owned{labels}"] == 1
    other = {name for name in found if 'partition="1"' in name}
    assert {name.partition("{")[0] for name in other} == {
        "vq_group_stopped",
        "vq_group_held_messages",
        "vq_group_owned",
        "vq_group_subscribed",
    }
    assert found["vq_lag_exporter_look_timestamp_seconds"] == 1


async def test_a_group_beyond_the_end_is_stopped_before_a_member_finds_out() -> None:
    lost = GroupProgress(topic="t", partition=2, committed=9, end=5)
    found = await told(GroupLags(1_000, 0.5, {"g": of(KNOWN, lost)}))
    assert found['vq_group_stopped{group="g",partition="0",topic="t"}'] == 0
    assert found['vq_group_stopped{group="g",partition="2",topic="t"}'] == 1


async def test_before_the_first_look_nothing_is_told_of_groups() -> None:
    assert await told(GroupLags()) == {
        f'vq_lag_exporter_info{{cluster="c",version="{__version__}"}}': 1,
        "vq_lag_exporter_failed_looks": 0,
    }


class Groups:
    """What the exporter is given to look with."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.looks = 0

    async def look(self) -> GroupLags:
        self.looks += 1
        if self.error is not None:
            raise self.error
        return GroupLags(self.looks, 0.5, {"g": of(KNOWN)})


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (CoordinationError("ZooKeeper is away"), "ZooKeeper is away\n"),
        (KeyError("of a bug"), "KeyError('of a bug')\n"),
    ],
)
async def test_one_look_serves_all_who_scrape_and_a_failed_one_takes_the_numbers_away(
    error: Exception, told: str
) -> None:
    """A number that was true an hour ago would hide that nobody knows it now. Looks go on."""
    network, groups = MemoryNetwork(), Groups()
    exporter = LagExporter(groups.look, interval_s=30)
    await exporter.serve(network, HERE)
    running = asyncio.ensure_future(exporter.run())
    await until(lambda: groups.looks)
    for _ in range(3):
        assert "vq_group_lag_bytes{" in (await http_get(network, HERE, "/metrics")).text
    assert (await http_get(network, HERE, "/readyz")).status == 200
    assert groups.looks == 1
    groups.error = error
    await asyncio.sleep(45)
    page = (await http_get(network, HERE, "/metrics")).text
    assert "vq_group_lag_bytes{" not in page
    assert samples(page)["vq_lag_exporter_failed_looks"] == 1
    answer = await http_get(network, HERE, "/readyz")
    assert (answer.status, answer.text) == (503, told)
    groups.error = None
    await asyncio.sleep(30)
    assert (await http_get(network, HERE, "/readyz")).status == 200
    running.cancel()
    await exporter.close()


async def test_many_who_scrape_at_once_get_one_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made once for each look: for 10,000 partitions that takes a second."""
    made: list[Any] = []
    make = lag_exporter.metrics_page

    async def counted(families: Any) -> Any:
        made.append(families)
        return await make(families)

    monkeypatch.setattr(lag_exporter, "metrics_page", counted)
    groups = Groups()
    exporter = LagExporter(groups.look, interval_s=30)
    running = asyncio.ensure_future(exporter.run())
    for look in (1, 2):
        await until(lambda look=look: groups.looks == look)  # type: ignore[misc]
        pages = await asyncio.gather(*(exporter.metrics() for _ in range(5)))
        assert len({id(page) for page in pages}) == 1
        assert f"look_timestamp_seconds {look / 1000}" in pages[0].body.decode()
        assert len(made) == look
        await asyncio.sleep(29)
    running.cancel()
    await exporter.close()


# Looking --------------------------------------------------------------------------------------
@pytest.fixture
async def asked(
    cluster: MemoryCluster,
    factory: aio.MessageFactory,
    client: ClusterClient,
    monkeypatch: pytest.MonkeyPatch,
) -> list[Any]:
    """What brokers are asked; three groups have joined topic ``t``, which has two partitions."""
    for name in ("g1", "g2", "g3"):
        async with await consumer_of(factory, group=name) as consumer:
            await consumer.start()
    asked: list[Any] = []
    request = client.request

    async def ask(address: Address, command: int, message: Any) -> Any:
        asked.append(message)
        return await request(address, command, message)

    monkeypatch.setattr(client, "request", ask)
    return asked


async def test_beyond_the_bound_no_broker_is_asked(client: ClusterClient, asked: list[Any]) -> None:
    found = await look_at_groups(client, count=False, partitions_max=3)
    told = {name: len(each.partitions) for name, each in found.groups.items()}
    assert told == {"g1": 2, "g2": 1, "g3": 0}
    assert (found.left_out, found.failed) == ({"g2": 1, "g3": 2}, 0)
    kinds = [type(each).__name__ for each in asked]
    assert kinds == ["StatusRequest", "OffsetsRequest", "OffsetsRequest"], "it has just begun"


async def test_a_look_may_be_at_some_groups(client: ClusterClient, asked: list[Any]) -> None:
    """It knows all names, and reads nothing of the others; one that is gone is left out."""
    found = await look_at_groups(client, count=False, names=["g3", "gone", "g1"])
    assert list(found.groups) == ["g3", "g1"]
    assert (list(found.names), found.failed) == (["g1", "g2", "g3"], 0)


async def test_a_broker_that_hangs_holds_up_a_look_once(
    client: ClusterClient, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its partitions, in each group, would wait for the time-out."""

    async def hang(address: Address, command: int, message: Any) -> Any:
        asked.append(message)
        await asyncio.sleep(0)
        raise TimedOut("no answer")

    monkeypatch.setattr(client, "request", hang)
    found = await look_at_groups(client, count=True, partitions_max=100)
    assert [each.end for told in found.groups.values() for each in told.partitions] == [None] * 6
    assert len(asked) == 1, "the broker is asked where all its partitions end, once"


async def test_a_look_without_zookeeper_fails_as_a_whole(
    client: ClusterClient, asked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise it waits for each group, and the numbers before it stay for so long."""

    async def fail(address: Address, command: int, message: Any) -> Any:
        raise NotConnected("ZooKeeper is away")

    monkeypatch.setattr(client, "request", fail)
    monkeypatch.setattr(client.coordinator, "get", lambda *_, **__: fail(HERE, 0, None))
    with pytest.raises(NotConnected):
        await look_at_groups(client, count=True, partitions_max=100)
