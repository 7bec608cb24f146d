"""Looks at lags that overtake each other."""

import asyncio
import dataclasses
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.console import running
from support.consumers import send

from vq import aio
from vq.admin import Target
from vq.console.clusters import site
from vq.model import Message
from vq.testing.waiting import until


async def test_a_slow_turn_does_not_show_an_older_lag_again(
    cluster: MemoryCluster, database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read offsets before a page had the group looked at, and ends after that."""
    real, ends = site.look_at_groups, [asyncio.Event(), asyncio.Event()]
    turns: list[asyncio.Event] = []
    armed = False

    async def slow(client: Any, *, pace: Any, **options: Any) -> Any:
        held = None
        if armed and pace is not None and len(turns) < len(ends):
            held = ends[len(turns)]
        found = await real(client, pace=pace, **options)
        if held is not None:
            turns.append(held)
            await held.wait()
        return dataclasses.replace(found, time_ms=client.clock.wall_ms())

    monkeypatch.setattr(site, "look_at_groups", slow)
    for name in ("LAGS_S", "LIVE_S", "_TURN_S"):
        monkeypatch.setattr(site, name, 0.01)
    async with running(cluster, database, open=True) as made:
        factory = aio.MessageFactory.on_cluster(made.site.cluster)
        admin, facts = factory.admin, made.site.facts
        await admin.make_group(
            await admin.plan_create_group("g", {"t": "*"}, Target(goal="earliest"))
        )
        await until(lambda: "g" in facts.lags)
        armed = True
        await until(lambda: len(turns) == 1)
        await send(factory, Message("t", b"later"))
        made.site.want(["g"])
        await until(lambda: facts.lags["g"].lag_messages == 1)
        seen = facts.lags["g"]
        ends[0].set()
        await until(lambda: len(turns) == 2)
        assert facts.lags["g"] is seen
        ends[1].set()
