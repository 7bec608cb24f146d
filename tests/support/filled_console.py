"""A console over a cluster in memory that has something to show on every page."""

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from support.broker import MemoryCluster
from support.client import factory_of
from support.console import PASSWORD, RunningConsole, running
from support.protobuf import SHOP, order_class

from vq import Retry, aio
from vq.client.config import ConsumerConfig
from vq.console.accounts.accounts import AccountRole, add_account
from vq.console.clusters.history import store_minute
from vq.console.clusters.kept import KeptReport
from vq.console.clusters.measured import BUSY, BYTES_IN, DISK_USED, LAG_BYTES, LAG_S, MESSAGES_IN
from vq.console.database.database import Database
from vq.coordination.groups.groups import UnknownGroup
from vq.model import Message
from vq.operations.messages.settling import LetterState
from vq.testing.waiting import WAIT_S, until, until_true

#: The account that pictures are taken with.
NAME = "anna"
_HISTORY_MINUTES = 6 * 60
_LAG_ROW = {
    "partitions": 8,
    "stopped": 1,
    "stalled": 0,
    "warning": 2,
    "unknown": 0,
    "lag_bytes": 2_345_678,
    "lag_messages": 12_345,
    "lag_s": 321.5,
}
_STORED_ROW = {
    "bytes": 5_234_567_890,
    "messages": 12_345_678,
    "bytes_per_day": 734_003_200,
    "messages_per_day": 1_700_000,
}
REPORTS: dict[str, dict[str, Any]] = {
    "lag": {
        "snapshot": "2026-11-28T12:00:00Z",
        "rollups": {
            "group": [{"name": "billing", **_LAG_ROW}],
            "topic": [{"name": "orders", **_LAG_ROW}],
        },
        "offenders": [
            {
                **_LAG_ROW,
                "verdict": verdict,
                "group": "billing",
                "topic": "orders",
                "partition": number,
                "owner": "worker-1",
                "trend": trend,
                "cause": "no_members",
            }
            for number, (verdict, trend) in enumerate([("stopped", "rising"), ("ok", None)])
        ],
        "silent": [],
    },
    "capacity": {
        "snapshot": "2026-11-28T12:00:00Z",
        "disks": [
            {
                "verdict": verdict,
                "group": "b1",
                "node": node,
                "directory": "/var/lib/vq",
                "bytes_used": 812_000_000_000,
                "bytes_total": 1_000_000_000_000,
                "growth_bytes_per_day": 9_500_000_000,
                "full_in_days": 19.8,
                "reason": "grows by 9.5 GB a day",
            }
            for node, verdict in (("n1", "fills"), ("n2", "ok"))
        ],
        "topics": [{"topic": "orders", "partitions": 4, **_STORED_ROW}],
        "partitions": [
            {
                "verdict": "hot",
                "topic": "orders",
                "partition": 0,
                "group": "b1",
                "reason": "3.1 times the mean of its topic",
                **_STORED_ROW,
            }
        ],
        "what_ifs": [
            {
                "topic": "orders",
                "action": "retention",
                "hours": 72,
                "group": "b1",
                "bytes_freed": 90_000_000_000,
            }
        ],
        "plan": {
            "done": False,
            "moves": [
                {
                    "topic": "orders",
                    "partition": 0,
                    "from": "b1",
                    "to": "b2",
                    "bytes_per_day": 734_003_200,
                    "reason": "even",
                    "at_offset": None,
                }
            ],
        },
        "silent": [{"group": "b2", "node": "n1", "error": "connection refused"}],
    },
    "audit": {
        "snapshot": "2026-11-28T12:00:00Z",
        "sound": True,
        "findings": [],
        "partitions": [
            {"verdict": "ok", "topic": "orders", "partition": each, "findings": 0, **_STORED_ROW}
            for each in range(2)
        ],
        "silent": [],
    },
}


