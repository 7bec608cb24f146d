"""A network in memory on which somebody hears each frame before its receiver does."""

import asyncio
from collections.abc import Callable
from typing import Any

from vq import limits
from vq.model import Address
from vq.remoting.frames import Frame, FrameParser
from vq.remoting.memory import MemoryListener, MemoryNetwork
from vq.remoting.receiving import Receiver

#: ``(from host, to host, it is a request, frame)``; false: the receiver does not get it.
Tap = Callable[[str, str, bool, Frame], bool]


class TappedNetwork(MemoryNetwork):
    """A network whose ``tap`` hears each frame of connections that are made once it is set."""

    tap: Tap | None = None

    async def listen(
        self, address: Address, protocol_factory: Callable[[], Receiver], **more: Any
    ) -> MemoryListener:
        """See ``Network.listen``."""

        def tapped() -> Receiver:
            inner = protocol_factory()
            return inner if self.tap is None else TappedProtocol(inner, self.tap, listens=True)

        return await super().listen(address, tapped, **more)

    async def connect_from(
        self, host: str, address: Address, protocol_factory: Callable[[], Any]
    ) -> tuple[asyncio.Transport, Any]:
        """See ``MemoryNetwork.connect_from``."""
        tap = self.tap
        if tap is None:
            return await super().connect_from(host, address, protocol_factory)
        transport, outer = await super().connect_from(
            host, address, lambda: TappedProtocol(protocol_factory(), tap, listens=False)
        )
        return transport, outer.inner


class TappedProtocol(asyncio.Protocol):
    """Passes on what arrives for a protocol, as long as the tap lets it."""

    def __init__(self, inner: Receiver, tap: Tap, *, listens: bool) -> None:
        self.inner = inner
        self._tap = tap
        self._listens = listens
        self._parser = FrameParser(limits.FRAME_BYTES_MAX)
        self._hosts = "", ""
        self._is_cut = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See ``asyncio.Protocol``."""
        remote, local = (transport.get_extra_info(name)[0] for name in ("peername", "sockname"))
        self._hosts = remote, local
        self.inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        """See ``asyncio.Protocol``."""
        for frame in self._parser.feed(data):
            if not self._is_cut and not self._tap(*self._hosts, self._listens, frame):
                self._is_cut = True
        if not self._is_cut:
            self.inner.data_received(data)

    def __getattr__(self, name: str) -> Any:
        """Return what else the protocol has."""
        return getattr(self.inner, name)

    def eof_received(self) -> bool | None:
        """See ``asyncio.Protocol``."""
        return self.inner.eof_received()

    def connection_lost(self, error: Exception | None) -> None:
        """See ``asyncio.Protocol``."""
        self.inner.connection_lost(error)

    def pause_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self.inner.pause_writing()

    def resume_writing(self) -> None:
        """See ``asyncio.Protocol``."""
        self.inner.resume_writing()
