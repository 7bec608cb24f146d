"""Half messages of the blocking API: local work in SQLite, killed producers, checks in threads."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.blocking import contents, read_all
from support.cluster import ProcessCluster

import vq
from vq.client.producer.transaction import checks
from vq.errors import InvalidArgument
from vq.testing.waiting import block_until, until


def stored(factory: vq.MessageFactory, topic: str) -> list[bytes]:
    return sorted(
        content for messages in read_all(factory, topic).values() for content in contents(messages)
    )


def test_exactly_the_messages_whose_rows_exist_appear_after_a_kill(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str, tmp_path: Path
) -> None:
    """SIGKILL between the local work and the decision; another producer of the group is asked."""
    database = str(tmp_path / "shop.db")
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE done (id INTEGER PRIMARY KEY)")
    tests = Path(__file__).parents[2]
    paths = [str(tests), str(tests.parent), os.environ.get("PYTHONPATH", "")]
    where = [cluster.zookeeper, cluster.name, topic, database, str(os.getpid())]
    killed = subprocess.run(
        [sys.executable, "-m", "support.half_process", *where],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    asked: list[bytes] = []

    def check(message: vq.Message) -> vq.TransactionResolution:
        asked.append(message.content)
        with sqlite3.connect(database) as connection:
            row = connection.execute("SELECT 1 FROM done WHERE id = ?", (message.id,)).fetchone()
        return vq.COMMIT if row else vq.ROLLBACK

    listener = vq.TransactionListener(lambda _message, _arg: vq.UNKNOWN, check)
    config = vq.ProducerConfig(producer_group="shop", transaction_listener=listener)
    with factory.create_producer(config):
        block_until(lambda: len(set(asked)) == 6 and len(stored(factory, topic)) == 4, asked)
        with sqlite3.connect(database) as connection:
            rows = {id for (id,) in connection.execute("SELECT id FROM done")}
        found = [each for messages in read_all(factory, topic).values() for each in messages]
        assert {each.id for each in found} == rows
        assert stored(factory, topic) == [b"done 1", b"done 3", b"done 5", b"stored"]


def test_a_half_message_runs_its_work_in_the_thread_that_sends(
    factory: vq.MessageFactory, topic: str
) -> None:
    """What it raises is told, but for an interrupt, which passes through; both are checked."""
    threads: list[threading.Thread] = []

    def execute(_message: vq.Message, arg: object) -> vq.TransactionResolution:
        threads.append(threading.current_thread())
        if isinstance(arg, BaseException):
            raise arg
        return vq.COMMIT

    def check(_message: vq.Message) -> vq.TransactionResolution:
        threads.append(threading.current_thread())
        return vq.COMMIT

    config = vq.ProducerConfig(
        producer_group=topic,
        transaction_listener=vq.TransactionListener(execute, check),
        check_after_s=1.0,
    )
    with factory.create_producer(config) as producer:
        assert producer.send_half(vq.Message(topic, b"1")).is_decided
        failed = producer.send_half(vq.Message(topic, b"2"), ValueError("no"))
        assert str(failed.error) == "no"
        with pytest.raises(KeyboardInterrupt):
            producer.send_half(vq.Message(topic, b"3"), KeyboardInterrupt())
        block_until(lambda: stored(factory, topic) == [b"1", b"2", b"3"])
        assert threads[:3] == [threading.current_thread()] * 3
        assert {each.name for each in threads[3:]} == {"vq-check"}


def test_a_coroutine_function_is_no_listener_of_a_blocking_producer(
    factory: vq.MessageFactory,
) -> None:
    async def check(_message: vq.Message) -> vq.TransactionResolution:
        return vq.COMMIT

    listener = vq.TransactionListener(lambda _message, _arg: vq.COMMIT, check)
    config = vq.ProducerConfig(producer_group="g", transaction_listener=listener)
    with pytest.raises(InvalidArgument, match="check of the transaction_listener"):
        factory.create_producer(config)


async def test_a_thread_that_hangs_in_a_check_does_not_keep_others_from_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Up to a number of threads: then nothing more is called until one returns."""
    monkeypatch.setattr(checks, "THREADS_MAX", 3)
    calls, go_on = checks.ThreadCalls(0.05), threading.Event()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await calls.run(go_on.wait)
    waiting = asyncio.ensure_future(calls.run(lambda: "called"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    go_on.set()
    assert await waiting == "called"
    with pytest.raises(checks.CheckRaised) as caught:
        await calls.run(lambda: sys.exit(1))
    assert isinstance(caught.value.__cause__, SystemExit)
    calls.close()
    await until(lambda: all(each.name != "vq-check" for each in threading.enumerate()))
