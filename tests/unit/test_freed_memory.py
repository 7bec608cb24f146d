"""Memory of frames and messages is used again."""

import platform
import subprocess
import sys

import pytest

_FRAMES = """
import resource
from vq.freed_memory import keep_freed_memory

keep_freed_memory(int({kept_bytes}))

def faults():
    begin = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        frames = [b"x" * (1 << 20), b"y" * (1 << 20)]
        del frames
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - begin

print(faults())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is left as it is")
@pytest.mark.parametrize("kept_bytes", [16 << 20, 1 << 40])
def test_memory_of_frames_is_used_again(kept_bytes: int) -> None:
    """Two frames of 1 MiB come and go fifty times: their pages are new once, not every time."""
    ran = subprocess.run(
        [sys.executable, "-c", _FRAMES.format(kept_bytes=kept_bytes)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(ran.stdout) < 3 * 512
