"""A history that is full says so: on pages, as a metric, and what to do."""

import httpx
import pytest
from support.console import BASE, running
from support.http import samples
from support.large_tree import TreeSize, large_cluster

from vq.console.clusters import site
from vq.console.database.database import Database
from vq.testing.waiting import until

SIZE = TreeSize(groups=3, topics=5, partitions=10, consumer_groups=60)


async def test_what_the_history_leaves_out_is_told(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "LAGS_S", 3600.0)
    async with (
        large_cluster(SIZE) as (cluster, _, _),
        running(cluster, database, open=True, history_series=100) as console,
    ):
        meter = console.app.console.meters["test"]
        await until(lambda: meter.left_out)
        browser = console.browser()
        assert "raise history_series" in (await browser.get("/c/test")).text
        assert "read least are left out" in (await browser.get("/c/test/settings")).text
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(console.asgi), base_url=BASE
        ) as scraper:
            found = samples((await scraper.get("/metrics")).text)
        assert found['vq_console_kept_series{cluster="test"}'] == 100
        assert found['vq_console_left_out_series{cluster="test"}'] == meter.left_out
        assert found['vq_console_look_failed{cluster="test",look="lags"}'] == 0
