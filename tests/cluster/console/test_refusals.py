"""What the console does not take, and does not give away, whatever asks for it."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import sqlalchemy
from support.broker import MemoryCluster
from support.cases import case
from support.console import PASSWORD, RunningConsole, running

from vq.console import app
from vq.console.accounts.accounts import AccountRole, add_account
from vq.console.accounts.attempts import FAILURES_MAX
from vq.console.database.schema import audit, masks, plans
from vq.console.json_api import DEPTH_MAX
from vq.console.web.security import BODY_BYTES_MAX


@pytest.fixture
async def guarded(cluster: MemoryCluster, database):
    """A console with an account of each role."""
    for role in AccountRole:
        await database.run(lambda each, role=role: add_account(each, f"a-{role}", role, PASSWORD))
    async with running(cluster, database) as made:
        yield made


async def _mask(console: RunningConsole, topic: str) -> None:
    await console.database.run(
        lambda each: each.execute(masks.insert().values(cluster="test", topic=topic))
    )


@pytest.mark.parametrize(
    "headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}]
)
async def test_another_site_logs_nobody_in(guarded: RunningConsole, headers) -> None:
    """Or its owner would read what a person does under the owner's account."""
    form = {"name": "a-viewer", "password": PASSWORD, "next": "/"}
    answer = await guarded.browser().post("/login", form, **headers)
    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


async def test_the_language_is_chosen_before_anybody_logs_in(guarded: RunningConsole) -> None:
    answer = await guarded.browser().post("/language", {"language": "zh", "next": "/login"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/login"


async def test_the_old_password_is_not_guessed_by_who_has_a_session(
    guarded: RunningConsole,
) -> None:
    """The page that changes a password counts wrong ones as the login does."""
    browser = await guarded.as_role(AccountRole.VIEWER)
    await browser.get("/account")
    form = {"old": "wrong", "password": "another one", "again": "another one"}
    for _ in range(FAILURES_MAX):
        assert (await browser.post("/account", form)).status_code == 400
    answer = await browser.post("/account", form | {"old": PASSWORD})
    assert answer.status_code == 429
    assert (await browser.get("/account")).status_code == 200  # still logged in: nothing changed


@pytest.mark.parametrize("hours", ["000000001999999999", "9601", "0", "-1", "x", "9" * 5_000])
async def test_a_chart_has_a_bounded_number_of_points(console: RunningConsole, hours) -> None:
    answer = await console.browser().get(f"/c/test/series?s=a&hours={hours}")
    assert answer.status_code == 400


async def test_loading_an_address_keeps_no_plan(console: RunningConsole) -> None:
    """A link of another site makes nothing: a page that only takes a form has no GET."""
    await console.browser().get("/c/test/allocation/plan")
    found = await console.database.run(lambda each: each.execute(sqlalchemy.select(plans)).all())
    assert found == []


async def test_masked_contents_are_not_in_the_audit_either(guarded: RunningConsole) -> None:
    """Everybody may read the audit; it says that something was sent, not what."""
    await _mask(guarded, "t")
    browser = await guarded.as_role(AccountRole.OPERATOR)
    form = {"content": "my secret", "key": "k", "headers": "a: hidden too"}
    assert (await browser.post("/c/test/topics/t/send", form)).status_code == 303
    assert (await browser.ask("send_message", topic="t", content="my secret")).status_code == 200
    rows = await guarded.database.run(lambda each: each.execute(sqlalchemy.select(audit)).all())
    assert len(rows) == 2
    assert "secret" not in str(rows)
    page = await browser.get("/c/test/topics/t/messages")
    assert "my secret" not in page.text
    assert ">0 B<" not in page.text  # the size is not known, and not nothing


async def test_a_topic_that_is_masked_later_is_masked_in_the_audit_of_before(
    guarded: RunningConsole,
) -> None:
    browser = await guarded.as_role(AccountRole.OPERATOR)
    await browser.ask("send_message", topic="t", content="my secret")
    await browser.ask("send_message", topic="t", content="my secret " * 3_000)
    for entry in ("audit/1", "audit/2"):
        assert "my secret" in (await browser.get(f"/c/test/{entry}")).text
    await _mask(guarded, "t")
    for entry in ("audit/1", "audit/2"):
        assert "my secret" not in (await browser.get(f"/c/test/{entry}")).text


async def test_an_argument_over_json_is_no_argument_of_the_door(console: RunningConsole) -> None:
    """What was there before an act is not said by who asks for it; names meet nothing else."""
    browser = console.browser()
    await browser.get("/c/test/topics/t")
    for name in ("before", "person", "site", "name", "topic"):
        answer = await browser.ask("alter_topic", topic="t", changes={name: "forged"})
        assert answer.status_code == 400, (name, answer.text)
    rows = await console.database.run(lambda each: each.execute(sqlalchemy.select(audit)).all())
    assert "forged" not in str([each.before for each in rows])
    for operation in ("broker_jobs", "explain_disk"):
        answer = await browser.ask(operation, group="b1", name="b1")
        assert answer.status_code != 500, answer.text


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("allocation/plan", {"how": "advise", "moves_max": "many"}),
        ("allocation/plan", {"how": "hand", "moves": "t/0000000001 b2"}),
        ("allocation/plan", {"how": "hand", "moves": "t/99999999999999999999 b2"}),
        ("allocation/plan", {"how": "hand", "moves": "nowhere/0 b2"}),
        ("allocation/plan", {"how": "hand", "moves": "t/0 nobody"}),
        ("allocation/plan", {"how": "import", "document": "[" * 100_000}),
        ("allocation/plan", {"how": "import", "document": "7"}),
        ("allocation/plan", {"how": "import", "document": '{"moves": [{"topic": []}]}'}),
        ("dead-letters/g/resend", {"rate": "0"}),
    ],
)
async def test_a_form_with_nonsense_says_so(console: RunningConsole, path, form) -> None:
    """Not as a failure of the console, and nothing else is done instead."""
    browser = console.browser()
    await browser.get("/c/test/topics/t")
    answer = await browser.post(f"/c/test/{path}", form)
    assert answer.status_code in (400, 404, 409), answer.text


