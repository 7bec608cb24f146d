"""What is called for a message: found by its name, with the middleware around it.

``module:name`` is a task, a list of tasks, a plain function of a message, or a function that
returns one of them (``module:make()``). ``module`` alone has all tasks of the module.
"""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vq.client.consumer.deliver.tries import Retry, retry_of
from vq.client.kinds import check_arguments, check_handler
from vq.errors import InvalidArgument
from vq.model import Message
from vq.shown import shown
from vq.worker.task import Task, UnknownTask, arguments_of, name_in

Call = Callable[[Message], Any]
Middleware = Callable[[Message, Call], Any]
"""Code around each try: ``(message, call)``; it calls ``call(message)`` and returns its result."""
RunCoroutine = Callable[[Coroutine[Any, Any, Any]], Any]
_NAME: Final = "module:name"


@dataclass(frozen=True, slots=True)
class Handlers:
    """What a worker handles.

    Attributes:
        listeners: By topic.
        tasks: By name and version.
    """

    listeners: Mapping[str, Call]
    tasks: Mapping[str, Task[Any, Any]] = field(default_factory=dict)

    @property
    def periodic(self) -> list[Task[Any, Any]]:
        """The tasks that are due by themselves."""
        return [each for each in self.tasks.values() if each.every_s or each.cron]


def find(
    names: Sequence[str],
    topics: Sequence[str],
    middleware: Sequence[str],
    run_coroutine: RunCoroutine,
) -> Handlers:
    """Import what a worker is to call.

    Args:
        names: Of handlers.
        topics: Of the plain function, if there is one.
        middleware: Names, the outermost first.
        run_coroutine: Returns the result of a coroutine; a thread that handles a message calls it.

    Raises:
        InvalidArgument: There is no such thing, or it is no handler.
        Exception: What the import of the application's code raises.
    """
    tasks: dict[str, Task[Any, Any]] = {}
    plain: list[Call] = []
    for name in names:
        for each in _handlers_of(name, _named(name)):
            if isinstance(each, Task):
                other = tasks.setdefault(each.signature, each)
                if other is not each:
                    raise InvalidArgument(
                        f"two tasks are called {each.signature}; give one another `name`"
                    )
            else:
                plain.append(each)
    if len(plain) > 1:
        raise InvalidArgument(
            f"{', '.join(names)} are {len(plain)} plain functions; a worker has one, or tasks"
        )
    if plain and not topics:
        raise InvalidArgument(
            f"{', '.join(names)}: {shown(plain[0])} is a plain function; name what it handles: "
            "--topic NAME (tasks, vq.task, have their own topics)"
        )
    around = [
        _called(name, _named(name), 2, "name a function (message, call)") for name in middleware
    ]
    by_topic = _by_topic(tasks, run_coroutine)
    for topic in topics:
        if topic in by_topic and plain:
            raise InvalidArgument(
                f"topic {topic!r} is of tasks, which have it for themselves; give {shown(plain[0])}"
                " another one, or make it a task"
            )
        if topic in by_topic:
            continue
        if not plain:
            own = ", ".join(sorted(by_topic)) or "none"
            raise InvalidArgument(
                f"--topic {topic}: tasks have topics of their own ({own}); leave it out, or name "
                "a plain function, too"
            )
        by_topic[topic] = _plain(plain[0], run_coroutine)
    if not by_topic:
        raise InvalidArgument(f"{', '.join(names)}: there is no task and no function")
    listeners = {topic: _within(around, call) for topic, call in by_topic.items()}
    return Handlers(listeners, tasks)


def _named(name: str) -> Any:
    module_name, _, attribute = name.partition(":")
    called = attribute.endswith("()")
    attribute = attribute.removesuffix("()")
    if "" not in sys.path and "." not in sys.path:
        sys.path.insert(0, "")  # as with ``python -m``
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            is_file = module_name.endswith(".py")
            wanted = module_name.removesuffix(".py").replace("/", ".") if is_file else _NAME
            raise InvalidArgument(
                f"handler {name!r}: there is no module {error.name!r} in sys.path; name it as "
                f"{wanted}, from the directory that has it"
            ) from error
        raise
    if not attribute:
        return module
    try:
        found: Any = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise InvalidArgument(f"handler {name!r}: {error}; name it as {_NAME}") from error
    return found() if called else found


def _handlers_of(name: str, found: Any) -> Iterable[Any]:
    if inspect.ismodule(found):
        return [each for each in vars(found).values() if isinstance(each, Task)]
    if isinstance(found, Task):
        return [found]
    if isinstance(found, list | tuple):
        for each in found:
            if not isinstance(each, Task):
                raise InvalidArgument(f"handler {name!r} has {each!r}, which is no task")
        return found
    return [_called(name, found, 1, "name a function of a message, a task, or a list of tasks")]


def _called(name: str, found: Any, arguments: int, instead: str) -> Any:
    """Return what a name names, if it can be called with so many arguments."""
    check_handler(name, found, instead)
    check_arguments(name, found, arguments, instead)
    return found


def _by_topic(tasks: Mapping[str, Task[Any, Any]], run_coroutine: RunCoroutine) -> dict[str, Call]:
    topics: dict[str, dict[str, Task[Any, Any]]] = {}
    for signature, each in tasks.items():
        topics.setdefault(each.topic, {})[signature] = each
    return {
        topic: functools.partial(_run_task, of_topic, run_coroutine)
        for topic, of_topic in topics.items()
    }


def _run_task(
    tasks: Mapping[str, Task[Any, Any]], run_coroutine: RunCoroutine, message: Message
) -> Retry | None:
    """Call the task of a message, and return the try it asks for; results are not kept."""
    name = name_in(message)
    found = None if name is None else tasks.get(name)
    if found is None:
        raise UnknownTask(
            f"message {message.id} at {message.topic}-{message.partition}@{message.offset} is of "
            f"task {name}; this worker has {', '.join(sorted(tasks))}"
        )
    result = found.function(**arguments_of(found, message))
    if inspect.iscoroutine(result):
        result = run_coroutine(result)
    return retry_of(result)


def _plain(function: Call, run_coroutine: RunCoroutine) -> Call:
    if not (
        inspect.iscoroutinefunction(function)
        or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
    ):
        return function
    return lambda message: run_coroutine(function(message))


def _within(around: Sequence[Middleware], call: Call) -> Call:
    for each in reversed(around):
        call = functools.partial(_one_within, each, call)
    return call


def _one_within(around: Middleware, call: Call, message: Message) -> Any:
    return around(message, call)
