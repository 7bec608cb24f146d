"""What runs in one process of a worker: a consumer, and around each message what its parent needs.

    parent ── standard input, a line of JSON each ──▶ {"suspects": […]}  {"stop": "finish" | "now"}
    parent ◀── a pipe, a line of JSON each ────────── ready, refused, failed, handled
    parent ◀── shared memory ──────────────────────── what is in hand; see ``in_hand``

The end of standard input is the death of the parent: the process finishes what it has in hand.
"""

import asyncio
import concurrent.futures
import contextlib
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final

from vq.blocking.consumer import MessageConsumer
from vq.blocking.factory import MessageFactory
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.errors import InvalidArgument, ListenerFailed, VqError
from vq.log_lines import get_logger
from vq.model import Message
from vq.shown import shown_raised
from vq.worker.alone import AloneGate
from vq.worker.config import FINISH, NOW
from vq.worker.handlers import Handlers, find
from vq.worker.in_hand import Slots, key_of
from vq.worker.periodic import Periodic
from vq.worker.soft_limit import SoftLimit, SoftTimeLimit
from vq.worker.suspects import MessageKey
from vq.worker.task import Task

logger = get_logger(__name__)

#: Exit codes: it finished what it had in hand; something failed, or it left at once; its handlers
#: cannot be used, and starting it again does not help.
DONE: Final = 0
FAILED: Final = 1
REFUSED: Final = 2
_LEAVE_S: Final = 3.0
_LIMIT_LOOK_S: Final = 0.5
_STANDARD_INPUT: Final = 0
_READ_BYTES: Final = 65_536
_FETCH_BYTES: Final = 1 << 20
#: So much of an error is told to the parent, which reads lines with a bound.
_TOLD_CHARS_MAX: Final = 10_000


