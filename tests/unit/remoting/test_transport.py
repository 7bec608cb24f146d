"""TCP: what the kernel refuses is told with the address; the rest is in the network contract."""

import _thread
import asyncio
import itertools
import os
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.interrupts import Interrupted, Interrupter

from vq.errors import AddressUnavailable, Refused, Unreachable
from vq.model import Address
from vq.remoting import transport
from vq.remoting.transport import TcpListener, TcpNetwork, tune
from vq.testing.waiting import block_until, until


async def test_an_address_of_another_machine_is_refused() -> None:
    """192.0.2.1 is set aside for documents: nobody has it."""
    with pytest.raises(AddressUnavailable, match=r"192\.0\.2\.1:0"):
        await TcpNetwork().listen(Address("192.0.2.1", 0), asyncio.Protocol)


async def test_a_name_that_does_not_exist_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certain refusal: nothing was sent, and other routes may help."""

    async def find_nothing(*_: object, **__: object) -> None:  # the machine's may take minutes
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", find_nothing)
    with pytest.raises(Unreachable, match=r"no-such-host\.invalid:8123") as caught:
        await TcpNetwork().connect(Address("no-such-host.invalid", 8123), asyncio.Protocol)
    assert isinstance(caught.value, Refused)
    assert caught.value.retriable
    assert caught.value.refresh_routes


def resolving(monkeypatch: pytest.MonkeyPatch, ask: Callable[[], list[tuple[str, int]]]) -> None:
    """Have names resolved by ``ask``."""

    def getaddrinfo(*_: object, flags: int = 0, **__: object) -> list[Any]:
        if flags & socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "no number")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", address) for address in ask()]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_name_that_is_not_resolved_in_time_is_unreachable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The resolver has no time-out of its own; a send has one."""
    answered = threading.Event()

    def ask() -> list[tuple[str, int]]:
        assert answered.wait(20)
        raise socket.gaierror(socket.EAI_AGAIN, "nobody asks any more")

    resolving(monkeypatch, ask)
    with pytest.raises(Unreachable, match="name b1 was not resolved in time"):
        TcpNetwork().open_stream(Address("b1", 8123), time.monotonic() + 0.02)
    answered.set()
    with pytest.raises(Unreachable, match="nobody asks"):
        TcpNetwork().open_stream(Address("b1", 8123), time.monotonic() + 20)


def test_an_interrupt_anywhere_in_the_wait_for_a_name_is_raised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And leaves the thread that asks the resolver going."""
    begun: list[str] = []
    ended: list[str] = []

    class Thread:
        """Starts without the wait of the library's own, which is not what is tried here."""

        def __init__(self, *, target: Callable[[], None], name: str, daemon: bool) -> None:
            self._target = target
            self._name = name

        def start(self) -> None:
            begun.append(self._name)
            _thread.start_new_thread(self.run, ())

        def run(self) -> None:
            self._target()
            ended.append(self._name)

    def ask() -> list[tuple[str, int]]:
        time.sleep(0.001)
        raise socket.gaierror(socket.EAI_AGAIN, "nobody knows it")

    resolving(monkeypatch, ask)
    monkeypatch.setattr(threading, "Thread", Thread)
    for place in itertools.count():
        interrupter = Interrupter(
            place,
            *(
                "remoting/transport.py",
                "vq/waits.py",
                "concurrent/futures",
                f"{os.sep}threading.py",
            ),
        )
        with pytest.raises((Interrupted, Unreachable)) as raised:
            interrupter.run(
                lambda: TcpNetwork().open_stream(Address("b1", 8123), time.monotonic() + 20)
            )
        assert raised.type is (Interrupted if interrupter.reached else Unreachable)
        block_until(lambda: ended == begun)
        if not interrupter.reached:
            break
    assert place > 10


def test_all_addresses_of_a_name_have_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []
    now = [100.0]

    class Silent:
        def __init__(self, *_: object) -> None: ...

        def settimeout(self, seconds: float) -> None:
            given.append(seconds)

        def connect(self, address: tuple[str, int]) -> None:
            now[0] += 3.0
            raise TimeoutError(f"no answer from {address[0]}")

        def close(self) -> None: ...

    monkeypatch.setattr(transport, "_resolve", lambda *_: [(0, 0, 0, "", (n, 1)) for n in "abc"])
    monkeypatch.setattr(transport, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(socket, "socket", Silent)
    with pytest.raises(Unreachable):
        TcpNetwork().open_stream(Address("b1", 8123), 105.0)
    assert given == [5.0, 2.0]


async def test_connections_are_tuned() -> None:
    """No Nagle delay, keepalive, and a bound on what waits to be written."""
    made: list[asyncio.BaseTransport] = []

    class Tuned(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            tune(transport)
            made.append(transport)

    network = TcpNetwork()
    listener = await network.listen(Address("127.0.0.1", 0), Tuned)
    transport, _ = await network.connect(listener.address, Tuned)
    while len(made) < 2:
        await asyncio.sleep(0)
    for end in made:
        sock = end.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        end.close()
    assert transport.get_write_buffer_limits()[1] == 1_048_576
    listener.close()
    await listener.wait_closed()
    await asyncio.sleep(0)


async def test_a_listener_that_has_paused_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next connection may get the number of its descriptor."""
    monkeypatch.setattr(transport, "ACCEPT_PAUSE_S", 0.001)
    listener = await TcpNetwork().listen(Address("127.0.0.1", 0), asyncio.Protocol)
    assert isinstance(listener, TcpListener)
    numbers = [sock.fileno() for sock in listener.sockets]
    listener.pause("no descriptor is free")
    await until(lambda: not listener.trouble)
    listener.close()
    loop = asyncio.get_running_loop()
    assert [loop.remove_reader(number) for number in numbers] == [False]


async def test_a_listener_closed_while_it_waits_for_descriptors_looks_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it ask for room that nobody needs any more."""
    asked: list[int] = []
    monkeypatch.setattr(transport, "ACCEPT_PAUSE_S", 0.001)
    monkeypatch.setattr(TcpListener, "_has_free_descriptor", lambda _: False)
    listener = await TcpNetwork().listen(
        Address("127.0.0.1", 0), asyncio.Protocol, on_full=lambda: asked.append(1)
    )
    assert isinstance(listener, TcpListener)
    listener.pause("no descriptor is free")
    await until(lambda: asked)
    listener.close()
    count, later = len(asked), asyncio.Event()
    asyncio.get_running_loop().call_later(0.002, later.set)  # behind the look that was to come
    await later.wait()
    assert len(asked) == count
