"""A real file system that is small: a tmpfs or a file with ext4 or XFS, mounted.

Root mounts it; another user (or a root that may not) mounts a tmpfs in a user namespace, where the
kernel allows it, and reaches it through ``/proc``. Where neither is allowed, the test is skipped
and says why.
"""

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from support.zookeeper import forbidden, unavailable

from vq.testing.waiting import PROCESSES_WAIT_S

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


#: The command that makes a file system, and the Debian package that has it.
_MAKE = {
    "ext4": (["mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096"], "e2fsprogs"),
    "xfs": (["mkfs.xfs", "-q", "-f"], "xfsprogs"),  # 300 MB at least; the file has holes
}


@contextlib.contextmanager
def loop_disk_at(place: Path, size: int, kind: str = "ext4") -> Iterator[Path]:
    """The same with ext4 or XFS in a file beside ``place``, through a loop device: root only."""
    image = place.with_suffix(".img")
    try:
        make_image(image, size, kind)
        with mounted_image(image, place):
            yield place
    finally:
        image.unlink(missing_ok=True)


def make_image(image: Path, size: int, kind: str) -> None:
    """Make a file with an empty file system of ``kind`` in it."""
    command, package = _MAKE[kind]
    if shutil.which(command[0]) is None:
        unavailable(f"{command[0]} is not installed: apt-get install {package}")
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run([*command, str(image)], check=True)


def make_image_without_room_for_its_journal(image: Path, size: int) -> None:
    """Make a file with an empty ext4 in it that has holes only where the journal goes."""
    image.write_bytes(b"\xff" * size)
    command, package = _MAKE["ext4"]
    if shutil.which("debugfs") is None:
        unavailable(f"debugfs is not installed: apt-get install {package}")
    options = ["-E", "nodiscard,lazy_itable_init=0"]
    subprocess.run([*command, *options, str(image)], check=True)
    find = ["debugfs", "-R", "blocks <8>", str(image)]
    found = subprocess.run(find, check=True, capture_output=True, text=True).stdout.split()
    with image.open("r+b") as file:
        for block in found[1:]:  # the first one says how large the journal is
            _punch_hole(file.fileno(), int(block) * 4096, 4096)


def _punch_hole(fd: int, start: int, length: int) -> None:
    """Give back a range of a file; Python has no call for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    keep_size, punch_hole = 1, 2
    offsets = (ctypes.c_int64(start), ctypes.c_int64(length))
    if libc.fallocate(fd, keep_size | punch_hole, *offsets) != 0:
        raise OSError(ctypes.get_errno(), "cannot punch a hole")


@contextlib.contextmanager
def mounted_image(image: Path, place: Path, *options: str) -> Iterator[None]:
    """Mount a file with a file system in it through a loop device."""
    place.mkdir(exist_ok=True)
    refused = _mount(place, "-o", ",".join(("loop", *options)), str(image))
    if refused:
        forbidden(refused)
    try:
        yield
    finally:
        _unmount(place)


def device_flushes(place: Path) -> int:
    """Return how many FLUSH requests the device below ``place`` has done."""
    device = place.stat().st_dev
    statistics = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(statistics.read_text().split()[15])  # Documentation/block/stat.rst


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
            holder.wait(PROCESSES_WAIT_S)


def turn_read_only(place: Path) -> None:
    """Have an ext4 that is mounted with ``errors=remount-ro`` meet an error, as of its device.

    Nothing can be written from here on, also to files that are open; what is there can be read. A
    plain ``mount -o remount,ro`` is refused while files are open for writing. Only a new mount ends
    it.
    """
    device = place.stat().st_dev
    name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
    trigger = Path(f"/sys/fs/ext4/{name}/trigger_fs_error")
    try:
        trigger.write_text("1")
    except OSError as error:
        forbidden(f"an error of ext4 cannot be made here: {error}")
