"""The gateway as an ASGI application: what every request passes, and the OpenAPI description."""

import functools
import time
from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vq.aio.factory import MessageFactory
from vq.aio.hosted import cluster_of
from vq.coordination.tree.coordinator import SessionState
from vq.errors import VqError
from vq.gateway import forms
from vq.gateway.bodies import JSON, Bodies
from vq.gateway.config import ANY_HOST, GatewayConfig
from vq.gateway.counts import GatewayCounts
from vq.gateway.members import HostedMembers
from vq.gateway.problems import (
    CONTENT_TYPE,
    AtLimit,
    BodyRefused,
    GatewayFailed,
    GatewayStopping,
    HostRefused,
    MethodRefused,
    RouteUnknown,
    as_json,
    problem_headers,
    problem_of,
)
from vq.gateway.routes import AUTHENTICATE, CALLER, GatewayRoutes, RouteRow, caller_of
from vq.gateway.tokens import ANYBODY, Caller, TokenFile
from vq.gateway.unread import Unread
from vq.log_lines import get_logger
from vq.model import check_name
from vq.security.rules import Right
from vq.version import __version__

logger = get_logger(__name__)

#: Problems that any route may answer with.
_ALWAYS: Final = (400, 401, 403, 421, 429, 500, 503)
_PREFIX: Final = "/v1"
#: Where the description is; it needs no token.
_DESCRIPTIONS: Final = ("/openapi.json", f"{_PREFIX}/openapi.json")
_DESCRIPTION: Final = """\
vq over HTTP: send messages, receive them as a member of a consumer group, and read partitions.

An error is a problem document (RFC 9457). Its `outcome` is `refused` if what was asked for is
certainly not done, and `unknown` if it may be done. 429 and 503 have a header Retry-After.
"""
_WORDS: Final = {
    400: "The request is not what the route takes.",
    401: "There is no token, or the gateway does not know it.",
    403: "The token does not have the right.",
    404: "There is no such topic or partition.",
    408: "The body was not whole in time.",
    409: "It cannot be done in the present state.",
    410: "The consumer is gone: create another one.",
    413: "Something is larger than it may be.",
    415: "The body has another type than the route takes.",
    416: "The offset is outside what can be read.",
    421: "The header Host is not a name of the gateway.",
    429: "Too much at a time: try again after Retry-After seconds.",
    500: "An unexpected error inside the gateway.",
    502: "A broker refuses what the gateway asks.",
    503: "It cannot be done now: try again after Retry-After seconds.",
    504: "The outcome is unknown: it may be done.",
}


