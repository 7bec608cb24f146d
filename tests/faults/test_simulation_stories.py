"""Stories on the simulated cluster: one sequence of events each, told as it must not end.

The random runs (``test_simulation``) find what nobody thought of; these pin what was found, or what
chance would hardly ever arrange.
"""

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from support.simulation import mutants, run, workload
from support.simulation.heirs import full_heir
from support.simulation.nemesis import Nemesis
from support.simulation.world import SESSION_TIMEOUT_S, TOPIC, ClientHost, Size

from vq import aio
from vq.broker.replication.catching_up import Pursuit
from vq.broker.standing.role import Role
from vq.client.config import ConsumerConfig
from vq.client.reading.chunk import Chunk
from vq.client.reading.damage import READS_MAX
from vq.client.reading.decode import Decoder
from vq.coordination.groups.zookeeper_offsets import ZooKeeperOffsets
from vq.coordination.topics.topics import delete_topic
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.values.brokers import GroupState
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.coordination.tree.values.partitions import Partition
from vq.coordination.tree.values.topics import TopicNode
from vq.errors import VqError
from vq.model import Message, TopicPartition

SMALL = Size(brokers=1, partitions=1, producers=1, members=1)


def play(story: type[run.Simulation], size: Size = SMALL) -> run.Report:
    """Run a story to its end."""
    return run.execute(lambda loop: story(loop, 1, seconds=0, size=size, kinds=(), tell=None))


class ProgressBeyondTheEnd(run.Simulation):
    """A group is told to go on far behind the end of its only partition."""

    async def main(self) -> None:
        """See ``Simulation.main``."""
        operator = await self.start()
        await self.create_topic(operator)
        producers = self.clients("p", 1, workload.produce)
        members = self.clients("c", 1, workload.consume)
        await asyncio.sleep(3)
        await self.end(producers)
        await self.until("the member to catch up", self.everything_is_done)
        await self.end(members)
        before = len(self.world.history.events)
        partition = TopicPartition(TOPIC, 0)
        far = CommittedOffset(offset=10**9)
        await ZooKeeperOffsets(operator.coordinator).reset("shop", partition, far)
        members[0].wanted = True
        await asyncio.sleep(20)
        self.violations += [
            f"read: {event}" for event in self.world.history.events[before:] if event[1] == "read"
        ]


def test_progress_beyond_the_end_is_no_reason_to_begin_anew() -> None:
    """Nothing is delivered again: the error is told, and an operator decides."""
    report = play(ProgressBeyondTheEnd)
    assert report.delivered >= 10
    assert report.violations == []


