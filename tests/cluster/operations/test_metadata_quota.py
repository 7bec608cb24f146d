"""The quota ``metadata``: a user makes and moves so many partitions in an hour, by the records."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.users import add

from vq import aio
from vq.coordination.leases import acts
from vq.coordination.tree.values.audit import ActOutcome, ActRecord
from vq.errors import InvalidArgument, InvalidState, Throttled
from vq.model import TopicSettings
from vq.operations.base.acts import acting_for
from vq.operations.base.metadata_quota import pause_ms

pytestmark = pytest.mark.virtual_time
HOUR_S = 3_600


@pytest.fixture
async def anna() -> AsyncIterator[tuple[aio.MessageFactory, aio.MessageFactory]]:
    """What an operator uses, and what a user does; it may make 10 partitions in an hour."""
    async with memory_cluster() as cluster:
        await cluster.start(authentication="required")
        await cluster.start("b2", authentication="required")
        await add(cluster, "anna", "secret")
        async with factory_of(cluster, operator=True) as operator, of_anna(cluster) as anna:
            await operator.admin.set_quotas(["user:anna metadata=10"])
            yield operator, anna


def of_anna(cluster: MemoryCluster) -> Any:
    return factory_of(cluster, operator=True, user="anna", password="secret", seed=7)


async def make(factory: aio.MessageFactory, name: str, partitions: int) -> None:
    await factory.admin.create_topic(name, TopicSettings(partitions=partitions))


async def test_what_is_above_the_limit_is_refused_until_earlier_acts_are_an_hour_old(
    anna: tuple[aio.MessageFactory, aio.MessageFactory],
) -> None:
    operator, user = anna
    now_ms = user.admin.cluster.clock.wall_ms()
    for ago_s, partitions in ((HOUR_S + 5, 9), (HOUR_S - 10, 6)):
        then_ms = now_ms - ago_s * 1_000
        earlier = ActRecord(
            time_ms=then_ms, who="w", act="create_topic", charged="anna", partitions=partitions
        )
        path = ActRecord.path(f"{then_ms:013d}-000000-abcdef")
        await operator.admin.cluster.coordinator.create(path, earlier.encode())
    await make(user, "a", 4)
    with pytest.raises(Throttled, match="metadata=10 of user anna is used up: 1 more") as refused:
        await make(user, "b", 1)
    assert 9_000 < refused.value.details["delay_ms"] <= 10_000
    assert [each.name for each in await operator.admin.list_topics()] == ["a"]
    failed = (await operator.admin.list_acts())[0]
    assert (failed.subject, failed.outcome) == ("b", "failed")
    assert "Throttled" in failed.error
    await make(operator, "c", 50)  # who proves the cluster's secret, and names no user
    await asyncio.sleep(11)
    await make(user, "b", 6)  # what was refused did not count, and the first act is an hour old
    with pytest.raises(Throttled):
        await make(user, "d", 1)


async def test_only_what_its_outcome_calls_refused_does_not_count(
    anna: tuple[aio.MessageFactory, aio.MessageFactory],
) -> None:
    """Whatever its error says; an outcome of an earlier vq, which does not say it, counts."""
    operator, user = anna
    coordinator, then_ms = operator.admin.cluster.coordinator, user.admin.cluster.clock.wall_ms()
    earlier = (
        b'{"v": 1, "time_ms": 5, "outcome": "failed", "after": "", '
        b'"error": "Throttled: the quota metadata=10 of user anna is used up"}'
    )
    refused = ActOutcome(time_ms=5, outcome="failed", error="in other words", refused=True)
    for number, (partitions, outcome) in enumerate(((4, earlier), (9, refused.encode()))):
        act = f"{then_ms - 5:013d}-{number:06d}-abcdef"
        record = ActRecord(
            time_ms=then_ms - 5, who="w", act="x", charged="anna", partitions=partitions
        )
        await coordinator.create(ActRecord.path(act), record.encode())
        await coordinator.create(ActOutcome.path(act), outcome)
    with pytest.raises(Throttled):
        await make(user, "a", 7)
    await make(user, "a", 6)
    told = await acts.read_acts(coordinator, (await acts.list_acts(coordinator))[-2:])
    assert [each.outcome and each.outcome.refused for each in told] == [True, False]


async def test_all_ways_to_make_and_move_partitions_count(
    anna: tuple[aio.MessageFactory, aio.MessageFactory],
) -> None:
    operator, user = anna
    await operator.admin.set_quotas(["user:anna metadata=100"])
    await make(user, "a", 1)
    await user.admin.alter_topic("a", partitions=3, retention_hours=5)
    await user.admin.add_partitions("a", 2)
    await user.admin.create_topic("a", TopicSettings(partitions=9), if_not_exists=True)
    placed = await user.admin.placements("a")
    numbers = [each.partition for each in placed if each.writer_group != "b2"]
    await user.admin.move(iter(await user.admin.plan_moves("a", numbers, "b2")))
    document = await operator.admin.export_definitions()
    await operator.admin.delete_topic("a", now=True)
    await user.admin.import_definitions(await user.admin.plan_import_definitions(document))
    await user.admin.alter_topic("a", retention_hours=6)
    used = 10 + len(numbers)
    await operator.admin.set_quotas([f"user:anna metadata={used}"])
    with pytest.raises(Throttled, match="1 more partitions"):
        await make(user, "z", 1)
    await user.admin.alter_topic("a", retention_hours=7)  # makes none
    with pytest.raises(InvalidArgument, match="99 partitions are more than the quota"):
        await make(user, "z", 99)
    await operator.admin.set_quotas([f"user:anna metadata={used + 1}"])
    await make(user, "z", 1)


async def test_a_person_at_a_console_is_a_user_of_that_name(
    anna: tuple[aio.MessageFactory, aio.MessageFactory],
) -> None:
    """The console holds the identity, so nobody goes around the quota there, nor changes it."""
    operator, user = anna
    await operator.admin.set_quotas(["user:* metadata=3"])
    with acting_for("carla from 10.0.0.9", "carla"):
        await make(operator, "a", 3)
        with pytest.raises(Throttled, match="user carla"):
            await make(operator, "b", 1)
        for change in ("user:carla metadata=9", "user:* requests=1 metadata=unlimited"):
            with pytest.raises(InvalidState, match="carla has the quota metadata=3"):
                await operator.admin.set_quotas([change])
        for removed in ("user:*", "user:* metadata"):
            with pytest.raises(InvalidState, match="somebody without one can"):
                await operator.admin.remove_quotas([removed])
        await operator.admin.set_quotas(["user:carla requests=9"])
    await make(user, "b", 4)


@pytest.mark.parametrize(
    ("limit", "partitions", "used", "pause"),
    [
        (10, 10, [], 0),
        (10, 1, [(0, 9)], 0),
        (10, 1, [(0, 10)], HOUR_S * 1000 - 5_000),
        (10, 5, [(0, 2), (1_000, 2), (2_000, 4)], HOUR_S * 1000 - 4_000),
        (0.5, 0.5, [(0, 1)], HOUR_S * 1000 - 5_000),
    ],
)
def test_the_wait_ends_when_enough_is_an_hour_old(
    limit: float, partitions: int, used: list[tuple[int, int]], pause: int
) -> None:
    assert pause_ms(limit, partitions, used, now_ms=5_000) == pause
