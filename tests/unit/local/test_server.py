"""A queue for other processes: the same methods over a socket, and what becomes of who ends."""

import contextlib
import errno
import gc
import inspect
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import vq
from vq import limits
from vq.errors import (
    ConnectionCut,
    InvalidArgument,
    InvalidState,
    LeaseLost,
    MessageTooLarge,
    Unreachable,
    UnsupportedVersion,
)
from vq.local import (
    LocalItem,
    LocalQueue,
    LocalQueueClient,
    LocalQueueConfig,
    LocalQueueServer,
    wire,
)
from vq.local import client as client_module
from vq.local.wire import LocalFrame, raised_by, read_frame, write_frame
from vq.model import Message
from vq.testing.waiting import WAIT_S, block_until


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "jobs"


def test_a_client_and_coroutines_have_the_methods_of_a_queue() -> None:
    """With the same arguments; coroutines cannot wait where nothing is awaited."""

    def methods(of: type) -> dict[str, list[str]]:
        return {
            name: [*inspect.signature(each).parameters]
            for name, each in vars(of).items()
            if inspect.isfunction(each) and not name.startswith("_")
        }

    wanted = methods(LocalQueue)
    assert methods(LocalQueueClient) == wanted
    found = methods(vq.aio.LocalQueue)
    for name, arguments in wanted.items():
        if name in ("complete", "complete_many"):
            arguments = [each for each in arguments if each != "wait"]
        assert found[name] == arguments, name


@pytest.fixture
def queue(directory: Path) -> Iterator[LocalQueue]:
    config = LocalQueueConfig(retries=0, retry_s=3600.0)
    with LocalQueue(directory, config) as opened, LocalQueueServer(opened):
        yield opened


@pytest.fixture
def client(queue: LocalQueue, directory: Path) -> Iterator[LocalQueueClient]:
    with LocalQueueClient(directory) as connected:
        yield connected


def test_a_message_comes_as_it_was_put(client: LocalQueueClient) -> None:
    message = Message("any", b"paid", tag="t", key=b"\x00k", headers={"a": "b"})
    assert client.put(message, idempotency_key="k1", priority=2)
    assert not client.put(message, idempotency_key="k1")
    assert client.put_many([b"1", b"2"]) == 2
    listed = client.list()
    assert [each.message.content for each in listed] == [b"paid", b"1", b"2"]
    assert listed[0].message.key == b"\x00k"
    item = client.take(WAIT_S)
    assert item is not None
    assert item.message[:5] == ("jobs", b"paid", "t", b"\x00k", {"a": "b"})
    client.extend(item)
    client.complete(item, wait=True)
    for late in (client.complete, client.fail, client.extend):
        with pytest.raises(LeaseLost):
            late(item)
    assert (len(client), client.metrics().ready) == (2, 2)
    assert client.purge() == 2
    assert client.drain(WAIT_S)


def test_a_message_with_a_time_waits_for_it(client: LocalQueueClient) -> None:
    client.put(Message("any", b"later", deliver_at=time.time() + 3600))
    block_until(lambda: client.metrics().later == 1)
    assert client.take(0) is None


def test_failed_messages_are_requeued(client: LocalQueueClient) -> None:
    client.put(b"x")
    item = client.take(WAIT_S)
    assert item is not None
    client.fail(item)
    block_until(lambda: client.metrics().later == 1)
    assert client.take(0) is None
    assert client.requeue([]) == 0
    assert client.requeue() == 1
    again = client.take(WAIT_S)
    assert again is not None
    assert (again.content, again.attempts) == (b"x", 2)


def test_errors_of_the_owner_come_as_they_are(client: LocalQueueClient) -> None:
    with pytest.raises(InvalidArgument, match="priority = 7 is outside"):
        client.put(b"x", priority=7)
    with pytest.raises(InvalidArgument, match="limit = 0"):
        client.list(0)


