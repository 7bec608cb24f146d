"""A step of an iteration is what a coroutine would be, compiled or not."""

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

import pytest
from support.delivery import endless
from support.inbox import ITERATIONS, Partition, nothing

from vq.client.consumer.deliver.inbox import Inbox, Messages
from vq.testing.waiting import WAIT_S

KINDS = pytest.mark.parametrize("kind", ITERATIONS)


async def one_in_hand(kind: type[Messages], count: int = 3) -> tuple[Messages, Partition]:
    """Return an iteration that has given the first of some messages."""
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(count)
    messages = kind(inbox, nothing)
    assert (await anext(messages)).content == b"0.0"
    return messages, partition


@KINDS
async def test_a_step_that_does_not_begin_takes_no_message(kind: type[Messages]) -> None:
    """Whether it is dropped, closed, thrown into, or the task that was to take it is cancelled."""
    messages, partition = await one_in_hand(kind)
    step: Coroutine[Any, Any, Any] = messages.__anext__()
    step.close()
    for error in (KeyError("k"), KeyError, asyncio.CancelledError):
        step = messages.__anext__()
        with pytest.raises(error if isinstance(error, type) else KeyError):
            step.throw(error)
        with pytest.raises(RuntimeError, match="already awaited"):
            step.send(None)
    task = asyncio.create_task(messages.__anext__())
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert partition.delivery.delivered == 0
    assert (await anext(messages)).content == b"0.1"
    assert partition.delivery.delivered == 1


@KINDS
async def test_a_step_is_awaited_once(kind: type[Messages]) -> None:
    messages, _ = await one_in_hand(kind)
    step: Coroutine[Any, Any, Any] = messages.__anext__()
    assert (await step).content == b"0.1"
    with pytest.raises(RuntimeError, match="already awaited"):
        await step
    step.close()
    with pytest.raises(StopIteration) as stopped:
        messages.__anext__().send(None)
    assert stopped.value.value.content == b"0.2", "also if it is driven by hand"


@KINDS
@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_step_that_waits_ends_as_its_coroutine_does(kind: type[Messages], how: str) -> None:
    messages, partition = await one_in_hand(kind, 1)
    step: Coroutine[Any, Any, Any] = messages.__anext__()
    waiting = step.send(None)
    assert waiting is not None, "it waits for a future"
    if how == "closed":
        step.close()
    else:
        with pytest.raises(asyncio.CancelledError):
            step.throw(asyncio.CancelledError())
    with pytest.raises(RuntimeError, match="already awaited"):
        step.send(None)
    partition.add(1)
    async with asyncio.timeout(WAIT_S):
        assert (await anext(messages)).content == b"0.1"


@KINDS
async def test_a_clock_that_fails_takes_no_message(kind: type[Messages]) -> None:
    inbox = Inbox(endless())
    partition = Partition(inbox)
    partition.add(2)
    messages = kind(inbox, nothing)
    await anext(messages)

    def fails() -> float:
        raise ZeroDivisionError

    now, inbox.permit.now = inbox.permit.now, fails
    with pytest.raises(ZeroDivisionError):
        await anext(messages)
    inbox.permit.now = now
    assert (await anext(messages)).content == b"0.1"


@KINDS
async def test_a_second_task_that_awaits_a_step_harms_only_itself(kind: type[Messages]) -> None:
    messages, partition = await one_in_hand(kind, 1)
    step: Coroutine[Any, Any, Any] = messages.__anext__()

    async def wait() -> bytes:
        return (await step).content

    messages.task = first = asyncio.create_task(wait())  # it asks from now on
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="being awaited already"):
        await wait()
    partition.add(1)
    async with asyncio.timeout(WAIT_S):
        assert await first == b"0.1"
    for over in (lambda: step.send(None), lambda: step.throw(KeyError)):
        with pytest.raises(RuntimeError, match="already awaited"):
            over()
    with pytest.raises(RuntimeError, match="already awaited"):
        await wait()
