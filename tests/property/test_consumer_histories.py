"""Groups of consumers through random histories: nothing is skipped, and nothing is left behind.

Goal: members join, leave, take long for a message and lose ZooKeeper in any order; after a quiet
period all is as if nothing had happened.

    seed ──▶ members on few factories ── 40 s of events ── heal ──▶ quiet
                  │                                                  │
                  ▼                                                  ▼
    every commit and every message is checked        every partition has a living owner,
                                                     every message was handled, no node is left

Real: the consumers, one broker, ZooKeeper's twin, all in virtual time. ``VQ_LONG=1`` runs many more
seeds, ``VQ_SEED=<seed>`` one with a trace.
"""

import asyncio
import contextlib
import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.client import cluster_client
from support.raising_logs import raising_logs

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import ConsumerConfig
from vq.client.consumer.core import ConsumerCore
from vq.client.consumer.deliver.delivery import Executor
from vq.client.consumer.deliver.in_turn import InTurn
from vq.client.consumer.deliver.inbox import Inbox, Messages
from vq.client.consumer.deliver.permit import Permit
from vq.coordination.tree.coordinator import Create, Operation, SessionState, Set, Stat
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.consumers import Assignment, CommittedOffset, Owner
from vq.errors import VqError
from vq.model import Message, SendResult, TopicPartition
from vq.testing.loop import clock_of_loop
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time
LONG = os.environ.get("VQ_LONG") == "1"
#: Seeds of histories with faults, and of those without.
SEEDS = range(2_000) if LONG else range(8)
PLANNED_SEEDS = range(500) if LONG else range(3)
BLOCK = 4
SESSION_S = 4.0
SECONDS = 40.0
#: A member that closes waits so long for its listeners, and so long for ZooKeeper after that.
CLOSE_S = 30.0 + 5.0 + 5.0
#: Until all is as it should be: the longest listener, an audit and the longest pauses.
QUIET_S = 240.0
NAMES = ("a", "b", "c", "d")
GROUP = "g"
TOPIC = "t"


class Broken(AssertionError):
    """A promise was broken."""


class CheckedEnsemble(MemoryEnsemble):
    """A ZooKeeper that looks at each commit as it takes it."""

    def __init__(self, on_commit: Callable[[TopicPartition, CommittedOffset, bool], None]) -> None:
        super().__init__(clock=clock_of_loop())
        self._on_commit = on_commit

    def apply(self, operations: Sequence[Operation], session_id: int) -> list[Stat | None]:
        """See ``MemoryEnsemble.apply``."""
        results = super().apply(operations, session_id)
        for operation in operations:
            words = operation.path.split("/")  # vq/<cluster>/consumers/<group>/offsets/<topic>/<n>
            if isinstance(operation, Create | Set) and len(words) == 7 and words[4] == "offsets":
                self._check(operation, words)
        return results

    def _check(self, operation: Create | Set, words: list[str]) -> None:
        """Compare a commit with who claimed last; its owner node may have gone a moment ago."""
        offset = CommittedOffset.decode(operation.path, operation.data)
        partition = TopicPartition(words[5], int(words[6]))
        path = "/".join([*words[:4], "assignment", *words[5:]])
        claimed = Assignment.decode(path, self.tree.get(path).data).member
        path = "/".join([*words[:4], "owners", *words[5:]])
        owner = claimed
        if self.tree.exists(path) is not None:
            owner = Owner.decode(path, self.tree.get(path).data).member
        self._on_commit(partition, offset, {claimed, owner} == {offset.member})


class Member:
    """One consumer, with a listener of its own for each partition."""

    def __init__(self, history: "History", client: ClusterClient, name: str) -> None:
        self.history = history
        self.client = client
        self.name = name
        self.slow_s: dict[TopicPartition, float] = {}  # what the next message of it takes
        self.starting: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        permit = Permit(client.clock.monotonic)
        config = ConsumerConfig(
            group=GROUP,
            member_id=name,
            commit_interval_s=history.rng.choice((0.3, 1.0, 5.0)),
            audit_interval_s=10.0,
            max_wait_s=2.0,
        )
        self.core = ConsumerCore(client, config, permit=permit)
        self.core.subscribe(TOPIC, history.rng.choice((500, 1 << 20)), None, OneEach(self))

    async def listen(self, partition: TopicPartition, messages: Messages) -> None:
        last = -1
        async for message in messages:
            self.history.delivered(self, partition, message, last)
            last = message.offset
            usual_s = self.history.rng.choice((0.0, 0.0, 0.01, 0.1))
            await asyncio.sleep(self.slow_s.pop(partition, usual_s))
            self.history.handled[partition][message.offset] += 1

    async def start(self) -> None:
        """Start, as often as it takes; a program would give up some day."""
        while not self.core.closed:
            try:
                await self.core.start()
                return
            except VqError as error:
                self.history.trace(f"{self.name} does not start: {error!r}")
                await asyncio.sleep(0.3)

    async def close(self) -> None:
        """Close, within the time that it may take."""
        begin = asyncio.get_running_loop().time()
        await self.core.close()
        took_s = asyncio.get_running_loop().time() - begin
        self.history.trace(f"{self.name} is closed after {took_s:.1f} s")
        if took_s > CLOSE_S:
            raise Broken(f"{self.name} took {took_s:.1f} s to close")


