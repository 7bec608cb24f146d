"""Half messages: kept, and shown to nobody, until the local work of a producer is known."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import Client, MemoryCluster
from support.client import factory_of
from support.consumers import client_of_factory
from support.producers import core_of

import vq
from vq import aio
from vq.broker.transactions import check_desk
from vq.client.config import ProducerConfig
from vq.errors import (
    BatchTooLarge,
    Busy,
    InvalidArgument,
    InvalidRequest,
    InvalidState,
    TransactionRefused,
)
from vq.model import Message, TransactionState
from vq.operations.messages.transactions import list_transactions
from vq.remoting.format import Command
from vq.remoting.messages import decode_reply
from vq.remoting.wire_pb2 import CheckRequest, TransactionChecks, TransactRequest
from vq.reserved import TRANSACTIONS_TOPIC
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time

COMMITTED, PREPARED = TransactionState.COMMITTED, TransactionState.PREPARED


@pytest.fixture
async def factory(cluster: MemoryCluster) -> AsyncIterator[aio.MessageFactory]:
    """One node with topics ``t`` and ``u`` of two partitions, and a client."""
    await cluster.start()
    for topic in ("t", "u"):
        await cluster.create_topic(topic, partitions=2)
    async with factory_of(cluster) as made:
        yield made


class Local:
    """A listener, what it was called with, and what it answers.

    Attributes:
        execute_says, check_says: Returned, or raised.
        executed, checked: Contents, and ids, in the order of the calls.
    """

    def __init__(self, execute: Any = vq.COMMIT, check: Any = vq.UNKNOWN) -> None:
        self.execute_says = execute
        self.check_says = check
        self.executed: list[tuple[Any, Any]] = []
        self.checked: list[tuple[bytes, int]] = []
        self.times: list[float] = []

    async def execute(self, message: Any, arg: Any) -> Any:
        self.executed.append((message, arg))
        return await _say(self.execute_says, message)

    async def check(self, message: Any) -> Any:
        self.times.append(asyncio.get_running_loop().time())
        first = message if isinstance(message, Message) else message[0]
        self.checked.append((first.content, first.id))
        return await _say(self.check_says, message)

    def config(self, **settings: Any) -> ProducerConfig:
        listener = vq.TransactionListener(self.execute, self.check)
        settings = {"producer_group": "g", "transaction_listener": listener, **settings}
        return ProducerConfig(**settings)


async def _say(what: Any, message: Any) -> Any:
    if callable(what):
        what = what(message)
    if asyncio.iscoroutine(what):
        what = await what
    if isinstance(what, BaseException):
        raise what
    return what


async def stored(cluster: MemoryCluster, *topics: str) -> list[bytes]:
    """Return all contents of some topics, sorted, read by a client of its own."""
    async with factory_of(cluster, seed=99) as factory:
        consumer = await factory.create_consumer()
        places = itertools.product(topics or ("t",), (0, 1))
        found = [await consumer.get(topic, number, 0, 8 << 20) for topic, number in places]
        return sorted(each.content for messages in found for each in messages)


async def listed(cluster: MemoryCluster) -> dict[int, Any]:
    async with factory_of(cluster, seed=98) as factory:
        return {e.number: e for e in await list_transactions(client_of_factory(factory))}


async def test_what_execute_says_is_done(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Nothing is visible while it runs; other sends inside it are no part of it."""
    seen: list[list[bytes]] = []

    async def work(message: Message) -> Any:
        seen.append(await stored(cluster))
        await producer.send(Message("u", b"beside"))
        return vq.COMMIT if message.content == b"yes" else vq.ROLLBACK

    local = Local(lambda message: work(message))
    producer = await factory.create_producer(local.config())
    done = await producer.send_half(Message("t", b"yes", key="k", headers={"h": "v"}), "arg")
    dropped = await producer.send_half(Message("t", b"no"))
    assert (done.state, dropped.state) == (COMMITTED, TransactionState.ROLLED_BACK)
    assert done.is_decided
    assert dropped.is_decided
    assert dropped.results == ()
    (place,) = done.results
    ((message, arg), _) = local.executed
    assert arg == "arg"
    assert (message.key, message.headers, message.id) == ("k", {"h": "v"}, place.id)
    assert place.offset >= 0
    assert seen == [[], [b"yes"]]
    assert await stored(cluster, "t", "u") == [b"beside", b"beside", b"yes"]
    await asyncio.sleep(100)
    assert local.checked == []


