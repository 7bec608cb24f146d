"""One flush of one log: what the flusher thread does, copied out of the log beforehand.

The log fills a ticket on the event loop (``Log.begin_sync``), any thread runs it, and the log takes
it back on the event loop (``Log.finish_sync``). A ticket never looks at the log.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path

from vq.store.block import Block
from vq.store.checkpoint import Checkpoint
from vq.store.disk import Disk, File
from vq.store.format import CHECKPOINT_NAME, CUT_MARK, INDEX_SUFFIX, OFFSET_DIGITS

__all__ = ["SyncTicket"]

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class SyncTicket:
    """What one flush has to make durable, and what may be said once it has.

    Attributes:
        offset: Everything before it is durable after ``run``.
        messages: Messages of the log before that offset, since its first byte.
        files: To be synced; ``blocks`` are the same with the length that becomes durable.
        directories: Whose new names are to be synced.
        indexes: Of blocks closed lately, written together with the checkpoint.
        checkpoint: To be written, every now and then.
        doomed: Files of blocks that retention dropped.
        log_is_empty: No block is left, so the checkpoint alone says where the log goes on.
        checkpoint_written: Set by ``run``.
    """

    directory: Path
    disk: Disk
    offset: int
    messages: int
    files: list[File] = field(default_factory=list)
    blocks: list[tuple[Block, int]] = field(default_factory=list)
    directories: list[Path] = field(default_factory=list)
    indexes: list[tuple[Block, bytes]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    doomed: list[Path] = field(default_factory=list)
    log_is_empty: bool = False
    checkpoint_written: bool = False

    def run(self, *, data_synced: bool = False) -> None:
        """Make it durable. Runs on any thread, once, while the log goes on being appended to.

        Args:
            data_synced: The whole file system was synced after ``begin_sync``: only the checkpoint
                is left to write.

        Raises:
            OSError: It may or may not be durable; hand the error to ``Log.fail``. Trying again
                would prove nothing.
        """
        if not data_synced:
            for file in self.files:
                file.datasync()
            for directory in self.directories:
                self.disk.sync_directory(directory)
        if self.checkpoint is not None:
            self._save_work(self.checkpoint)

    def _save_work(self, checkpoint: Checkpoint) -> None:
        """Write what saves work after a crash, then delete what retention dropped.

        Failing to is no loss of messages, so errors are logged, and the next checkpoint tries
        again. On a full disk the deletion goes first: it makes the room that writing needs. Only a
        log without any block left must wait for its checkpoint, which alone says where it goes on.
        """
        try:
            try:
                self._write(checkpoint)
            except OSError:
                if self.log_is_empty or not self.doomed:
                    raise
                self._delete(checkpoint.start_offset)
                self._write(checkpoint)
            self._delete(checkpoint.start_offset)
        except OSError as error:
            logger.warning("[%s] no checkpoint was written: %s", self.directory.name, error)

    def _write(self, checkpoint: Checkpoint) -> None:
        for block, data in self.indexes:
            self.disk.write_atomic(block.index_path, data)
        self.disk.write_atomic(self.directory / CHECKPOINT_NAME, checkpoint.to_bytes())
        self.checkpoint_written = True

    def _delete(self, start_offset: int) -> None:
        """Delete the dropped blocks in rising order, their indexes, and what was cut from them."""
        if not self.doomed:
            return
        for path in self.doomed:
            for victim in (path, path.with_suffix(INDEX_SUFFIX)):
                if self.disk.exists(victim):
                    self.disk.unlink(victim)
        for name in self.disk.listdir(self.directory):
            digits, mark, _ = name.partition(CUT_MARK)
            is_cut = mark and len(digits) == OFFSET_DIGITS and digits.isdigit()
            if is_cut and int(digits) < start_offset:
                self.disk.unlink(self.directory / name)
        self.doomed = []
