"""How far a partition was handled: what is committed, and where a lost partition goes on. Pure.

A window has messages that were decoded and are not all finished. What is committed is the place of
the lowest unfinished one, in whatever order they are finished. Where one message of a partition is
handled at a time, the window that counts has the size one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any, Final, NamedTuple

from vq.coordination.groups.claims import Claim
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.model import Message


class Progress(NamedTuple):
    """How far a partition was handled.

    ``message_id`` is the id of the last message that the user is done with; None: none since the
    delivery began. ``epoch`` is that of the batch before ``position``; 0: not known, which it is to
    a delivery. ``ahead`` has the offset and the id of each message behind it that is handled, too.
    ``owed`` is how many messages before it were handled since the last commit that is known.
    """

    position: int
    message_id: int | None = None
    epoch: int = 0
    ahead: tuple[tuple[int, int], ...] = ()
    owed: int = 0


_NOTHING: Final[Sequence[Message]] = ()
_NONE_LEFT: Final[Iterator[Any]] = iter(())


class _Turn(NamedTuple):
    """How far somebody is who handles messages one by one, or list by list, in order.

    ``left`` yields the ``total`` messages of this turn, or ``size`` lists of ``step`` of them; it
    has given out what is handled now. So nothing is noted for each.
    """

    first: int
    size: int = 0
    left: Iterator[Any] = _NONE_LEFT
    step: int = 1
    total: int = 0

    @property
    def given(self) -> int:
        """How many were given out."""
        return self.size - length_hint(self.left)

    @property
    def taken(self) -> int:
        """How many messages were given out."""
        return min(self.given * self.step, self.total)


_AT_BEGIN: Final = _Turn(0)


class Window:
    """Messages of one partition that were decoded together, and which of them are finished.

    One thread changes it, any may ask for ``finished``; see ``Delivery`` for ``place``.

    Attributes:
        messages: In order of their offsets.
        before: How many were finished before these.
        left: Those of the present turn that were not handed out; none of a turn in lists,
        lists_left: which are here.
    """

    __slots__ = ("_ahead", "_begin", "_turn", "before", "left", "lists_left", "messages")

    def __init__(self, position: int) -> None:
        self.messages = _NOTHING
        self.left: Iterator[Message] = _NONE_LEFT
        self.lists_left: Iterator[list[Message]] = _NONE_LEFT
        self._begin = Progress(position)  # in front of the messages
        self.before = 0
        self._turn = _AT_BEGIN
        self._ahead: set[int] = set()  # finished, behind the lowest unfinished one

    @property
    def finished(self) -> int:
        """How many are finished, up to the lowest unfinished one."""
        first, size, left, step, _ = self._turn
        return first + max(0, size - length_hint(left) - 1) * step

    @property
    def given(self) -> int:
        """How many messages, or lists, the present turn has given out."""
        return self._turn.given

    @property
    def in_hand(self) -> int:
        """How many messages the present turn has given out and not finished."""
        turn = self._turn
        return turn.first + turn.taken - self.finished

    @property
    def finished_ever(self) -> int:
        """How many were finished since the beginning."""
        return self.before + self.finished

    def place(self) -> Progress:
        """Return where the lowest unfinished message is; all before it are finished."""
        finished = self.finished
        if not finished:
            return self._begin
        last = self.messages[finished - 1]
        return Progress(last.next_offset, last.id)

    def open(self, messages: Sequence[Message]) -> None:
        """Go on behind what is finished, with the messages that follow there."""
        if self.messages:
            finished = self.finished
            if finished:  # written out: small chunks feel every call
                last = self.messages[finished - 1]
                self._begin = Progress(last.next_offset, last.id)
                self.before += finished
            self._ahead.clear()
        self.messages, self._turn = messages, _AT_BEGIN
        self.left = self.lists_left = _NONE_LEFT

    def pass_to(self, position: int) -> None:
        """Go on at a position that no unfinished message precedes."""
        if self.messages:
            self.open(_NOTHING)
        self._begin = Progress(position, self._begin.message_id)

    def pass_over(self, position: int) -> None:
        """Go on behind something that is no message: nobody knows which one is before that."""
        if self.messages:
            self.open(_NOTHING)
        self._begin = Progress(position)

    def turn(self, most: int | None = None) -> Iterator[Message]:
        """Iterate over unfinished ones; each is finished when the next one is asked for."""
        first = self.finished
        messages = self.messages if most is None else self.messages[: first + most]
        left = self.left = iter(messages[first:] if first else messages)
        self._turn = _Turn(first, len(messages) - first, left, 1, len(messages) - first)
        return left

    def turn_in_lists(self, step: int, most: int | None = None) -> Iterator[list[Message]]:
        """Do what ``turn`` does, with lists of ``step`` messages, the last of which may be short.

        It is not ``left``, which has single messages.
        """
        first = self.finished
        end = len(self.messages) if most is None else min(first + most, len(self.messages))
        lists = [list(self.messages[at : min(at + step, end)]) for at in range(first, end, step)]
        left = self.lists_left = iter(lists)
        self._turn = _Turn(first, len(lists), left, step, end - first)
        return left

    def end_turn(self, *, is_finished: bool) -> None:
        """End a turn; the message that was handed out last is finished, or is not."""
        turn = self._turn
        self._turn = _Turn(turn.first + turn.taken if is_finished else self.finished)
        self.left = self.lists_left = _NONE_LEFT

    def finish(self, index: int, count: int = 1) -> None:
        """Finish some of the messages, from one on; outside a turn, in any order."""
        finished = self._turn.first
        if index > finished:
            self._ahead.update(range(index, index + count))
            return
        finished = max(finished, index + count)
        while finished in self._ahead:
            self._ahead.remove(finished)
            finished += 1
        self._turn = _Turn(finished)


# A partition that was lost -----------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Handled:
    """What a member keeps of a partition that it lost.

    A session that ends takes the claims with it, and what was handled since the last commit cannot
    be committed any more: the fence is another one.

    Attributes:
        claim: The claim that was lost, with the last commit that is known to be written.
        attempted: Later commits; one of them may have been written, its answer was lost.
        progress: How far the listener came, or the place that was sought since.
    """

    claim: Claim
    attempted: tuple[CommittedOffset, ...]
    progress: Progress


def go_on_at(claim: Claim, committed: CommittedOffset, kept: Handled | None) -> Progress:
    """Return where a partition that was just claimed goes on.

    If the same member claims it again and nobody committed meanwhile, it is behind what that member
    handled, or where its application sought. Otherwise the committed offset counts: a successor
    that went on from there, or a reset, has the last word.

    A commit is recognised by its value and by the version of its node: somebody else's has another
    member, another time, or both, and a node that was made anew has another version. The place may
    be before the committed offset: the application has sought back.
    """
    begin = Progress(committed.offset, committed.message_id, committed.epoch, committed.ahead)
    if kept is None or committed.stopped or claim.offset_version is None:
        return begin
    before = -1 if kept.claim.offset_version is None else kept.claim.offset_version
    is_known = committed == kept.claim.committed and claim.offset_version == before
    is_tried = committed in kept.attempted and claim.offset_version > before
    return kept.progress if is_known or is_tried else begin
