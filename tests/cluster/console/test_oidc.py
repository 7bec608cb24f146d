"""Log in with OpenID Connect: who gets in as what, and each way in which somebody does not."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import sqlalchemy
from support.broker import MemoryCluster
from support.console import BASE, PASSWORD, Browser, RunningConsole, running
from support.identity_provider import CLIENT, SECRET, IdentityProvider, asked_of, keys, serving

from vq.cli.base.settings import build, read_sources
from vq.client.config import MessageFactoryConfig
from vq.console.accounts.accounts import AccountRole, add_account, change_account
from vq.console.accounts.identities import checked_roles, claimed, name_of, role_by
from vq.console.config import ConsoleConfig, OidcConfig
from vq.console.database.schema import audit
from vq.errors import InvalidArgument
from vq.remoting.ports import free_port

ROLES = {"vq-look": "viewer", "vq-ops": "operator", "vq-admins": "admin"}


@pytest.fixture
async def provider() -> AsyncIterator[IdentityProvider]:
    """A provider that knows anna, who is in vq-ops."""
    async with serving() as made:
        yield made


@pytest.fixture
async def guarded(cluster: MemoryCluster, database, provider: IdentityProvider):
    """A console without an account that sends people to the provider."""
    oidc = OidcConfig(
        issuer=provider.issuer, client_id=CLIENT, client_secret=SECRET, roles=ROLES, name="Home"
    )
    async with running(cluster, database, public_url=BASE, oidc=oidc) as made:
        yield made


async def _sent_back(browser: Browser, wanted: str = "/") -> str:
    """Go to the provider and return where it sends the browser back to."""
    sent = await browser.get("/login/oidc", params={"next": wanted})
    assert sent.status_code == 303, sent.text
    asked = asked_of(sent.headers["location"])
    assert asked["redirect_uri"] == f"{BASE}/login/oidc/callback"
    assert asked["code_challenge_method"] == "S256"
    async with httpx.AsyncClient() as client:
        back = await client.get(sent.headers["location"])
    location = back.headers["location"]
    assert location.startswith(BASE)
    return f"{urlsplit(location).path}?{urlsplit(location).query}"


async def _log_in(console: RunningConsole, wanted: str = "/") -> tuple[Browser, httpx.Response]:
    browser = console.browser()
    return browser, await browser.get(await _sent_back(browser, wanted))


async def test_a_person_gets_in_as_what_the_claim_says(guarded, provider) -> None:
    """The name is of no account, the role is of the table, and the audit has both."""
    stranger = await guarded.browser().get("/c/test")
    assert stranger.headers["location"] == "/login?next=%2Fc%2Ftest"
    assert "Log in with Home" in (await guarded.browser().get("/login")).text
    browser, answer = await _log_in(guarded, "/c/test/topics?q=a")
    assert answer.headers["location"] == "/c/test/topics?q=a"
    page = await browser.get("/c/test/topics")
    assert "oidc:anna" in page.text
    assert "operator" in page.text
    assert (await browser.get("/accounts")).status_code == 403
    assert "Old password" not in (await browser.get("/account")).text
    provider.claims["groups"] = ["vq-look", "vq-admins", "others"]
    browser, _ = await _log_in(guarded)
    assert (await browser.get("/accounts")).status_code == 200
    rows = await guarded.database.run(lambda each: list(each.execute(sqlalchemy.select(audit))))
    assert [(each.person, each.act, each.outcome) for each in rows] == [
        ("oidc:anna", "log_in", "done")
    ] * 2
    assert '"sub": "s-1"' in rows[0].arguments


@pytest.mark.parametrize(
    ("claims", "header", "signs", "why"),
    [
        ({"nonce": "another"}, {}, 0, "nonce"),
        ({"nonce": None}, {}, 0, "nonce"),
        ({"iss": "https://other.example"}, {}, 0, "iss"),
        ({"aud": "another client"}, {}, 0, "aud"),
        ({"aud": [CLIENT, "b"], "azp": "b"}, {}, 0, "azp"),
        ({"exp": int(time.time()) - 3600}, {}, 0, "expired"),
        ({"exp": None}, {}, 0, "exp"),
        ({}, {"kid": "nobody"}, 0, "kid"),
        ({}, {}, 1, "signature"),
        ({}, {"alg": "none"}, 0, ""),
    ],
)
async def test_a_token_that_proves_nothing_lets_nobody_in(
    guarded, provider, claims, header, signs, why
) -> None:
    """Each is refused with its reason, and what to do; there is no session."""
    provider.claims |= claims
    provider.header |= header
    provider.key = keys()[signs]
    browser, answer = await _log_in(guarded)
    assert answer.status_code == 401
    assert "begin again" in answer.text
    assert why in answer.text.lower()
    assert (await browser.get("/c/test")).status_code == 303


async def test_a_way_back_counts_once_and_for_the_browser_that_began(guarded) -> None:
    """Another browser, another state, and the same one again are refused."""
    browser = guarded.browser()
    back = await _sent_back(browser)
    assert (await guarded.browser().get(back)).status_code == 401
    assert (await browser.get(back)).status_code == 401  # it was used
    back = await _sent_back(browser)
    assert (await browser.get(back)).status_code == 303
    again = await browser.get(back)
    assert again.status_code == 401
    assert "used before" in again.text
    fresh = await _sent_back(browser)
    mixed = back.split("&state")[0] + "&state" + fresh.split("&state")[1]
    answer = await browser.get(mixed)  # the code of another try
    assert answer.status_code == 401
    assert "invalid_grant" in answer.text
    other = (await _sent_back(browser)).partition("&iss=")[0] + "&iss=https://other.example"
    assert "other.example" in (await browser.get(other)).text
    for wrong in ("?state=x&code=y", "", "?error=access_denied"):
        assert (await browser.get(f"/login/oidc/callback{wrong}")).status_code == 401


@pytest.mark.parametrize("wanted", ["https://evil.example/", "//evil.example", "/\\evil.example"])
async def test_nobody_is_sent_elsewhere_after_the_provider(guarded, wanted) -> None:
    """The page that is wanted is one of the console."""
    _, answer = await _log_in(guarded, wanted)
    assert answer.headers["location"] == "/"


async def test_who_has_no_role_is_told_what_to_do(guarded, provider) -> None:
    """403 with the claim, its values and the setting; what the provider tells apart counts, too."""
    provider.claims["groups"] = ["others"]
    _, answer = await _log_in(guarded)
    assert answer.status_code == 403
    assert "others" in answer.text
    assert "[console.oidc]" in answer.text
    del provider.claims["groups"], provider.claims["preferred_username"]
    provider.userinfo |= {"groups": "vq-ops", "email": "anna@example.org"}
    browser, answer = await _log_in(guarded)
    assert answer.status_code == 303
    assert "oidc:anna@example.org" in (await browser.get("/c/test")).text
    provider.userinfo["sub"] = "s-2"
    assert (await _log_in(guarded))[1].status_code == 401


async def test_a_disabled_account_of_the_name_keeps_a_person_out(guarded) -> None:
    """It ends the sessions that there are, and no new one begins."""
    await guarded.database.run(lambda each: add_account(each, "boss", AccountRole.ADMIN, PASSWORD))
    await guarded.database.run(lambda each: add_account(each, "Anna", AccountRole.VIEWER, None))
    browser, _ = await _log_in(guarded)
    assert (await browser.get("/c/test")).status_code == 200
    await guarded.database.run(lambda each: change_account(each, "Anna", disabled=True))
    assert (await browser.get("/c/test")).status_code == 303
    assert (await _log_in(guarded))[1].status_code == 403


async def test_a_new_key_of_the_provider_is_taken(guarded, provider) -> None:
    """Keys are asked for once, and again for a token of a key that is not known."""
    await _log_in(guarded)
    await _log_in(guarded)
    assert provider.asked == 1
    provider.key, provider.published, provider.header["kid"] = keys()[2], keys()[1:], "three"
    assert (await _log_in(guarded))[1].status_code == 303
    assert provider.asked == 2


async def test_without_the_provider_passwords_still_work(cluster, database) -> None:
    """The page says that it is away, and has the form."""
    oidc = OidcConfig(
        issuer=f"http://127.0.0.1:{free_port()}", client_id="c", client_secret="s", roles=ROLES
    )
    async with running(cluster, database, public_url=BASE, oidc=oidc) as console:
        browser = console.browser()
        answer = await browser.get("/login/oidc")
        assert answer.status_code == 503
        assert "Passwords still work" in answer.text
        assert 'name="password"' in answer.text
        assert (await (await console.as_role(AccountRole.VIEWER)).get("/c/test")).status_code == 200


def test_names_and_roles_of_claims() -> None:
    """The first name that can be shown; the highest role; a claim within another."""
    assert name_of({"preferred_username": " ", "email": "a@b", "sub": "s"}) == "oidc:a@b"
    assert name_of({"email": "a@b", "email_verified": False, "sub": "s"}) == "oidc:s"
    assert name_of({"preferred_username": "a\u202eb", "sub": "s"}) == "oidc:s"
    assert claimed({"realm_access": {"roles": ["a", 1]}}, "realm_access.roles") == ["a"]
    assert claimed({"https://x.example/r": "a"}, "https://x.example/r") == ["a"]
    roles = checked_roles(ROLES)
    assert role_by(["vq-look", "vq-admins"], roles) is AccountRole.ADMIN
    assert role_by(["x"], roles) is None
    for wrong in ({}, {"a": "root"}):
        with pytest.raises(InvalidArgument, match="roles"):
            checked_roles(wrong)


def test_settings_come_from_the_file_and_from_variables(tmp_path: Path) -> None:
    """[console.oidc] may be left out; what is dangerous is refused."""
    clusters = {"c": MessageFactoryConfig(cluster="c")}

    def read(text: str, **environ: str) -> ConsoleConfig:
        (tmp_path / "vq.toml").write_text(text)
        sources = read_sources(str(tmp_path / "vq.toml"), environ, clusters=clusters)
        return build(ConsoleConfig, "console", sources)

    table = '[console.oidc]\nissuer="https://id.example"\nclient_id="c"\nroles={a="admin"}\n'
    public = '[console]\npublic_url="https://vq.example"\n'
    found = read(public + table, VQ_CONSOLE_OIDC_CLIENT_SECRET="s", VQ_CONSOLE_PORT="1")
    assert found.oidc == OidcConfig(
        issuer="https://id.example", client_id="c", client_secret="s", roles={"a": "admin"}
    )
    assert found.port == 1
    assert read(public).oidc is None
    with pytest.raises(InvalidArgument, match="client_secret"):
        read(public + table)
    with pytest.raises(InvalidArgument, match="public_url"):
        read(table, VQ_CONSOLE_OIDC_CLIENT_SECRET="s")
    with pytest.raises(InvalidArgument, match="TLS"):
        read(public, VQ_CONSOLE_OIDC_ISSUER="http://id.example", **_rest())
    with pytest.raises(InvalidArgument, match="did you mean VQ_CONSOLE_OIDC_ISSUER"):
        read(public, VQ_CONSOLE_OIDC_ISUER="https://id.example", **_rest())


def _rest() -> dict[str, str]:
    return {"VQ_CONSOLE_OIDC_CLIENT_ID": "c", "VQ_CONSOLE_OIDC_CLIENT_SECRET": "s"}
