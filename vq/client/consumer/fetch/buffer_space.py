"""How many bytes each partition of a consumer may ask for: its buffer space. Loop-bound.

Half of ``buffer_bytes`` is divided evenly, so that each partition always has its share, whatever
the others do. The other half goes to partitions that are known to have more data. An idle one is
asked for with no more than its share; so what may arrive at once is bounded, too.

If the beginnings of records take all of it, none of them can become whole. So one partition at a
time, first come first served, gets a permit to ask for the rest of its record beyond the bound. It
returns the permit when the record was consumed or there is space for it.
"""

import asyncio

from vq import limits
from vq.client.consumer.fetch.asker import Asker

#: Smallest share; a smaller answer is not worth a request, however many partitions there are.
_SHARE_BYTES_MIN = 1 * limits.KIB


class BufferSpace:
    """The memory of one consumer.

    Attributes:
        share_bytes: Bytes that each partition may always have, fetched or asked for.
    """

    def __init__(self, buffer_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = buffer_bytes // 2
        self._shared = buffer_bytes - self._pool
        self._extra: dict[Asker, int] = {}  # of each partition: what it has beyond its share
        self.extra_sum = 0
        self._expected = 0  # how many partitions there will be soon
        self.queue: dict[Asker, None] = {}  # partitions that wait for space, first come first
        self.grower: Asker | None = None  # has the permit to go beyond the bound,
        self._grew_from = 0  # and had so many bytes when it got it
        self._serve_due = False
        self.share_bytes = 0
        self._share()

    def _share(self) -> None:
        parts = max(1, self._expected, len(self._extra))
        self.share_bytes = max(_SHARE_BYTES_MIN, self._shared // parts)

    def __contains__(self, asker: Asker) -> bool:
        """Whether a partition has a share."""
        return asker in self._extra

    def __len__(self) -> int:
        """Return how many partitions have a share."""
        return len(self._extra)

    def askers(self) -> list[Asker]:
        """Return the partitions that have a share."""
        return list(self._extra)

    def join(self, asker: Asker) -> None:
        """Give a partition its share."""
        self._extra[asker] = 0
        self._share()

    def leave(self, asker: Asker) -> None:
        """Free the space of a partition; another one may go on."""
        self.queue.pop(asker, None)
        if self.grower is asker:
            self.grower = None
        self.extra_sum -= self._extra.pop(asker)
        self._share()
        self._space_changed()

    def expect(self, count: int) -> bool:
        """Divide the memory by so many partitions from now on; False: the number did not change."""
        is_new = count != self._expected
        self._expected = count
        self._share()
        return is_new

    def allowance(self, asker: Asker) -> int:
        """Return how many bytes a partition may ask for now."""
        free = max(0, self.share_bytes - asker.buffered)
        return free + max(0, self._pool - self.extra_sum) if asker.behind else free

    def count(self, asker: Asker) -> None:
        """Note that ``asked`` or ``buffered`` of a partition changed."""
        extra = asker.asked + asker.buffered - self.share_bytes
        if extra > 0 or self._extra[asker]:
            extra = max(0, extra)
            self.extra_sum += extra - self._extra[asker]
            self._extra[asker] = extra
        if self.queue or self.grower is not None:
            self._space_changed()

    def may_exceed(self, asker: Asker) -> bool:
        """Give a partition the permit to ask for ``missing`` beyond the bound, at once.

        False: another one has it, or waits before it; ``go_on`` is called when there is space, or
        when the permit is free.
        """
        self.queue.setdefault(asker)
        if self.grower is None and next(iter(self.queue)) is asker:
            self.grower, self._grew_from = asker, asker.buffered
        if self.grower is asker:
            del self.queue[asker]
        return self.grower is asker

    def has_permit(self, asker: Asker) -> bool:
        """Whether a partition may go beyond the bound."""
        return asker is self.grower

    def _space_changed(self) -> None:
        """Take back a permit that is not needed any more; let the next partition go on."""
        grower = self.grower
        if grower is not None and not grower.asked:
            is_back = grower.buffered <= self._grew_from  # nothing came, or it is consumed
            if is_back or self.extra_sum <= self._pool:
                self.grower = None
        if self.queue and not self._serve_due:
            first = next(iter(self.queue))
            if self.grower is None or self.allowance(first) >= first.missing:
                self._serve_due = True
                self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Let waiting partitions go on while there is space; the first may get the permit."""
        self._serve_due = False
        while self.queue:
            first = next(iter(self.queue))
            if self.grower is not None and self.allowance(first) < first.missing:
                return
            first.go_on()
            self.queue.pop(first, None)