def test_beginning_anew_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that resets to 0 is killed by the story above."""
    mutants.OUT_OF_RANGE_BEGINS_ANEW.patch(monkeypatch)
    assert play(ProgressBeyondTheEnd).violations


class TopicMadeAnew(run.Simulation):
    """A topic is deleted and made anew while its broker hears nothing from ZooKeeper."""

    async def main(self) -> None:
        """See ``Simulation.main``."""
        world, history = self.world, self.world.history
        operator = await self.start()
        await self.create_topic(operator)
        producers = self.clients("p", 1, workload.produce)
        await asyncio.sleep(3)
        deaf = world.brokers[0].coordinator
        assert deaf is not None
        world.ensemble.disconnect(deaf)
        await delete_topic(operator.coordinator, TOPIC)
        await self.create_topic(operator)
        history.add("note", "operator", "made anew")
        made = len(history.events)
        await asyncio.sleep(2)
        world.ensemble.reconnect(deaf)
        await asyncio.sleep(3)
        await self.end(producers)
        log, *_ = await self._operator_process.spawn(self._read_end(operator))
        stored = {each.value for messages in log.values() for each in messages}
        since = history.events[made:]
        sent = {event[3] for event in since if event[1] == "send"}
        acknowledged = {event[3] for event in since if event[1] == "ok"} & sent
        history.add("note", "operator", len(acknowledged))
        if not acknowledged:
            self.violations.append("nothing was acknowledged any more")
        self.violations += [f"lost: {value}" for value in sorted(acknowledged - stored)]
        self.violations += [f"of the old topic: {value}" for value in sorted(stored - sent)]


def test_what_is_sent_to_a_topic_made_anew_does_not_end_in_its_namesake() -> None:
    """A broker that has not heard of the change must not acknowledge into what will be deleted."""
    report = play(TopicMadeAnew)
    assert report.violations == []


class GroupOnTopicMadeAnew(run.Simulation):
    """A topic is deleted and made anew, again and again, under a group that goes on consuming."""

    async def main(self) -> None:
        """See ``Simulation.main``."""
        history = self.world.history
        operator = await self.start()
        await self.create_topic(operator)
        producers = self.clients("p", 2, workload.produce)
        members = self.clients("c", 2, workload.consume)
        made = 0
        for _ in range(4):
            await asyncio.sleep(3)
            await delete_topic(operator.coordinator, TOPIC)
            await asyncio.sleep(self.world.rng.choice((0, 0.001, 0.01, 1)))
            await self.create_topic(operator)
            history.add("note", "operator", "made anew")
            made = len(history.events)
        await asyncio.sleep(5)
        await self.end(producers)
        await asyncio.sleep(15)
        await self.end(members)
        since = history.events[made:]
        sent = {event[3] for event in since if event[1] == "send"}
        acknowledged = {event[3] for event in since if event[1] == "ok"} & sent
        got = {event[6] for event in since if event[1] == "read"}
        history.add("note", "operator", len(acknowledged))
        if not acknowledged:
            self.violations.append("nothing was acknowledged any more")
        self.violations += [f"unseen: {value}" for value in sorted(acknowledged - got)]
        self.violations += [str(event) for event in history.of("broken")]
        self.violations += [
            str(event) for event in history.of("note") if event[3:4] in {("ended",), ("crashed",)}
        ]


def test_a_group_gets_everything_of_a_topic_made_anew() -> None:
    """No member goes on in the namesake where it stood in the old one, and none stumbles."""
    report = play(GroupOnTopicMadeAnew, Size(brokers=2, partitions=3, producers=2, members=2))
    assert report.violations == []


class TopicVanishesAndReturns(run.Simulation):
    """ZooKeeper loses a topic and gets the same one back; its broker hears of neither."""

    async def main(self) -> None:
        """See ``Simulation.main``."""
        world = self.world
        operator = await self.start()
        await self.create_topic(operator)
        producers = self.clients("p", 1, self._send_slowly)
        await asyncio.sleep(3)
        deaf = world.brokers[0].coordinator
        assert deaf is not None
        world.ensemble.disconnect(deaf)
        await self._lose_and_restore(operator.coordinator)
        world.ensemble.reconnect(deaf)
        await asyncio.sleep(6)
        await self.end(producers)
        log, *_ = await self._operator_process.spawn(self._read_end(operator))
        stored = {(each.value, each.offset) for messages in log.values() for each in messages}
        acknowledged = [event for event in world.history.events if event[1] == "ok"]
        self.violations += [
            f"lost: {event}" for event in acknowledged if (event[3], event[5]) not in stored
        ]

    async def _lose_and_restore(self, coordinator: Coordinator) -> None:
        paths = [TopicNode.path("orders"), Partition.parent("orders"), Partition.path("orders", 0)]
        data = [(await coordinator.get(path)).data for path in paths]
        for path in reversed(paths):
            await coordinator.delete(path)
        await asyncio.sleep(1)
        for path, value in zip(paths, data, strict=True):
            await coordinator.create(path, value)

    @staticmethod
    async def _send_slowly(
        host: ClientHost, name: str, factory: aio.MessageFactory, _rng: random.Random
    ) -> None:
        history = host.world.history
        producer = await factory.create_producer()
        number = 0
        while not host.stopping:
            value = f"{name}/{number}"
            number += 1
            history.add("send", name, value, None)
            try:
                done = await producer.send(Message("orders", value.encode()))
            except VqError as error:
                history.add("refused", name, value, type(error).__name__)
            else:
                history.add("ok", name, value, f"orders-{done.partition}", done.offset, done.id)
            await asyncio.sleep(0.9)


def test_a_topic_published_again_begins_under_a_producer_id_of_its_own() -> None:
    """Its first batch is no resend of the first one ever: acknowledged, and not stored."""
    report = play(TopicVanishesAndReturns)
    assert report.acknowledged > 5
    assert report.violations == []


class ThawedConsumer(run.Simulation):
    """A member stands still in the middle of its backlog until another one has handled the rest."""

    messages = 400

    async def main(self) -> None:
        """See ``Simulation.main``."""
        world, history = self.world, self.world.history
        operator = await self.start()
        await self.create_topic(operator)

        def count(kind: str) -> int:
            return sum(1 for _ in history.of(kind))

        producers = self.clients("p", 1, self._send_all)
        await self.until("the producer to end", lambda: count("ok") == self.messages)
        (first,) = self.clients("c", 1, self._consume_steadily)
        while count("read") < self.messages // 10:
            await asyncio.sleep(0.01)
        (second,) = [world.client("c2", self._consume_steadily)]
        self._supervise(second.keep_running())
        first.pause()
        await self.until("its successor to do the rest", self.everything_is_done)
        thawed = len(history.events)
        first.resume()
        await asyncio.sleep(2 * SESSION_TIMEOUT_S)
        await self.end([*producers, first, second])
        self.violations += [
            f"handled again: {event}" for event in history.events[thawed:] if event[1] == "read"
        ]

    async def _send_all(
        self, host: ClientHost, name: str, factory: aio.MessageFactory, _rng: random.Random
    ) -> None:
        producer = await factory.create_producer()
        for number in range(self.messages):
            value = f"{name}/{number}"
            done = await producer.send(Message(TOPIC, value.encode()))
            partition = f"{TOPIC}-{done.partition}"
            host.world.history.add("ok", name, value, partition, done.offset, done.id)
        while not host.stopping:
            await asyncio.sleep(0.1)

    @staticmethod
    async def _consume_steadily(
        host: ClientHost, name: str, factory: aio.MessageFactory, _rng: random.Random
    ) -> None:
        member = name.replace("#", "-")
        consumer = await factory.create_consumer(
            ConsumerConfig(group=workload.GROUPS["c"], member_id=member, commit_interval_s=0.3)
        )
        leaving = asyncio.create_task(workload.leave(host, name, consumer))
        async for message in consumer.subscribe(TOPIC):
            partition = f"{message.topic}-{message.partition}"
            host.world.history.add(
                "read", member, partition, message.offset, message.next_offset,
                workload.value_of(message),
            )  # fmt: skip
            await asyncio.sleep(0.001)
        await leaving


def test_a_thawed_consumer_handles_nothing_that_its_successor_has_done() -> None:
    """It asks before it delivers, although all of it lies in its memory."""
    report = play(ThawedConsumer)
    assert report.delivered >= ThawedConsumer.messages
    assert report.violations == []


def test_delivering_after_a_pause_without_asking_would_be_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The mutant whose permit never lapses is killed by the story above."""
    mutants.PERMIT_NEVER_LAPSES.patch(monkeypatch)
    assert play(ThawedConsumer).violations


