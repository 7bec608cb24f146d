"""What is said of messages that are not stored when their producer, or the program, ends."""

import asyncio
import logging

import pytest
from support.broker import MemoryCluster
from support.producers import published, send, stored

from vq import aio
from vq.errors import InvalidState, NotSent
from vq.model import Message
from vq.testing.waiting import WAIT_S

pytestmark = pytest.mark.virtual_time


def lost(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.ERROR and "are not stored" in record.getMessage()
    ]


async def test_the_last_flush_sends_what_waits(
    factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    core = await published(factory)
    for _ in range(100):
        send(core, Message("t", b"x"))
    await core.flush_at_exit()
    assert len(await stored(factory)) == 100
    assert lost(caplog) == []


async def test_the_last_flush_is_bounded_and_counts_what_is_left(
    cluster: MemoryCluster, factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    core = await published(factory, exit_flush_s=0.05)
    cluster.network.kill("b1")
    futures = [send(core, Message("t", b"x")) for _ in range(100)]
    async with asyncio.timeout(WAIT_S):
        await core.flush_at_exit()
    [line] = lost(caplog)
    assert "refused=100 unknown=0" in line
    assert all(isinstance(each.outcome, NotSent) for each in futures)
    with pytest.raises(InvalidState, match="the program ended"):
        send(core, Message("t", b"x"))


async def test_an_interrupted_last_flush_counts_all_the_same(
    cluster: MemoryCluster, factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    core = await published(factory, exit_flush_s=600.0)
    cluster.network.kill("b1")
    send(core, Message("t", b"x"))
    flushing = asyncio.create_task(core.flush_at_exit())
    await asyncio.sleep(0)
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    assert len(lost(caplog)) == 1


@pytest.mark.parametrize("heard", [False, True], ids=["nobody listens", "a callback"])
async def test_a_producer_that_closes_counts_failures_of_which_nobody_learns(
    cluster: MemoryCluster,
    factory: aio.MessageFactory,
    caplog: pytest.LogCaptureFixture,
    heard: bool,
) -> None:
    """``with`` and ``close`` wait for each outcome, and most programs then look at none."""
    core = await published(factory)
    cluster.network.kill("b1")
    told: list[object] = []
    for _ in range(3):
        send(core, Message("t", b"x"), (lambda *each: told.append(each)) if heard else None, 0.05)
    await core.close()
    assert len(told) == (3 if heard else 0)
    assert ["refused=3" in each for each in lost(caplog)] == ([] if heard else [True])
