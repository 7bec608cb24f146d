"""A factory opens and closes in order: under load, twice in a process, forked, not shut down."""

import contextlib
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from support.blocking import config_of, read_all
from support.cluster import ProcessCluster
from support.threads import spawn

import vq
from vq.errors import CoordinationError, InvalidState
from vq.model import SendResult
from vq.testing.waiting import PROCESSES_WAIT_S, WAIT_S, block_until


def test_closing_under_load_gives_every_message_its_outcome(
    cluster: ProcessCluster, topic: str
) -> None:
    factory = vq.MessageFactory().open(config_of(cluster))
    producer = factory.create_producer()
    producer.publish(topic)
    futures: list[vq.SendFuture] = []

    sent = [0] * 6

    def work(number: int) -> None:
        with contextlib.suppress(InvalidState):
            while True:
                if number % 2:
                    futures.append(producer.send_async(vq.Message(topic, b"x")))
                else:
                    producer.send_sync(vq.Message(topic, b"x"), WAIT_S)
                sent[number] += 1

    threads = [spawn(lambda number=n: work(number)) for n in range(len(sent))]
    block_until(lambda: all(sent) and sum(sent) >= 200)
    closers = [spawn(factory.shutdown) for _ in range(2)]
    for closer in closers:
        closer.result(WAIT_S)
    for thread in threads:
        thread.result(WAIT_S)
    assert all(isinstance(future.outcome, SendResult) for future in futures)
    with vq.MessageFactory(config_of(cluster)) as second:
        stored = sum(map(len, read_all(second, topic).values()))
    assert stored == sum(sent), "what was refused is not stored, what was taken in is"
    factory.shutdown()
    producer.close()
    with pytest.raises(InvalidState, match="closed"):
        producer.send_async(vq.Message(topic, b"x"))
    with pytest.raises(InvalidState):
        producer.send_sync(vq.Message(topic, b"x"))
    with pytest.raises(InvalidState):
        factory.create_producer()


def test_two_factories_in_one_process_do_not_meet(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str
) -> None:
    with vq.MessageFactory(config_of(cluster, client_id="second")) as second:
        producers = [factory.create_producer(), second.create_producer()]
        futures = [
            producers[number % 2].send_async(vq.Message(topic, b"%d" % number))
            for number in range(2_000)
        ]
        assert len({future.result(WAIT_S).id for future in futures}) == 2_000
    assert producers[0].send_sync(vq.Message(topic, b"goes on")).id > 0


def test_a_factory_opened_again_and_one_that_cannot_be_opened(
    cluster: ProcessCluster, factory: vq.MessageFactory
) -> None:
    with pytest.raises(InvalidState, match="open already"):
        factory.open()
    again = vq.MessageFactory(config_of(cluster))
    for _ in range(2):
        with again:
            assert len(again.get_status()) == 2  # type: ignore[arg-type]
    before = threading.active_count()
    nowhere = vq.MessageFactoryConfig(zookeeper="127.0.0.1:1", start_timeout_s=0.3)
    with pytest.raises(CoordinationError):
        vq.MessageFactory(nowhere).open()
    block_until(lambda: threading.active_count() <= before)


def test_what_is_refused_inside_a_callback(factory: vq.MessageFactory, topic: str) -> None:
    producer = factory.create_producer()
    producer.publish(topic)
    refused: list[type[Exception]] = []
    done = threading.Event()

    def callback(*_: object) -> None:
        for call in (
            lambda: producer.send_sync(vq.Message(topic, b"x")),
            producer.flush,
            producer.close,
            factory.shutdown,
            factory.create_producer,
            lambda: producer.send_async(vq.Message(topic, b"allowed")).result(),
        ):
            try:
                call()
            except InvalidState as error:
                refused.append(type(error))
        done.set()

    producer.send_async(vq.Message(topic, b"x"), callback)
    assert done.wait(WAIT_S)
    assert refused == [InvalidState] * 6
    producer.flush(WAIT_S)
    assert sum(map(len, read_all(factory, topic).values())) == 2


FORK = """
import os, sys
import vq
from vq.errors import InvalidState

config = vq.MessageFactoryConfig(zookeeper=sys.argv[1], cluster=sys.argv[2])
topic = sys.argv[3]
factory = vq.MessageFactory(config).open()
producer = factory.create_producer()
consumer = factory.create_consumer()
producer.send_sync(vq.Message(topic, b"parent"))
pending = producer.send_async(vq.Message(topic, b"parent"))
child = os.fork()
if child == 0:
    refused = 0
    for call in (
        lambda: producer.send_sync(vq.Message(topic, b"child")),
        lambda: producer.send_async(vq.Message(topic, b"child")),
        lambda: producer.send_batch([vq.Message(topic, b"child")]),
        lambda: consumer.get(topic, 0, 0, 100),
        lambda: factory.create_producer(),
        producer.flush,
    ):
        try:
            call()
        except InvalidState as error:
            refused += "fork" in str(error)
    try:
        pending.result(60)
    except InvalidState:
        pass
    producer.close()
    consumer.close()
    factory.shutdown()
    with vq.MessageFactory(config) as own:
        own.create_producer().send_sync(vq.Message(topic, b"child"))
    os._exit(0 if refused == 6 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
producer.send_sync(vq.Message(topic, b"parent"))
pending.result(60)
factory.shutdown()
"""


def test_a_forked_child_is_refused_and_may_open_its_own(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str, tmp_path: Path
) -> None:
    program = tmp_path / "fork.py"
    program.write_text(textwrap.dedent(FORK))
    ended = subprocess.run(
        [sys.executable, str(program), cluster.zookeeper, cluster.name, topic],
        timeout=PROCESSES_WAIT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found = [m.content for messages in read_all(factory, topic).values() for m in messages]
    assert sorted(found) == [b"child", b"parent", b"parent", b"parent"]


#: What the loop would do between the end of the interpreter and that of the process is drawn out:
#: the C library sleeps in between, longer than the pause between two heartbeats.
NO_SHUTDOWN = """
    import ctypes, sys, time
    import vq

    zookeeper, cluster = sys.argv[1:]
    factory = vq.MessageFactory(
        vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster, session_timeout_s=4.0)
    ).open()
    time.sleep(0.2)  # until the loop waits for its next heartbeat
    libc = ctypes.CDLL(None)
    getattr(libc, "__cxa_atexit")(libc.sleep, ctypes.c_void_p(2), None)
"""


@pytest.mark.slow
def test_a_program_that_ends_without_shutdown_ends_in_order(
    cluster: ProcessCluster, tmp_path: Path
) -> None:
    """No loop wakes up in an interpreter that is gone, which was a segmentation fault."""
    program = tmp_path / "no_shutdown.py"
    program.write_text(textwrap.dedent(NO_SHUTDOWN))
    ended = subprocess.run(
        [sys.executable, str(program), cluster.zookeeper, cluster.name],
        timeout=PROCESSES_WAIT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