class BitsFlip(run.Simulation):
    """Bits flip between brokers and consumers, again and again, while a broker is restarted."""

    async def main(self) -> None:
        """See ``Simulation.main``."""
        self.kinds = ("kill broker",)
        self.seconds = 15.0
        await super().main()


def flip_bits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Flip a bit in the last byte of every fifth chunk or so; return where, as it happens.

    Each offset is spared in the end, before a reader has tried as often as it may.
    """
    rng = random.Random(7)
    flipped: list[int] = []
    begin = Decoder.begin

    def begin_damaged(self: Decoder, chunk: Chunk) -> None:
        spared = flipped.count(chunk.offset) >= READS_MAX - 1
        if chunk.body and not spared and rng.random() < 0.2:
            flipped.append(chunk.offset)
            last = bytes([chunk.body[-1] ^ 1 << rng.randrange(8)])
            chunk = chunk._replace(body=chunk.body[:-1] + last)
        begin(self, chunk)

    monkeypatch.setattr(Decoder, "begin", begin_damaged)
    return flipped


def test_bits_that_flip_on_the_way_cost_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group gets everything, in order, nothing twice; no partition is given up."""
    flipped = flip_bits(monkeypatch)
    report = play(BitsFlip, Size(brokers=2, partitions=3, producers=2, members=2, filtered=1))
    assert len(flipped) > 20
    assert report.delivered > 50
    assert report.violations == []


