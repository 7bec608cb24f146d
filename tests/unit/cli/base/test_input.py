"""A signal ends a read that waits, whichever thread the kernel gave it to, and whenever it came."""

import io
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from vq.cli.base.input import interruptible
from vq.testing.waiting import block_until


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    yield
    assert signal.set_wakeup_fd(wakeup) == wakeup, "the descriptor of before is there again"
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def pipe() -> Iterator[tuple[io.BufferedReader, int]]:
    read, write = os.pipe()
    with open(read, "rb") as file:
        yield file, write
        os.close(write)


def _waits_in_the_kernel(thread: int) -> bool:
    state = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "S"


def test_a_signal_that_another_thread_got_ends_the_read(
    pipe: tuple[io.BufferedReader, int],
) -> None:
    """The kernel may give it to any thread; a plain read would wait for input for ever."""
    main = threading.get_native_id()

    def signalled() -> None:
        block_until(lambda: _waits_in_the_kernel(main))
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=signalled)
    with interruptible(pipe[0]) as file:
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            file.readline()
    thread.join()


def test_input_is_read_whole_after_a_signal_whose_handler_raises_nothing(
    pipe: tuple[io.BufferedReader, int],
) -> None:
    file, write = pipe
    seen: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    main = threading.get_native_id()

    def written() -> None:
        block_until(lambda: _waits_in_the_kernel(main))
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        block_until(lambda: seen)
        os.write(write, b"one\ntw")
        os.write(write, b"o\n")

    thread = threading.Thread(target=written)
    with interruptible(file) as lines:
        thread.start()
        assert [lines.readline(), lines.readline()] == [b"one\n", b"two\n"]
    thread.join()
    assert seen == [signal.SIGINT]


def test_what_never_waits_is_read_as_it_is() -> None:
    with tempfile.TemporaryFile() as regular, interruptible(regular) as file:
        assert file is regular
    memory = io.BytesIO(b"x")
    with interruptible(memory) as file:
        assert file is memory


def test_another_thread_reads_as_it_is(pipe: tuple[io.BufferedReader, int]) -> None:
    """Only the main thread can be told of signals."""
    found: list[bool] = []

    def read() -> None:
        with interruptible(pipe[0]) as file:
            found.append(file is pipe[0])

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert found == [True]
