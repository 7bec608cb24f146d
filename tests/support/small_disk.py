"""A real file system that is small enough to be filled: a mounted tmpfs, where that is allowed."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk_at(place: Path, size: int) -> Iterator[Path]:
    """Mount ``size`` bytes at ``place`` (made here) for the block; skip where one may not."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root on Linux")
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a tmpfs here: {mounted.stderr.decode()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def resize(place: Path, size: int) -> None:
    """Give a mounted small disk another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)