@asynccontextmanager
async def filled_console(
    cluster: MemoryCluster, database: Database
) -> AsyncIterator[RunningConsole]:
    """Run a console with accounts, whose cluster has been used in every way a page shows."""
    await cluster.start("b2")
    await cluster.create_topic("orders", partitions=4)
    await cluster.create_topic("payments", partitions=2)
    await cluster.create_topic("empty", partitions=1)
    await database.run(lambda each: add_account(each, NAME, AccountRole.ADMIN, PASSWORD))
    await database.run(lambda each: add_account(each, "bob", AccountRole.VIEWER, PASSWORD))
    async with AsyncExitStack() as stack:
        factory = await stack.enter_async_context(factory_of(cluster, seed=5))
        await _send(factory)
        for count, seed in enumerate((6, 7), 1):  # two members, which stay
            other = await stack.enter_async_context(factory_of(cluster, seed=seed))
            await stack.enter_async_context(reading(other, "billing", "orders"))
            await shared_out(factory, "billing", count)
        async with reading(factory, "shipping", "orders"):
            await shared_out(factory, "shipping", 1)
        await _send(factory)
        async with await factory.create_producer() as producer:
            for number in range(2):
                content = json.dumps({"charge": number, "account": "unknown"}).encode()
                await producer.send(Message("payments", content, key=f"charge-{number}"))
        await give_up(factory, "desk", "payments", 2)
        await stack.enter_async_context(working(factory, "printers", "orders"))
        async with await factory.create_producer() as producer:
            await producer.send(Message("payments", _payment(), key=8))
        console = await stack.enter_async_context(running(cluster, database))
        await database.run(_history)
        for number, (kind, report) in enumerate(REPORTS.items(), 1):
            made_ms = int(time.time() * 1000)
            text = json.dumps(report)
            console.site.reports.keep(KeptReport(number, kind, NAME, made_ms, text))
        await _act(console)
        yield console


async def _send(factory: aio.MessageFactory) -> None:
    async with await factory.create_producer() as producer:
        for number in range(30):
            order = {"order": number, "buyer": "Ada Lovelace", "total": 12.5 * number}
            await producer.send(
                Message(
                    "orders",
                    json.dumps(order).encode(),
                    key=f"customer-{number % 7}",
                    tag="new" if number % 3 else "changed",
                    headers={"trace": f"4bf92f3577b34da6-{number}"},
                )
            )
        await producer.send(Message("orders", b"later", key="customer-1", delay_s=3600.0))
        xid = producer.xid(1, f"order-{time.time_ns()}", "web")
        await producer.tpc_begin(xid)
        await producer.send(Message("payments", _payment(), key=7))
        await producer.tpc_prepare()


def _payment() -> bytes:
    order = order_class()(number=7, state=1, notes={"by": "card"})
    order.lines.add(article="book", count=2)
    order.sent.GetCurrentTime()
    newer = b"\xa2\x01\x05extra"  # a field that the descriptor set does not know
    return bytes(order.SerializeToString()) + newer


@asynccontextmanager
async def reading(factory: aio.MessageFactory, group: str, topic: str) -> AsyncIterator[None]:
    config = ConsumerConfig(group=group, max_wait_s=0.2)
    async with await factory.create_consumer(config) as consumer:

        async def read() -> None:
            async for _ in consumer.subscribe(topic):
                pass

        task = asyncio.create_task(read())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def shared_out(factory: aio.MessageFactory, group: str, members: int) -> None:
    """Return once so many members have all partitions between them."""

    async def owners() -> set[str | None]:
        with contextlib.suppress(UnknownGroup):
            described = await factory.admin.describe_group(group)
            return {each.owner for each in described.partitions} or {None}
        return {None}

    async with asyncio.timeout(WAIT_S):
        while None in (found := await owners()) or len(found) < members:
            await asyncio.sleep(0.02)


