"""The operations as JSON over HTTP, made of their table: ``POST /api/clusters/NAME/OPERATION``.

The body has the arguments by their names. The same gate and the same door as for pages; programs
send the token of an account instead of a cookie.
"""

import contextlib
import inspect
import json
import math
import types
import typing
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import to_jsonable_python
from starlette.exceptions import HTTPException

from vq.console.acts.table import NOT_OVER_HTTP, OPERATIONS, Row
from vq.console.clusters.site import Site
from vq.console.web.security import COOKIE, CSRF_HEADER
from vq.console.web.statuses import status_of
from vq.errors import InvalidArgument, VqError
from vq.log_lines import get_logger
from vq.shown import shown, shown_raised
from vq.version import __version__

logger = get_logger(__name__)

#: Results of an operation that yields them, in one answer.
YIELDED_MAX: Final = 1_000

#: How deep arrays and objects of a request may be inside each other.
DEPTH_MAX: Final = 32

SiteOf = Callable[[str], Site]
Run = Callable[..., Awaitable[Any]]
Each = Callable[..., AsyncGenerator[Any, None]]
Check = Callable[..., Row]


class Problem(BaseModel):
    """Why an operation failed."""

    error: str
    detail: str
    what_to_do: str = ""


#: Answers that every operation may have, by reference: of a model, FastAPI would make a schema for
#: each answer of each operation.
_PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    for status in (400, 401, 403, 404, 408, 409, 413, 415, 429, 500, 503)
}


@dataclass(frozen=True, slots=True)
class ApiCalls:
    """What the console that is asked does. It is in the state of each request.

    Attributes:
        site_of: Returns the cluster of a name; raises if there is none.
        check: Raises if somebody may not ask for an operation, as ``Door.check``.
        run: Runs an operation, as ``Door.run``.
        each: Runs one that yields, as ``Door.each``.
    """

    site_of: SiteOf
    check: Check
    run: Run
    each: Each


