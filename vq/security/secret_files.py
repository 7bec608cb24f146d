"""Files with secrets: passwords, tokens, private keys, identities. Nobody else may use one.

The owner is this process's user or root, and nobody else has a right to the file. Where root is the
owner its group may read it: so a secret comes into a container.
"""

import os
import stat
from pathlib import Path
from typing import Final

from vq.errors import InvalidArgument

#: Bytes of a file with one secret: more is none.
_SECRET_BYTES_MAX: Final = 4_096


def read_secret_file(path: Path, bytes_max: int, *, regular: bool = True) -> str:
    """Return the text of a file with a secret. No error shows any of it.

    Args:
        path: Of the file.
        bytes_max: It has no more bytes.
        regular: It is a file, and no pipe.

    Raises:
        InvalidArgument: Others may use it, it belongs to somebody else, is too large, or cannot be
            read. The text begins with "it", and does not name the file but in what to do.
    """
    try:
        with path.open("rb") as file:
            found = os.fstat(file.fileno())
            if regular and not stat.S_ISREG(found.st_mode):
                raise InvalidArgument("it is no regular file")
            check_private(path, found)
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise InvalidArgument(f"it cannot be read: {error.strerror or error}") from error
    if len(data) > bytes_max:
        raise InvalidArgument(f"it has more than {bytes_max} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("it is not UTF-8") from None


def read_with_stat(path: Path) -> tuple[bytes, os.stat_result]:
    """Return the bytes of a file, and what is to be given to ``check_private`` if they are secret.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return file.read(), os.fstat(file.fileno())


def check_private(path: Path, found: os.stat_result) -> None:
    """Return if nobody but its owner may use a file.

    Args:
        path: Of the file, for the text.
        found: What ``stat`` says of it.

    Raises:
        InvalidArgument: Others may, or it belongs to somebody else.
    """
    mode = stat.S_IMODE(found.st_mode)
    allowed = stat.S_IRWXU | (stat.S_IRGRP if found.st_uid == 0 else 0)
    if mode & ~allowed & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidArgument(
            f"it has mode {mode:04o}, so others than its owner may use it: chmod 600 {path}"
        )
    if found.st_uid not in {os.geteuid(), 0}:
        raise InvalidArgument(
            f"it belongs to user {found.st_uid}, and this process is {os.geteuid()}: chown it"
        )


def read_secret(path: str, what: str = "password") -> str:
    """Return the first line of a file, which may be a pipe; ``what`` is what errors call it.

    Raises:
        InvalidArgument: The file cannot be read, others may use it, it is too large, or its first
            line is empty. The error shows nothing of its contents.
    """
    try:
        text = read_secret_file(Path(path), _SECRET_BYTES_MAX, regular=False)
    except InvalidArgument as error:
        raise InvalidArgument(f"the {what} file {path!r}: {error.message}") from error
    line = text.split("\n", 1)[0].rstrip("\r")
    if not line:
        raise InvalidArgument(f"the {what} file {path!r} has no {what}: it is the first line")
    return line
