"""One producer's line against a broker that refuses, loses requests and loses answers.

The model broker appends a batch only in sequence, remembers five, and fences old epochs, as the
real one does. Whatever the network does: an acknowledged message is stored exactly once, a refused
one never, and what is stored keeps the order of sending.
"""

import contextlib
import itertools
import random
from collections import Counter, deque

import pytest
from support.faults import times
from support.queues import QueueHost, meter_of

from vq import errors
from vq.client.config import OnUnavailable, ProducerConfig
from vq.client.future import BlockingSendFuture, SendFuture
from vq.client.producer.queue import batch as stamps
from vq.client.producer.queue.batch import Batch, Ended
from vq.client.producer.queue.partition_queue import BatchLeader, PartitionQueue
from vq.client.producer.spread.spread import Ring, Single
from vq.model import Message, ProducerStamp, TopicPartition, TopicSettings
from vq.store.records.record import decode_records

WHERE = TopicPartition("t", 0)


class Remembered:
    """What the model knows of one producer id."""

    def __init__(self) -> None:
        self.epoch = -1
        self.last = -1
        self.batches: deque[tuple[int, int]] = deque(maxlen=5)


class ModelBroker:
    """A partition with the rules for producers, and nothing else."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.forgot = False
        self.producers: dict[int, Remembered] = {}

    def forget(self) -> None:
        """So many other producers have written that this one is not remembered."""
        self.forgot = True
        self.producers.clear()

    def put(self, stamp: ProducerStamp, contents: list[bytes], *, resend: bool = False) -> int:
        producer_id, epoch, sequence = stamp
        known = self.producers.get(producer_id)
        if known is None:
            if sequence != 0:
                raise errors.UnknownProducer("only sequence 0 can be its first")
            if resend and self.forgot:
                raise errors.SequenceStale("forgotten, perhaps")
            known = Remembered()
        if epoch < known.epoch:
            raise errors.ProducerFenced("old epoch")
        if epoch > known.epoch:
            if sequence != 0:
                raise errors.SequenceGap("a new epoch starts at 0")
            known = self.producers[producer_id] = Remembered()
            known.epoch = epoch
        for number, offset in known.batches:
            if number == sequence:
                return offset
        if sequence <= known.last:
            raise errors.SequenceStale("too old")
        if sequence != known.last + 1:
            raise errors.SequenceGap("gap")
        offset = len(self.log)
        self.log += contents
        known.last = sequence
        known.batches.append((sequence, offset))
        return offset


def contents_of(body: bytes) -> list[bytes]:
    return [record.payload for record in decode_records(body, 0)]


class Run:
    """One random history; ``seed`` makes it again."""

    def __init__(
        self,
        seed: int,
        *,
        refusals: list[type[errors.VqError]],
        forgets: bool = False,
        ordered: bool = False,
    ) -> None:
        self.rng = random.Random(seed)
        self.refusals = refusals
        self.forgets = forgets
        self.broker = ModelBroker()
        self.now = 0.0
        self.config = ProducerConfig(batch_records=3, retry_backoff_s=0.01, ordered=ordered)
        self.ended = [0, 0]
        host = QueueHost(self.config, on_ended=self.on_ended)
        self.queue = PartitionQueue(WHERE, host, meter_of())
        self.ids = iter(range(1, 10**9))
        self.futures: list[SendFuture] = []
        # What is under way on the present connection: (batch, attempt, and as sent: stamp, bytes,
        # whether it said that it is a resend).
        self.wire: deque[tuple[Batch, int, ProducerStamp, bytes, bool]] = deque()
        self.delayed: list[tuple[ProducerStamp, list[bytes]]] = []

    def on_ended(self, ended: Ended) -> None:
        self.ended[0] += ended.count
        self.ended[1] += ended.size

    def submit(self) -> None:
        content = b"%d" % len(self.futures)
        deadline = self.now + self.rng.choice([0.5, 1.0, 30.0])
        future = SendFuture(content, None, None, deadline)
        self.futures.append(future)
        self.queue.pending.append(future)

    def send_blocking(self) -> None:
        """A thread claims its message, or batch, and is answered, refused or cut off."""
        if self.queue.pending or self.queue.in_flight or self.config.ordered:
            return
        claimed = self.claim_batch() if self.rng.random() < 0.5 else self.claim_one()
        # Another connection: what is left on the usual one is settled, and may come later.
        self.delayed += [(stamp, contents_of(body)) for _, _, stamp, body, _ in self.wire]
        self.wire.clear()
        batch = self.queue.batch_of(claimed, [next(self.ids) for _ in claimed])
        self.wire.append((batch, batch.attempts, batch.stamp, batch.body, batch.unknown))
        if self.rng.random() < 0.2:
            self.cut()
        else:
            self.serve()
        self.queue.leave()

    def claim_one(self) -> list[SendFuture]:
        future = BlockingSendFuture(b"%d" % len(self.futures), None, None, self.now + 1.0)
        future.leads = True
        self.futures.append(future)
        self.queue.pending.append(future)
        assert self.queue.claim(future) == [future]
        return [future]

    def claim_batch(self) -> list[SendFuture]:
        first = len(self.futures)
        numbers = range(first, first + self.rng.randint(1, self.config.batch_records))
        batch = [SendFuture(b"%d" % number, None, None, self.now + 1.0) for number in numbers]
        assert self.queue.is_free_for(batch)
        self.futures += batch
        leader = BatchLeader()
        leader.leads = True
        self.queue.claimed, self.queue.owner = batch, leader
        return batch

    def pump(self) -> None:
        def take_ids(count: int) -> list[int]:
            return [next(self.ids) for _ in range(count)]

        while (batch := self.queue.next_to_send(self.now, take_ids)) is not None:
            self.wire.append((batch, batch.attempts, batch.stamp, batch.body, batch.unknown))

    def serve(self) -> None:
        """The broker takes one request and answers, or refuses it for a reason of its own."""
        if not self.wire:
            return
        batch, attempt, stamp, body, resend = self.wire.popleft()
        refusal: errors.VqError | None = None
        if self.refusals and self.rng.random() < 0.1:
            refusal = self.rng.choice(self.refusals)("by the model")
        offset = -1
        if refusal is None:
            try:
                offset = self.broker.put(stamp, contents_of(body), resend=resend)
            except errors.VqError as error:
                refusal = error
        if attempt != batch.attempts or not batch.sent:
            return  # an answer to an attempt that no longer counts
        if refusal is None:
            self.queue.on_stored(batch, offset)
        else:
            self.queue.apply_answer(batch, refusal, self.now)

    def cut(self) -> None:
        """The connection ends; the broker may still get some of what was on the wire, later."""
        taken = self.rng.randrange(len(self.wire) + 1) if self.wire else 0
        for number, (_, _, stamp, body, _) in enumerate(self.wire):
            if number < taken:
                self.delayed.append((stamp, contents_of(body)))
        lost = [
            batch
            for batch, attempt, _, _, _ in self.wire
            if batch.sent and attempt == batch.attempts
        ]
        self.wire.clear()
        self.queue.on_unanswered(lost, self.now)

    def late(self) -> None:
        """The broker gets something from a connection that has ended."""
        if self.delayed:
            stamp, contents = self.delayed.pop(0)
            try:
                self.broker.put(stamp, contents)
            except errors.VqError:
                pass

    def be_unavailable(self) -> None:
        """The broker cannot be reached; what is certainly not stored is taken apart."""
        self.cut()
        self.queue.take_apart()

    def step(self) -> None:
        self.now += self.rng.choice([0.0, 0.0, 0.01, 0.05])
        act = self.rng.random()
        if act < 0.35:
            self.submit()
        elif act < 0.65:
            self.pump()
        elif act < 0.9:
            self.serve()
        elif act < 0.94:
            self.late()
        elif act < 0.96:
            self.cut()
        elif act < 0.98:
            self.send_blocking()
        elif act < 0.983:
            self.be_unavailable()
        elif act < 0.987:
            if self.forgets and not self.delayed:  # a copy is not under way for so long
                self.broker.forget()
        else:
            self.now += 0.3
            self.queue.on_tick(self.now)

    def drain(self) -> None:
        self.refusals = []
        for _ in range(10_000):
            if not self.queue.pending and not self.queue.in_flight:
                return
            self.now += 0.05
            self.pump()
            while self.wire:
                self.serve()
            self.queue.on_tick(self.now)
        raise AssertionError("the line never emptied")


def check(run: Run) -> None:
    stored = [int(content) for content in run.broker.log]
    counts = {number: stored.count(number) for number in set(stored)}
    assert run.ended == [len(run.futures), sum(len(each.content) for each in run.futures)], (
        "each message must be told of once to whoever counts the buffer"
    )
    for number, future in enumerate(run.futures):
        assert future.done(), f"message {number} has no outcome"
        error = future.exception(0)
        if error is None:
            assert counts.get(number) == 1, (
                f"acknowledged message {number} stored {counts.get(number)}×"
            )
        elif isinstance(error, errors.Refused):
            assert number not in counts, f"refused message {number} is stored: {error!r}"
        else:
            assert counts.get(number, 0) <= 1, f"message {number} is stored twice"
    assert stored == sorted(stored), "what is stored is out of order"


KINDS = {
    "cuts": [],
    "busy": [errors.Busy, errors.DiskFull, errors.NotMaster],
    "forgets": [errors.Busy],
    "final": [errors.MessageTooLarge, errors.PermissionRefused],
    "all": [errors.Busy, errors.NotMaster, errors.MessageTooLarge, errors.UnknownTopic],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", range(times(2, 20)))
def test_acknowledged_once_refused_never_and_in_order(kind: str, block: int) -> None:
    """Fifty random histories a block; the seed of a failing one is in the message."""
    for seed in range(block * 50, block * 50 + 50):
        run = Run(seed, refusals=list(KINDS[kind]), forgets=kind == "forgets")
        for _ in range(400):
            run.step()
        run.drain()
        while run.delayed:
            run.late()
        try:
            check(run)
        except AssertionError as error:
            raise AssertionError(f"kind {kind}, seed {seed}: {error}") from error


@pytest.mark.parametrize("kind", ["all", "final"])
@pytest.mark.parametrize("block", range(2))
def test_the_same_when_epochs_run_out(
    monkeypatch: pytest.MonkeyPatch, kind: str, block: int
) -> None:
    """A new producer id is due after every epoch."""
    monkeypatch.setattr(stamps, "RENEW_EPOCH", 1)
    renewed = 0
    for seed in range(block * 50, block * 50 + 50):
        run = Run(seed, refusals=list(KINDS[kind]))
        for _ in range(400):
            run.step()
        run.drain()
        while run.delayed:
            run.late()
        renewed += len(run.broker.producers) - 1
        try:
            check(run)
        except AssertionError as error:
            raise AssertionError(f"kind {kind}, seed {seed}: {error}") from error
    assert renewed > 20


# Ordered ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", range(2))
def test_a_failure_takes_along_what_was_accepted_behind_it(kind: str, block: int) -> None:
    """After each step: behind a message that failed in it no message waits.

    And none is stored, unless the outcome of the failed one is unknown. So an application that
    sends all failed messages again, in their order, keeps the order.
    """
    failures = 0
    for seed in range(block * 50, block * 50 + 50):
        run = Run(seed, refusals=list(KINDS[kind]), forgets=kind == "forgets", ordered=True)
        ended = 0
        try:
            for _ in range(400):
                before = [future.done() for future in run.futures]
                run.step()
                ended += check_order_of_failures(run, before)
            run.drain()
            while run.delayed:
                run.late()
            check(run)
        except AssertionError as error:
            raise AssertionError(f"kind {kind}, seed {seed}: {error}") from error
        failures += ended
    assert failures > 100, "the histories fail too few messages to say anything"


def check_order_of_failures(run: Run, before: list[bool]) -> int:
    """Return how many messages failed in this step."""
    failed = [
        number
        for number, done in enumerate(before)
        if not done and isinstance(run.futures[number].outcome, errors.VqError)
    ]
    if failed:
        first = run.futures[failed[0]].outcome
        for number in range(failed[0], len(before)):
            outcome = run.futures[number].outcome
            assert outcome is not None, f"{number} waits behind {failed[0]}, which failed"
            if isinstance(first, errors.Refused):
                assert isinstance(outcome, errors.VqError), f"{number} is stored behind {first}"
    return len(failed)


# Several partitions -----------------------------------------------------------------------------
class Topic:
    """Three partitions of one producer; their brokers come and go. ``seed`` makes it again."""

    def __init__(self, seed: int, policy: OnUnavailable, *, ordered: bool = False) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.ordered = ordered
        self.ids = itertools.count(1)
        self.brokers = [ModelBroker() for _ in range(3)]
        self.able = {0, 1, 2}
        self.ended = 0
        self.queues = QueueHost(
            spread=lambda _: Single(self.rng) if ordered else Ring(first=seed),
            on_ended=self.on_ended,
            batch_records=3,
            retry_backoff_s=0.01,
            on_unavailable=policy,
            ordered=ordered,
        ).topic()
        self.wire: list[deque[tuple[Batch, int, ProducerStamp, bytes]]] = [
            deque() for _ in range(3)
        ]
        self.futures: list[SendFuture] = []
        self.keys: list[int | None] = []
        self.follow()

    def on_ended(self, ended: Ended) -> None:
        self.ended += ended.count

    def follow(self) -> None:
        self.queues.update(TopicSettings(partitions=3), 3, sorted(self.able))

    def submit(self) -> None:
        key = self.rng.choice([None, 0, 1, 2])
        future = SendFuture(b"%d" % len(self.futures), None, None, self.now + 1e6)
        future.partition = self.queues.partition_of(Message("t", b"", key=key))
        self.queues.directed |= future.partition >= 0
        self.queues.appended.append(future)
        self.futures.append(future)
        self.keys.append(key)

    def send(self) -> None:
        """What the sender does: batches to brokers that are there, the policy for the others."""
        self.queues.drain()
        for number, queue in enumerate(self.queues.queues):
            if number not in self.able:
                refused, _ = self.queues.set_aside(queue)
                queue.refuse(refused, errors.PartitionUnavailable("away"))
                continue
            while batch := queue.next_to_send(self.now, self.take_ids):
                self.wire[number].append((batch, batch.attempts, batch.stamp, batch.body))

    def take_ids(self, count: int) -> list[int]:
        return [next(self.ids) for _ in range(count)]

    def serve(self, number: int) -> None:
        if not self.wire[number]:
            return
        batch, attempt, stamp, body = self.wire[number].popleft()
        outcome: errors.VqError | None = None
        offset = -1
        if self.rng.random() < 0.1:
            outcome = errors.Busy("by the model")
        else:
            try:
                offset = self.brokers[number].put(stamp, contents_of(body))
            except errors.VqError as error:
                outcome = error
        if attempt != batch.attempts or not batch.sent:
            return
        if outcome is None:
            self.queues.queues[number].on_stored(batch, offset)
        else:
            self.queues.queues[number].apply_answer(batch, outcome, self.now)

    def fall(self, number: int) -> None:
        """A broker ends; it may have taken some of what was on the wire."""
        self.able.discard(number)
        wire = self.wire[number]
        for _, _, stamp, body in itertools.islice(wire, self.rng.randrange(len(wire) + 1)):
            with contextlib.suppress(errors.VqError):
                self.brokers[number].put(stamp, contents_of(body))
        lost = [batch for batch, attempt, _, _ in wire if batch.sent and attempt == batch.attempts]
        wire.clear()
        self.queues.queues[number].on_unanswered(lost, self.now)
        self.follow()

    def step(self) -> None:
        self.now += 0.01
        act = self.rng.random()
        number = self.rng.randrange(3)
        if act < 0.45:
            self.submit()
        elif act < 0.65:
            self.send()
        elif act < 0.92:
            self.serve(number)
        elif act < 0.96:
            self.fall(number)
        else:
            self.able.add(number)
            self.follow()

    def finish(self) -> None:
        self.able = {0, 1, 2}
        self.follow()
        for _ in range(10_000):
            self.now += 0.05
            self.send()
            for number in range(3):
                self.serve(number)
            if all(future.done() for future in self.futures):
                return
        raise AssertionError("some message never gets its outcome")


@pytest.mark.parametrize(
    ("policy", "ordered"),
    [*((policy, False) for policy in OnUnavailable), ("wait", True), ("fail", True)],
)
def test_brokers_that_come_and_go(policy: OnUnavailable, ordered: bool) -> None:
    """Every message has one outcome; what is stored is stored once, where the policy says."""
    policy = OnUnavailable(policy)
    seen: Counter[str] = Counter()
    for seed in range(times(50, 500)):
        topic = Topic(seed, policy, ordered=ordered)
        for _ in range(500):
            topic.step()
        topic.finish()
        try:
            seen += check_topic(topic, policy)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
    assert (seen["diverted"] > 100) == (policy is OnUnavailable.ANY)
    assert (seen["refused"] > 100) == (policy is OnUnavailable.FAIL)


def check_topic(topic: Topic, policy: OnUnavailable) -> Counter[str]:
    seen: Counter[str] = Counter()
    stored = [[int(content) for content in broker.log] for broker in topic.brokers]
    assert topic.ended == len(topic.futures)
    homes: set[int] = set()
    for number, (future, key) in enumerate(zip(topic.futures, topic.keys, strict=True)):
        places = [where for where, log in enumerate(stored) for each in log if each == number]
        outcome = future.outcome
        if isinstance(outcome, errors.VqError):
            assert type(outcome) is errors.PartitionUnavailable
            assert policy is OnUnavailable.FAIL or topic.ordered, f"{number} was refused"
            assert not places, f"{number} was refused and is stored"
            seen["refused"] += 1
            continue
        assert outcome is not None
        assert places == [outcome.partition], f"{number} is stored in {places}"
        if key is not None:
            assert outcome.diverted == (outcome.partition != key), f"{number}: {outcome}"
            assert policy is OnUnavailable.ANY or not outcome.diverted
        else:
            assert not outcome.diverted
            homes.add(outcome.partition)
        seen["diverted"] += outcome.diverted
    for where, log in enumerate(stored):
        own = [number for number in log if topic.keys[number] == where]
        if policy is not OnUnavailable.ANY:
            assert own == sorted(own), f"the messages of key {where} are out of order"
    assert not topic.ordered or len(homes) <= 1, f"ordered, and in {homes}"
    if topic.ordered:
        assert all(log == sorted(log) for log in stored)
    return seen
