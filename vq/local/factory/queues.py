"""The queues below one directory, by topic, and which group reads which."""

import os
import threading
from pathlib import Path

from vq.errors import InvalidArgument, InvalidState
from vq.local.queue import LocalQueue
from vq.local.settings import LocalQueueConfig, given_directory
from vq.message_filter import Filter
from vq.model import check_name


class LocalQueues:
    """The queues below one directory. Any thread.

    Args:
        directory: Has a directory for each topic.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = given_directory(directory)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._queues: dict[str, LocalQueue] = {}
        self._groups: dict[str, tuple[str, Filter]] = {}
        self._closed = False

    def queue(self, topic: str) -> LocalQueue:
        """Return the queue of a topic, which is opened when it is first asked for.

        Raises:
            InvalidArgument: The name is not valid.
            InvalidState: The factory is shut down.
            DirectoryRefused: Another process has it open.
        """
        found = self._queues.get(topic)
        if found is not None:
            return found
        check_name("topic", topic)
        with self._lock:
            if self._closed:
                raise InvalidState("the factory is shut down")
            if topic not in self._queues:
                directory = self._directory / topic
                self._queues[topic] = LocalQueue(directory, LocalQueueConfig(name=topic))
            return self._queues[topic]

    def may_wait(self, topic: str) -> bool:
        """Whether a message to a topic may wait now, for the opening of its queue or its disk."""
        found = self._queues.get(topic)
        return found is None or found._core.commits.intake_full

    def join(self, topic: str, group: str, wanted: Filter) -> None:
        """Note who reads a topic: a message goes to one taker, so there is one group.

        Raises:
            InvalidArgument: Another group reads it, or this one with another filter.
        """
        with self._lock:
            first, its_filter = self._groups.setdefault(topic, (group, wanted))
        if first != group:
            raise InvalidArgument(
                f"group {group!r} cannot read topic {topic!r}, which group {first!r} reads: in a "
                "local queue each message goes to one taker; give each group a topic of its own"
            )
        if its_filter != wanted:
            raise InvalidArgument(
                f"another consumer of group {group!r} reads topic {topic!r} with another "
                "message_filter: what passes one of them would be lost to the other; give all "
                "members of a group the same"
            )

    @property
    def directory(self) -> Path:
        """Of all queues."""
        return self._directory

    @property
    def forked(self) -> bool:
        """Whether this process is a child of the one that made it: all of it is its parent's."""
        return self._pid != os.getpid()

    @property
    def opened(self) -> list[LocalQueue]:
        """Those that are open."""
        return list(self._queues.values())

    def refuse(self) -> list[LocalQueue]:
        """Give no queue any more; return those that are open, which the caller closes."""
        with self._lock:
            self._closed = True
            opened, self._queues = self.opened, {}
        return opened
