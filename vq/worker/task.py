"""Tasks: functions whose calls are messages, with arguments that are checked at both ends.

    @vq.task(topic="mail")
    def welcome(user: int, language: str = "en") -> None: ...

    welcome(17)              calls the function, here and now
    welcome.send(17)         sends a message; a worker calls the function
    welcome.message(17)      the message alone, to be sent in any way

The message has the arguments as content, and the header ``vq-task`` with name and version. Results
are not kept: a task that has one stores it, or replies (``vq.MessageProducer.reply``).
"""

import functools
import inspect
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, Final, Generic, ParamSpec, TypeVar, overload

from vq.bounds import check_between, check_within
from vq.client.kinds import check_handler
from vq.errors import ContentUnreadable, InvalidArgument, InvalidState
from vq.limits import NAME_CHARS_MAX, is_valid_name
from vq.model import Message, check_name
from vq.serializers import Json, Serializer
from vq.shown import shown
from vq.worker.arguments import Parameters

P = ParamSpec("P")
R = TypeVar("R")

#: The header that names the task and its version: ``welcome@1``.
TASK_HEADER: Final = "vq-task"
_JSON: Final = Json()
_VERSION_MAX: Final = 1_000_000
EVERY_S_MIN: Final = 1.0
EVERY_S_MAX: Final = 366 * 86_400.0


class UnknownTask(InvalidState):
    """A worker has a message of a task that it does not have, perhaps of a later version."""

    retriable = True
    hint = "have all workers of the group run the code of the program that sends the task"


