"""A real file system that is small enough to be filled: a tmpfs or a file with ext4, mounted.

Mounting needs root; without it, or where nothing can be mounted, the test is skipped and says why.
"""

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
    with _mounted(place, "-t", "tmpfs", "-o", f"size={size}", "tmpfs"):
        yield place


@contextlib.contextmanager
def loop_disk_at(place: Path, size: int) -> Iterator[Path]:
    """The same with ext4 in a file beside ``place``, through a loop device."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("mkfs.ext4 is not installed: apt-get install e2fsprogs")
    image = place.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    try:
        with _mounted(place, "-o", "loop", str(image)):
            yield place
    finally:
        image.unlink()


@contextlib.contextmanager
def _mounted(place: Path, *options: str) -> Iterator[None]:
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("mounting a small file system needs root on Linux")
    place.mkdir()
    command = ["mount", *options, str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount here: {' '.join(command)}: {mounted.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def resize(place: Path, size: int) -> None:
    """Give a mounted small disk another size."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(place)], check=True)
