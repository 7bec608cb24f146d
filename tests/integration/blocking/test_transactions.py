"""Transactions of the blocking API: what belongs to one, how it ends, and ``vq tx``."""

import json
import signal
from collections.abc import Callable

import pytest
from support.blocking import contents, read_all
from support.cluster import ProcessCluster
from support.producers import client_of
from support.threads import spawn

import vq
from vq.client.asking import ask_master
from vq.client.producer.transaction.transaction import Transactions
from vq.model import TransactionState
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import TransactRequest
from vq.testing.waiting import WAIT_S


def test_what_the_thread_sends_belongs_to_its_transaction_and_nothing_else(
    factory: vq.MessageFactory, topic: str
) -> None:
    """Its sends return at once, without an offset; those of other threads are stored as always."""
    producer = factory.create_producer()
    with producer.transaction() as transaction:
        first = producer.send_sync(vq.Message(topic, b"1", key="k"))
        assert first.offset == -1
        beside = spawn(lambda: producer.send_sync(vq.Message(topic, b"beside", key="k")))
        assert beside.result(WAIT_S).offset >= 0
        second = producer.send_async(vq.Message(topic, b"2", key="k"))
        (third,) = producer.send_batch([vq.Message(topic, b"3", key="k")])
        producer.send_oneway(vq.Message(topic, b"4", key="k"))
        assert (third.offset, second.done()) == (-1, False)
        with pytest.raises(vq.errors.InvalidState, match="has a transaction of this producer"):
            producer.begin_transaction()
        own = spawn(lambda: _in_one_of_its_own(producer, topic))
        assert own.result(WAIT_S)[0].offset >= 0
        (messages,) = read_all(factory, topic).values()
        assert contents(messages) == [b"beside", b"own"]
    results = transaction.commit()  # again: it changes nothing
    assert results[0][::2] == first[::2]
    assert second.result(WAIT_S) == results[1]
    (messages,) = read_all(factory, topic).values()
    assert contents(messages) == [b"beside", b"own", b"1", b"2", b"3", b"4"]
    assert [each.offset for each in messages[2:]] == [each.offset for each in results]
    assert transaction.outcome() is vq.TransactionState.COMMITTED
    assert producer.send_sync(vq.Message(topic, b"5")).offset >= 0