async def _nothing() -> None:
    """Stand in for the start of a consumer."""


class OneEach(Executor):
    """An inbox for each delivery, and a task that takes its messages."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._inboxes: dict[InTurn, Inbox] = {}

    def put(self, delivery: InTurn) -> None:
        """See ``Executor.put``."""
        if delivery not in self._inboxes:
            inbox = self._inboxes[delivery] = Inbox(delivery.permit)
            listening = self._member.listen(delivery.partition, Messages(inbox, _nothing))
            self._member.history.spawn(listening)
        self._inboxes[delivery].put(delivery)

    def is_waited_for(self, delivery: InTurn) -> None:
        """See ``Executor.is_waited_for``."""
        self._inboxes[delivery].is_waited_for(delivery)


class History:
    """What happened to one group, and what may happen to it."""

    def __init__(self, seed: int, *, faults: bool, tell: bool) -> None:
        self.rng = random.Random(f"{seed}/{faults}")
        self.cluster = MemoryCluster(ensemble=CheckedEnsemble(self._committed))
        self.clients: list[ClusterClient] = []
        self.members: list[Member] = []
        self.acked: dict[TopicPartition, list[int]] = {}
        self.handled: dict[TopicPartition, Counter[int]] = {}
        self.errors: list[BaseException] = []
        self._faults = faults
        self._tell = tell
        self._tasks: list[asyncio.Task[Any]] = []
        self._logs = contextlib.ExitStack()
        self._partitions = self.rng.choice((1, 3, 8))

    def trace(self, line: str) -> None:
        if self._tell:
            print(f"{asyncio.get_running_loop().time():10.4f}  {line}")

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something whose failure breaks the history."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    # What is checked all the time ---------------------------------------------------------------
    def _committed(
        self, partition: TopicPartition, offset: CommittedOffset, by_owner: bool
    ) -> None:
        self.trace(f"{offset.member} commits {partition} {offset.offset}")
        if not by_owner:
            self.errors.append(Broken(f"{offset.member} commits {partition}, which is another's"))
        self._check_handled(partition, offset.offset, f"{offset.member} commits")

    def delivered(
        self, member: Member, partition: TopicPartition, message: Message, last: int
    ) -> None:
        """Look at a message that a listener is given; ``last`` is the offset before."""
        self.trace(f"{member.name} gets {partition} {message.offset}")
        if message.offset <= last:
            self.errors.append(
                Broken(f"{member.name} gets {partition} {message.offset} after {last}")
            )
        self._check_handled(partition, message.offset, f"{member.name} gets")

    def _check_handled(self, partition: TopicPartition, offset: int, what: str) -> None:
        """Each message that comes before ``offset`` was handled."""
        for each in self.acked[partition]:
            if each < offset and not self.handled[partition][each]:
                self.errors.append(Broken(f"{what} {partition} {offset}; {each} was not handled"))

    # What happens -------------------------------------------------------------------------------
    async def run(self) -> None:
        """Play the history and check its end."""
        cluster, rng = self.cluster, self.rng
        await cluster.start()
        await cluster.create_topic(TOPIC, partitions=self._partitions)
        for number in range(self._partitions):
            self.acked[TopicPartition(TOPIC, number)] = []
            self.handled[TopicPartition(TOPIC, number)] = Counter()
        sender = await self._client("sender", session_timeout_s=60.0)
        self.clients.clear()
        for number in range(rng.choice((1, 2, 3))):
            await self._client(f"host{number}", session_timeout_s=SESSION_S)
        factory = aio.MessageFactory.on_cluster(sender)
        producer = await factory.create_producer()
        await producer.publish(TOPIC)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + SECONDS
        while loop.time() < until_s and not self.errors:
            for _ in range(rng.choice((0, 1, 1, 10))):
                await producer.send_async(
                    Message(TOPIC, b"x", key=str(rng.random())), self._sent, timeout=QUIET_S
                )
            event = rng.choice(self._events)
            event(self)
            await asyncio.sleep(rng.expovariate(1 / rng.choice((0.01, 0.5, 1.5))))
        self._heal()
        await producer.flush()
        await self._until_quiet()
        self._check_end()
        await asyncio.gather(*(each.close() for each in self._living))
        await producer.close()

    async def _client(self, host: str, **settings: Any) -> ClusterClient:
        seed = self.rng.getrandbits(32)
        client = cluster_client(self.cluster, host=host, seed=seed, **settings)
        await client.start()
        self.clients.append(client)
        return client

    def _sent(self, result: SendResult | None, error: VqError | None) -> None:
        if result is not None:
            self.acked[TopicPartition(TOPIC, result.partition)].append(result.offset)

    @property
    def _living(self) -> list[Member]:
        return [each for each in self.members if each.closing is None]

    @property
    def _coordinators(self) -> list[MemoryCoordinator]:
        found = [each.coordinator for each in self.clients]
        return [each for each in found if isinstance(each, MemoryCoordinator)]

    def _join(self) -> None:
        """A member of a name that no living one has; an earlier one may be closing still."""
        used = {each.name for each in self._living}
        free = [name for name in NAMES if name not in used]
        if free:
            member = Member(self, self.rng.choice(self.clients), self.rng.choice(free))
            self.trace(f"{member.name} joins on {self.clients.index(member.client)}")
            self.members.append(member)
            member.starting = self.spawn(member.start())

    def _leave(self) -> None:
        """Close one, started or not."""
        if self._living:
            member = self.rng.choice(self._living)
            self.trace(f"{member.name} leaves")
            member.closing = self.spawn(member.close())

    def _slow(self) -> None:
        """The next message of one partition takes its listener long."""
        held = [(each, partition) for each in self._living for partition in each.core.held()]
        if held:
            member, partition = self.rng.choice(held)
            member.slow_s[partition] = self.rng.choice(
                (5.0, 15.0, 60.0) if self._faults else (5.0, 10.0)
            )

    def _logging_raises(self) -> None:
        self._logs.close()
        if self.rng.random() < 0.5:
            self._logs.enter_context(raising_logs())

    def _expire(self) -> None:
        coordinator = self.rng.choice(self._coordinators)
        if self.cluster.ensemble.is_live(coordinator.session_id):
            self.trace("a session expires")
            self.cluster.ensemble.expire(coordinator)

    def _expire_unheard(self) -> None:
        coordinator = self.rng.choice(self._coordinators)
        if coordinator.state is SessionState.CONNECTED:
            self.trace("a session expires unheard")
            self.cluster.ensemble.expire_unheard(coordinator)

    def _strike(self) -> None:
        ensemble = self.cluster.ensemble
        strike = self.rng.choice(
            (ensemble.lose_next_reply, ensemble.lose_next_request, ensemble.outlive_next)
        )
        self.trace(f"{strike.__name__}")
        strike(self.rng.choice(self._coordinators), skip=self.rng.randrange(12))

    def _cut(self) -> None:
        """One factory is without ZooKeeper for a while."""
        coordinator = self.rng.choice(self._coordinators)
        self.trace("a factory is cut off")
        self.cluster.ensemble.disconnect(coordinator)
        seconds = self.rng.choice((0.1, 3.0, 8.0))
        loop = asyncio.get_running_loop()
        loop.call_later(seconds, self.cluster.ensemble.reconnect, coordinator)

    def _stop(self) -> None:
        """ZooKeeper is away for a while, for everybody."""
        if self.cluster.ensemble.running:
            self.trace("ZooKeeper stops")
            self.cluster.ensemble.stop()
            seconds = self.rng.choice((0.1, 6.0, 10.0))
            asyncio.get_running_loop().call_later(seconds, self.cluster.ensemble.start)

    @property
    def _events(self) -> list[Callable[["History"], None]]:
        planned = [History._join] * 4 + [History._leave] * 2 + [History._slow] * 2
        planned.append(History._logging_raises)
        faults = [
            History._expire,
            History._expire_unheard,
            History._strike,
            History._cut,
            History._stop,
        ]
        return planned + faults if self._faults else planned

    # The end --------------------------------------------------------------------------------------
    def _heal(self) -> None:
        self.trace("heal")
        self.cluster.ensemble.start()
        for coordinator in self._coordinators:
            coordinator.faults.clear()
            self.cluster.ensemble.reconnect(coordinator)
        for member in self.members:
            member.slow_s.clear()
        self._logs.close()
        if not self._living:
            self._join()

    async def _until_quiet(self) -> None:
        try:
            await until(lambda: self.errors or self._is_quiet(), timeout_s=QUIET_S)
        except TimeoutError:
            raise Broken(f"not quiet: {self._unfinished()}") from None

    def _is_quiet(self) -> bool:
        return not self._unfinished()

    def _unfinished(self) -> str:
        """Return what is not as it should be; "": all is."""
        for member in self.members:
            task = member.starting if member.closing is None else member.closing
            if task is None or not task.done():
                return f"{member.name} has not started or closed yet"
        for partition, offsets in self.acked.items():
            missing = [each for each in offsets if not self.handled[partition][each]]
            if missing:
                return f"{partition} {missing} was not handled"
        names = {each.name: each for each in self._living}
        members = self._children("members")
        if members != sorted(names):
            return f"members are {members}, living {sorted(names)}"
        for partition in self.acked:
            node = self._node("owners", partition)
            if node is None:
                return f"{partition} has no owner"
            owner = names.get(Owner.decode("", node.data).member)
            session = 0 if owner is None else owner.client.coordinator.session_id
            if node.stat.ephemeral_owner != session:
                return f"{partition} belongs to {node}"
            if owner is None or partition not in owner.core.held():
                return f"{partition} is not consumed by its owner"
            offset = self._node("offsets", partition)
            last = max(self.acked[partition], default=-1)
            if offset is None or CommittedOffset.decode("", offset.data).offset <= last:
                return f"{partition} is not committed to its end"
        return ""

    def _node(self, kind: str, partition: TopicPartition) -> Any:
        path = f"vq/test/consumers/{GROUP}/{kind}/{partition.topic}/{partition.partition}"
        tree = self.cluster.ensemble.tree
        return tree.get(path) if tree.exists(path) is not None else None

    def _children(self, kind: str) -> list[str]:
        path = f"vq/test/consumers/{GROUP}/{kind}"
        tree = self.cluster.ensemble.tree
        return sorted(tree.children(path)) if tree.exists(path) is not None else []

    def _check_end(self) -> None:
        if self.errors:
            raise self.errors[0]
        if not self._faults:  # planned changes repeat nothing
            for partition, counts in self.handled.items():
                twice = [offset for offset, count in counts.items() if count > 1]
                if twice:
                    raise Broken(f"{partition} {twice} was handled twice")

    async def end(self) -> None:
        """Leave nothing behind."""
        self._logs.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for client in self.clients:
            await client.close()
        await self.cluster.stop()


async def play(seed: int, *, faults: bool, tell: bool = False) -> None:
    """Play one history."""
    print(f"seed {seed}, faults {faults}")
    history = History(seed, faults=faults, tell=tell)
    try:
        await history.run()
    except BaseException as error:
        error.add_note(f"replay: VQ_SEED={seed} pytest {__file__} -k one_seed -s")
        raise
    finally:
        await history.end()


@pytest.fixture(autouse=True)
def quiet_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a raising handler raises is not shown: it is many lines."""
    monkeypatch.setattr(logging, "raiseExceptions", False)


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::BLOCK])
async def test_after_any_history_the_group_goes_on(first: int) -> None:
    """Each message was handled, commits were the owner's, and nothing of the closed ones stays."""
    for seed in range(first, first + BLOCK):
        await play(seed, faults=True)


@pytest.mark.slow
@pytest.mark.parametrize("first", PLANNED_SEEDS[::BLOCK])
async def test_without_faults_each_message_is_handled_once(first: int) -> None:
    """Members come and go, and some messages take long."""
    for seed in range(first, min(first + BLOCK, PLANNED_SEEDS.stop)):
        await play(seed, faults=False)


@pytest.mark.skipif("VQ_SEED" not in os.environ, reason="replays the one seed that VQ_SEED names")
@pytest.mark.parametrize("faults", [True, False])
async def test_one_seed_with_a_trace(faults: bool) -> None:
    """Print everything that happens under one seed."""
    await play(int(os.environ["VQ_SEED"]), faults=faults, tell=True)
