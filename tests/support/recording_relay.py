"""A relay between two ends that keeps every byte it passes on: what a listener on the wire has."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from vq.model import Address


class RecordingRelay:
    """Where a client connects, and what both ends have sent so far.

    Attributes:
        address: Connect to it instead of the target.
        captured: All bytes, of both directions.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.captured = bytearray()

    async def pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Pass on what comes, until it ends."""
        with contextlib.suppress(OSError):
            while data := await source.read(1 << 16):
                self.captured += data
                target.write(data)
                await target.drain()
        target.close()


@contextlib.asynccontextmanager
async def recording_relay(target: Address) -> AsyncIterator[RecordingRelay]:
    """Provide a relay to ``target`` on this loop."""
    writers: list[asyncio.StreamWriter] = []
    ends: list[asyncio.Future[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(end := asyncio.get_running_loop().create_future())
        there, back = await asyncio.open_connection(*target)
        writers.extend((writer, back))
        await asyncio.gather(relay.pump(reader, back), relay.pump(there, writer))
        end.set_result(None)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    relay = RecordingRelay(Address("127.0.0.1", server.sockets[0].getsockname()[1]))
    try:
        yield relay
    finally:
        server.close()
        for writer in writers:
            writer.transport.abort()
        await asyncio.gather(*ends)
        await server.wait_closed()
