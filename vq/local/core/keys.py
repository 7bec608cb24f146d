"""Idempotency keys of a local queue: a put whose key was seen within the window adds nothing."""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final

from vq.errors import Busy, InvalidArgument
from vq.local.core.waits import LineOfWakers
from vq.local.items import LocalItem
from vq.local.settings import LocalQueueConfig
from vq.shown import shown

_KEY_CHARS_MAX: Final = 256


class KeyOnItsWay(Busy):
    """Another put with the same idempotency key has not ended."""


class IdempotencyKeys:
    """The keys of one queue. Its methods are called under the lock of the queue.

    Attributes:
        coming: Keys of puts that have not ended, with their messages.
        seen: Keys of messages that are there, with the time of their put in ms, the oldest first.
        arrivals: Who waits until a key is in ``coming`` no more.
    """

    def __init__(self, config: LocalQueueConfig) -> None:
        self._window_ms = int(config.idempotency_s * 1000)
        self._most = config.idempotency_keys
        self._key_of: weakref.WeakKeyDictionary[LocalItem, str] = weakref.WeakKeyDictionary()
        self.coming: dict[str, weakref.ref[LocalItem]] = {}
        self.seen: OrderedDict[str, int] = OrderedDict()
        self.arrivals = LineOfWakers()

    def claim(self, key: str, item: LocalItem, now_ms: int) -> bool:
        """Have a key stand for the message of a put; False: it was seen within the window.

        Clocks may be set back.

        Raises:
            KeyOnItsWay: Another put has it, and what that comes to decides about this one.
        """
        if key in self.coming:
            raise KeyOnItsWay(f"a put with the key {key!r} has not ended")
        put_ms = self.seen.get(key)
        if put_ms is not None and abs(now_ms - put_ms) < self._window_ms:
            return False
        self._key_of[item] = key
        self.coming[key] = weakref.ref(item, self._gone(key))
        return True

    def _gone(self, key: str) -> "Callable[[weakref.ref[LocalItem]], None]":
        """Return what notes that the message of a put is nowhere: the put was interrupted."""

        def forget(gone: "weakref.ref[LocalItem]") -> None:  # anywhere, so without the lock
            if self.coming.get(key) is gone:
                self.coming.pop(key, None)
                self.arrivals.wake_all()

        return forget

    def release(self, item: LocalItem) -> None:
        """Note that a message is not there: another put may use its key."""
        key = self._key_of.pop(item, None)
        if key is not None:
            self.coming.pop(key, None)
            self.arrivals.wake_all()

    def remember(self, items: Iterable[LocalItem], now_ms: int) -> None:
        """Note that messages are there: puts with their keys add nothing."""
        seen = self.seen
        for item in items:
            key = self._key_of.pop(item, None)
            if key is not None:
                self.coming.pop(key, None)
                seen.pop(key, None)
                seen[key] = now_ms
        while seen:
            oldest = next(iter(seen.values()))
            if len(seen) <= self._most and now_ms - oldest < self._window_ms:
                break
            seen.popitem(last=False)
        self.arrivals.wake_all()


def check_key(key: object) -> None:
    """Refuse what is no key.

    Raises:
        InvalidArgument: It is none.
    """
    if not isinstance(key, str) or not 1 <= len(key) <= _KEY_CHARS_MAX:
        raise InvalidArgument(
            f"idempotency_key = {shown(key)} is no text of 1 to {_KEY_CHARS_MAX} characters"
        )