@cache
def json_api() -> FastAPI:
    """Return the application, the same for every console of this process.

    What is before it has put who asks, and the ``ApiCalls``, into the state of the request.
    """
    app = FastAPI(
        title="vq console",
        version=__version__,
        description=(
            "Operations on clusters. What a role may ask for is checked for each. Programs send "
            "the token of an account, `Authorization: Bearer TOKEN`, and no cookie. Pages send the "
            "cookie of their session and its token in `X-CSRF-Token`."
        ),
        docs_url=None,
        redoc_url=None,
    )
    for name, row in OPERATIONS.items():
        if name not in NOT_OVER_HTTP:
            _add(app, row)
    _describe(app)

    @app.exception_handler(VqError)
    async def failed(_request: Request, error: Exception) -> Response:
        assert isinstance(error, VqError)
        return problem_answer(error)

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        detail = f"{where or 'the body'}: {first['msg']}"
        return problem_answer(InvalidArgument(detail))

    @app.exception_handler(HTTPException)
    async def elsewhere(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        problem = Problem(error="UnknownOperation", detail=str(error.detail))
        return JSONResponse(problem.model_dump(), error.status_code, error.headers)

    return app


def failed_answer(error: Exception) -> Response:
    """Return the answer that tells a defect of the console; its log has the trace."""
    logger.error("operation failed", exc_info=error)
    problem = Problem(error="ConsoleFailed", detail=shown_raised(error))
    return Response(problem.model_dump_json(), 500, media_type="application/json")


def problem_answer(error: VqError) -> Response:
    """Return the answer that tells an error."""
    problem = Problem(error=type(error).__name__, detail=str(error), what_to_do=error.hint or "")
    status = status_of(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
    if status == 429:
        headers["Retry-After"] = "1"
    return Response(problem.model_dump_json(), status, headers, "application/json")


def checked_json(body: bytes) -> None:
    """Return if a body is JSON that can be worked on.

    Raises:
        InvalidArgument: It is no JSON, is too deep, or has text that UTF-8 cannot say.
    """
    try:
        level = [json.loads(body, parse_constant=_no_number, parse_float=_finite)]
        json.dumps(level[0], ensure_ascii=False).encode()
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # also of half a surrogate
        raise InvalidArgument(f"the body is not JSON in UTF-8: {error}") from None
    for _ in range(DEPTH_MAX + 1):
        level = [
            each
            for one in level
            if isinstance(one, list | dict)
            for each in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return
    raise _too_deep()


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    found = float(text)
    return found if math.isfinite(found) else _no_number(text)


def _too_deep() -> InvalidArgument:
    return InvalidArgument(
        f"arrays and objects of the body are more than {DEPTH_MAX} deep inside each other"
    )


def _describe(app: FastAPI) -> None:
    """Have the description say how a request proves who sends it, and nothing that is not so."""
    made = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        found = made()
        for path in found["paths"].values():
            del path["post"]["responses"]["422"]  # arguments that do not fit are a 400
        for name in ("HTTPValidationError", "ValidationError"):
            del found["components"]["schemas"][name]
        found["components"]["schemas"]["Problem"] = Problem.model_json_schema(mode="serialization")
        _name_keys(found)
        found["components"]["securitySchemes"] = {
            "token": {"type": "http", "scheme": "bearer"},
            "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
            "csrf": {"type": "apiKey", "in": "header", "name": CSRF_HEADER},
        }
        found["security"] = [{"token": []}, {"session": [], "csrf": []}]
        return found

    app.openapi = described  # type: ignore[method-assign]


def _name_keys(schema: Any) -> None:
    """Say of objects by partition that their names are texts, such as ``orders,3``."""
    for each in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(each, dict | list):
            _name_keys(each)
    if isinstance(schema, dict) and "$ref" in schema.get("propertyNames", ()):
        schema["propertyNames"] = {"type": "string"}


def _add(app: FastAPI, row: Row) -> None:
    model, keeps = arguments_of(row)
    hints = typing.get_type_hints(row.function)
    yields = inspect.isasyncgenfunction(row.function)
    result = list[typing.get_args(hints["return"])[0]] if yields else hints["return"]  # type: ignore[misc]

    async def all_of(each: Each, *asked: Any, **named: Any) -> list[Any]:
        found: list[Any] = []
        async with contextlib.aclosing(each(*asked, **named)) as results:
            async for one in results:
                found.append(one)
                if len(found) == YIELDED_MAX:
                    break
        return found

    async def may_ask(request: Request) -> None:
        """Who may not ask is told so, whatever the arguments are."""
        request.state.calls.check(request.state.person, row.name)

    async def endpoint(cluster: str, arguments: Any, request: Request) -> Response:
        person, calls = request.state.person, request.state.calls
        site = calls.site_of(cluster)
        named = {name: getattr(arguments, name) for name in arguments.model_fields_set}
        if keeps:
            changes = named.pop(keeps, {})
            for name in changes.keys() & {*model.model_fields, "before"}:  # that is the door's
                raise InvalidArgument(f"{keeps} has {shown(name)}, which is none of them")
            named |= changes
        try:
            asked = (person, site, row.name)
            found = await (
                all_of(calls.each, *asked, **named) if yields else calls.run(*asked, **named)
            )
            return Response(as_json(found), media_type="application/json")
        except VqError:
            raise
        except Exception as error:  # noqa: BLE001 - the outer edge of a request
            return failed_answer(error)

    endpoint.__annotations__ = {
        "cluster": str,
        "arguments": model,
        "request": Request,
        "return": result,
    }
    told = inspect.getdoc(row.function) or ""
    app.post(
        f"/clusters/{{cluster}}/{row.name}",
        name=row.name,
        operation_id=row.name,
        summary=told.split("\n")[0],
        description=f"{told}\n\nIt {row.effect}; it needs the right to {row.right}.",
        tags=[str(row.resource)],
        dependencies=[Depends(may_ask)],
        response_model=result,
        responses=_PROBLEMS,
    )(endpoint)


def arguments_of(row: Row) -> tuple[type[BaseModel], str]:
    """Return the model of an operation's arguments, and the field of those that any name has."""
    hints = typing.get_type_hints(row.function)
    fields: dict[str, Any] = {}
    keeps = ""
    for name, each in row.signature.parameters.items():
        if each.kind is inspect.Parameter.VAR_KEYWORD:
            keeps = name
            fields[name] = (dict[str, Any], {})
        elif name != "on_progress":
            default = ... if each.default is inspect.Parameter.empty else each.default
            fields[name] = (_plain(hints[name]), default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=False)
    return create_model(f"{row.name}_arguments", __config__=config, **fields), keeps


def _plain(hint: Any) -> Any:
    """Return a type that JSON has for one that only Python has."""
    origin, arguments = typing.get_origin(hint), tuple(map(_plain, typing.get_args(hint)))
    if origin in (Collection, Iterable):  # the audit reads arguments before the operation does
        return list[arguments]  # type: ignore[valid-type]
    if origin in (types.UnionType, typing.Union):
        return typing.Union[arguments]  # noqa: UP007 - made of a tuple
    return hint


def as_json(value: Any) -> str:
    """Return a result as JSON; bytes are in base64, and a number that is none is null."""
    plain = to_jsonable_python(value, fallback=str, bytes_mode="base64", inf_nan_mode="null")
    return json.dumps(plain, ensure_ascii=False)
