"""The highest epoch this data directory has acted in or followed, stored before that.

A text file of one line, ``<data>/@epoch``, sample:

    vq-epoch 2 17 4d10e8df

The words are: file type, version of this layout, epoch, and CRC-32C of the three words before
(version 1 had none). So a changed digit is damage, not another epoch. It lets a broker notice that
the group's record in ZooKeeper was lost: an epoch that does not rise is no fence.
"""

from collections.abc import Callable
from pathlib import Path

from vq.broker.partition.replica_rules import accepts
from vq.errors import CoordinationError, DirectoryRefused
from vq.log_lines import get_logger
from vq.shown import shown
from vq.store.disk.disk import Disk
from vq.store.records.checked_text import checksum

logger = get_logger(__name__)

_NAME = "@epoch"  # no topic can have this name
_MARK = "vq-epoch"
_VERSION = "2"
_UNCHECKED_VERSION = "1"
_DIGITS_MAX = 20


def read_epoch(data: Path, disk: Disk) -> int:
    """Return the stored epoch, 0 if there never was one.

    Raises:
        DirectoryRefused: The file is damaged, or a newer vq wrote it.
    """
    path = data / _NAME
    if not disk.exists(path):
        return 0
    words = disk.read_bytes(path).decode("ascii", "replace").split()
    known = words[:2] == [_MARK, _VERSION] and words[3:] == [checksum(" ".join(words[:3]))]
    unchecked = len(words) == 3 and words[:2] == [_MARK, _UNCHECKED_VERSION]
    if not (known or unchecked) or not words[2].isdigit() or len(words[2]) > _DIGITS_MAX:
        raise DirectoryRefused(
            f"{path} holds {shown(' '.join(words))}, not '{_MARK} {_VERSION} <epoch> <crc>'; it "
            "was damaged or written by a newer vq"
        )
    return int(words[2])


class EpochFile:
    """Stores the epochs that a process acts in.

    Every batch in a log was written in an epoch that had been stored before. So a directory with
    batches has had this file, and an epoch below theirs is that of an older copy of it.

    Args:
        data: The data directory.
        disk: Where it is.
        check_there: Raises ``OSError`` while the directory is gone: a file in its place would say
            nothing of it.
    """

    def __init__(
        self, data: Path, disk: Disk, check_there: Callable[[], None] = lambda: None
    ) -> None:
        self._data = data
        self._disk = disk
        self._check_there = check_there
        self._in_logs = 0  # the highest epoch of a batch, as far as was looked
        # Compared with the file and then written, with an error: it may be in the file all the
        # same, and is nobody else's.
        self._half_stored = 0

    def check(self, in_logs: int) -> None:
        """Note that a batch of epoch ``in_logs`` lies here, 0: none does; blocks.

        Call it before a group is claimed, so that a node that cannot act claims none.

        Raises:
            DirectoryRefused: The epoch stored cannot be read, or is missing beside batches.
        """
        self._in_logs = in_logs
        path = self._data / _NAME
        try:
            stored, is_there = read_epoch(self._data, self._disk), self._disk.exists(path)
        except OSError:
            return  # whoever stores or accepts an epoch meets it again, and tries again
        if in_logs and not is_there:
            raise DirectoryRefused(
                f"{path} is missing, but logs beside it have messages of epoch {in_logs}: it is "
                "not known in which epochs this broker has acted. Restore the file from a copy. "
                "Without one, and if ZooKeeper's data were not lost or restored from a backup, "
                f"write '{_MARK} {_UNCHECKED_VERSION} <epoch>' into it, with the epoch of the "
                "group in `vq cluster status`"
            )
        if stored < in_logs:
            logger.warning(
                "stored epoch is older than the logs, an older copy of the file was put back",
                path=path,
                stored=stored,
                in_logs=in_logs,
            )

    def _known(self) -> int:
        """Return the highest epoch known to have been acted in or followed."""
        return max(read_epoch(self._data, self._disk), self._in_logs)

    def store(self, epoch: int) -> None:
        """Make ``epoch`` durable as the one acted in from now on; blocks.

        Raises:
            CoordinationError: It does not rise above the one stored.
            DirectoryRefused: The one stored cannot be read.
            OSError: It could not be stored; it must not be acted in.
        """
        self._check_there()
        known = self._known()
        if epoch < known or (epoch == known and epoch != self._half_stored):
            raise CoordinationError(
                f"ZooKeeper gave epoch {epoch}, but this data directory has acted in {known}: the "
                "group's record was lost or is another cluster's. Restore ZooKeeper's data, or "
                "point the broker at the right ensemble; after a restore from an older backup, `vq "
                f"cluster raise-epoch GROUP --to {known}`"
            )
        self._write(epoch)

    def accept(self, epoch: int) -> None:
        """Make ``epoch`` durable as the one followed from now on, unless it is; blocks.

        Raises:
            CoordinationError: It is older than the one stored.
            DirectoryRefused: The one stored cannot be read.
            OSError: It could not be stored; it must not be followed.
        """
        self._check_there()
        known = self._known()
        if not accepts(known, epoch):
            raise CoordinationError(
                f"the group's master leads in epoch {epoch}, but this data directory has "
                f"followed or acted in {known}: the group's record was lost or is another "
                "cluster's. Restore ZooKeeper's data, or point the broker at the right ensemble"
            )
        if epoch != read_epoch(self._data, self._disk) or epoch == self._half_stored:
            self._write(epoch)

    def _write(self, epoch: int) -> None:
        text = f"{_MARK} {_VERSION} {epoch}"
        self._half_stored = epoch
        self._disk.write_atomic(self._data / _NAME, f"{text} {checksum(text)}\n".encode())
        self._half_stored = 0
