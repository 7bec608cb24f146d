"""One change of a partition's files at a time, and each as a whole."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from weakref import WeakValueDictionary

from vq.model import TopicPartition


class FileChanges:
    """The locks of the partitions whose files somebody changes. Loop-bound."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, int], asyncio.Lock] = WeakValueDictionary()

    def lock(self, partition: tuple[str, int]) -> asyncio.Lock:
        """Return the lock held while a log of a partition is opened, sealed, put aside or closed.

        One for each partition: a slow disk, or a long recovery, of one holds up no other.
        """
        lock = self._locks.get(partition)
        if lock is None:
            lock = self._locks[partition] = asyncio.Lock()
        return lock

    def is_changing(self, partition: TopicPartition) -> bool:
        """Whether a log of the partition is being opened, cut or put aside at this moment."""
        lock = self._locks.get(partition)
        return lock is not None and lock.locked()

    async def whole(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the whole of a change of files, also if whoever waits for it is cancelled."""
        await asyncio.shield(asyncio.get_running_loop().create_task(work))
