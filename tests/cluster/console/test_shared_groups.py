"""The page of a shared group: what is open of it."""

import json
from typing import Any

import pytest
from support.broker import MemoryCluster
from support.console import RunningConsole
from support.consumers import send
from support.filled_console import working

from vq import ConsumerConfig, aio
from vq.admin import Goal, Target
from vq.model import Message

PAGE = "/c/test/groups/printers/shared"


async def rows(console: RunningConsole) -> list[dict[str, Any]]:
    """Return the table as programs get it."""
    answer = await console.browser().get(f"{PAGE}?export=json")
    found: list[dict[str, Any]] = json.loads(answer.text)
    return found


async def test_it_shows_what_is_open_and_with_whom(
    console: RunningConsole, factory: aio.MessageFactory
) -> None:
    await send(factory, *(Message("t", b"%d" % each, key=0) for each in range(3)))
    async with working(factory, "printers", "t"):
        answer = await console.browser().get(PAGE)
        assert answer.status_code == 200, answer.text
        assert "at most 1,000,000, and 20,000 of a partition" in answer.text
        found = [each for each in await rows(console) if each["cursor"]]
        assert [(e["open"], e["held"], e["waiting"], e["low"]) for e in found] == [(3, 2, 1, 0)]
        group = (await console.browser().get("/c/test/groups/printers")).text
        assert f'href="{PAGE}"' in group
    assert [each["held"] for each in await rows(console) if each["cursor"]] == [0]


async def test_it_says_why_it_has_nothing_to_show(
    console: RunningConsole,
    factory: aio.MessageFactory,
    cluster: MemoryCluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A group that is not there, is not shared, has had nothing, or whose journal is silent."""
    browser = console.browser()
    assert (await browser.get("/c/test/groups/nobody/shared")).status_code == 404
    async with await factory.create_consumer(ConsumerConfig(group="plain")) as consumer:
        await consumer.subscribe("t").start()
    other = await browser.get("/c/test/groups/plain/shared")
    assert other.status_code == 409
    assert "is clustering" in other.text
    assert 'groups/plain/shared"' not in (await browser.get("/c/test/groups/plain")).text
    planned = await factory.admin.plan_create_group(
        "printers", {"t": ""}, Target(goal=Goal.EARLIEST), model="shared", mode="concurrent"
    )
    await factory.admin.make_group(planned)
    assert "Nothing was delivered yet." in (await browser.get(PAGE)).text
    monkeypatch.setattr("vq.operations.groups.shared.ASK_S", 0.1)
    await cluster.nodes["b1"].stop()
    silent = await browser.get(PAGE)
    assert (silent.status_code, "Did not answer:" in silent.text) == (200, True)
