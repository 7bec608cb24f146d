"""``listener_timeout_s`` of threads: told, waited for no longer, and in nobody's way."""

import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.broker import MemoryCluster
from support.client import factory_of
from support.consumers import send

from vq import aio
from vq.client.config import ConsumerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.giving_up import Called
from vq.client.consumer.deliver.permit import Permit
from vq.client.consumer.deliver.time_limit import Watched
from vq.client.consumer.deliver.workers import Workers
from vq.errors import ListenerFailed
from vq.model import Message, TopicPartition
from vq.testing.waiting import WAIT_S, until

LIMIT_S = 0.6


class Hanging:
    """A listener whose thread stays in one message until it is let go."""

    def __init__(self, hangs_in: int | None = None) -> None:
        self.hangs_in = hangs_in
        self.entered, self.go = threading.Event(), threading.Event()
        self.returned = threading.Event()
        self.handled: list[tuple[int, bytes]] = []

    def __call__(self, message: Message) -> None:
        if message.partition == self.hangs_in and not self.entered.is_set():
            self.entered.set()
            self.go.wait(WAIT_S)
            self.returned.set()
        self.handled.append((message.partition, message.content))


@asynccontextmanager
async def threaded(
    factory: aio.MessageFactory, name: str, listener: Hanging, mode: str
) -> AsyncIterator[ConsumerCore]:
    """A member whose listeners are called by threads, as those of the blocking API are."""
    cluster = factory.admin.cluster
    config = ConsumerConfig(
        group="g",
        member_id=name,
        mode=mode,  # type: ignore[arg-type]
        workers=3,
        max_wait_s=0.1,
        listener_timeout_s=LIMIT_S,
    )
    workers = Workers(3, name=name)
    core = ConsumerCore(cluster, config, permit=Permit(cluster.clock.monotonic))
    watched = Watched(listener)
    core.subscribe("wide", 1 << 20, None, workers, Called(watched, watched))
    await core.start()
    try:
        yield core
    finally:
        listener.go.set()
        await core.close()
        workers.close(WAIT_S)


@pytest.mark.parametrize("mode", ["orderly", "keyed", "concurrent"])
async def test_a_hand_over_waits_for_a_thread_until_its_limit_and_delays_no_other(
    cluster: MemoryCluster, factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """The thread cannot be ended: it is told, its partition moves all the same, and what it does
    then counts for nothing."""
    await send(factory, *(Message("wide", b"%d" % n, key=n) for n in range(4)))
    first, second = Hanging(hangs_in=3), Hanging()
    stuck = TopicPartition("wide", 3)
    async with (
        factory_of(cluster, host="other", seed=5) as other,
        threaded(factory, "a", first, mode) as owner,
    ):
        await until(first.entered.is_set)
        await until(lambda: len(first.handled) == 3)
        await until(lambda: stuck in owner.troubles())
        trouble = owner.troubles()[stuck]
        assert isinstance(trouble.error, ListenerFailed)
        assert f"longer than listener_timeout_s = {LIMIT_S}" in str(trouble.error)
        assert caplog.text.count("listener takes longer than its limit") == 1
        begun = time.monotonic()
        async with threaded(other, "b", second, mode) as heir:
            # Two of four move; the sticky share of the newcomer has the stuck one, or has it not.
            await until(lambda: len(heir.held()) == 2 and len(owner.held()) == 2)
            moved_s = time.monotonic() - begun
            count = len(first.handled) + len(second.handled)
            await send(factory, *(Message("wide", b"late", key=n) for n in range(3)))
            await until(lambda: len(first.handled) + len(second.handled) >= count + 3)
            assert not first.returned.is_set(), "nobody waits for it"
            if stuck in heir.held():
                assert moved_s >= LIMIT_S / 2
                await until(lambda: (3, b"3") in second.handled)
            await owner.close()  # gives the others up; the thread is still in its message
            await until(lambda: len(heir.held()) == 4)
            await until(lambda: (3, b"3") in second.handled)
            assert not first.returned.is_set()
            first.go.set()
            await until(first.returned.is_set)
            await heir.commit()
            committed = (await heir.committed("wide"))[stuck]
            bounds = await heir.reader.partition(stuck).bounds()
            assert committed == bounds.latest, "by the heir, who handled it"
            assert second.handled.count((3, b"3")) == 1
