"""Messages come into a local queue: what a put stores, whether there is room, and keys.

A queue in memory has a message at once; what one in a directory does with it is ``commits``.
"""

from collections.abc import Mapping

from vq.errors import BufferFull, InvalidArgument
from vq.local.core.base import QueueBase
from vq.local.core.keys import check_key
from vq.local.items import IDEMPOTENCY_HEADER, LATER, LocalItem, item_to_put
from vq.local.settings import WhenCrowded
from vq.model import Message


class Puts:
    """What puts of one queue need. Any thread."""

    def __init__(self, base: QueueBase) -> None:
        self._base = base
        self._keys = base.keys

    def prepare(
        self,
        content: object,
        delay_s: float | None,
        priority: int,
        idempotency_key: str | None,
        told: Mapping[str, str] | None = None,
    ) -> LocalItem | None:
        """Return what to store for a put; None: its key was seen within the window.

        ``told`` has the headers of vq's own that a copy has beside those of the message.

        Raises:
            InvalidArgument, MessageTooLarge: An argument is unusable.
            BufferFull: Too many messages wait for their times.
            KeyOnItsWay: What another put with this key comes to, decides what this one does.
        """
        base = self._base
        base.check_not_interrupting()
        headers = dict(told or {})
        if idempotency_key is not None:
            check_key(idempotency_key)
            if not base.in_memory:
                headers[IDEMPOTENCY_HEADER] = idempotency_key
        item = item_to_put(
            content if isinstance(content, Message) else Message("", content),
            base.name,
            delay_s=delay_s,
            priority=priority,
            headers=headers,
            now_ms=base.clock.wall_ms(),
        )
        if item.lane == LATER:
            delayed = len(base.state.asides) - base.state.failed
            if delayed >= base.config.later_max:
                raise BufferFull(
                    f"{delayed} delayed messages wait for their times; later_max = "
                    f"{base.config.later_max}",
                    hint="try again when some were given, or raise later_max",
                )
        if idempotency_key is not None:
            with base.lock:
                if not self._keys.claim(idempotency_key, item, base.clock.wall_ms()):
                    base.counts.repeated += 1
                    return None
        return item

    def add_in_memory(self, item: LocalItem) -> None:
        """Give a message of a queue in memory to takers."""
        base = self._base
        item.number = base.following()
        if item.lane == LATER:
            with base.lock:
                due_ms, item.deadline, item.attempts = int(item.deadline), 0.0, 1
                base.state.set_aside(item, due_ms, 0)
                self._remember_key(item)
            base.sleeper.kick()
            return
        base.opened.add(item)
        base.state.lines[item.priority].ready.append(item)
        item.offset = 0  # it is in line now, for ``QueueState.overdue``
        if item.priority:
            base.state.plain = False
        if self._keys.coming:
            with base.lock:
                self._remember_key(item)
        if base.takers.line:
            base.takers.wake(1)

    def _remember_key(self, item: LocalItem) -> None:
        if self._keys.coming:
            self._keys.remember((item,), self._base.clock.wall_ms())

    def give_up(self, item: LocalItem) -> None:
        """Note that a put has ended and its message is not there: another one may use its key."""
        if self._keys.coming:
            with self._base.lock:
                self._keys.release(item)

    # Room -----------------------------------------------------------------------------------------
    def is_full(self, more: int = 1) -> bool:
        """Whether a put must not add so many messages now."""
        capacity = self._base.capacity
        return capacity is not None and self._base.size + more > capacity

    def lacks_room(self, count: int) -> bool:
        """Whether a put of so many messages must wait; a ring drops what is in their way.

        Raises:
            BufferFull: It is not to wait.
            InvalidState, StorageFailed: As ``QueueBase.check``.
        """
        when_full = self._base.config.when_full
        while self.is_full(count):
            self._base.check()
            if when_full is WhenCrowded.DROP_OLDEST and self._drop_oldest():
                continue
            if when_full is WhenCrowded.RAISE:
                raise self.full()
            return True
        return False

    def _drop_oldest(self) -> bool:
        """Drop the message in line that waits longest, of the lowest priority; False: none does."""
        for line in self._base.state.lines:
            try:
                item = line.ready.popleft()
            except IndexError:
                continue
            self._base.opened.discard(item)
            self._base.counts.dropped += 1
            return True
        return False

    def full(self) -> BufferFull:
        """Return the error of a put at the bound."""
        base = self._base
        return BufferFull(
            f"queue {base.name!r} has {base.size} messages that are not completed; its "
            f"capacity is {base.capacity}",
            hint="take and complete messages, wait longer, or raise capacity",
        )

    def check_fits(self, count: int) -> None:
        """Refuse so many messages at once if they can never have room.

        Raises:
            InvalidArgument: They cannot.
        """
        capacity = self._base.capacity
        if capacity is not None and count > capacity:
            raise InvalidArgument(f"{count} messages at once; the capacity is {capacity}")
