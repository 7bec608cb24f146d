"""A program of ``vq.aio`` that forks inside a coroutine, as ``multiprocessing`` does by default.

    python -m support.forking_coroutines

Each child tries every method of what its parent has opened, and ends with 0 if all of them refuse
it at once: in the coroutine that forked, and on a loop of its own. Then the parent goes on.
"""

import asyncio
import contextlib
import faulthandler
import os
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.broker import memory_cluster
from support.client import calls_of, factory_of

from vq.client.config import ConsumerConfig, ProducerConfig
from vq.client.future import SendFuture
from vq.errors import InvalidState
from vq.model import Message

#: These end what a parent has opened: in the child there is nothing to do.
ENDS = {"close", "shutdown", "__aexit__"}
#: A child that takes longer says where it hangs.
HANGS_S = 30.0

Call = Callable[[], Awaitable[object]]


def step(call: Call) -> object:
    """Run a coroutine that must end without a wait, and return its result."""
    coroutine: Any = call().__await__()
    try:
        next(coroutine)
    except StopIteration as end:
        return end.value
    raise AssertionError(f"{call} waits")


def on_own_loop(call: Call) -> object:
    async def work() -> object:
        async with asyncio.timeout(HANGS_S / 2):
            return await call()

    return asyncio.run(work())


def refused(call: Call, run: Callable[[Call], object]) -> None:
    with pytest.raises(InvalidState, match="forked; open a new one in the child"):
        run(call)


def in_child(work: Callable[[], object]) -> int:
    """Return the exit code of a child that does ``work``."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    try:
        work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


async def main() -> None:
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        async with factory_of(cluster) as factory:
            producer = await factory.create_producer()
            for number in range(10):
                await producer.send(Message("t", b"%d" % number))
            full = await factory.create_producer(ProducerConfig(buffer_messages=1))
            await full.publish("t")
            consumer = (await factory.create_consumer(ConsumerConfig(group="g"))).subscribe("t")
            iterator = aiter(consumer)
            assert (await anext(iterator)).content == b"0"
            for run in (step, on_own_loop):
                waiting = full._core.append_any(Message("t", b"waits"))  # and no wait after it

                def work(
                    run: Callable[[Call], object] = run, waiting: SendFuture = waiting
                ) -> None:
                    refused(lambda: anext(iterator), run)
                    refused(lambda: anext(aiter(consumer)), run)
                    refused(lambda: waiting, run)
                    refused(lambda: full.send(Message("t", b"x")), run)
                    with contextlib.suppress(InvalidState):
                        producer.metrics()
                        raise AssertionError("counts")
                    calls = [
                        call
                        for made in (factory.admin, producer, full, consumer, factory)
                        for call in calls_of(made)
                    ]
                    for call in calls:
                        if not is_end(call):
                            refused(call, run)
                    for call in filter(is_end, calls):  # last, since a factory forgets its cluster
                        run(call)

                assert in_child(work) == 0, run.__name__
                assert in_child(lambda: on_own_loop(use_own)) == 0, "a factory of its own"
                assert (await waiting).partition == 0
            assert (await anext(iterator)).content == b"1"
            assert (await producer.send(Message("t", b"x"))).id > 0, "the parent goes on"


async def use_own() -> None:
    """Send with a factory that this process has opened."""
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=1)
        async with factory_of(cluster) as factory:
            await (await factory.create_producer()).send(Message("t", b"x"))


def is_end(call: Any) -> bool:
    return call.func.__name__ in ENDS


if __name__ == "__main__":
    asyncio.run(main())
