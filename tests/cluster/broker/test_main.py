"""The process around a node: it ends when told to, and when the node cannot go on."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading

import pytest
from support.broker import has_parts

from vq.broker import main
from vq.broker.base.runner import ThreadRunner
from vq.broker.node import Stage
from vq.errors import CoordinationError
from vq.store.directory.directories import DataDirectories
from vq.testing.waiting import WAIT_S, until


@pytest.fixture(autouse=True)
def kept_collectable(monkeypatch) -> None:
    """What this process has made so far stays with the garbage collector."""
    monkeypatch.setattr(gc, "freeze", lambda: None)


async def _serving(cluster, monkeypatch) -> "asyncio.Task[bool]":
    node = cluster.node()
    monkeypatch.setattr(main, "build_node", lambda config: node)
    serving = asyncio.create_task(main.serve(node.config))
    await until(lambda: has_parts(node) and node.parts.gate.stage is Stage.SERVING)
    return serving


async def test_a_signal_ends_the_process_cleanly(cluster, monkeypatch):
    """Nothing failed: whoever runs it sees success."""
    serving = await _serving(cluster, monkeypatch)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(serving, WAIT_S) is True


async def test_a_node_that_cannot_go_on_is_stopped_with_an_error(cluster, monkeypatch, caplog):
    """An error is exit code 1, so that whoever watches the process starts it again."""
    serving = await _serving(cluster, monkeypatch)
    cluster.coordinators["b1"].give_up("five clients died")
    with pytest.raises(CoordinationError, match="five clients died"):
        await asyncio.wait_for(serving, WAIT_S)
    assert cluster.nodes["b1"].parts.gate.stage is Stage.STOPPING
    assert any(record.levelname == "CRITICAL" for record in caplog.records)


async def test_a_node_that_cannot_go_on_and_hangs_is_not_waited_for(cluster, monkeypatch):
    """A stop that did not end cleanly is said as such: the process is then ended the hard way."""
    serving = await _serving(cluster, monkeypatch)

    async def hang() -> bool:
        return False

    monkeypatch.setattr(cluster.nodes["b1"], "stop", hang)
    cluster.coordinators["b1"].give_up("five clients died")
    assert await asyncio.wait_for(serving, WAIT_S) is False
    monkeypatch.undo()


async def test_a_start_that_hangs_in_the_disk_ends_with_a_signal(cluster, monkeypatch):
    """The thread that hangs is left behind: the process is then ended the hard way."""
    runner, gate, entered = ThreadRunner(), threading.Event(), threading.Event()
    waited: list[bool] = []
    node = cluster.node(stop_timeout_s=0.05, runner=runner)

    def hang(*args, **settings):
        entered.set()
        waited.append(gate.wait(2 * WAIT_S))
        raise OSError("the disk answers at last")

    monkeypatch.setattr(DataDirectories, "open", hang)
    monkeypatch.setattr(main, "build_node", lambda config: node)
    serving = asyncio.create_task(main.serve(node.config))
    await until(entered.is_set)
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        assert await asyncio.wait_for(serving, WAIT_S) is False
        assert waited == [], "the signal waited for it"
    finally:
        gate.set()
        await runner.close()


_STUCK = """
import asyncio, sys, threading
from vq.broker import main
from vq.broker.base.runner import Lane, ThreadRunner

async def serve(config):
    runner = ThreadRunner()
    asyncio.ensure_future(runner.run(threading.Event().wait, Lane.PURGE))
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(0.05):
            await runner.close()
    except TimeoutError:
        return False
    return True

main.serve = serve
main.run_broker(None)
"""


def test_the_process_ends_although_a_thread_hangs():
    """Neither the loop's end nor the interpreter's waits for the thread."""
    ran = subprocess.run([sys.executable, "-c", _STUCK], timeout=60, check=False)
    assert ran.returncode == 1


def test_the_garbage_collector_seldom_looks_at_everything(monkeypatch: pytest.MonkeyPatch):
    """As many objects as 20 000 look-ups have: one pass through all that is there, at most."""
    monkeypatch.setattr(gc, "freeze", lambda: None)
    before = gc.get_threshold()
    try:
        main.collect_rarely()
        passes = gc.get_stats()[2]["collections"]
        kept = [[] for _ in range(200_000)]
        assert gc.get_stats()[2]["collections"] - passes <= 1
        assert len(kept) == 200_000
    finally:
        gc.set_threshold(*before)
