"""What every page of the console looks like, in a real browser, over a cluster in memory.

The pictures stay in ``.test-artifacts/console``: they are there to be looked at. To take some
of them alone, in every variant::

    VQ_PICTURES=group,topic pytest tests/integration/test_console_pictures.py
"""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import BrowserContext, ConsoleMessage, Page, StorageState
from support.broker import MemoryCluster, memory_cluster
from support.browser import async_chromium
from support.console import PASSWORD, RunningConsole, fresh_database, running
from support.filled_console import NAME, filled_console

from vq.console.database.database import Database
from vq.console.pages.table import PAGES
from vq.gateway.quiet_server import QuietServer
from vq.testing.waiting import until

PICTURES = Path(".test-artifacts/console")
#: Milliseconds after which a page that does not come to what is expected has failed.
WAIT_MS = 30_000
_DESKTOP = {"viewport": {"width": 1280, "height": 800}}
VARIANTS = {
    "light": {**_DESKTOP, "color_scheme": "light", "locale": "en"},
    "dark": {**_DESKTOP, "color_scheme": "dark", "locale": "en"},
    "phone": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "locale": "en"},
    "chinese": {**_DESKTOP, "color_scheme": "light", "locale": "zh-CN"},
}
C = "/c/test"
#: Addresses to take pictures of, by the page's own address and by the name of the picture.
ADDRESSES: Mapping[str, Mapping[str, str]] = {
    "/login": {"login": "/login?next=/"},
    "/account": {"account": "/account"},
    "/account/tokens": {"tokens": "/account/tokens"},
    "/accounts": {"accounts": "/accounts"},
    "/accounts/{name}": {"account-of-another": "/accounts/bob"},
    "/accounts/{name}/tokens": {"tokens-of-another": "/accounts/bob/tokens"},
    "/c/{cluster}": {"overview": C},
    "/c/{cluster}/brokers": {"brokers": f"{C}/brokers"},
    "/c/{cluster}/brokers/{group}": {"broker-group": f"{C}/brokers/b1"},
    "/c/{cluster}/brokers/{group}/remove": {"broker-remove": f"{C}/brokers/b1/remove"},
    "/c/{cluster}/allocation": {"allocation": f"{C}/allocation"},
    "/c/{cluster}/allocation/plans/{number}": {"allocation-plan": f"{C}/allocation/plans/1"},
    "/c/{cluster}/topics": {"topics": f"{C}/topics"},
    "/c/{cluster}/topics/create": {"topic-create": f"{C}/topics/create"},
    "/c/{cluster}/topics/{topic}/settings": {"topic-settings": f"{C}/topics/orders/settings"},
    "/c/{cluster}/topics/{topic}": {"topic": f"{C}/topics/orders"},
    "/c/{cluster}/topics/{topic}/delete": {"topic-delete": f"{C}/topics/orders/delete"},
    "/c/{cluster}/topics/{topic}/messages": {
        "messages": f"{C}/topics/orders/messages",
        "messages-none": f"{C}/topics/empty/messages",
        "message": f"{C}/topics/orders/messages?limit=5",
        "message-protobuf": f"{C}/topics/payments/messages?as=protobuf",
        "messages-found": f"{C}/topics/orders/messages?key=customer-1",
    },
    "/c/{cluster}/descriptors": {"descriptors": f"{C}/descriptors?topic=payments"},
    "/c/{cluster}/descriptors/{name}": {"descriptor-set": f"{C}/descriptors/payments"},
    "/c/{cluster}/topics/{topic}/send": {"send": f"{C}/topics/orders/send"},
    "/c/{cluster}/groups": {"groups": f"{C}/groups"},
    "/c/{cluster}/groups/{group}": {
        "group": f"{C}/groups/billing",
        "group-without-members": f"{C}/groups/shipping",
        "group-unknown": f"{C}/groups/nobody",
    },
    "/c/{cluster}/groups/{group}/reset": {"group-reset": f"{C}/groups/shipping/reset"},
    "/c/{cluster}/groups/{group}/delete": {"group-delete": f"{C}/groups/shipping/delete"},
    "/c/{cluster}/groups/{group}/shared": {"group-shared": f"{C}/groups/printers/shared"},
    "/c/{cluster}/groups/{group}/plan": {"group-plan": f"{C}/groups/billing/plan?members=3"},
    "/c/{cluster}/dead-letters": {"dead-letters": f"{C}/dead-letters"},
    "/c/{cluster}/dead-letters/{group}": {"letters": f"{C}/dead-letters/desk?settled=1"},
    "/c/{cluster}/dead-letters/{group}/resend": {"resend": f"{C}/dead-letters/desk/resend"},
    "/c/{cluster}/dead-letters/{group}/delete": {"letters-delete": f"{C}/dead-letters/desk/delete"},
    "/c/{cluster}/delayed": {"delayed": f"{C}/delayed"},
    "/c/{cluster}/transactions": {"transactions": f"{C}/transactions"},
    "/c/{cluster}/transactions/{number}": {"transaction": f"{C}/transactions"},
    "/c/{cluster}/archive": {
        "archive": f"{C}/archive",
        "archive-of-a-topic": f"{C}/archive?topic=orders",
    },
    "/c/{cluster}/archive/restore": {"archive-restore": f"{C}/archive/restore?topic=orders"},
    "/c/{cluster}/definitions": {"definitions": f"{C}/definitions"},
    "/c/{cluster}/definitions/plans/{number}": {"definitions-plan": f"{C}/definitions/plans/1"},
    "/c/{cluster}/explain": {
        "explain": f"{C}/explain",
        "explained": f"{C}/explain?question=partition&topic=orders&partition=0&group=billing",
        "explained-disk": f"{C}/explain?question=disk&node=b1",
    },
    "/c/{cluster}/reports": {"reports": f"{C}/reports"},
    "/c/{cluster}/reports/{number}": {
        "report-lag": f"{C}/reports/1",
        "report-capacity": f"{C}/reports/2",
        "report-audit": f"{C}/reports/3",
    },
    "/c/{cluster}/audit": {"audit": f"{C}/audit"},
    "/c/{cluster}/acts": {"acts": f"{C}/acts"},
    "/c/{cluster}/acts/{name}": {"act": f"{C}/acts"},
    "/c/{cluster}/audit/{number}": {"audit-entry": f"{C}/audit/2"},
    "/c/{cluster}/jobs": {"jobs": f"{C}/jobs"},
    "/c/{cluster}/jobs/{number}": {"job": f"{C}/jobs/1"},
    "/c/{cluster}/settings": {"settings": f"{C}/settings"},
}
#: Addresses that answer with no page of their own, and what with.
NO_PAGE = {
    "/c/{cluster}/definitions/file": "a file",
    "/": "leads to the first cluster",
    "/login/oidc": "leads to the provider",
    "/login/oidc/callback": "leads back to a page",
    "/c/{cluster}/allocation/plans/{number}/file": "a file",
    "/c/{cluster}/topics/{topic}/content": "a file",
    "/c/{cluster}/reports/{number}/file": "a file",
    "/c/{cluster}/events": "news for scripts",
    "/c/{cluster}/series": "points for scripts",
}
#: Pages that nobody can foresee the address of: the first link of a table leads there.
FOLLOWED = {"transaction", "act"}
#: What is opened before the picture is taken.
OPENED = {
    "message": ".message summary",
    "message-protobuf": ".message summary",
    "letters": ".message summary",
}
#: Lists of a cluster that nobody has used yet.
EMPTY = {
    "empty-overview": C,
    **{
        f"empty-{each}": f"{C}/{each}"
        for each in (
            *("brokers", "allocation", "topics", "groups", "dead-letters", "delayed"),
            *("transactions", "archive", "reports", "audit", "jobs", "descriptors", "settings"),
        )
    },
    "empty-accounts": "/accounts",
    "empty-account": "/account",
}
#: Those of them that the short form takes.
FEW_EMPTY = ("empty-overview", "empty-topics", "empty-allocation", "empty-jobs", "empty-account")
#: Pages that say what is wrong with a broker, or do not know something of it.
HURT = {
    "hurt-overview": C,
    "hurt-brokers": f"{C}/brokers",
    "hurt-broker-group": f"{C}/brokers/b2",
    "hurt-topic": f"{C}/topics/orders",
    "hurt-group": f"{C}/groups/billing",
}
#: What answers with another status than 200.
UNKNOWN = {"group-unknown": 404}
#: Tables that are wider than their place: on a desktop nobody is to move them aside.
_CUT = """[...document.querySelectorAll("main .scroll")]
    .filter(each => each.scrollWidth > each.clientWidth)
    .map(each => `${each.getAttribute("aria-label")} by ${each.scrollWidth - each.clientWidth}`)"""
