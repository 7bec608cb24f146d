"""The consumer group to which a stream commits its progress, for those who watch its lag.

Spark's checkpoint is what a restart goes by; the group only shows it. So an error of ZooKeeper does
not end the query: what was not written is written the next time.
"""

import logging
import time
from typing import Final

from pyspark_vq.connection import factory_of
from pyspark_vq.options import ReadOptions
from pyspark_vq.positions import Positions
from vq import TopicPartition
from vq.errors import CoordinationError

logger = logging.getLogger("pyspark_vq")
#: Micro-batches may be short, and ZooKeeper is shared: not more than one commit in this time.
PAUSE_S: Final = 1.0


class GroupProgress:
    """What is committed, and what is to be; without the option ``group`` nothing is done."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._written: dict[TopicPartition, tuple[str, int]] = {}
        self._due: Positions | None = None
        self._not_before = 0.0

    def note(self, done: Positions, *, at_once: bool = False) -> None:
        """Take the places before which all is done; commit them now or later.

        Raises:
            InvalidState: The group has members.
        """
        if self._options.group is None:
            return
        self._due = done
        if at_once or time.monotonic() >= self._not_before:
            self.commit()

    def commit(self) -> None:
        """Commit what was noted.

        Raises:
            InvalidState: The group has members.
        """
        group, due = self._options.group, self._due
        if group is None or due is None:
            return
        changed = {
            partition: (each.id, at)
            for name, each in due.topics.items()
            for number, at in enumerate(each.at)
            if self._written.get(partition := TopicPartition(name, number)) != (each.id, at)
        }
        self._not_before = time.monotonic() + PAUSE_S
        try:
            if changed:
                factory_of(self._options.connect).admin.commit_progress(
                    group,
                    {partition: at for partition, (_, at) in changed.items()},
                    topic_ids={name: each.id for name, each in due.topics.items()},
                    tags=self._options.wanted.tags,
                    where=self._options.wanted.where,
                )
        except CoordinationError as error:
            logger.warning("group %s: progress is committed later: %s", group, error)
            return
        self._written |= changed
        self._due = None
