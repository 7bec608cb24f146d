"""One member's share of a group, over ZooKeeper's twin: nobody keeps what it does not consume."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import cluster_client
from support.coordination import expire
from support.simulation.loop import SimulatedClock, VirtualLoop
from support.waiting import WAIT_S, until, until_true

from vq.backoff import Backoff
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer import membership as memberships
from vq.client.consumer import share as shares
from vq.client.consumer.delivery import Progress
from vq.client.consumer.hold_states import Event, State
from vq.client.consumer.holds import Hold, Holds
from vq.client.consumer.membership import Membership, MembershipHooks
from vq.client.consumer.permit import Permit
from vq.client.departures import Departure
from vq.coordination import claims, commits, groups, topics
from vq.coordination.coordinator import ConnectionLost, NodeExists, SessionExpired, SessionState
from vq.coordination.memory import MemoryCoordinator
from vq.coordination.paths import CommittedOffset, Member, Owner
from vq.errors import CoordinationError, GenerationStale, InvalidArgument, NotMaster
from vq.model import TopicPartition

pytestmark = pytest.mark.virtual_time
P0, P1, P2, P3 = (TopicPartition("t", number) for number in range(4))
ALL = {P0, P1, P2, P3}
SOON = Backoff(first_s=0.01, most_s=0.02, jitter=0.5)


class Consumer:
    """What a member tells its consumer, and a consumer that may be slow or fail."""

    def __init__(self, cluster: ClusterClient, name: str, *, tags: str = "") -> None:
        self.cluster = cluster
        self.name = name
        self.held: set[TopicPartition] = set()
        self.events: list[str] = []
        self.on_claimed: Callable[[claims.Claim], Awaitable[None]] | None = None
        self.on_drain: Callable[[TopicPartition], Awaitable[None]] | None = None
        self.on_commit: Callable[[TopicPartition], Awaitable[None]] | None = None
        self.on_suspend: Callable[[], None] | None = None
        self.permit = Permit(cluster.clock.monotonic)
        self.member = Membership(
            cluster,
            ConsumerConfig(group="g", member=name),
            member=name,
            filters={"t": tags},
            holds=Holds("g", name),
            hooks=MembershipHooks(
                self._claimed, self._drain, self._commit, self._suspend, self._resume, self._ended
            ),
            permit=self.permit,
        )

    @property
    def coordinator(self) -> MemoryCoordinator:
        coordinator = self.cluster.coordinator
        assert isinstance(coordinator, MemoryCoordinator)
        return coordinator

    async def _claimed(self, hold: Hold) -> None:
        if self.on_claimed is not None:
            await self.on_claimed(hold.claim)
        assert hold.partition not in self.held
        self.held.add(hold.partition)

    async def _drain(self, hold: Hold) -> None:
        if self.on_drain is not None:
            await self.on_drain(hold.partition)
        if hold.state is State.LOST:
            self.events.append(f"drop {hold.partition}")
            self.held.discard(hold.partition)

    async def _commit(self, hold: Hold) -> None:
        if self.on_commit is not None:
            await self.on_commit(hold.partition)
        self.events.append(f"give up {hold.partition}")
        self.held.discard(hold.partition)

    def _suspend(self) -> None:
        self.events.append("suspend")
        if self.on_suspend is not None:
            self.on_suspend()

    def _resume(self) -> None:
        self.events.append("resume")

    def _ended(self, error: CoordinationError) -> None:
        self.events.append(f"ended: {error}")


class Group:
    """A cluster, a topic of four partitions, and the members made in it."""

    def __init__(self, cluster: MemoryCluster, stack: AsyncExitStack) -> None:
        self.cluster = cluster
        self._stack = stack

    async def client(self, **settings: Any) -> ClusterClient:
        client = cluster_client(self.cluster, **{"session_timeout_s": 0.4, **settings})
        await client.start()
        self._stack.push_async_callback(client.close)
        return client

    async def join(self, name: str, client: ClusterClient | None = None) -> Consumer:
        consumer = await self.member(name, client)
        await consumer.member.start()
        return consumer

    async def member(self, name: str, client: ClusterClient | None = None) -> Consumer:
        consumer = Consumer(client or await self.client(), name)
        self._stack.push_async_callback(self._end, consumer)
        return consumer

    @staticmethod
    async def _end(consumer: Consumer) -> None:
        if consumer.coordinator.crashed:  # nobody says good-bye
            task = consumer.member._task
            assert task is not None
            task.cancel()
        else:
            await consumer.member.close(1.0)

    async def owners(self) -> dict[TopicPartition, str]:
        async with self.cluster.admin() as coordinator:
            owners = await claims.read_partitions(coordinator, Owner, "g", ["t"])
            return {where: owner.member for where, owner in owners.items()}

    async def members(self) -> list[str]:
        async with self.cluster.admin() as coordinator:
            return sorted(await groups.members(coordinator, "g"))


@pytest.fixture
async def group() -> AsyncIterator[Group]:
    async with memory_cluster() as cluster:
        await cluster.start()
        await cluster.create_topic("t", partitions=4)
        async with AsyncExitStack() as stack:
            yield Group(cluster, stack)


def audit(consumer: Consumer) -> None:
    """Let the time of the next audit have come."""
    consumer.member._audit_at = -math.inf
    consumer.member.wake()


async def lose_and_claim_again(group: Group, consumer: Consumer) -> None:
    """Take the owner node of ``P1`` from its member; it notices, drops it and claims it anew."""
    async with group.cluster.admin() as coordinator:
        await coordinator.delete("consumers/g/owners/t/1")
    audit(consumer)
    await until(lambda: consumer.events == [f"drop {P1}"] and consumer.held == ALL)


async def _is(found: Awaitable[object], wanted: object) -> bool:
    return await found == wanted


async def share(*consumers: Consumer) -> None:
    """Wait until the partitions are shared out evenly, each to one member."""

    def shared() -> bool:
        sizes = [len(consumer.held) for consumer in consumers]
        together = set().union(*(consumer.held for consumer in consumers))
        return together == ALL and sum(sizes) == 4 and max(sizes) - min(sizes) <= 1

    await until(shared)


# Coming and going -------------------------------------------------------------------------------
async def test_who_joins_while_placements_are_read_has_its_share_from_the_first_round(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members of a new group start together; what one claims first, it would hand over again."""
    may_read = {name: asyncio.Event() for name in ("a", "b")}

    async def join(name: str) -> Consumer:
        client = await group.client()
        track = client.track

        async def slowly(topic: str) -> Any:
            await may_read[name].wait()
            return await track(topic)

        monkeypatch.setattr(client, "track", slowly)
        return await group.join(name, client)

    first = await join("a")
    await asyncio.sleep(1.0)
    second = await join("b")
    await asyncio.sleep(1.0)
    may_read["a"].set()
    await until(lambda: len(first.held) == 2)
    may_read["b"].set()
    await until(lambda: first.held | second.held == ALL)
    assert not [each for each in first.events + second.events if "give up" in each]


