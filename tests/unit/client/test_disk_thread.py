"""The thread of a member that waits for a disk."""

import threading

import pytest

from vq.client.disk_thread import DiskThread
from vq.errors import InvalidState
from vq.testing.waiting import WAIT_S


async def test_a_disk_that_hangs_holds_one_thread_up() -> None:
    """Later calls wait behind it, each in bounded time; one that gave up is not made any more."""
    thread, disk, made = DiskThread("test-disk"), threading.Event(), []
    before = threading.active_count()
    try:
        for number in range(3):

            def work(number: int = number) -> None:
                made.append(number)
                assert disk.wait(WAIT_S)

            with pytest.raises(InvalidState, match="no answer"):
                await thread.call(work, 0.01, lambda: InvalidState("no answer"))
        assert threading.active_count() == before + 1
        disk.set()
        assert (
            await thread.call(lambda: "done", WAIT_S, lambda: InvalidState("no answer")) == "done"
        )
        assert made == [0]
    finally:
        disk.set()
        thread.close()
