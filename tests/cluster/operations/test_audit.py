"""What operators do is written down before it is done, and who writes may not change it."""

import asyncio
import inspect
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.broker import MemoryCluster, memory_cluster
from support.cases import case
from support.client import factory_of
from support.coordination import deny_reading

from vq import aio
from vq.admin import AccessRule, ActNotRecorded, OperatorAct
from vq.broker.history import acts as keeper
from vq.coordination.leases.acts import list_acts
from vq.coordination.tree.coordinator import ConnectionLost
from vq.coordination.tree.values.audit import ActRecord
from vq.coordination.tree.values.identities import Identities
from vq.errors import InvalidArgument, UnknownTopic
from vq.model import TopicSettings
from vq.operations.base.acts import acting_for, is_audited, plain
from vq.operations.operation import Effect, rows_of
from vq.operations.table import Operations
from vq.security.rules import Right
from vq.testing.waiting import until, until_true

pytestmark = pytest.mark.virtual_time


@pytest.fixture
async def operator() -> AsyncIterator[tuple[MemoryCluster, aio.MessageFactory]]:
    """A cluster whose broker keeps records, and what an operator uses."""
    async with memory_cluster() as cluster, factory_of(cluster, operator=True) as factory:
        await cluster.start()
        yield cluster, factory


async def newest(factory: aio.MessageFactory, **of: Any) -> OperatorAct:
    return (await factory.admin.list_acts(**of))[0]


def test_every_operation_that_manages_leaves_a_record() -> None:
    """So a new one cannot be added without."""
    for row in rows_of(Operations):
        with case(row.name):
            manages = row.effect is Effect.ACT and row.right is Right.MANAGE
            assert is_audited(row.function) is manages
            assert inspect.iscoroutinefunction(row.function) or not manages


