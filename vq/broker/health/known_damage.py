"""What a node knows of the bytes of its logs, and how far one verification of them is.

In here: the damage that was found, and the pieces that are still to be read. Not in here: reading
(``verifying``).
"""

from collections import deque
from typing import Final

from vq.broker.partition.channel import Channel
from vq.broker.partition.partition_state import ChannelState
from vq.store.care.walk import BadRange
from vq.store.log.log import Log
from vq.store.log.log_config import LogState
from vq.store.log.piece import Piece

#: Damaged ranges that a partition keeps; further ones are added to the last.
RANGES_MAX: Final = 64


class Known:
    """What is known of the bytes of one log.

    Attributes:
        log: Which; another one in the channel's place knows nothing.
        damage: In rising order. Invariant: at most ``RANGES_MAX`` of them.
        unreadable: Records that were stored so that no reader can read them: all nodes have the
            same, so there is nothing to repair. As many at most, those reported first.
        intact_to: Pieces that end at or before this offset were verified in the last pass.
        pass_ended: When that was, on the monotonic clock.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.damage: list[tuple[BadRange, int]] = []  # with the wall clock's ms of finding it
        self.unreadable: list[tuple[BadRange, int]] = []
        self.intact_to = 0
        self.pass_ended = 0.0

    def find(self, offset: int) -> BadRange | None:
        """Return the damage that holds ``offset``, if it is known."""
        return next((each for each, _ in self.ranges if each.start <= offset < each.end), None)

    @property
    def ranges(self) -> list[tuple[BadRange, int]]:
        """All that readers stop at, in rising order."""
        return sorted([*self.damage, *self.unreadable]) if self.unreadable else self.damage

    def note_unreadable(self, found: BadRange, now_ms: int) -> bool:
        """Keep a record that cannot be read; whether it was not known."""
        if len(self.unreadable) >= RANGES_MAX or any(
            each.start == found.start for each, _ in self.unreadable
        ):
            return False
        self.unreadable.append((found, now_ms))
        return True

    def intact_until(self, piece: Piece) -> int:
        """Return how far ``piece`` was found intact in the last pass; its start where damaged."""
        if any(each.start < piece.end and piece.start < each.end for each, _ in self.damage):
            return piece.start
        return min(max(piece.start, self.intact_to), piece.end)

    def replace(self, start: int, end: int, found: list[BadRange], now_ms: int) -> list[BadRange]:
        """Take what verifying ``[start, end)`` found; return what was not known before."""
        known = {each[:2] for each, _ in self.damage}
        kept = [(each, ms) for each, ms in self.damage if each.end <= start or each.start >= end]
        times = {each[:2]: ms for each, ms in self.damage}
        kept += [(each, times.get(each[:2], now_ms)) for each in found]
        kept.sort()
        while len(kept) > RANGES_MAX:
            (last, _), (before, ms) = kept.pop(), kept.pop()
            kept.append((before._replace(end=last.end, why="several ranges"), ms))
        self.damage = kept
        return [each for each in found if each[:2] not in known]


class Pass:
    """One verification of a whole partition, under way or ended."""

    def __init__(self, channel: Channel, begun_ms: int) -> None:
        self.channel = channel
        self.begun_ms = begun_ms
        self.ended = False
        self.compared = False  # whether the files of ``lately`` were looked at
        self.trouble = ""  # why not everything was read
        self.unreachable = ""  # why some of that could not be
        self.total_bytes = 0
        self.read_bytes = 0
        self.todo: deque[tuple[Log, Piece]] = deque()
        self.lately: list[tuple[Log, Piece]] = []  # found intact by an earlier pass: not read
        self.ends: dict[Log, int] = {}  # how far each log is verified when this has ended
        self.found: set[tuple[Log, int, int]] = set()  # damaged ranges; some are repaired by now

    @property
    def skipped_bytes(self) -> int:
        """How many bytes are not read."""
        return sum(piece.end - piece.start for _, piece in self.lately)

    def add(self, log: Log, piece: Piece) -> None:
        """Have a piece read."""
        self.todo.append((log, piece))
        self.total_bytes += piece.end - piece.start

    def read_again(self, pieces: list[tuple[Log, Piece]]) -> None:
        """Have some of ``lately`` read all the same."""
        wanted = set(pieces)
        for each in self.lately:
            if each in wanted:
                self.add(*each)
        self.lately = [each for each in self.lately if each not in wanted]


def is_broken(channel: Channel) -> bool:
    """Whether a log of the partition is in quarantine, or cannot be read."""
    return any(
        part.state is ChannelState.UNREADABLE
        or (part.log is not None and part.log.state is LogState.QUARANTINED)
        or (
            part.state is ChannelState.FAILED
            and part.log is not None
            and not part.log.status.readable
        )
        for part in (*channel.older, channel)
    )
