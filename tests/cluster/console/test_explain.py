"""The page that says why something does not happen, and the pages from which one comes to it."""

import html
import re

import pytest
from support.console import Browser, RunningConsole

from vq import aio
from vq.client.config import ConsumerConfig
from vq.console.pages.explain import QUESTIONS, fact_text
from vq.console.web.shown import Shown
from vq.model import Message
from vq.operations.explain.answers import ExplainedFact


@pytest.fixture
async def used(console: RunningConsole, factory: aio.MessageFactory) -> RunningConsole:
    """A console of a cluster with a message, and a group without members."""
    async with await factory.create_producer() as producer:
        await producer.send(Message("t", b"1", key="k"))
    config = ConsumerConfig(group="g", max_wait_s=0.2)
    async with await factory.create_consumer(config) as consumer:
        async for _ in consumer.subscribe("t"):
            break
    return console


def link_of(page: str, question: str) -> str:
    """Return the first link of a page that asks a question."""
    found = re.search(rf'href="([^"]*/explain\?question={question}[^"]*)"', page)
    assert found is not None, question
    return html.unescape(found[1])


async def _asked_from(browser: Browser, path: str, question: str, more: str = "") -> str:
    """Return the answer to which a link of a page leads."""
    page = (await browser.get(path)).text
    answer = await browser.get(link_of(page, question) + more)
    assert answer.status_code == 200
    return html.unescape(answer.text)


async def test_a_partition_of_a_group_leads_to_why_it_is_not_consumed(used) -> None:
    """The answer has its cause, what it rests on, what mends it, and the command that asks it."""
    browser = used.browser()
    page = await _asked_from(browser, "/c/test/groups/g", "partition")
    assert "group g in t-0" in page
    assert "It has no members" in page
    assert 'data-copy="vq group describe g"' in page
    assert "members_subscribed</code>" in page
    assert "vq explain partition t/0 --group g" in page
    rows = (
        await browser.get(
            "/c/test/explain?question=partition&topic=t&partition=0&group=g&f.export=json"
        )
    ).json()
    assert {"name": "group_exists", "value": "yes"} in rows
    asked = await browser.ask("explain_partition", group="g", topic="t", partition=0)
    assert asked.json()["found"]["cause"] == "at_end"


async def test_a_message_leads_to_why_a_group_did_not_get_it(used) -> None:
    """One that is listed, by its place; one that is not found, by its id."""
    browser = used.browser()
    page = await _asked_from(browser, "/c/test/topics/t/messages", "message", "&group=g")
    assert re.search(r"group g and message \d:\d+ of t", page)
    page = await _asked_from(browser, "/c/test/topics/t/messages?id=7", "message", "&group=g")
    assert "group g and message 7 of t" in page


async def test_a_refused_send_leads_to_why(used) -> None:
    """And says which command lets it through."""
    browser = used.browser()
    await browser.get("/c/test/topics/t")
    await browser.post("/c/test/topics/t/act", {"act": "close"})
    refused = await browser.post("/c/test/topics/t/send", {"content": "more", "key": "k"})
    assert refused.status_code == 409
    assert ">more</textarea>" in refused.text  # what was typed is not lost
    page = html.unescape((await browser.get(link_of(refused.text, "send"))).text)
    assert "topic t is closed for writes" in page
    assert 'data-copy="vq topic open t"' in page
    assert "vq explain send t --key k --size 4" in page


async def test_a_disk_and_a_key_lead_to_their_answers(used) -> None:
    browser = used.browser()
    page = await _asked_from(browser, "/c/test", "disk")
    assert "the disk of b1/" in page
    assert "vq explain disk b1/" in page
    page = await _asked_from(browser, "/c/test/topics/t", "key", "&key=7&key_is=number")
    assert "key 7 in t" in page
    assert re.search(r'class="">integer</td>', page)
    assert "vq explain key t 7 --key-type int" in page


@pytest.mark.parametrize("question", QUESTIONS)
async def test_a_question_without_its_fields_is_a_form(console, question) -> None:
    """What was in the last question stays; nothing is asked before all is there."""
    page = (
        await console.browser().get(f"/c/test/explain?question={question}&partition=0&group=g")
    ).text
    assert "Fill in the form" in page
    for name in QUESTIONS[question].needs:
        assert f'name="{name}"' in page
    for other in QUESTIONS:
        assert f"question={other}&amp;partition=0&amp;group=g" in page


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("question=x", 400),
        ("question=partition&topic=nowhere&partition=0&group=g", 404),
        ("question=partition&topic=t&partition=99&group=g", 404),
        ("question=partition&topic=t&partition=x&group=g", 400),
        ("question=message&topic=t&message=3:&group=g", 400),
        ("question=message&topic=t&message=" + "9" * 30 + "&group=g", 400),
        ("question=send&topic=t&size=-1", 400),
        ("question=send&topic=t&key=k&partition=0", 400),
        ("question=key&topic=t&key=k&key_is=number", 400),
        ("question=key&topic=t&key=xyz&key_is=hex", 400),
        ("question=disk&node=nobody", 400),
        ("question=send&topic=%3Cscript%3Ealert(1)%3C/script%3E", 400),
    ],
)
async def test_a_question_with_nonsense_says_so(console, query, status) -> None:
    answer = await console.browser().get(f"/c/test/explain?{query}")
    assert answer.status_code == status, answer.text
    assert 'role="alert"' in answer.text
    assert "<script>alert" not in answer.text


def test_a_fact_is_told_with_its_unit() -> None:
    facts = [
        ("members", 0, "0"),
        ("lag_bytes", 2048, "2.00 KiB"),
        ("bytes_free", 2048, "2.00 KiB"),
        ("lag_s", 90, "1 min 30 s"),
        ("full_in_hours", 2.0, "2 h"),
        ("committed_at_s", 0.0, "unknown"),
        ("committed_at_s", 1764403200.0, "2025-11-29 08:00:00"),
        ("group_exists", False, "no"),
        ("committed_offset", 12345, "12345"),
    ]
    texts = Shown(str)
    for name, value, told in facts:
        assert fact_text(ExplainedFact(name, value), texts, str) == told, name
