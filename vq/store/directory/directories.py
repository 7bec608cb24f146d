"""The data directories of one broker: the main one, and further ones on other disks.

    <main>/@identity   names the further ones
    <main>/@logs …     what is of the node as a whole: begun logs, epoch, unflushed
    <main>/<topic>/    topic.json, and logs
    <further>/@identity, @lock, @trash, <topic>/…

A partition has all its logs in one of them, its *home*: the usual one, earlier ranges, what was cut
or damaged. A partition that has nothing on any disk gets the one with the most room (``room``).

A further directory that is not given at a start is missed: without it, its partitions would begin
anew, empty. So the start is refused, unless the caller says that the node goes on without it. Then
the logs that were begun and are nowhere are opened in quarantine, as any that are lost
(``begun``).

Threads: any; a lock is held while homes are looked for.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from vq.clock import Clock
from vq.errors import Busy, DirectoryRefused, VqError
from vq.store.archive.archive_owner import ArchiveOwner
from vq.store.directory.directory import DataDirectory, LocalTopic, Trashed, unusable
from vq.store.directory.identity import Identity
from vq.store.directory.room import Room, roomiest
from vq.store.disk.disk import Disk
from vq.store.log.begun import BegunLogs
from vq.store.log.unflushed import Unflushed
from vq.store.records.format import DAMAGED_MARK


class DirectoryState(Protocol):
    """How a data directory is; in practice a broker's ``DataPlace``.

    Attributes:
        refusal: Why it takes no new logs now, None: it does.
        silent: It does not answer, so that a call there may hang. What has to look there is refused
            with ``Busy``.
    """

    @property
    def refusal(self) -> VqError | None:
        """See above."""
        ...

    @property
    def silent(self) -> bool:
        """See above."""
        ...


class DataDirectories:
    """The open data directories of one broker, the main one first. ``close`` them.

    Args:
        directories: The main one first.
        disk: Where they are.
        conditions: How each of them is now; one that is not named is well.
    """

    def __init__(
        self,
        directories: Sequence[DataDirectory],
        disk: Disk,
        conditions: Mapping[Path, DirectoryState] = MappingProxyType({}),
    ) -> None:
        """Use ``DataDirectories.open``."""
        self._directories = tuple(directories)
        self._main = directories[0]
        self._disk = disk
        self._lock = threading.Lock()
        # topic -> number of a partition -> where it lies; more than one: it cannot be told
        self._homes: dict[str, dict[int, list[DataDirectory]]] = {}
        self._counts: Counter[DataDirectory] = Counter()  # of these
        self._conditions = conditions

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        cluster: str,
        group: str,
        node: str,
        disk: Disk,
        *,
        without: Collection[str] = (),
        adopt: bool = False,
        spend: Callable[[Callable[[], None], str], None] = lambda write, _: write(),
        conditions: Mapping[Path, DirectoryState] = MappingProxyType({}),
    ) -> "DataDirectories":
        """Lock all ``paths``, making them if needed, and check that they belong together.

        Args:
            paths: The main one first.
            cluster, group, node: Whose they are.
            disk: Where they are.
            without: Ids of further ones that the node goes on without, from now on.
            adopt: See ``ArchiveOwner.load``.
            spend: Calls what writes to the main one, and says what that is for; on a full disk,
                which a further one is added for, perhaps, it finds some space.
            conditions: How each of them is, from now on.

        Raises:
            DirectoryRefused: See ``DataDirectory.open``; or one that belongs to it is not given, or
                two of them cannot be used together.
            DiskFull: ``spend`` has found no space.
        """
        _check_apart(paths)
        opened: list[DataDirectory] = []
        try:
            for path in paths:
                main = opened[0] if opened else None
                opened.append(
                    DataDirectory.open(path, cluster, group, node, disk, main=main, adopt=adopt)
                )
            _check_complete(opened, without)
            further = {each.identity.id: str(each.path) for each in opened[1:]}
            try:
                spend(
                    lambda: opened[0].name_further(further),
                    "which directories belong together cannot be stored",
                )
            except OSError as error:
                raise unusable(opened[0].path, error) from error
        except BaseException:
            for each in opened:
                each.close()
            raise
        return cls(opened, disk, conditions)

    @property
    def path(self) -> Path:
        """The main directory."""
        return self._main.path

    @property
    def paths(self) -> list[Path]:
        """All of them, the main one first."""
        return [each.path for each in self._directories]

    @property
    def ids(self) -> dict[Path, str]:
        """Their ids."""
        return {each.path: each.identity.id for each in self._directories}

    @property
    def identity(self) -> Identity:
        """That of the main directory: it stands for all."""
        return self._main.identity

    @property
    def begun(self) -> BegunLogs:
        """Which logs were begun here, in whichever of them."""
        return self._main.begun

    @property
    def archives(self) -> ArchiveOwner:
        """Which archives at URLs are the node's own."""
        return self._main.archives

    @property
    def unflushed(self) -> Unflushed:
        """Whether a loss of power may have taken something, from whichever of them."""
        return self._main.unflushed

    def close(self) -> None:
        """Give the locks back. May be called twice."""
        for each in self._directories:
            each.close()

    def _takes(self, path: Path) -> bool:
        """Whether a directory takes new logs now."""
        condition = self._conditions.get(path)
        return condition is None or condition.refusal is None

    def _is_silent(self, path: Path) -> bool:
        """Whether a directory does not answer."""
        condition = self._conditions.get(path)
        return condition is not None and condition.silent

    @property
    def all_answer(self) -> bool:
        """Whether all of them answer."""
        return not any(self._is_silent(each.path) for each in self._directories)

    def _check_answers(self, directories: Sequence[DataDirectory]) -> None:
        """Return if all of these answer.

        Raises:
            Busy: One does not.
        """
        for each in directories:
            if self._is_silent(each.path):
                raise Busy(f"the data directory {each.path} does not answer")

    # Homes --------------------------------------------------------------------------------------
    def claim(self, topic: str, partition: int, topic_id: str) -> None:
        """Make sure that a partition's logs can lie in its home.

        Raises:
            NamesakeFound, DirectoryRefused, OSError: See ``DataDirectory.claim_topic``; or the
                partition lies in several of them.
            Busy: One of them does not answer; the partition may lie there.
        """
        self._check_answers(self._directories)
        for each in self._directories[1:] and self._directories:
            if self._disk.exists(each.path / topic):
                each.claim_topic(topic, topic_id)
        if not self.choose_again(topic, partition, topic_id):
            self._home(topic, partition).claim_topic(topic, topic_id)

    def home(self, topic: str, partition: int) -> Path:
        """Return the directory that has, or will have, a partition's logs.

        Raises:
            DirectoryRefused: The partition lies in several of them.
        """
        return self._home(topic, partition).path

    def log_directory(self, topic: str, partition: int) -> Path:
        """Return the directory for one partition's log, which need not exist.

        Raises:
            InvalidArgument: The topic's name may not name a directory.
            DirectoryRefused: The partition lies in several of them.
        """
        return self._home(topic, partition).log_directory(topic, partition)

    def _home(self, topic: str, partition: int) -> DataDirectory:
        if len(self._directories) == 1:
            return self._main
        with self._lock:
            homes = self._homes.get(topic)
            if homes is None or partition not in homes:
                self._check_answers(self._directories)
            if homes is None:
                homes = self._homes[topic] = self._find(topic)
            found = homes.get(partition)
            if found is None:
                home = self._choose()
                found = homes[partition] = [home]
                self._counts[home] += 1
        if len(found) > 1:
            places = " and ".join(str(each.path / topic / str(partition)) for each in found)
            raise DirectoryRefused(
                f"partition {topic}-{partition} lies in {places}: this broker cannot tell which "
                "one is its log. Nothing was changed. Stop the broker and move one of them away"
            )
        return found[0]

    def choose_again(self, topic: str, partition: int, topic_id: str) -> bool:
        """Give a partition that lies nowhere yet another home, if its own takes no new logs now.

        Returns whether it has; its logs can lie there.

        Raises:
            DirectoryRefused, OSError, Busy: See ``claim``.
        """
        if len(self._directories) == 1:
            return False
        home = self._home(topic, partition)
        self._check_answers([home])
        if self._takes(home.path):  # asked first: a topic may have thousands of names to list
            return False
        if str(partition) in {name.partition(".")[0] for name in self._names(home.path / topic)}:
            return False
        with self._lock:
            self._counts[home] -= 1
            home = self._choose()
            self._counts[home] += 1
            self._homes[topic][partition] = [home]
        home.claim_topic(topic, topic_id)
        return True

    def _find(self, topic: str) -> dict[int, list[DataDirectory]]:
        """Return where the partitions of a topic lie; an empty directory holds nothing."""
        homes: dict[int, list[DataDirectory]] = {}
        for each in self._directories:
            directory = each.path / topic
            for name in self._names(directory):
                number = name.partition(".")[0]
                if not number.isdecimal() or DAMAGED_MARK in name:
                    continue
                if self._names(directory / name):
                    there = homes.setdefault(int(number), [])
                    if each not in there:
                        there.append(each)
                        self._counts[each] += 1
        return homes

    def _names(self, directory: Path) -> list[str]:
        disk = self._disk
        if not disk.exists(directory) or not disk.is_directory(directory):
            return []
        return disk.listdir(directory)

    def _choose(self) -> DataDirectory:
        """Return where a partition goes that lies nowhere."""
        rooms = [
            Room(self._free(each), self._counts[each], self._takes(each.path))
            for each in self._directories
        ]
        return self._directories[roomiest(rooms)]

    def _free(self, directory: DataDirectory) -> int:
        try:
            return self._disk.free_space(directory.path)[0]
        except OSError:
            return 0

    # Topics -------------------------------------------------------------------------------------
    def topic_directories(self, topic: str) -> Iterator[Path]:
        """Yield the directories of a topic that are there."""
        for each in self._directories:
            path = each.path / topic
            if self._disk.exists(path):
                yield path

    def stored_topic_id(self, topic: str) -> str:
        """Return the id of the topic whose data lie under a name; empty if none or not known.

        Raises:
            Busy: One of them does not answer.
        """
        self._check_answers(self._directories)
        return next(filter(None, (each.stored_topic_id(topic) for each in self._directories)), "")

    def topics(self) -> list[LocalTopic]:
        """Return what lies in them, sorted by topic and id."""
        found: dict[tuple[str, str], set[int]] = {}
        for each in self._directories:
            for local in each.topics():
                found.setdefault((local.topic, local.topic_id), set()).update(local.partitions)
        return [
            LocalTopic(*key, tuple(sorted(partitions))) for key, partitions in sorted(found.items())
        ]

    def topic_ids(self) -> set[str]:
        """Return the ids of all topics that have data here, those out of the way included."""
        return {topic_id for each in self._directories for topic_id in each.topic_ids()}

    def move_topic(
        self, topic: str, topic_id: str, clock: Clock, *, keep: bool, at: Path
    ) -> Path | None:
        """See ``DataDirectory.move_topic``; out of the way of the directory ``at``.

        Raises:
            Busy: It does not answer.
        """
        [directory] = [each for each in self._directories if each.path == at]
        self._check_answers([directory])
        with self._lock:
            for found in self._homes.pop(topic, {}).values():
                self._counts.subtract(found)
        return directory.move_topic(topic, topic_id, clock, keep=keep)

    def kept(self) -> list[Path]:
        """Return what was moved to ``@kept`` and is still there."""
        return [path for each in self._directories for path in each.kept()]

    def due_trash(self, clock: Clock, keep_s: float) -> list[Trashed]:
        """See ``DataDirectory.due_trash``; of all that can be listed.

        Raises:
            OSError: None of them can be.
        """
        found: list[Trashed] = []
        problems: list[OSError] = []
        for each in self._directories:
            if self._is_silent(each.path):
                continue
            try:
                found += each.due_trash(clock, keep_s)
            except OSError as error:
                problems.append(error)
        if len(problems) == len(self._directories):
            raise problems[0]
        return found

    def remove_trash(self, trashed: Trashed) -> bool:
        """See ``DataDirectory.remove_trash``; not where there is no answer."""
        at = trashed.path.parent.parent
        [directory] = [each for each in self._directories if each.path == at]
        return not self._is_silent(at) and directory.remove_trash(trashed)


