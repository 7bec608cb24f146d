"""Programs ask the JSON API with the token of an account, and for nothing else."""

import re

import httpx
import pytest
import sqlalchemy
from support.broker import MemoryCluster
from support.cases import case
from support.console import BASE, PASSWORD, Browser, RunningConsole, running

from vq.console.accounts.accounts import AccountRole, add_account, change_account
from vq.console.accounts.tokens import make_access_token
from vq.console.database.schema import audit, tokens
from vq.console.pages.table import PAGES


@pytest.fixture
async def guarded(cluster: MemoryCluster, database):
    """A console with an account of each role."""
    for role in AccountRole:
        await database.run(lambda each, role=role: add_account(each, f"a-{role}", role, PASSWORD))
    async with running(cluster, database) as made:
        yield made


async def _token(console: RunningConsole, role: AccountRole, name: str = "ci") -> str:
    return await console.database.run(
        lambda each: make_access_token(each, f"a-{role}", name, role, 30)
    )


def _program(console: RunningConsole, token: str, **headers: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(console.asgi),
        base_url=BASE,
        headers={"authorization": f"Bearer {token}", **headers},
    )


async def test_a_program_acts_with_a_token_and_the_audit_names_both(
    guarded: RunningConsole,
) -> None:
    """Without a cookie, and without the token of a page."""
    program = _program(guarded, await _token(guarded, AccountRole.OPERATOR))
    asked = await program.post("/api/clusters/test/list_topics", json={})
    assert [each["name"] for each in asked.json()] == ["t"]
    done = await program.post("/api/clusters/test/close_topic", json={"topic": "t"})
    assert done.status_code == 200, done.text
    columns = (audit.c.person, audit.c.token, audit.c.act, audit.c.outcome)
    query = sqlalchemy.select(*columns)
    found = await guarded.database.run(lambda each: each.execute(query).all())
    assert [tuple(each) for each in found] == [("a-operator", "ci", "close_topic", "done")]
    browser = await guarded.as_role(AccountRole.VIEWER)
    assert [each["token"] for each in (await browser.get("/c/test/audit?export=json")).json()] == [
        "ci"
    ]
    assert "<dt>Token</dt><dd>ci</dd>" in (await browser.get("/c/test/audit/1")).text


async def test_a_token_has_the_role_it_was_made_with_at_most(guarded: RunningConsole) -> None:
    """Also where its account may do more, and less once the account may do less."""
    made = await guarded.database.run(
        lambda each: make_access_token(each, "a-admin", "look", AccountRole.VIEWER, 30)
    )
    refused = await _program(guarded, made).post(
        "/api/clusters/test/close_topic", json={"topic": "t"}
    )
    assert refused.status_code == 403
    assert "token look of a-admin is viewer" in refused.json()["detail"]
    acts = await _token(guarded, AccountRole.OPERATOR)
    await guarded.database.run(
        lambda each: change_account(each, "a-operator", role=AccountRole.VIEWER)
    )
    weaker = await _program(guarded, acts).post(
        "/api/clusters/test/close_topic", json={"topic": "t"}
    )
    assert weaker.status_code == 403


async def test_a_token_opens_no_page(guarded: RunningConsole) -> None:
    """Neither alone nor beside the cookie of somebody who may do less."""
    token = await _token(guarded, AccountRole.ADMIN)
    program = _program(guarded, token, accept="text/html")
    viewer = await guarded.as_role(AccountRole.VIEWER)
    for page in PAGES:
        if page.public or "GET" not in page.methods or page.path.endswith("/events"):
            continue
        path = page.path.format(cluster="test", topic="t", group="b1", number="1", name="a-viewer")
        alone = await program.get(path)
        assert alone.status_code == 303, path
        assert alone.headers["location"].startswith("/login"), path
        if page.role is not AccountRole.VIEWER:
            beside = await viewer.get(path, headers={"authorization": f"Bearer {token}"})
            assert beside.status_code == 403, path


async def test_a_token_beside_a_cookie_is_refused(guarded: RunningConsole) -> None:
    """Or a page could have the rights of both."""
    token = await _token(guarded, AccountRole.ADMIN)
    browser = await guarded.as_role(AccountRole.VIEWER)
    answer = await browser.http.post(
        "/api/clusters/test/list_topics",
        json={},
        headers={"x-csrf-token": browser.csrf, "authorization": f"Bearer {token}"},
    )
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


async def test_what_is_no_token_of_the_console_is_refused(guarded: RunningConsole) -> None:
    await _token(guarded, AccountRole.ADMIN)
    for header in ("", "Bearer", "Bearer ", "Basic YTpi", "Bearer vqt_x", "x" * 9, "Bearer " * 99):
        with case(header):
            program = _program(guarded, "", authorization=header)
            answer = await program.post("/api/clusters/test/list_topics", json={})
            assert answer.status_code == 401
            assert answer.json()["error"] == "NotLoggedIn"


async def _make(browser: Browser, path: str, **form: str) -> httpx.Response:
    await browser.get(path)
    sent = {"act": "make", "token": "ci", "role": "viewer", "days": "30", **form}
    return await browser.post(path, sent)


async def test_a_person_makes_a_token_that_is_shown_once_and_revokes_it(
    guarded: RunningConsole,
) -> None:
    browser = await guarded.as_role(AccountRole.OPERATOR)
    made = await _make(browser, "/account/tokens", role="operator")
    assert made.status_code == 200
    assert made.headers["cache-control"] == "no-store"
    [token] = set(re.findall(r"vqt_[\w-]{20,}", made.text))
    assert token not in (await browser.get("/account/tokens")).text
    stored = await guarded.database.run(lambda each: each.execute(sqlalchemy.select(tokens)).all())
    assert token not in str(stored)
    program = _program(guarded, token)
    assert (await program.post("/api/clusters/test/list_topics", json={})).status_code == 200
    done = await browser.post("/account/tokens", {"act": "revoke", "token": "ci"})
    assert done.status_code == 303
    assert (await program.post("/api/clusters/test/list_topics", json={})).status_code == 401
    query = sqlalchemy.select(audit.c.person, audit.c.act, audit.c.subject, audit.c.arguments)
    rows = [tuple(each) for each in await guarded.database.run(lambda e: e.execute(query).all())]
    assert [each[:3] for each in rows] == [
        ("a-operator", "make_token", "a-operator"),
        ("a-operator", "revoke_token", "a-operator"),
    ]
    assert token not in str(rows)


async def test_nobody_makes_a_token_that_may_do_more(guarded: RunningConsole) -> None:
    viewer = await guarded.as_role(AccountRole.VIEWER)
    refused = await _make(viewer, "/account/tokens", role="admin")
    assert refused.status_code == 400
    assert "viewer" in refused.text
    assert (await _make(viewer, "/accounts/a-admin/tokens")).status_code == 403
    admin = await guarded.as_role(AccountRole.ADMIN)
    assert (await _make(admin, "/accounts/a-viewer/tokens", role="operator")).status_code == 400
    assert (await _make(admin, "/accounts/a-operator/tokens", role="operator")).status_code == 200
    assert (await _make(admin, "/accounts/nobody/tokens")).status_code == 404
    [made] = await guarded.database.run(lambda each: each.execute(sqlalchemy.select(tokens)).all())
    assert (made.account, made.role, made.made_by) == ("a-operator", "operator", "a-admin")
