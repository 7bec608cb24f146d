"""The operations as JSON over HTTP, made of their table: ``POST /api/clusters/NAME/OPERATION``.

The body has the arguments by their names. The same gate and the same door as for pages.
"""

import inspect
import json
import types
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, create_model
from pydantic_core import to_jsonable_python

from vq.console.acts.door import Person
from vq.console.acts.table import NOT_OVER_HTTP, OPERATIONS, Row
from vq.console.clusters.site import Site
from vq.console.web.statuses import status_of
from vq.errors import InvalidArgument, VqError
from vq.operations.operation import Effect
from vq.shown import shown
from vq.version import __version__

#: Results of an operation that yields them, in one answer.
YIELDED_MAX: Final = 1_000

Enter = Callable[[Request], Awaitable[tuple[Person, Site]]]
Run = Callable[..., Awaitable[Any]]


class Problem(BaseModel):
    """Why an operation failed."""

    error: str
    detail: str
    what_to_do: str = ""


def json_api(enter: Enter, run: Run, each: Callable[..., AsyncIterator[Any]]) -> FastAPI:
    """Return the application.

    Args:
        enter: Returns who asks, and the cluster; raises what it refuses.
        run: Runs an operation, as ``Door.run``.
        each: Runs one that yields, as ``Door.each``.
    """
    app = FastAPI(
        title="vq console",
        version=__version__,
        description="Operations on clusters. What a role may ask for is checked for each.",
        docs_url=None,
        redoc_url=None,
    )
    for name, row in OPERATIONS.items():
        if name not in NOT_OVER_HTTP:
            _add(app, row, enter, run, each)

    @app.exception_handler(VqError)
    async def failed(_request: Request, error: Exception) -> Response:
        assert isinstance(error, VqError)
        problem = Problem(
            error=type(error).__name__, detail=str(error), what_to_do=error.hint or ""
        )
        return JSONResponse(problem.model_dump(), status_of(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body")
        detail = f"{where or 'the body'}: {first['msg']}"
        return JSONResponse(Problem(error="InvalidArgument", detail=detail).model_dump(), 400)

    return app


def _add(app: FastAPI, row: Row, enter: Enter, run: Run, each: Callable[..., Any]) -> None:
    model, keeps = arguments_of(row)
    hints = typing.get_type_hints(row.function)
    yields = inspect.isasyncgenfunction(row.function)
    result = list[typing.get_args(hints["return"])[0]] if yields else hints["return"]  # type: ignore[misc]

    async def endpoint(cluster: str, arguments: Any, request: Request) -> Response:
        del cluster  # in the request, too
        person, site = await enter(request)
        named = {name: getattr(arguments, name) for name in arguments.model_fields_set}
        if keeps:
            changes = named.pop(keeps, {})
            for name in changes.keys() & {*model.model_fields, "before"}:  # that is the door's
                raise InvalidArgument(f"{keeps} has {shown(name)}, which is none of them")
            named |= changes
        if yields:
            found: Any = []
            async for one in each(person, site, row.name, **named):
                found.append(one)
                if len(found) == YIELDED_MAX:
                    break
        else:
            found = await run(person, site, row.name, **named)
        return Response(as_json(found), media_type="application/json")

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
        response_model=result,
        responses={
            status: {"model": Problem}
            for status in (400, 401, 403, 404, 409, 413, 503)
            if status != 403 or row.effect is Effect.ACT
        },
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
    if origin is Collection:
        return list[arguments]  # type: ignore[valid-type]
    if origin in (types.UnionType, typing.Union):
        return typing.Union[arguments]  # noqa: UP007 - made of a tuple
    return hint


def as_json(value: Any) -> str:
    """Return a result as JSON; bytes are in base64, and a number that is none is null."""
    plain = to_jsonable_python(value, fallback=str, bytes_mode="base64", inf_nan_mode="null")
    return json.dumps(plain, ensure_ascii=False)