@pytest.mark.parametrize(
    "answer", [vq.UNKNOWN, ValueError("no"), None], ids=["unknown", "raised", "nothing"]
)
async def test_an_unknown_answer_is_told_and_settled_by_a_check(
    cluster: MemoryCluster, factory: aio.MessageFactory, answer: Any
) -> None:
    """The result says that it is not decided, and why. A list has one decision."""
    given: list[Any] = []

    def check(messages: list[Message]) -> Any:
        given.append([(each.topic, each.content) for each in messages])
        return vq.COMMIT

    local = Local(answer, check)
    producer = await factory.create_producer(local.config())
    sent = [Message("tu"[number % 2], b"%d" % number, key=number) for number in range(6)]
    result = await producer.send_half(sent)
    assert result.state is PREPARED
    assert not result.is_decided
    if answer is None:
        assert isinstance(result.error, InvalidArgument)
        assert "execute of the transaction_listener returned None" in str(result.error)
    else:
        assert result.error is (answer if isinstance(answer, ValueError) else None)
    await until_decided(cluster, 60)
    assert given == [[(each.topic, each.content) for each in sent]]
    assert len(await stored(cluster, "t", "u")) == 6
    assert await factory.admin.list_transactions(kept=True) == []  # as what its producer decides
    (told,) = await factory.admin.list_transactions(ended=True)
    assert told.by.startswith("check by")
    assert told.checks is not None
    assert (told.checks.sent, told.checks.next_ms) == (1, None)


