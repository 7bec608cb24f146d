"""Interceptors of a producer: code of the application around each send.

    send ─▶ before_send of 1, 2, 3 ─▶ stages, buffer, broker ─▶ after_send of 3, 2, 1 ─▶ callback

The hooks run around a whole send. ``before_send`` runs once, also if the topic must be published
first or the buffer is full. All ways to send use ``Interceptors.begin``.
"""

import asyncio
from collections.abc import Sequence
from typing import Self

from vq.client.future import SendCallback, report
from vq.client.kinds import check_function
from vq.errors import InvalidArgument, NotSent, OutcomeUnknown, VqError
from vq.model import Message, SendResult
from vq.shown import shown, shown_raised


class ProducerInterceptor:
    """Base class of an interceptor; its hooks do nothing. Give each concern a class of its own.

    ``ProducerConfig(interceptors=(first, second))`` sets interceptors. Several threads may call
    the hooks of one object at the same time, if several threads send.
    """

    def before_send(self, message: Message) -> Message:
        """Return the message to send instead, or the same one. The topic must stay the same.

        It runs in the thread that sends, before the message is accepted. An exception refuses the
        message: the sender gets ``InvalidArgument``, and the exception is its cause.
        """
        return message

    def after_send(
        self, message: Message, result: SendResult | None, error: VqError | None
    ) -> None:
        """Note the outcome of a message; called once for each message that ``before_send`` passed.

        A blocking send calls it in the thread that sends, just before it returns. Other sends call
        it where callbacks run, just before the message's own callback. There it must be short and
        must not wait for vq. If the message is not accepted (a later interceptor refuses it, its
        size is too large, the buffer is full), the thread that sends calls it. If a signal handler
        interrupts a send, the outcome is unknown; if it interrupts ``before_send``, or the steps
        between two hooks, this may not be called. An exception that it raises is logged.

        Args:
            message: The object that ``before_send`` of this interceptor returned.
            result: Its place; None unless it is stored.
            error: A ``Refused``, ``InvalidArgument`` or ``InvalidState``: it is not stored. An
                ``OutcomeUnknown``: it may be stored. None if it is stored.
        """


class Interceptors:
    """The interceptors of one producer. Any thread.

    Args:
        interceptors: In the order of ``before_send``.
    """

    def __init__(self, interceptors: Sequence[ProducerInterceptor]) -> None:
        self._interceptors = tuple(interceptors)

    def begin(self, message: Message, callback: SendCallback | None = None) -> "Sending":
        """Call every ``before_send``; return the send, whose ``message`` is to be sent.

        Args:
            message: The application's message.
            callback: The application's callback.

        Raises:
            InvalidArgument: It is no message, an interceptor raised, or it returned no message or
                one to another topic. The interceptors that had passed it know the outcome.
        """
        if not isinstance(message, Message):
            raise InvalidArgument(f"a message is a vq.Message, not {type(message).__name__}")
        passed: list[tuple[ProducerInterceptor, Message]] = []
        for each in self._interceptors:
            try:
                message = _before(each, message)
            except BaseException as error:
                refusal = error if isinstance(error, InvalidArgument) else _interrupted(error)
                Sending(message, None, passed).ended(None, refusal)
                raise
            passed.append((each, message))
        return Sending(message, callback, passed)


def _before(interceptor: ProducerInterceptor, message: Message) -> Message:
    """Return what ``before_send`` returns, checked."""
    name = type(interceptor).__name__
    try:
        returned: object = interceptor.before_send(message)
    except Exception as error:
        raise InvalidArgument(
            f"before_send of {name} raised {shown_raised(error)}; the message is not sent"
        ) from error
    if not isinstance(returned, Message):
        raise InvalidArgument(
            f"before_send of {name} returned {type(returned).__name__}; return a vq.Message"
        )
    if returned.topic != message.topic:
        raise InvalidArgument(
            f"before_send of {name} changed the topic from {message.topic!r} to "
            f"{returned.topic!r}; it must stay the same"
        )
    return returned


def _interrupted(cause: BaseException) -> InvalidArgument:
    error = InvalidArgument(
        f"{shown_raised(cause)} interrupted before_send; the message is not sent"
    )
    error.__cause__ = cause
    return error


class Sending:
    """One intercepted send. A context manager around the steps that accept the message.

    If the steps raise, the interceptors get the error. Otherwise the outcome comes by a call of
    this object, which is the message's callback, or of ``ended``. Only the first one counts.

    Attributes:
        message: The message to send.
    """

    __slots__ = ("_callback", "_passed", "message")

    def __init__(
        self,
        message: Message,
        callback: SendCallback | None,
        passed: list[tuple[ProducerInterceptor, Message]],
    ) -> None:
        self.message = message
        self._callback = callback
        self._passed = passed  # whose ``after_send`` is to be called, in the order of before_send

    def __call__(self, result: SendResult | None, error: VqError | None) -> None:
        """Call every ``after_send``, then the application's callback; see ``SendCallback``."""
        while self._passed:
            each, message = self._passed.pop()
            try:
                each.after_send(message, result, error)
            except BaseException as raised:  # noqa: BLE001 - the user's code may raise anything
                _report(each, raised)
        if self._callback is not None:
            self._callback(result, error)

    def ended(self, result: SendResult | None, error: VqError | None) -> None:
        """Call every ``after_send`` in the thread that sends.

        ``KeyboardInterrupt`` and ``SystemExit`` are raised once all were called: in the thread of
        the application they mean the program.
        """
        last: BaseException | None = None
        while self._passed:
            each, message = self._passed.pop()
            try:
                each.after_send(message, result, error)
            except Exception as raised:  # noqa: BLE001 - the user's code may raise anything
                _report(each, raised)
            except BaseException as raised:  # noqa: BLE001 - raised below
                last = raised
        if last is not None:
            raise last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: object, exc: BaseException | None, _trace: object) -> None:
        if exc is not None:
            self.ended(None, outcome_of(exc))


def outcome_of(raised: BaseException) -> VqError:
    """Return the outcome of a message whose send ended with an exception before it returned.

    A task waits only before the message is accepted, so a cancelled send has sent nothing. A signal
    handler may raise anywhere, also after that.
    """
    if isinstance(raised, VqError):
        return raised
    if isinstance(raised, asyncio.CancelledError):
        return NotSent("the send was cancelled before the message was accepted")
    error = OutcomeUnknown(
        f"{shown_raised(raised)} interrupted the send; the message may be stored"
    )
    error.__cause__ = raised
    return error


def _report(interceptor: ProducerInterceptor, raised: BaseException) -> None:
    report(f"after_send of {type(interceptor).__name__}", raised)


def checked_interceptors(given: object) -> tuple[ProducerInterceptor, ...]:
    """Return the interceptors that an application gave.

    Raises:
        InvalidArgument: One of them is none.
    """
    if not isinstance(given, list | tuple):
        raise InvalidArgument(
            f"interceptors = {shown(given)} is {type(given).__name__}; give a tuple of interceptors"
        )
    for each in given:
        if isinstance(each, type):
            raise InvalidArgument(
                f"interceptor {each.__name__} is a class; give an instance of it: "
                f"{each.__name__}(...)"
            )
        if not isinstance(each, ProducerInterceptor):
            raise InvalidArgument(
                f"interceptor {shown(each)} is {type(each).__name__}; derive its class from "
                "vq.ProducerInterceptor"
            )
        for hook in ("before_send", "after_send"):
            what = f"{hook} of interceptor {type(each).__name__}"
            check_function(what, getattr(each, hook), "make it a plain method")
    return tuple(given)
