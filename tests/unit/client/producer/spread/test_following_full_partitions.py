"""Partitions on full disks are passed by for a while."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from vq.client.producer.spread.following import FULL_S, FullPartitions
from vq.model import TopicPartition

pytestmark = pytest.mark.virtual_time


async def test_a_partition_is_passed_by_until_a_while_after_its_last_refusal() -> None:
    loop = asyncio.get_running_loop()
    shown: list[tuple[str, set[int]]] = []
    clock: Any = SimpleNamespace(monotonic=loop.time)

    def topic(name: str) -> Any:
        return SimpleNamespace(pass_by=lambda full: shown.append((name, set(full))))

    full = FullPartitions(clock, {"t": topic("t"), "u": topic("u")})
    full.note(TopicPartition("deleted", 1))
    full.note(TopicPartition("t", 1))
    full.note(TopicPartition("u", 1))
    await asyncio.sleep(1)
    full.note(TopicPartition("t", 3))
    for _ in range(3):
        full.note(TopicPartition("t", 1))
    assert shown == [("t", {1}), ("u", {1}), ("t", {1, 3})], "each change is shown once"
    await asyncio.sleep(FULL_S - 0.9)
    assert shown[3:] == [("u", set())]
    await asyncio.sleep(1)
    assert ("t", set()) in shown[4:]
    del shown[:]
    full.note(TopicPartition("t", 1))
    full.stop()
    await asyncio.sleep(2 * FULL_S)
    assert shown == [("t", {1})]
