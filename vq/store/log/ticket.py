"""One flush of one log: what the flusher thread does, copied out of the log beforehand.

The log fills a ticket on the event loop (``Log.begin_sync``), any thread runs it, and the log takes
it back on the event loop (``Log.finish_sync``). A ticket never looks at the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vq.log_lines import get_logger
from vq.store.archive.archive import ArchiveFiles
from vq.store.archive.archive_place import drop_archive
from vq.store.disk.disk import Disk, File
from vq.store.disk.file_system import FileSystem
from vq.store.log.begun import Beginning
from vq.store.log.block import PASSING_ERRNOS, Block
from vq.store.log.checkpoint import Checkpoint
from vq.store.log.log_config import partition_of
from vq.store.records.format import (
    ARCHIVE_SUFFIX,
    CHECKPOINT_NAME,
    DROPPED_SUFFIX,
    INDEX_SUFFIX,
    KEYS_SUFFIX,
)

logger = get_logger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class SyncTicket:
    """What one flush has to make durable, and what is true once it has.

    Attributes:
        offset: Everything before it is durable after ``run``.
        messages: Messages of the log before that offset, since its first byte.
        files: To be synced; ``blocks`` are the same with the length, and the size of the file, that
            become durable.
        file_system: What all files are on; None if they differ, or it cannot be synced as a whole.
        directories: Whose new names are to be synced.
        indexes: Of blocks closed lately, written together with the checkpoint.
        first_checkpoint: Written when the log began, to be synced.
        checkpoint: To be written, every now and then.
        doomed: Files of blocks that retention dropped.
        superseded: Files of blocks whose bytes are elsewhere now: archived, or restored.
        discards: Set by ``run``: marks of zips elsewhere that are to be removed.
        log_is_empty: No block is left, so the checkpoint alone says where the log goes on.
        beginning: Noted by ``run`` when the log's first batch is durable; to be saved then.
        checkpoint_written: Set by ``run``.
    """

    directory: Path
    disk: Disk
    offset: int
    messages: int
    files: list[File] = field(default_factory=list)
    file_system: FileSystem | None = None
    blocks: list[tuple[Block, int, int]] = field(default_factory=list)
    directories: Sequence[Path] = ()
    indexes: Sequence[tuple[Block, bytes]] = ()
    first_checkpoint: Path | None = None
    checkpoint: Checkpoint | None = None
    doomed: Sequence[Path] = ()
    superseded: Sequence[Path] = ()
    discards: list[Path] = field(default_factory=list)
    log_is_empty: bool = False
    beginning: Beginning | None = None
    checkpoint_written: bool = False

    def add(self, block: Block, file: File) -> None:
        """Have all that is in an open block now made durable."""
        if not self.files:
            self.file_system = file.file_system
        elif file.file_system is not self.file_system:
            self.file_system = None
        self.files.append(file)
        self.blocks.append((block, block.length, block.allocated))

    @property
    def only_data(self) -> bool:
        """Whether nothing but bytes of files is to be made durable."""
        return (
            self.checkpoint is None
            and self.first_checkpoint is None
            and self.beginning is None
            and not self.directories
        )

    @property
    def descriptor(self) -> int:
        """What ``fdatasync`` of is all that ``run`` does; -1: it does more, or nothing."""
        files = self.files
        return files[0].descriptor if len(files) == 1 and self.only_data else -1

    def needs_metadata(self, block_bytes: int) -> bool:
        """Whether more is new than bytes in blocks of the file system that are durable already.

        A file that has grown needs it, too, even if its new bytes lie in an old block: they are
        lost with the new size.
        """
        for block, length, allocated in self.blocks:
            if allocated != block.synced_allocated:
                return True
            if (length - 1) // block_bytes != (block.synced_length - 1) // block_bytes:
                return True
        return bool(self.directories)

    def run(self, *, synced: FileSystem | None = None) -> None:
        """Make it durable. Runs on any thread, once, while the log goes on being appended to.

        Args:
            synced: What is on this file system was made durable after ``begin_sync``: only what
                is elsewhere (a link, a mount) and the checkpoint are left.

        Raises:
            OSError: It may or may not be durable, or an index or checkpoint could not be written
                for another reason than missing space. Hand the error to ``Log.fail``: trying again
                proves nothing.
        """
        for file in self.files:
            if synced is None or file.file_system is not synced:
                file.datasync()
        path = self.first_checkpoint
        if path and (synced is None or self.disk.file_system(path.parent) is not synced):
            self._sync_first_checkpoint(path)
        for directory in self.directories:
            if synced is None or self.disk.file_system(directory) is not synced:
                self.disk.sync_directory(directory)
        if self.checkpoint is not None:
            self._save_work(self.checkpoint)
        if self.beginning is not None:
            self.beginning.note()

    def _sync_first_checkpoint(self, path: Path) -> None:
        """Make the first manifest durable; without a file descriptor, leave it to the next one."""
        try:
            file = self.disk.open(path)
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                raise
            logger.warning(
                "manifest cannot be synced", partition=partition_of(self.directory), error=error
            )
            return
        try:
            file.datasync()
        finally:
            file.close()

    def _save_work(self, checkpoint: Checkpoint) -> None:
        """Write indexes and checkpoint, then delete what retention dropped.

        Without space (or a file descriptor) no message is lost: it is logged, and the next
        checkpoint tries again, with a file of its own. On a full disk the dropped blocks are
        emptied first, which frees the space that writing needs. Each leaves a mark: a block that
        the last checkpoint names and that is missing without one is damage. Only a log without any
        block left must wait for its checkpoint, which alone says where it goes on.

        Any other error ends the log like one of its blocks would, although all this could be made
        again: a rename or a directory whose sync failed may be reported as done the next time with
        the name gone, and that directory is where the next block gets its name.
        """
        if not self._written(checkpoint):
            if self.log_is_empty or not self.doomed:
                return
            self._empty_dropped()
            if not self._written(checkpoint):
                return
        self._delete()

    def _written(self, checkpoint: Checkpoint) -> bool:
        """Write indexes and checkpoint; return whether there was space for them."""
        try:
            for block, data in self.indexes:
                self.disk.write_atomic(block.index_path, data)
            self.disk.write_atomic(self.directory / CHECKPOINT_NAME, checkpoint.to_bytes())
        except OSError as error:
            if error.errno not in PASSING_ERRNOS:
                raise
            logger.warning(
                "checkpoint cannot be written", partition=partition_of(self.directory), error=error
            )
            return False
        self.checkpoint_written = True
        return True

    def _empty_dropped(self) -> None:
        """Free the space of what retention dropped, and leave marks that say so."""
        try:
            marked = [(path, path.with_suffix(DROPPED_SUFFIX)) for path in self.doomed]
            for path, mark in marked:
                if self.disk.exists(path):
                    if path.suffix == ARCHIVE_SUFFIX:
                        self._drop_archive(path)
                        self.disk.write_atomic(mark, b"")
                    else:
                        self.disk.rename(path, mark)
            self.disk.sync_directory(self.directory)
            for _, mark in marked:
                # Replace it by an empty file: truncating it would unmap pages of answers that wait
                # to be sent.
                if self.disk.exists(mark) and self.disk.size(mark):
                    self.disk.write_atomic(mark, b"")
        except OSError as error:
            logger.warning(
                "dropped blocks cannot be deleted yet",
                partition=partition_of(self.directory),
                error=error,
            )

    def _delete(self) -> None:
        """Delete what retention dropped. What stays costs space only, and is tried again."""
        try:
            self._delete_dropped()
        except OSError as error:
            logger.warning(
                "dropped blocks cannot be deleted yet",
                partition=partition_of(self.directory),
                error=error,
            )

    def _delete_dropped(self) -> None:
        """Delete the dropped blocks in rising order, and their indexes.

        What holds the bytes of a block no longer goes as well. What a start cut from a block stays:
        an operator, or a copy that has it, decides on that.
        """
        for path in self.superseded:
            self._delete_file(path)
        self.superseded = []
        if not self.doomed:
            return
        for path in self.doomed:
            self._delete_file(path)
            for suffix in (INDEX_SUFFIX, KEYS_SUFFIX, DROPPED_SUFFIX):
                self._delete_file(path.with_suffix(suffix))
            # Of a block file, too: one that a start has not used, or that could not be removed.
            self._drop_archive(path)
        self.doomed = []

    def _delete_file(self, path: Path) -> None:
        """Delete a file, or a whole archive, if it is there.

        The flushes of all logs wait meanwhile, so the space of the file comes back elsewhere.
        """
        if path.suffix == ARCHIVE_SUFFIX:
            self._drop_archive(path)
        elif self.disk.exists(path):
            self.disk.unlink_large(path)

    def _drop_archive(self, path: Path) -> None:
        if drop_archive(self.disk, path):
            self.discards.append(ArchiveFiles.of(path).discard)