def _check_apart(paths: Sequence[Path]) -> None:
    """Return if no data directory lies in another one, where it would be taken for a topic.

    Raises:
        DirectoryRefused: One does.
    """
    for inner in paths:
        for outer in paths:
            if outer.absolute() in inner.absolute().parents:
                raise DirectoryRefused(
                    f"data directory {inner} lies in data directory {outer}: give directories "
                    "beside each other"
                )


def _check_complete(opened: Sequence[DataDirectory], without: Collection[str]) -> None:
    """Return if all further directories are there that the main one names, or are given up.

    Raises:
        DirectoryRefused: One is not, or one is there twice.
    """
    there: dict[str, Path] = {}
    for each in opened[1:]:
        if each.identity.id in there:
            raise DirectoryRefused(
                f"{there[each.identity.id]} and {each.path} have the same id, "
                f"{each.identity.id}: one is a copy of the other. Give only the one that this "
                "node used last"
            )
        there[each.identity.id] = each.path
    for missing, path in opened[0].identity.further.items():
        if missing not in there and missing not in without:
            raise DirectoryRefused(
                f"the data directory with the id {missing}, last at {path}, belongs to this node "
                "and is not among those given: give it, too. If it is lost, or emptied, start once "
                f"with --without-data {missing}: the partitions there are then missing here, and "
                "are copied anew from another node of the group, or stay in quarantine "
                "(docs/howto/use-several-disks.md)"
            )
