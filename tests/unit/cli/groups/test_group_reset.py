"""``vq group reset``: the plan, and what it says when it is carried out."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from vq.cli.groups import group_reset
from vq.coordination.tree.values.consumers import CommittedOffset
from vq.model import TopicPartition
from vq.operations.base import connect
from vq.operations.groups import resets
from vq.operations.groups.resets import Reset


def test_a_plan_that_is_carried_out_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With `--yes` the last line was the plan, as if nothing had been done."""
    after = CommittedOffset(offset=9)
    carried: list[Any] = []

    @asynccontextmanager
    async def client(_: object) -> AsyncIterator[None]:
        yield

    async def plan(*_: Any, **__: Any) -> list[Reset]:
        return [Reset(TopicPartition("t", 0), None, after, repeats=5)]

    async def reset(_: object, name: str, planned: Any, *, fence: bool) -> None:
        carried.append((name, planned[0].after, fence))

    async def live_members(_: object, name: str) -> list[str]:
        return ["m1"]

    monkeypatch.setattr(resets, "live_members", live_members)
    monkeypatch.setattr(connect, "cluster_client", client)
    monkeypatch.setattr(resets, "plan_reset", plan)
    monkeypatch.setattr(resets, "reset", reset)
    group_reset.reset.main(["g", "--to-earliest"], standalone_mode=False)
    assert carried == []
    told = capsys.readouterr().err.splitlines()
    assert told[-2:] == [
        "it has members, stop them first, or give --fence: m1",
        "nothing was changed; add --yes to do it",
    ]
    group_reset.reset.main(["g", "--to-earliest", "--fence"], standalone_mode=False)
    assert "it has members" not in capsys.readouterr().err
    group_reset.reset.main(["g", "--to-earliest", "--yes"], standalone_mode=False)
    assert carried == [("g", after, False)]
    assert capsys.readouterr().err.endswith("done: g goes on there\n")
