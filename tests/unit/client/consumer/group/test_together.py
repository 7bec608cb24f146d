"""Calls that are carried out together: in order, bounded, and none is forgotten."""

import asyncio
from collections.abc import Sequence

import pytest

from vq.client.consumer.group.together import Together


class Work:
    """Doubles numbers, one call at a time, each when it is let go on."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.may_end = asyncio.Semaphore(0)
        self.errors: list[Exception] = []

    async def __call__(self, items: Sequence[int]) -> list[int]:
        self.calls.append(list(items))
        await self.may_end.acquire()
        if self.errors:
            raise self.errors.pop()
        return [2 * item for item in items]


async def turns() -> None:
    """Let everything that can run do so."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_what_comes_while_a_call_is_under_way_goes_together() -> None:
    work = Work()
    together = Together(work, most=3)
    first = asyncio.create_task(together.do([1]))
    await turns()
    rest = [asyncio.create_task(together.do([number])) for number in range(2, 7)]
    await turns()
    assert work.calls == [[1]]
    for _ in range(3):
        work.may_end.release()
    assert await asyncio.gather(first, *rest) == [[2], [4], [6], [8], [10], [12]]
    assert work.calls == [[1], [2, 3, 4], [5, 6]]


async def test_what_comes_in_one_turn_goes_together() -> None:
    work = Work()
    work.may_end.release()
    together = Together(work, most=10)
    assert await asyncio.gather(together.do([1]), together.do([2, 3])) == [[2], [4, 6]]
    assert work.calls == [[1, 2, 3]]


async def test_many_items_of_one_call_are_bounded_and_in_order() -> None:
    work = Work()
    together = Together(work, most=2)
    for _ in range(4):
        work.may_end.release()
    many, one = await asyncio.gather(together.do([1, 2, 3, 4, 5]), together.do([6]))
    assert (many, one) == ([2, 4, 6, 8, 10], [12])
    assert work.calls == [[1, 2], [3, 4], [5, 6]]
    assert await together.do([]) == []


async def test_all_of_a_call_that_fails_are_told_and_no_other() -> None:
    work = Work()
    together = Together(work, most=2)
    work.errors.append(ValueError("no"))
    for _ in range(2):
        work.may_end.release()
    results = await asyncio.gather(
        *(together.do([number]) for number in range(4)), return_exceptions=True
    )
    assert [type(each) for each in results[:2]] == [ValueError, ValueError]
    assert results[2:] == [[4], [6]]


@pytest.mark.parametrize("cancelled", [0, 1])
async def test_another_call_takes_over_from_one_that_is_cancelled(cancelled: int) -> None:
    """Whether it did the work for all, or waited: the others get their results, itself nothing."""
    work = Work()
    together = Together(work, most=10)
    tasks = [asyncio.create_task(together.do([number])) for number in range(3)]
    await turns()
    assert work.calls == [[0, 1, 2]]
    tasks[cancelled].cancel()
    await turns()
    for _ in range(2):
        work.may_end.release()
    others = [task for number, task in enumerate(tasks) if number != cancelled]
    wanted = [[2 * number] for number in range(3) if number != cancelled]
    assert await asyncio.gather(*others) == wanted
    assert tasks[cancelled].cancelled()
    assert work.calls[1:] == ([[1, 2]] if cancelled == 0 else [])


async def test_a_call_that_is_cancelled_with_all_others_does_nothing_more() -> None:
    work = Work()
    together = Together(work, most=1)
    tasks = [asyncio.create_task(together.do([number])) for number in range(3)]
    await turns()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    work.may_end.release()
    assert await together.do([9]) == [18]
    assert work.calls == [[0], [9]]
