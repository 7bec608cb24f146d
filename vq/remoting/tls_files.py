"""Looks at the files of TLS of a server on a timer; a broker has a job for it."""

import asyncio
import contextlib
from typing import Final

from vq.security.tls import TlsContexts

_LOOK_S: Final = 10.0


class TlsFiles:
    """Has new files used while a server runs. Loop-bound; the files are read on a thread.

    Args:
        contexts: Of the listeners of the server.
    """

    def __init__(self, *contexts: TlsContexts) -> None:
        self._contexts = contexts
        self._now = asyncio.Event()

    def look_soon(self) -> None:
        """Look now; what a signal may call."""
        self._now.set()

    async def run(self) -> None:
        """Look again and again, until it is cancelled."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._now.wait()
            self._now.clear()
            for each in self._contexts:
                await asyncio.to_thread(each.look)
