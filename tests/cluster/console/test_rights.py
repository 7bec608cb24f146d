"""Who may do what through the console: by pages, by JSON, and who is refused before all that."""

import pytest
import sqlalchemy
from support.broker import MemoryCluster
from support.cases import case
from support.console import BASE, PASSWORD, RunningConsole, fail_writes, running

from vq import aio
from vq.console.accounts.accounts import AccountRole, add_account, change_account
from vq.console.accounts.attempts import FAILURES_MAX
from vq.console.acts.door import RIGHTS, may
from vq.console.acts.table import NOT_OVER_HTTP, OPERATIONS
from vq.console.config import ConsoleConfig
from vq.console.database.schema import audit
from vq.console.pages import events
from vq.console.pages.table import PAGES
from vq.errors import InvalidArgument
from vq.operations.operation import Effect
from vq.security.rules import Right
from vq.security.tls import Tls


@pytest.fixture
async def guarded(cluster: MemoryCluster, database):
    """A console with an account of each role."""
    for role in AccountRole:
        await database.run(lambda each, role=role: add_account(each, f"a-{role}", role, PASSWORD))
    async with running(cluster, database) as made:
        yield made


def test_every_operation_has_a_right_and_is_offered_or_says_why_not() -> None:
    """No operation comes in without somebody having thought of who may ask for it."""
    assert set(NOT_OVER_HTTP) <= set(OPERATIONS)
    for each in OPERATIONS.values():
        assert isinstance(each.right, Right)
        assert not may(AccountRole.VIEWER, each) or each.effect is not Effect.ACT
        assert may(AccountRole.OPERATOR, each)
    assert RIGHTS[AccountRole.VIEWER] < RIGHTS[AccountRole.OPERATOR]


async def test_a_viewer_changes_nothing(guarded: RunningConsole) -> None:
    """Each form and each act over JSON is refused, with the role and the right; nothing is done."""
    browser = await guarded.as_role(AccountRole.VIEWER)
    await browser.get("/c/test/topics/t")
    for page in PAGES:
        if "POST" in page.methods and page.path.startswith("/c/"):
            path = page.path.format(cluster="test", topic="t", group="b1", number="1")
            answer = await browser.post(path, {"confirm": "t", "act": "close"})
            assert answer.status_code == 403, path
    for name, row in OPERATIONS.items():
        if row.effect is Effect.ACT and name not in NOT_OVER_HTTP:
            answer = await browser.ask(name)
            assert answer.status_code in (400, 403), (name, answer.text)
    refused = await browser.ask("delete_topic", topic="t")
    assert refused.status_code == 403
    assert "manage" in refused.json()["detail"]
    assert "viewer" in refused.json()["detail"]
    assert (await browser.get("/accounts")).status_code == 403
    assert await _acts(guarded) == []
    await aio.MessageFactory.on_cluster(guarded.site.cluster).admin.get_topic("t")


async def test_an_operator_stays_within_the_quota_of_metadata_and_cannot_raise_it(
    guarded: RunningConsole,
) -> None:
    admin = aio.MessageFactory.on_cluster(guarded.site.cluster).admin
    name = f"a-{AccountRole.OPERATOR}"
    await admin.set_quotas([f"user:{name} metadata=3"])
    browser = await guarded.as_role(AccountRole.OPERATOR)
    made = await browser.ask("create_topic", topic="a", settings={"partitions": 3})
    assert made.status_code == 200, made.text
    refused = await browser.ask("create_topic", topic="b", settings={"partitions": 1})
    assert "Throttled" in refused.text
    raised = await browser.ask("set_quotas", quotas=[f"user:{name} metadata=9"])
    assert "InvalidState" in raised.text
    assert [each.name for each in await admin.list_topics()] == ["a", "t"]


#: Rights, and whether an act is allowed, of each role: written down beside the table of the door.
ROLES: dict[AccountRole, tuple[set[str], bool]] = {
    AccountRole.VIEWER: ({"describe", "read"}, False),
    AccountRole.OPERATOR: ({"describe", "read", "write", "manage"}, True),
    AccountRole.ADMIN: ({"describe", "read", "write", "manage"}, True),
}


