"""One batch of a producer: its records as bytes, and the futures that wait for it."""

import math
from collections.abc import Sequence
from operator import attrgetter

import google_crc32c

from vq.client.future import SendFuture, report
from vq.errors import VqError
from vq.model import ProducerStamp, SendResult
from vq.store.codec import encode_records, places
from vq.store.format import RECORD_HEADER_BYTES

_content = attrgetter("content")
_deadline = attrgetter("deadline")
_head = attrgetter("head")
_size = attrgetter("size")
#: Stands in a batch for messages that were given up while their records were on the wire.
_NOBODY = SendFuture(b"", None, None, math.inf)
_NOBODY.outcome = SendResult(-1, -1, 0)


def _encode(items: list[SendFuture], ids: list[int]) -> tuple[bytes, list[int]]:
    """Return the records of ``items`` back to back, and the size of each."""
    return encode_records(list(map(_content, items)), list(map(_head, items)), ids)


class Batch:
    """Messages of one partition that are sent, stored and acknowledged together.

    Attributes:
        count: How many of its messages have no outcome yet.
        size: What they take in the buffer, as ``bytes_of``.
        deadline: The earliest of theirs.
        stamp: Recognises a resend; changed only while no copy under the old one may count.
        attempts: How often it was put on the wire.
        sent: It is on the wire of a live connection, the answer is awaited.
        unknown: Some attempt ended without an answer, so a copy may be stored.
        error: It was refused for good; kept until it stands first in line.
        stored: The broker said that it has it, and its futures have their outcome.
        telling: Some of its futures may have their offset already.
        done: All its futures have their outcome.
    """

    __slots__ = (
        "attempts",
        "body",
        "count",
        "crc",
        "deadline",
        "done",
        "error",
        "ids",
        "items",
        "last_refusal",
        "sent",
        "size",
        "sizes",
        "stamp",
        "stored",
        "telling",
        "unknown",
    )

    def __init__(self, items: list[SendFuture], ids: list[int], stamp: ProducerStamp) -> None:
        self.items = items
        self.ids = ids
        self.stamp = stamp
        self.body, self.sizes = _encode(items, ids)
        self.crc: int = google_crc32c.value(self.body)
        self.deadline: float = min(map(_deadline, items))
        self.count = len(items)
        self.size = len(self.body) - len(items) * RECORD_HEADER_BYTES
        self.attempts = 0
        self.sent = False
        self.unknown = False
        self.stored = False
        self.telling = False
        self.done = False
        self.error: VqError | None = None
        self.last_refusal: VqError | None = None

    def resolve(self, partition: int, offset: int) -> None:
        """Give every future its offset, the first record being at ``offset``; run callbacks.

        May be called again when it was interrupted before ``done``.
        """
        results = places(partition, offset, self.sizes, self.ids)
        try:
            if self.telling:
                self._tell_rest(results)
            else:
                self.telling = True
                for item, result in zip(self.items, results, strict=True):
                    item.outcome = result
                    callback = item.callback
                    if callback is not None:
                        try:
                            callback(result, None)
                        except BaseException as error:  # noqa: BLE001 - user code may raise anything
                            report("a send callback", error)
                    if item.waiters is not None:
                        item.wake()
        except BaseException:  # a signal handler raised between two messages
            self._tell_rest(results)
            self.done = True
            raise
        self.done = True

    def _tell_rest(self, results: list[SendResult]) -> None:
        for item, result in zip(self.items, results, strict=True):
            if item.outcome is None:
                item.succeed(result)
            item.wake()

    def fail(self, error: VqError) -> None:
        """Give ``error`` to every future without an outcome."""
        try:
            fail_all(self.items, error)
        finally:
            self.done = all(item.outcome is not None for item in self.items)

    def forget(self) -> None:
        """Keep the bytes alone: all messages were told, and count in no buffer any more."""
        self.items = [_NOBODY] * len(self.items)

    def expire(self, now: float, *, drop: bool) -> list[SendFuture]:
        """Take out the messages whose deadline has passed; return them, without an outcome yet.

        With ``drop`` their records go too: no copy of this batch may be under way. Otherwise the
        bytes stay as they were sent, and nobody waits for those records any more. At least one
        message must have time left.
        """
        late = [item for item in self.items if item.deadline <= now]
        if drop:
            kept = [
                (item, number)
                for item, number in zip(self.items, self.ids, strict=True)
                if item.deadline > now and item is not _NOBODY
            ]
            self.items = [item for item, _ in kept]
            self.ids = [number for _, number in kept]
            self.body, self.sizes = _encode(self.items, self.ids)
            self.crc = google_crc32c.value(self.body)
        else:
            self.items = [item if item.deadline > now else _NOBODY for item in self.items]
        self.deadline = min(map(_deadline, self.items))
        self.count -= len(late)
        self.size -= bytes_of(late)
        return late


def fail_all(items: list[SendFuture], error: VqError) -> None:
    """Give ``error`` to each of ``items`` that has no outcome."""
    try:
        for item in items:
            if item.outcome is None:
                item.fail(error)
    except BaseException:  # a signal handler raised between two messages
        for item in items:
            if item.outcome is None:
                item.fail(error)
            item.wake()
        raise


def bytes_of(items: Sequence[SendFuture]) -> int:
    """Return the bytes of messages: payloads, and tags, keys and headers as they are encoded."""
    return sum(map(_size, items))
