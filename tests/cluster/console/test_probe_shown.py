"""The end-to-end probe on the overview: shown where it runs, nothing of it where it does not."""

from support.broker import MemoryCluster
from support.console import RunningConsole, running

from vq import aio
from vq.reserved import probe_topic
from vq.testing.waiting import until


async def test_latency_and_loss_of_each_group_are_on_the_overview(
    cluster: MemoryCluster, database
) -> None:
    async with running(cluster, database, open=True, probe=True) as console:
        facts = console.site.facts
        await until(lambda: facts.probes and all(each.received for each in facts.probes.values()))
        browser = console.browser()
        rows = (await browser.get("/c/test?e.export=json")).json()
        assert [(each["group"], each["state"], each["lost"]) for each in rows] == [
            ("b1", "good", 0)
        ]
        assert rows[0]["latency_s"] > 0
        page = (await browser.get("/c/test")).text
        assert "End-to-end probe" in page
        assert "End-to-end latency" in page


async def test_a_probe_that_is_off_sends_nothing_and_says_how_it_is_begun(
    console: RunningConsole,
) -> None:
    page = (await console.browser().get("/c/test")).text
    assert "vq console --probe" in page
    assert "End-to-end probe" not in page
    assert console.site.facts.probes is None
    admin = aio.MessageFactory.on_cluster(console.site.cluster).admin
    names = {each.name for each in await admin.list_topics(reserved=True)}
    assert probe_topic("b1") not in names
