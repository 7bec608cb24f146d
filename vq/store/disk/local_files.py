"""Files that a client keeps on its machine, beside the port that brokers use (``disk``)."""

import os
from pathlib import Path


def flush_directory(path: Path) -> None:
    """Return once the names in a directory are on the medium.

    Raises:
        OSError: They may not be.
    """
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_anew(path: Path, data: bytes, *, mode: int) -> None:
    """Put a file in the place of one, if there is one; a crash leaves either of them, whole.

    Args:
        path: Of the file; ``<path>.new`` is written beside it first.
        data: All of it.
        mode: Who may read and write it.

    Raises:
        OSError: The old one is still there, or the new one is and may not be on the medium.
    """
    beside = f"{path}.new"
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(beside, path)  # noqa: PTH105 - as what is above
    flush_directory(path.parent)