@pytest.mark.parametrize(
    "path",
    [
        "topics/t/messages?start=offset&partition=0&at=" + "9" * 29,
        "topics/t/messages?start=offset&partition=0&at=-5",
        "topics/t/messages?start=number&at=" + "9" * 29,
        "topics/t/messages?start=time&at=0001-01-01T00:00%2B14:00",
        "topics/t/messages?start=time&at=9999-12-31T23:59",
        "topics/t/messages?partition=-1",
        "topics/t/messages?limit=" + "9" * 29,
        "topics/t/messages?id=" + "9" * 29,
        "topics/t/messages?id=-1",
        "topics/t/messages?where=%28%28%28",
        "topics/t/messages?key=%C2%B2&key_is=number",
        "topics/t/content?partition=0&offset=" + "9" * 29,
        "topics/t/content",
        "topics/nowhere",
        "topics/nowhere/messages",
        "topics/%25/messages",
        "groups/nobody",
        "groups/nobody/shared",
        "brokers/nobody",
        "transactions/" + "9" * 40,
        "jobs/" + "9" * 5_000,
        "audit/" + "9" * 18,
        "allocation?groups=-7&page=999999999&topic=%00",
        "audit?page=9999999&q=%00%25_!",
    ],
)
async def test_no_address_makes_the_console_fail(console: RunningConsole, path) -> None:
    answer = await console.browser().get(f"/c/test/{path}")
    assert answer.status_code in (200, 400, 404, 409), answer.text[-600:]


async def test_a_stranger_learns_no_name_of_a_cluster_from_its_health(
    guarded: RunningConsole,
) -> None:
    guarded.site.problem = "zk.internal does not answer"
    answer = await guarded.browser().get("/health")
    assert answer.json() == {"status": "ok", "clusters": 1, "away": 1}


async def test_guesses_from_one_network_of_ipv6_are_counted_together(
    cluster: MemoryCluster, database
) -> None:
    """By way of a proxy that is trusted; another network goes on."""
    await database.run(lambda each: add_account(each, "anna", AccountRole.VIEWER, PASSWORD))
    settings = {"public_url": "https://vq.example.org", "trusted_proxies": ("127.0.0.1",)}
    async with running(cluster, database, **settings) as made:

        async def guess(address: str) -> int:
            headers = {"x-forwarded-for": address, "host": "vq.example.org"}
            form = {"name": "anna", "password": "wrong"}
            status: int = (await made.browser().post("/login", form, **headers)).status_code
            return status

        for number in range(FAILURES_MAX):
            assert await guess(f"2001:db8:0:1::{number}") == 401
        assert await guess("2001:db8:0:1:ffff::1") == 429
        assert await guess("2001:db8:0:2::1") == 401