class Gateway:
    """An ASGI application; ``gateway_app`` makes it. Loop-bound.

    It may be mounted in another application, at its root or at ``/v1``. Whoever runs it calls
    ``stop`` before the server ends, and ``close`` after that, before the factory is shut down.

    Attributes:
        counts: What was counted since the start.
        members: The consumers.
        unread: Answers that peers have not taken, as its server tells.
        routes: What the routes do.
        app: The routes as FastAPI has them.
    """

    def __init__(self, config: GatewayConfig, factory: MessageFactory) -> None:
        self._config = config
        self._factory = factory
        self._hosts = config.host_names
        self._tokens = None if config.tokens is None else TokenFile(config.tokens)
        self._bodies = Bodies(config.body_bytes_max, config.bodies_bytes_max, config.body_timeout_s)
        self._under_way = 0
        self._is_stopping = False
        self.counts = GatewayCounts()
        self.members = HostedMembers(config, factory, self.counts)
        self.unread = Unread(config.unread_bytes_max)
        self.routes = GatewayRoutes(
            config,
            factory,
            bodies=self._bodies,
            unread=self.unread,
            members=self.members,
            counts=self.counts,
        )
        self.app = _fastapi(self.routes.rows())
        self._inner: ASGIApp = self._authenticated
        if config.origins:
            self._inner = CORSMiddleware(
                self._authenticated,
                allow_origins=config.origins,
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=("*",),
                expose_headers=("Retry-After", "Location"),
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            return
        if scope.get("root_path", "").endswith(_PREFIX):  # mounted there: the routes have it
            scope = {**scope, "root_path": scope["root_path"].removesuffix(_PREFIX)}
        answer = _SeenAnswer(send)
        began = time.monotonic()
        self._under_way += 1
        try:
            try:
                self._check(scope)
            except VqError as error:
                await _problem(error)(scope, receive, answer.send)
            else:
                await self._inner(scope, receive, answer.send)
        finally:
            self._under_way -= 1
            path = getattr(scope.get("route"), "path", "other")
            route = f"{scope['method']} {path}" if path != "other" else path
            self.counts.requests[route, answer.status] += 1
            self.counts.took(route, time.monotonic() - began)

    def _check(self, scope: Scope) -> None:
        """Check what needs no route.

        Raises:
            HostRefused, GatewayStopping, AtLimit: See there.
        """
        if self._is_stopping:
            raise GatewayStopping("the gateway is being stopped")
        if self._under_way > self._config.requests_max:
            raise AtLimit(
                f"{self._config.requests_max} requests are being answered, no more may be"
            )
        if ANY_HOST not in self._hosts:
            host = next((value for name, value in scope["headers"] if name == b"host"), b"")
            if _name_in(host) not in self._hosts:
                raise HostRefused(f"the header Host is {host[:100].decode('latin-1')!r}")

    async def _authenticated(self, scope: Scope, receive: Receive, send: Send) -> None:
        authenticate: Callable[[], Caller] = _anybody
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        if self._tokens is not None and path not in _DESCRIPTIONS:
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            header = given[0].decode("latin-1") if given else None
            authenticate = functools.partial(self._tokens.caller_of, header)
        try:
            scope[CALLER] = authenticate()
        except VqError as error:
            await _problem(error)(scope, receive, send)
            return
        scope[AUTHENTICATE] = authenticate
        await self.app(scope, receive, send)

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Return what is now, for ``GatewayCounts.families``."""
        return {
            "consumers": ("Members of groups that the gateway hosts.", len(self.members)),
            "waiting_requests": ("Requests that wait for messages.", self.members.waiting),
            "requests_under_way": ("Requests that are being answered.", self._under_way),
            "body_bytes": ("Bytes of bodies that are read or sent.", self._bodies.held),
            "unread_bytes": ("Bytes of answers that peers have not taken.", self.unread.size),
            "given_bytes": (
                "Bytes of messages that consumers were given and have not committed.",
                self.members.given_bytes,
            ),
        }

    def not_ready(self) -> str:
        """Return why it does not do its work now; "": it does."""
        if self._is_stopping:
            return "the gateway is being stopped"
        coordinator = cluster_of(self._factory).coordinator
        if coordinator.state is not SessionState.CONNECTED:
            return f"no connection to ZooKeeper: {coordinator.state.value}"
        return ""

    async def stop(self) -> None:
        """Answer new requests, and those that wait, with 503, and have all members leave."""
        self._is_stopping = True
        await self.members.stop()

    async def close(self) -> None:
        """Stop, and close what the gateway has made of its factory."""
        await self.stop()
        await self.routes.close()


def gateway_app(config: GatewayConfig, factory: MessageFactory) -> Gateway:
    """Return a gateway to the cluster of an open factory.

    Raises:
        InvalidArgument: The file of tokens cannot be used.
    """
    return Gateway(config, factory)


def _anybody() -> Caller:
    return ANYBODY


class _SeenAnswer:
    """Sees the status of an answer; 0: none was begun."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def send(self, message: Message) -> None:
        """Pass on a part of an answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)


def _name_in(host: bytes) -> str:
    """Return the name in a header ``Host``, without its port."""
    text = host.decode("latin-1").lower().strip()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


def _problem(error: VqError) -> Response:
    headers = problem_headers(error)
    if status_closes(error):
        headers["Connection"] = "close"
    document = problem_of(error)
    return Response(as_json(document), document["status"], headers)


def status_closes(error: VqError) -> bool:
    """Whether the connection ends with the answer: the rest of a body may follow on it."""
    return problem_of(error)["status"] in {408, 413, 429, 503}


# The routes, and their description ---------------------------------------------------------------
def _fastapi(rows: list[RouteRow]) -> FastAPI:
    app = FastAPI(
        title="vq gateway",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,  # these pages load code from elsewhere
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    for row in rows:
        app.add_api_route(
            row.path,
            _checked(row),
            methods=[row.method],
            status_code=row.status,
            response_class=Response,
            response_model=None,
            responses=_responses(row),
            openapi_extra=_extra(row),
            operation_id=row.function.__name__,
        )

    async def description(request: Request) -> Response:
        return Response(as_json(app.openapi()), headers={"Content-Type": JSON})

    for path in _DESCRIPTIONS:
        app.add_api_route(path, description, include_in_schema=False)
    app.openapi = _Description(app, rows)  # type: ignore[method-assign]
    app.add_exception_handler(VqError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_error)
    return app


def _checked(row: RouteRow) -> Any:
    """Return the function of a row, behind the check of the topic, or group, in its path."""
    function = row.function

    @functools.wraps(function)
    async def call(request: Request, **rest: Any) -> Response:
        topic, group = rest.get("topic"), rest.get("group")
        caller = caller_of(request)
        if group is not None:
            check_name("group", group)
            caller.check(row.right, row.resource, group)
        if topic is not None:
            check_name("topic", topic)
            if row.right is not Right.DESCRIBE or not caller.sees(topic):
                caller.check(row.right, row.resource, topic)
        try:
            return await function(request, **rest)
        except (VqError, HTTPException):
            raise
        except Exception as error:
            logger.exception("request failed", path=request.scope["path"])
            raise GatewayFailed("the gateway failed; its log has the trace") from error

    return call


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, RequestValidationError):
        error = BodyRefused(forms.told(error.errors()))
    if isinstance(error, HTTPException):
        if error.status_code == 405:
            path = request.scope["path"]
            answer = _problem(MethodRefused(f"{path[:200]} has no {request.method[:20]}"))
            answer.headers["Allow"] = (error.headers or {}).get("Allow", "GET")
            return answer
        if error.status_code == 404:
            error = RouteUnknown(f"there is no route {request.scope['path'][:200]}")
        else:
            error = BodyRefused(str(error.detail))
    assert isinstance(error, VqError)
    return _problem(error)


def _responses(row: RouteRow) -> dict[int | str, dict[str, Any]]:
    after = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}
    found: dict[int | str, dict[str, Any]] = {}
    if isinstance(row.answer, str):
        found[row.status] = {"content": {row.answer: {"schema": {"type": "string"}}}}
    elif row.answer is not None:
        found[row.status] = {"content": {JSON: {"schema": _reference(row.answer)}}}
    for status in sorted({*_ALWAYS, *row.problems}):
        found[status] = {
            "description": _WORDS[status],
            "content": {CONTENT_TYPE: {"schema": _reference(row.problem)}},
            **({"headers": after} if status in {429, 503} else {}),
        }
    return found


def _extra(row: RouteRow) -> dict[str, Any]:
    found: dict[str, Any] = {
        "x-vq-right": f"{row.right} {row.resource}",
        "security": [{}, {"token": []}],
    }
    if isinstance(row.body, str):
        content: dict[str, Any] = {
            "*/*": {"schema": {"type": "string", "format": "binary", "description": row.body}}
        }
        found["requestBody"] = {"content": content, "required": True}
    elif row.body is not None:
        content = {JSON: {"schema": _reference(row.body)}}
        found["requestBody"] = {"content": content, "required": True}
    return found


def _reference(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}


class _Description:
    """The OpenAPI description, made when it is first asked for."""

    def __init__(self, app: FastAPI, rows: list[RouteRow]) -> None:
        self._make = app.openapi
        self._rows = rows
        self._made: dict[str, Any] | None = None

    def __call__(self) -> dict[str, Any]:
        """Return it."""
        if self._made is None:
            self._made = self._whole(self._make())
        return self._made

    def _whole(self, made: dict[str, Any]) -> dict[str, Any]:
        models = {
            each
            for row in self._rows
            for each in (row.answer, row.body, row.problem)
            if isinstance(each, type)
        }
        # A body is what may be given; an answer is what is there.
        bodies = {row.body for row in self._rows}
        _, schemas = models_json_schema(
            [
                (each, "validation" if each in bodies else "serialization")
                for each in _sorted(models)
            ],
            ref_template="#/components/schemas/{model}",
        )
        of_parameters = made.get("components", {}).get("schemas", {})
        for name in ("HTTPValidationError", "ValidationError"):  # FastAPI's own; here it is 400
            of_parameters.pop(name, None)
        made["components"] = {
            "schemas": {**of_parameters, **schemas["$defs"]},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        }
        for path in made["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        return made


def _sorted(models: set[type[BaseModel]]) -> list[type[BaseModel]]:
    return sorted(models, key=lambda each: each.__name__)