async def test_a_check_gets_what_was_sent_on_its_schedule(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """First 6 s after it was kept, then each minute; a delayed message says when it is due."""
    answers: list[Any] = [vq.UNKNOWN, ValueError("not yet"), vq.COMMIT]
    given: list[Message] = []

    def check(message: Message) -> Any:
        given.append(message)
        return answers[len(given) - 1]

    local = Local(vq.UNKNOWN, check)
    producer = await factory.create_producer(local.config())
    begun = asyncio.get_running_loop().time()
    await producer.send_half(Message("t", b"1", "tag", "k", {"h": "v"}))
    await until_decided(cluster, 200)
    message = given[0]
    assert given == [message] * 3
    assert message[:5] == ("t", b"1", "tag", "k", {"h": "v"})
    assert (message.id, message.offset) == (local.executed[0][0].id, -1)
    first, second, third = (at - begun for at in local.times)
    assert 6 <= first < 8
    assert 59.9 < second - first < 62
    assert 59.9 < third - second < 62
    await producer.send_half(Message("u", b"later", delay_s=600))
    await until(lambda: len(given) == 4, timeout_s=60)
    assert (given[3].topic, given[3].content) == ("u", b"later")
    assert given[3].deliver_at == pytest.approx(cluster.ensemble.clock.wall_ms() / 1e3 + 594, abs=3)


async def until_decided(cluster: MemoryCluster, timeout_s: float = 60.0) -> None:
    """Return once nothing is undecided, or not stored, in any journal that has a master."""
    readers = cluster.nodes["b1"].parts.journals.readers
    await until(lambda: not any(e.ledger.active for e in readers.all.values()), timeout_s=timeout_s)


async def vanished(cluster: MemoryCluster, local: Local, *messages: Message, **config: Any) -> None:
    """Have a producer send half messages whose local work does not end, and vanish."""
    async with factory_of(cluster, host="gone", seed=5) as factory:
        producer = await factory.create_producer(local.config(**config))
        for message in messages:
            await producer.send_half(message)


async def test_any_producer_of_the_group_is_asked_and_no_other_one(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its producer has vanished; one of another group, and one without a listener, wait beside."""
    await vanished(cluster, Local(vq.UNKNOWN), Message("t", b"1"), Message("t", b"2"))
    stranger = Local(check=vq.ROLLBACK)
    await factory.create_producer(stranger.config(producer_group="h"))
    await factory.create_producer(ProducerConfig(producer_group="g"))
    await asyncio.sleep(30)
    peer = Local(check=lambda message: vq.COMMIT if message.content == b"1" else vq.ROLLBACK)
    await factory.create_producer(peer.config())
    await until_decided(cluster)
    assert await stored(cluster) == [b"1"]
    assert stranger.checked == []
    assert await listed(cluster) == {}


async def test_checks_are_not_used_up_while_nobody_could_be_asked(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Neither before the first is due nor while no producer is there: only what is sent counts."""
    await vanished(cluster, Local(vq.UNKNOWN), Message("t", b"1"), checks_max=2)
    await asyncio.sleep(600)
    ((number, told),) = (await listed(cluster)).items()
    assert told.checks is not None
    assert (told.checks.sent, told.checks.most, told.checks.parked) == (0, 2, False)
    local = Local()
    await factory.create_producer(local.config())
    await until(lambda: len(local.checked) == 1)
    told = (await listed(cluster))[number]
    assert (told.checks.group, told.checks.sent) == ("g", 1)


async def test_what_nobody_knows_is_parked_until_an_operator_has_it_checked_again(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """After the last check had its time. It stays prepared, and others are checked."""
    local = Local(vq.UNKNOWN)
    producer = await factory.create_producer(local.config(checks_max=3, check_interval_s=10))
    number = (await producer.send_half(Message("t", b"1"))).number
    await asyncio.sleep(32)
    assert len(local.checked) == 3
    assert not (await listed(cluster))[number].checks.parked
    journals = cluster.nodes["b1"].parts.journals
    assert parked_of(journals) == 0
    await asyncio.sleep(600)
    assert len(local.checked) == 3
    told = (await listed(cluster))[number]
    assert (told.state, told.checks.parked) == (PREPARED, True)
    assert parked_of(journals) == 1
    assert journals.counts.checks == 3
    local.check_says = vq.COMMIT
    await factory.admin.check_transaction(number)
    await until_decided(cluster)
    assert len(local.checked) == 4
    with pytest.raises(TransactionRefused, match="committed"):
        await factory.admin.check_transaction(number)


def parked_of(journals: Any) -> float:
    facts = [fact for each in journals.facts() for fact in each.facts]
    (gauge,) = [each for each in facts if each.metric == "vq_transactions_parked"]
    return float(gauge.read(journals))


async def test_one_exception_does_not_stop_the_checks_of_others(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Nor does a check that never returns: it gives its place up after its time."""

    async def check(message: Message) -> Any:
        if message.content.startswith(b"bad"):
            raise RuntimeError(message.content)
        if message.content.startswith(b"hangs"):
            await asyncio.Event().wait()
        return vq.COMMIT

    names = [b"%s %02d" % (kind, each) for each in range(10) for kind in (b"bad", b"hangs", b"ok")]
    await vanished(cluster, Local(vq.UNKNOWN), *(Message("t", name) for name in names))
    await asyncio.sleep(10)
    local = Local(check=lambda message: check(message))
    await factory.create_producer(local.config(check_timeout_s=4))
    good = {name for name in names if name.startswith(b"ok")}
    await asyncio.sleep(30)
    assert set(await stored(cluster)) == good
    assert len(local.checked) == len(names)


async def test_what_has_ended_is_never_checked(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Decided by its producer, an operator, or by somebody a moment before the check is due."""
    local = Local(lambda message: vq.UNKNOWN if message.content == b"3" else vq.COMMIT)
    producer = await factory.create_producer(local.config())
    await producer.send_half(Message("t", b"1"))
    number = (await producer.send_half(Message("t", b"3"))).number
    await asyncio.sleep(5.9)
    await factory.admin.commit_transaction(number)
    await asyncio.sleep(300)
    assert local.checked == []
    assert await stored(cluster) == [b"1", b"3"]


async def test_a_thread_that_commits_after_a_check_rolled_back_is_told(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The first decision holds: the other one is refused, with who has decided what."""
    go_on = asyncio.Event()

    async def slow(_message: Message) -> Any:
        await go_on.wait()
        return vq.COMMIT

    local = Local(lambda message: slow(message), vq.ROLLBACK)
    producer = await factory.create_producer(local.config())
    task = asyncio.create_task(producer.send_half(Message("t", b"1")))
    await until(lambda: local.checked, timeout_s=30)
    await asyncio.sleep(1)
    go_on.set()
    with pytest.raises(TransactionRefused, match="rolled back by check by") as caught:
        await task
    assert caught.value.details["state"] == TransactionState.ROLLED_BACK
    assert await stored(cluster) == []


async def test_checks_that_answer_too_late_are_told_in_few_lines(
    cluster: MemoryCluster, factory: aio.MessageFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """Forty were decided meanwhile by an operator: the producer hears it, and logs it twice."""
    go_on = asyncio.Event()

    async def check(_message: Message) -> Any:
        await go_on.wait()
        return vq.ROLLBACK

    local = Local(vq.UNKNOWN, lambda message: check(message))
    producer = await factory.create_producer(local.config())
    numbers = [(await producer.send_half(Message("t", b"%02d" % n))).number for n in range(40)]
    await until(lambda: len(local.checked) == 8, timeout_s=30)
    for number in numbers:
        await factory.admin.commit_transaction(number)
    go_on.set()
    await until_decided(cluster)
    await asyncio.sleep(30)
    lines = [each for each in caplog.messages if "answered too late" in each]
    assert 1 <= len(lines) <= 2
    assert "is committed by" in lines[0]
    assert len(await stored(cluster)) == 40


async def test_a_take_over_between_check_and_answer_loses_neither(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """The answer goes to the next master, which knows how many checks were sent."""
    second = await cluster.start(node="n2")
    await cluster.until_in_sync("n1", "n2")
    go_on = asyncio.Event()

    async def check(message: Message) -> Any:
        await go_on.wait()
        return vq.COMMIT if message.content == b"yes" else vq.UNKNOWN

    local = Local(vq.UNKNOWN, lambda message: check(message))
    producer = await factory.create_producer(local.config(check_interval_s=100))
    await producer.send_half(Message("t", b"yes"))
    number = (await producer.send_half(Message("t", b"no"))).number
    await until(lambda: len(local.checked) == 2, timeout_s=30)
    first_at = local.times[0]
    await cluster.nodes["b1"].stop()
    assert second.parts is not None
    await until(lambda: second.parts.journals.readers.all)
    go_on.set()
    await asyncio.sleep(10)
    told = (await listed(cluster))[number]
    assert told.checks.sent == 1
    await until(lambda: len(local.checked) == 3, timeout_s=200)
    assert 99 < local.times[2] - first_at < 105
    told = (await listed(cluster))[number]
    assert told.checks.sent == 2
    assert await stored(cluster) == [b"yes"]


async def test_a_producer_that_closes_is_asked_no_more(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Its requests end at the broker at once; another producer of the same connection stays."""
    gone, stays = Local(vq.UNKNOWN), Local(check=vq.COMMIT)
    producer = await factory.create_producer(gone.config())
    await producer.send_half(Message("t", b"1"))
    server = cluster.nodes["b1"].parts.server
    await until(lambda: server.reads_waiting == 8)  # one for each partition of the journal
    await producer.close()
    assert server.reads_waiting == 0
    with pytest.raises(InvalidState):
        await producer.send_half(Message("t", b"2"))
    await factory.create_producer(stays.config())
    await until_decided(cluster, 60)
    assert gone.checked == []


async def test_strangers_decide_nothing_and_do_not_fill_the_journal(
    cluster: MemoryCluster, factory: aio.MessageFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of another group, checks of what is none, wrong schedules, too many that wait."""
    local = Local(vq.UNKNOWN)
    producer = await factory.create_producer(local.config())
    number = (await producer.send_half(Message("t", b"1"))).number
    async with producer.transaction() as other:
        await producer.send(Message("t", b"2", key=0))
        await producer.send(Message("u", b"2", key=0))
    client = await Client.connect(cluster.network, cluster.nodes["b1"].address)
    journal = (await listed(cluster))[number].journal
    to: dict[str, Any] = {"topic": TRANSACTIONS_TOPIC, "partition": journal}

    async def decide(of: int, checks: TransactionChecks, state: TransactionState) -> None:
        request = TransactRequest(**to, transaction=of, state=int(state), checks=checks, by="x")
        await client.call(Command.TRANSACT, request)

    with pytest.raises(TransactionRefused, match="producer group 'g'"):
        await decide(number, TransactionChecks(group="h"), COMMITTED)
    for wrong in ({"after_ms": 0}, {"interval_ms": 999}, {"most": 0}, {"group": ""}):
        right = {"group": "g", "after_ms": 6_000, "interval_ms": 60_000, "most": 15}
        with pytest.raises(InvalidRequest):
            await decide(number + 1, TransactionChecks(**{**right, **wrong}), PREPARED)
    with pytest.raises(InvalidRequest, match="producer group"):
        await client.call(Command.CHECK, CheckRequest(**to, group="", max_count=1))
    with pytest.raises(TransactionRefused, match="not known here"):
        await client.call(Command.CHECK, CheckRequest(**to, again=other.number + 5))
    monkeypatch.setattr(check_desk, "WAITING_MAX", 2)  # the producer waits, too
    wait = CheckRequest(**to, group="x", max_count=1, max_wait_ms=30_000, instance=1)
    first = client.send(Command.CHECK, wait)
    await asyncio.sleep(0.1)
    second = client.send(Command.CHECK, wait)  # of the same instance: the first one ends
    assert not decode_reply(await first).transactions
    wait.instance = 2
    with pytest.raises(Busy, match="2 producers wait"):
        await client.call(Command.CHECK, wait)
    assert not second.done()
    client.close()
    assert (await listed(cluster)).keys() == {number}


async def test_a_thousand_undecided_ones_delay_nobody(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """Others send meanwhile; then all of them are checked and stored, each once."""
    local = Local(vq.UNKNOWN, vq.COMMIT)
    producer = await factory.create_producer(local.config(check_after_s=60))
    contents = [b"%04d" % number for number in range(1_000)]
    for begin in range(0, 1_000, 100):
        part = contents[begin : begin + 100]
        await asyncio.gather(*(producer.send_half(Message("t", each)) for each in part))
    other = await factory.create_producer()
    begun = asyncio.get_running_loop().time()
    for _ in range(50):
        await other.send(Message("u", b"other"))
    assert asyncio.get_running_loop().time() - begun < 5
    assert await stored(cluster) == []
    await until_decided(cluster, 120)
    assert await stored(cluster) == contents
    assert len({id for _, id in local.checked}) == len(local.checked) == 1_000


async def test_a_half_message_has_bounds(
    cluster: MemoryCluster, factory: aio.MessageFactory
) -> None:
    """What is too large, inside a transaction, or of a producer without a listener, is refused."""
    local = Local()
    producer = await factory.create_producer(local.config())
    with pytest.raises(BatchTooLarge, match="3670016"):
        await producer.send_half([Message("t", bytes(1_000_000), key=n) for n in range(4)])
    with pytest.raises(InvalidArgument, match="no message"):
        await producer.send_half([])
    with pytest.raises(InvalidArgument):
        await producer.send_half([Message("t", b"1"), "x"])  # type: ignore[list-item]
    async with producer.transaction():
        with pytest.raises(InvalidState, match="transaction of this producer already"):
            await producer.send_half(Message("t", b"1"))
    plain = await factory.create_producer()
    with pytest.raises(InvalidState, match="transaction_listener"):
        await plain.send_half(Message("t", b"1"))
    assert local.executed == []
    assert await stored(cluster) == []
    await producer.send(Message("t", b"after"))  # what was refused left nothing open
    assert not core_of(producer).transactions.open


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"transaction_listener": Local().config().transaction_listener}, "producer_group"),
        ({"transaction_listener": print}, "TransactionListener"),
        ({"producer_group": "a/b"}, "producer group"),
        ({"checks_max": 0}, "checks_max = 0"),
        ({"check_after_s": 0.5}, "check_after_s = 0.5"),
        ({"check_interval_s": 86_401}, "check_interval_s = 86401"),
        ({"check_timeout_s": float("nan")}, "check_timeout_s"),
    ],
)
def test_settings_of_checks_are_checked(settings: Any, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        ProducerConfig(**settings)


def test_a_listener_has_two_functions() -> None:
    with pytest.raises(InvalidArgument, match="check = None"):
        vq.TransactionListener(Local().execute, None)  # type: ignore[arg-type]