def test_a_client_takes_and_completes_many(client: LocalQueueClient) -> None:
    assert client.peek() is None
    assert client.put_many([b"1", b"2", b"3"], wait=False) == 3
    client.flush()
    head = client.peek()
    assert head is not None
    assert head.content == b"1"
    items = client.take_many(2, WAIT_S)
    assert [each.content for each in items] == [b"1", b"2"]
    client.complete_many(items, wait=True)
    with pytest.raises(LeaseLost):
        client.complete_many(items)
    assert [each.content for each in client.take_many(2, 0)] == [b"3"]


def test_what_an_interrupted_call_has_taken_is_given_again(
    client: LocalQueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.put_many([b"1", b"2", b"3"])
    taking = iter([client.take, client.take, lambda _: sys.exit()])
    with monkeypatch.context() as patched:
        patched.setattr(client, "take", lambda timeout: next(taking)(timeout))
        with pytest.raises(SystemExit):
            client.take_many(3)
    assert [each.content for each in client.take_many(3)] == [b"1", b"2", b"3"]


def test_threads_of_a_client_share_what_it_took(client: LocalQueueClient) -> None:
    client.put_many([b"%d" % n for n in range(30)])
    found = []

    def work() -> None:
        while (item := client.take(0)) is not None:
            found.append(item.content)
            client.complete(item)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(found) == sorted(b"%d" % n for n in range(30))


def test_what_a_killed_process_had_taken_is_given_to_others(
    queue: LocalQueue, directory: Path
) -> None:
    queue.put(b"x")
    child = os.fork()
    if not child:
        try:
            LocalQueueClient(directory).take(WAIT_S)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    item = queue.take(WAIT_S)
    assert item is not None
    assert (item.content, item.attempts) == (b"x", 2)


def test_a_client_without_an_owner_is_told_what_to_do(directory: Path) -> None:
    with pytest.raises(Unreachable, match="has no local queue"):
        LocalQueueClient(directory)
    with LocalQueue(directory) as queue:
        with pytest.raises(Unreachable, match="nobody serves") as raised:
            LocalQueueClient(directory)
        assert "LocalQueueServer(queue)" in raised.value.hint
        server = LocalQueueServer(queue)
        client = LocalQueueClient(directory)
        server.close()
        server.close()
        with pytest.raises(Exception, match="has ended"):
            client.put(b"x")
        client.close()
        with pytest.raises(InvalidState, match="closed"):
            client.put(b"x")


def test_another_version_is_refused(queue: LocalQueue, directory: Path) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(directory / "@socket"))
        write_frame(stranger, {"version": 99, "client": "x"})
        frame = read_frame(stranger)
    assert frame is not None
    assert isinstance(raised_by(frame.values), UnsupportedVersion)


def test_only_a_queue_in_a_directory_is_served() -> None:
    with LocalQueue(None) as queue, pytest.raises(InvalidArgument, match="in memory"):
        LocalQueueServer(queue)


def test_a_close_ends_waits_at_once_and_leaves_no_taker(directory: Path) -> None:
    with LocalQueue(directory) as queue:
        server = LocalQueueServer(queue)
        with pytest.raises(InvalidState, match="served already"):
            LocalQueueServer(queue)
        clients = [LocalQueueClient(directory) for _ in range(3)]
        ended = []

        def wait(client: LocalQueueClient) -> None:
            try:
                client.take()
            except ConnectionCut as error:
                ended.append(error)

        threads = [threading.Thread(target=wait, args=(each,)) for each in clients]
        for thread in threads:
            thread.start()
        block_until(lambda: queue.metrics().takers == 3)
        server.close()
        for thread in threads:
            thread.join(WAIT_S)
        assert len(ended) == 3
        queue.put(b"x")
        assert (queue.metrics().takers, queue.take(0).attempts) == (0, 1)  # type: ignore[union-attr]
        for client in clients:
            client.close()
        with LocalQueueServer(queue), LocalQueueClient(directory) as client:
            assert client.take(0) is None


