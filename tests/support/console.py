"""The console over a cluster in memory, asked as a browser does."""

import contextlib
import functools
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.broker import MemoryCluster
from support.client import cluster_client

from vq import aio
from vq.client.config import MessageFactoryConfig
from vq.console.accounts.accounts import AccountRole, add_account
from vq.console.app import ConsoleApp
from vq.console.config import ConsoleConfig
from vq.console.database.database import Database, DatabaseFailed
from vq.testing.waiting import until

BASE = "http://127.0.0.1:8120"
PASSWORD = "a long password"


class Browser:
    """A browser: it keeps cookies, and sends the token of the last page with forms."""

    def __init__(self, app: Any) -> None:
        self.http = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url=BASE, headers={"accept": "text/html"}
        )
        self.csrf = ""

    async def get(self, path: str, **options: Any) -> httpx.Response:
        """Load a page."""
        return self._seen(await self.http.get(path, **options))

    async def post(self, path: str, form: dict[str, Any] | None = None, **headers: str) -> Any:
        """Send a form of the page that was loaded."""
        sent = {"csrf": self.csrf, **(form or {})}
        return self._seen(await self.http.post(path, data=sent, headers=headers))

    async def ask(self, operation: str, **arguments: Any) -> httpx.Response:
        """Ask for an operation as JSON."""
        return await self.http.post(
            f"/api/clusters/test/{operation}",
            json=arguments,
            headers={"x-csrf-token": self.csrf, "origin": BASE},
        )

    async def log_in(self, name: str, password: str = PASSWORD) -> httpx.Response:
        """Log in; return the answer."""
        answer = await self.post("/login", {"name": name, "password": password, "next": "/"})
        await self.get("/c/test")
        return answer

    def _seen(self, response: httpx.Response) -> httpx.Response:
        found = re.search(r'name="csrf" value="([^"]+)"', response.text)
        if found:
            self.csrf = found[1]
        return response


class RunningConsole:
    """A console that runs, and what a test looks at."""

    def __init__(self, app: ConsoleApp, database: Database) -> None:
        self.app = app
        self.asgi = app.asgi()
        self.database = database
        self.site = app.console.sites["test"]

    def browser(self) -> Browser:
        """Return a new browser."""
        return Browser(self.asgi)

    async def as_role(self, role: AccountRole) -> Browser:
        """Return a browser that is logged in with a role."""
        name = f"a-{role}"
        with contextlib.suppress(Exception):
            await self.database.run(lambda each: add_account(each, name, role, PASSWORD))
        browser = self.browser()
        await browser.log_in(name)
        return browser


@functools.cache
def _newest_schema() -> bytes:
    """Return the file of an empty database: a copy of it costs less than all migrations."""
    with tempfile.TemporaryDirectory(prefix="vq-test-") as scratch:
        file = Path(scratch) / "console.db"
        made = Database(f"sqlite:///{file}")
        made.upgrade()
        made.close()
        return file.read_bytes()


@contextlib.contextmanager
def fresh_database(directory: Path) -> Iterator[Database]:
    """Provide a database at the newest schema."""
    file = directory / "console.db"
    file.write_bytes(_newest_schema())
    made = Database(f"sqlite:///{file}")
    try:
        yield made
    finally:
        made.close()


@contextlib.asynccontextmanager
async def running(
    cluster: MemoryCluster, database: Database, **settings: Any
) -> AsyncIterator[RunningConsole]:
    """Run a console that has looked at everything once."""
    config = ConsoleConfig(clusters={"test": MessageFactoryConfig(cluster="test")}, **settings)

    async def opened(_config: MessageFactoryConfig) -> aio.MessageFactory:
        client = cluster_client(cluster)
        await client.start()
        return aio.MessageFactory.on_cluster(client)

    app = ConsoleApp(config, database, opened)
    made = RunningConsole(app, database)
    async with made.asgi.router.lifespan_context(made.asgi):
        facts = made.site.facts
        await until(
            lambda: (
                facts.brokers_look.time_ms and facts.names_look.time_ms and facts.lags_look.time_ms
            )
        )
        yield made


def fail_writes(console: RunningConsole, monkeypatch: pytest.MonkeyPatch, of: str) -> None:
    """Have the database fail in what a function, such as ``Door._end``, has it do."""
    run = console.database.run

    async def failing(work: Any) -> Any:
        if of in work.__qualname__:
            raise DatabaseFailed("the disk is full")
        return await run(work)

    monkeypatch.setattr(console.database, "run", failing)