def test_a_send_inside_a_send_of_a_transaction_never_waits_for_itself(
    factory: vq.MessageFactory, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A serializer or the handler of a signal may send; where it cannot, it is refused at once."""
    refused: list[Exception] = []
    inside: list[Callable[[], object]] = []

    def interrupt(_number: object, _frame: object) -> None:
        for call in (lambda: producer.send_async(vq.Message(topic, "handler", key="k")), *inside):
            try:
                call()
            except vq.errors.InvalidState as error:
                refused.append(error)

    class Sends:
        name = "sends"

        def dumps(self, content: object) -> bytes:
            if content == "outer":
                producer.send_async(vq.Message(topic, "inner", key="k"))
                signal.raise_signal(signal.SIGUSR1)
            return str(content).encode()

        def loads(self, data: bytes) -> object:
            return data

    producer = factory.create_producer(vq.ProducerConfig(serializer=Sends()))
    cluster = producer._core.transactions.cluster
    take_ids = cluster.take_ids

    def interrupted(count: int) -> list[int]:  # between two steps of the adding
        if inside:
            signal.raise_signal(signal.SIGUSR1)
        return take_ids(count)

    monkeypatch.setattr(cluster, "take_ids", interrupted)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with producer.transaction() as transaction:
            producer.send_sync(vq.Message(topic, "outer", key="k"))
            assert not refused
            inside += [transaction.commit, transaction.rollback, transaction.prepare]
            producer.send_batch([vq.Message(topic, "batch", key="k")] * 2)
            inside.clear()
    finally:
        signal.signal(signal.SIGUSR1, before)
    says = [str(each) for each in refused]
    assert ["adds a message to the same transaction" in each for each in says] == [True] + [
        False
    ] * 3
    assert all("would wait for itself" in each for each in says[1:])
    (messages,) = read_all(factory, topic).values()
    assert contents(messages) == [b"inner", b"handler", b"outer", b"batch", b"batch"]


def _in_one_of_its_own(producer: vq.MessageProducer, topic: str) -> list[vq.SendResult]:
    producer.begin_transaction()
    producer.send_sync(vq.Message(topic, b"own", key="k"))
    return producer.commit()


def test_a_block_that_raises_and_a_call_roll_back(factory: vq.MessageFactory, topic: str) -> None:
    producer = factory.create_producer()
    futures = []

    def fails() -> None:
        with producer.transaction():
            futures.append(producer.send_async(vq.Message(topic, b"1")))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    transaction = producer.begin_transaction()
    futures.append(producer.send_async(vq.Message(topic, b"2")))
    producer.rollback()
    assert not transaction.is_open
    for future in futures:
        with pytest.raises(vq.errors.NotSent, match="rolled back"):
            future.result(WAIT_S)
    for call in (producer.commit, producer.rollback):
        with pytest.raises(vq.errors.InvalidState, match="no open transaction"):
            call()
    assert producer.send_sync(vq.Message(topic, b"3")).offset >= 0
    assert [contents(each) for each in read_all(factory, topic).values()] == [[b"3"]]


def test_a_transaction_that_hangs_is_seen_and_decided_on_the_command_line(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str
) -> None:
    """The plan changes nothing; a decision is made once, and told to whoever decides otherwise."""
    producer = factory.create_producer()
    with producer.transaction() as committed:  # with one partition it would need no journal
        for key in (0, 1):
            producer.send_sync(vq.Message(topic, b"1", key=key))
    number = str(_prepared(producer, factory))
    assert [each["transaction"] for each in cluster.vq_json("tx", "list")] == [number]
    assert cluster.vq_json("tx", "list", "--older-than", "600") == []
    ended = {each["transaction"] for each in cluster.vq_json("tx", "list", "--ended")}
    assert {number, str(committed.number)} <= ended
    shown = cluster.vq_json("tx", "show", str(committed.number))
    assert (shown["state"], shown["stored"], shown["messages"]) == ("committed", True, 2)
    assert [(e["topic"], e["partition"], e["stored"]) for e in shown["parts"]] == [
        (topic, 0, True),
        (topic, 1, True),
    ]
    assert cluster.vq_json("tx", "show", number, "--content")["waiting"] == []
    assert cluster.vq("tx", "show", str(committed.number), "--content").returncode == 1
    waits = producer.begin_transaction()
    sent = producer.send_sync(vq.Message(topic, b"1", key=7))
    waits.prepare()
    (waiting,) = cluster.vq_json("tx", "show", str(waits.number), "--content")["waiting"]
    assert (waiting["id"], waiting["key"], waiting["content"]) == (str(sent.id), 7, "1")
    lines = cluster.vq("tx", "show", str(waits.number), "--content").stdout.decode().splitlines()
    assert {f"id\t{sent.id}", "content\t1"} <= set(lines)
    waits.rollback()
    plan = cluster.vq_json("tx", "rollback", number)
    assert (plan["done"], plan["state"]) == (False, "prepared")
    done = cluster.vq_json("tx", "rollback", number, "--yes")
    assert (done["done"], done["state"]) == (True, "rolled_back")
    assert "@" in done["by"]
    assert cluster.vq_json("tx", "list") == []
    (kept,) = cluster.vq_json("tx", "list", "--kept")
    assert (kept["transaction"], kept["kept"], kept["next"]) == (number, True, "forget")
    refused = cluster.vq("tx", "commit", number, "--yes", "--json")
    assert refused.returncode == 1
    error = json.loads(refused.stderr.splitlines()[-1])
    assert error["error"] == "TransactionRefused"
    assert f"transaction {number} is rolled back by {done['by']}" in error["message"]
    cluster.vq_json("tx", "forget", number, "--yes")
    assert cluster.vq_json("tx", "list", "--kept") == []
    table = cluster.vq("tx", "list", "--ended").stdout.decode()
    assert table.startswith(
        "transaction\tstate\tage_s\towner\txid\tparts\tmessages\tbytes\tby\tnext\tends\t"
        "producer_group\tchecks\tnext_check\n"
    )
    lines = cluster.vq("tx", "show", str(committed.number)).stdout.decode()
    assert f"\n{topic}\t" in lines
    wrong = cluster.vq("tx", "show", "7th")
    assert (wrong.returncode, b"is no number of a transaction" in wrong.stderr) == (2, True)


def _prepared(producer: vq.MessageProducer, factory: vq.MessageFactory) -> int:
    """Have a transaction that only a decision ends; return its number."""
    cluster = client_of(factory)
    transactions: Transactions = producer._transactions
    (number,) = cluster.take_ids(1)

    async def prepare() -> None:
        journal = await transactions.journal_of(None)
        request = TransactRequest(
            topic=journal.topic,
            partition=journal.partition,
            transaction=number,
            state=int(TransactionState.PREPARED),
        )
        deadline = cluster.clock.monotonic() + WAIT_S
        await ask_master(
            cluster, journal, Command.TRANSACT, request, deadline=deadline, what="of it"
        )

    producer._runtime.run(prepare())
    return number