@asynccontextmanager
async def working(factory: aio.MessageFactory, group: str, topic: str) -> AsyncIterator[None]:
    """Have a shared group be at messages of a topic, the first of which has failed."""
    failed = busy = False
    over = asyncio.Event()

    async def handle(message: Message) -> Retry | None:
        nonlocal failed, busy
        if not failed:
            failed = True
            return Retry(after_s=3600.0)
        busy = True
        await over.wait()
        return None

    config = ConsumerConfig(group=group, model="shared", workers=4, lease_s=600.0)
    async with await factory.create_consumer(config) as consumer:
        await consumer.subscribe(topic, listener=handle).start()

        async def is_at_them() -> bool:
            found = (await factory.admin.describe_shared_group(group)).partitions
            return busy and any(each.waiting for each in found)

        await until_true(is_at_them)
        try:
            yield
        finally:
            over.set()


async def give_up(factory: aio.MessageFactory, group: str, topic: str, count: int) -> None:
    """Have a group read a topic until it has given up so many messages."""

    async def handle(message: Message) -> None:
        raise ValueError("no such account")

    async def open_letters() -> int:
        found = await factory.admin.list_dead_letters()
        return sum(each.letters.get(LetterState.OPEN, 0) for each in found)

    config = ConsumerConfig(group=group, max_attempts=1, on_failure="dead-letter", max_wait_s=0.2)
    async with await factory.create_consumer(config) as consumer:
        consumer.subscribe(topic, 64 * 1024, handle)
        await consumer.start()
        async with asyncio.timeout(WAIT_S):
            while await open_letters() < count:
                await asyncio.sleep(0.02)


def _history(connection: Any) -> None:
    """Measurements of six hours."""
    now_s = int(time.time()) // 60 * 60
    for back in range(_HISTORY_MINUTES, 0, -1):
        wave = 1.5 + math.sin(back / 40)
        values = {
            BYTES_IN: 900_000 * wave,
            MESSAGES_IN: 4_000 * wave,
            f"{LAG_BYTES} billing": 400_000 * wave,
            f"{LAG_S} billing": 30 * wave,
        }
        for place, group in enumerate(("b1", "b2"), 1):
            values |= {
                f"{BYTES_IN} {group}": 450_000 * wave * place,
                f"{MESSAGES_IN} {group}": 2_000 * wave * place,
                f"{DISK_USED} {group}/n1": 0.2 * place,
                f"{BUSY} {group}/n1": 0.1 * wave * place,
            }
        store_minute(
            connection, "test", now_s - back * 60, {name: [each] for name, each in values.items()}
        )


async def _act(console: RunningConsole) -> None:
    """Have acts done by forms, which the audit, the list of long acts and the plans show."""
    browser = console.browser()
    await browser.log_in(NAME)
    await browser.get("/c/test/topics/orders")
    form = {"content": '{"order": "by hand"}', "key": "customer-1"}
    await browser.post("/c/test/topics/orders/send", form)
    await browser.post("/c/test/settings/mask", {"topic": "salaries", "act": "mask"})
    await browser.post("/c/test/topics/nowhere/send", form)
    await browser.get("/c/test/allocation")
    await until(lambda: console.site.allocation is not None)
    await browser.post("/c/test/allocation/plan", {"how": "advise"})
    await browser.post("/c/test/dead-letters/desk/resend", {"rate": "100"})
    await browser.post("/c/test/archive/act", {"act": "run"})
    document = (await browser.get("/c/test/definitions/file")).text
    changed = document.replace('"retention_hours": 72', '"retention_hours": 168')
    await browser.post("/c/test/definitions", {"document": changed})
    acts = "/c/test/descriptors/act"
    upload = {"csrf": browser.csrf, "act": "upload", "name": "payments"}
    await browser.http.post(acts, data=upload, files={"file": ("payments.desc", SHOP)})
    kind = {"topic": "payments", "descriptors": "payments", "type": "shop.Order"}
    await browser.post(acts, {"act": "choose", **kind})
