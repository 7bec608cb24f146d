"""An operation of an administrator: a row of the table, and the methods that faces make of it.

A row names a coroutine function whose first argument is the cluster. Its other arguments, its
result and its text are those of the operation, and so of the methods of both APIs.
A type checker learns these methods from ``Operation.__get__``; a face gets them as functions.
"""

import contextlib
import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from enum import StrEnum
from functools import cached_property
from types import GenericAlias, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    get_args,
    overload,
)

from vq.client.cluster import ClusterClient
from vq.client.runtime import LoopThread
from vq.coordination.tree.coordinator import NotConnected
from vq.errors import InvalidArgument, InvalidState, UnknownTopic, VqError
from vq.operations.base.connect import UnknownCluster
from vq.security.rules import Resource, Right
from vq.shown import shown

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A", covariant=True)
B = TypeVar("B", covariant=True)


class Effect(StrEnum):
    """What an operation does; ``PLAN``: it tells what an act would do, and changes nothing."""

    ASK = "asks"
    PLAN = "plans"
    ACT = "acts"


@dataclass(eq=False)
class Operation(Generic[P, A, B]):
    """A row. ``P``: its arguments; ``A``, ``B``: what the methods for a loop and threads return.

    Attributes:
        function: What does the work.
        effect, right, resource: As their classes say.
        command: The command that does it, without ``vq``; "": none.
        of: The argument that tells of which topics or groups, if its name does not say so.
        name: That of the methods.
    """

    function: Callable[..., Any]
    effect: Effect
    right: Right
    resource: Resource
    command: str
    of: str
    name: str = field(init=False, default="")

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def signature(self) -> inspect.Signature:
        """The arguments, without the cluster, and the result of ``function``."""
        found = inspect.signature(self.function)
        return found.replace(parameters=list(found.parameters.values())[1:])

    @property
    def concerned(self) -> str:
        """The argument that tells of which resources the right is needed; "": of all."""
        is_argument = self.resource in self.signature.parameters
        return self.of or (str(self.resource) if is_argument else "")

    def check(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> None:
        """Check the arguments that are names, or objects of vq: plans, targets, settings.

        Numbers, choices and collections are checked where they are used, with their bounds.

        Raises:
            InvalidArgument: One is of another class.
        """
        try:
            given = self._signature.bind(*arguments, **named).arguments
        except TypeError:
            return  # the call itself says it
        for name, kinds in self._kinds.items():
            if name in given and not isinstance(given[name], kinds):
                told = " or ".join("text" if each is str else each.__name__ for each in kinds)
                raise InvalidArgument(
                    f"{name} = {shown(given[name])} is {type(given[name]).__name__}; give "
                    f"{told.replace('NoneType', 'None')}"
                )

    @cached_property
    def _signature(self) -> inspect.Signature:
        return self.signature

    @cached_property
    def _kinds(self) -> dict[str, tuple[type, ...]]:
        """The classes of the arguments that ``check`` looks at."""
        found = {}
        for name, each in self._signature.parameters.items():
            union = isinstance(each.annotation, UnionType)
            kinds = get_args(each.annotation) if union else (each.annotation,)
            if all(isinstance(kind, type) and _is_looked_at(kind) for kind in kinds):
                found[name] = kinds
        return found

    if TYPE_CHECKING:

        @overload
        def __get__(self, face: "Awaited", owner: type) -> Callable[P, A]: ...
        @overload
        def __get__(self, face: "Waited", owner: type) -> Callable[P, B]: ...
        @overload
        def __get__(self, face: None, owner: type) -> Callable[..., Any]: ...
        def __get__(self, face: Any, owner: type) -> Any: ...


def _is_looked_at(kind: type) -> bool:
    return kind in {str, NoneType} or is_dataclass(kind)


def row(
    function: Callable[Concatenate[ClusterClient, P], Coroutine[Any, Any, R]],
    effect: Effect,
    right: Right,
    resource: Resource,
    command: str = "",
    *,
    of: str = "",
) -> Operation[P, Coroutine[Any, Any, R], R]:
    """Return the row of an operation that returns its result."""
    return Operation(function, effect, right, resource, command, of)


def yielding_row(
    function: Callable[Concatenate[ClusterClient, P], AsyncGenerator[R, None]],
    effect: Effect,
    right: Right,
    resource: Resource,
    command: str = "",
    *,
    of: str = "",
) -> Operation[P, AsyncGenerator[R, None], Iterator[R]]:
    """Return the row of an operation that yields its results."""
    return Operation(function, effect, right, resource, command, of)


def rows_of(table: type) -> list[Operation[..., Any, Any]]:
    """Return the rows of a table, in their order; of a face, those without a method yet."""
    members = [each for base in table.__mro__ for each in vars(base).values()]
    rows = [each for each in members if isinstance(each, Operation)]
    return [each for each in rows if getattr(table, each.name) is each]


# Faces ----------------------------------------------------------------------------------------
class Awaited:
    """A face whose methods are coroutines on the factory's loop."""

    def __init__(self, cluster: ClusterClient) -> None:
        self._cluster = cluster

    def __init_subclass__(cls) -> None:
        for each in rows_of(cls):
            setattr(cls, each.name, _method(cls, each, each.signature, cls._awaiting(each)))

    @property
    def cluster(self) -> ClusterClient:
        """What the functions of the rows take. For vq only: tests run others with it."""
        return self._cluster

    @staticmethod
    def _awaiting(row: Operation[..., Any, Any]) -> Callable[..., Any]:
        async def run(self: Awaited, *arguments: Any, **named: Any) -> Any:
            return await _run(row, self._cluster, *arguments, **named)

        async def each(self: Awaited, *arguments: Any, **named: Any) -> AsyncGenerator[Any, None]:
            found = _each(row, self._cluster, *arguments, **named)
            async with contextlib.aclosing(found):
                async for one in found:
                    yield one

        return each if inspect.isasyncgenfunction(row.function) else run


class Waited:
    """A face whose methods any thread may call: they wait for the factory's loop."""

    def __init__(self, cluster: ClusterClient, runtime: LoopThread) -> None:
        self._cluster = cluster
        self._runtime = runtime

    def __init_subclass__(cls) -> None:
        for each in rows_of(cls):
            signature = each.signature
            if inspect.isasyncgenfunction(each.function):
                one, _ = get_args(signature.return_annotation)
                signature = signature.replace(return_annotation=GenericAlias(Iterator, (one,)))
            setattr(cls, each.name, _method(cls, each, signature, cls._waiting(each)))

    @staticmethod
    def _waiting(row: Operation[..., Any, Any]) -> Callable[..., Any]:
        def run(self: Waited, *arguments: Any, **named: Any) -> Any:
            return self._runtime.run(_run(row, self._cluster, *arguments, **named))

        def each(self: Waited, *arguments: Any, **named: Any) -> Iterator[Any]:
            found = _each(row, self._cluster, *arguments, **named)

            async def following() -> Any:
                return await anext(found, None)

            try:
                while (one := self._runtime.run(following())) is not None:
                    yield one
            finally:
                self._runtime.run(found.aclose())

        return each if inspect.isasyncgenfunction(row.function) else run


def _method(
    face: type,
    row: Operation[..., Any, Any],
    signature: inspect.Signature,
    method: Callable[..., Any],
) -> Callable[..., Any]:
    """Give a method of a face the name, the text, the arguments and the result of its row."""
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = list(signature.parameters.values())
    method.__name__ = row.name
    method.__qualname__ = f"{face.__qualname__}.{row.name}"
    method.__module__ = face.__module__
    method.__doc__ = row.function.__doc__
    method.__annotations__ = {each.name: each.annotation for each in arguments}
    method.__annotations__["return"] = signature.return_annotation
    described: Any = method
    described.__signature__ = signature.replace(parameters=[itself, *arguments])
    return method


async def _run(
    row: Operation[..., Any, Any], cluster: ClusterClient, *arguments: Any, **named: Any
) -> Any:
    cluster.check_loop()
    row.check(arguments, named)
    try:
        found = await row.function(cluster, *arguments, **named)
    except VqError as error:
        await _check_cluster(cluster, error)
        raise
    if isinstance(found, list) and not found:
        await _check_cluster(cluster, None)
    return found


async def _each(
    row: Operation[..., Any, Any], cluster: ClusterClient, *arguments: Any, **named: Any
) -> AsyncGenerator[Any, None]:
    cluster.check_loop()
    row.check(arguments, named)
    async with contextlib.aclosing(row.function(cluster, *arguments, **named)) as found:
        try:
            async for one in found:
                yield one
        except VqError as error:
            await _check_cluster(cluster, error)
            raise


async def _check_cluster(cluster: ClusterClient, error: VqError | None) -> None:
    """Raise an error if there is no such cluster; return if there is, or if nobody can say.

    A misspelled name would look like a cluster without topics, groups and brokers. ZooKeeper is
    asked only after an error, or when a list is empty. What the caller did wrong, and a client that
    is closed, are not for the cluster to explain; and who had no connection for the whole time of a
    call does not wait for another one.
    """
    if isinstance(error, InvalidArgument | InvalidState | UnknownCluster | NotConnected):
        return
    kind = UnknownTopic if isinstance(error, UnknownTopic) else UnknownCluster
    try:
        await cluster.check_cluster(error, kind=kind)
    except kind:
        raise
    except VqError:  # ZooKeeper does not answer
        return
