"""Messages that were in hand when their process was killed.

A kill is a copy of the directory as it was then: what a queue has stored in mapped files is in it.
"""

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.local_queue import taken

import vq
from vq.local import LocalQueue, LocalQueueConfig, LocalWorkers
from vq.testing.waiting import WAIT_S, block_until

Kill = Callable[[Path], Path]


@pytest.fixture
def kill(tmp_path: Path) -> Kill:
    """Return a function that returns the directory as it would be after a kill now."""
    numbers = itertools.count()

    def copied(directory: Path) -> Path:
        return shutil.copytree(directory, tmp_path / f"killed-{next(numbers)}" / directory.name)

    return copied


@pytest.mark.parametrize("memory_items", [1, 100], ids=["on disk", "in memory"])
def test_a_message_that_ends_its_process_counts_up_and_stops_no_other(
    tmp_path: Path, kill: Kill, memory_items: int
) -> None:
    """A crash is a failure: after ``retries`` of them the message waits for its times."""
    config = LocalQueueConfig(retries=1, retry_s=3600.0, memory_items=memory_items)
    directory = tmp_path / "jobs"
    with LocalQueue(directory, config) as queue:
        queue.put_many([b"before", b"poison", b"good"])
        queue.complete(taken(queue), wait=True)
        item = taken(queue)
        assert (item.content, item.attempts) == (b"poison", 1)
        directory = kill(directory)
    with LocalQueue(directory, config) as queue:
        item = taken(queue)
        assert (item.content, item.attempts) == (b"poison", 2)
        directory = kill(directory)
    with LocalQueue(directory, config) as queue:
        queue.complete(taken(queue))
        block_until(lambda: queue.metrics().later == 1)
        assert queue.take(0) is None
        queue.requeue()
        item = taken(queue)
        assert (item.content, item.attempts) == (b"poison", 3)
        directory = kill(directory)
    with LocalQueue(directory, config) as queue:  # it is in the lane of those that wait now
        assert queue.take(0) is None
        (listed,) = queue.list()
        assert (listed.standing, listed.attempts) == ("later", 3)


def test_what_was_in_hand_at_a_crash_is_known_at_the_next_one_too(
    tmp_path: Path, kill: Kill
) -> None:
    with LocalQueue(tmp_path / "jobs") as queue:
        queue.put(b"job")
        taken(queue)
        first = kill(tmp_path / "jobs")
    with LocalQueue(first) as queue:
        queue.put(b"urgent", priority=2)
        assert taken(queue).content == b"urgent"
        second = kill(first)
    with LocalQueue(second) as queue:
        assert [(each.content, each.attempts) for each in queue.take_many(2)] == [
            (b"urgent", 2),
            (b"job", 2),
        ]


def test_a_close_counts_for_nothing(tmp_path: Path) -> None:
    config = LocalQueueConfig(retries=0, retry_s=3600.0)
    for _ in range(3):
        with LocalQueue(tmp_path / "jobs", config) as queue:
            if not len(queue):
                queue.put(b"job")
            assert taken(queue).attempts == 1


def test_messages_that_workers_hold_are_not_in_hand(tmp_path: Path, kill: Kill) -> None:
    """What was taken ahead beside a message that ends the process has done nothing."""
    killed: list[Path] = []

    def handle(message: vq.Message) -> None:
        if message.content == b"poison":
            killed.append(kill(tmp_path / "jobs"))

    with LocalQueue(tmp_path / "jobs") as queue:
        queue.put_many([b"poison", b"neighbour"])
        with LocalWorkers(queue, handle, workers=1):
            block_until(lambda: bool(killed))
    with LocalQueue(killed[0]) as queue:
        assert [(each.message.content, each.attempts) for each in queue.list()] == [
            (b"poison", 1),
            (b"neighbour", 0),
        ]


def test_a_mailbox_whose_message_ends_the_process_keeps_its_order_and_lets_others_go_first(
    tmp_path: Path, kill: Kill
) -> None:
    config = LocalQueueConfig(retries=0, retry_s=0.3)
    killed: list[Path] = []
    given: list[tuple[bytes, int]] = []

    def die(message: vq.Message) -> None:
        if message.content == b"poison":
            killed.append(kill(tmp_path / "jobs"))

    with LocalQueue(tmp_path / "jobs", config) as queue:
        keys = {b"poison": 1, b"behind": 1, b"other": 2}
        queue.put_many([vq.Message("t", content, key=key) for content, key in keys.items()])
        with LocalWorkers(queue, die, workers=1, by_key=True):
            block_until(lambda: bool(killed))
    with LocalQueue(killed[0], config) as queue:

        def handle(message: vq.Message) -> None:
            given.append((message.content, message.attempts))

        with LocalWorkers(queue, handle, workers=1, by_key=True):
            assert queue.drain(WAIT_S)
    assert given == [(b"other", 1), (b"poison", 2), (b"behind", 1)]


@pytest.mark.parametrize("mode", ["orderly", "concurrent"])
def test_a_listener_whose_message_ends_the_process_has_max_attempts(
    tmp_path: Path, kill: Kill, mode: str
) -> None:
    """Then it is a dead letter, and nobody is called."""
    directory, attempts = tmp_path / "topics", list[int]()
    config = vq.ConsumerConfig(
        group="g",
        mode=mode,
        workers=1,
        max_attempts=2,
        retry_backoff=(0.01, 0.01),
        on_failure="dead-letter",
    )
    with vq.MessageFactory(vq.MessageFactoryConfig(local=str(directory))) as factory:
        factory.create_producer().send_sync(vq.Message("parcels", b"poison"))
    for _ in range(2):
        killed: list[Path] = []

        def die(message: vq.Message, killed: list[Path] = killed) -> None:
            attempts.append(message.attempts)
            killed.append(kill(directory))  # noqa: B023

        with vq.MessageFactory(vq.MessageFactoryConfig(local=str(directory))) as factory:
            consumer = factory.create_consumer(config)
            consumer.subscribe("parcels", listener=die).start()
            block_until(lambda: bool(killed))  # noqa: B023
        directory = killed[0]
    assert attempts == [1, 2]
    with vq.MessageFactory(vq.MessageFactoryConfig(local=str(directory))) as factory:
        consumer = factory.create_consumer(config)
        consumer.subscribe("parcels", listener=lambda message: attempts.append(0)).start()
        dead = factory.create_consumer(vq.ConsumerConfig(group="readers"))
        dead.subscribe("_vq.dlq.g")
        (letter,) = dead.get_many(1, WAIT_S)
        assert letter.content == b"poison"
        assert letter.failure is not None
        assert letter.failure.attempts == 3
    assert attempts == [1, 2]
