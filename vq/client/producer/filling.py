"""Decides whether the pending messages of a partition are worth a batch now.

A small batch behind another one would wait for the flush of that one at the broker, and a batch
costs producer, broker and consumer the same work, however small it is.
"""

#: If less than this part of a batch is in flight and pending, further messages wait for the answer.
_FEW_PART = 8


class Filling:
    """How many messages fill a batch of one partition. Only the queue's owner uses it.

    Args:
        records_max: Most messages of a batch.

    Attributes:
        full: How many messages filled a recent batch; 1 to ``records_max``.
    """

    def __init__(self, records_max: int) -> None:
        self.full = records_max
        self._records_max = records_max

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
