"""A console hears that something happened to a broker, and looks at its group alone.

Looks at all brokers are an hour apart here: of a large cluster they are half a minute apart.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from support.broker import MemoryCluster
from support.console import RunningConsole, running
from support.large_tree import LargeBrokers, TreeSize, large_cluster

from vq.console.clusters import site
from vq.console.database.database import Database
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.values.brokers import BrokerGroup, Registration
from vq.operations.cluster.cluster import BrokerReport
from vq.testing.waiting import until

SIZE = TreeSize(groups=6, topics=6, partitions=12, consumer_groups=2)


@dataclass
class Shown:
    """A console over a cluster, and another client of its ZooKeeper."""

    cluster: MemoryCluster
    brokers: LargeBrokers
    console: RunningConsole
    coordinator: Coordinator

    def reports(self, group: str) -> list[BrokerReport]:
        """What the console knows of a group."""
        known = self.console.site.facts.status.brokers
        return [each for each in known if each.group.group == group]


@pytest.fixture
async def shown(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Shown]:
    for pause in ("BROKERS_S", "NAMES_S", "LAGS_S"):
        monkeypatch.setattr(site, pause, 3600.0)
    async with (
        large_cluster(SIZE) as (cluster, _, brokers),
        running(cluster, database, open=True) as console,
    ):
        coordinator = cluster.ensemble.coordinator("test")
        await coordinator.start()
        yield Shown(cluster, brokers, console, coordinator)
        await coordinator.close()


async def test_a_broker_that_is_killed_shows_before_its_session_ends(shown: Shown) -> None:
    """Its connection ends; one broker is asked again, and refuses."""
    asked = shown.brokers.answered["STATUS"]
    shown.brokers.kill("b002")
    await until(lambda: "Unreachable" in shown.reports("b002")[0].error, timeout_s=5.0)
    page = await shown.console.browser().get("/c/test")
    assert "5 / 6" in page.text
    assert shown.brokers.answered["STATUS"] == asked, "the others are not asked"


async def test_a_broker_whose_session_ended_shows_at_once(shown: Shown) -> None:
    """Its node is gone: ZooKeeper tells it, and only what is of its group is read."""
    before = shown.cluster.ensemble.served
    await shown.coordinator.delete(Registration.path("b003", "n1"))
    await until(lambda: shown.reports("b003")[0].node is None, timeout_s=5.0)
    assert shown.cluster.ensemble.served - before < 20
    value = Registration(host="b003-n1", port=shown.brokers.made.size.first_port, version="0")
    await shown.coordinator.create(Registration.path("b003", "n1"), value.encode())
    await until(lambda: shown.reports("b003")[0].status is not None, timeout_s=5.0)


async def test_a_group_that_is_new_or_removed_shows_at_once(shown: Shown) -> None:
    path = BrokerGroup.path("b900")
    await shown.coordinator.create(path, BrokerGroup().encode())
    await until(lambda: shown.reports("b900"), timeout_s=5.0)
    await shown.coordinator.delete(path)
    await until(lambda: not shown.reports("b900"), timeout_s=5.0)
