"""Forms and headers that no browser of a person sends."""

import asyncio
import dataclasses
import time

import pytest
import sqlalchemy
from support.broker import MemoryCluster
from support.console import BASE, PASSWORD, RunningConsole, fail_writes, running

from vq.console.accounts.accounts import AccountRole, list_accounts
from vq.console.accounts.tokens import list_access_tokens, make_access_token
from vq.console.acts import door
from vq.console.acts.door import RUNNING_MAX, Person
from vq.console.database.schema import audit
from vq.errors import InvalidState
from vq.testing.waiting import until


async def test_an_origin_that_is_no_address_is_another_site(console: RunningConsole) -> None:
    """For pages and programs alike: it is the sender's fault, not a defect."""
    browser = console.browser()
    await browser.get("/c/test")
    headers = {"origin": "http://[", "x-csrf-token": browser.csrf}
    page = await browser.http.post("/login", data={"name": "a"}, headers=headers)
    asked = await browser.http.post("/api/clusters/test/list_topics", json={}, headers=headers)
    assert (page.status_code, asked.status_code) == (403, 403)
    assert "http://[" in asked.json()["detail"]


async def test_a_form_of_another_site_is_refused_before_it_is_read(
    console: RunningConsole,
) -> None:
    """Browsers send it without asking, and a console on this machine knows nobody by a cookie."""
    read = []

    async def body():
        read.append(1)
        yield b"a=b"

    headers = {"origin": "https://elsewhere.example", "sec-fetch-site": "cross-site"}
    sent = await console.browser().http.post("/c/test/definitions", content=body(), headers=headers)
    assert sent.status_code == 403
    assert not read


async def test_others_get_their_turn_while_a_long_form_is_read(console: RunningConsole) -> None:
    """A file of line ends takes the parser a step for each byte."""
    browser, turns = console.browser(), 0
    await browser.get("/c/test/definitions")

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.ensure_future(others())
    parts = {"csrf": (None, browser.csrf), "file": ("f", b"\r" * 512 * 1024)}
    reading = asyncio.ensure_future(
        browser.http.post("/c/test/definitions", files=parts, headers={"origin": BASE})
    )
    seen = 0
    try:
        await until(lambda: console.app._bodies.held)
        before = turns
        await until(lambda: not console.app._bodies.held)
        seen = turns - before
        assert (await reading).status_code == 400
    finally:
        waiting.cancel()
    assert seen > 8


