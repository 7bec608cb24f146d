"""Messages of a member that a transaction finishes: their offsets are committed with it.

    taken ──▶ deciding ──┬──▶ committed
      │        ▲   │     └──▶ dropped: they are not, and are delivered again
      │        │   └───▶ in doubt ──▶ deciding, or settled by whoever commits there next
      └──▶ dropped

One ``multi`` of ZooKeeper decides: it checks that each partition is still this member's, moves the
offsets, and sets the decision node. While it is under way, or its outcome is unknown, the ordinary
commit leaves these partitions alone.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.consumer.deliver.delivery import Delivery
from vq.client.consumer.group.holds import Hold
from vq.client.consumer.group.share import Share, stale
from vq.coordination.groups.claims import Claim
from vq.coordination.groups.decisions import DecisionNode, take_away
from vq.coordination.groups.zookeeper_offsets import DecisionOvertaken, OffsetMoved
from vq.coordination.tree.coordinator import ConnectionLost, NotConnected, SessionExpired
from vq.coordination.tree.update import TRIES_MAX
from vq.coordination.tree.values.consumers import AHEAD_MAX, CommittedOffset
from vq.errors import (
    AlreadyHandled,
    Busy,
    CoordinationError,
    InvalidState,
    OutcomeUnknown,
    VqError,
)
from vq.model import Message, TopicPartition

_PAUSE: Final = Backoff(first_s=0.02, most_s=0.5)


class _TakenStage(Enum):
    TAKEN = "open"
    DECIDING = "being ended"
    IN_DOUBT = "in doubt"
    COMMITTED = "committed"
    HANDLED = "rolled back"  # its messages were committed before, by another one
    DROPPED = "given up"


@dataclass(frozen=True, slots=True)
class InHand:
    """Messages in hand of one partition, in its order.

    Attributes:
        hold: Of the partition.
        generation: Of the claim under which they were delivered.
        delivery: What has delivered them.
        messages: At least one.
    """

    hold: Hold
    generation: int
    delivery: Delivery
    messages: Sequence[Message]

    @property
    def partition(self) -> TopicPartition:
        """The partition."""
        return self.hold.partition

    @property
    def is_ours(self) -> bool:
        """Whether this member has the partition still, and by the same claim."""
        hold, reading = self.hold, self.hold.reading
        is_delivered = reading is not None and reading.delivery is self.delivery
        return hold.is_owned and hold.claim.generation == self.generation and is_delivered

    def handled_before(self) -> list[Message]:
        """Return those that are committed already, as by an earlier try that was in doubt."""
        committed = self.hold.claim.committed
        if committed is None or self.hold.has_sought:
            return []
        return [
            each
            for each in self.messages
            if each.offset < committed.offset or (each.offset, each.id) in committed.ahead
        ]


class TakenMessages:
    """See the module. Loop-bound, but for ``is_done`` and ``let_go``.

    Args:
        share: What the member has.
        cluster: Where the group is.
        group, member: Of the member.
        in_hand: The messages, by partition.
        give_back: Called once it has ended, with whether the messages are finished.

    Attributes:
        was_tried: ZooKeeper was asked to commit; before, its node is as it was.
    """

    def __init__(
        self,
        share: Share,
        cluster: ClusterClient,
        group: str,
        member: str,
        in_hand: Sequence[InHand],
        *,
        give_back: Callable[[bool], None],
    ) -> None:
        self.group: Final = group
        self.member: Final = member
        self.in_hand: Final = in_hand
        self._share = share
        self._offsets = cluster.offsets
        self._coordinator = cluster.coordinator
        self._clock = cluster.clock
        self._give_back: Callable[[bool], None] | None = give_back
        self._stage = _TakenStage.TAKEN
        self._was_let_go = False
        self._transaction: object = None
        self._roll_back: Callable[[str], None] = lambda _: None
        self._node: DecisionNode | None = None
        self._number = 0
        self.was_tried = False

    def of(self, transaction: object, roll_back: Callable[[str], None]) -> None:
        """Note which transaction has it, and how to roll that back while it is open. Any thread.

        Raises:
            InvalidState: Another one has it.
        """
        if self._transaction not in {None, transaction}:
            raise InvalidState(
                "the messages in hand belong to another transaction, which has not ended"
            )
        self._transaction, self._roll_back = transaction, roll_back

    @property
    def is_over(self) -> bool:
        """Whether its transaction has ended, and it is known how."""
        return self._give_back is None

    @property
    def is_done(self) -> bool:
        """See ``Finisher``."""
        return self._stage in {_TakenStage.COMMITTED, _TakenStage.HANDLED}

    @property
    def is_left(self) -> bool:
        """See ``Undecided``; a decision that is under way is not."""
        ends = self._was_let_go or self.is_over
        return ends and self._stage is not _TakenStage.DECIDING

    def let_go(self) -> Exception:
        """See ``Finisher``. An open transaction is rolled back."""
        self._was_let_go = True
        if self._stage is _TakenStage.TAKEN:
            self._roll_back("its listener has ended before it")
        return InvalidState(
            f"the listener called send_offsets, and its transaction is {self._stage.value}: its "
            "messages come again",
            hint="commit it before the listener returns",
        )

    def ended(self, *, committed: bool) -> None:
        """The transaction has ended, and it is known how."""
        give_back, self._give_back = self._give_back, None
        if give_back is None:
            return
        if not self.is_done:
            if committed:  # so others say; what is committed is to be read before the next commit
                self._finish()
                for hold in self._holds():
                    hold.deciding[self] = None
            else:
                self._drop()
        give_back(self.is_done)

    # The decision ---------------------------------------------------------------------------------
    async def commit(self, node: DecisionNode, number: int, deadline: float) -> None:
        """Move the offsets, and have a transaction committed by that.

        May be called again, with the same node and number, if its outcome is not known.

        Raises:
            DecisionOvertaken: Somebody has taken the decision away, now or after a commit.
            OutcomeUnknown: It may be committed.
            AlreadyHandled: Some of the messages are committed. It is not.
            VqError: It is not committed, and cannot be any more.
        """
        if self._stage is _TakenStage.COMMITTED:
            return
        if self._stage is _TakenStage.DROPPED:
            raise DecisionOvertaken(f"transaction {number} was given up for a later one")
        self._node, self._number = node, number
        if self._stage is _TakenStage.HANDLED:
            raise DecisionOvertaken(f"the messages of transaction {number} were committed before")
        was_sent, self._stage = self._stage is _TakenStage.IN_DOUBT, _TakenStage.DECIDING
        try:
            async with self._share.writing:
                if self._stage is _TakenStage.DECIDING:  # otherwise it was settled meanwhile
                    await self._commit(node, was_sent=was_sent, deadline=deadline)
        except (DecisionOvertaken, OutcomeUnknown):
            raise
        except VqError as error:
            if self._stage is _TakenStage.DECIDING:
                self._drop()
                if isinstance(error, AlreadyHandled) and not any(map(_is_left, self.in_hand)):
                    self._stage = _TakenStage.HANDLED
            raise
        finally:
            if self._stage is _TakenStage.DECIDING:
                self._stage = _TakenStage.IN_DOUBT
        if self._stage is not _TakenStage.COMMITTED:
            raise DecisionOvertaken(f"transaction {number} was given up for a later one")

    async def _commit(self, node: DecisionNode, *, was_sent: bool, deadline: float) -> None:
        """Send the ``multi`` until it is known what became of it. The share is not written else."""
        number, lost = self._number, was_sent
        for hold in self._holds():
            hold.deciding[self] = None
        tries = 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout(max(0.0, deadline - self._clock.monotonic())):
                    offsets = [self._commit_of(each) for each in self.in_hand]
                    self.was_tried = True
                    decision = node.decide(number, self.group, self.member)
                    done = await self._offsets.commit_with(offsets, decision)
            except TimeoutError as error:
                raise OutcomeUnknown("the offsets may be committed: no answer in time") from error
            except ConnectionLost as error:
                lost = lost or not isinstance(error, NotConnected)
                pause_s = _PAUSE.pause_s(tries)
                if self._clock.monotonic() + pause_s >= deadline:
                    if lost:
                        raise OutcomeUnknown(f"the offsets may be committed: {error}") from error
                    raise
                await asyncio.sleep(pause_s)
            except OffsetMoved as error:
                if tries > TRIES_MAX:
                    raise
                await self._learn(error.partition)
            except DecisionOvertaken:
                if lost and await self._is_committed(node):
                    return
                raise
            except VqError as error:
                if lost and await self._is_committed(node):
                    return
                if isinstance(error, SessionExpired):  # and all that was claimed in it
                    raise stale(self.in_hand[0].partition) from error
                raise
            else:
                self._committed(done)
                return

    async def _is_committed(self, node: DecisionNode) -> bool:
        """Whether an earlier try has committed it; if not, none can any more.

        Raises:
            OutcomeUnknown: That cannot be known now.
        """
        try:
            if not await take_away(self._coordinator, node, self._number):
                return False
        except CoordinationError as error:
            raise OutcomeUnknown(f"the offsets may be committed: {error}") from error
        with contextlib.suppress(CoordinationError):
            await self._committed_before()
        return True

    def _holds(self) -> Iterable[Hold]:
        return [each.hold for each in self.in_hand]

    def _commit_of(self, each: InHand) -> tuple[Claim, CommittedOffset]:
        hold, reading = each.hold, each.hold.reading
        if reading is None or not each.is_ours or self._share.went_with_its_session(hold):
            raise stale(each.partition)
        if handled := each.handled_before():
            each.delivery.finish_now(handled)
            raise AlreadyHandled(
                f"{len(handled)} of the messages of {each.partition} are committed already, up to "
                f"the one at offset {handled[-1].offset}: an earlier transaction was in doubt",
                details={"done": len(handled)},
            )
        progress = reading.progress_with(each.messages)
        if len(progress.ahead) > AHEAD_MAX:
            raise Busy(
                f"{len(progress.ahead)} messages of {each.partition} are finished behind one that "
                f"is not, at offset {progress.position}; a commit names {AHEAD_MAX} at most",
                hint="they come again when that one is finished",
            )
        return hold.claim, self._share.offset_of(hold, progress)

    async def _learn(self, partition: TopicPartition) -> None:
        """Know what is committed of a partition, also by transactions that were in doubt."""
        (each,) = [each for each in self.in_hand if each.partition == partition]
        for other in list(each.hold.deciding):
            if other is not self:
                await other.settle()
        await self._share.learn_again(each.hold)

    def _committed(self, done: dict[TopicPartition, Claim]) -> None:
        for each in self.in_hand:
            hold, claim = each.hold, done[each.partition]
            if hold.claim.generation == claim.generation:
                hold.claim, hold.attempted = claim, ()
                hold.decided += 1
            for other in list(hold.deciding):  # it needs the offset as it was before
                if isinstance(other, TakenMessages) and other is not self:
                    other._drop()
        self._finish()

    async def _committed_before(self) -> None:
        """It turns out that it is committed; what is committed now is to be read.

        Raises:
            CoordinationError: That cannot be read. The ordinary commit waits until it is.
        """
        self._finish()
        for hold in self._holds():
            hold.deciding[self] = None
        for hold in self._holds():
            await self._share.learn_again(hold)
            hold.deciding.pop(self, None)
            hold.decided += 1

    def _finish(self) -> None:
        self._stage = _TakenStage.COMMITTED
        for each in self.in_hand:
            each.hold.deciding.pop(self, None)
            each.delivery.finish_now(each.messages)

    def _drop(self) -> None:
        if self._stage is not _TakenStage.HANDLED:
            self._stage = _TakenStage.DROPPED
        for hold in self._holds():
            hold.deciding.pop(self, None)

    async def settle(self) -> None:
        """See ``Undecided``; only while nobody else writes the share.

        Raises:
            CoordinationError: It cannot be known now.
        """
        node = self._node
        if self._stage is _TakenStage.COMMITTED:
            await self._committed_before()
        elif node is None or self._stage in {_TakenStage.HANDLED, _TakenStage.DROPPED}:
            self._drop()
        elif await take_away(self._coordinator, node, self._number):
            await self._committed_before()
        else:
            self._drop()


def _is_left(each: InHand) -> bool:
    """Whether some of the messages are not committed yet."""
    return len(each.handled_before()) < len(each.messages)
