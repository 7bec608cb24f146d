"""A file that a command makes: whole or not at all, never in place of another one."""

import asyncio
import os
from collections.abc import AsyncIterable
from pathlib import Path
from typing import Final

from vq.errors import InvalidArgument

#: Lines that are written at once.
_LINES: Final = 256


def check_new(file: Path) -> None:
    """Check that there is no file of a name, before anything is read for it.

    Raises:
        InvalidArgument: There is one.
    """
    if file.exists():
        raise _exists(file)


async def write_new(file: Path, lines: AsyncIterable[str]) -> tuple[int, int]:
    """Write lines, each with its end, into a new file; return how many, and how many bytes.

    The file gets its name when it is whole and on the disk. Only its owner may read it.

    Raises:
        InvalidArgument: There is a file of that name.
    """
    partial = file.with_name(file.name + ".partial")
    count = size = 0
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        error.filename = str(file)  # the one that was given
        raise
    try:
        with os.fdopen(descriptor, "wb") as out:
            batch: list[str] = []
            async for line in lines:
                count += 1
                batch.append(line)
                if len(batch) == _LINES:
                    size += await asyncio.to_thread(out.write, "".join(batch).encode())
                    batch.clear()
            size += await asyncio.to_thread(out.write, "".join(batch).encode())
            out.flush()
            await asyncio.to_thread(os.fsync, out.fileno())
        os.link(partial, file)  # unlike a rename it never replaces another file
    except FileExistsError:
        raise _exists(file) from None
    finally:
        partial.unlink(missing_ok=True)
    return count, size


def _exists(file: Path) -> InvalidArgument:
    return InvalidArgument(f"there is a file {file}; give the name of a new one")