class Task(Generic[P, R]):
    """A function whose calls may be sent; ``vq.task`` makes it. Any thread may use it.

    Attributes:
        function: What it calls.
        name, version: As they are in messages.
        topic: Where its messages go.
        is_coroutine: The function is a coroutine function.
        every_s, cron: When it is due by itself; None: it is not.
        signature: The name with the version: ``welcome@1``.
    """

    _producer: ClassVar[Any] = None

    def __init__(
        self,
        function: Callable[P, R],
        *,
        topic: str,
        name: str,
        version: int,
        key: str | None,
        serializer: Serializer,
        every_s: float | None,
        cron: str | None,
    ) -> None:
        check_handler("function", function, "give a plain function or a coroutine function")
        if not topic:
            raise InvalidArgument(f"task {shown(name)} has no topic; give one: vq.task(topic=...)")
        self.function = function
        self.topic = check_name("topic", topic)
        self.name = name
        self.version = version
        self.every_s, self.cron = every_s, cron
        self.is_coroutine = inspect.iscoroutinefunction(function)
        self.signature = f"{name}@{version}"
        self._parameters = Parameters(function)
        self._key = key
        self._serializer = serializer
        _check(self, self._parameters, key)
        if isinstance(serializer, Json):
            self._parameters.check_json()
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<vq.Task {self.signature} of topic {self.topic}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here; nothing is sent."""
        return self.function(*args, **kwargs)

    def message(self, *args: P.args, **kwargs: P.kwargs) -> Message:
        """Return the message of a call, for any way to send it, such as a transaction.

        Raises:
            InvalidArgument: The function takes no such arguments.
        """
        arguments = self._parameters.bind(args, kwargs)
        key = None if self._key is None else arguments.get(self._key)
        content = self._serializer.dumps(arguments)
        return Message(self.topic, content, key=key, headers={TASK_HEADER: self.signature})

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Send a call with the producer of ``use``.

        Returns:
            What the producer returns: a ``SendResult``, of ``vq.aio`` a coroutine that does.

        Raises:
            InvalidArgument: The function takes no such arguments.
            InvalidState: There is no producer.
            VqError: See the producer.
        """
        return self._sent(self.message(*args, **kwargs))

    def send_later(self, delay_s: float, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Send a call that is delivered after so many seconds; see ``send``."""
        return self._sent(self.message(*args, **kwargs)._replace(delay_s=delay_s))

    def send_at(self, moment: datetime | float, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Send a call that is delivered at a time: aware, or seconds since 1970; see ``send``."""
        return self._sent(self.message(*args, **kwargs)._replace(deliver_at=moment))

    @staticmethod
    def use(producer: Any) -> None:
        """Have all tasks of this process sent by a producer of either API; None: by none.

        A worker process has one already.

        Raises:
            InvalidArgument: It is no producer.
        """
        send = getattr(producer, "send_sync", None) or getattr(producer, "send", None)
        if producer is not None and not callable(send):
            raise InvalidArgument(
                f"producer = {shown(producer)} is no producer; give what create_producer returns"
            )
        Task._producer = producer

    @staticmethod
    def _sent(message: Message) -> Any:
        producer = Task._producer
        if producer is None:
            raise InvalidState(
                "no producer sends tasks in this process; call vq.Task.use(producer) first, or "
                "send `message(...)` by a producer of your own"
            )
        send = getattr(producer, "send_sync", None) or producer.send
        return send(message)

    def arguments_in(self, message: Message) -> dict[str, Any]:
        """Return the arguments of a message that was received.

        Raises:
            ContentUnreadable: The function takes no such arguments, or the content is none.
        """
        return self._parameters.read(self._serializer.loads(message.content))

    def has_required(self) -> bool:
        """Return whether a call needs arguments."""
        return self._parameters.has_required()


def name_in(message: Message) -> str | None:
    """Return the name and version of the task of a message; None: it is of no task."""
    return (message.headers or {}).get(TASK_HEADER)


@overload
def task(function: Callable[P, R], /, *, topic: str = ...) -> Task[P, R]: ...


@overload
def task(
    *,
    topic: str,
    name: str | None = None,
    version: int = 1,
    key: str | None = None,
    serializer: Serializer | None = None,
    every_s: float | None = None,
    cron: str | None = None,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...


def task(
    function: Callable[P, R] | None = None,
    /,
    *,
    topic: str = "",
    name: str | None = None,
    version: int = 1,
    key: str | None = None,
    serializer: Serializer | None = None,
    every_s: float | None = None,
    cron: str | None = None,
) -> Any:
    """Make a task of a function, as a decorator: ``@vq.task(topic="mail")``.

    Its parameters are annotated with what a serializer gives back: bool, int, float, str, bytes,
    None, list, dict with text as keys, unions, Literal, Any. A call and a received message are
    checked against that.

    Args:
        function: A function or coroutine function.
        topic: Where its messages go; it must exist.
        name: As it is in messages; None: that of the function. It stays when the function moves.
        version: Raise it when the parameters change in a way that a worker of before cannot take:
            that one then leaves the message to others, by its retries.
        key: The parameter whose value is the key of the message: calls with the same one keep their
            order, with ``mode`` ``orderly`` or ``keyed``.
        serializer: Makes the content of the arguments, such as ``vq.serializers.Hessian2()``; None:
            ``Json()``.
        every_s: It is due every so many seconds: one of all workers of the group sends it.
        cron: It is due at the times of such a line, ``"0 2 * * *"``, as crontab(5) reads it, in the
            local time of the worker's machine.

    Raises:
        InvalidArgument: A parameter has no such annotation; the function is a generator or a class;
            ``cron`` is no line of cron, or never due; or something else is out of bounds.
    """

    def made(function: Callable[P, R]) -> Task[P, R]:
        return Task(
            function,
            topic=topic,
            name=getattr(function, "__name__", "") if name is None else name,
            version=version,
            key=key,
            serializer=_JSON if serializer is None else serializer,
            every_s=every_s,
            cron=cron,
        )

    return made if function is None else made(function)


def _check(task: Task[Any, Any], parameters: Parameters, key: str | None) -> None:
    """Check the settings of a task.

    Raises:
        InvalidArgument: One is unusable.
    """
    if not is_valid_name(task.name):
        raise InvalidArgument(
            f"task name {shown(task.name)} is not 1 to {NAME_CHARS_MAX} characters of A-Z a-z 0-9 "
            ". _ -"
        )
    check_between(f"{task.name}: version", task.version, 1, _VERSION_MAX)
    if key is not None and key not in parameters:
        raise InvalidArgument(f"key = {shown(key)} is no parameter of {task.name}")
    if key is not None and not parameters.may_be_key(key):
        raise InvalidArgument(
            f"key = {shown(key)} of {task.name} is a list or a dict; a key is text, bytes or a "
            "number"
        )
    if task.every_s is not None and task.cron is not None:
        raise InvalidArgument(f"{task.name} has every_s and cron; give one")
    if task.every_s is not None:
        check_within(f"{task.name}: every_s", task.every_s, EVERY_S_MIN, EVERY_S_MAX)
    if task.cron is not None:
        from vq.worker.schedules import Cron  # it loads what other tasks need not

        Cron(task.cron)
    if (task.every_s is not None or task.cron is not None) and parameters.has_required():
        raise InvalidArgument(
            f"{task.name} is due by itself, so it is called without arguments; give each of its "
            "parameters a default"
        )


def arguments_of(task: Task[Any, Any], message: Message) -> dict[str, Any]:
    """Return the arguments of a message; what its serializer raises is that it cannot be read.

    Raises:
        ContentUnreadable: The content is none of the task.
    """
    try:
        return task.arguments_in(message)
    except ContentUnreadable:
        raise
    except Exception as error:
        raise ContentUnreadable(
            f"{task.signature}: the content cannot be read: {type(error).__name__}: {error}"
        ) from error
