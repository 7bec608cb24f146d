"""Data on the disks of a node of topics that are not there any more: moved, kept, purged.

Data of a topic that ZooKeeper says was deleted go to the trash, and from there after a while. Data
of one that ZooKeeper does not have, and does not say was deleted, are kept for an operator:
ZooKeeper may have been restored from a backup.
"""

from collections.abc import Iterable, Sequence, Set
from functools import partial
from pathlib import Path

from vq.broker.base.runner import Lane, Runner
from vq.broker.logs.logs import Logs
from vq.broker.logs.topics_view import TopicsView
from vq.coordination.topics.topics import deleted_among, was_deleted
from vq.coordination.tree.coordinator import Coordinator
from vq.errors import DirectoryRefused, DiskFull
from vq.log_lines import get_logger
from vq.store.directory.directory import Trashed

logger = get_logger(__name__)


class Leftovers:
    """What a node has of topics that are gone. Loop-bound.

    Args:
        logs: The files.
        view: The topics that ZooKeeper has.
        coordinator: A started coordinator.
        runner: For work on the files.
    """

    def __init__(
        self, logs: Logs, view: TopicsView, coordinator: Coordinator, runner: Runner
    ) -> None:
        self._logs = logs
        self._view = view
        self._coordinator = coordinator
        self._runner = runner
        self._kept_trash: set[Path] = set()  # told once

    async def gone(self, topic_ids: Iterable[str]) -> Set[str]:
        """Return which topics with these ids were removed for good.

        Raises:
            CoordinationError: ZooKeeper cannot be asked.
        """
        unknown = set(topic_ids) - {view.id for view in self._view.topics.values()}
        return await deleted_among(self._coordinator, unknown) if unknown else set()

    async def move_away(self, topic: str, topic_id: str) -> None:
        """Move a topic's data: to the trash if the tree says it was deleted, else to stay."""
        deleted = await was_deleted(self._coordinator, topic_id)
        path = await self._runner.run(
            lambda: self._logs.move_topic(topic, topic_id, keep=not deleted)
        )
        if path is None:
            return  # there are no data of that topic here
        if deleted:
            logger.warning(
                "topic was deleted, its data are moved", topic=topic, topic_id=topic_id, path=path
            )
        else:
            logger.warning(
                "topic has another id and was not deleted, its data are kept",
                topic=topic,
                topic_id=topic_id,
                path=path,
                hint="was ZooKeeper restored from a backup?",
            )

    async def due(self, keep_s: float) -> list[Trashed]:
        """Return what has lain in the trash for a while; look again and again.

        Raises:
            OSError: The trash cannot be read.
        """
        return await self._runner.run(lambda: self._logs.due_trash(keep_s), Lane.PURGE)

    async def purge(self, due: Sequence[Trashed]) -> None:
        """Remove data from the trash, of topics that were removed.

        That a topic was removed is decided in ZooKeeper, and asked there once more: it may have
        been restored meanwhile. An operator may take data back from the trash until then.

        Raises:
            OSError: The trash cannot be emptied.
            CoordinationError: ZooKeeper cannot be asked.
        """
        known = {view.id for view in self._view.topics.values()}
        removed = 0
        for each in due:
            if each.topic_id in known or not await was_deleted(self._coordinator, each.topic_id):
                if each.path not in self._kept_trash:
                    self._kept_trash.add(each.path)
                    logger.warning(
                        "data stay in the trash, ZooKeeper does not say that the topic was deleted",
                        path=each.path,
                        hint="was ZooKeeper restored from a backup?",
                    )
                continue
            remove = partial(self._logs.remove_trash, each)
            lane = Lane.UPLOAD if each.places else Lane.PURGE
            removed += await self._runner.run(remove, lane, each.places)
        if removed:
            logger.info("data of deleted topics removed", topics=removed)

    async def look_for_strangers(self) -> None:
        """Look at data of topics that ZooKeeper does not have: deleted meanwhile, or to be kept.

        Raises:
            CoordinationError: ZooKeeper cannot be asked.
        """
        try:
            found = await self._runner.run(self._logs.local_topics)
            kept = await self._runner.run(self._logs.kept)
        except OSError as error:
            logger.warning("data directory cannot be listed", error=error)
            return
        for local in found:
            if local.topic in self._view.topics or local.topic in self._view.problems:
                continue
            if local.topic_id and await was_deleted(self._coordinator, local.topic_id):
                try:
                    await self.move_away(local.topic, local.topic_id)
                except (OSError, DiskFull, DirectoryRefused) as error:
                    logger.warning(
                        "data of a deleted topic stay until the next start",
                        topic=local.topic,
                        error=error,
                    )
            else:
                logger.warning(
                    "topic is gone from ZooKeeper and was not deleted, its data are kept",
                    topic=local.topic,
                    topic_id=local.topic_id or None,
                    hint="was ZooKeeper restored from a backup?",
                )
        for path in kept:
            logger.warning(
                "kept data found, ZooKeeper does not say that the topic was deleted", path=path
            )
