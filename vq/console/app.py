"""The console as an ASGI application: routes, the gate before them, and errors as pages."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from vq.console.accounts.accounts import AccountRole, has_accounts
from vq.console.accounts.attempts import Attempts
from vq.console.accounts.sessions import find_session
from vq.console.acts.door import Door, NotPermitted, Person
from vq.console.clusters.console_metrics import console_families
from vq.console.clusters.history import MinuteMeter, store_minute
from vq.console.clusters.measured import measured
from vq.console.clusters.site import Open, Site
from vq.console.config import ConsoleConfig
from vq.console.database.database import Database, DatabaseFailed
from vq.console.json_api import json_api
from vq.console.pages.page import ConsolePage
from vq.console.pages.table import MENU, PAGES
from vq.console.web.context import Console, PageContext
from vq.console.web.flashes import Flashes
from vq.console.web.languages import best_language
from vq.console.web.rendering import STATIC
from vq.console.web.security import (
    BODY_BYTES_MAX,
    COOKIE,
    CSRF_FIELD,
    CSRF_HEADER,
    LANGUAGE_COOKIE,
    SAFE_METHODS,
    ConsoleGate,
    PageVisitor,
    protect,
)
from vq.console.web.statuses import NotLoggedIn, UnknownToConsole, status_of
from vq.errors import InvalidArgument, VqError
from vq.log_lines import get_logger
from vq.remoting.exposition import metrics_page
from vq.shown import shown, shown_raised

logger = get_logger(__name__)
_FORM_FIELDS_MAX: Final = 1_000


class ConsoleApp:
    """Puts the console together. Loop-bound once it runs.

    Args:
        config: Of the console.
        database: At the newest schema.
        opened: Opens a session with a cluster; None: over ZooKeeper.
    """

    def __init__(
        self, config: ConsoleConfig, database: Database, opened: Open | None = None
    ) -> None:
        sites = {
            name: Site(name, each, self._measure, opened)
            for name, each in sorted(config.clusters.items())
        }
        oidc = None
        if config.oidc is not None:  # its packages are loaded only where it is
            from vq.console.accounts.oidc import OidcProvider

            oidc = OidcProvider(config.oidc, config.public_url)
        meters = {name: MinuteMeter(config.history_series) for name in sites}
        self.console = Console(
            config, database, Door(database), sites, Flashes(), MENU, oidc, meters
        )
        self.attempts = Attempts(time.monotonic)
        self._gate = ConsoleGate(config)

    def asgi(self) -> Starlette:
        """Return the application."""
        routes: list[BaseRoute] = [
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Mount("/static", StaticFiles(directory=STATIC)),
            Mount("/api", _Protected(self._json_api, secure=self._gate.secure)),
            *(self._route(each) for each in PAGES),
        ]
        return Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HTTPException: self._http_error},
        )

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        app.state.attempts = self.attempts
        for each in self.console.sites.values():
            each.start()
        try:
            yield
        finally:
            await self.console.door.stop()  # while clusters and the database can still be asked
            for each in self.console.sites.values():
                await each.stop()

    async def _measure(self, site: Site) -> None:
        """Keep what a look has measured; a database that fails costs the history only."""
        minute, values = self.console.meters[site.name].add(measured(site.facts), time.time())
        if not values:
            return
        try:
            await self.console.database.run(
                lambda connection: store_minute(connection, site.name, minute, values)
            )
        except DatabaseFailed as error:
            logger.warning("measurements are not kept", cluster=site.name, error=error)
        except Exception as error:
            logger.error("measurements are not kept", cluster=site.name, exc_info=error)

    async def _health(self, _request: Request) -> Response:
        problems = {name: site.problem for name, site in self.console.sites.items() if site.problem}
        return JSONResponse({"status": "ok", "clusters": problems})

    async def _metrics(self, _request: Request) -> Response:
        page = await metrics_page(console_families(self.console.sites, self.console.meters))
        return Response(page.body, page.status, media_type=page.content_type)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        response = PlainTextResponse(f"{error.status_code} {error.detail}", error.status_code)
        protect(response, "", secure=self._gate.secure)
        return response

    # Pages -----------------------------------------------------------------------------------
    def _route(self, page: ConsolePage) -> Route:
        async def handle(request: Request) -> Response:
            nonce = secrets.token_urlsafe(16)
            response = await self._answer(page, request, nonce)
            protect(response, nonce, secure=self._gate.secure)
            return response

        return Route(page.path, handle, methods=list(page.methods), name=page.path)

    async def _answer(self, page: ConsolePage, request: Request, nonce: str) -> Response:
        wrong = self._gate.why_wrong_host(request)
        if wrong:
            return PlainTextResponse(wrong, 421)
        language = best_language(
            request.cookies.get(LANGUAGE_COOKIE, ""), request.headers.get("accept-language", "")
        )
        try:
            visitor, exist = await self._visitor(request)
        except DatabaseFailed as error:
            logger.error("database of the console failed", error=error)
            return PlainTextResponse(f"The console's database does not answer: {error}", 503)
        if visitor is None and not page.public:
            return self._to_login(request)
        nobody = PageVisitor(Person("", AccountRole.VIEWER, _address(request)), "", logged_in=False)
        context = PageContext(request, self.console, visitor or nobody, language, nonce)
        context.needs_account = visitor is None and not exist
        try:
            if request.method not in SAFE_METHODS:
                context.form = await _form(request)
                given = context.form.get(CSRF_FIELD) or request.headers.get(CSRF_HEADER, "")
                # before anybody has a session there is no token; the browser says from where it is
                forged = (
                    self._gate.why_foreign(request)
                    if page.public
                    else self._gate.why_forged(request, context.visitor.csrf, given)
                )
                if forged:
                    return _problem(context, 403, "Refused", forged)
            if "cluster" in request.path_params:
                context.site_or_none = self.console.sites.get(request.path_params["cluster"])
                if context.site_or_none is None:
                    return _problem(context, 404, "Not found", "the console shows no such cluster")
            if not page.allows(context.visitor.person.role):
                raise NotPermitted(f"this page is for {page.role}s of the console")
            return await page.function(context)
        except VqError as error:
            return _problem(
                context, status_of(error), type(error).__name__, str(error), error.hint or ""
            )
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.error("page failed", page=page.path, exc_info=error)
            return _problem(context, 500, "The console failed", shown_raised(error))

    def _json_api(self) -> ASGIApp:
        door = self.console.door

        async def enter(request: Request) -> tuple[Person, Site]:
            wrong = self._gate.why_wrong_host(request)
            if wrong:
                raise NotPermitted(wrong)
            visitor, _ = await self._visitor(request)
            if visitor is None:
                raise NotLoggedIn("nobody is logged in")
            given = request.headers.get(CSRF_HEADER, "")
            forged = self._gate.why_forged(request, visitor.csrf, given)
            if forged:
                raise NotPermitted(forged)
            name = request.path_params["cluster"]
            site = self.console.sites.get(name)
            if site is None:
                raise UnknownToConsole(f"the console shows no cluster {shown(name)}")
            return visitor.person, site

        return json_api(enter, door.run, door.each)

    async def _visitor(self, request: Request) -> tuple[PageVisitor | None, bool]:
        token = request.cookies.get(COOKIE, "")[:200]
        hours = self.console.config.session_hours
        known = self.console.oidc is not None  # the provider knows who may log in

        def look(connection: Any) -> tuple[Any, bool]:
            session = find_session(connection, token, hours) if token else None
            return session, known or session is not None or has_accounts(connection)

        session, exist = await self.console.database.run(look)
        return self._gate.visitor(request, session, has_accounts=exist), exist

    def _to_login(self, request: Request) -> Response:
        if request.method not in SAFE_METHODS or "text/html" not in request.headers.get(
            "accept", ""
        ):
            return JSONResponse({"error": "NotLoggedIn", "detail": "log in first"}, 401)
        wanted = request.url.path
        if request.url.query:
            wanted += f"?{request.url.query}"
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", 303)


class _Protected:
    """Adds the headers of every answer to those of an application, and bounds what it reads.

    Args:
        make: Makes the application, when it is asked for first: that takes a second.
        secure: Browsers reach it over TLS only.
    """

    def __init__(self, make: Callable[[], ASGIApp], *, secure: bool) -> None:
        self._app = cache(make)
        self._secure = secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        read = 0

        async def bounded() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > BODY_BYTES_MAX:
                raise HTTPException(413, f"a request has {BODY_BYTES_MAX} bytes at most")
            return message

        async def protected(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer = Response()
                protect(answer, "", secure=self._secure)
                present = {name for name, _ in message["headers"]}
                message["headers"] += [
                    each
                    for each in answer.raw_headers
                    if each[0] not in present | {b"content-length"}
                ]
            await send(message)

        await self._app()(scope, bounded, protected)


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def _form(request: Request) -> Mapping[str, str]:
    """Return what a form has sent.

    Raises:
        InvalidArgument: It is too large.
    """
    length = request.headers.get("content-length", "")
    if not length.isdigit() or int(length) > BODY_BYTES_MAX:
        raise InvalidArgument(
            f"the request has {length or 'an unknown number of'} bytes; at most {BODY_BYTES_MAX} "
            "are taken"
        )
    kind = request.headers.get("content-type", "").partition(";")[0]
    if kind not in ("application/x-www-form-urlencoded", "multipart/form-data"):
        return {}
    async with request.form(max_fields=_FORM_FIELDS_MAX, max_files=4) as form:
        found: dict[str, str] = {}
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                data = await value.read()
                found[name] = data.decode("utf-8", "replace")
            elif name in found:
                found[name] += f"\n{value}"
            else:
                found[name] = value
        return found


def _problem(context: PageContext, status: int, title: str, text: str, hint: str = "") -> Response:
    return context.page("problem.html", status, title=title, text=text, hint=hint)
