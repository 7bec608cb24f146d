"""What the console says and does when its database fails, and when it is stopped in an act."""

import asyncio
import dataclasses

import pytest
import sqlalchemy
from support.broker import MemoryCluster
from support.console import RunningConsole, fail_writes, running

from vq import aio
from vq.console import app
from vq.console.accounts.accounts import AccountRole
from vq.console.acts import door
from vq.console.acts.door import LongAct, Person
from vq.console.clusters import site
from vq.console.database.database import DatabaseFailed
from vq.console.database.schema import audit, masks
from vq.console.pages.allocation import moves_from
from vq.errors import InvalidArgument, InvalidState
from vq.model import TopicPartition
from vq.testing.waiting import until

PERSON = Person("anna", AccountRole.OPERATOR, "::1")


async def _outcomes(database) -> list[tuple[str, str]]:
    query = sqlalchemy.select(audit.c.act, audit.c.outcome).order_by(audit.c.id)
    return [tuple(each) for each in await database.run(lambda one: one.execute(query).all())]


@pytest.mark.parametrize("error", [DatabaseFailed("locked"), RuntimeError("a defect")])
async def test_the_cluster_is_looked_at_while_measurements_cannot_be_kept(
    cluster: MemoryCluster, database, monkeypatch, error
) -> None:
    failed = []

    def fails(*_arguments) -> None:
        failed.append(1)
        raise error

    monkeypatch.setattr(app, "store_minute", fails)
    monkeypatch.setattr(app.MinuteMeter, "add", lambda _self, values, _now: (60, {"a": [1.0]}))
    monkeypatch.setattr(site, "BROKERS_S", 0.01)
    async with running(cluster, database, open=True):
        await until(lambda: len(failed) > 5)


async def test_a_row_that_is_there_already_is_a_failure_of_the_database(database) -> None:
    """Two consoles on one database may write the same at the same time."""

    def twice(connection) -> None:
        values = {"cluster": "c", "topic": "t"}
        connection.execute(masks.insert().values(**values))
        connection.execute(masks.insert().values(**values))

    with pytest.raises(DatabaseFailed):
        await database.run(twice)


async def test_what_was_done_is_told_although_its_outcome_cannot_be_written(
    console: RunningConsole, monkeypatch
) -> None:
    """Or somebody does it again; the audit has that it was begun."""
    browser = console.browser()
    await browser.get("/c/test/topics/t")
    fail_writes(console, monkeypatch, "Door._end")
    assert (await browser.post("/c/test/topics/t/act", {"act": "close"})).status_code == 303
    topic = await aio.MessageFactory.on_cluster(console.site.cluster).admin.get_topic("t")
    assert not topic.settings.writable
    assert await _outcomes(console.database) == [("close_topic", "begun")]


async def test_a_long_act_that_the_console_did_not_see_the_end_of_has_no_known_outcome(
    cluster: MemoryCluster, database, monkeypatch
) -> None:
    """Stopped in the middle of it: neither begun for ever, nor done."""
    ended = []

    async def on_end(job: LongAct) -> None:
        ended.append(job.error)

    async with running(cluster, database, open=True) as made:
        begun = asyncio.Event()

        async def verify(cluster, topic: str) -> None:
            begun.set()
            await asyncio.Event().wait()

        row = dataclasses.replace(door.OPERATIONS["verify"], function=verify)
        monkeypatch.setitem(door.OPERATIONS, "verify", row)
        await made.app.console.door.start(PERSON, made.site, "verify", "t", on_end=on_end)
        await begun.wait()
    assert [outcome for _, outcome in await _outcomes(database)] == ["unknown"]
    assert len(ended) == 1
    assert "stopped" in ended[0]


async def test_long_acts_that_go_on_have_a_bound(console: RunningConsole) -> None:
    gate = console.app.console.door
    for number in range(door.RUNNING_MAX):
        gate.jobs[-number] = LongAct(-number, "verify", "t", "anna", "test", 1)
    with pytest.raises(InvalidState, match="20"):
        await gate.start(PERSON, console.site, "verify", "t")
    assert await _outcomes(console.database) == []
    gate.jobs.clear()


def test_a_move_is_of_the_partition_that_was_typed() -> None:
    assert moves_from("t/12 b2") == [(TopicPartition("t", 12), "b2")]
    with pytest.raises(InvalidArgument):
        moves_from("t/0000000001 b2")
