"""The lag of groups as metrics: what is known has a sample, what is not has none."""

import asyncio
from dataclasses import replace

import pytest
from support.http import http_get, samples
from support.waiting import until

from vq.admin.group_lags import GroupLags
from vq.admin.groups import GroupProgress
from vq.admin.lag_metrics import lag_families
from vq.cli.lag_exporter import LagExporter
from vq.errors import CoordinationError
from vq.model import Address
from vq.remoting.exposition import metrics_page
from vq.remoting.memory import MemoryNetwork

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


async def told(found: GroupLags) -> dict[str, float]:
    return samples((await metrics_page(lag_families(found))).body.decode())


async def test_a_lag_that_is_not_known_is_absent() -> None:
    found = await told(GroupLags(1_000, 0.5, {"g": 1}, {"g": (KNOWN, SILENT)}))
    labels = '{group="g",partition="0",topic="t"}'
    assert found[f"vq_group_lag_bytes{labels}"] == 4
    assert found[f"vq_group_lag_messages{labels}"] == 1
    assert found[f"vq_group_lag_seconds{labels}"] == 7.5
    assert found[f"vq_group_owned{labels}"] == 1
    other = {name for name in found if 'partition="1"' in name}
    assert {name.partition("{")[0] for name in other} == {"vq_group_stopped", "vq_group_owned"}
    assert found["vq_lag_exporter_look_timestamp_seconds"] == 1


async def test_before_the_first_look_nothing_is_told_of_groups() -> None:
    assert await told(GroupLags()) == {"vq_lag_exporter_failed_looks": 0}


class Groups:
    """What the exporter is given to look with."""

    def __init__(self) -> None:
        self.found: GroupLags | None = GroupLags(1_000, 0.5, {"g": 1}, {"g": (KNOWN,)})
        self.looks = 0

    async def look(self) -> GroupLags:
        self.looks += 1
        if self.found is None:
            raise CoordinationError("ZooKeeper is away")
        return replace(self.found, time_ms=self.looks)


@pytest.mark.virtual_time
async def test_one_look_serves_all_who_scrape_and_a_failed_one_takes_the_numbers_away() -> None:
    """A number that was true an hour ago would hide that nobody knows it now."""
    network, groups = MemoryNetwork(), Groups()
    exporter = LagExporter(groups.look, interval_s=30)
    await exporter.serve(network, HERE)
    running = asyncio.ensure_future(exporter.run())
    await until(lambda: groups.looks)
    for _ in range(3):
        assert "vq_group_lag_bytes{" in (await http_get(network, HERE, "/metrics")).text
    assert (await http_get(network, HERE, "/readyz")).status == 200
    assert groups.looks == 1
    groups.found = None
    await asyncio.sleep(45)
    page = (await http_get(network, HERE, "/metrics")).text
    assert "vq_group_lag_bytes{" not in page
    assert samples(page)["vq_lag_exporter_failed_looks"] == 1
    answer = await http_get(network, HERE, "/readyz")
    assert (answer.status, answer.text) == (503, "ZooKeeper is away\n")
    running.cancel()
    await exporter.close()
