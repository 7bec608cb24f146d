"""A real file system that is really full: tmpfs of 2 MiB, filled by the log and by a stranger."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.small_disk import small_disk_at
from support.store import append, flush, open_log, payloads

from vq.errors import DiskFull
from vq.limits import MIB
from vq.store.disk.real_disk import RealDisk
from vq.store.log.log import Log
from vq.store.log.log_config import LogConfig, LogState

CONFIG = LogConfig(block_bytes=256 * 1024)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 2 MiB."""
    with small_disk_at(tmp_path / "small", 2 * MIB) as place:
        yield place


def fill(log: Log, *, size: int) -> list[bytes]:
    """Append until the disk is full; return what was stored."""
    stored = []
    for number in range(1_000):
        payload = b"%06d" % number + bytes(size)
        try:
            append(log, payload)
        except DiskFull:
            return stored
        stored.append(payload)
        flush(log)
    raise AssertionError("the disk never filled up")


@pytest.mark.root
@pytest.mark.parametrize("size", [200, 5_000, 100_000])
def test_a_full_disk_refuses_keeps_everything_and_resumes(small_disk: Path, size: int) -> None:
    """Definite refusals only; all that was stored is there, now and after a restart."""
    directory = small_disk / "orders" / "0"
    log = open_log(RealDisk(), directory, config=CONFIG)
    stored = fill(log, size=min(size * 20, 500_000)) + fill(log, size=size)
    assert log.state is LogState.OK
    assert log.synced_offset == log.end_offset
    assert payloads(log) == stored
    half = log.start_offset + log.size_bytes // 2
    log.drop_before(half)
    flush(log)
    assert log.start_offset > 0, "retention made no room"
    append(log, b"resumed" + bytes(size))
    flush(log)
    kept = payloads(log)
    assert kept[-1].startswith(b"resumed")
    log.close()
    again = open_log(RealDisk(), directory, config=CONFIG)
    assert payloads(again) == kept
    again.close()


@pytest.mark.root
def test_a_stranger_who_fills_the_disk_loses_us_nothing(small_disk: Path) -> None:
    """What was allocated ahead is ours; beyond it appends are refused until space returns."""
    directory = small_disk / "orders" / "0"
    log = open_log(RealDisk(), directory, config=CONFIG)
    append(log, b"first")
    stranger = small_disk / "stranger"
    with pytest.raises(OSError, match="No space"):
        stranger.write_bytes(bytes(4 * MIB))
    stored = [b"first", *fill(log, size=1_000)]
    assert len(stored) > 1
    flush(log)
    stranger.unlink()
    append(log, b"last")
    log.close()
    again = open_log(RealDisk(), directory, config=CONFIG)
    assert payloads(again) == [*stored, b"last"]
    again.close()
