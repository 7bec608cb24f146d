"""Background tasks end with their owner."""

import asyncio
import itertools

import pytest

from vq.broker.base.tasks import BACKOFF, WELL_S, Tasks
from vq.testing.waiting import until


async def test_tasks_end_with_their_owner(caplog):
    """What runs is cancelled, what failed was logged, nothing starts any more."""
    tasks, seen = Tasks(), []

    async def work(text: str) -> None:
        if text == "broken":
            raise ZeroDivisionError("a bug")
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(text)

    tasks.start(work("long"))
    tasks.start(work("broken"))
    await until(lambda: "a bug" in caplog.text)
    await tasks.close()
    assert seen == ["long"]
    tasks.start(work("late"))
    assert seen == ["long"]


@pytest.mark.virtual_time
async def test_what_goes_on_for_ever_is_begun_again_after_a_defect(caplog):
    """With longer pauses while it fails, and with short ones after it was well."""
    tasks, begun = Tasks(), []
    loop = asyncio.get_running_loop()

    async def work() -> None:
        begun.append(loop.time())
        if len(begun) == 4:
            await asyncio.sleep(2 * WELL_S)
        raise ZeroDivisionError("a bug")

    tasks.keep(work, "count sheep")
    await until(lambda: len(begun) == 5, timeout_s=4 * WELL_S)
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    expected = [BACKOFF.pause_s(1), BACKOFF.pause_s(2), BACKOFF.pause_s(3)]
    assert pauses == pytest.approx([*expected, 2 * WELL_S + BACKOFF.pause_s(1)])
    assert 'what="count sheep"' in caplog.text
    assert "a bug" in caplog.text
    await tasks.close()
    assert len(begun) == 5