async def _slowly(sent: bytes) -> AsyncIterator[bytes]:
    yield sent
    await asyncio.Event().wait()


async def test_a_body_that_does_not_end_is_answered_in_time(
    cluster: MemoryCluster, database, monkeypatch
) -> None:
    """A form of a stranger, one of somebody who is known, and JSON."""
    monkeypatch.setattr(app, "BODY_TIMEOUT_S", 0.05)
    async with running(cluster, database, open=True) as made:
        browser = made.browser()
        await browser.get("/c/test/topics/t")
        form = {"content-type": "application/x-www-form-urlencoded"}
        json = {"content-type": "application/json", "x-csrf-token": browser.csrf}
        for path, headers, body in (
            ("/login", form, b"name="),
            ("/c/test/topics/t/act", form, b"act="),
            ("/api/clusters/test/list_topics", json, b"{"),
        ):
            with case(path):
                answer = await browser.http.post(path, content=_slowly(body), headers=headers)
                assert answer.status_code == 408


async def test_a_body_has_a_bound_in_bytes_whether_it_says_its_length_or_not(
    guarded: RunningConsole,
) -> None:
    """A stranger sends no more than the form to log in has."""
    known = await guarded.as_role(AccountRole.OPERATOR)
    form = {"content-type": "application/x-www-form-urlencoded"}
    json = {"content-type": "application/json", "x-csrf-token": known.csrf}

    async def parts(size: int) -> AsyncIterator[bytes]:
        for _ in range(0, size, 4096):
            yield b"x" * 4096

    for browser, path, headers, size in (
        (guarded.browser(), "/login", form, 32 * 1024),
        (known, "/c/test/topics/t/act", form, BODY_BYTES_MAX + 4096),
        (known, "/api/clusters/test/list_topics", json, BODY_BYTES_MAX + 4096),
    ):
        with case(path):
            for content in (b"x" * size, parts(size)):
                answer = await browser.http.post(path, content=content, headers=headers)
                assert answer.status_code == 413


async def test_who_may_not_ask_is_told_so_before_the_body_is_read(guarded: RunningConsole) -> None:
    headers = {"content-type": "application/json"}
    answer = await guarded.browser().http.post(
        "/api/clusters/test/list_topics", content=_slowly(b"{"), headers=headers
    )
    assert answer.status_code == 401


async def test_json_that_nobody_can_work_on_is_refused(console: RunningConsole) -> None:
    browser = console.browser()
    await browser.get("/c/test/topics/t")
    headers = {"x-csrf-token": browser.csrf, "content-type": "application/json"}
    for body in (
        b"[" * 100_000,
        b'{"topic":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1),
        b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1),
        b"",
        b"{",
        b"\xff",
        b'{"topic": "\\ud800"}',
        b'{"topic": NaN}',
        b"1" * 5_000,
        b"[]",
        b"null",
    ):
        with case(body[:20], len(body)):
            answer = await browser.http.post(
                "/api/clusters/test/get_topic", content=body, headers=headers
            )
            assert answer.status_code == 400, answer.text
            assert answer.json()["error"] == "InvalidArgument"
    answer = await browser.http.post(
        "/api/clusters/test/get_topic",
        content=b"topic=t",
        headers=headers | {"content-type": "application/x-www-form-urlencoded"},
    )
    assert answer.status_code == 415


async def test_a_name_that_no_database_takes_is_no_failure_of_the_console(
    console: RunningConsole,
) -> None:
    browser = console.browser()
    await browser.get("/c/test/topics/t")
    answer = await browser.ask("close_topic", topic="a\0b")
    assert answer.status_code in (400, 404), answer.text
    subjects = sqlalchemy.select(audit.c.subject)
    assert await console.database.run(lambda each: each.execute(subjects).scalar()) == "a␀b"
