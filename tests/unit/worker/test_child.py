"""Handlers that are coroutine functions run on a loop of their process."""

import asyncio

import pytest

from vq.model import Message
from vq.worker.child import HandlerLoop
from vq.worker.soft_limit import SoftLimit, SoftTimeLimit


def test_what_a_coroutine_returns_or_raises_is_its_threads() -> None:
    """Also an error that a wait of the thread itself could have raised."""
    loop = HandlerLoop()

    async def returns() -> int:
        return 3

    async def raises() -> None:
        raise TimeoutError("of the handler")

    assert loop.run(returns()) == 3
    with pytest.raises(TimeoutError, match="of the handler"):
        loop.run(raises())


@pytest.mark.slow
def test_the_soft_limit_cancels_a_coroutine() -> None:
    loop, ended = HandlerLoop(), []

    async def waits() -> None:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def after() -> list[str]:
        return ended

    limit = SoftLimit(0.05)
    with pytest.raises(SoftTimeLimit):
        limit.call(lambda _: loop.run(waits()), Message("t", b"x"))
    assert loop.run(after()) == ["cancelled"]
    limit.end()
