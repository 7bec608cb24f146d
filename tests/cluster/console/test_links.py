"""Every link of the console, followed from page to page as somebody clicks."""

import html
import re
from collections import Counter
from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, urljoin, urlsplit

import click
import pytest
from support.broker import MemoryCluster
from support.console import BASE, RunningConsole
from support.explained import check_command
from support.filled_console import NAME, filled_console, give_up

from vq.console.database.database import Database
from vq.model import Message
from vq.testing.waiting import until, until_true

#: Pages after which one that leads to ever more pages is seen.
PAGES_MAX = 300
#: Addresses of one page that ask for the same with other values, and are followed.
ALIKE_MAX = 3


@pytest.fixture
async def filled(cluster: MemoryCluster, database: Database) -> AsyncIterator[RunningConsole]:
    """A console with something on every page."""
    async with filled_console(cluster, database) as made:
        yield made


def _shape(address: str) -> tuple[str, ...]:
    """Return what addresses have in common that differ in the values of their query."""
    parts = urlsplit(address)
    return (parts.path, *sorted(name for name, _ in parse_qsl(parts.query)))


def _links(page: str, address: str) -> set[str]:
    found = {html.unescape(each) for each in re.findall(r'href="([^"#]+)"', page)}
    return {urljoin(address, each) for each in found}


def _commands(page: str) -> list[str]:
    """Return the commands of vq that a page gives to copy."""
    shown = (html.unescape(each) for each in re.findall(r'data-copy="([^"]+)"', page))
    parts = (part.strip() for each in shown for part in re.split("[|;]", each))
    return [re.sub(r"\b[0-9a-f]{16}\.json", "FILE", each) for each in parts if each[:3] == "vq "]


@pytest.mark.slow
async def test_every_link_leads_somewhere_and_every_table_is_a_file(filled) -> None:
    """No page has a dead link; what a table offers as CSV is CSV, and as JSON is a list.

    The commands that pages give to copy are commands of ``vq``.
    """
    browser = filled.browser()
    await browser.log_in(NAME)
    waiting, seen, wrong, files = ["/c/test"], {"/c/test"}, [], 0
    shapes: Counter[tuple[str, ...]] = Counter()
    while waiting:
        address = waiting.pop(0)
        answer = await browser.get(address)
        if answer.status_code not in (200, 303):
            wrong.append((address, answer.status_code))
        kind = answer.headers.get("content-type", "")
        if "export=csv" in address:
            files += 1
            if not kind.startswith("text/csv"):
                wrong.append((address, kind))
        elif "export=json" in address and not isinstance(answer.json(), list):
            wrong.append((address, kind))
        if not kind.startswith("text/html"):
            continue
        for each in _commands(answer.text):
            try:
                check_command(f"{each} ")
            except (click.ClickException, AssertionError) as error:
                wrong.append((address, f"{each}: {error}"))
        for each in sorted(_links(answer.text, address) - seen):
            seen.add(each)
            if re.search(r"[?&](\w+\.)?(sort|desc)=", each) or each.startswith("/static"):
                continue
            shapes[_shape(each)] += 1
            if shapes[_shape(each)] <= ALIKE_MAX:
                waiting.append(each)
        assert len(waiting) < PAGES_MAX
    assert not wrong, "\n".join(map(str, wrong))
    assert files > 15


async def test_one_dead_letter_is_sent_again_from_its_place(filled, factory) -> None:
    """By a link beside it; the others stay open."""
    async with await factory.create_producer() as producer:
        for number in range(2):
            await producer.send(Message("payments", b"again", key=f"again-{number}"))
    await give_up(factory, "desk", "payments", 2)
    browser = filled.browser()
    await browser.log_in(NAME)
    links: list[tuple[str, str]] = []

    async def some_are_open() -> bool:
        page = (await browser.get("/c/test/dead-letters/desk")).text
        links[:] = re.findall(r'href="(/c/test/dead-letters/desk/resend\?id=(\d+))"', page)
        return len(links) > 1

    await until_true(some_are_open)
    address, number = links[0]
    form = await browser.get(address)
    assert f"vq dlq resend desk --id {number} --yes" in form.text
    begun = await browser.post(address, {"id": number, "rate": "100"})
    jobs = filled.app.console.door.jobs
    job = jobs[int(begun.headers["location"].rsplit("/", 1)[1])]
    await until(lambda: job.ended_ms)
    assert not job.error
    page = (await browser.get("/c/test/dead-letters/desk")).text
    left = re.findall(r"resend\?id=(\d+)", page)
    assert number not in left
    assert {each for _, each in links[1:]} <= set(left)


async def test_a_form_that_is_refused_has_a_way_back(console: RunningConsole) -> None:
    """To the page that it stands on, which the browser names; never to another site."""
    browser = console.browser()
    address = "/c/test/topics/t/delete"
    await browser.get(address)
    for referer, there in ((f"{BASE}{address}", True), ("https://evil.example/x", False)):
        refused = await browser.post(address, {"confirm": "other"}, referer=referer)
        assert refused.status_code == 400
        assert (f'<a href="{address}">Back to the page' in refused.text) is there
        assert "evil.example" not in refused.text