#: Pages that differ most.
FEW = ("overview", "allocation", "message", "group", "login", "report-capacity")
#: What the short form takes in the other variants: by width, by colours, by texts.
SHORT = {
    "phone": FEW,
    "dark": ("overview", "allocation", "report-capacity"),
    "chinese": ("overview", "message", "login"),
}
#: Pages with all colours that there are: the short form measures contrasts on these alone, which
#: takes axe longer than all its other rules.
COLOURED = {*FEW, "topic-delete", "transactions", "explained", "letters", "hurt-overview"}
#: Colours are those of one of these in every variant.
COLOURS = ("light", "dark")
LONG = os.environ.get("VQ_LONG") == "1"


def test_every_page_has_its_pictures() -> None:
    """A page that comes into the table of routes gets pictures, or says what it is."""
    shown = {each.path for each in PAGES if "GET" in each.methods}
    assert shown == {*ADDRESSES} | {*NO_PAGE}


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    """One broker."""
    async with memory_cluster() as made:
        await made.start()
        yield made


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """At the newest schema."""
    with fresh_database(tmp_path) as made:
        yield made


@pytest.fixture
async def console(cluster: MemoryCluster, database: Database) -> AsyncIterator[RunningConsole]:
    """A console with something on every page."""
    async with filled_console(cluster, database) as made:
        yield made


