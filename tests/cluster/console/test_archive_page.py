"""The archive in the console: blocks are found, verified, and restored by a plan that is shown."""

import html
import re

import pytest
from support.archives import done
from support.broker import Client as Connection
from support.broker import MemoryCluster, message
from support.console import RunningConsole
from support.node_pair import settled

from vq.console.pages.archive import NodeRestore
from vq.model import Address
from vq.operations.archives.archives import ArchivedBlock
from vq.testing.waiting import until


@pytest.fixture
async def archived(cluster: MemoryCluster, console: RunningConsole) -> RunningConsole:
    """A console of a cluster with topic ``old``: two blocks of a partition are archived."""
    (node,) = cluster.nodes.values()
    await cluster.create_topic("old", partitions=1, retention_policy="archive")
    channels = node.parts.partitions.channels
    await until(lambda: any(each.partition.topic == "old" for each in channels.values()))
    channel = next(each for each in channels.values() if each.partition.topic == "old")
    client = await Connection.connect(cluster.network, node.address)
    for number in range(2):
        await client.put(*channel.partition, [message(b"%d" % number * 100)])
        channel.log.roll()
        await settled(channel)
    async with cluster.admin() as coordinator:
        assert (await done(coordinator, node, 25)).total.blocks == 2
    await client.put(*channel.partition, [message(b"2" * 100)])
    client.close()
    return console


async def _ended(console: RunningConsole) -> None:
    await until(lambda: all(each.ended_ms for each in console.app.console.door.jobs.values()))


async def test_blocks_are_found_by_topic_partition_and_time(archived) -> None:
    browser = archived.browser()
    for query, count in (
        ("topic=old", 2),
        ("topic=old&partition=0&since=2020-01-01T00:00", 2),
        ("topic=old&partition=7", 0),
        ("topic=old&until=2020-01-01T00:00", 0),
    ):
        rows = (await browser.get(f"/c/test/archive?{query}&b.export=json")).json()
        assert len(rows) == count, query
    page = (await browser.get("/c/test/archive?topic=old&partition=0")).text
    assert "vq archive list --topic old --partition 0" in page
    assert "/c/test/archive/restore?topic=old&amp;partition=0" in page
    for query in ("topic=old&partition=x", "topic=old&since=never"):
        assert (await browser.get(f"/c/test/archive?{query}")).status_code == 400
    assert (await browser.get("/c/test/archive?topic=nowhere")).status_code == 404


async def test_blocks_are_restored_once_the_name_is_typed(archived) -> None:
    """The page says what each node needs; the act tells each block, and the archive is empty."""
    browser = archived.browser()
    path = "/c/test/archive/restore"
    page = html.unescape((await browser.get(f"{path}?topic=old")).text)
    assert ">b1/n1<" in page
    assert "vq archive restore old --yes" in page
    form = {"topic": "old", "blocks": "2"}
    assert (await browser.post(path, form | {"confirm": "other"})).status_code == 400
    stale = await browser.post(path, form | {"confirm": "old", "blocks": "1"})
    assert stale.status_code == 400
    assert "there are 2 archived blocks now" in stale.text
    begun = await browser.post(path, form | {"confirm": "old"})
    await _ended(archived)
    page = (await browser.get(begun.headers["location"])).text
    assert page.count("restored</span>") == 2
    assert 'max="2" value="2"' in page
    assert re.search(r'<span class="total">old</span>', page)
    rows = (await browser.get(f"{begun.headers['location']}?o.export=json")).json()
    assert {(each["state"], each["why"]) for each in rows} == {("restored", "")}
    listed = (await browser.get("/c/test/archive?topic=old&b.export=json")).json()
    assert listed == []
    acts = (await browser.get("/c/test/audit?export=json")).json()
    assert [(each["act"], each["subject"], each["outcome"]) for each in acts] == [
        ("restore_archives", "old", "done")
    ]
    empty = (await browser.get(f"{path}?topic=old")).text
    assert "No such block is in an archive." in empty
    assert 'name="confirm"' not in empty


async def test_blocks_are_verified_and_each_is_told(archived) -> None:
    browser = archived.browser()
    await browser.get("/c/test/archive?topic=old")
    begun = await browser.post("/c/test/archive/act", {"act": "verify", "topic": "old"})
    await _ended(archived)
    page = (await browser.get(begun.headers["location"])).text
    assert page.count("intact</span>") == 2


async def test_a_program_restores_over_json(archived) -> None:
    """With the blocks that it was told; no node is asked at an address that came with them."""
    browser = archived.browser()
    await browser.get("/c/test")
    blocks, silent = (await browser.ask("list_archives", topic="old")).json()
    assert silent == []
    for each in blocks:
        each["address"] = {"host": "nowhere", "port": 1}
    answer = await browser.ask("restore_archives", blocks=blocks)
    assert answer.status_code == 200, answer.text
    assert [each["error"] for each in answer.json()] == ["", ""]


async def test_a_restore_without_a_topic_says_so(console) -> None:
    answer = await console.browser().get("/c/test/archive/restore")
    assert answer.status_code == 400
    assert "choose the topic" in answer.text


@pytest.mark.parametrize(
    ("free", "word", "tone"),
    [(None, "unknown", "quiet"), (11, "fits", "ok"), (10, "does not fit", "bad")],
)
def test_a_disk_that_is_not_known_is_no_room(free, word, tone) -> None:
    block = ArchivedBlock("b1", "n1", Address("h", 1), "t", 0, "", 0, 10, 0, 0, 1, 5, "")
    state = NodeRestore("b1/n1", [block], free).room
    assert (state.word, state.tone) == (word, tone)
