"""A TCP proxy that cuts, swallows, delays, forgets and refuses, for a link of real processes.

    client ──▶ proxy.address ──▶ target
                 │ cut(UP, 137)      the connection ends after 137 more bytes towards the target
                 │ cut(DOWN, 20)     … or towards the client; by reset or by a normal end
                 │ swallow(UP)       bytes are taken and go nowhere; connections stay
                 │ delay(0.2)        bytes come so many seconds later, in order
                 │ forget(2)         the next two connections are taken, and nothing more
                 │ refuse()          every connection ends, new ones are refused
                 └ heal()            connections that lost bytes end; from now on all is well

It runs on a loop and thread of its own, so that it works while the test blocks.
"""

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from vq.model import Address

UP, DOWN = "up", "down"
_WAIT_S = 30.0
_AGAIN_S = 0.05
_LATE_MAX = 256  # pieces of one direction that are held back; then the sender waits
_RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: close sends RST


@dataclass(frozen=True)
class Cut:
    """A cut that happened: ``passed`` of the bytes in hand went through, ``lost`` did not."""

    direction: str
    reset: bool
    passed: int
    lost: int


class ChaosProxy:
    """One proxied link. Use as a context manager; the methods are for the test's thread."""

    def __init__(self, target: Address | None = None) -> None:
        self.target = target
        self.cuts: list[Cut] = []
        self.swallowed = 0
        self.delayed = 0
        self.connected = 0
        self.forgotten = 0
        self.address = Address("127.0.0.1", 0)
        self._links: set[_Link] = set()
        self._armed: tuple[str, int, bool] | None = None
        self._swallowing: frozenset[str] = frozenset()  # in these directions
        self._delay_s = 0.0
        self._refusing = False
        self._to_forget = 0
        self._changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxy")

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(_WAIT_S)
        self.address = Address(*self._server.sockets[0].getsockname()[:2])
        return self

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(_WAIT_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_WAIT_S)
        self._loop.close()

    async def _close(self) -> None:
        """End every connection, also one that is just being taken: its task must not be cancelled.

        asyncio would then forget the socket it has in hand.
        """
        self._refusing = True
        self._server.close()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            self._drop(reset=False)
            await asyncio.wait(tasks, timeout=_AGAIN_S)

    # What a test does -----------------------------------------------------------------------------
    def cut(self, direction: str, after: int, *, reset: bool = False) -> None:
        """End the connection on which the byte ``after`` bytes from now would pass."""
        self._do(lambda: setattr(self, "_armed", (direction, after, reset)))

    def cut_now(self, *, reset: bool = False) -> None:
        """End every connection."""
        self._do(lambda: self._drop(reset=reset))

    def swallow(self, *directions: str) -> None:
        """Drop all bytes in some directions, both unless told; the connections stay open."""
        self._do(lambda: setattr(self, "_swallowing", frozenset(directions or (UP, DOWN))))

    def delay(self, seconds: float) -> None:
        """Have what comes from now on pass so many seconds later, in either direction."""
        self._do(lambda: setattr(self, "_delay_s", seconds))

    def refuse(self) -> None:
        """End every connection, and every new one at once."""

        def begin() -> None:
            self._refusing = True
            self._drop(reset=True)

        self._do(begin)

    def forget(self, count: int) -> None:
        """Take the next ``count`` connections and never do anything with them."""
        self._do(lambda: setattr(self, "_to_forget", count))

    def heal(self) -> None:
        """Be a mere wire again; connections whose bytes were swallowed end."""

        def end() -> None:
            if self._swallowing:
                self._drop(reset=True)
            self._armed, self._swallowing, self._refusing = None, frozenset(), False
            self._delay_s = 0.0

        self._do(end)

    def wait_cuts(self, count: int, timeout_s: float = _WAIT_S) -> bool:
        """Wait until ``count`` cuts have happened in all; whether they did."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self.cuts) >= count, timeout_s)

    def _do(self, action: Callable[[], Any]) -> None:
        done = threading.Event()

        def run() -> None:
            action()
            done.set()

        self._loop.call_soon_threadsafe(run)
        assert done.wait(_WAIT_S), "the proxy's loop does not run"

    # On the loop ----------------------------------------------------------------------------------
    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self._links.add(link)
        try:
            if self._refusing or self.target is None:
                return
            if self._to_forget:
                self._to_forget -= 1
                self.forgotten += 1
                await writer.wait_closed()
                return
            back, forth = await asyncio.open_connection(*self.target)
            link.writers.append(forth)
            self.connected += 1
            up = asyncio.create_task(self._pump(link, UP, reader, forth))
            down = asyncio.create_task(self._pump(link, DOWN, back, writer))
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
            for task in (up, down):
                task.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # the target is down, or we end: the client sees its connection end
        finally:
            self._links.discard(link)
            link.end(reset=False)

    async def _pump(
        self,
        link: "_Link",
        direction: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_LATE_MAX)
        reading = asyncio.create_task(self._read(reader, pieces))
        try:
            while data := await self._next(pieces):
                if direction in self._swallowing:
                    self.swallowed += len(data)
                    continue
                keep = self._keep(direction, len(data))
                writer.write(data[:keep])
                await writer.drain()
                if keep < len(data):
                    await self._cut(link, direction, keep, len(data) - keep)
                    return
        except OSError:
            pass  # one side is gone: so is the link
        finally:
            reading.cancel()

    async def _read(
        self, reader: asyncio.StreamReader, pieces: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        """Take what comes, each piece with the time at which it may pass; b"" at the end."""
        data = b"?"
        while data:
            try:
                data = await reader.read(65536)
            except OSError:
                data = b""
            self.delayed += bool(self._delay_s)
            await pieces.put((self._loop.time() + self._delay_s, data))
            if not self._delay_s:
                await pieces.join()  # a wire holds nothing

    async def _next(self, pieces: asyncio.Queue[tuple[float, bytes]]) -> bytes:
        due, data = await pieces.get()
        while (left := due - self._loop.time()) > 0 and self._delay_s:
            await asyncio.sleep(min(left, _AGAIN_S))
        pieces.task_done()
        return data

    def _keep(self, direction: str, size: int) -> int:
        """Return how many of ``size`` bytes may pass."""
        if self._armed is None or self._armed[0] != direction:
            return size
        _, left, reset = self._armed
        if left >= size:
            self._armed = (direction, left - size, reset)
            return size
        return left

    async def _cut(self, link: "_Link", direction: str, passed: int, lost: int) -> None:
        assert self._armed is not None
        reset = self._armed[2]
        self._armed = None
        link.end(reset=reset)
        with self._changed:
            self.cuts.append(Cut(direction, reset, passed, lost))
            self._changed.notify_all()

    def _drop(self, *, reset: bool) -> None:
        for link in list(self._links):
            link.end(reset=reset)


class _Link:
    """The two connections of one client."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writers = [writer]

    def end(self, *, reset: bool) -> None:
        for writer in self.writers:
            if reset:
                sock = writer.get_extra_info("socket")
                if sock is not None and sock.fileno() >= 0:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            else:
                writer.close()
