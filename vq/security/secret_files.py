"""Secrets in files, for commands and for Spark."""

from pathlib import Path
from typing import Final

from vq.errors import InvalidArgument

__all__ = ["read_secret"]

#: Bytes that are read of a file: more is no secret.
_FILE_BYTES_MAX: Final = 4_096


def read_secret(path: str, what: str = "password") -> str:
    """Return the first line of a file; ``what`` is what errors call it.

    Raises:
        InvalidArgument: The file cannot be read, is too large, or its first line is empty. The
            error shows nothing of its contents.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
        line = data.decode().split("\n", 1)[0].rstrip("\r")
    except OSError as error:
        raise InvalidArgument(f"cannot read the {what} file {path!r}: {error}") from error
    except UnicodeDecodeError:
        raise InvalidArgument(f"the {what} file {path!r} is not UTF-8") from None
    if not line or len(data) > _FILE_BYTES_MAX:
        raise InvalidArgument(
            f"the {what} file {path!r} has no {what}: it is the first line, of a file of at "
            f"most {_FILE_BYTES_MAX} bytes"
        )
    return line
