"""How the bytes of a connection come from its transport into its frames.

Most bytes come into a buffer that the connections of a loop share, and are copied out of it. The
rest of a large body comes to where it stays: the kernel writes it there.
"""

import asyncio
import mmap
import threading
from typing import Final, TypeAlias

from vq import limits
from vq.remoting.frames import FrameParser

#: Received at once, but for the rest of large bodies.
RECEIVED_BYTES: Final = 256 * limits.KIB
#: Received at once where a large frame is likely to begin: so little of it is copied.
FIRST_BYTES: Final = 64 * limits.KIB
#: Decrypted at once, under TLS.
CLEAR_BYTES: Final = 256 * limits.KIB


class _Shared(threading.local):
    """What connections of one loop share: it is empty again before another one has its turn.

    ``received`` begins with a page. Where a page of the kernel's begins 8 to 16 bytes before that
    of the buffer, as is usual for one of ``malloc``, a copy takes three times as long.
    """

    def __init__(self) -> None:
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.received = memoryview(mmap.mmap(-1, RECEIVED_BYTES, flags=private))
        self.first = self.received[:FIRST_BYTES]
        self.clear = memoryview(bytearray(CLEAR_BYTES))


shared: Final = _Shared()


class FrameProtocol(asyncio.BufferedProtocol):
    """A protocol that frames come to. Loop-bound.

    A transport calls ``data_received``, or ``get_buffer`` and then, with nothing between them,
    ``buffer_updated``. The rest of a body that has begun in one way may come in the other one.

    Attributes:
        parser: Cuts the frames.
    """

    __slots__ = ()

    parser: FrameParser

    @property
    def takes_room(self) -> bool:
        """Whether bytes may go to the room of ``parser`` now; else ``data_received`` gets them."""
        return True

    def data_received(self, data: bytes) -> None:
        """Take the next bytes."""
        raise NotImplementedError

    def room_filled(self, size: int) -> None:
        """Take the next bytes, which were written to the room: from 1 to its size."""
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where received bytes go."""
        parser = self.parser
        if parser.room is not None and self.takes_room:
            return parser.room
        return shared.first if parser.expects_large else shared.received

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was received there."""
        if self.parser.room is not None and self.takes_room:
            self.room_filled(nbytes)
        else:
            self.data_received(shared.received[:nbytes].tobytes())


#: What transports bring bytes to.
Receiver: TypeAlias = asyncio.Protocol | FrameProtocol