async def test_one_member_has_everything(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_second_member_takes_its_half_and_gives_it_back(group: Group) -> None:
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    second = await group.join("b")
    await share(first, second)
    assert len(first.events) == 2, "only the partitions that move stop"
    await second.member.close(1.0)
    await until(lambda: first.held == ALL)
    assert await group.members() == ["a"]


async def test_many_members_join_and_leave_at_once(group: Group) -> None:
    consumers = [await group.member(name) for name in "abcdef"]
    await asyncio.gather(*(each.member.start() for each in consumers))
    await share(*consumers)
    await asyncio.gather(*(each.member.close(1.0) for each in consumers[:5]))
    await until(lambda: consumers[5].held == ALL)
    assert await group.owners() == dict.fromkeys(ALL, "f")


async def test_members_of_one_session_are_told_apart(group: Group) -> None:
    """Two consumers of one factory share its session."""
    client = await group.client()
    first, second = await group.join("a", client), await group.join("b", client)
    await share(first, second)
    await first.member.close(1.0)
    await until(lambda: second.held == ALL)


async def test_a_partition_is_waited_for_until_its_owner_has_drained_it(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    still_owned = 0
    claim = claims.claim_together

    async def count(*arguments: Any, **options: Any) -> Any:
        nonlocal still_owned
        found = await claim(*arguments, **options)
        still_owned += sum(isinstance(each, claims.StillOwned) for each in found.values())
        return found

    monkeypatch.setattr(shares.claims, "claim_together", count)
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    drained = asyncio.Event()

    async def drain(_: TopicPartition) -> None:
        await drained.wait()

    first.on_drain = drain
    second = await group.join("b")
    await until(lambda: still_owned == 2)
    audit(second)
    await until(lambda: still_owned == 4)
    assert second.held == set()
    drained.set()
    await share(first, second)


async def test_a_listener_that_does_not_return_holds_up_its_own_partition_alone(
    group: Group,
) -> None:
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    stuck = asyncio.Event()

    async def drain(where: TopicPartition) -> None:
        if where == min(moving or [where]):
            moving.append(where)
            await stuck.wait()

    moving: list[TopicPartition] = []
    first.on_drain = drain
    second = await group.join("b")
    await until(lambda: len(second.held) == 1)
    stuck.set()
    await share(first, second)


async def stuck_member(group: Group) -> tuple[Consumer, asyncio.Event]:
    """Return a member that holds everything, and what its listener of ``P0`` waits for."""
    consumer = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: consumer.held == ALL)
    returns = asyncio.Event()

    async def drain(partition: TopicPartition) -> None:
        if partition == P0:
            draining.append(partition)
            await returns.wait()

    draining: list[TopicPartition] = []
    consumer.on_drain = drain
    async with group.cluster.admin() as coordinator:
        await coordinator.delete(Owner.path("g", *P0))
    audit(consumer)
    await until(lambda: draining)
    return consumer, returns


async def test_a_listener_that_does_not_return_delays_no_other_hand_over(group: Group) -> None:
    """Also not one that the member comes to know of later."""
    first, returns = await stuck_member(group)
    second = await group.join("b")
    await until(lambda: len(second.held) == 2)
    third = await group.join("c")
    await until(lambda: third.held)
    returns.set()

    def is_shared() -> bool:
        return len(first.held) + len(second.held) + len(third.held) == 4

    await until(is_shared)
    assert first.held | second.held | third.held == ALL


async def test_a_listener_that_does_not_return_delays_no_claim(group: Group) -> None:
    first, returns = await stuck_member(group)
    async with group.cluster.admin() as coordinator:
        await topics.add_partitions(coordinator, "t", 2)
    await until(lambda: {TopicPartition("t", 4), TopicPartition("t", 5)} <= first.held)
    returns.set()
    await until(lambda: P0 in first.held)


async def test_a_listener_that_does_not_return_delays_no_new_session(group: Group) -> None:
    """The member joins again and claims the others; this partition waits for its listener."""
    first, returns = await stuck_member(group)
    session = first.coordinator.session_id
    group.cluster.ensemble.expire(first.coordinator)
    await until(lambda: first.coordinator.session_id not in {0, session})
    await until(lambda: sum(event.startswith("drop") for event in first.events) == 3)
    await until(lambda: first.held >= {P1, P2, P3})
    assert await group.members() == ["a"]
    assert await group.owners() == dict.fromkeys({P1, P2, P3}, "a")
    returns.set()
    await until(lambda: first.events[-1] == f"drop {P0}" and first.held == ALL)


async def test_a_partition_that_is_lost_during_its_last_commit_is_claimed_again(
    group: Group,
) -> None:
    """The commit is refused then; the release follows, and no later claim is in its way."""
    first = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: first.held == ALL)
    committing, go_on = asyncio.Event(), asyncio.Event()

    async def commit(_: TopicPartition) -> None:
        committing.set()
        await go_on.wait()
        raise CoordinationError("the session ended")

    first.on_commit = commit
    second = await group.join("b")
    await committing.wait()
    session = first.coordinator.session_id
    group.cluster.ensemble.expire(first.coordinator)
    await until(lambda: first.coordinator.session_id not in {0, session})
    go_on.set()
    await share(first, second)