async def test_every_operation_by_every_role(guarded: RunningConsole) -> None:
    """Whoever may not is told so, whatever the arguments are; what is kept back is no address.

    One that is added later is asked for here, too: the rows are those of the table. The argument is
    wrong for all, so nothing is done.
    """
    assert set(ROLES) == set(AccountRole)
    for role, (rights, acts) in ROLES.items():
        browser = await guarded.as_role(role)
        await browser.get("/c/test")
        for name, row in OPERATIONS.items():
            answer = await browser.ask(name, **{"no such argument": 1})
            if name in NOT_OVER_HTTP:
                wanted = 404
            elif row.right in rights and (acts or row.effect is not Effect.ACT):
                wanted = 400
            else:
                wanted = 403
            with case(role, name):
                assert answer.status_code == wanted, answer.text
    stranger = guarded.browser()
    for name in OPERATIONS:
        with case("nobody", name):
            assert (await stranger.ask(name)).status_code == 401
    assert await _acts(guarded) == []


async def test_an_operator_acts_and_does_not_manage_accounts(guarded: RunningConsole) -> None:
    browser = await guarded.as_role(AccountRole.OPERATOR)
    assert (await browser.get("/accounts")).status_code == 403
    assert (await browser.ask("close_topic", topic="t")).status_code == 200
    assert await _acts(guarded) == [("a-operator", "close_topic", "t", "done")]


async def _acts(console: RunningConsole) -> list[tuple[str, ...]]:
    columns = (audit.c.person, audit.c.act, audit.c.subject, audit.c.outcome)
    query = sqlalchemy.select(*columns).order_by(audit.c.id)
    found = await console.database.run(lambda each: list(each.execute(query)))
    return [tuple(each) for each in found]


async def test_who_is_not_logged_in_sees_nothing(guarded: RunningConsole) -> None:
    """Pages lead to the form and back to where somebody wanted to go; the API says 401."""
    browser = guarded.browser()
    for page in PAGES:
        if not page.public and "GET" in page.methods:
            path = page.path.format(cluster="test", topic="t", group="g", number="1", name="x")
            answer = await browser.get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/login?next="), path
    assert (await browser.ask("list_topics")).status_code == 401
    form = {"name": "a-viewer", "password": PASSWORD, "next": "/c/test/topics?q=a"}
    assert (await browser.post("/login", form)).headers["location"] == "/c/test/topics?q=a"
    cookie = browser.http.cookies.jar
    assert [each.name for each in cookie if each.has_nonstandard_attr("HttpOnly")] == ["vq_session"]


@pytest.mark.parametrize("elsewhere", ["//evil.example/", "https://evil.example", "/\\evil", "a"])
async def test_a_log_in_leads_to_no_other_site(guarded: RunningConsole, elsewhere) -> None:
    form = {"name": "a-viewer", "password": PASSWORD, "next": elsewhere}
    assert (await guarded.browser().post("/login", form)).headers["location"] == "/"


async def test_guessing_a_password_has_a_bound(guarded: RunningConsole) -> None:
    """After so many failures even the right password waits, and so it is told."""
    browser = guarded.browser()
    for _ in range(FAILURES_MAX):
        wrong = await browser.post("/login", {"name": "a-admin", "password": "wrong"})
        assert wrong.status_code == 401
    right = await browser.post("/login", {"name": "a-admin", "password": PASSWORD})
    assert right.status_code == 429
    assert "set-cookie" not in right.headers


async def test_a_changed_account_is_logged_out_everywhere(guarded: RunningConsole) -> None:
    browser = await guarded.as_role(AccountRole.OPERATOR)
    assert (await browser.get("/c/test")).status_code == 200
    await guarded.database.run(lambda each: change_account(each, "a-operator", disabled=True))
    assert (await browser.get("/c/test")).status_code == 303
    assert (await browser.log_in("a-operator")).status_code == 401


