"""What the page after an act says: what was done, and what is there now."""

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request
from support.console import RunningConsole, running

from vq import aio
from vq.console.accounts.accounts import AccountRole, list_accounts
from vq.console.acts.door import OPERATIONS, Person
from vq.console.clusters import site
from vq.console.web import context
from vq.console.web.context import PageContext
from vq.console.web.security import PageVisitor
from vq.errors import CoordinationError
from vq.model import Message
from vq.testing.waiting import until


@pytest.fixture
async def rare(cluster, database, monkeypatch) -> AsyncIterator[RunningConsole]:
    """A console that looks at topics and groups once by itself."""
    monkeypatch.setattr(site, "NAMES_S", 1_000.0)
    async with running(cluster, database, open=True) as made:
        yield made


def _said(page: str) -> str:
    found = re.search(r'<div class="flashes" role="status">(.*?)</div>', page, re.DOTALL)
    return re.sub("<[^>]+>", "", found[1]).strip() if found else ""


async def test_the_list_after_an_act_shows_what_it_did(rare: RunningConsole) -> None:
    """A topic that was made is there, one that was closed is closed, one that was deleted gone."""
    browser = rare.browser()
    form = await browser.get("/c/test/topics/create")
    names = re.findall(r'name="(\w+)" type="number" value="([^"]+)"', form.text)
    made = {**dict(names), "topic": "made", "flush": "sync", "retention_policy": "delete"}
    made |= {"replication": "sync", "readable": "on", "writable": "on"}
    assert (await browser.post("/c/test/topics/create", made)).status_code == 303

    async def state() -> str:
        rows = (await browser.get("/c/test/topics?export=json")).json()
        return next((each["state"] for each in rows if each["topic"] == "made"), "")

    assert await state() == "open"
    await browser.get("/c/test/topics/made")
    await browser.post("/c/test/topics/made/act", {"act": "close"})
    assert await state() == "closed"
    await browser.get("/c/test/topics/made/delete")
    await browser.post("/c/test/topics/made/delete", {"confirm": "made"})
    assert await state() == "deleted"


@pytest.mark.virtual_time
@pytest.mark.parametrize("which", ["gather_all", "read_topic_states"])
async def test_a_look_that_failed_slowly_is_made_again_soon(
    cluster, database, monkeypatch, which
) -> None:
    """To wait for ZooKeeper costs it nothing, and what is shown is out of date meanwhile."""
    monkeypatch.setattr(site, "BROKERS_S", 0.01)
    monkeypatch.setattr(site, "NAMES_S", 0.01)
    real, failures = getattr(site, which), []

    async def away(*arguments, **named):
        if failures and len(failures) < 3:
            failures.append(1)
            await asyncio.sleep(0.3)  # 0.3 s are 5 % of 6 s
            raise CoordinationError("no connection to ZooKeeper")
        return await real(*arguments, **named)

    monkeypatch.setattr(site, which, away)
    async with running(cluster, database, open=True) as made:
        failures.append(1)
        facts = made.site.facts
        looks = {"gather_all": "brokers_look", "read_topic_states": "names_look"}
        await until(lambda: getattr(facts, looks[which]).error)
        await until(lambda: not getattr(facts, looks[which]).error, timeout_s=4.0)
        assert len(failures) == 3


async def test_a_search_by_time_alone_is_a_search(console, factory: aio.MessageFactory) -> None:
    """Nothing was stored after a time that is to come."""
    async with await factory.create_producer() as producer:
        await producer.send(Message("t", b"now"))
    browser, address = console.browser(), "/c/test/topics/t/messages"
    assert ">now<" in (await browser.get(f"{address}?since=2020-01-01T00:00")).text
    none = await browser.get(f"{address}?id=&key=&since=2099-01-01T00:00&until=")
    assert "Nothing here matches" in none.text
    assert "vq message find t --since 2099-01-01T00:00" in none.text
    wrong = await browser.get(f"{address}?start=time&at=yesterday")
    assert wrong.status_code == 400
    assert "There is no message here yet" not in wrong.text


async def test_a_delayed_message_is_said_to_wait_and_to_be_cancelled(
    console: RunningConsole,
) -> None:
    """In words; its offset in the log of what waits is of no use to anybody."""
    browser = console.browser()
    await browser.get("/c/test/topics/t/send")
    sent = await browser.post("/c/test/topics/t/send", {"content": "later", "delay_s": "600"})
    assert sent.headers["location"] == "/c/test/delayed"
    page = (await browser.get("/c/test/delayed")).text
    assert "waits for its time" in _said(page)
    places = re.search(r'value="(\d+),(\d+),(\d+)"', page)
    assert places is not None
    form = dict(zip(("partition", "offset", "id"), places.groups(), strict=True))
    await browser.post("/c/test/delayed/cancel", form)
    assert _said((await browser.get("/c/test/delayed")).text).endswith("nobody gets it.")


