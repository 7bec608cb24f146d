"""Archives that only remember what they were given, and runs for tests to make."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

import pytest

from vq.broker.history import archive_runs
from vq.broker.history.archive_runs import Archiver
from vq.broker.node import BrokerNode
from vq.broker.partition.channel import Channel
from vq.coordination.leases.runs import make_run, read_result
from vq.coordination.tree.coordinator import Coordinator
from vq.coordination.tree.values.runs import RunOrder, RunResult
from vq.store.log.block import Block
from vq.testing.waiting import until_true

HOUR_MS = 3_600_000


class Done(NamedTuple):
    size_bytes: int
    archive_bytes: int


class NotedArchives:
    """Stands for the archives of one node.

    Attributes:
        done: What became archives: partition and start offset, in order.
        bad: Start offsets of blocks that cannot be archived, with the error.
        before: Called before each.
        gate: Is waited for before each but the first.
    """

    def __init__(self) -> None:
        self.blocks: set[Block] = set()
        self.done: list[tuple[int, int]] = []
        self.to: set[str | None] = set()
        self.bad: dict[int, Exception] = {}
        self.before: Callable[[], object] = lambda: None
        self.gate = asyncio.Event()
        self.gate.set()

    async def archive(
        self, channel: Channel, block: Block, to: str | None, still: Callable[[], bool]
    ) -> Done:
        if self.done:
            await self.gate.wait()
        self.before()
        assert still()
        assert block in channel.log.closed_blocks
        assert block.end_offset <= channel.high_watermark
        if block.start_offset in self.bad:
            raise self.bad[block.start_offset]
        self.blocks.add(block)
        self.to.add(to)
        self.done.append((channel.partition.partition, block.start_offset))
        return Done(block.length, block.length // 4)


def noted(node: BrokerNode, monkeypatch: pytest.MonkeyPatch) -> NotedArchives:
    """Have a node only note what it archives."""
    archives = NotedArchives()
    logs = node.parts.partitions.logs
    monkeypatch.setattr(logs.archiving, "archive", lambda *given: archives.archive(*given))
    before = archive_runs.is_archived
    monkeypatch.setattr(
        archive_runs, "is_archived", lambda block: block in archives.blocks or before(block)
    )
    return archives


def archiver_of(node: BrokerNode) -> Archiver:
    return node.parts.upkeep.archiver


def run_of(node: BrokerNode, hours: float = 0.0, **values: object) -> RunOrder:
    """A run as of some hours from now."""
    now_ms = node.parts.context.clock.wall_ms()
    as_of_ms = now_ms + int(hours * HOUR_MS)
    given = {"as_of_ms": as_of_ms, "started_ms": now_ms, "by": "test", **values}
    return RunOrder(**{"nonce": repr(sorted(given.items())), **given})


async def result_of(coordinator: Coordinator, number: int, node: BrokerNode) -> RunResult:
    """Wait until a node has ended a run."""
    found: list[RunResult | None] = [None]

    async def has_ended() -> bool:
        found[0] = await read_result(coordinator, number, node.config.group, node.config.node)
        return found[0] is not None and found[0].has_ended

    await until_true(has_ended)
    assert found[0] is not None
    return found[0]


async def done(
    coordinator: Coordinator, node: BrokerNode, hours: float = 0.0, **values: object
) -> RunResult:
    """Make a run as of some hours from now; return what the node did."""
    number = await make_run(coordinator, run_of(node, hours, **values))
    return await result_of(coordinator, number, node)
