"""Whose data directory this is: an identity file, compared before anything else is touched.

    @identity    {"v": 2, "cluster": "default", "group": "b1", "node": "n1", "id": "8f0c…",
                  "crc": "0a1b2c3d"}
    @lock        process id of the broker that uses the directory now

Topics are directories beside these two; no topic's name can begin with ``@``. ``id`` is drawn when
the directory is made: an emptied directory under a known node is thereby told from the old one.

With several data directories the first one, the *main* one, names the *further* ones, and each of
these names the main one. Then ``v`` is 3, so that an earlier vq, which knows of one only, refuses:

    @identity    {"v": 3, …, "id": "8f0c…", "further": {"31d9…": "/mnt/d2"}, "crc": "…"}
    @identity    {"v": 3, …, "id": "31d9…", "of": "8f0c…", "crc": "…"}
"""

import errno
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from vq.errors import CorruptData, DirectoryRefused
from vq.log_lines import get_logger
from vq.store.disk.disk import TEMPORARY_SUFFIX, Disk
from vq.store.log.block import FULL_ERRNOS
from vq.store.records.checked_text import decode_text, encode_text
from vq.store.records.format import FORMAT_VERSION

logger = get_logger(__name__)

IDENTITY_NAME: Final = "@identity"
LOCK_NAME: Final = "@lock"
#: Of the identity of one of several directories.
_SEVERAL_VERSION: Final = FORMAT_VERSION + 1
#: What may lie in a directory that is to become a data directory.
_HARMLESS: Final = frozenset({LOCK_NAME, "lost+found", IDENTITY_NAME + TEMPORARY_SUFFIX})


@dataclass(frozen=True, slots=True)
class Identity:
    """Cluster, broker group and node a data directory belongs to, and its own random id.

    Attributes:
        cluster, group, node: Whose it is.
        id: Its own.
        of: The id of the main directory, of a further one; "": it is the main one.
        further: Of the main one: the ids of the further ones, with where they were last.
    """

    cluster: str
    group: str
    node: str
    id: str
    of: str = ""
    further: Mapping[str, str] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the JSON text of the identity file."""
        values: dict[str, Any] = {
            name: getattr(self, name) for name in ("cluster", "group", "node", "id")
        }
        if self.further:
            values["further"] = dict(self.further)
        if self.of:
            values["of"] = self.of
        return encode_text(_SEVERAL_VERSION if len(values) > 4 else FORMAT_VERSION, values)

    @classmethod
    def from_bytes(cls, data: bytes, path: Path) -> "Identity":
        """Return the identity that ``path`` holds.

        Raises:
            DirectoryRefused: It cannot be parsed, or was written by a newer vq.
        """
        try:
            version, values = decode_text(data, version_max=_SEVERAL_VERSION)
        except CorruptData as error:
            raise _damaged(path, error) from error
        if version > _SEVERAL_VERSION:
            raise DirectoryRefused(
                f"{path.parent} has format version {version}, this vq knows up to "
                f"{_SEVERAL_VERSION}: a newer vq wrote it; run that one"
            )
        try:
            further = {str(key): str(at) for key, at in values.pop("further", {}).items()}
            texts = {str(key): str(value) for key, value in values.items()}
            return cls(further=further, **texts)
        except (AttributeError, TypeError) as error:
            raise _damaged(path, error) from error


def check_there(data: Path, disk: Disk) -> None:
    """Return if a data directory that was opened is there: nobody removed or unmounted it.

    What is made in its place, such as the directory that a file system was mounted on, is hidden as
    soon as it is back. So whatever makes a file or directory by its name checks this first.

    Raises:
        FileNotFoundError: It is gone.
        OSError: It cannot be looked at.
    """
    if not disk.exists(data / IDENTITY_NAME):
        raise FileNotFoundError(errno.ENOENT, "the data directory is gone", str(data))


def _damaged(path: Path, error: Exception) -> DirectoryRefused:
    return DirectoryRefused(
        f"{path} is damaged, or was written by a newer vq ({error}): restore it from a copy; its "
        "text is documented in docs/formats.md"
    )


def check_identity(
    path: Path, *, cluster: str, group: str, node: str, disk: Disk, of: str = ""
) -> Identity:
    """Return the identity of the data directory ``path``, writing it if the directory is new.

    Args:
        path: The data directory.
        cluster, group, node: Whose it should be.
        disk: Where it is.
        of: The id of the main directory, for a further one.

    Raises:
        DirectoryRefused: It belongs to another cluster, group or node, or is a main one in the
            place of a further one; has a newer format, is damaged, or holds files of something that
            is not vq.
    """
    file = path / IDENTITY_NAME
    if disk.exists(file):
        data = disk.read_bytes(file)
        found = Identity.from_bytes(data, file)
        if (found.cluster, found.group, found.node) != (cluster, group, node):
            raise DirectoryRefused(
                f"{path} belongs to cluster {found.cluster!r}, group {found.group!r}, node "
                f"{found.node!r}; this broker is cluster {cluster!r}, group {group!r}, node "
                f"{node!r}: give it a directory of its own"
            )
        if found.of != of:
            raise DirectoryRefused(_misplaced(path, found, of))
        if data != found.to_bytes():
            _bring_up_to_date(file, found, disk)
        return found
    strangers = [name for name in disk.listdir(path) if name not in _HARMLESS]
    if strangers:
        raise DirectoryRefused(
            f"{path} is not a vq data directory and holds {strangers[0]!r}"
            f"{' and more' if len(strangers) > 1 else ''}: choose an empty or a new directory"
        )
    identity = Identity(cluster, group, node, secrets.token_hex(8), of)
    disk.write_atomic(file, identity.to_bytes())
    return identity


def _misplaced(path: Path, found: Identity, of: str) -> str:
    if not of:
        return (
            f"{path} is a further data directory of this node, and not its first one: name the one "
            f"with the id {found.of} first, which has what is of the node as a whole"
        )
    if not found.of:
        return f"{path} is a main data directory: name it first, or give an empty one as a further"
    return (
        f"{path} goes with the data directory with the id {found.of}, not with the first one given "
        f"here, {of}"
    )


def _bring_up_to_date(file: Path, identity: Identity, disk: Disk) -> None:
    """Write an identity of an earlier format anew: an earlier vq must refuse it from now on.

    On a full disk the old file stays until a later start. To refuse the start would leave the disk
    full: only a running broker frees space, for example its reserve.
    """
    try:
        disk.write_atomic(file, identity.to_bytes())
    except OSError as error:
        if error.errno not in FULL_ERRNOS:
            raise
        logger.warning(
            "identity keeps its earlier format until the next start, do not run an earlier vq here",
            file=file,
            error=error,
        )