@asynccontextmanager
async def served(console: RunningConsole) -> AsyncIterator[str]:
    """Provide the address where a browser reaches it."""
    config = uvicorn.Config(
        console.asgi,
        port=0,
        ws="none",
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve())
    try:
        await until(lambda: server.started)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@pytest.mark.slow
async def test_pages_in_four_variants(console: RunningConsole) -> None:
    """Each is readable for a screen reader, fits a phone, and the browser has no complaint.

    All pages in the light variant, and in the others with ``VQ_LONG``; else those that differ most.
    """
    pictures = {name: path for each in ADDRESSES.values() for name, path in each.items()}
    short: Mapping[str, Sequence[str]] = {} if LONG else SHORT
    if os.environ.get("VQ_PICTURES"):
        short = dict.fromkeys(VARIANTS, os.environ["VQ_PICTURES"].split(","))
    async with served(console) as address:
        await _take(
            address,
            {
                variant: {name: pictures[name] for name in short.get(variant, pictures)}
                for variant in VARIANTS
            },
        )


@pytest.mark.slow
async def test_pages_of_a_cluster_without_anything(cluster: MemoryCluster, database) -> None:
    """What there is none of says so, and what to do next; a few such pages in the short form."""
    async with running(cluster, database, open=True) as console, served(console) as address:
        chosen = EMPTY if LONG else {name: EMPTY[name] for name in FEW_EMPTY}
        await _take(address, {"light": chosen}, account=False)


@pytest.mark.slow
async def test_pages_of_a_cluster_with_a_dead_broker(console: RunningConsole, cluster) -> None:
    """What is not known says so."""
    await cluster.nodes["b2"].stop()
    facts = console.site.facts
    await until(lambda: any(each.error for each in facts.status.brokers))
    async with served(console) as address:
        await _take(address, {"light": HURT})


async def _take(
    address: str, pictures: Mapping[str, Mapping[str, str]], *, account: bool = True
) -> None:
    """Take the pictures of each variant, and fail for what a person could not read."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    wrong: list[object] = []
    state: StorageState | None = None  # whoever logged in once is logged in
    async with async_chromium() as browser:
        for variant, chosen in pictures.items():
            how = VARIANTS[variant]
            context = await browser.new_context(base_url=address, storage_state=state, **how)
            await _take_all(context, chosen, variant, wrong, account=account)
            state = await context.storage_state()
            await context.close()
    assert not wrong, "\n".join(map(str, wrong))


async def _take_all(
    context: BrowserContext,
    pictures: Mapping[str, str],
    variant: str,
    wrong: list[object],
    *,
    account: bool,
) -> None:
    page = await context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: wrong.append((page.url, str(error))))
    page.on("console", lambda told: wrong.extend(_complaints(page, told)))
    for name, path in pictures.items():
        if account and name != "login":
            await _log_in(page)
        answer = await page.goto(path)
        assert answer is not None
        assert answer.status == UNKNOWN.get(name, 200), (name, answer.status)
        if name in FOLLOWED:
            await page.locator("main td a").first.click()
        await page.locator("h1").wait_for()
        if name in OPENED:
            await page.locator(OPENED[name]).first.click()
        await page.screenshot(path=PICTURES / f"{name}-{variant}.png", full_page=True)
        wrong += await _defects(page, name, variant)


def _complaints(page: Page, told: ConsoleMessage) -> list[object]:
    if told.type != "error" or "Failed to load resource" in told.text:
        return []
    return [(page.url, told.text)]


async def _log_in(page: Page) -> None:
    if not any(each["name"] == "vq_session" for each in await page.context.cookies()):
        await page.goto("/login")
        await page.locator("#f-name").fill(NAME)
        await page.locator("#f-password").fill(PASSWORD)
        await page.locator("form[action='/login'] button").click()
        await page.locator("h1").wait_for()


async def _defects(page: Page, name: str, variant: str) -> list[object]:
    """Return what a person could not read: beyond the edge, in no language, against axe."""
    found: list[object] = []
    language = VARIANTS[variant]["locale"]
    wide = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if wide > 0:
        found.append((name, "wider than the window by", wide))
    cut = await page.evaluate(_CUT) if await page.evaluate("innerWidth") >= 1280 else []
    found += [(name, "is cut at the right", each) for each in cut]
    if await page.locator("html").get_attribute("lang") != language:
        found.append((name, "is not in", language))
    has_colours = LONG or (name in COLOURED and variant in COLOURS)
    contrast = {"color-contrast": {"enabled": has_colours}}
    options = {"resultTypes": ["violations"], "rules": contrast}
    against = (await Axe().run(page, options=options)).response["violations"]
    return found + [
        (name, each["id"], [node["html"][:120] for node in each["nodes"][:3]])
        for each in against
        if each["impact"] in ("serious", "critical")
    ]
