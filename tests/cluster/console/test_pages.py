"""The pages of the console, over a cluster in memory."""

import html
import re

import pytest
from support.console import RunningConsole

from vq import aio
from vq.client.config import ConsumerConfig
from vq.console.pages import allocation
from vq.console.pages.table import PAGES
from vq.errors import CoordinationError, UnknownTopic
from vq.model import Message, TopicSettings
from vq.testing.waiting import until

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{ 7 * 7 }}{% raise %}",
    "javascript:alert(1)",
    "' OR 1=1 --",
    "=HYPERLINK(1)",
    "\u202eabc\u2066",
    "<div hx-get='/logout' hx-trigger='load'>",
)
PARAMETERS = {
    "cluster": "test",
    "topic": "t",
    "group": "g",
    "number": "1",
    "name": "nobody",
}


@pytest.fixture
async def used(console, factory: aio.MessageFactory):
    """A console of a cluster with messages and a group that has read some."""
    async with await factory.create_producer() as producer:
        for number in range(5):
            await producer.send(Message("t", b'{"n": %d}' % number, key=f"k{number}"))
    config = ConsumerConfig(group="g", max_wait_s=0.2)
    async with await factory.create_consumer(config) as consumer:
        async for _ in consumer.subscribe("t"):
            break
    return console


@pytest.mark.parametrize("language", ["en", "zh-CN"])
async def test_every_page_is_there(used, language) -> None:
    """Each page answers, or says in its own words what there is not; none fails."""
    browser = used.browser()
    browser.http.cookies.set("vq_language", language)
    for each in PAGES:
        path = each.path
        for name, value in PARAMETERS.items():
            path = path.replace(f"{{{name}}}", value)
        if "GET" not in each.methods or path.endswith("/events"):
            continue
        if path == "/c/test/brokers/g":
            path = "/c/test/brokers/b1"
        answer = await browser.get(path)
        assert answer.status_code in (200, 303, 400, 404, 409), (path, answer.text)
        if answer.status_code == 200 and "html" in answer.headers["content-type"]:
            assert f'<html lang="{language}"' in answer.text, path
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert "default-src 'none'" in policy


async def test_a_topic_is_made_changed_filled_read_closed_and_deleted(console) -> None:
    """A day of an operator, by forms only; each act is in the audit with its outcome."""
    browser = console.browser()
    await browser.get("/c/test/topics/create")
    settings = await browser.get("/c/test/topics/t/settings")
    form = fields_of(settings.text) | {"topic": "made", "partitions": "2"}
    assert (await browser.post("/c/test/topics/create", form)).headers["location"].endswith("/made")
    form["retention_hours"] = "7"
    await browser.post("/c/test/topics/made/settings", form)
    assert "<td>7 h</td>" in (await browser.get("/c/test/topics/made")).text
    await browser.post("/c/test/topics/made/send", {"content": "hello", "headers": "a: b"})
    shown = await browser.get("/c/test/topics/made/messages")
    assert "hello" in shown.text
    assert "a: b" in shown.text
    await browser.post("/c/test/topics/made/act", {"act": "close"})
    refused = await browser.post("/c/test/topics/made/send", {"content": "more"})
    assert refused.status_code == 409
    wrong = await browser.post("/c/test/topics/made/delete", {"confirm": "other"})
    assert wrong.status_code == 400
    await browser.post("/c/test/topics/made/delete", {"confirm": "made", "now": "on"})
    with pytest.raises(UnknownTopic):
        await aio.MessageFactory.on_cluster(console.site.cluster).admin.get_topic("made")
    rows = (await browser.get("/c/test/audit?export=json")).json()
    acts = [(each["act"], each["outcome"]) for each in rows][::-1]
    assert acts == [
        ("create_topic", "done"),
        ("alter_topic", "done"),
        ("send_message", "done"),
        ("close_topic", "done"),
        ("send_message", "failed"),
        ("delete_topic", "done"),
    ]
    listed = (await browser.get("/c/test/acts")).text
    assert 'aria-current="page">Audit<' in listed
    newest = re.search(r'href="(/c/test/acts/[^"]+)"', listed)
    assert newest is not None
    act = html.unescape((await browser.get(newest[1])).text)
    assert ">delete_topic <" in act
    assert '"partitions": 2' in act  # before: after it there is nothing
    exported = (await browser.get("/c/test/acts?export=json")).json()
    assert '"partitions": 2' in exported[0]["before"]
    assert (await browser.get("/c/test/acts/none")).status_code == 400


