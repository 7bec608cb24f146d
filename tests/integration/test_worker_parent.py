"""The parent of a worker's processes, with processes that do what a test tells them."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from support import worker_child

from vq.backoff import Backoff
from vq.errors import InvalidArgument, InvalidState
from vq.testing.waiting import PROCESSES_WAIT_S, until
from vq.worker import supervisor
from vq.worker.config import RunnerConfig
from vq.worker.supervisor import Supervisor


class Parent:
    """A supervisor that runs, and what its processes note."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        config = RunnerConfig(**{"stop_timeout_s": PROCESSES_WAIT_S, **settings})
        self.python = directory / "python"
        self.python.symlink_to(sys.executable)
        command = [str(self.python), str(worker_child.__file__), str(directory)]
        path = os.pathsep.join(sys.path)
        environment = {**os.environ, "PYTHONPATH": path}
        self.supervisor = Supervisor(config, command, environment, 4, [directory])
        self.ready = asyncio.Event()
        self.run = asyncio.create_task(self.supervisor.run(self.ready.set))

    def noted(self, *words: str) -> list[list[str]]:
        """Return the lines of processes that begin so: number, process id, words."""
        try:
            lines = [each.split() for each in (self.directory / "log").read_text().splitlines()]
        except FileNotFoundError:
            return []
        return [each for each in lines if each[2 : 2 + len(words)] == list(words)]

    async def wait(self, check: Callable[[], object]) -> None:
        await until(check, timeout_s=PROCESSES_WAIT_S)

    async def ended(self) -> bool:
        return await asyncio.wait_for(self.run, PROCESSES_WAIT_S)


@contextlib.asynccontextmanager
async def parent(directory: Path, *has: str, **settings: Any) -> AsyncIterator[Parent]:
    for name in has:
        (directory / name).touch()
    made = Parent(directory, **settings)
    try:
        yield made
    finally:
        if not made.run.done():
            made.supervisor.stop()
            made.supervisor.stop()
            with contextlib.suppress(Exception):
                await made.ended()


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "AGAIN", Backoff(first_s=0.01, most_s=0.05))
    monkeypatch.setattr(supervisor, "OVERDUE_FINISH_S", 0.2)
    monkeypatch.setattr(supervisor, "LEAVE_S", 0.2)
    monkeypatch.setattr(supervisor, "RELOAD_LOOK_S", 0.05)


pytestmark = pytest.mark.slow


async def test_a_stop_has_all_processes_finish(tmp_path: Path) -> None:
    async with parent(tmp_path, processes=2) as run:
        await run.wait(run.ready.is_set)
        run.supervisor.stop()
        assert await run.ended()
    assert sorted(each[0] for each in run.noted("stop", "finish")) == ["0", "1"]
    assert not run.noted("stop", "now")


async def test_a_second_stop_has_them_leave_at_once_and_kills_what_does_not(
    tmp_path: Path,
) -> None:
    async with parent(tmp_path, "hang") as run:
        await run.wait(run.ready.is_set)
        run.supervisor.stop()
        await run.wait(lambda: run.noted("stop", "finish"))
        run.supervisor.stop()
        assert not await run.ended()
    assert run.noted("stop", "now")


async def test_the_time_of_a_stop_is_bounded(tmp_path: Path) -> None:
    async with parent(tmp_path, "hang", stop_timeout_s=0.1) as run:
        await run.wait(run.ready.is_set)
        run.supervisor.stop()
        assert not await run.ended()


async def test_a_process_that_dies_is_replaced_and_what_it_had_in_hand_is_told(
    tmp_path: Path,
) -> None:
    """It had one message in hand; killed twice, it counts twice. The other process goes on."""
    async with parent(tmp_path, "hold", processes=2) as run:
        await run.wait(run.ready.is_set)
        kept = next(each for each in run.noted("start") if each[0] == "1")
        for number in (1, 2):
            await run.wait(lambda number=number: len(run.noted("holds")) == 1 + number)
            last = [each for each in run.noted("holds") if each[0] == "0"][-1]
            os.kill(int(last[1]), signal.SIGKILL)
            await run.wait(lambda number=number: run.noted("suspects", str(number)))
        assert kept in run.noted("start")
        assert [each[0] for each in run.noted("start")].count("1") == 1


async def test_a_message_that_is_too_long_in_hand_ends_its_process(tmp_path: Path) -> None:
    """Also one that takes no order: it is killed. Another one starts before it has ended."""
    async with parent(tmp_path, "hold", "hang", time_limit_s=0.3) as run:
        await run.wait(lambda: run.noted("suspects", "2"))
        first, *more = run.noted("start")
        assert more
        assert any(each[1] == first[1] for each in run.noted("stop", "now"))


async def test_a_process_that_cannot_start_is_tried_so_many_times(tmp_path: Path) -> None:
    async with parent(tmp_path, "fail", start_failures_max=3) as run:
        with pytest.raises(InvalidState, match="could not start 3 times in a row: it is to fail"):
            await run.ended()
    assert len(run.noted("start")) == 3


