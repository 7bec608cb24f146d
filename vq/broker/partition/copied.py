"""One partition on a node that copies it: what its master sent is written, and shown to readers."""

from collections.abc import Callable, Sequence

from vq.broker.base.parked import wake_all
from vq.broker.partition.channel import Channel
from vq.errors import VqError
from vq.store.log.log_config import LogState
from vq.store.records.format import BatchHeader


def append_copied(
    channel: Channel, data: bytes | memoryview, batches: Sequence[BatchHeader] | None = None
) -> None:
    """Append whole batches of the master's log, on a node that follows it; see ``append_framed``.

    Raises:
        VqError: They are not what follows here, or cannot be written.
    """
    log = channel.log
    if log is None:
        raise channel.why_refused()
    before = log.status.messages
    try:
        log.append_framed(data, batches)
    except VqError as error:
        if log.state is LogState.FAILED:
            channel.fail(error)
        raise
    if not channel.sync:
        channel.flush_due.appended(log.status.messages - before, channel.settings)


def begin_copying(channel: Channel, epoch: int, watch: Callable[[], None]) -> None:
    """The log is being copied from the master of ``epoch`` from now on; see ``Copies``."""
    channel.copies.watch = watch
    channel.copies.deleted = 0  # another master may have had another log
    for each in (*channel.older, channel):
        each.copies.epoch = epoch
    if channel.log is not None:
        # A master before may have told more that is lost since, by an operator's decision.
        channel.copies.told = min(channel.copies.told, channel.log.end_offset)
        channel.show_what_was_told(channel.log)


def end_copying(channel: Channel) -> None:
    """The log is not copied any more, so readers are sent to the master."""
    channel.copies.watch = None
    for each in (*channel.older, channel):
        each.copies.epoch = 0
        wake_all(each.partition, each.parked)


def show_copied(channel: Channel) -> None:
    """Show readers what the master told to be committed, and is here."""
    if channel.log is not None and channel.role.follows:
        channel.move_high_watermark(channel.committed(channel.log))