async def test_nobody_locks_all_out_with_the_first_account(console: RunningConsole) -> None:
    """It is an admin, or the others could be made in a shell only; then its name is asked for."""
    browser = console.browser()
    page = await browser.get("/accounts")
    assert re.findall(r'<option value="(\w+)"', page.text) == ["admin"]
    form = {"name": "anna", "password": "a long password"}
    refused = await browser.post("/accounts", {**form, "role": "viewer"})
    assert refused.status_code == 400
    assert "first account" in refused.text
    made = await browser.post("/accounts", {**form, "role": "admin"})
    assert "Log in with it" in (await browser.get(made.headers["location"])).text
    await browser.log_in("anna")
    await browser.get("/accounts")
    assert (
        await browser.post("/accounts", {**form, "name": "ben", "role": "viewer"})
    ).status_code == 303
    roles = [each.role for each in await console.database.run(list_accounts)]
    assert roles == [AccountRole.ADMIN, AccountRole.VIEWER]


async def test_moves_that_make_no_plan_stay_in_the_form(console: RunningConsole) -> None:
    """With the reason above the board: somebody has typed or dragged them for minutes."""
    browser = console.browser()
    await browser.get("/c/test/allocation")
    await until(lambda: console.site.allocation is not None)
    await browser.get("/c/test/topics/t")
    moves = "t/0 b1\nt/9 nowhere"
    answer = await browser.post("/c/test/allocation/plan", {"how": "hand", "moves": moves})
    assert answer.status_code == 400
    assert 'role="alert"' in answer.text
    assert moves in answer.text
    goals = {"how": "advisor", "skew": "0.5", "exclude_topics": "orders"}
    answer = await browser.post("/c/test/allocation/plan", goals)
    assert answer.status_code == 400
    assert 'value="0.5"' in answer.text
    assert 'value="orders"' in answer.text


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nothing", 404), ("/c/test/nothing", 404), ("/c/test/allocation/plan", 405)],
)
async def test_an_address_without_a_page_is_answered_with_one(console, path, status) -> None:
    """People get a way back, programs a line of text; nobody learns which clusters there are."""
    answer = await console.browser().get(path)
    assert answer.status_code == status
    assert "Back to the overview" in answer.text
    assert "nonce-'" not in answer.headers["content-security-policy"]
    assert "/c/test" not in answer.text.replace(f'value="{path}"', "")
    plain = await console.browser().get(path, headers={"accept": "*/*"})
    assert plain.text.startswith(f"{status} ")


@pytest.mark.virtual_time
async def test_a_page_does_not_wait_long_for_a_cluster_that_is_known_to_be_away(
    console: RunningConsole, monkeypatch
) -> None:
    """The client itself waits 15 s for ZooKeeper, at each page anew."""

    async def hangs(cluster, topic: str) -> None:
        await asyncio.Event().wait()

    async def away(*_arguments, **_named) -> None:
        raise CoordinationError("no connection to ZooKeeper")

    monkeypatch.setattr(site, "gather_all", away)
    await until(lambda: console.site.problem)
    for name in ("describe_topic", "create_topic"):
        row = dataclasses.replace(OPERATIONS[name], function=hangs)
        monkeypatch.setitem(OPERATIONS, name, row)
    monkeypatch.setattr(context, "AWAY_S", 0.1)
    answer = await console.browser().get("/c/test/topics/t")
    assert answer.status_code == 503
    assert "no connection to ZooKeeper" in answer.text
    with pytest.raises(TimeoutError):  # what is begun is not given up: nobody would know of it
        async with asyncio.timeout(0.5):
            await PageContext.run(_asks(console), "create_topic", "made")


def _asks(console: RunningConsole) -> PageContext:
    visitor = PageVisitor(Person("anna", AccountRole.ADMIN, "::1"), "", logged_in=True)
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": []})
    return PageContext(request, console.app.console, visitor, "en", "", site_or_none=console.site)


async def test_a_mask_of_no_topic_says_so(console: RunningConsole) -> None:
    """Or a name that is mistyped hides nothing, without a word."""
    browser = console.browser()
    for topic, there in (("t", True), ("tt", False)):
        await browser.get("/c/test/topics/t")
        await browser.post("/c/test/settings/mask", {"topic": topic, "act": "mask"})
        said = _said((await browser.get("/c/test/settings")).text)
        assert f"Masked: {topic}" in said
        assert ("no topic of this name" not in said) is there
