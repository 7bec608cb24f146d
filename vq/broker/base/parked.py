"""Requests that wait in a channel until its high watermark moves, or its log grows."""

from typing import Protocol

from vq.log_lines import get_logger
from vq.model import TopicPartition

logger = get_logger(__name__)


class Woken(Protocol):
    """A request that waits in one or more ``Parked``."""

    def wake(self) -> None:
        """Look again: something that readers, or copies, depend on changed."""
        ...


#: Those that wait for the same, in the order in which they came. Each takes itself out.
Parked = dict[Woken, None]


def wake_all(partition: TopicPartition, parked: Parked) -> None:
    """Have all look again; one that fails is taken out."""
    for waiting in list(parked):
        try:
            waiting.wake()
        except Exception:
            logger.exception("waking a reader failed", partition=partition)
            parked.pop(waiting, None)
