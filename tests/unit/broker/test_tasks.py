"""Background tasks end with their owner."""

import asyncio

from support.waiting import until

from vq.broker.tasks import Tasks


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