class HandlerKilled(ListenerFailed):
    """Processes died while they had this message in hand; it is not handed out any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """What a process is told.

    Attributes:
        handlers, topics, middleware: See ``handlers.find``.
        client, producer, consumer: Settings of the client.
        soft_time_limit_s: See ``RunnerConfig``.
        slots: The descriptor of the shared memory.
        events: The descriptor of the pipe to the parent.
    """

    handlers: Sequence[str]
    topics: Sequence[str]
    middleware: Sequence[str]
    client: MessageFactoryConfig
    producer: ProducerConfig
    consumer: ConsumerConfig
    soft_time_limit_s: float
    slots: int
    events: int


class _Parent:
    """Speaks to the parent."""

    def __init__(self, events: int) -> None:
        self._events = events
        self.suspects: dict[MessageKey, int] = {}
        self.stops: queue.Queue[str] = queue.Queue()

    def begin(self) -> None:
        """Listen to it, in a thread."""
        threading.Thread(target=self._listen, name="vq-parent", daemon=True).start()

    def tell(self, event: str, **fields: object) -> None:
        """Tell it something; it may be gone."""
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        with contextlib.suppress(OSError):
            os.write(self._events, line)

    def _listen(self) -> None:
        rest = b""
        # No file object: this thread would hold its lock at the end of the interpreter.
        while data := os.read(_STANDARD_INPUT, _READ_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                told = json.loads(line)
                if "suspects" in told:
                    self.suspects = {MessageKey(*each[:-1]): each[-1] for each in told["suspects"]}
                if "stop" in told:
                    self.stops.put(told["stop"])
        self.stops.put(FINISH)


class HandlerLoop:
    """An event loop in a thread, for handlers that are coroutine functions; made when needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Return the result of a coroutine; cancel it if the wait is interrupted."""
        future = asyncio.run_coroutine_threadsafe(work, self._running())
        try:
            while not concurrent.futures.wait([future], _LIMIT_LOOK_S).done:
                pass  # the soft limit raises between two steps
            return future.result()
        except SoftTimeLimit:
            future.cancel()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                name = "vq-coroutines"
                threading.Thread(target=self._loop.run_forever, name=name, daemon=True).start()
            return self._loop


class _Around:
    """What is around each message."""

    def __init__(self, parent: _Parent, slots: Slots, attempts_max: Callable[[], int]) -> None:
        self._parent = parent
        self._slots = slots
        self._attempts_max = attempts_max
        self._gate = AloneGate()

    def listener(self, call: Callable[[Message], Any]) -> Callable[[Message], Any]:
        """Return the listener of a consumer that calls ``call``."""

        def listen(message: Message) -> Any:
            suspects = self._parent.suspects
            if not suspects or (key := key_of(message)) not in suspects:
                with self._gate.shared():
                    return self._run(call, message)
            if suspects[key] >= self._attempts_max():
                raise HandlerKilled(
                    f"{suspects[key]} processes have died with message {message.id} at "
                    f"{message.topic}-{message.partition}@{message.offset} in hand; it is not "
                    "handed to its handler any more",
                    hint="what follows a message that failed says what becomes of it",
                )
            with self._gate.alone():
                result = self._run(call, message)
            self._parent.tell("handled", key=list(key))
            return result

        return listen

    def _run(self, call: Callable[[Message], Any], message: Message) -> Any:
        slots, failed = self._slots, True
        slots.begin(message)
        try:
            result = call(message)
            failed = False
            return result
        finally:
            slots.end(failed=failed)


def run_child(settings: ChildSettings) -> int:
    """Handle messages until the parent says stop; return the exit code. It may end the process."""
    parent = _Parent(settings.events)
    coroutines = HandlerLoop()
    try:
        handlers = find(settings.handlers, settings.topics, settings.middleware, coroutines.run)
    except Exception as error:  # the application's code raises anything
        if not isinstance(error, InvalidArgument):
            logger.exception("importing the handlers failed")
        told = str(error) if isinstance(error, VqError) else shown_raised(error)
        parent.tell("refused", error=told[:_TOLD_CHARS_MAX])
        return REFUSED
    slots = Slots(settings.slots, settings.consumer.workers)
    try:
        with MessageFactory(settings.client) as factory:
            return _serve(settings, factory, handlers, parent, slots)
    except VqError as error:  # the parent logs it
        parent.tell("failed", error=str(error)[:_TOLD_CHARS_MAX])
        return FAILED


def _serve(
    settings: ChildSettings,
    factory: MessageFactory,
    handlers: Handlers,
    parent: _Parent,
    slots: Slots,
) -> int:
    Task.use(factory.create_producer(settings.producer))
    consumer = factory.create_consumer(settings.consumer)
    around = _Around(parent, slots, lambda: consumer._attempts_max)
    limit_s = settings.soft_time_limit_s
    limit = SoftLimit(limit_s) if limit_s else None
    for topic, call in handlers.listeners.items():
        bounded = call if limit is None else _within(limit, call)
        consumer.subscribe(topic, _FETCH_BYTES, around.listener(bounded))
    parent.begin()
    consumer._be_watched()
    consumer.start()
    periodic = Periodic.begin(factory, settings.consumer.group, handlers.periodic)
    parent.tell("ready")
    stop = parent.stops.get()
    if periodic is not None:
        periodic.stop()
    if stop == FINISH:
        threading.Thread(target=_close, args=(consumer, parent), daemon=True).start()
        while (stop := parent.stops.get()) == FINISH:  # also the end of standard input
            pass
    if stop == NOW:
        _leave(factory, consumer)
    return DONE


def _within(limit: SoftLimit, call: Callable[[Message], Any]) -> Callable[[Message], Any]:
    return lambda message: limit.call(call, message)


def _close(consumer: MessageConsumer, parent: _Parent) -> None:
    try:
        consumer.close()
    except Exception:
        logger.exception("closing the consumer failed")
    parent.stops.put("closed")


def _leave(factory: MessageFactory, consumer: MessageConsumer) -> None:
    """Commit what is handled, end the session, and this process, whatever its threads do."""
    runtime, cluster = factory._opened()
    try:
        consumer._forsake(_LEAVE_S)
        runtime.run(cluster.close(), _LEAVE_S)
    except Exception:
        logger.exception("leaving at once failed; what was handled lately is delivered again")
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(FAILED)
