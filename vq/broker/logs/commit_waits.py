"""Waits until all nodes in sync have a log up to an offset, and until it is durable here, too."""

import asyncio

from vq.broker.base.flusher_share import is_done
from vq.broker.partition.channel import Channel
from vq.errors import Busy

#: How long a SEAL waits until the nodes in sync have the whole log; one that does not leaves the
#: set within this time.
COMMIT_WAIT_S = 6.0


class _Wait:
    """Waits until the high watermark of a channel is at an offset, or the channel is closed."""

    def __init__(self, channel: Channel, offset: int) -> None:
        self.done = asyncio.Event()
        self._channel = channel
        self._offset = offset
        channel.park(self)
        self.wake()

    def wake(self) -> None:
        """See ``parked.Woken``."""
        if self._channel.high_watermark >= self._offset or not self._channel.rules.read:
            self.done.set()


async def until_committed(channel: Channel) -> None:
    """Return once all that is in the log is where it has to be.

    Raises:
        Busy: That takes too long.
    """
    log = channel.log
    if log is None or channel.high_watermark >= log.end_offset or not channel.role.insync:
        return
    wait = _Wait(channel, log.end_offset)
    try:
        async with asyncio.timeout(COMMIT_WAIT_S):
            await wait.done.wait()
    except TimeoutError:
        raise Busy(
            f"the nodes in sync have not stored partition {channel} up to {log.end_offset} "
            f"within {COMMIT_WAIT_S:g} s"
        ) from None
    finally:
        channel.parked.pop(wait, None)


async def is_stored(channel: Channel, offset: int, timeout_s: float) -> bool:
    """Return whether all before ``offset`` is committed and durable, once it is or time is up.

    A node that copies asks its master: it does not know that the end of a quiet partition is
    committed, and nobody else would tell it.
    """
    log = channel.log
    if log is None or offset > log.end_offset:
        return False
    wait = _Wait(channel, offset)
    try:
        async with asyncio.timeout(timeout_s):
            await wait.done.wait()
    except TimeoutError:
        return False
    finally:
        channel.parked.pop(wait, None)
    if log.synced_offset < offset:
        channel.flush_now()
        await is_done(lambda: channel.log is log and log.synced_offset < offset)
    return channel.log is log and offset <= min(log.synced_offset, channel.high_watermark)
