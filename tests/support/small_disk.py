"""A real file system that is small enough to be filled: a tmpfs or a file with ext4, mounted.

Root mounts it; anybody else (and a root that may not) mounts a tmpfs in a user namespace, where the
kernel allows it, and reaches it through ``/proc``. Where neither is allowed, the test is skipped
and says why.
"""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.zookeeper import forbidden, unavailable

_HOLD = 'mount "$@" && echo mounted && exec cat'  # until its standard input ends: with us
_holders: dict[Path, int] = {}


@contextlib.contextmanager
def small_disk_at(place: Path, size: int) -> Iterator[Path]:
    """Mount ``size`` bytes (at ``place``, made here) and provide where to find them."""
    place.mkdir()
    options = ("-t", "tmpfs", "-o", f"size={size}", "tmpfs")
    refused = _mount(place, *options)
    if refused:
        with _in_namespace(place, *options, refused=refused) as found:
            yield found
        return
    try:
        yield place
    finally:
        _unmount(place)


@contextlib.contextmanager
def loop_disk_at(place: Path, size: int) -> Iterator[Path]:
    """The same with ext4 in a file beside ``place``, through a loop device: root only."""
    if shutil.which("mkfs.ext4") is None:
        unavailable("mkfs.ext4 is not installed: apt-get install e2fsprogs")
    place.mkdir()
    image = place.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    try:
        refused = _mount(place, "-o", "loop", str(image))
        if refused:
            forbidden(refused)
        try:
            yield place
        finally:
            _unmount(place)
    finally:
        image.unlink()


def remount(place: Path, options: str) -> None:
    """Give a mounted small disk other options, such as ``size=…``."""
    command = ["mount", "-t", "tmpfs", "-o", f"remount,{options}", "tmpfs", str(place)]
    if place in _holders:
        pid = _holders[place]
        command[-1] = str(place).removeprefix(f"/proc/{pid}/root")
        enter = ["nsenter", "-t", str(pid), "-U", "-m", "--preserve-credentials"]
        command = [*enter, *command]
    subprocess.run(command, check=True)


def _mount(place: Path, *options: str) -> str:
    """Mount; return why it cannot be done, "" if it was."""
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        return "mounting a small file system needs root on Linux"
    command = ["mount", *options, str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode != 0:
        return f"cannot mount here: {' '.join(command)}: {mounted.stderr.decode().strip()}"
    return ""


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "-l", str(place)], check=True)


@contextlib.contextmanager
def _in_namespace(place: Path, *options: str, refused: str) -> Iterator[Path]:
    """Have a process mount it in a user namespace of its own, which goes with that process."""
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        unavailable(f"{refused}, or unshare and nsenter: apt-get install util-linux")
    command = ["unshare", "-Urm", "sh", "-c", _HOLD, "-", *options, str(place)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stderr is not None
        if holder.stdout.readline() != b"mounted\n":
            said = holder.stderr.read().decode().strip()
            forbidden(f"{refused}; and no user namespace here: {' '.join(command[:2])}: {said}")
        found = Path(f"/proc/{holder.pid}/root{place}")
        _holders[found] = holder.pid
        try:
            yield found
        finally:
            del _holders[found]
            holder.stdin.close()
            holder.wait(10)