async def test_news_end_for_who_may_not_look_any_more(
    guarded: RunningConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends after a while, and the browser has to ask again."""
    monkeypatch.setattr(events, "STREAM_S", 0.0)
    browser = await guarded.as_role(AccountRole.OPERATOR)
    assert (await browser.get("/c/test/events")).status_code == 200
    await guarded.database.run(lambda each: change_account(each, "a-operator", disabled=True))
    news = {"accept": "text/event-stream"}
    assert (await browser.get("/c/test/events", headers=news)).status_code == 401


@pytest.mark.parametrize(
    ("headers", "csrf"),
    [
        ({"origin": "https://evil.example"}, None),
        ({"origin": "null"}, None),
        ({"sec-fetch-site": "cross-site"}, None),
        ({"sec-fetch-site": "same-site"}, None),
        ({"origin": BASE}, "wrong"),
        ({"origin": BASE}, ""),
    ],
)
async def test_a_forged_request_changes_nothing(console: RunningConsole, headers, csrf) -> None:
    """Neither from another site with the right token, nor from this one without it."""
    browser = console.browser()
    await browser.get("/c/test/topics/t")
    form = {"act": "close"} | ({} if csrf is None else {"csrf": csrf})
    answer = await browser.post("/c/test/topics/t/act", form, **headers)
    assert answer.status_code == 403
    if csrf is not None:
        browser.csrf = csrf
    asked = await browser.http.post(
        "/api/clusters/test/close_topic",
        json={"topic": "t"},
        headers={"x-csrf-token": browser.csrf, **headers},
    )
    assert asked.status_code == 403
    assert await _acts(console) == []


async def test_a_name_that_only_points_here_is_not_the_console(console: RunningConsole) -> None:
    """A page of another site that has its name point to this machine reads nothing."""
    answer = await console.browser().get("/c/test", headers={"host": "rebound.example:8120"})
    assert answer.status_code == 421


async def test_behind_a_proxy_the_public_url_counts(cluster: MemoryCluster, database) -> None:
    async with running(cluster, database, open=True, public_url="https://vq.example.org") as made:
        browser = made.browser()
        host = {"host": "vq.example.org"}
        first = await browser.get("/c/test/topics/t", headers=host)
        assert "strict-transport-security" in first.headers
        ours = {"origin": "https://vq.example.org", **host}
        answer = await browser.post("/c/test/topics/t/act", {"act": "close"}, **ours)
        assert answer.status_code == 303
        theirs = {"origin": "https://other.example.org", **host}
        answer = await browser.post("/c/test/topics/t/act", {"act": "open"}, **theirs)
        assert answer.status_code == 403


async def test_with_https_of_its_own_pages_of_https_are_its_own(
    cluster: MemoryCluster, database
) -> None:
    https = Tls(certificate="console.pem")
    async with running(cluster, database, open=True, https=https) as made:
        browser = made.browser()
        first = await browser.get("/c/test/topics/t")
        assert "strict-transport-security" in first.headers
        for scheme, status in (("https", 303), ("http", 403)):
            ours = {"origin": f"{scheme}://127.0.0.1:8120"}
            answer = await browser.post("/c/test/topics/t/act", {"act": "close"}, **ours)
            assert answer.status_code == status


async def test_without_accounts_everybody_on_this_machine_looks(
    cluster: MemoryCluster, database
) -> None:
    """And acts only if the console was started with --open, which only a loopback address takes."""
    async with running(cluster, database) as made:
        browser = made.browser()
        page = await browser.get("/c/test/topics/t")
        assert page.status_code == 200
        assert "/delete" not in page.text
        answer = await browser.post("/c/test/topics/t/act", {"act": "close"})
        assert answer.status_code == 403
    with pytest.raises(InvalidArgument, match="loopback"):
        ConsoleConfig(clusters=made.app.console.config.clusters, host="0.0.0.0", open=True)


async def test_what_cannot_be_written_down_is_not_done(
    console: RunningConsole, monkeypatch
) -> None:
    """The audit comes before the act."""
    browser = console.browser()
    await browser.get("/c/test/topics/t")
    fail_writes(console, monkeypatch, "Door._begin")
    answer = await browser.post("/c/test/topics/t/act", {"act": "close"})
    assert answer.status_code == 503
    topic = await aio.MessageFactory.on_cluster(console.site.cluster).admin.get_topic("t")
    assert topic.settings.writable


async def test_secrets_are_in_no_answer(guarded: RunningConsole) -> None:
    """No page and no answer as JSON has a password, its hash, or a token of a session."""
    browser = await guarded.as_role(AccountRole.ADMIN)
    token = browser.http.cookies["vq_session"]
    for path in (
        "/accounts",
        "/accounts/a-viewer",
        "/account",
        "/c/test/settings",
        "/c/test/audit",
    ):
        text = (await browser.get(path)).text
        for secret in (PASSWORD, "$argon2", token):
            assert secret not in text, path
    assert "argon2" not in (await browser.http.get("/api/openapi.json")).text