async def test_an_act_has_who_what_before_and_after(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    _, factory = operator
    await factory.admin.create_topic("orders", TopicSettings(partitions=2))
    made = await newest(factory)
    assert (made.act, made.subject, made.outcome) == ("create_topic", "orders", "done")
    assert made.before == ""
    assert json.loads(made.after)["settings"]["partitions"] == 2
    assert "@" in made.who
    with pytest.raises(TypeError, match=r"^create_topic\(\) got an unexpected .*'partitions'$"):
        await factory.admin.create_topic("others", partitions=2)  # type: ignore[call-arg]
    await factory.admin.alter_topic("orders", retention_hours=7)
    changed = await newest(factory)
    assert json.loads(changed.before)["settings"]["retention_hours"] != 7
    assert json.loads(changed.after)["settings"]["retention_hours"] == 7
    assert changed.time_ms <= (changed.ended_ms or 0)
    assert not changed.changed


async def test_acts_on_rules_and_quotas_tell_what_they_changed_and_nothing_of_others(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    """However the rules are given, also by a generator, which can be read once."""
    admin, factory = operator[1].admin, operator[1]

    async def told() -> tuple[Any, Any]:
        made = await newest(factory)
        assert made.outcome == "done"
        return json.loads(made.before or "[]"), json.loads(made.after or "[]")

    rule = "allow user:anna read topic:orders"
    await admin.add_access_rules(["allow user:anna read topic:other", "deny * write topic:orders"])
    await admin.add_access_rules(each for each in [rule])
    assert await told() == ([], [rule])
    assert rule in (await newest(factory)).arguments
    await admin.add_access_rules([AccessRule.parse("allow user:anna write topic:orders")])
    assert await told() == ([rule], ["allow user:anna read,write topic:orders"])
    await admin.remove_access_rules(["allow user:anna read,write topic:orders"])
    assert await told() == (["allow user:anna read,write topic:orders"], [])
    await admin.set_quotas(["user:anna requests=10 time=5%", "user:* requests=5"])
    assert await told() == ([], ["user:anna requests=10 time=5%", "user:* requests=5"])
    await admin.set_quotas(["user:anna requests=20"])
    assert await told() == (["user:anna requests=10 time=5%"], ["user:anna requests=20 time=5%"])
    await admin.remove_quotas(iter(["user:anna"]))
    assert await told() == (["user:anna requests=20 time=5%"], [])
    with pytest.raises(InvalidArgument):
        await admin.remove_quotas("user:*")  # type: ignore[arg-type]
    refused = await newest(factory)
    assert (refused.outcome, refused.before, refused.after) == ("failed", "", "")


async def test_acts_on_users_tell_roles_and_passwords_before_and_after(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    admin, factory = operator[1].admin, operator[1]
    await admin.add_user("anna", "a very secret word", roles=("shop",))
    await admin.change_user_roles("anna", add=("audit",))
    changed = await newest(factory)
    assert [json.loads(each)["roles"] for each in (changed.before, changed.after)] == [
        ["shop"],
        ["shop", "audit"],
    ]
    await admin.rotate_user("anna", "another secret word")
    rotated = await newest(factory)
    counts = [
        len(json.loads(each)["passwords_since_ms"]) for each in (rotated.before, rotated.after)
    ]
    assert counts == [1, 2]
    await admin.remove_user("anna")
    assert (await newest(factory)).after == ""


async def test_what_fails_and_what_is_refused_is_written_down_too(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    _, factory = operator
    with pytest.raises(UnknownTopic):
        await factory.admin.delete_topic("nowhere")
    failed = await newest(factory)
    assert (failed.act, failed.outcome) == ("delete_topic", "failed")
    assert "UnknownTopic" in failed.error


async def test_questions_and_plans_leave_no_record(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    _, factory = operator
    await factory.admin.list_topics()
    await factory.admin.plan_security()
    assert await factory.admin.list_acts() == []


async def test_an_act_that_cannot_be_written_down_is_not_carried_out(
    operator: tuple[MemoryCluster, aio.MessageFactory], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, factory = operator
    coordinator = factory.admin.cluster.coordinator
    real = coordinator.create

    async def create(path: str, data: bytes = b"", **options: Any) -> Any:
        if path.startswith("audit/"):
            raise ConnectionLost("cut")
        return await real(path, data, **options)

    monkeypatch.setattr(coordinator, "create", create)
    with pytest.raises(ActNotRecorded, match="create_topic was not carried out"):
        await factory.admin.create_topic("orders", TopicSettings(partitions=1))
    assert await factory.admin.list_topics() == []


async def test_an_act_stays_done_when_its_outcome_cannot_be_written_down(
    operator: tuple[MemoryCluster, aio.MessageFactory], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, factory = operator
    coordinator = factory.admin.cluster.coordinator
    real = coordinator.create

    async def create(path: str, data: bytes = b"", **options: Any) -> Any:
        if path.endswith("/end"):
            raise ConnectionLost("cut")
        return await real(path, data, **options)

    monkeypatch.setattr(coordinator, "create", create)
    await factory.admin.create_topic("orders", TopicSettings(partitions=1))
    assert (await newest(factory)).outcome == "begun"


async def test_an_act_inside_an_act_has_no_record_of_its_own(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    _, factory = operator
    await factory.admin.create_topic("orders", TopicSettings(partitions=1))
    exported = await factory.admin.export_definitions()
    await factory.admin.delete_topic("orders", now=True)
    planned = await factory.admin.plan_import_definitions(exported)
    before = len(await factory.admin.list_acts())
    await factory.admin.import_definitions(planned)
    assert len(await factory.admin.list_acts()) == before + 1
    assert (await newest(factory)).act == "import_definitions"


async def test_records_are_found_by_who_what_and_when(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    _, factory = operator
    for name in ("one", "two"):
        await factory.admin.create_topic(name, TopicSettings(partitions=1))
        await asyncio.sleep(1)
    with acting_for("carla from 10.0.0.9"):
        await factory.admin.close_topic("one")
    acts = factory.admin.list_acts
    assert [each.act for each in await acts(by="carla")] == ["close_topic"]
    assert [each.subject for each in await acts(what="create_topic")] == ["two", "one"]
    assert len(await acts(what="one")) == 2
    last = (await acts(count=1))[0]
    assert await acts(since_ms=last.time_ms) == [last]
    assert await acts(by="nobody") == []
    with pytest.raises(InvalidArgument, match="count = 0"):
        await acts(count=0)


async def test_no_record_has_a_secret(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    """A password, its salt and keys, a digest of an identity, and a password in a URL."""
    cluster, factory = operator
    await factory.admin.add_user("anna", "a very secret word", roles=("shop",))
    await factory.admin.rotate_user("anna", "another secret word")
    await factory.admin.remove_user("anna")
    made = (await factory.admin.list_acts(what="add_user"))[0]
    assert json.loads(made.after)["roles"] == ["shop"]
    async with cluster.admin() as coordinator:
        texts = [
            (await coordinator.get(path)).data.decode()
            for act in await list_acts(coordinator)
            for path in (ActRecord.path(act), f"{ActRecord.path(act)}/end")
        ]
    assert len(texts) == 6
    for text in texts:
        for secret in ("secret word", "salt", "stored_key", "server_key"):
            assert secret not in text.replace("(not told)", "")
    identities = Identities(operators=("op:" + "A" * 28,), brokers=(), clients={})
    for value, hidden in (
        ("postgresql://anna:hidden@db/x", "hidden"),
        ("postgresql://anna:hid/hidden@db/x", "hid"),
        ("postgresql://anna:hid@hidden@db/x", "hid"),
        ("postgresql://anna:hid hidden@db/x", "hid"),
        ("postgresql://db/x?user=anna&password=hidden", "hidden"),
        ("https://store/x?X-Amz-Signature=hidden&a=1", "hidden"),
        ({"password": "hidden", "a": {"vq_token": "hidden"}}, "hidden"),
        (identities, "AAAA"),
        (b"hidden", "hidden"),
    ):
        with case(value):
            assert hidden not in json.dumps(plain(value))
    rule = AccessRule.parse("allow user:anna read topic:orders")
    assert plain([rule]) == ["allow user:anna read topic:orders"]


def test_a_record_is_bounded() -> None:
    assert len(json.dumps(plain(["x" * 10_000] * 10_000))) < 250_000
    deep: Any = "x"
    for _ in range(100):
        deep = [deep]
    assert len(json.dumps(plain(deep))) < 100


async def test_a_record_that_somebody_changed_says_so(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    cluster, factory = operator
    await factory.admin.create_topic("orders", TopicSettings(partitions=1))
    async with cluster.admin() as coordinator:
        (act,) = await list_acts(coordinator)
        node = await coordinator.get(ActRecord.path(act))
        await coordinator.set(ActRecord.path(act), node.data)
    assert (await newest(factory)).changed


async def test_nodes_that_are_no_records_hide_none(
    operator: tuple[MemoryCluster, aio.MessageFactory],
) -> None:
    """A damaged one is shown as such; a broker removes strange ones, and no record for them."""
    cluster, factory = operator
    await factory.admin.create_topic("orders", TopicSettings(partitions=1))
    (real,) = [each.record for each in await factory.admin.list_acts()]
    async with cluster.admin() as coordinator:
        damaged = f"{int(real[:13]) + 1:013d}{real[13:]}"
        for name in (damaged, "zzz", f"{10**13 - 1}{real[13:]}"):
            await coordinator.create(ActRecord.path(name), b"no record")
        found = await factory.admin.list_acts()
        assert [each.act for each in found].count("(damaged)") == 3
        assert found[-1].act == "create_topic"
        assert "not a record of an act" in found[0].error

        async def strange_ones_are_gone() -> bool:
            return await list_acts(coordinator) == [real, damaged]

        await until_true(strange_ones_are_gone, timeout_s=120)


async def test_brokers_log_each_act_and_remove_the_oldest_records(
    operator: tuple[MemoryCluster, aio.MessageFactory],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, factory = operator
    monkeypatch.setattr(keeper, "ACTS_MAX", 2)
    caplog.set_level("INFO", "vq.broker.history.acts")
    for name in "abcd":
        await factory.admin.create_topic(name, TopicSettings(partitions=1))
        await asyncio.sleep(0.01)

    async def kept() -> list[str]:
        return [each.subject for each in await factory.admin.list_acts()]

    async def two_are_left() -> bool:
        return len(await kept()) == 2

    await until_true(two_are_left, timeout_s=120)
    assert await kept() == ["d", "c"]
    for name in "abcd":
        assert f"act=create_topic subject={name}" in caplog.text


@pytest.mark.parametrize("off_s", [-3_600, -1, 3_600, 10 * 86_400])
async def test_no_clock_and_no_record_keeps_an_act_out_of_the_logs(
    operator: tuple[MemoryCluster, aio.MessageFactory],
    caplog: pytest.LogCaptureFixture,
    off_s: int,
) -> None:
    """Names and times are of the operator's machine, where they may be any; so are ACLs."""
    cluster, factory = operator
    caplog.set_level("INFO", "vq.broker.history.acts")
    await factory.admin.create_topic("early", TopicSettings(partitions=1))
    await until(lambda: "subject=early" in caplog.text, timeout_s=120)
    now_ms = cluster.ensemble.clock.wall_ms()
    act, closed = (f"{now_ms + each:013d}-000000-abcdef" for each in (off_s * 1_000, 1))
    record = ActRecord(time_ms=10**13, who="eve@host", act="delete_topic", subject="gone")
    async with cluster.admin() as coordinator:
        await coordinator.create(ActRecord.path(act), record.encode())
        await coordinator.create(ActRecord.path(closed), record.encode())
        deny_reading(coordinator, ActRecord.path(closed))
    await factory.admin.create_topic("next", TopicSettings(partitions=1))
    await until(lambda: "subject=next" in caplog.text, timeout_s=120)
    await until(lambda: "subject=gone" in caplog.text, timeout_s=180)
    assert "record of an act cannot be read" in caplog.text
    assert caplog.text.count("subject=next") == caplog.text.count("subject=gone") == 1
    assert len(await factory.admin.list_acts()) >= 3


async def test_acts_go_on_without_records_where_no_broker_makes_a_place_for_them() -> None:
    async with memory_cluster() as cluster, factory_of(cluster, operator=True) as factory:
        await factory.admin.add_access_rules(["allow * read topic:*"])
        assert await list_acts(factory.admin.cluster.coordinator) == []
