"""The files of bytes that this node cut from its logs: found, listed, read and deleted (DIVERGED).

``vq.store.care.divergence`` makes them. They are looked for at a start, after each cut, and
whenever somebody asks: an operator may remove one by hand. All work on files is done on a lane.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from vq import limits
from vq.broker.base.facts import Fact, Facts, gauge
from vq.broker.base.runner import Lane, Runner
from vq.broker.base.session import Session
from vq.broker.base.tasks import Tasks
from vq.broker.logs.partitions import Partitions
from vq.errors import InvalidRequest
from vq.limits import is_valid_name
from vq.log_lines import get_logger
from vq.remoting import wire_pb2 as wire
from vq.remoting.connection import RequestId
from vq.shown import shown
from vq.store.care.divergence import Diverged, diverged
from vq.store.disk.disk import Disk

logger = get_logger(__name__)

#: Files in one answer; the client asks for the rest.
FILES_PER_ANSWER: Final = 200
_LOG_NAME: Final = re.compile(r"(\d{1,9})(\.from-\d{1,20})?")


class DivergedFiles:
    """The files of a node. Loop-bound.

    Args:
        data: Its data directories.
        disk: The disk.
        runner: For work on files.
        tasks: For looks at the directories.
        partitions: Cut from their logs, and tell what is lost while the files are there.
    """

    def __init__(
        self,
        data: Sequence[Path],
        disk: Disk,
        runner: Runner,
        tasks: Tasks,
        partitions: Partitions,
    ) -> None:
        self._data = data
        self._disk = disk
        self._runner = runner
        self._tasks = tasks
        self._found: dict[str, Diverged] = {}
        self._partitions = partitions
        partitions.logs.cut.listen(self.look_soon)

    @property
    def count(self) -> int:
        """How many there were at the last look."""
        return len(self._found)

    @property
    def size(self) -> int:
        """How many bytes of batches they held."""
        return sum(each.end_offset - each.start_offset for each in self._found.values())

    def facts(self) -> Iterator[Facts[Any]]:
        """Return what it tells."""
        yield Facts[DivergedFiles].of(
            self,
            Fact(read=lambda files: files.count, status="diverged_files"),
            gauge(
                "vq_diverged_bytes",
                "Bytes that were cut from logs of this node and are kept aside.",
                lambda files: files.size,
                status="diverged_bytes",
            ),
        )

    def look_soon(self) -> None:
        """Look for them beside everything else."""
        self._tasks.start(self._try_to_look())

    async def _try_to_look(self) -> None:
        try:
            await self._look()
        except OSError as error:
            logger.warning("files of cut batches cannot be listed", error=error)

    async def _look(self) -> None:
        self._found = await self._runner.run(self._scan, Lane.READ)

    def _scan(self) -> dict[str, Diverged]:
        """Return all files by their path below their data directory, sorted; blocks.

        A partition lies in one of them, so that a path names one file.
        """
        known = self._found
        found: dict[str, Diverged] = {}
        for data in self._data:
            for topic in filter(is_valid_name, self._names(data)):
                for log in filter(_LOG_NAME.fullmatch, self._names(data / topic)):
                    for each in diverged(data / topic / log, self._disk, known=known.values()):
                        found[str(each.path.relative_to(data))] = each
        return dict(sorted(found.items()))

    def _names(self, directory: Path) -> list[str]:
        try:
            return self._disk.listdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            return []  # it was just removed, or is a file

    # Requests -----------------------------------------------------------------------------------
    async def answer(
        self, _session: Session, _request_id: RequestId, header: wire.DivergedRequest
    ) -> wire.DivergedResponse | tuple[wire.DivergedResponse, bytes]:
        """Answer a DIVERGED."""
        await self._look()
        if not header.file:
            return self._list(header.after)
        file = self._found.get(header.file)
        if file is None:
            raise InvalidRequest(
                f"there is no file {shown(header.file)} of cut batches on this node"
            )
        if header.delete:
            await self._delete(file)
            return wire.DivergedResponse()
        body = await self._read(file, header.position, header.max_bytes)
        return wire.DivergedResponse(files=[_told(header.file, file)]), body

    def _list(self, after: str) -> wire.DivergedResponse:
        names = [name for name in self._found if name > after]
        return wire.DivergedResponse(
            files=[_told(name, self._found[name]) for name in names[:FILES_PER_ANSWER]],
            more=len(names) > FILES_PER_ANSWER,
        )

    async def _read(self, file: Diverged, position: int, max_bytes: int) -> bytes:
        def read() -> bytes:
            opened = self._disk.open(file.path)
            try:
                return opened.pread(position, length)
            finally:
                opened.close()

        rest = file.end_offset - file.start_offset - position
        length = min(max_bytes, rest, limits.FETCH_BYTES_MAX)
        return await self._runner.run(read, Lane.READ) if length > 0 else b""

    async def _delete(self, file: Diverged) -> None:
        def delete() -> None:
            self._disk.unlink(file.path)
            self._disk.sync_directory(file.path.parent)

        await self._runner.run(delete, Lane.READ)
        logger.warning(
            "cut batches are deleted on request of an operator",
            file=file.path,
            messages=file.messages,
        )
        await self._look()
        await self._partitions.look_at_losses()


def _told(name: str, file: Diverged) -> wire.DivergedFile:
    topic, log, _ = name.split("/")
    return wire.DivergedFile(
        file=name,
        topic=topic,
        partition=int(log.partition(".")[0]),
        start_offset=file.start_offset,
        end_offset=file.end_offset,
        size_bytes=file.end_offset - file.start_offset,
        messages=file.messages,
        first_epoch=file.first_epoch,
        last_epoch=file.last_epoch,
        first_append_ms=file.first_append_ms,
        last_append_ms=file.last_append_ms,
    )
