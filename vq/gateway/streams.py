"""Messages of a hosted member as server-sent events.

::

    event: message
    id: orders/3/1024
    data: {"topic":"orders","partition":3,"offset":1024,…}

The id is the message's topic, partition and offset. A stream writes no more than the member's
window beyond what is committed, and not before its peer has taken what was written. It ends with an
event ``end``, which has a problem document, or when the connection does.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from vq.errors import VqError
from vq.gateway.counts import GatewayCounts
from vq.gateway.forms import ContentForm, received_form
from vq.gateway.members import HostedMember
from vq.gateway.problems import as_json, problem_of
from vq.model import Message
from vq.tasks import begin_task

CONTENT_TYPE: Final = "text/event-stream; charset=utf-8"
#: A comment is sent after so long without an event: proxies end what is silent.
KEEP_ALIVE_S: Final = 10.0
#: Messages in one write.
_STEP: Final = 100
_HEADERS: Final = (
    (b"content-type", CONTENT_TYPE.encode()),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
    (b"x-content-type-options", b"nosniff"),
)


class EventStream(Response):
    """An answer that lasts: events of one member. It ends with the member, at the latest.

    Args:
        member: Whose messages.
        receiver: What its ``enter`` has returned.
        how: How contents are shown.
        last: The id of the last event that the client has; "": none. What was given out and not
            committed is sent again, from behind it on.
        waits: Counts a request that waits, inside a block.
        check: Raises once the client may not have the messages any more.
        counts: Counts messages.
    """

    def __init__(
        self,
        member: HostedMember,
        receiver: int,
        how: ContentForm,
        last: str,
        *,
        waits: Callable[[], contextlib.AbstractContextManager[None]],
        check: Callable[[], None],
        counts: GatewayCounts,
    ) -> None:
        super().__init__()
        self._member = member
        self._receiver = receiver
        self._how = how
        self._last = last
        self._waits = waits
        self._check = check
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the peer goes away or no event follows.

        Raises:
            AtLimit: Too many requests wait; nothing was sent.
        """
        with self._waits():
            await self._answer(receive, send)

    async def _answer(self, receive: Receive, send: Send) -> None:
        writing = begin_task(self._write(send))
        gone = begin_task(until_gone(receive))
        try:
            await asyncio.wait({writing, gone}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (writing, gone):
                task.cancel()
            await asyncio.wait({writing, gone})
        if not writing.cancelled() and (error := writing.exception()) is not None:
            raise error

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEADERS)})
        end = b""
        try:
            with self._member.streaming():
                await self._events(send)
        except VqError as error:
            end = b"event: end\ndata: " + as_json(problem_of(error)) + b"\n\n"
        with contextlib.suppress(OSError):
            await send({"type": "http.response.body", "body": end, "more_body": False})

    async def _events(self, send: Send) -> None:
        member = self._member
        messages = _behind(self._last, member.consumer.again())
        while True:
            for start in range(0, len(messages), _STEP):
                step = messages[start : start + _STEP]
                await self._send(send, self._written(step))
                self._counts.received += len(step)
                member.check_live()
            messages = await member.receive(self._receiver, _STEP, KEEP_ALIVE_S)
            self._check()
            if not messages:
                await self._send(send, b": keep-alive\n\n")

    async def _send(self, send: Send, body: bytes) -> None:
        await send({"type": "http.response.body", "body": body, "more_body": True})

    def _written(self, messages: Iterable[Message]) -> bytes:
        return b"".join(
            b"event: message\nid: %s\ndata: %s\n\n"
            % (id_of(each).encode(), as_json(received_form(each, self._how)))
            for each in messages
        )


def id_of(message: Message) -> str:
    """Return the id of the event of a message."""
    return f"{message.topic}/{message.partition}/{message.offset}"


def _behind(last: str, messages: list[Message]) -> list[Message]:
    """Return the messages behind the one with an id; all of them if it is not among them."""
    for number, message in enumerate(messages, 1):
        if last and id_of(message) == last:
            return messages[number:]
    return messages


async def until_gone(receive: Receive) -> None:
    """Return when the client of a request has gone away; its body was read, or it has none."""
    while (await receive())["type"] != "http.disconnect":
        pass
