"""What a member keeps for one partition: its state, claim, progress, and what delivers it.

Loop-bound. ``Holds`` has every partition that is not free. The states are in ``hold_states``. Only
a hold writes its state; a module that acts on a partition gives it the event.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vq.client.consumer.deliver.delivery import Delivery
from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.fetch.fetcher import PartitionFetcher
from vq.client.consumer.group.hold_states import ENDING, LEAVING, OWNED, TABLE, Event, State, after
from vq.client.loop_calls import call_soon
from vq.coordination.groups.claims import Claim
from vq.coordination.tree.values.consumers import AHEAD_MAX, BAD_RECORD_ID, CommittedOffset
from vq.errors import OffsetStoreFailed
from vq.log_lines import get_logger
from vq.model import Message, TopicPartition

logger = get_logger(__name__)


@dataclass(slots=True, eq=False)
class Reading:
    """The bytes of a held partition on their way to its listener; a pause ends it.

    Attributes:
        message_id: Of the last message handled before it began, by anybody.
        fetch_failed: The partition's trouble is an error of the fetcher.
        task: Checks the place, or commits that the group is stopped.
        drained: Done when no listener runs any more; None until it is to stop.
    """

    hold: "Hold"
    delivery: Delivery
    fetcher: PartitionFetcher
    message_id: int | None
    fetch_failed: bool = False
    task: "asyncio.Task[None] | None" = field(default=None)
    drained: "asyncio.Future[None] | None" = field(default=None)

    @property
    def is_current(self) -> bool:
        """Whether its partition is still read by this one."""
        return self.hold.reading is self

    def progress(self, *, is_whole: bool = True) -> Progress:
        """Return the progress of the listener; what is ahead of it, or only what is bad there."""
        position, message_id, _, _, owed = self.delivery.progress()
        ahead = self.delivery.ahead() if is_whole else self.delivery.passed_over()
        return Progress(
            position,
            self.message_id if message_id is None else message_id,
            self.fetcher.epoch_at(position),
            tuple(each for each in ahead if each[0] > position),
            owed,
        )

    def progress_with(self, messages: Sequence[Message]) -> Progress:
        """Return the progress as if these messages in hand were finished, too."""
        progress = self.delivery.progress_with(messages)
        position, message_id = progress.position, progress.message_id
        return progress._replace(
            message_id=self.message_id if message_id is None else message_id,
            epoch=self.fetcher.epoch_at(position),
            ahead=tuple(each for each in progress.ahead if each[0] > position),
        )

    def end(self) -> "asyncio.Future[None]":
        """Have it delivered no further; done once no listener runs for it any more."""
        self.fetcher.stop()
        if self.task is not None:
            self.task.cancel()
        if self.drained is None:
            loop = asyncio.get_running_loop()
            drained = self.drained = loop.create_future()
            try:
                self.delivery.stop(lambda: call_soon(loop, _settle, drained))
            except BaseException:
                self.drained = None  # nothing settles it; the next try stops the delivery again
                raise
        return self.drained


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Undecided(Protocol):
    """A transaction of which it is not known whether it has moved the offset of a partition."""

    @property
    def is_left(self) -> bool:
        """Whether nobody ends it any more who has its messages in hand: the next commit does."""
        ...

    async def settle(self) -> None:
        """Know it, and see to it that it does not happen later.

        Raises:
            CoordinationError: It cannot be known now.
        """
        ...


class Hold:
    """One partition that is not free.

    Attributes:
        claim: Its generation and what was committed; generation 0 before the claim.
        unknown: Why it is not known what was committed; None: it is.
        session_id: The session that the claim was made in, and that its owner node ends with; 0
            before the claim.
        stopped: Why the group does not go on here before a reset; "": it goes on.
        reading: What reads and delivers it; None before it began, and after its end.
        attempted: Commits since that one that may have been written: their answers were lost.
        sought: Where the application wants to go on; None once the reading begins there.
        has_sought: It has sought here: progress may be before what was committed.
        is_set_aside: The application has paused it.
        deciding: What moves the offset with a transaction, and may have done so or not.
        decided: How many transactions have moved it.
    """

    __slots__ = (
        "_on_free",
        "_state",
        "attempted",
        "claim",
        "decided",
        "deciding",
        "has_sought",
        "is_set_aside",
        "partition",
        "reading",
        "session_id",
        "sought",
        "stopped",
        "unknown",
    )

    def __init__(self, claim: Claim, on_free: Callable[["Hold"], None]) -> None:
        self.partition = claim.partition
        self.claim = claim
        self.unknown: OffsetStoreFailed | None = None
        self.session_id = 0
        self.stopped = ""
        self.reading: Reading | None = None
        self.attempted: tuple[CommittedOffset, ...] = ()
        self.sought: Progress | None = None
        self.has_sought = False
        self.is_set_aside = False
        self.deciding: dict[Undecided, None] = {}
        self.decided = 0
        self._state = State.FREE
        self._on_free = on_free

    @property
    def state(self) -> State:
        """The state; see ``hold_states``."""
        return self._state

    def on(self, event: Event) -> None:
        """Go to the state that ``event`` leads to.

        Raises:
            ImpossibleEvent: The table has no entry for it.
        """
        self._state = after(self._state, event, self.partition)
        if self._state is State.FREE:
            self._on_free(self)

    def may(self, event: Event) -> bool:
        """Whether ``event`` may happen now."""
        return event in TABLE[self._state]

    @property
    def is_held(self) -> bool:
        """Whether it was claimed, and its hand-over has not reached the release."""
        return self.may(Event.LOSE)

    @property
    def is_owned(self) -> bool:
        """Whether it was claimed, and another member is not known to own it."""
        return self._state in OWNED

    @property
    def is_leaving(self) -> bool:
        """Whether it is given up, and its last commit is not done."""
        return self._state in LEAVING

    @property
    def is_ending(self) -> bool:
        """Whether it was given up or lost, and is not released yet."""
        return self._state in ENDING

    @property
    def has_left_transactions(self) -> bool:
        """Whether transactions are to be settled before anything can be committed here."""
        return self.is_owned and any(each.is_left for each in self.deciding)

    @property
    def stop_is_committed(self) -> bool:
        """Whether the tree says that the group was stopped here."""
        return self.claim.committed is not None and bool(self.claim.committed.stopped)

    def seek(self, place: Progress) -> None:
        """Have the next reading begin at a place; that is its progress from now on."""
        self.sought, self.has_sought = place, True

    def progress(self, *, is_whole: bool = True) -> Progress | None:
        """Return where it goes on; None: it was not begun, or has ended. See ``Reading``."""
        if self.sought or self.reading is None:
            return self.sought
        return self.reading.progress(is_whole=is_whole)

    def to_commit(self, *, is_last: bool) -> Progress | None:
        """Return the progress that is not committed yet; None: all is committed.

        What is handled ahead of it goes only with the last commit before a hand-over: it may be
        much, and changes with every message. What was passed over goes with each: it is little, and
        the next member would keep its bytes once more, also after a crash. What is committed as
        handled ahead stays so: a transaction may have done that, or the last owner.
        """
        committed = self.claim.committed
        others = () if committed is None else committed.ahead
        known = frozenset(each for each in others if each[1] != BAD_RECORD_ID)
        progress = self.progress(is_whole=is_last or bool(known))
        if progress is None or not self.is_owned or (self.deciding and not is_last):
            return None
        ahead = progress.ahead
        if known and not is_last:
            ahead = tuple(each for each in ahead if each[1] == BAD_RECORD_ID or each in known)
        ahead = ahead[:AHEAD_MAX]
        progress = progress._replace(ahead=ahead)
        if committed is None or progress.position != committed.offset:
            return progress
        if not set(ahead) <= set(committed.ahead):
            return progress
        if self.has_sought and ahead != committed.ahead:
            return progress  # what was handled behind that place counts no more
        return progress if self.stopped and not committed.stopped else None


class Holds:
    """The holds of one member, by partition."""

    def __init__(self, group: str, member: str) -> None:
        self._group = group
        self._member = member
        self._holds: dict[TopicPartition, Hold] = {}

    def __iter__(self) -> Iterator[Hold]:
        """Iterate in order of the partitions, over a copy: an event may end a hold."""
        return iter([hold for _, hold in sorted(self._holds.items())])

    def get(self, partition: TopicPartition) -> Hold | None:
        """Return the hold on a partition; None: it is free."""
        return self._holds.get(partition)

    def at(self, partition: TopicPartition) -> Hold:
        """Return the hold on a partition; of one that is free, a new one, to be claimed at once."""
        hold = self._holds.get(partition)
        if hold is None:
            claim = Claim(self._group, self._member, partition, generation=0)
            hold = self._holds[partition] = Hold(claim, self._forget)
        return hold

    def held(self) -> list[Hold]:
        """Return those whose ``is_held`` is true."""
        return [hold for hold in self if hold.is_held]

    def readings(self) -> list[Reading]:
        """Return what is read and delivered now."""
        return [hold.reading for hold in self if hold.reading is not None]

    def log_left(self, why_uncommitted: object) -> None:
        """Log what the next owner gets again: whose listener runs, whose progress is not stored."""
        busy = [str(hold.partition) for hold in self if hold.may(Event.DRAINED)]
        owing = [str(hold.partition) for hold in self if hold.may(Event.COMMITTED)]
        if busy:
            logger.warning(
                "listeners did not return in time, leaving without a clean hand-over",
                group=self._group,
                member=self._member,
                partitions=",".join(busy),
            )
        if owing:
            logger.warning(
                "the last offsets are not committed, handled messages will be delivered again",
                group=self._group,
                member=self._member,
                partitions=",".join(owing),
                reason=why_uncommitted,
            )

    def _forget(self, hold: Hold) -> None:
        del self._holds[hold.partition]