async def test_handlers_that_cannot_be_used_end_the_worker(tmp_path: Path) -> None:
    async with parent(tmp_path, "refuse", processes=2) as run:
        with pytest.raises(InvalidArgument, match="it is to refuse"):
            await run.ended()


async def test_one_that_dies_again_and_again_is_started_again(tmp_path: Path) -> None:
    """It joined its group each time, so something may have been done."""
    async with parent(tmp_path, "die", start_failures_max=2) as run:
        await run.wait(lambda: len(run.noted("start")) >= 4)
        assert not run.run.done()


async def test_a_reload_replaces_all_one_after_the_other(tmp_path: Path) -> None:
    """The next one joins before the one before leaves."""
    async with parent(tmp_path, processes=2) as run:
        await run.wait(run.ready.is_set)
        before = {each[1] for each in run.noted("start")}
        run.supervisor.reload()
        await run.wait(lambda: len(run.noted("stop", "finish")) == 2)
        assert {each[1] for each in run.noted("stop", "finish")} == before
        assert len(run.noted("start")) == 4
        run.supervisor.stop()
        assert await run.ended()


async def test_after_a_reload_that_fails_the_processes_go_on(tmp_path: Path) -> None:
    async with parent(tmp_path) as run:
        await run.wait(run.ready.is_set)
        (tmp_path / "refuse").touch()
        run.supervisor.reload()
        await run.wait(lambda: len(run.noted("start")) == 2)
        assert not run.noted("stop")
        (tmp_path / "refuse").unlink()
        run.supervisor.stop()
        assert await run.ended()


async def test_a_change_of_a_file_reloads(tmp_path: Path) -> None:
    (tmp_path / "code.py").touch()
    async with parent(tmp_path, reload=True) as run:
        await run.wait(run.ready.is_set)
        os.utime(tmp_path / "code.py", ns=(1, 1))
        await run.wait(lambda: run.noted("stop", "finish"))
        assert len(run.noted("start")) == 2


async def test_a_process_that_is_too_large_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not at once, if each begins with so much: that is told, and once."""
    async with parent(tmp_path, memory_mb_max=1) as run:
        told = "the limit of memory is below what a process begins with"
        await run.wait(lambda: told in caplog.text)
        assert len(run.noted("start")) == 1
        monkeypatch.setattr(supervisor, "LASTED_S", 0.0)
        await run.wait(lambda: run.noted("stop", "finish"))
        assert len(run.noted("start")) >= 2
    assert caplog.text.count(told) == 1


async def test_a_process_that_the_system_cannot_begin_ends_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One is killed while none can be begun: the other goes on, and the place is filled again."""
    async with parent(tmp_path, processes=2, start_failures_max=2) as run:
        await run.wait(run.ready.is_set)
        run.python.unlink()
        killed, kept = (int(each[1]) for each in sorted(run.noted("start")))
        os.kill(killed, signal.SIGKILL)
        await run.wait(lambda: caplog.text.count("process does not begin") > 3)
        run.python.symlink_to(sys.executable)
        await run.wait(lambda: len(run.noted("start")) == 3)
        run.supervisor.stop()
        assert await run.ended()
    assert str(kept) in {each[1] for each in run.noted("stop", "finish")}


async def test_a_worker_ends_if_the_system_can_begin_no_process(tmp_path: Path) -> None:
    async with parent(tmp_path, processes=2, start_failures_max=2) as run:
        run.python.unlink()
        with pytest.raises(InvalidState, match="the system cannot begin it: FileNotFoundError"):
            await run.ended()


async def test_places_whose_processes_end_are_filled_though_none_joins(tmp_path: Path) -> None:
    """Two are over their time limit; what begins then joins late, and both places have one."""
    async with parent(tmp_path, "hold", processes=2, time_limit_s=0.3) as run:
        await run.wait(run.ready.is_set)
        (tmp_path / "hold").unlink()
        (tmp_path / "late").touch()
        await run.wait(lambda: sorted(each[0] for each in run.noted("start")) == list("0011"))


async def test_what_one_tells_that_cannot_be_read_hides_nothing_behind_it(tmp_path: Path) -> None:
    async with parent(tmp_path, "babble") as run:
        await run.wait(run.ready.is_set)


@pytest.mark.parametrize("finishes", [True, False])
async def test_a_process_that_has_not_joined_finishes_what_it_has_in_hand(
    tmp_path: Path, finishes: bool
) -> None:
    has, stop_timeout_s = ("finish", PROCESSES_WAIT_S) if finishes else ("hang", 0.5)
    async with parent(tmp_path, "late", "hold", has, stop_timeout_s=stop_timeout_s) as run:
        await run.wait(lambda: run.noted("holds"))
        run.supervisor.stop()
        assert await run.ended() is finishes
    assert run.noted("stop", "finish")


async def test_a_process_that_has_not_joined_yet_holds_up_no_stop(tmp_path: Path) -> None:
    async with parent(tmp_path, "late", "hang") as run:
        await run.wait(lambda: run.noted("start"))
        run.supervisor.stop()
        assert await run.ended()
    assert not run.noted("stop")