async def test_what_cannot_be_written_down_is_not_done_to_accounts_either(
    cluster: MemoryCluster, database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The audit is written before the act: also for accounts and tokens."""
    async with running(cluster, database) as made:
        admin = await made.as_role(AccountRole.ADMIN)
        await database.run(
            lambda each: make_access_token(each, "a-admin", "ci", AccountRole.VIEWER, 3)
        )
        await admin.get("/accounts")
        fail_writes(made, monkeypatch, "Door._begin")
        acts = {
            "/accounts": {"name": "eve", "role": "admin", "password": PASSWORD},
            "/accounts/a-admin": {"act": "change", "role": "admin", "password": "another password"},
            "/account": {"old": PASSWORD, "password": "x" * 12, "again": "x" * 12},
            "/accounts/a-admin/tokens": {"act": "make", "token": "t", "role": "admin", "days": "3"},
            "/account/tokens": {"act": "revoke", "token": "ci"},
        }
        before = await database.run(list_accounts)
        for path, form in acts.items():
            assert (await admin.post(path, form)).status_code in (400, 503), path
            assert await database.run(list_accounts) == before, path
            tokens = await database.run(list_access_tokens)
            assert [each.name for each in tokens] == ["ci"], path


async def test_a_refused_act_on_accounts_is_written_down_as_failed(
    cluster: MemoryCluster, database
) -> None:
    async with running(cluster, database) as made:
        admin = await made.as_role(AccountRole.ADMIN)
        await admin.get("/accounts")
        form = {"name": "a-admin", "role": "admin", "password": PASSWORD}
        assert (await admin.post("/accounts", form)).status_code == 400
        query = sqlalchemy.select(audit.c.act, audit.c.outcome)
        found = await database.run(lambda each: each.execute(query).all())
        assert [tuple(each) for each in found] == [("add_account", "failed")]


async def test_of_an_open_console_one_account_is_the_first(console: RunningConsole) -> None:
    """Whoever sends the form at the same time is told to log in."""
    browsers = [console.browser() for _ in range(4)]
    for each in browsers:
        await each.get("/accounts")
    sent = await asyncio.gather(
        *(
            each.post("/accounts", {"name": f"n{number}", "role": "admin", "password": PASSWORD})
            for number, each in enumerate(browsers)
        )
    )
    assert sorted(each.status_code for each in sent) == [303, 400, 400, 400]
    assert len(await console.database.run(list_accounts)) == 1


async def test_no_more_long_acts_go_on_than_are_allowed(
    console: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when many are begun at the same time."""

    async def verify(_cluster, topic: str) -> None:
        await asyncio.Event().wait()

    row = dataclasses.replace(door.OPERATIONS["verify"], function=verify)
    monkeypatch.setattr(door, "OPERATIONS", {**door.OPERATIONS, "verify": row})
    person = Person("anna", AccountRole.OPERATOR, "::1")
    begun = await asyncio.gather(
        *(console.app.console.door.start(person, console.site, "verify", "t") for _ in range(30)),
        return_exceptions=True,
    )
    refused = [each for each in begun if isinstance(each, InvalidState)]
    assert len(refused) == 30 - RUNNING_MAX
    assert len(console.app.console.door.jobs) == RUNNING_MAX


async def test_numbers_that_are_too_large_are_no_numbers(console: RunningConsole) -> None:
    browser = console.browser()
    await browser.get("/c/test")
    asked = await browser.http.post(
        "/api/clusters/test/send_message",
        content=b'{"topic": "t", "content": "x", "delay_s": 1e999}',
        headers={
            "x-csrf-token": browser.csrf,
            "origin": BASE,
            "content-type": "application/json",
        },
    )
    assert asked.status_code == 400
    assert "1e999" in asked.json()["detail"]


async def test_every_cookie_of_a_console_over_tls_needs_it(
    cluster: MemoryCluster, database
) -> None:
    async with running(cluster, database, public_url="https://vq.example.org") as made:
        browser = made.browser()
        sent = await browser.http.post("/language", data={"language": "zh-CN", "next": "/"})
        assert "Secure" in sent.headers["set-cookie"]


async def test_a_field_that_comes_a_thousand_times_costs_no_more_than_its_bytes(
    console: RunningConsole,
) -> None:
    """It is one text in the end: made once, in well under a second, and not a thousand times."""
    browser = console.browser()
    await browser.get("/c/test/definitions")
    body = b"&".join([b"document=" + b"x" * 31 * 1024] * 1_000)
    begun_s = time.process_time()
    sent = await browser.http.post(
        "/c/test/definitions",
        content=b"csrf=" + browser.csrf.encode() + b"&" + body,
        headers={"content-type": "application/x-www-form-urlencoded", "origin": BASE},
    )
    assert sent.status_code == 400
    assert time.process_time() - begun_s < 8


@pytest.mark.parametrize("charset", ["=punycode", '="unicode_escape"', "=undefined"])
async def test_a_form_is_in_utf_8(console: RunningConsole, charset: str) -> None:
    """Other ways to write text make halves of characters of it, or take minutes."""
    part = b'--x\r\nContent-Disposition: form-data; name="name"\r\n\r\n\\ud800\r\n--x--\r\n'
    sent = await console.browser().http.post(
        "/login",
        content=part,
        headers={
            "origin": BASE,
            "content-type": f"multipart/form-data; boundary=x; charset{charset}",
        },
    )
    assert sent.status_code == 400
    assert "utf-8" in sent.text