def test_threads_that_end_leave_no_connection(queue: LocalQueue, client: LocalQueueClient) -> None:
    before = threading.active_count()
    for n in range(40):
        thread = threading.Thread(target=client.put, args=(b"%d" % n,))
        thread.start()
        thread.join(WAIT_S)
    assert len(queue) == 40
    assert threading.active_count() <= before + 1


def test_a_take_that_is_interrupted_takes_nothing(
    queue: LocalQueue, client: LocalQueueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while it waits, nor when its answer has come: who asks next gets the message."""
    held = client.put(b"held") and client.take(WAIT_S)
    reads: list[bool] = []

    def interrupted(connection: socket.socket) -> LocalFrame | None:
        if reads.pop():
            read_frame(connection)
        raise KeyboardInterrupt

    for answered in (False, True):
        if answered:
            queue.put(b"2")
        reads.append(answered)
        with monkeypatch.context() as patch:
            patch.setattr(client_module, "read_frame", interrupted)
            with pytest.raises(KeyboardInterrupt):
                client.take(60.0)
        block_until(lambda: not queue.metrics().takers)
        if not answered:
            queue.put(b"1")
        item = client.take(WAIT_S)
        assert item is not None
        assert (item.content, item.attempts) == (b"2" if answered else b"1", 1)
        client.complete(item)
    client.complete(held)  # its lease has not ended with the connection


def test_a_list_of_large_messages_ends_and_costs_no_lease(client: LocalQueueClient) -> None:
    held = client.put(b"held") and client.take(WAIT_S)
    content = bytes(limits.MIB)
    for _ in range(20):
        client.put(content, wait=False)
    client.flush()
    assert len(client.list()) == 16
    client.complete(held)


def test_a_server_without_a_descriptor_goes_on(
    queue: LocalQueue, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failed = socket.socket.accept, threading.Event()

    def fail_once(listener: socket.socket) -> object:
        if not failed.is_set():
            failed.set()
            listener.setblocking(True)
            raise OSError(errno.EMFILE, "no descriptor")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", fail_once)
    LocalQueueClient(directory).close()  # the wait that is under way ends with it
    for _ in range(2):
        with LocalQueueClient(directory) as client:
            assert client.put(b"x")
    assert failed.is_set()


def test_an_item_of_another_client_names_nothing(
    client: LocalQueueClient, queue: LocalQueue, tmp_path: Path
) -> None:
    """Nor one of another queue, nor one that its owner has taken itself."""
    with (
        LocalQueue(tmp_path / "b") as other,
        LocalQueueServer(other),
        LocalQueueClient(tmp_path / "b") as stranger,
        LocalQueueClient(tmp_path / "jobs") as peer,
    ):
        client.put_many([b"1", b"2", b"own"])
        other.put(b"other")
        holders = (client, peer, queue, stranger)
        items = [item for each in holders if (item := each.take(0)) is not None]
        for item in items[1:]:
            error = LeaseLost if item.topic == "jobs" else InvalidArgument
            with pytest.raises(error):
                client.complete(item)
            with pytest.raises(error):
                client.fail(item)
            with pytest.raises(error):
                client.extend(item)
        with pytest.raises(InvalidArgument, match="no item"):
            client.complete(b"1")  # type: ignore[arg-type]
        for each, item in zip(holders, items, strict=True):
            each.complete(item)


def test_a_late_taker_has_nothing_of_an_owner_that_came_back(directory: Path) -> None:
    with LocalQueue(directory) as queue, LocalQueueServer(queue):
        queue.put_many([b"1", b"2"])
        client = LocalQueueClient(directory)
        late = client.take(0)
    with LocalQueue(directory) as queue, LocalQueueServer(queue), client:
        with pytest.raises(ConnectionCut):
            client.flush()
        found = client.take(WAIT_S)
        assert late is not None
        assert found is not None
        with pytest.raises(LeaseLost):
            client.complete(late)
        client.complete(found)
        left = queue.list()
    assert [each.message.content for each in left] == [b"2" if found.content == b"1" else b"1"]


def test_a_client_refuses_what_cannot_be_sent_and_keeps_what_it_has(
    client: LocalQueueClient,
) -> None:
    client.put(b"x")
    item = client.take(0)
    with pytest.raises(MessageTooLarge):
        client.put(bytes(2 * limits.MIB))
    for refused in (
        lambda: client.put(b"x", priority=1.5),  # type: ignore[arg-type]
        lambda: client.put(b"x", delay_s="1"),  # type: ignore[arg-type]
        lambda: client.put(b"x", timeout=float("nan")),
        lambda: client.put(b"x", idempotency_key=5),  # type: ignore[arg-type]
        lambda: client.put_many(b"abc"),
        lambda: client.take("1"),  # type: ignore[arg-type]
        lambda: client.take_many(0),
        lambda: client.complete_many(item),  # type: ignore[arg-type]
        lambda: client.requeue(5),  # type: ignore[arg-type]
        lambda: client.requeue(["a"]),  # type: ignore[list-item]
        lambda: client.list("5"),  # type: ignore[arg-type]
        lambda: client.drain("1"),  # type: ignore[arg-type]
        lambda: LocalQueueClient(""),
        lambda: LocalQueueClient(5),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument):
            refused()
    assert item is not None
    client.complete(item)
    assert client.take(-1) is None


def test_an_error_of_a_signal_handler_gives_nothing_away(
    client: LocalQueueClient, queue: LocalQueue
) -> None:
    """A TimeoutError is an error of the operating system, too; it does not end the owner."""
    client.put_many([b"1"])
    item = client.take(0)
    assert item is not None

    def ring(*_: object) -> None:
        raise TimeoutError("too long")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError):
            client.take(WAIT_S)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    client.complete(item)
    assert len(queue) == 0


def test_a_client_that_ends_during_the_hello_leaves_nothing(
    queue: LocalQueue, directory: Path
) -> None:
    """Whether or not the owner could answer its second connection."""
    for number in range(5):
        queue.put(b"job")
        hello = {"version": wire.LOCAL_PROTOCOL, "client": f"c{number}"}
        sockets = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        first, second = sockets
        first.connect(os.fspath(directory / "@socket"))
        write_frame(first, hello)
        read_frame(first)
        write_frame(first, {"do": "take", "handle": 1, "timeout": 5})
        read_frame(first)
        second.connect(os.fspath(directory / "@socket"))
        write_frame(second, hello)
        for each in (second, first):
            each.close()
        item = queue.take(WAIT_S)
        assert item is not None
        queue.complete(item)


def test_an_owner_keeps_few_messages_whose_lease_ended_at_a_client(directory: Path) -> None:
    config = LocalQueueConfig(lease_s=0.02, retries=1_000_000)
    with LocalQueue(directory, config) as queue, LocalQueueServer(queue):
        queue.put_many([b"job"] * 40)
        with LocalQueueClient(directory) as client:
            taken = []
            for _ in range(4):
                taken += [client.take(WAIT_S) for _ in range(40)]
                block_until(lambda: not queue.metrics().taken)
            kept = sum(isinstance(each, LocalItem) for each in gc.get_objects()) - len(taken)
    assert kept < 40 + 80  # those of the queue, and at most twice as many as are taken


def test_a_child_of_a_fork_leaves_its_parents_server_and_client(directory: Path) -> None:
    """It leaves the blocks that it has inherited, as after ``sys.exit``."""
    with LocalQueue(directory) as queue, LocalQueueServer(queue) as server:
        with LocalQueueClient(directory) as client:
            client.put(b"job")
            item = client.take(0)
            assert item is not None
            if not (child := os.fork()):
                with contextlib.suppress(BaseException):
                    with contextlib.suppress(InvalidState):
                        client.put(b"of the child")
                    client.close()
                    client.close()
                    server.close()
                    queue.close()
                    os._exit(0)
                os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            client.complete(item)
            assert len(client) == 0
        LocalQueueClient(directory).close()
