"""How many bytes each partition of a consumer may ask for: its buffer space. Loop-bound.

Half of ``buffer_bytes`` is divided evenly, so that each partition always has its share, whatever
the others do. The other half goes to partitions that are known to have more data. An idle one is
asked for with no more than its share; so what may arrive at once is bounded, too.

When all of it is taken by the beginnings of records, none of them would ever become whole. So one
partition at a time, in the order in which they came to need it, may ask for what its record lacks
beyond the bound. It gives that permit back when the record was consumed or there is room for it.
"""

import asyncio

from vq import limits
from vq.client.consumer.asker import Asker

#: Less than this is not worth an answer, however many partitions there are.
_SHARE_BYTES_MIN = 1 * limits.KIB


class BufferSpace:
    """The memory of one consumer."""

    def __init__(self, buffer_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = buffer_bytes // 2
        self._shared = buffer_bytes - self._pool
        self._extra: dict[Asker, int] = {}  # of each partition: what it has beyond its share
        self._extra_sum = 0
        self._expected = 0  # how many partitions there will be soon
        self._line: dict[Asker, None] = {}  # those without room for what they must ask for
        self._grower: Asker | None = None  # has the permit to go beyond the bound,
        self._grew_from = 0  # and had so many bytes when it got it
        self._serve_due = False

    @property
    def share_bytes(self) -> int:
        """What each partition may always have, fetched and on its way."""
        return max(_SHARE_BYTES_MIN, self._shared // max(1, self._expected, len(self._extra)))

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

    def leave(self, asker: Asker) -> None:
        """Take back what a partition has; another one may go on."""
        self._line.pop(asker, None)
        if self._grower is asker:
            self._grower = None
        self._extra_sum -= self._extra.pop(asker)
        self._room_changed()

    def expect(self, count: int) -> bool:
        """Share memory out for so many partitions from now on; False: there were as many before."""
        is_new = count != self._expected
        self._expected = count
        return is_new

    def allowance(self, asker: Asker) -> int:
        """Return how many bytes a partition may ask for now."""
        free = max(0, self.share_bytes - asker.buffered)
        return free + max(0, self._pool - self._extra_sum) if asker.behind else free

    def count(self, asker: Asker) -> None:
        """Note that ``asked`` or ``buffered`` of a partition changed."""
        extra = max(0, asker.asked + asker.buffered - self.share_bytes)
        self._extra_sum += extra - self._extra[asker]
        self._extra[asker] = extra
        self._room_changed()

    def may_exceed(self, asker: Asker) -> bool:
        """Give a partition the permit to ask for ``missing`` beyond the bound, at once.

        False: another one has it, or is before it in line; ``go_on`` is called when there is room
        or when its turn has come.
        """
        self._line.setdefault(asker)
        if self._grower is None and next(iter(self._line)) is asker:
            self._grower, self._grew_from = asker, asker.buffered
        if self._grower is asker:
            del self._line[asker]
        return self._grower is asker

    def has_permit(self, asker: Asker) -> bool:
        """Whether a partition may go beyond the bound."""
        return asker is self._grower

    def _room_changed(self) -> None:
        """Take the permit back when it is not needed any more; let the next in line go on."""
        grower = self._grower
        if grower is not None and not grower.asked:
            is_back = grower.buffered <= self._grew_from  # nothing came, or it is consumed
            if is_back or self._extra_sum <= self._pool:
                self._grower = None
        if self._line and not self._serve_due:
            first = next(iter(self._line))
            if self._grower is None or self.allowance(first) >= first.missing:
                self._serve_due = True
                self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        """Let those in line go on, as far as there is room; the first may get the permit."""
        self._serve_due = False
        while self._line:
            first = next(iter(self._line))
            if self._grower is not None and self.allowance(first) < first.missing:
                return
            first.go_on()
            self._line.pop(first, None)
