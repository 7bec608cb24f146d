"""How far the reads of a fetch session go: readers see what cannot be taken back, copies see all.

A session has one reach from its begin to its end. ``READERS`` is that of clients, ``COPY_READERS``
that of clients who take the answer of a copy, too; a node that copies the logs of its group has a
``CopyReach`` of its own.
"""

from functools import partial
from operator import attrgetter
from typing import Final, Protocol

from vq.broker.base.parked import Parked, Woken
from vq.broker.partition.channel import Channel
from vq.broker.partition.copies import CopyPosition
from vq.broker.partition.partition_state import ChannelState
from vq.broker.serving.reading import check_answers, check_range, check_readable, not_followed
from vq.errors import OffsetOutOfRange
from vq.remoting import wire_pb2 as wire
from vq.store.log.log_config import LogState

_OK: Final = LogState.OK  # looked up for each read
_new: Final = tuple.__new__  # of a named tuple: the same without its Python-level wrapper


class Reach(Protocol):
    """What the partitions of one fetch session give."""

    def check(self, channel: Channel, epoch: int) -> None:
        """Return if the partition may be read by somebody who knows ``epoch``.

        Raises:
            VqError: It may not.
        """
        ...

    def check_range(self, part: Channel, offset: int) -> None:
        """Return if ``offset`` is in what is kept here, or just behind it while more may come.

        Raises:
            VqError: It is not.
        """
        ...

    def check_next_log(self, part: Channel, offset: int) -> None:
        """Return if whoever has read another log up to ``offset`` may go on with that of ``part``.

        Raises:
            OffsetOutOfRange: It may not.
        """
        ...

    def limit(self, part: Channel) -> int:
        """Return where reading stops for now."""
        ...

    def park(self, part: Channel, waiting: Woken, *, watches: bool) -> tuple[Parked, ...]:
        """Have a read wait for this limit to move; with ``watches``, for the high watermark, too.

        Returns:
            What it is to be taken out of again.
        """
        ...

    def asked(self, channel: Channel, offset: int) -> None:
        """Note that the peer asks for what follows ``offset``."""
        ...

    def deleted(self, channel: Channel) -> int:
        """Return before which offset the peer is to delete, too; 0: nothing."""
        ...

    def gone(self, channel: Channel) -> None:
        """Note that the peer does not read the partition any more."""
        ...


class _Readers:
    """Clients: up to the high watermark; ``from_copy``: as far as a copy knows it, too."""

    check_range = staticmethod(check_range)
    limit = staticmethod(attrgetter("read_limit"))

    def __init__(self, *, from_copy: bool) -> None:
        self.check = partial(check_readable, from_copy=from_copy)

    def check_next_log(self, part: Channel, offset: int) -> None:
        pass

    def park(self, part: Channel, waiting: Woken, *, watches: bool) -> tuple[Parked, ...]:
        part.park(waiting)
        return (part.parked,)

    def asked(self, channel: Channel, offset: int) -> None:
        pass

    def deleted(self, channel: Channel) -> int:
        return 0

    def gone(self, channel: Channel) -> None:
        pass


class CopyReach:
    """A node that copies: up to the end of the log, also of topics that clients may not read.

    What it asks for tells what it has: see ``copies.Copies.positions``. It holds for one epoch: a
    request that is still here when another one begins says nothing of what the node has then.

    Args:
        node: Its name.
        incarnation: Of its registration.
        epoch: Of the master that it follows, which is this node.
    """

    def __init__(self, node: str, incarnation: int, epoch: int) -> None:
        self._node = node
        self._incarnation = incarnation
        self._epoch = epoch

    def is_of(self, header: wire.ReplicateRequest) -> bool:
        """Whether the node sends a request, in the same epoch."""
        return (
            self._node == header.node
            and self._incarnation == header.incarnation
            and self._epoch == header.epoch
        )

    def check(self, channel: Channel, epoch: int) -> None:
        """See ``Reach.check``."""
        if channel.state is ChannelState.CLOSED:
            raise channel.why_refused()
        if channel.role.epoch != self._epoch:
            raise not_followed(channel.role, self._node, self._epoch)
        check_answers(channel)

    def check_range(self, part: Channel, offset: int) -> None:
        """See ``Reach.check_range``."""
        log, end = part.log, part.start_offset
        if log is not None:
            status = log.status
            end = status.end_offset
            if status.state is not _OK:
                status.check_readable()
                status.check_more(offset)
        elif not part.rules.read:
            raise part.why_refused()
        if not part.start_offset <= offset <= end:
            raise OffsetOutOfRange(
                f"offset {offset} of {part} is outside its log [{part.start_offset}, {end}]",
                details={"earliest": part.start_offset, "latest": end},
            )

    def check_next_log(self, part: Channel, offset: int) -> None:
        """See ``Reach.check_next_log``: a copy has a log for each range, and compares it first."""
        raise OffsetOutOfRange(
            f"another log of {part} begins at {part.start_offset}; the copy at {offset} begins one",
            details={"earliest": part.start_offset, "latest": self.limit(part)},
        )

    def limit(self, part: Channel) -> int:
        """See ``Reach.limit``."""
        return part.start_offset if part.log is None else part.log.status.end_offset

    def park(self, part: Channel, waiting: Woken, *, watches: bool) -> tuple[Parked, ...]:
        """See ``Reach.park``."""
        places = (part.copies.parked, part.parked) if watches else (part.copies.parked,)
        for place in places:
            place[waiting] = None
        return places

    def asked(self, channel: Channel, offset: int) -> None:
        """See ``Reach.asked``."""
        position = _new(CopyPosition, (offset, self._incarnation, self))
        if channel.copies.note(self._node, position) and channel.role.insync:
            channel.commit()

    def deleted(self, channel: Channel) -> int:
        """See ``Reach.deleted``."""
        return channel.copies.deleted

    def gone(self, channel: Channel) -> None:
        """See ``Reach.gone``."""
        channel.copies.forget(self._node, self)


READERS: Final[Reach] = _Readers(from_copy=False)
COPY_READERS: Final[Reach] = _Readers(from_copy=True)
