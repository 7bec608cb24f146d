"""A pass over partitions: the order, the slices, errors, and what is told."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from vq.broker.logs import block_pass
from vq.broker.logs.block_pass import BlockPass, TopicWork, Visitor
from vq.clock import ManualClock
from vq.errors import Busy
from vq.model import TopicPartition

pytestmark = pytest.mark.virtual_time


class Partition:
    """Stands for a channel."""

    def __init__(self, topic: str, number: int) -> None:
        self.partition = TopicPartition(topic, number)

    def __str__(self) -> str:
        return str(self.partition)


class Noted(Visitor):
    """A visitor that has so much to do at each partition, and takes a second for each visit."""

    what = "a test"

    def __init__(self, todo: dict[str, Any], clock: ManualClock) -> None:
        self.todo = todo
        self.visits: list[str] = []
        self.told: list[tuple[str, int, str]] = []
        self.unwanted: set[str] = set()
        self._clock = clock

    def wants(self, channel: Any) -> bool:
        return str(channel) not in self.unwanted

    async def visit(self, channel: Any, work: TopicWork) -> bool:
        name = str(channel)
        self.visits.append(name)
        self._clock.advance(1.0)
        if isinstance(self.todo[name], Exception):
            raise self.todo[name]
        self.todo[name] -= 1
        work.done["blocks"] += 1
        return self.todo[name] > 0

    def tell(self, work: TopicWork) -> None:
        self.told.append((work.topic, work.done["blocks"], work.problem))


def given(**todo: Any) -> tuple[Noted, list[Any], ManualClock]:
    """A visitor, the partitions, and the clock; ``t_0`` stands for partition 0 of topic t."""
    names = [name.split("_") for name in todo]
    channels = [Partition(topic, int(number)) for topic, number in names]
    clock = ManualClock()
    return Noted({name.replace("_", "-"): n for name, n in todo.items()}, clock), channels, clock


async def test_each_partition_is_visited_until_it_has_no_more_to_do() -> None:
    """One after the other; what was done is told once for each topic."""
    visitor, channels, clock = given(t_0=2, t_1=1, u_0=3)
    assert await BlockPass(visitor, channels, clock).go_on()
    assert visitor.visits == ["t-0", "t-0", "t-1", "u-0", "u-0", "u-0"]
    assert visitor.told == [("t", 3, ""), ("u", 3, "")]


async def test_a_pass_goes_on_in_slices() -> None:
    """A topic is told when it ends, whatever slices it took."""
    visitor, channels, clock = given(t_0=2, t_1=3)
    a_pass = BlockPass(visitor, channels, clock)
    seen = []
    while not await a_pass.go_on(2.0):
        seen.append(len(visitor.visits))
    assert seen == [2, 4]
    assert visitor.told == [("t", 5, "")]
    assert await a_pass.go_on(2.0)
    assert len(visitor.visits) == 5


async def test_a_slice_makes_one_visit_at_least() -> None:
    visitor, channels, clock = given(t_0=2)
    a_pass = BlockPass(visitor, channels, clock)
    assert not await a_pass.go_on(0.0)
    assert await a_pass.go_on(0.0)


@pytest.mark.parametrize(
    ("error", "text"),
    [(Busy("full"), "t-0: full"), (OSError("broken"), "t-0: broken"), (KeyError("x"), "KeyError")],
)
async def test_an_error_at_one_partition_keeps_no_other_waiting(
    error: Exception, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one is told with its topic; one that nobody expected is logged whole."""
    visitor, channels, clock = given(t_0=error, t_1=1, t_2=OSError("second"), u_0=1)
    assert await BlockPass(visitor, channels, clock).go_on()
    assert visitor.visits == ["t-0", "t-1", "t-2", "u-0"]
    assert [each[:2] for each in visitor.told] == [("t", 1), ("u", 1)]
    assert text in visitor.told[0][2]
    assert "second" not in visitor.told[0][2]
    assert visitor.told[1][2] == ""
    assert ("work on blocks failed" in caplog.text) == isinstance(error, KeyError)


async def test_a_partition_that_is_not_wanted_any_more_is_left() -> None:
    """It may have been closed, or lost its master, between two visits."""
    visitor, channels, clock = given(t_0=5, t_1=1)
    a_pass = BlockPass(visitor, channels, clock)
    await a_pass.go_on(2.0)
    visitor.unwanted.add("t-0")
    await a_pass.go_on()
    assert visitor.visits == ["t-0", "t-0", "t-1"]


async def test_others_get_the_node_between_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the visitor says while there is work, and a turn of the loop now and then."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(block_pass, "asyncio", SimpleNamespace(sleep=sleep))
    visitor, channels, clock = given(**{f"t_{number}": 1 for number in range(200)}, u_0=3)
    visitor.pause_s = 0.5
    await BlockPass(visitor, channels, clock).go_on()
    assert pauses.count(0.5) == 2
    assert pauses.count(0) == 203 // block_pass.VISITS_PER_TURN


async def test_a_pass_that_is_cancelled_visits_nothing_more() -> None:
    visitor, channels, clock = given(t_0=3)
    visitor.pause_s = 10.0
    task = asyncio.create_task(BlockPass(visitor, channels, clock).go_on())
    await asyncio.sleep(1.0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert visitor.visits == ["t-0"]
