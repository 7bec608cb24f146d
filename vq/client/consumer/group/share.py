"""A member's share in the tree: claims, commits, gives up, and detects what it lost.

``membership`` computes which partitions the member should own, and calls these methods from its
rounds. A partition goes its way through ``hold_states``: it is drained, then committed, then
released. A task for each hold does that (``hand_overs``), so no method waits for a listener. An
interrupted claim or release leaves the hold owing a release, which the next round makes up for.
ZooKeeper is called for many partitions at once: claims go in steps, and commits and releases that
come while one is under way go together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar

from vq.client.cluster import ClusterClient
from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.group.group_consumer import GroupConsumer
from vq.client.consumer.group.hand_overs import HandOvers
from vq.client.consumer.group.hold_states import Event, State
from vq.client.consumer.group.holds import Hold, Holds
from vq.client.consumer.group.outside_offsets import MemberOffsets
from vq.client.consumer.group.together import Together
from vq.client.consumer.troubles import UNKNOWN_OFFSET
from vq.coordination.groups import claims
from vq.coordination.groups.claims import (
    CLAIMS_PER_MULTI,
    Assigned,
    Claim,
    Occasion,
    StillOwned,
)
from vq.coordination.groups.zookeeper_offsets import COMMITS_PER_MULTI
from vq.coordination.tree.coordinator import (
    ConnectionLost,
    EventKind,
    NotConnected,
    SessionExpired,
    SessionState,
    WatchEvent,
)
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.errors import (
    CoordinationError,
    GenerationStale,
    InvalidArgument,
    OffsetStoreFailed,
    VqError,
)
from vq.log_lines import get_logger
from vq.model import PartitionTrouble, TopicPartition

logger = get_logger(__name__)
T = TypeVar("T")
#: Partitions that are begun or looked at at once: what goes together comes from these.
_AT_ONCE: Final = 2 * COMMITS_PER_MULTI
#: Commits with lost answers that are remembered of one partition, the latest ones.
_ATTEMPTED_MAX: Final = 16
#: Steps of claims that are under way at once.
_STEPS_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class _Commit:
    """Progress to be committed under the claim that it was made under, and no later one."""

    hold: Hold
    generation: int
    progress: Progress
    decided: int = 0

    @property
    def is_current(self) -> bool:
        """Whether the partition is still held under that claim."""
        return self.hold.is_owned and self.hold.claim.generation == self.generation

    @property
    def is_behind(self) -> bool:
        """Whether a transaction has moved the offset since, or does so now."""
        return bool(self.hold.deciding) or self.hold.decided != self.decided


class _Written(NamedTuple):
    """A commit on its way into the tree, and the claim that fences it."""

    hold: Hold
    claim: Claim
    offset: CommittedOffset


class Share:
    """The partitions of one member. Loop-bound.

    Args:
        cluster: Where the group is.
        group: Its name.
        member: The name of this member.
        offsets: Where the group's progress is kept.
        has_all: Every member has every partition: nothing is claimed, and a session that ends
            takes nothing.
        holds: What it has; states are changed here and by the consumer that delivers.
        consumer: Delivers what it has.
        wake: Called when an owner that is waited for released its partition, or died.

    Attributes:
        writing: Whoever writes offsets has it: one after the other.
    """

    def __init__(
        self,
        cluster: ClusterClient,
        group: str,
        member: str,
        *,
        offsets: MemberOffsets,
        has_all: bool,
        holds: Holds,
        consumer: GroupConsumer,
        wake: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._coordinator = cluster.coordinator
        self._group = group
        self._member = member
        self._offsets = offsets
        self._has_all = has_all
        self._holds = holds
        self._consumer = consumer
        self._wake = wake
        self._is_doubtful = True  # the next round compares everything held with the tree
        self._suspects: set[TopicPartition] = set()  # whose commits were refused as stale
        self._owners_doubted = False  # since the last claim began
        self.hand_overs = HandOvers(
            self._lead, group=group, member=member, rng=cluster.rng, wake=wake
        )
        self.writing = asyncio.Lock()
        self._commits = Together(self._commit_together, most=COMMITS_PER_MULTI)
        self._releases = Together(self._release_together, most=CLAIMS_PER_MULTI)
        self._lookups = Together(self._learn_together, most=CLAIMS_PER_MULTI)

    def doubt(self) -> None:
        """Have all owners looked at again: they may have changed without a hint."""
        self._is_doubtful = True
        self._doubt_owners()

    def _doubt_owners(self) -> None:
        """Claim again what the member waits for; called once for each lost watch."""
        if not self._owners_doubted:
            self._owners_doubted = True
            for hold in self._holds:
                if hold.may(Event.OWNER_CHANGED):
                    hold.on(Event.OWNER_CHANGED)

    def _on_owner(self, event: WatchEvent) -> None:
        """The owner of a partition that this member waits for released it, or its session ended."""
        if event.kind is EventKind.DISCONNECTED:
            self._doubt_owners()
        else:
            hold = self._holds.get(_partition_at(event.path))
            if hold is not None and hold.may(Event.OWNER_CHANGED):
                hold.on(Event.OWNER_CHANGED)
        self._wake()

    # Claims ---------------------------------------------------------------------------------------
    async def claim_all(
        self,
        wanted: Collection[TopicPartition],
        assigned: Mapping[TopicPartition, Assigned],
        members: Collection[str],
    ) -> None:
        """Claim what is free; what others own is claimed when they release it.

        Args:
            wanted: The partitions that should be this member's.
            assigned: What is known of the assignments.
            members: Who is in the group; for the history of the partitions.

        Raises:
            VqError: Of one that failed, after all were tried.
        """
        for hold in self._holds:
            if hold.partition not in wanted and hold.may(Event.OWNER_CHANGED):
                hold.on(Event.OWNER_CHANGED)  # it is not waited for any more
        free = [each for each in sorted(wanted) if self._holds.get(each) is None]
        occasion = Occasion(self._cluster.clock.wall_ms(), members)
        steps = [
            free[start : start + CLAIMS_PER_MULTI]
            for start in range(0, len(free), CLAIMS_PER_MULTI)
        ]
        await _each(
            steps, lambda step: self._claim(step, assigned, occasion), at_once=_STEPS_AT_ONCE
        )

    async def _claim(
        self,
        partitions: Sequence[TopicPartition],
        assigned: Mapping[TopicPartition, Assigned],
        occasion: Occasion,
    ) -> None:
        """Claim up to one ``multi`` of them, and begin to consume those."""
        holds = [self._holds.at(partition) for partition in partitions]
        session_id = 0 if self._has_all else self._coordinator.session_id
        for hold in holds:
            hold.on(Event.CLAIM)  # first, since the watch may fire before the claim returns
        self._owners_doubted = False
        try:
            found = await self._claim_in_tree(partitions, assigned, occasion)
            claimed = [each for each in found.values() if isinstance(each, Claim)]
            known = await self._offsets.known(claimed)
        except BaseException:
            for hold in holds:
                hold.on(Event.CLAIM_FAILED)
            raise
        begun: list[Hold] = []
        failed: list[CoordinationError] = []
        for hold in holds:
            outcome, progress = found[hold.partition], known.get(hold.partition)
            if isinstance(progress, OffsetStoreFailed):
                hold.unknown = progress  # it stays claimed: no other member would know more
            elif progress is not None:
                outcome = progress
            if isinstance(outcome, Claim):
                hold.claim, hold.session_id = outcome, session_id
                hold.on(Event.CLAIMED)
                begun.append(hold)
            elif isinstance(outcome, StillOwned):
                hold.on(Event.STILL_OWNED)
            else:
                hold.on(Event.CLAIM_FAILED)
                failed.append(outcome)
        await _each(begun, self._begin)
        if failed:
            raise failed[0]

    async def _claim_in_tree(
        self,
        partitions: Sequence[TopicPartition],
        assigned: Mapping[TopicPartition, Assigned],
        occasion: Occasion,
    ) -> dict[TopicPartition, Claim | CoordinationError]:
        if self._has_all:
            return {each: Claim(self._group, self._member, each, 1) for each in partitions}
        return await claims.claim_together(
            self._coordinator,
            self._group,
            self._member,
            partitions,
            known=assigned,
            occasion=occasion,
            watch=self._on_owner,
        )

    async def learn(self, hold: Hold) -> None:
        """Ask again what was committed of a hold whose progress is ``unknown``.

        Raises:
            CoordinationError: ZooKeeper gave no answer; it still is.
        """
        [found] = await self._lookups.do([hold.claim])
        if isinstance(found, OffsetStoreFailed):
            hold.unknown = found
        elif isinstance(found, CoordinationError):
            raise found
        else:
            hold.claim, hold.unknown = found, None

    async def _learn_together(
        self, claimed: Sequence[Claim]
    ) -> Sequence[Claim | CoordinationError]:
        found = await self._offsets.known(claimed)
        return [found[each.partition] for each in claimed]

    async def _begin(self, hold: Hold) -> None:
        """Begin to consume a partition that was just claimed."""
        logger.info(
            "partition claimed",
            group=self._group,
            member=self._member,
            partition=hold.partition,
            generation=hold.claim.generation,
        )
        try:
            await self._consumer.claimed(hold)
        except Exception:
            self.give_up([hold])
            raise

    # Ends -----------------------------------------------------------------------------------------
    def give_up(self, holds: Iterable[Hold]) -> None:
        """Have each drained, committed and released, as soon as its listener lets it."""
        for hold in holds:
            hold.on(Event.GIVE_UP)
            self.hand_overs.begin(hold)

    def _lose(self, hold: Hold) -> None:
        hold.on(Event.LOSE)
        self.hand_overs.begin(hold)

    def resume_hand_overs(self) -> None:
        """Go on with those that failed, or that an interrupted claim or release has left."""
        ending = [hold for hold in self._holds if hold.is_ending]
        self.hand_overs.resume(ending)

    async def give_up_all(self) -> None:
        """Give up all that is held; return when all of it is released or has failed.

        Raises:
            CoordinationError: A last commit or a release did not get through.
        """
        for hold in self._holds.held():
            hold.on(Event.GIVE_UP)
        await self.hand_overs.finish(hold for hold in self._holds if hold.is_ending)

    async def _lead(self, hold: Hold) -> None:
        """Lead a hold that is given up or lost to its release; see ``HandOvers``.

        It may be lost, or its session may end, during each step. The owner node goes also when only
        the generation was lost, as to a reset: nobody else deletes it while this session lives, and
        every other member would wait for it.

        Raises:
            CoordinationError: A last commit did not get through; the partition is still owned, or
                the next owner would begin before what was handled here. Or the release did not.
        """
        while hold.state is not State.OWES_RELEASE:
            if hold.may(Event.DRAINED):
                await self._consumer.drain(hold)
                hold.on(Event.DRAINED)
                continue
            try:
                await self._consumer.commit_last(hold)
            except CoordinationError:
                if hold.may(Event.COMMITTED):  # otherwise there is nothing to commit any more
                    raise
            if hold.may(Event.COMMITTED):
                hold.on(Event.COMMITTED)
                logger.info(
                    "partition given up",
                    group=self._group,
                    member=self._member,
                    partition=hold.partition,
                )
        if self.went_with_its_session(hold) or self._has_all:
            hold.on(Event.RELEASED)
        elif self._coordinator.state is SessionState.CONNECTED:
            [error] = await self._releases.do([hold.claim])
            if error is not None:
                raise error
            hold.on(Event.RELEASED)

    def went_with_its_session(self, hold: Hold) -> bool:
        """Whether the owner node of a claim is gone; that of an interrupted claim may be there."""
        return hold.session_id not in {0, self._coordinator.session_id}

    async def _release_together(
        self, released: Sequence[Claim]
    ) -> Sequence[CoordinationError | None]:
        return await claims.release_together(self._coordinator, released)

    async def drop_lost(self, assigned: Mapping[TopicPartition, Assigned] | None) -> None:
        """Compare what is held with the owner nodes; lose what another member owns.

        All of it after a lost connection and at each audit, otherwise what a refused commit casts
        doubt on, or the last claims if they were just read.
        """
        suspects = [
            hold
            for hold in self._holds
            if hold.is_owned
            and not self._has_all
            and (
                self._is_doubtful
                or hold.partition in self._suspects
                or (
                    assigned is not None
                    and (
                        hold.partition not in assigned
                        or assigned[hold.partition].version > hold.claim.generation
                    )
                )
            )
        ]

        is_doubtful, self._is_doubtful = self._is_doubtful, False
        refused, self._suspects = self._suspects, set()
        if not suspects:
            return
        try:
            claimed = [hold.claim for hold in suspects]
            ours = await claims.those_still_ours(self._coordinator, claimed)
        except BaseException:
            self._is_doubtful |= is_doubtful
            self._suspects |= refused
            raise
        for hold in suspects:
            if hold.partition not in ours and hold.is_owned:  # not released by ourselves meanwhile
                logger.warning(
                    "partition lost to another member",
                    group=self._group,
                    member=self._member,
                    partition=hold.partition,
                )
                self._lose(hold)
        await asyncio.sleep(0)  # they are stopped before a pause of the others may end

    def drop_ended(self) -> None:
        """Lose what was claimed in a session that ended, and with it every owner node of it."""
        for hold in self._holds:
            if hold.is_owned and self.went_with_its_session(hold):
                self._lose(hold)

    def leave(self) -> list[Claim]:
        """Let go of everything, in any state; no hand-over is under way any more.

        Returns the claims whose owner nodes may be in the tree still.
        """
        owed: list[Claim] = []
        for hold in self._holds:
            if hold.may(Event.LEAVE):
                hold.on(Event.LEAVE)
            if hold.may(Event.RELEASED):
                if not (self._has_all or self.went_with_its_session(hold)):
                    owed.append(hold.claim)
                hold.on(Event.RELEASED)
        return owed

    # Reports and commits ------------------------------------------------------------------------
    async def report(self, troubles: Mapping[TopicPartition, PartitionTrouble | None]) -> None:
        """Write into owner nodes why partitions do not go on; None: it does.

        Raises:
            CoordinationError: They may not have been written.
        """
        told: list[tuple[Claim, Mapping[str, Any]]] = []
        for partition, trouble in sorted(troubles.items()):
            hold = self._holds.get(partition)
            if hold is None or not hold.is_owned or self._has_all:
                continue  # it has no owner node, so nobody reads the report
            told.append((hold.claim, {} if trouble is None else _report(trouble)))
        for start in range(0, len(told), CLAIMS_PER_MULTI):
            await claims.report_stopped(self._coordinator, told[start : start + CLAIMS_PER_MULTI])

    async def commit(
        self, progress: Mapping[TopicPartition, Progress]
    ) -> dict[TopicPartition, VqError | None]:
        """Commit the progress of held partitions; return None for each commit, or its error.

        A commit also has why the group is stopped there, for the next owner.

        Raises:
            CoordinationError: It is unknown whether they were written; commit them again.
        """
        wanted = [
            _Commit(hold, hold.claim.generation, done, hold.decided)
            for partition, done in progress.items()
            if (hold := self._holds.get(partition)) is not None
        ]
        written = await self._commits.do(wanted)
        outcome: dict[TopicPartition, VqError | None] = {each: stale(each) for each in progress}
        for each, error in zip(wanted, written, strict=True):
            outcome[each.hold.partition] = error
            if isinstance(error, GenerationStale):
                self._suspects.add(each.hold.partition)
        return outcome

    async def _commit_together(self, wanted: Sequence[_Commit]) -> Sequence[VqError | None]:
        """Commit what this member still owns; of two commits of one partition, the later one.

        A claim ends with its session, also before a round has noticed that. Its generation is no
        fence any more: if the group was deleted meanwhile, generations began anew.
        """
        async with self.writing:
            return await self._commit_now(wanted)

    async def _commit_now(self, wanted: Sequence[_Commit]) -> Sequence[VqError | None]:
        current = [each.is_current and not self.went_with_its_session(each.hold) for each in wanted]
        ours = zip(wanted, current, strict=True)
        latest = {each.hold.partition: each for each, is_ours in ours if is_ours}
        step = [
            _Written(each.hold, each.hold.claim, self.offset_of(each.hold, each.progress))
            for each in latest.values()
            if not each.is_behind  # what is to be committed is computed anew next time
        ]
        outcome: dict[TopicPartition, VqError | None] = dict.fromkeys(latest)
        try:
            await self._write(step, outcome)
        except (ConnectionLost, SessionExpired, OffsetStoreFailed):
            raise
        except VqError:  # one of them is refused; each alone shows which one
            for alone in step:
                try:
                    await self._write([alone], outcome)
                except (ConnectionLost, SessionExpired, OffsetStoreFailed):
                    raise
                except VqError as error:
                    outcome[alone.hold.partition] = error
        return [
            outcome[each.hold.partition] if is_ours else stale(each.hold.partition)
            for each, is_ours in zip(wanted, current, strict=True)
        ]

    def offset_of(self, hold: Hold, progress: Progress) -> CommittedOffset:
        """Return what a commit of some progress writes."""
        return CommittedOffset(
            offset=progress.position,
            message_id=progress.message_id,
            time_ms=self._cluster.clock.wall_ms(),
            member=self._member,
            topic_id=self._topic_id(hold),
            epoch=progress.epoch,
            ahead=progress.ahead,
            stopped=hold.stopped,
        )

    async def learn_again(self, hold: Hold) -> None:
        """Read what is committed of a hold, since somebody has changed it.

        Raises:
            CoordinationError: It cannot be read.
        """
        found = (await self._offsets.known([hold.claim]))[hold.partition]
        if isinstance(found, CoordinationError):
            raise found
        if hold.claim.generation == found.generation:
            hold.claim = found

    async def settle(self, hold: Hold, *, only_left: bool = False) -> None:
        """Know what became of transactions that may have moved the offset of a hold.

        Args:
            hold: That.
            only_left: Those that are not left may still be ended by their application.

        Raises:
            CoordinationError: ZooKeeper does not say so now.
        """
        if hold.deciding:
            async with self.writing:
                for each in list(hold.deciding):
                    if each.is_left or not only_left:
                        await each.settle()

    def _topic_id(self, hold: Hold) -> str:
        """Return the id of the topic that the progress was made in; "": not known."""
        if hold.reading is not None:
            return hold.reading.fetcher.topic_id
        view = self._cluster.routes.topics.get(hold.partition.topic)
        return "" if view is None else view.id

    async def _write(
        self,
        step: Sequence[_Written],
        outcome: dict[TopicPartition, VqError | None],
    ) -> None:
        for each in step:  # before: the session may end meanwhile, and the hold with it
            each.hold.attempted = (*each.hold.attempted, each.offset)[-_ATTEMPTED_MAX:]
        try:
            result = await self._offsets.commit(
                [(each.claim, each.offset) for each in step],
                may_go_back={each.hold.partition for each in step if each.hold.has_sought},
            )
        except (NotConnected, SessionExpired, InvalidArgument):  # nothing was written
            for each in step:
                tried = each.hold.attempted
                each.hold.attempted = tuple(one for one in tried if one is not each.offset)
            raise
        for partition, claim in result.done.items():
            hold = self._holds.get(partition)
            if hold is not None and hold.claim.generation == claim.generation:
                hold.claim = claim  # but not in the place of a later claim
                hold.attempted = ()
            outcome[partition] = None
        for partition in result.stale:
            outcome[partition] = stale(partition)


def _report(trouble: PartitionTrouble) -> dict[str, Any]:
    """Return what an owner node has of a trouble."""
    report: dict[str, Any] = {
        "stopped": f"{type(trouble.error).__name__}: {trouble.error}",
        "stopped_at": None if trouble.offset == UNKNOWN_OFFSET else trouble.offset,
        "stopped_since_ms": trouble.since_ms,
    }
    if not trouble.held:
        return report
    return {
        **report,
        "held": trouble.held,
        "message_id": trouble.message_id,
        "attempts": trouble.tries,
        "next_try_ms": trouble.next_try_ms,
    }


def stale(partition: TopicPartition) -> GenerationStale:
    """Return the error of a commit for a partition that this member does not hold any more."""
    return GenerationStale(f"{partition} belongs to another member now")


def _partition_at(path: str) -> TopicPartition:
    """Return the partition of an owner node's path."""
    _, topic, number = path.rsplit("/", 2)
    return TopicPartition(topic, int(number))


async def _each(
    items: Iterable[T], work: Callable[[T], Awaitable[None]], *, at_once: int = _AT_ONCE
) -> None:
    """Do ``work`` for each item, some at once; raise the first error after all were tried.

    Items are in the order of their partitions, so that all members work in the same order.
    """
    errors: list[BaseException] = []
    gate = asyncio.Semaphore(at_once)

    async def do(item: T) -> None:
        async with gate:
            try:
                await work(item)
            except Exception as error:  # noqa: BLE001 - raised below, when all were tried
                errors.append(error)

    await asyncio.gather(*(do(item) for item in items))
    for error in errors:
        if not isinstance(error, VqError):
            raise error
    if errors:
        raise errors[0]