async def test_an_owner_released_just_before_it_was_watched_is_seen(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the partition would lie idle until the next audit, half a minute later."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    claim = claims.claim_together
    asked = asyncio.Event()

    async def claim_late(*arguments: Any, **options: Any) -> Any:
        found = await claim(*arguments, **options)
        if any(isinstance(each, claims.StillOwned) for each in found.values()):
            asked.set()
            await first_gone.wait()
        return found

    first_gone = asyncio.Event()
    drained = asyncio.Event()

    async def drain(_: TopicPartition) -> None:
        await drained.wait()

    first.on_drain = drain
    second = await group.member("b")
    monkeypatch.setattr(shares.claims, "claim_together", claim_late)
    await second.member.start()
    await asked.wait()  # it found them owned; now they are released, and only then it hears that
    drained.set()
    await until(lambda: len(first.held) == 2)

    async def released() -> bool:
        return len(await group.owners()) <= 2

    await until_true(released)
    first_gone.set()
    await share(first, second)


async def test_a_topic_that_is_deleted_is_given_up(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    async with group.cluster.admin() as coordinator:
        await topics.delete_topic(coordinator, "t")
    await until(lambda: not consumer.held)
    await group.cluster.create_topic("t", partitions=4)
    await until(lambda: consumer.held == ALL)


async def test_partitions_that_are_added_are_taken(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    async with group.cluster.admin() as coordinator:
        await topics.add_partitions(coordinator, "t", 1)
    await until(lambda: TopicPartition("t", 4) in consumer.held)


async def test_a_fence_leaves_no_partition_without_a_member(group: Group) -> None:
    """A reset takes the claims and leaves the owner nodes: whoever made them has to delete them.

    The share is computed anew in the order of the names, so both members get what the other had.
    """
    first = await group.join("zz")
    await until(lambda: first.held == ALL)
    second = await group.join("b")
    await share(first, second)
    before = {first.name: set(first.held), second.name: set(second.held)}
    async with group.cluster.admin() as coordinator:
        for where in sorted(ALL):
            fresh = CommittedOffset(offset=0, message_id=None, time_ms=0, member="", topic_id="")
            await commits.reset_offset(coordinator, "g", where, fresh)
    for consumer in (first, second):
        consumer.events.clear()
        audit(consumer)
    await until(lambda: len(first.events) == len(second.events) == 2)
    await share(first, second)
    assert {first.name: first.held, second.name: second.held} != before
    await until_true(
        lambda: _is(
            group.owners(), dict.fromkeys(first.held, "zz") | dict.fromkeys(second.held, "b")
        )
    )


# Claims that fail -------------------------------------------------------------------------------
async def test_a_partition_that_is_wanted_again_while_it_is_handed_over_comes_back(
    group: Group,
) -> None:
    """Its delivery was stopped for another member, which has left: it is claimed anew."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    tried: set[TopicPartition] = set()

    async def fail(partition: TopicPartition) -> None:
        tried.add(partition)
        raise CoordinationError("not now")

    first.on_commit = fail
    second = await group.join("b")
    await until(lambda: len(tried) == 2)
    await second.member.close(1.0)
    await until(lambda: first.member.target_count == len(ALL))
    first.on_commit = None
    await until(lambda: len(first.events) == 2 and first.held == ALL)
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_partition_that_cannot_begin_does_not_keep_the_others_waiting(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker is down, say. It is tried again; what was claimed meanwhile was released."""
    monkeypatch.setattr(memberships, "_AGAIN", SOON)
    broken = True

    async def begin(claim: claims.Claim) -> None:
        if broken and claim.partition == P0:
            raise NotMaster("its broker is down")

    consumer = await group.member("a")
    consumer.on_claimed = begin
    await consumer.member.start()
    await until(lambda: consumer.held == {P1, P2, P3})
    broken = False
    await until(lambda: consumer.held == ALL)


async def test_a_bug_in_the_consumer_leaves_no_partition_owned_and_idle(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(memberships, "_AGAIN", SOON)
    tries = 0

    async def begin(claim: claims.Claim) -> None:
        nonlocal tries
        if claim.partition == P2 and (tries := tries + 1) < 3:
            raise RuntimeError("a bug")

    consumer = await group.member("a")
    consumer.on_claimed = begin
    await consumer.member.start()
    await until(lambda: consumer.held == ALL)
    assert "a bug" in caplog.text


@pytest.mark.parametrize("fault", ["request", "reply"])
@pytest.mark.parametrize("skip", range(0, 24, 3))
async def test_a_lost_answer_anywhere_while_giving_up_leaves_nothing_behind(
    group: Group, fault: str, skip: int
) -> None:
    """Nobody waits for a partition whose owner does not know that it has it."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    ensemble = group.cluster.ensemble
    lose = ensemble.lose_next_request if fault == "request" else ensemble.lose_next_reply
    lose(first.coordinator, skip=skip)
    second = await group.join("b")
    await share(first, second)
    first.coordinator.lose_request = first.coordinator.lose_reply = 0


@pytest.mark.parametrize("skip", range(24))
async def test_a_call_applied_in_the_next_session_leaves_no_owner_behind(
    group: Group, skip: int
) -> None:
    """An owner node of the new session, made by a claim of the old one, is found and released."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    second = await group.member("b")
    group.cluster.ensemble.outlive_next(second.coordinator, skip=skip)
    with contextlib.suppress(CoordinationError):
        await second.member.start()
    if second.member._task is None:
        await second.member.start()
    await share(first, second)
    held = dict.fromkeys(first.held, "a") | dict.fromkeys(second.held, "b")
    await until_true(lambda: _is(group.owners(), held))
    second.coordinator.outlive_request = 0


@pytest.mark.parametrize("skip", range(24))
async def test_a_member_that_ends_takes_back_a_claim_of_either_session(
    group: Group, skip: int
) -> None:
    """Its process goes on with the session, so nothing else would delete the owner node."""
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    client = await group.client()
    second = await group.member("b", client)
    group.cluster.ensemble.outlive_next(second.coordinator, skip=skip)
    states: list[SessionState] = []
    client.coordinator.add_listener(states.append)
    with contextlib.suppress(CoordinationError):
        await second.member.start()
    await until(lambda: SessionState.LOST in states or len(second.held) == 2)
    second.coordinator.outlive_request = 0
    await second.member.close(1.0)
    await until(lambda: first.held == ALL)
    await until_true(lambda: _is(group.owners(), dict.fromkeys(ALL, "a")))


async def test_a_claim_whose_session_ends_is_not_had(group: Group) -> None:
    """It says so, whatever came of it in the tree."""
    client = await group.client()
    coordinator = client.coordinator
    assert isinstance(coordinator, MemoryCoordinator)
    outcomes = set()
    for skip in range(16):
        coordinator.outlive_request = skip + 1
        session = coordinator.session_id
        try:
            claim = await claims.claim(coordinator, "g", "a", P0)
        except (SessionExpired, ConnectionLost) as error:
            outcomes.add(type(error))
        else:
            outcomes.add(type(claim))
            assert coordinator.session_id == session
            coordinator.outlive_request = 0
            assert await claims.still_ours(coordinator, claim)
        coordinator.outlive_request = 0
    assert {SessionExpired, claims.Claim} <= outcomes


async def test_a_release_that_did_not_get_through_is_made_up_for(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memberships, "_AGAIN", SOON)
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    release = claims.release_together
    failures = 3

    async def fail(coordinator: Any, released: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise GenerationStale("any error of ZooKeeper")
        return await release(coordinator, released)

    monkeypatch.setattr(shares.claims, "release_together", fail)
    second = await group.join("b")
    await share(first, second)
    assert failures == 0


async def test_a_partition_whose_last_commit_fails_is_kept_as_long_as_the_session(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next owner would begin before what was handled; with the session the fence is over."""
    monkeypatch.setattr(memberships, "_AGAIN", SOON)
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    session, tries = first.coordinator.session_id, 0

    async def fail(_: TopicPartition) -> None:
        nonlocal tries
        if first.coordinator.session_id == session:
            tries += 1
            raise ConnectionLost("the last commit did not get through")

    first.on_commit = fail
    second = await group.join("b")
    await until(lambda: tries >= 6)
    assert await group.owners() == dict.fromkeys(ALL, "a")
    assert second.held == set()
    assert "partitions cannot be handed over, trying again" in caplog.text
    group.cluster.ensemble.expire(first.coordinator)
    await share(first, second)


# Ends -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("after", [0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.03])
async def test_closing_in_the_middle_of_a_round_leaves_nothing_owned(
    group: Group, after: float
) -> None:
    """Also when the answer to a claim was still on its way: the session lives on."""
    group.cluster.ensemble.delay = lambda: 0.001
    client = await group.client()
    consumer = await group.join("a", client)
    await asyncio.sleep(after)
    await consumer.member.close(1.0)
    assert await group.owners() == {}
    assert await group.members() == []
    assert client.coordinator.state is SessionState.CONNECTED


async def test_closing_between_the_claim_and_its_consumer_gives_it_up(group: Group) -> None:
    begun = asyncio.Event()

    async def begin(_: claims.Claim) -> None:
        begun.set()
        await asyncio.Event().wait()

    consumer = await group.member("a")
    consumer.on_claimed = begin
    await consumer.member.start()
    await begun.wait()
    await consumer.member.close(1.0)
    assert await group.owners() == {}


async def test_closing_does_not_wait_for_ever_for_a_listener(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """What it had is given to others; the message in hand comes once more."""
    first, second = await group.join("a"), await group.join("b")
    await share(first, second)
    stuck = asyncio.Event()

    async def drain(_: TopicPartition) -> None:
        await stuck.wait()

    first.on_drain = drain
    async with asyncio.timeout(WAIT_S):
        await first.member.close(0.05)
    await until(lambda: second.held == ALL)
    assert await group.members() == ["b"]
    assert "listeners did not return in time" in caplog.text
    assert "offsets are not committed" not in caplog.text
    stuck.set()


async def test_closing_says_whose_progress_is_not_committed_and_why(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    """The listeners have returned: they are not to blame."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)

    async def refuse(partition: TopicPartition) -> None:
        if partition == P1:
            raise CoordinationError("no commit now")
        if partition == P2:
            await asyncio.Event().wait()

    consumer.on_commit = refuse
    await consumer.member.close(1.0)
    (line,) = [each for each in caplog.messages if "offsets are not committed" in each]
    assert "partitions=t-1,t-2" in line
    assert "no commit now" in line or "no answer from ZooKeeper within 1 s" in line
    assert "listeners did not return" not in caplog.text


async def test_a_member_that_left_keeps_no_timer(group: Group) -> None:
    """A permit that is extended for ever lapses one day, and then a member would pause."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    await consumer.member.close(1.0)
    permit = consumer.member._permit
    assert permit._timer is not None
    assert permit._timer.cancelled()
    assert consumer.member._suspend_timer is None


async def test_closing_without_zookeeper_ends(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    group.cluster.ensemble.disconnect(consumer.coordinator)
    async with asyncio.timeout(WAIT_S):
        await consumer.member.close(1.0)
    assert consumer.held == set()
    group.cluster.ensemble.reconnect(consumer.coordinator)


@pytest.mark.parametrize("seconds", [0.0, 3.0, 30.0])
async def test_what_a_member_owned_that_was_closed_without_zookeeper_is_freed(
    group: Group, seconds: float
) -> None:
    """Its session is its factory's, and lives on with the connection that comes back."""
    client = await group.client()
    closed = await group.join("a", client)
    other = await group.join("b")
    await share(closed, other)
    session = client.coordinator.session_id
    group.cluster.ensemble.stop()
    await closed.member.close(1.0)
    await asyncio.sleep(seconds)
    group.cluster.ensemble.start()
    await until(lambda: other.held == ALL)
    assert await group.members() == ["b"]
    assert client.coordinator.session_id == session


async def test_a_consumer_of_the_same_name_follows_one_that_was_closed_without_zookeeper(
    group: Group,
) -> None:
    """In the same factory, at once: it is not refused, and not thrown out afterwards."""
    client = await group.client(session_timeout_s=60.0)
    first = await group.join("a", client)
    await until(lambda: first.held == ALL)
    group.cluster.ensemble.disconnect(first.coordinator)
    await first.member.close(1.0)
    second = await group.member("a", client)
    starting = asyncio.create_task(second.member.start())
    await asyncio.sleep(0.01)
    group.cluster.ensemble.reconnect(first.coordinator)
    await starting
    await until(lambda: second.held == ALL)
    audit(second)
    await asyncio.sleep(1.0)
    assert second.events == []
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_consumer_of_the_same_name_does_not_start_before_the_first_one_has_left(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first one leaves undone would later delete the owner nodes of the second one."""
    client = await group.client()
    first = await group.join("a", client)
    await until(lambda: first.held == ALL)
    may_leave, delete = asyncio.Event(), client.departures._delete

    async def late(departure: Departure) -> None:
        await may_leave.wait()
        await delete(departure)

    monkeypatch.setattr(client.departures, "_delete", late)
    interrupted = tuple(claims.Claim("g", "a", each, generation=0) for each in sorted(ALL))
    client.departures.begin(Departure("g", "a", "n1", client.coordinator.session_id, interrupted))
    await first.member.close(1.0)
    await expire(group.cluster.ensemble, first.coordinator)
    second = await group.member("a", client)
    with pytest.raises(NodeExists, match="has not left"):
        await second.member.start()
    may_leave.set()
    await second.member.start()
    await until(lambda: second.held == ALL)
    await asyncio.sleep(1.0)
    assert await group.owners() == dict.fromkeys(ALL, "a")
    await second.member.close(1.0)


@pytest.mark.parametrize("fault", ["lose_next_request", "lose_next_reply"])
@pytest.mark.parametrize("skip", range(10))
async def test_a_start_that_failed_without_zookeeper_leaves_no_member(
    group: Group, fault: str, skip: int
) -> None:
    """Whichever of its calls met the end of the connection."""
    client = await group.client()
    consumer = await group.member("a", client)
    getattr(group.cluster.ensemble, fault)(consumer.coordinator, skip=skip)
    coordinator = consumer.coordinator
    coordinator.add_listener(
        lambda state: setattr(coordinator, "cut", state is SessionState.SUSPENDED)
    )
    starting = asyncio.create_task(consumer.member.start())
    await asyncio.wait([starting], timeout=1.0)
    if not starting.done() or starting.exception() is None:
        starting.cancel()
        await asyncio.wait([starting])
    coordinator.lose_request = coordinator.lose_reply = 0
    await consumer.member.close(1.0)
    group.cluster.ensemble.reconnect(coordinator)
    await until(lambda: coordinator.state is SessionState.CONNECTED)
    await until_true(lambda: _is(group.members(), []))
    await until_true(lambda: _is(group.owners(), {}))


async def test_closing_twice_and_before_the_start_is_fine(group: Group) -> None:
    consumer = await group.member("a")
    await consumer.member.close(1.0)
    await consumer.member.start()
    await consumer.member.close(1.0)
    await consumer.member.close(1.0)
    assert await group.members() == []


async def test_a_name_that_is_taken_is_refused_and_the_other_one_stays(group: Group) -> None:
    """Also within one session, where the node of the other one would count as our own."""
    client = await group.client()
    first = await group.join("a", client)
    await until(lambda: first.held == ALL)
    second = await group.member("a", client)
    with pytest.raises(NodeExists):
        await second.member.start()
    await second.member.close(1.0)
    assert await group.members() == ["a"]
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_start_waits_for_the_session_of_a_killed_member_of_its_name(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    group.cluster.ensemble.crash(first.coordinator)
    second = await group.member("a")
    second.member._nonce = "of another process"
    async with asyncio.timeout(WAIT_S):
        await second.member.start()
    assert caplog.text.count("member name is in use") == 1
    await until(lambda: second.held == ALL)
    assert await group.members() == ["a"]


async def test_a_start_does_not_wait_for_ever_for_a_name(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A live member of that name keeps it."""
    monkeypatch.setattr(memberships, "_NAME_S", 0.05)
    monkeypatch.setattr(memberships, "_NAME_SESSIONS", 0.1)
    first = await group.join("a")
    await until(lambda: first.held == ALL)
    second = await group.member("a")
    second.member._nonce = "of another process"
    begin = asyncio.get_running_loop().time()
    with pytest.raises(NodeExists, match="give each member a name of its own"):
        await second.member.start()
    assert 0.05 < asyncio.get_running_loop().time() - begin < 5
    await second.member.close(1.0)
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_start_that_is_given_up_leaves_no_member_behind(group: Group) -> None:
    """The others would wait for its share."""
    group.cluster.ensemble.delay = lambda: 0.002
    for after in range(0, 60, 4):
        consumer = await group.member("a")
        starting = asyncio.create_task(consumer.member.start())
        await asyncio.sleep(after / 1_000)
        starting.cancel()
        ended = await asyncio.gather(starting, return_exceptions=True)
        if isinstance(ended[0], asyncio.CancelledError):
            assert await group.members() == []
        await consumer.member.close(1.0)


async def test_another_contract_is_refused(group: Group) -> None:
    consumer = await group.join("a")
    other = Consumer(await group.client(), "b", tags="red")
    with pytest.raises(InvalidArgument, match="filter"):
        await other.member.start()
    await until(lambda: consumer.held == ALL)


# Sessions ---------------------------------------------------------------------------------------
async def test_a_lost_session_drops_everything_and_begins_anew(group: Group) -> None:
    consumer = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: consumer.held == ALL)
    session = consumer.coordinator.session_id
    group.cluster.ensemble.expire(consumer.coordinator)
    await until(lambda: consumer.coordinator.session_id not in {0, session})
    await until(lambda: consumer.events and consumer.held == ALL)
    assert sorted(consumer.events) == [f"drop {where}" for where in sorted(ALL)]
    assert await group.owners() == dict.fromkeys(ALL, "a")


async def test_a_lost_session_lets_the_others_take_over(group: Group) -> None:
    first, second = await group.join("a"), await group.join("b")
    await share(first, second)
    group.cluster.ensemble.crash(first.coordinator)
    await until(lambda: second.held == ALL)


async def test_a_short_absence_changes_nothing(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: consumer.held == ALL)
    rounds = 0
    one_round = consumer.member._round

    async def count() -> float:
        nonlocal rounds
        pause_s = await one_round()
        rounds += 1
        return pause_s

    monkeypatch.setattr(consumer.member, "_round", count)
    states: list[SessionState] = []
    consumer.coordinator.add_listener(states.append)
    for times in range(1, 4):
        group.cluster.ensemble.blink(consumer.coordinator)
        await until(lambda times=times: len(states) == 2 * times)
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED] * 3
    before = rounds
    consumer.member.wake()
    await until(lambda: rounds > before)
    assert consumer.events == []


async def test_delivery_pauses_when_ownership_can_no_longer_be_proved(group: Group) -> None:
    """The ensemble is away for longer than the session lives; then the session is back."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    coordinator, silent_s = consumer.coordinator, 0.0

    def note() -> None:
        nonlocal silent_s
        silent_s = consumer.cluster.clock.monotonic() - coordinator.last_reply_monotonic

    consumer.on_suspend = note
    group.cluster.ensemble.stop()
    await until(lambda: consumer.events == ["suspend"])
    late_s = silent_s - coordinator.session_timeout_s
    assert -1e-9 < late_s < 0.5, "as long as the session surely lives, and not much longer"
    group.cluster.ensemble.start()
    await until(lambda: consumer.events == ["suspend", "resume"])
    assert consumer.held == ALL
    assert await group.owners() == dict.fromkeys(ALL, "a")


class JumpingClock(SimulatedClock):
    """A clock that was moved forward: what a process sees that stood still."""

    jumped_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.jumped_s


def jumping_clock() -> JumpingClock:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return JumpingClock(loop)


async def test_a_process_that_stood_still_asks_before_it_delivers(group: Group) -> None:
    """What is still its own goes on, and what another has by now is dropped."""
    clock = jumping_clock()
    consumer = await group.join("a", await group.client(session_timeout_s=60.0, clock=clock))
    await until(lambda: consumer.held == ALL)
    consumer.coordinator._clock = clock
    assert consumer.permit.holds
    asked = consumer.coordinator.last_reply_monotonic
    clock.jumped_s = 29.0
    assert consumer.permit.holds
    consumer.member._permit._extend(clock.monotonic())
    clock.jumped_s += 31.0
    assert not consumer.permit.holds, "at once, for whichever thread looks first"
    async with group.cluster.admin() as coordinator:
        where = TopicPartition("t", 2)
        await coordinator.delete(Owner.path("g", "t", 2))
        await claims.claim(coordinator, "g", "b", where)
        consumer.member._permit.start()  # its timer is due
        await until(lambda: "resume" in consumer.events)
        assert consumer.events[0] == "suspend"
        assert consumer.events.index(f"drop {where}") < consumer.events.index("resume")
        assert consumer.permit.holds
        assert consumer.coordinator.last_reply_monotonic > asked
        assert consumer.held == ALL - {where}


async def test_a_proof_holds_from_when_it_was_asked_for(group: Group) -> None:
    """The process stands still once more before the answers are looked at."""
    clock = jumping_clock()
    consumer = await group.join("a", await group.client(session_timeout_s=60.0, clock=clock))
    await until(lambda: consumer.held == ALL)
    coordinator = consumer.coordinator
    coordinator._clock = clock
    sync = coordinator.sync

    async def late() -> None:
        await sync()
        clock.jumped_s += 31.0

    coordinator.sync = late  # type: ignore[method-assign]
    clock.jumped_s = 61.0
    consumer.member._permit.start()  # its timer is due
    await until(lambda: "resume" in consumer.events)
    assert not consumer.permit.holds
    coordinator.sync = sync  # type: ignore[method-assign]
    consumer.member._permit.start()
    await until(lambda: consumer.permit.holds)
    assert consumer.events == ["suspend", "resume"] * 2


async def test_joining_again_proves_nothing_about_what_is_held(group: Group) -> None:
    """A member node may be missing because the session ended a moment ago, owners with it."""
    consumer = await group.join("a", await group.client(session_timeout_s=60.0))
    await until(lambda: consumer.held == ALL)
    where = TopicPartition("t", 1)
    async with group.cluster.admin() as coordinator:
        await coordinator.delete(Owner.path("g", "t", 1))
        await claims.claim(coordinator, "g", "b", where)
        await coordinator.delete(Member.path("g", "a"))
        await until(lambda: "resume" in consumer.events)
        dropped = consumer.events.index(f"drop {where}")
        assert consumer.events.index("suspend") < dropped < consumer.events.index("resume")
        assert consumer.permit.holds
        assert await group.members() == ["a"]


async def test_a_pause_begins_with_the_last_answer_and_not_much_later(group: Group) -> None:
    """However late the silence is noticed: here just before the session may have ended."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    coordinator, clock = consumer.coordinator, consumer.cluster.clock
    paused_at = math.inf

    def note() -> None:
        nonlocal paused_at
        paused_at = clock.monotonic()

    consumer.on_suspend = note
    heartbeat, coordinator._heartbeat = coordinator._heartbeat, None
    assert heartbeat is not None
    heartbeat.cancel()  # answers cease, and nothing says that they do
    await asyncio.sleep(0)
    last_answer = coordinator.last_reply_monotonic
    due = last_answer + coordinator.session_timeout_s
    await until(lambda: clock.monotonic() > due - 0.05)
    if coordinator.last_reply_monotonic == last_answer:
        assert consumer.events == []
        assert consumer.permit.holds
    group.cluster.ensemble.stop()
    await until(lambda: consumer.events == ["suspend"])
    late = paused_at - (coordinator.last_reply_monotonic + coordinator.session_timeout_s)
    assert -1e-9 < late < 0.5
    assert not consumer.permit.holds


async def test_delivery_pauses_also_while_a_round_waits_for_zookeeper(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task itself may be in the middle of a call that lasts until the connection is back."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    inside = asyncio.Event()
    read = consumer.member._view.members

    async def members() -> Any:
        inside.set()
        await until(lambda: consumer.coordinator.state is SessionState.CONNECTED)
        return await read()

    monkeypatch.setattr(consumer.member._view, "members", members)
    group.cluster.ensemble.stop()
    consumer.member.wake()
    await until(lambda: consumer.events == ["suspend"])
    group.cluster.ensemble.start()
    await until(lambda: consumer.events == ["suspend", "resume"])
    assert inside.is_set()


async def test_a_session_that_ended_during_the_pause_drops_everything(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    session = consumer.coordinator.session_id
    group.cluster.ensemble.disconnect(consumer.coordinator)
    await until(lambda: consumer.events == ["suspend"])
    await until(lambda: not group.cluster.ensemble.is_live(session))
    group.cluster.ensemble.reconnect(consumer.coordinator)
    await until(lambda: len(consumer.events) == 5 and consumer.held == ALL)
    assert "resume" not in consumer.events


async def test_a_session_that_ended_for_good_is_told(group: Group) -> None:
    """Everything is drained without a commit, and close has nothing to wait for."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    begin = asyncio.get_running_loop().time()
    consumer.coordinator.give_up("its clients died")
    assert len(consumer.events) == 1
    assert consumer.events[0].startswith("ended: ")
    assert "its clients died" in consumer.events[0]
    assert not consumer.permit.holds
    await until(lambda: consumer.held == set())
    await consumer.member.close(1.0)
    assert asyncio.get_running_loop().time() - begin < 1.0
    assert sorted(consumer.events[1:]) == [f"drop {partition}" for partition in sorted(ALL)]


async def test_a_member_node_that_was_deleted_is_made_again(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    async with group.cluster.admin() as coordinator:
        await coordinator.delete("consumers/g/members/a")

    async def is_back() -> bool:
        return await group.members() == ["a"]

    await until_true(is_back)
    assert consumer.held == ALL


async def test_an_owner_node_taken_away_is_noticed(group: Group) -> None:
    """By force, say: what is no longer ours is dropped without a commit, and claimed anew."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    await lose_and_claim_again(group, consumer)


async def test_a_look_at_what_is_owned_that_failed_is_repeated(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next try, long before the next audit."""
    monkeypatch.setattr(memberships, "_AGAIN", SOON)
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    still_ours = claims.still_ours
    failures = 1

    async def fail(coordinator: Any, claim: claims.Claim) -> bool:
        nonlocal failures
        if claim.partition == P1 and failures:
            failures -= 1
            raise CoordinationError("no answer")
        return await still_ours(coordinator, claim)

    monkeypatch.setattr(shares.claims, "still_ours", fail)
    await lose_and_claim_again(group, consumer)
    assert failures == 0


# Commits ----------------------------------------------------------------------------------------
async def test_commits_are_written_and_fenced(group: Group) -> None:
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    assert await consumer.member.share.commit({P0: Progress(10, 7), P1: Progress(20)}) == {
        P0: None,
        P1: None,
    }
    async with group.cluster.admin() as coordinator:
        assignment = await coordinator.get("consumers/g/assignment/t/1")
        await coordinator.set("consumers/g/assignment/t/1", assignment.data)
    outcome = await consumer.member.share.commit({P0: Progress(11, 8), P1: Progress(21, 9)})
    assert outcome[P0] is None
    assert isinstance(outcome[P1], GenerationStale)
    async with group.cluster.admin() as coordinator:
        found = await commits.read_offsets(coordinator, "g", ["t"])
    assert {where: each.offset for where, each in found.items()} == {P0: 11, P1: 20}
    assert {where: each.message_id for where, each in found.items()} == {P0: 8, P1: None}


async def test_a_commit_that_returns_late_leaves_a_later_claim_alone(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The partition was lost and claimed anew meanwhile: its commits have the later generation."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    commit = commits.commit
    written, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> commits.CommitResult:
        result = await commit(*arguments)
        written.set()
        await go_on.wait()
        return result

    monkeypatch.setattr(shares.commits, "commit", slow)
    committing = asyncio.create_task(consumer.member.share.commit({P1: Progress(20)}))
    await written.wait()
    await lose_and_claim_again(group, consumer)
    go_on.set()
    assert await committing == {P1: None}
    assert await consumer.member.share.commit({P1: Progress(30)}) == {P1: None}


async def commit_under_way(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> tuple[asyncio.Task[Any], asyncio.Event]:
    """Begin a commit of ``P0`` at 10; it, and all later ones, go on when the event is set."""
    commit = commits.commit
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(*arguments: Any) -> commits.CommitResult:
        begun.set()
        await go_on.wait()
        return await commit(*arguments)

    monkeypatch.setattr(shares.commits, "commit", slow)
    task = asyncio.create_task(consumer.member.share.commit({P0: Progress(10)}))
    await begun.wait()
    return task, go_on


async def test_progress_that_waits_is_not_committed_under_a_later_claim(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another commit is under way; meanwhile the partition is lost, and claimed anew."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    share = consumer.member.share
    first, go_on = await commit_under_way(consumer, monkeypatch)
    waiting = asyncio.create_task(share.commit({P1: Progress(20), P2: Progress(30)}))
    await lose_and_claim_again(group, consumer)
    go_on.set()
    assert await first == {P0: None}
    outcome = await waiting
    assert isinstance(outcome[P1], GenerationStale)
    assert outcome[P2] is None
    async with group.cluster.admin() as coordinator:
        assert sorted(await commits.read_offsets(coordinator, "g", ["t"])) == [P0, P2]


async def test_of_commits_that_wait_together_the_last_one_of_a_partition_is_written(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The regular commit and one that the user asks for, while a third one is under way."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    share = consumer.member.share
    first, go_on = await commit_under_way(consumer, monkeypatch)
    waiting = [asyncio.create_task(share.commit({P1: Progress(at)})) for at in (20, 30)]
    await asyncio.sleep(0)
    go_on.set()
    assert await first == {P0: None}
    assert await asyncio.gather(*waiting) == [{P1: None}, {P1: None}]
    async with group.cluster.admin() as coordinator:
        found = await commits.read_offsets(coordinator, "g", ["t"])
    assert {where: each.offset for where, each in found.items()} == {P0: 10, P1: 30}


def test_progress_belongs_to_the_claim_that_it_was_made_under() -> None:
    """A claim may give the same hold another generation."""
    hold = Hold(claims.Claim("g", "a", P0, generation=1), lambda _: None)
    for event in (Event.CLAIM, Event.CLAIMED):
        hold.on(event)
    wanted = shares._Commit(hold, 1, Progress(5))
    assert wanted.is_current
    hold.claim = claims.Claim("g", "a", P0, generation=2)
    assert not wanted.is_current


async def test_one_commit_that_is_refused_does_not_stop_the_others(group: Group) -> None:
    """An offset before the committed one; commits go together, and alone when that fails."""
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    share = consumer.member.share
    assert await share.commit({P1: Progress(50)}) == {P1: None}
    outcome = await share.commit({P0: Progress(10), P1: Progress(20), P2: Progress(30)})
    assert isinstance(outcome[P1], InvalidArgument)
    assert (outcome[P0], outcome[P2]) == (None, None)


async def test_a_member_that_leaves_during_a_hiccup_leaves_nothing_behind(group: Group) -> None:
    """Its session lives on with others that use it, and its nodes would be waited for."""
    client = await group.client(session_timeout_s=10.0)
    first, second = await group.join("a", client), await group.join("b", client)
    await share(first, second)
    group.cluster.ensemble.disconnect(first.coordinator)
    await until(lambda: first.coordinator.state is SessionState.SUSPENDED)
    closing = asyncio.create_task(first.member.close(5.0))
    await asyncio.sleep(0)
    group.cluster.ensemble.reconnect(first.coordinator)
    await closing
    await until(lambda: second.held == ALL)


async def test_the_next_owner_goes_on_at_the_commit(group: Group) -> None:
    taken: dict[TopicPartition, claims.Claim] = {}

    async def begin(claim: claims.Claim) -> None:
        taken[claim.partition] = claim

    first = await group.join("a")
    await until(lambda: first.held == ALL)
    await first.member.share.commit({P2: Progress(77)})
    await first.member.close(1.0)
    second = await group.member("b")
    second.on_claimed = begin
    await second.member.start()
    await until(lambda: second.held == ALL)
    assert taken[P2].committed is not None
    assert taken[P2].committed.offset == 77
    assert taken[P0].committed is None


async def test_a_claim_that_failed_is_tried_again_at_once(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other member owns the partition, so there is nobody to wait for."""
    monkeypatch.setattr(memberships, "_AGAIN", SOON)
    claim, failures = claims.claim_together, 1

    async def fail(*arguments: Any, **options: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise ConnectionLost("the connection ended before the answer")
        return await claim(*arguments, **options)

    monkeypatch.setattr(claims, "claim_together", fail)
    consumer = await group.join("a")
    await until(lambda: consumer.held == ALL)
    assert failures == 0
