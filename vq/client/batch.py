"""One batch of a producer: its records as bytes, and the futures that wait for it."""

import logging
from hashlib import md5
from operator import attrgetter
from struct import Struct

import google_crc32c

from vq.client.future import SendFuture
from vq.errors import VqError
from vq.model import ProducerStamp, SendResult
from vq.store.format import FLAG_PROPERTIES, FLAG_TAG, RECORD_HEADER, RECORD_HEADER_BYTES

logger = logging.getLogger(__name__)
_deadline = attrgetter("deadline")
_LENGTH = Struct(">I")


def encode_records(items: list[SendFuture], ids: list[int]) -> tuple[bytes, list[int]]:
    """Return the records of ``items`` back to back, and the size of each.

    The one loop of a producer that runs per message: names are local, nothing is looked up twice.
    ``ids`` has one message id per item.
    """
    parts: list[bytes] = []
    sizes: list[int] = []
    add = parts.append
    add_size = sizes.append
    pack = RECORD_HEADER.pack
    pack_length = _LENGTH.pack
    digest = md5
    for item, message_id in zip(items, ids, strict=True):
        item.message_id = message_id
        body = item.content
        flag = 0
        properties = item.properties
        if properties is not None:
            flag = FLAG_PROPERTIES
            body = pack_length(len(properties)) + properties + body
        tag = item.tag
        if tag is not None:
            flag |= FLAG_TAG
            body = pack_length(len(tag)) + tag + body
        size = len(body)
        add(pack(size, digest(body).digest(), message_id, flag))
        add(body)
        add_size(size + RECORD_HEADER_BYTES)
    return b"".join(parts), sizes


class Batch:
    """Messages of one partition that are sent, stored and acknowledged together.

    Attributes:
        stamp: Recognises a resend; changed only while no copy under the old one may count.
        attempts: How often it was put on the wire.
        sent: It is on the wire of a live connection, the answer is awaited.
        unknown: Some attempt ended without an answer, so a copy may be stored.
        error: It was refused for good; kept until it stands first in line.
        stored: The broker said that it has it.
        done: Its futures have their outcome.
    """

    __slots__ = (
        "attempts",
        "body",
        "crc",
        "deadline",
        "done",
        "error",
        "items",
        "last_refusal",
        "payload_bytes",
        "sent",
        "sizes",
        "stamp",
        "stored",
        "unknown",
    )

    def __init__(
        self, items: list[SendFuture], ids: list[int], stamp: ProducerStamp, payload_bytes: int
    ) -> None:
        self.items = items
        self.stamp = stamp
        self.body, self.sizes = encode_records(items, ids)
        self.crc: int = google_crc32c.value(self.body)
        self.deadline = min(map(_deadline, items))
        self.payload_bytes = payload_bytes
        self.attempts = 0
        self.sent = False
        self.unknown = False
        self.stored = False
        self.done = False
        self.error: VqError | None = None
        self.last_refusal: VqError | None = None

    def resolve(self, partition: int, offset: int) -> None:
        """Give every future its offset, the first record being at ``offset``; run callbacks."""
        self.done = True
        result = SendResult
        new = tuple.__new__  # what SendResult(...) does, without its Python-level wrapper
        for item, size in zip(self.items, self.sizes, strict=True):
            item.offset = offset
            callback = item.callback
            if callback is not None:
                try:
                    callback(new(result, (partition, offset, item.message_id)), None)
                except Exception:
                    logger.exception("a send callback raised")
            if item.waiters is not None:
                item.wake()
            offset += size

    def fail(self, error: VqError) -> None:
        """Give every future ``error``."""
        self.done = True
        for item in self.items:
            item.fail(error)
