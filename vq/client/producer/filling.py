"""Decides whether the pending messages of a partition are worth a batch now.

A small batch behind another one would wait for the flush of that one at the broker, and a batch
costs producer, broker and consumer the same work, however small it is. A producer may also be told
to let batches *linger*: to wait for more messages while a batch is not full.
"""

from collections.abc import Sequence

from vq.client.future import SendFuture
from vq.client.producer.batch import bytes_of
from vq.store.records.format import RECORD_HEADER_BYTES

#: If less than this part of a batch is in flight and pending, further messages wait for the answer.
_FEW_PART = 8


class Filling:
    """How many messages fill a batch of one partition. Only the queue's owner uses it.

    Args:
        records_max: Most messages of a batch.
        bytes_max: Most bytes of a batch, the headers of its records included.
        linger_s: How long a batch that is not full waits for more messages.

    Attributes:
        full: How many messages filled a recent batch; 1 to ``records_max``.
    """

    def __init__(self, records_max: int, bytes_max: int, linger_s: float) -> None:
        self.full = records_max
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._linger_s = linger_s

    @property
    def candidates(self) -> int:
        """How many pending messages to examine for the next batch: a few more than filled one.

        A message that does not fit costs as much to examine as one that does.
        """
        return min(self.full + self.full // 4 + 8, self._records_max)

    def note(self, fitted: int, *, cut: bool) -> None:
        """Take note of a batch; ``cut``: the next message did not fit into it."""
        self.full = fitted if cut else max(self.full, fitted)

    def is_worth_a_frame(self, pending: int) -> bool:
        """Return whether to send so many messages beside a batch in flight."""
        return pending * 2 >= self.full

    def are_few(self, count: int) -> bool:
        """Return whether so many messages, in flight and pending, need no further batch soon."""
        return count * _FEW_PART < self.full

    def lingers_until(self, pending: Sequence[SendFuture], now: float) -> float:
        """Return until when to wait for more than these messages, at least one; 0: do not wait.

        A message for whose outcome somebody waits, or which has less time left than a linger takes,
        keeps the batch from waiting.
        """
        linger_s = self._linger_s
        if not linger_s:
            return 0.0
        until = pending[0].appended_at + linger_s
        hurried_at = now + linger_s
        if (
            until <= now
            or len(pending) >= self._records_max
            or bytes_of(pending) + len(pending) * RECORD_HEADER_BYTES >= self._bytes_max
            or any(each.waiters is not None or each.deadline <= hurried_at for each in pending)
        ):
            return 0.0
        return until
