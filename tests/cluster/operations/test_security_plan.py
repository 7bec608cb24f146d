"""A plain cluster is closed by what the plan says, and nothing is refused on the way."""

import shlex
from collections.abc import AsyncIterator

import pytest
from support.access import allow
from support.broker import MemoryCluster, memory_cluster
from support.client import factory_of
from support.users import add

from vq import aio
from vq.broker.security import authority
from vq.errors import NotAuthorized
from vq.model import Message
from vq.operations.security.security_plan import SecurityPlan, StepState
from vq.remoting import wire_pb2 as wire
from vq.remoting.broker_connection import connect
from vq.remoting.format import Command
from vq.testing.waiting import WAIT_S, until_true

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def operator() -> AsyncIterator[tuple[MemoryCluster, aio.MessageFactory]]:
    """A cluster with one topic, and what an operator uses."""
    async with memory_cluster() as cluster, factory_of(cluster, operator=True) as factory:
        await cluster.start()
        await cluster.create_topic("orders", partitions=1)
        yield cluster, factory


async def restart(cluster: MemoryCluster, **settings: str) -> None:
    await cluster.nodes["b1"].stop()
    await cluster.start("b1", **settings)


def state(plan: SecurityPlan, name: str) -> StepState:
    return next(each.state for each in plan.steps if each.name == name)


async def planned(factory: aio.MessageFactory) -> SecurityPlan:
    """Return the plan once the broker tells."""
    found: list[SecurityPlan] = []

    async def told() -> bool:
        found[:] = [await factory.admin.plan_security()]
        return not found[0].unknown

    await until_true(told)
    return found[0]


async def test_the_rules_that_it_proposes_are_the_ones_that_are_needed(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    """Users send and read; permissive carries it out; then the rules are enforced."""
    cluster, factory = operator
    await add(cluster, "anna", "secret")
    assert state(await planned(factory), "tls") is StepState.NEXT
    await restart(cluster, authentication="optional")
    async with factory_of(cluster, seed=7, client_id="shop") as anonymous:
        await (await anonymous.create_producer()).send(Message("orders", b"x"))
        plan = await planned(factory)
        assert [each.client_id for each in plan.anonymous] == ["shop"]
    await restart(cluster, authentication="required", authorization="permissive")
    async with factory_of(cluster, user="anna", password="secret", seed=8) as anna:
        producer = await anna.create_producer()
        for _ in range(3):
            await producer.send(Message("orders", b"x"))
        await anna.admin.bounds("orders")
        plan = await planned(factory)
        assert plan.anonymous == ()
        assert state(plan, "users") is StepState.DONE
        rules = next(each for each in plan.steps if each.name == "rules")
        assert rules.commands == ("vq acl add user:anna write topic:orders",)
        for each in rules.commands:
            subject, rights, resource = shlex.split(each)[3:]
            await factory.admin.add_access_rules([f"allow {subject} {rights} {resource}"])

        async def nothing_is_missing() -> bool:
            return not (await factory.admin.plan_security()).missing

        await until_true(nothing_is_missing)
        await restart(cluster, authentication="required", authorization="enforced")
        await producer.send(Message("orders", b"x"))
        assert state(await planned(factory), "rules") is StepState.DONE


async def test_only_who_manages_the_cluster_is_told_of_others(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    cluster, _ = operator
    await restart(cluster, authorization="enforced")
    await allow(cluster, "allow anonymous describe cluster")
    connection = await connect(
        cluster.network.at("client"),
        cluster.nodes["b1"].address,
        client_id="test",
        cluster="test",
        timeout=WAIT_S,
        on_close=lambda _: None,
    )
    await connection.request(Command.STATUS, wire.StatusRequest(), timeout=WAIT_S)
    asked = wire.StatusRequest(with_security=True)
    with pytest.raises(NotAuthorized, match="manage cluster"):
        await connection.request(Command.STATUS, asked, timeout=WAIT_S)
    connection.close()


async def test_what_is_remembered_of_missing_rights_is_bounded(
    operator: tuple[MemoryCluster, aio.MessageFactory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest stay: whoever asks for many names fills no memory."""
    monkeypatch.setattr(authority, "MISSING_MAX", 3)
    cluster, factory = operator
    await restart(cluster, authorization="permissive")
    async with factory_of(cluster, seed=9) as other:
        for name in "abcde":
            await cluster.create_topic(name, partitions=1)
            await (await other.create_producer()).send(Message(name, b"x"))
    plan = await planned(factory)
    assert {each.resource for each in plan.missing} == {"topic:c", "topic:d", "topic:e"}


async def test_a_broker_that_does_not_answer_is_named(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    cluster, factory = operator
    cluster.network.cut("client", "b1")
    plan = await factory.admin.plan_security()
    assert list(plan.unknown) == ["b1/n1"]
    assert state(plan, "rules") is StepState.UNKNOWN