class AwayForAMinute(run.Simulation):
    """ZooKeeper has no majority for a minute; groups have copies, and nothing else is wrong.

    Then the masters are killed, one after the other, so that all nodes lead in turns.
    """

    async def strike(self, nemesis: Nemesis) -> None:
        """See ``Simulation.strike``."""
        world = self.world
        names = {each.node_name for each in world.machines}
        await self.until("all to be in sync", lambda: {*self._record("b1").insync} == names)
        nemesis.note("ensemble away", "all", 60.0)
        world.ensemble.stop()
        await asyncio.sleep(60.0)
        world.history.add("calm", "all", 60.0)
        world.ensemble.start()
        for _ in range(len(names)):
            await asyncio.sleep(nemesis.seconds(0, 4))
            master = world.master("b1")
            if master is not None:
                nemesis.note("kill", master.name, 8.0)
                master.down_until = world.loop.time() + 8.0
                master.kill()
            await asyncio.sleep(8.0)

    def _record(self, group: str) -> GroupState:
        record = self.world.record(group)
        assert record is not None
        return record


WITH_COPIES = Size(brokers=1, partitions=3, producers=2, members=2, copies=2)


def test_zookeeper_may_be_away_for_a_minute() -> None:
    """No send is refused or unknown meanwhile, and nothing is lost in the elections after it."""
    report = play(AwayForAMinute, WITH_COPIES)
    assert report.violations == []
    assert {event[2] for event in report.history.of("fault")} >= {"ensemble away", "kill"}


@pytest.mark.long
def test_a_master_that_needs_a_lease_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The story above finds that sends are refused."""
    monkeypatch.setattr(Role, "goes_on", property(Role.holds))
    found = play(AwayForAMinute, WITH_COPIES).violations
    assert any(each.startswith("refused_for_nothing") for each in found)


class FarApart(run.Simulation):
    """Nodes are half a second from each other, and an operator has each of them lead."""

    async def strike(self, nemesis: Nemesis) -> None:
        """See ``Simulation.strike``."""
        world = self.world
        names = {each.node_name for each in world.machines}
        await self.until("all to be in sync", lambda: self._insync() == names)
        nemesis.note("slow links", "all", 60.0)
        world.network.slow_down(0.25)
        for _ in range(4):
            await asyncio.sleep(4.0)
            master = world.master("b1")
            assert master is not None
            assert master.node is not None
            assert master.process is not None
            nemesis.note("hand over", master.name)
            master.process.spawn(master.node.parts.hand_over.run())
            for _ in range(120):
                await asyncio.sleep(0.1)
                if self._insync() != names:
                    gone = names - self._insync()
                    world.history.add("broken", "b1", "put out of the set", *sorted(gone))
                    return
        world.network.slow_down(0.0)

    def _insync(self) -> set[str]:
        record = self.world.record("b1")
        return set() if record is None else {*record.insync}


FAR = Size(brokers=1, partitions=12, producers=1, members=1, copies=2)


def test_nodes_stay_in_sync_while_they_compare_their_logs_over_a_long_way() -> None:
    report = play(FarApart, FAR)
    assert report.violations == []
    assert len([*report.history.of("lead")]) >= 5


@pytest.mark.long
def test_comparison_that_counts_as_lag_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The story above finds nodes that are put out of the set."""
    look = Pursuit.look

    def look_sternly(
        self: Pursuit[Any],
        now: float,
        ends: Mapping[Any, int],
        compared: int,
        offset: Callable[[Any], int],
    ) -> None:
        look(self, now, ends, compared, lambda log: max(0, offset(log)))

    monkeypatch.setattr(Pursuit, "look", look_sternly)
    assert any("put out" in each for each in play(FarApart, FAR).violations)


class FullHeir(run.Simulation):
    """Again and again a node in sync is nearly full while its master ends or fills up."""

    rounds = 4

    async def strike(self, nemesis: Nemesis) -> None:
        """See ``Simulation.strike``."""
        for number in range(self.rounds):
            await full_heir(nemesis, ("kill", "full master", "hand over")[number % 3])
            if [*self.world.history.of("broken")]:
                return
            await asyncio.sleep(3.0)


TRIO = Size(brokers=1, partitions=1, producers=1, members=1, copies=2)


def test_a_full_node_does_not_lead_beside_one_with_space() -> None:
    """Whether the master is killed, fills up as well, or hands over."""
    report = play(FullHeir, TRIO)
    assert report.violations == []
    assert report.effects["full heir"] == FullHeir.rounds
    assert len([*report.history.of("lead")]) > FullHeir.rounds


@pytest.mark.long
def test_a_full_node_that_does_not_tell_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is elected half of the time, and leads on."""
    monkeypatch.setattr(FullHeir, "rounds", 12)
    mutants.FULL_NODE_DOES_NOT_TELL.patch(monkeypatch)
    assert any("with a full disk" in each for each in play(FullHeir, TRIO).violations)
