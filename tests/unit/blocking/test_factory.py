"""The blocking front door: open, shut down, open again."""

import asyncio
import contextvars
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from support.threads import in_thread

from vq.blocking import MessageFactory
from vq.blocking import factory as factories
from vq.client.config import ConsumerConfig, MessageFactoryConfig, ProducerConfig
from vq.clock import SystemClock
from vq.errors import CoordinationError, InvalidState
from vq.testing.waiting import block_until


@pytest.mark.parametrize("fails", [False, True])
def test_a_factory_that_was_shut_down_may_be_opened_again(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Also when something failed on the way, which is raised."""
    closed: list[str] = []

    async def open_cluster(config: MessageFactoryConfig) -> Any:
        async def close() -> None:
            closed.append(config.client_id)
            if fails:
                raise CoordinationError("away")

        return SimpleNamespace(close=close)

    monkeypatch.setattr(factories, "open_cluster", open_cluster)
    factory = MessageFactory()
    for name in ("one", "two"):
        with pytest.raises(InvalidState, match="not open"):
            factory.create_producer()
        factory.open(MessageFactoryConfig(client_id=name))
        with pytest.raises(InvalidState, match="open already"):
            factory.open()
        runtime = factory._runtime
        assert runtime is not None
        if fails:
            with pytest.raises(CoordinationError, match="away"):
                factory.shutdown()
        else:
            factory.shutdown()
        factory.shutdown()
        assert runtime.gone
    assert closed == ["one", "two"]


class Closing:
    """A core that closes as soon as ``released`` is set; notes that in ``events``."""

    interceptors = None
    transactions = SimpleNamespace(open=0)
    accumulator = SimpleNamespace(check_not_inside=lambda: None)
    is_shared = False

    def __init__(self, events: list[str]) -> None:
        self.closed = self.stopped = False
        self.released = threading.Event()
        self._events = events

    def append(self, *_: object) -> None:
        """Take nothing."""

    abandon = abandon_in_child = flush_at_exit = ensure_started = append
    config: Any = ProducerConfig()

    async def close(self) -> None:
        self.closed = True
        while not self.released.is_set():
            await asyncio.sleep(0.001)
        if not self.stopped:
            self._events.append("closed")
        self.stopped = True


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_shutdown_waits_for_what_another_thread_is_closing(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Also if more was made since: without the cluster, the close could not end in order."""
    events: list[str] = []
    made: list[Closing] = []

    async def lease_slot() -> None: ...

    async def close() -> None:
        events.append("cluster closed")

    async def open_cluster(_: MessageFactoryConfig) -> Any:
        return SimpleNamespace(
            close=close,
            lease_slot=lease_slot,
            clock=SystemClock(),
            context=contextvars.copy_context(),
        )

    def make(*_: object, **__: object) -> Closing:
        made.append(Closing(events))
        if kind == "consumer":
            made[-1].config = ConsumerConfig()
        return made[-1]

    monkeypatch.setattr(factories, "open_cluster", open_cluster)
    monkeypatch.setattr(factories, "ProducerCore", make)
    monkeypatch.setattr(factories, "ConsumerCore", make)
    factory = MessageFactory().open()
    create = factory.create_producer if kind == "producer" else factory.create_consumer
    first = create()
    with in_thread(first.close):
        block_until(lambda: made[0].closed)
        create()
        made[1].released.set()
        with in_thread(factory.shutdown):
            block_until(lambda: made[1].stopped)
            made[0].released.set()
    assert events == ["closed", "closed", "cluster closed"]
