"""The implementations of the Coordinator port, and what their contract asks of them."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from support.zookeeper import ZooKeeperRoot, admin, expire_session, let_read

from vq.coordination.tree.coordinator import OPEN, Coordinator, SessionState, Set, WatchEvent
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.zookeeper.zk import ZooKeeperCoordinator
from vq.testing.waiting import WAIT_S, block_until


class Ensemble:
    """What the suite needs of either implementation, beyond the port itself."""

    async def client(self, cluster: str = "test", **options: Any) -> Coordinator:
        raise AssertionError

    async def expire(self, client: Coordinator) -> None:
        raise AssertionError

    async def blink(self, client: Coordinator) -> None:
        """Break the connection once; the client finds its way back."""
        raise AssertionError

    def lose_next_reply(self, client: Coordinator) -> None:
        raise AssertionError

    def delay_next_answer(self, client: Coordinator, seconds: float) -> None:
        """Hold the answer to the client's next call back."""
        raise AssertionError

    def expire_unheard(self, client: Coordinator) -> None:
        """Hold the loop up until the client's session has ended and the next one is there."""
        raise AssertionError

    def outlive_next(self, client: Coordinator) -> None:
        """Have the next call sent in the session after the one it is begun in."""
        raise AssertionError

    def lag(self, client: Coordinator) -> None:
        """Let the client's server fall behind, where that can be had."""
        raise AssertionError

    async def answer_and_change(self, client: Coordinator, path: str) -> None:
        """Hold the loop up until the call under way is answered and ``path`` changed after it."""
        raise AssertionError

    async def let_read(self, client: Coordinator, path: str, *, allowed: bool) -> None:
        """Say by the ACL of a node whether anybody may read it."""
        raise AssertionError


class InMemory(Ensemble):
    """The twin."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._ensemble = MemoryEnsemble()

    async def client(self, cluster: str = "test", **options: Any) -> Coordinator:
        made = self._ensemble.coordinator(cluster, **({"session_timeout_s": 4.0} | options))
        self._stack.push_async_callback(made.close)
        await made.start()
        return made

    async def expire(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.expire(client)

    async def blink(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.blink(client)

    def lose_next_reply(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.lose_next_reply(client)

    def delay_next_answer(self, client: Coordinator, seconds: float) -> None:
        self._ensemble.delay = lambda: seconds

    def expire_unheard(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.expire_unheard(client)

    def outlive_next(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.outlive_next(client)

    def lag(self, client: Coordinator) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.lag(client)

    async def answer_and_change(self, client: Coordinator, path: str) -> None:
        assert isinstance(client, MemoryCoordinator)
        served = self._ensemble.served
        while self._ensemble.served == served:
            await asyncio.sleep(0)
        self._ensemble.apply([Set(client.full_path(path), b"changed")], 0)

    async def let_read(self, client: Coordinator, path: str, *, allowed: bool) -> None:
        assert isinstance(client, MemoryCoordinator)
        self._ensemble.tree.set_acl(client.full_path(path), OPEN if allowed else frozenset())


class Real(Ensemble):
    """A real ZooKeeper."""

    def __init__(self, stack: AsyncExitStack, root: ZooKeeperRoot) -> None:
        self._stack = stack
        self._root = root

    async def client(self, cluster: str = "test", **options: Any) -> Coordinator:
        made = self._root.coordinator(cluster, **options)
        self._stack.push_async_callback(made.close)
        await made.start()
        return made

    async def expire(self, client: Coordinator) -> None:
        assert isinstance(client, ZooKeeperCoordinator)
        await asyncio.to_thread(expire_session, client)

    async def blink(self, client: Coordinator) -> None:
        _kazoo(client)._connection._socket.shutdown(2)

    def lose_next_reply(self, client: Coordinator) -> None:
        """Cut the connection when the next answer to a request (not to a ping) is to be read."""
        from kazoo.protocol.connection import ConnectionDropped

        def cut() -> None:
            raise ConnectionDropped("cut by the test")

        _before_next(_kazoo(client)._connection, "_read_response", cut)

    def delay_next_answer(self, client: Coordinator, seconds: float) -> None:
        connection = _kazoo(client)._connection
        _before_next(connection, "_read_response", lambda: time.sleep(seconds))  # kazoo's thread

    def expire_unheard(self, client: Coordinator) -> None:
        assert isinstance(client, ZooKeeperCoordinator)
        before = client.session_id
        expire_session(client)  # blocks
        block_until(lambda: _session_of(client) not in {0, before})

    def outlive_next(self, client: Coordinator) -> None:
        """End the session between the look at it and the sending, which no check can close."""
        _before_next(_kazoo(client), "_call", lambda: self.expire_unheard(client))

    def lag(self, client: Coordinator) -> None:
        """Nothing to do: the only server of an ensemble is never behind, and need not be."""

    async def answer_and_change(self, client: Coordinator, path: str) -> None:
        assert isinstance(client, ZooKeeperCoordinator)
        kazoo, full = _kazoo(client), client.full_path(path)
        watchers = kazoo._data_watchers
        block_until(lambda: bool(watchers.get(full)))  # so the answer was read
        with admin(self._root.hosts) as other:
            other.set(full, b"changed")
        block_until(lambda: not watchers.get(full))  # and the event was
        kazoo.exists_async("/").get(timeout=WAIT_S)  # what came before it was handed to the loop

    async def let_read(self, client: Coordinator, path: str, *, allowed: bool) -> None:
        assert isinstance(client, ZooKeeperCoordinator)
        path = client.full_path(path)
        await asyncio.to_thread(let_read, self._root.hosts, path, allowed=allowed)


def _kazoo(client: Coordinator) -> Any:
    """Return the client of kazoo, which has no door for faults of its connection."""
    assert isinstance(client, ZooKeeperCoordinator)
    assert client.kazoo is not None
    return client.kazoo


def _session_of(client: ZooKeeperCoordinator) -> int:
    identity = _kazoo(client).client_id
    return identity[0] if identity else 0


def _before_next(owner: Any, name: str, strike: Callable[[], None]) -> None:
    """Do something before the next call of a method."""
    method = getattr(owner, name)

    def once(*arguments: Any) -> Any:
        setattr(owner, name, method)
        strike()
        return method(*arguments)

    setattr(owner, name, once)


class Hints:
    """Collects watch events, and waits for them with a deadline."""

    def __init__(self) -> None:
        self.seen: list[WatchEvent] = []
        self._came = asyncio.Event()

    def __call__(self, event: WatchEvent) -> None:
        self.seen.append(event)
        self._came.set()

    async def next(self) -> WatchEvent:
        async with asyncio.timeout(WAIT_S):
            while not self.seen:
                self._came.clear()
                await self._came.wait()
        return self.seen.pop(0)


class States:
    """Counts the transitions a listener is told."""

    def __init__(self, client: Coordinator) -> None:
        self.seen: list[SessionState] = []
        self._came = asyncio.Event()
        self.remove = client.add_listener(self._on_state)

    def _on_state(self, state: SessionState) -> None:
        self.seen.append(state)
        self._came.set()

    async def until(self, *wanted: SessionState) -> None:
        await self._until(lambda: tuple(self.seen[-len(wanted) :]) == wanted)

    async def until_seen(self, wanted: SessionState) -> None:
        """The same for a state that may have passed already."""
        await self._until(lambda: wanted in self.seen)

    async def _until(self, met: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not met():
                self._came.clear()
                await self._came.wait()
