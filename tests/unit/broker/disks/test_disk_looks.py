"""Looks at a data directory: one at a time, and a late loop is no silent disk."""

import asyncio
import threading
import time

import pytest

from vq.broker.base.runner import ThreadRunner
from vq.broker.disks import disk_looks
from vq.broker.disks.disk_looks import DiskLooks, Seen
from vq.clock import SystemClock
from vq.testing.waiting import until

SEEN = Seen("", (1, 2, 3, 4))


@pytest.fixture
async def runner():
    made = ThreadRunner()
    yield made
    await made.close()


async def test_a_loop_that_comes_late_finds_the_answer(runner, monkeypatch) -> None:
    """It is held up for twice as long as a look may take; the look itself takes no time."""
    monkeypatch.setattr(disk_looks, "SILENT_S", 0.2)
    answered = threading.Event()

    def look() -> Seen:
        answered.set()
        return SEEN

    looks = DiskLooks(look, runner, SystemClock())
    pending = looks.next()

    async def hold_up() -> None:
        await until(answered.is_set)
        time.sleep(0.4)  # the loop is to be late

    seen, _ = await asyncio.gather(pending, hold_up())
    assert seen == SEEN


async def test_a_directory_that_does_not_answer_is_silent_and_asked_once(
    runner, monkeypatch
) -> None:
    monkeypatch.setattr(disk_looks, "SILENT_S", 0.05)
    released, calls = threading.Event(), []

    def look() -> Seen:
        calls.append(1)
        released.wait(10)
        return SEEN

    looks = DiskLooks(look, runner, SystemClock())
    assert await looks.next() is None
    assert await looks.next() is None
    assert looks.waits_s > 0.05
    released.set()
    assert await looks.next() == SEEN
    assert len(calls) == 1
    assert looks.waits_s == 0
