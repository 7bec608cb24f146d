"""The console as an ASGI application: routes, the gate before them, and errors as pages."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import quote

from python_multipart.multipart import parse_options_header
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from vq.console.accounts.accounts import AccountRole, has_accounts
from vq.console.accounts.attempts import Attempts
from vq.console.accounts.sessions import find_session
from vq.console.accounts.tokens import find_access_token
from vq.console.acts.door import Door, NotPermitted, Person
from vq.console.clusters.console_metrics import console_families
from vq.console.clusters.history import MinuteMeter, store_minute
from vq.console.clusters.measured import measured
from vq.console.clusters.site import Open, Site
from vq.console.config import ConsoleConfig
from vq.console.database.database import Database, DatabaseFailed
from vq.console.json_api import ApiCalls, checked_json, json_api, problem_answer
from vq.console.pages.page import ConsolePage
from vq.console.pages.table import MENU, PAGES
from vq.console.web.addresses import path_of
from vq.console.web.context import Console, PageContext
from vq.console.web.flashes import Flashes
from vq.console.web.languages import N_, best_language
from vq.console.web.proxies import BehindProxies
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
from vq.console.web.statuses import TITLES, NotLoggedIn, UnknownToConsole, status_of
from vq.errors import InvalidArgument, VqError, advice_of
from vq.gateway.bearer import sent_token
from vq.gateway.bodies import Bodies, check_json
from vq.log_lines import get_logger
from vq.remoting.exposition import metrics_page
from vq.shown import shown, shown_raised

logger = get_logger(__name__)
_FORM_FIELDS_MAX: Final = 1_000
#: Bytes of a form of somebody who is not logged in; of all forms that are being read.
_STRANGERS_BODY_MAX: Final = 16 * 1024
_STRANGERS_BODIES_MAX: Final = 16 * 1024 * 1024
_BODIES_MAX: Final = 64 * 1024 * 1024
#: What is said of an address that no page has: what is wrong, and what to do.
_NO_PAGE: Final = {
    404: (N_("The console has no page at this address."), " "),
    405: (
        N_("This address takes a form, and is no page of its own."),
        N_("Go back to the page with the form, and send it again."),
    ),
}
#: Bytes of a form that are read at a time: others of the loop get their turn in between.
_PART_BYTES: Final = 64 * 1024
#: A body must be whole within this time.
BODY_TIMEOUT_S: Final = 20.0


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
            name: Site(name, each, self._measure, opened, probe=config.probe)
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
        self._bodies = Bodies(BODY_BYTES_MAX, _BODIES_MAX, BODY_TIMEOUT_S)
        # of their own: strangers that send slowly leave room for those who are known
        self._strangers = Bodies(_STRANGERS_BODY_MAX, _STRANGERS_BODIES_MAX, BODY_TIMEOUT_S)

    def asgi(self) -> Starlette:
        """Return the application."""
        routes: list[BaseRoute] = [
            Route("/health", self._health),
            Route("/metrics", self._metrics),
            Mount("/static", StaticFiles(directory=STATIC)),
            Mount("/api", _ApiDoor(self._api_calls(), self._asks, self._bodies, self._gate)),
            *(self._route(each) for each in PAGES),
        ]
        return Starlette(
            routes=routes,
            middleware=[Middleware(BehindProxies, trusted=self.console.config.proxies)],
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
        """Say that the console lives. Anybody may ask: no name of a cluster, and no error."""
        away = sum(bool(site.problem) for site in self.console.sites.values())
        return JSONResponse({"status": "ok", "clusters": len(self.console.sites), "away": away})

    async def _metrics(self, _request: Request) -> Response:
        page = await metrics_page(console_families(self.console.sites, self.console.meters))
        return Response(page.body, page.status, media_type=page.content_type)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        nonce, status = secrets.token_urlsafe(16), error.status_code
        response: Response = PlainTextResponse(f"{status} {error.detail}", status)
        is_browser = "text/html" in request.headers.get("accept", "")
        if is_browser and not self._gate.why_wrong_host(request):
            nobody = Person("", AccountRole.VIEWER, _address(request))
            visitor = PageVisitor(nobody, "", logged_in=False)
            context = PageContext(request, self.console, visitor, _language(request), nonce)
            text, hint = (context.text(each) for each in _NO_PAGE.get(status, (error.detail, " ")))
            response = _problem(context, status, "Not found", text, hint.strip())
        protect(response, nonce, secure=self._gate.secure)
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
        language = _language(request)
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
                foreign = self._gate.why_foreign(request)
                if foreign:  # before the form is read
                    return _problem(context, 403, "Refused", foreign)
                if visitor is None:
                    context.form, context.files = await _form(
                        request, self._strangers, _STRANGERS_BODY_MAX
                    )
                else:
                    context.form, context.files = await _form(
                        request, self._bodies, page.body_bytes_max
                    )
                given = context.form.get(CSRF_FIELD) or request.headers.get(CSRF_HEADER, "")
                # before anybody has a session there is no token; the browser says from where it is
                if not page.public:
                    forged = self._gate.why_forged(request, context.visitor.csrf, given)
                    if forged:
                        return _problem(context, 403, "Refused", forged)
            if "cluster" in request.path_params:
                context.site_or_none = self.console.sites.get(request.path_params["cluster"])
                if context.site_or_none is None:
                    raise _unknown(request.path_params["cluster"])
            if not page.allows(context.visitor.person.role):
                raise NotPermitted(f"this page is for {page.role}s of the console")
            return await page.function(context)
        except VqError as error:
            kind = type(error).__name__
            return _problem(context, status_of(error), kind, str(error), advice_of(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            logger.error("page failed", page=page.path, exc_info=error)
            return _problem(context, 500, "The console failed", shown_raised(error))

    def _api_calls(self) -> ApiCalls:
        door = self.console.door

        def site_of(name: str) -> Site:
            site = self.console.sites.get(name)
            if site is None:
                raise _unknown(name)
            return site

        return ApiCalls(site_of, door.check, door.run, door.each)

    async def _asks(self, request: Request) -> Person:
        """Return who sends a request to the JSON API: a program with a token, or a page.

        Raises:
            NotLoggedIn: Nobody who is known.
            NotPermitted: The request comes from elsewhere, or is forged.
        """
        wrong = self._gate.why_wrong_host(request)
        if wrong:
            raise NotPermitted(wrong)
        header = request.headers.get("authorization")
        if header is not None:
            return await self._program(request, header)
        visitor, _ = await self._visitor(request)
        if visitor is None:
            raise NotLoggedIn("nobody is logged in")
        given = request.headers.get(CSRF_HEADER, "")
        forged = self._gate.why_forged(request, visitor.csrf, given)
        if forged:
            raise NotPermitted(forged)
        return visitor.person

    async def _program(self, request: Request, header: str) -> Person:
        """Return whose token a program sends. No browser sends one by itself: nothing is forged."""
        if COOKIE in request.cookies:
            raise NotLoggedIn("the request has a token and the cookie of a session: send one")
        token = sent_token(header)
        found = await self.console.database.run(
            lambda connection: find_access_token(connection, token)
        )
        if found is None:
            raise NotLoggedIn("the console does not know this token, or its time is over")
        return Person(found.account, found.role, _address(request), found.name)

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


class _ApiDoor:
    """What stands before the JSON API: who asks, then the bounded body, and headers of answers.

    Args:
        calls: What the application does; it is made when it is asked for first.
        asks: Returns who sends a request, or raises what it refuses: before the body is read.
        bodies: Bounds the bodies.
        gate: Of the console.
    """

    def __init__(
        self,
        calls: ApiCalls,
        asks: Callable[[Request], Awaitable[Person]],
        bodies: Bodies,
        gate: ConsoleGate,
    ) -> None:
        self._calls = calls
        self._asks = asks
        self._bodies = bodies
        self._secure = gate.secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def protected(message: Message) -> None:
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

        request = Request(scope, receive)
        if request.method in SAFE_METHODS:  # the description
            await json_api()(scope, receive, protected)
            return
        try:
            request.state.person = await self._asks(request)
            request.state.calls = self._calls
            async with self._bodies.of(request) as body:
                check_json(request)
                checked_json(body)
                await json_api()(scope, _once(body, receive), protected)
        except VqError as error:
            await problem_answer(error)(scope, receive, protected)


def _once(body: bytes, receive: Receive, part_bytes: int | None = None) -> Receive:
    """Return what gives an application a body that was read; None: all of it at once."""
    size = part_bytes or max(1, len(body))
    parts = [body[begin : begin + size] for begin in range(0, len(body), size)] or [b""]
    waiting = iter(enumerate(parts, 1))

    async def replay() -> Message:
        for number, part in waiting:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": part, "more_body": number < len(parts)}
        return await receive()

    return replay


def _language(request: Request) -> str:
    return best_language(
        request.cookies.get(LANGUAGE_COOKIE, ""), request.headers.get("accept-language", "")
    )


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else ""


async def _form(
    request: Request, bodies: Bodies, bytes_max: int
) -> tuple[Mapping[str, str], Mapping[str, bytes]]:
    """Return what a form has sent, files as text among it, and its files as they are.

    Raises:
        VqError: It is too large, too slow, or no form.
    """
    async with bodies.of(request, bytes_max) as body:
        given = request.headers.get("content-type", "")
        kind = given.partition(";")[0]
        charset = parse_options_header(given)[1].get(b"charset", b"utf-8")
        if charset.lower() not in (b"utf-8", b"utf8"):  # some take minutes to read
            raise InvalidArgument(f"the form is {shown(given)}: send it in utf-8")
        if kind not in ("application/x-www-form-urlencoded", "multipart/form-data"):
            return {}, {}
        read = Request(request.scope, _once(body, request.receive, _PART_BYTES))
        try:
            async with read.form(
                max_fields=_FORM_FIELDS_MAX, max_files=4, max_part_size=bytes_max
            ) as form:
                return await _fields(form.multi_items())
        except (HTTPException, MultiPartException) as error:
            why = error.detail if isinstance(error, HTTPException) else error.message
            raise InvalidArgument(f"the form cannot be read: {why}") from error


async def _fields(
    items: Iterable[tuple[str, UploadFile | str]],
) -> tuple[dict[str, str], dict[str, bytes]]:
    found: dict[str, list[str]] = {}
    files: dict[str, bytes] = {}
    for name, value in items:
        if isinstance(value, UploadFile):
            files[name] = await value.read()
            found[name] = [files[name].decode("utf-8", "replace")]
        else:
            found.setdefault(name, []).append(value)
    # joined at the end: to add to a long text a thousand times takes half a minute
    return {name: "\n".join(values) for name, values in found.items()}, files


def _unknown(cluster: str) -> UnknownToConsole:
    return UnknownToConsole(f"the console shows no cluster {shown(cluster)}")


def _problem(context: PageContext, status: int, kind: str, text: str, hint: str = "") -> Response:
    title, back = TITLES.get(status, kind), ""
    if context.posted:
        back = path_of(context.request.headers.get("referer", ""))
    return context.page(
        "problem.html", status, title=title, kind=kind, text=text, hint=hint, back=back
    )
