"""In which epoch what was read by position was written, as far as answers told it. Pure."""

from vq.model import TopicPartition

#: So many partitions that were read by position are remembered.
_PARTITIONS_MAX = 1_024


class LastRead:
    """In which epoch the last batch was written that was read of each partition; bounded.

    Epochs never fall along the log of a broker group. So all between two offsets was written in one
    epoch if the batches before both were.
    """

    def __init__(self, partitions_max: int = _PARTITIONS_MAX) -> None:
        self._partitions_max = partitions_max
        # Group, epoch, and the first and last offset of which this is known.
        self._known: dict[TopicPartition, tuple[str, int, int, int]] = {}

    def note(self, partition: TopicPartition, group: str, offset: int, epoch: int) -> None:
        """Note the epoch of the batch before ``offset``, on a broker group; 0: not known."""
        known = self._known.pop(partition, None)
        if not epoch:
            return
        if known is None or known[:2] != (group, epoch) or offset < known[2]:
            known = (group, epoch, offset, offset)
        self._known[partition] = (group, epoch, known[2], max(offset, known[3]))
        if len(self._known) > self._partitions_max:
            del self._known[next(iter(self._known))]

    def last(self, partition: TopicPartition, group: str) -> int:
        """Return the last epoch that was noted of a partition; 0: none on this broker group."""
        known = self._known.get(partition)
        return 0 if known is None or known[0] != group else known[1]

    def epoch(self, partition: TopicPartition, group: str, offset: int) -> int:
        """Return the epoch of the batch before ``offset``; 0: not known."""
        known = self._known.get(partition)
        if known is None or known[0] != group or not known[2] <= offset <= known[3]:
            return 0
        return known[1]