def fields_of(page: str) -> dict[str, str]:
    """Return what a form of a page would send."""
    found = {}
    for name, value in re.findall(r'<input id="f-[^"]*" name="([^"]+)"[^>]* value="([^"]*)"', page):
        found[name] = html.unescape(value)
    for name, options in re.findall(r'<select id="f-[^"]*" name="([^"]+)">(.*?)</select>', page):
        chosen = re.search(r'<option value="([^"]*)" selected', options)
        found[name] = chosen[1] if chosen else ""
    for name in re.findall(r'<input type="checkbox" name="([^"]+)" checked', page):
        found[name] = "on"
    return found


async def test_settings_without_a_value_are_shown_as_what_they_mean(console, factory) -> None:
    """As ``vq topic describe`` tells them."""
    await factory.admin.create_topic("bare", TopicSettings(retention_hours=None))
    await factory.admin.create_topic("kept", TopicSettings(retention_policy="archive"))
    browser = console.browser()
    told = {}
    for page in ("topics/bare", "topics/kept", "settings"):
        rows = re.findall(
            r'<th scope="row"><code>(\w+)</code></th><td>(.*?)</td>',
            (await browser.get(f"/c/test/{page}")).text,
        )
        told[page] = dict(rows)
        assert "–" not in told[page].values()
    assert told["settings"].keys() == told["topics/bare"].keys()
    names = "compression compression_threshold retention_hours retention_bytes archive_to pool"
    assert [told["topics/bare"][name] for name in names.split()] == [
        *("none", "128 KiB", "forever", "unlimited", "beside the log", "common")
    ]
    after = "archive_after_hours"
    assert (told["topics/bare"][after], told["topics/kept"][after]) == ("not archived", "24 h")


async def test_what_is_not_there_is_named_and_what_to_do_is_told_once(console) -> None:
    browser = console.browser()
    for path, said in (
        ("/c/none/topics", "the console shows no cluster &#39;none&#39;"),
        ("/c/test/topics/none", "<code>vq topic create none --partitions N</code>"),
    ):
        answer = await browser.get(path)
        assert answer.status_code == 404
        assert said in answer.text
        assert "create NAME" not in answer.text
        assert "`" not in answer.text


async def test_hostile_texts_are_shown_as_texts(console, factory) -> None:
    """Nothing that came in a message becomes markup, in no field."""
    async with await factory.create_producer() as producer:
        for text in HOSTILE:
            message = Message("t", text.encode(), key=text, tag=text[:50], headers={text: text})
            await producer.send(message)
    browser = console.browser()
    paths = ["/c/test/topics/t/messages"]
    paths += [f"/c/test/topics/t/messages?key={text}&as=text" for text in HOSTILE[:3]]
    paths += [f"/c/test/groups/{text.replace('/', '')}" for text in HOSTILE[:4]]
    paths += [f"/c/test/topics?q={text}" for text in HOSTILE]
    for path in paths:
        text = (await browser.get(path)).text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<div hx-get='/logout'" not in text
        assert "49" not in re.findall(r"\{\{.*?\}\}|\b49\{%", text)
    await browser.get("/c/test/topics/t")
    for text in HOSTILE:
        answer = await browser.post("/c/test/topics/t/act", {"act": text})
        assert answer.status_code == 400
        assert "<script>alert" not in answer.text


async def test_a_masked_topic_shows_no_content(console, factory) -> None:
    """Neither on pages nor as a file; keys and times are shown."""
    async with await factory.create_producer() as producer:
        sent = await producer.send(Message("t", b"a secret", key="k"))
    browser = console.browser()
    await browser.get("/c/test/settings")
    await browser.post("/c/test/settings/mask", {"topic": "t", "act": "mask"})
    shown = await browser.get("/c/test/topics/t/messages")
    assert "secret" not in shown.text
    assert ">k<" in shown.text
    where = f"partition={sent.partition}&offset={sent.offset}"
    assert (await browser.get(f"/c/test/topics/t/content?{where}")).status_code == 400
    asked = await browser.ask("browse_messages", topic="t")
    assert "YSBzZWNyZXQ=" not in asked.text
    await browser.post("/c/test/settings/mask", {"topic": "t", "act": "unmask"})
    assert "a secret" in (await browser.get("/c/test/topics/t/messages")).text
    content = await browser.get(f"/c/test/topics/t/content?{where}")
    assert content.content == b"a secret"
    assert "attachment" in content.headers["content-disposition"]
    assert content.headers["content-security-policy"] == "sandbox"


