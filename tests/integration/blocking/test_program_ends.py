"""Programs that end while messages wait: scripts as users write them, against real brokers.

Goal: all messages are stored, or a line says how many are not; the end is never held up for longer
than its bound.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.blocking import read_all, stopped
from support.cluster import ProcessCluster
from support.forks import UNWARNED

import vq
from vq.testing.waiting import PROCESSES_WAIT_S

pytestmark = pytest.mark.slow

MESSAGES = 20_000
BLOCKING = """
import sys, vq
from vq import MessageFactory  # a thread cannot import once the main thread has ended
def main(**settings):
    factory = vq.MessageFactory()
    factory.open(vq.MessageFactoryConfig(zookeeper=sys.argv[1], cluster=sys.argv[2]))
    producer = factory.create_producer(vq.ProducerConfig(**settings))
    for number in range({count}):
        producer.send_async(vq.Message(sys.argv[3], b"%d" % number))
"""
ASYNCIO = """
import asyncio, sys, vq
async def main(**settings):
    factory = vq.aio.MessageFactory()
    await factory.open(vq.MessageFactoryConfig(zookeeper=sys.argv[1], cluster=sys.argv[2]))
    producer = await factory.create_producer(vq.ProducerConfig(**settings))
    for number in range({count}):
        await producer.send_async(vq.Message(sys.argv[3], b"%d" % number))
"""
IN_A_LOOP_THREAD = """
import threading
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
asyncio.run_coroutine_threadsafe(main(), loop).result()
"""
IN_A_CHILD = """
import multiprocessing
if __name__ == "__main__":
    child = multiprocessing.get_context("{how}").Process(target=main)
    child.start()
    child.join()
    sys.exit(child.exitcode)
"""
ENDS = {
    "end": (BLOCKING + "main()", 0),
    "exception": (BLOCKING + "main()\nraise RuntimeError('of the program')", 1),
    "interrupt": (BLOCKING + "main()\nraise KeyboardInterrupt", -signal.SIGINT),
    "thread": (BLOCKING + "import threading\nthreading.Thread(target=main).start()", 0),
    "sys.exit in a thread": (
        BLOCKING
        + "import threading\nthreading.Thread(target=lambda: (main(), sys.exit(3))).start()",
        0,
    ),
    "forked child": (BLOCKING + IN_A_CHILD.format(how="fork"), 0),
    "spawned child": (BLOCKING + IN_A_CHILD.format(how="spawn"), 0),
    "asyncio.run": (ASYNCIO + "asyncio.run(main())", 0),
    "asyncio.run of uvloop": (
        ASYNCIO + "import uvloop\nasyncio.Runner(loop_factory=uvloop.new_event_loop).run(main())",
        0,
    ),
    "asyncio.run, exception": (
        ASYNCIO
        + "async def fail():\n    await main()\n    raise RuntimeError\nasyncio.run(fail())",
        1,
    ),
    "loop left open": (ASYNCIO + "asyncio.new_event_loop().run_until_complete(main())", 0),
    "loop in a thread": (ASYNCIO + IN_A_LOOP_THREAD, 0),
}

#: Those in which the main thread ends first, and vq is started by another one.
AFTER_THE_MAIN_THREAD = {"thread", "sys.exit in a thread"}


def start(cluster: ProcessCluster, path: Path, topic: str, text: str) -> "subprocess.Popen[str]":
    """Start a script; its standard error goes to a pipe."""
    path.write_text(text.replace("{count}", str(MESSAGES)))
    return subprocess.Popen(
        [sys.executable, *UNWARNED, str(path), cluster.zookeeper, cluster.name, topic],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.parametrize("how", ENDS)
def test_what_was_accepted_is_stored_when_the_program_ends(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str, tmp_path: Path, how: str
) -> None:
    if how in AFTER_THE_MAIN_THREAD and (3, 12) <= sys.version_info < (3, 12, 3):
        pytest.skip("no thread can be started then, see python/cpython#113964")
    text, code = ENDS[how]
    program = start(cluster, tmp_path / "program.py", topic, text)
    _, errors = program.communicate(timeout=PROCESSES_WAIT_S)
    assert program.returncode == code, errors
    assert "are not stored" not in errors
    assert sum(len(each) for each in read_all(factory, topic).values()) == MESSAGES, errors


@pytest.mark.parametrize(
    "text", [BLOCKING + "main(exit_flush_s=0.5)", ASYNCIO + "asyncio.run(main(exit_flush_s=0.5))"]
)
def test_what_cannot_be_sent_at_the_end_is_counted(
    cluster: ProcessCluster, topic: str, tmp_path: Path, text: str
) -> None:
    """The wait is bounded, and the line has the number of messages and a cause."""
    with stopped(cluster, "b1"), stopped(cluster, "b2"):
        begin = time.monotonic()
        program = start(cluster, tmp_path / "program.py", topic, text)
        _, errors = program.communicate(timeout=PROCESSES_WAIT_S)
        assert time.monotonic() - begin < PROCESSES_WAIT_S / 2
    assert program.returncode == 0, errors
    [line] = [each for each in errors.splitlines() if "are not stored" in each]
    counts = {name: int(count) for name, count in re.findall(r"(refused|unknown)=(\d+)", line)}
    assert sum(counts.values()) == MESSAGES
    assert "the program ended" in line


def test_messages_of_a_loop_that_was_closed_are_counted(
    cluster: ProcessCluster, topic: str, tmp_path: Path
) -> None:
    """``loop.close()`` without ``shutdown_asyncgens`` leaves nothing that could send them."""
    text = ASYNCIO + (
        "loop = asyncio.new_event_loop()\nloop.run_until_complete(main())\nloop.close()"
    )
    with stopped(cluster, "b1"), stopped(cluster, "b2"):
        program = start(cluster, tmp_path / "program.py", topic, text)
        _, errors = program.communicate(timeout=PROCESSES_WAIT_S)
    assert program.returncode == 0, errors
    assert 'messages are not stored reason="the program ended' in errors


def test_ctrl_c_ends_the_wait_at_the_end(
    cluster: ProcessCluster, topic: str, tmp_path: Path
) -> None:
    """A person who does not want to wait need not, and is still told what is lost."""
    with stopped(cluster, "b1"), stopped(cluster, "b2"):
        program = start(
            cluster, tmp_path / "program.py", topic, BLOCKING + "main(exit_flush_s=600)"
        )
        assert program.stderr is not None
        for line in program.stderr:
            if "waiting for messages to be sent" in line:
                break
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=PROCESSES_WAIT_S)
    assert "are not stored" in errors


def test_messages_of_the_parent_are_none_of_its_childs(
    cluster: ProcessCluster, factory: vq.MessageFactory, topic: str, tmp_path: Path
) -> None:
    """A child of a fork ends at once and reports nothing; the parent stores all."""
    text = BLOCKING + "main()\nimport os\nif os.fork() == 0:\n    sys.exit()\nos.wait()"
    program = start(cluster, tmp_path / "program.py", topic, text)
    _, errors = program.communicate(timeout=PROCESSES_WAIT_S)
    assert (program.returncode, errors) == (0, "")
    assert sum(len(each) for each in read_all(factory, topic).values()) == MESSAGES