async def test_a_group_is_reset_by_a_plan_that_is_shown_first(used) -> None:
    """The plan says what is repeated; only the typed name carries it out."""
    browser = used.browser()
    await browser.get("/c/test/groups/g/reset")
    plan = await browser.post("/c/test/groups/g/reset", {"goal": "latest", "step": "plan"})
    assert 'name="confirm"' in plan.text
    planned = html.unescape(re.search(r'name="planned" value="([^"]*)"', plan.text)[1])
    do = {"goal": "latest", "step": "do", "planned": planned}
    refused = await browser.post("/c/test/groups/g/reset", do)
    assert refused.status_code == 400
    done = await browser.post("/c/test/groups/g/reset", {**do, "confirm": "g"})
    assert done.status_code == 303
    described = await aio.MessageFactory.on_cluster(used.site.cluster).admin.describe_group("g")
    assert described.lag_messages == 0


async def test_a_reset_that_was_not_shown_is_not_made(used) -> None:
    """The goal is changed under a plan that counts messages: the new plan is shown instead."""
    browser, address = used.browser(), "/c/test/groups/g/reset"
    admin = aio.MessageFactory.on_cluster(used.site.cluster).admin
    before = [each.committed for each in (await admin.describe_group("g")).partitions]
    await browser.get(address)
    plan = await browser.post(address, {"goal": "latest", "step": "plan"})
    planned = html.unescape(re.search(r'name="planned" value="([^"]*)"', plan.text)[1])
    skipped = [int(each) for each in re.findall(r'<td class="number">(\d+)</td>', plan.text)]
    assert 0 < sum(skipped[2::4]) <= 5
    assert "--to-latest" in plan.text
    changed = {"goal": "earliest", "step": "do", "planned": planned, "confirm": "g"}
    other = await browser.post(address, changed)
    assert other.status_code == 400
    assert "changed after the plan was shown" in other.text
    assert "--to-earliest" in other.text
    assert [each.committed for each in (await admin.describe_group("g")).partitions] == before


async def test_a_reset_skips_what_the_plan_said_and_no_more(
    used, factory: aio.MessageFactory
) -> None:
    """Messages came after the plan was shown: nobody saw that they would be skipped."""
    browser, address = used.browser(), "/c/test/groups/g/reset"
    await browser.get(address)
    plan = await browser.post(address, {"goal": "latest", "step": "plan"})
    planned = html.unescape(re.search(r'name="planned" value="([^"]*)"', plan.text)[1])
    async with await factory.create_producer() as producer:
        for number in range(4):
            await producer.send(Message("t", b"later", key=f"k{number}"))
    do = {"goal": "latest", "step": "do", "planned": planned, "confirm": "g"}
    assert (await browser.post(address, do)).status_code == 303
    described = await factory.admin.describe_group("g")
    assert sum(each.lag_messages for each in described.partitions if each.topic == "t") == 4


async def test_a_table_is_sorted_cut_searched_and_exported(console) -> None:
    """By its address: what somebody sees can be sent to another one."""
    admin = aio.MessageFactory.on_cluster(console.site.cluster).admin
    for number in range(7):
        await admin.create_topic(f"topic-{number}")
    await until(lambda: len(console.site.facts.topics) == 8)
    browser = console.browser()
    address = "/c/test/topics?q=TOPIC&sort=topic&desc=1&size=3&page=2"
    rows = (await browser.get(f"{address}&export=json")).json()
    assert [each["topic"] for each in rows] == [f"topic-{number}" for number in range(6, -1, -1)]
    page = (await browser.get(address)).text
    assert re.findall(r">(topic-\d)</a>", page) == ["topic-3", "topic-2", "topic-1"]
    text = (await browser.get(f"{address}&export=csv")).text
    assert text.splitlines()[0].startswith("topic,state,partitions")


async def test_a_board_that_is_being_measured_says_so_and_one_that_cannot_be_says_why(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page waits a moment for a measurement; of a large cluster it takes seconds."""
    browser = console.browser()
    monkeypatch.setattr(allocation, "WAIT_S", 0.0)
    begun = await browser.get("/c/test/allocation")
    assert begun.headers["refresh"] == "2"
    assert "being measured" in begun.text
    await until(lambda: console.site.allocation is not None)
    shown = await browser.get("/c/test/allocation")
    assert "refresh" not in shown.headers
    assert "data-board" in shown.text

    async def fail(*_: object) -> None:
        raise CoordinationError("ZooKeeper is away")

    console.site.allocation = None
    monkeypatch.setattr(allocation, "WAIT_S", 20.0)
    with monkeypatch.context() as patched:
        patched.setattr(allocation, "facts_of", fail)
        failed = await browser.get("/c/test/allocation")
        assert failed.status_code >= 500
        assert "ZooKeeper is away" in failed.text
        again = await browser.get("/c/test/allocation")
        assert again.status_code >= 500
    assert "data-board" in (await browser.get("/c/test/allocation")).text
