"""Broker registration: create-only nodes, lost sessions, the list of groups."""

import asyncio
from typing import Any

import pytest
from support.coordination import FAULTS, LeadingBroker, client_of, disarm, expire, strike

from vq.clock import SystemClock
from vq.coordination.brokers import group_views, registry
from vq.coordination.brokers.fitness import Fitness
from vq.coordination.brokers.leadership import Leading
from vq.coordination.brokers.registry import BrokerRegistration, NameTaken
from vq.coordination.tree.coordinator import ConnectionLost, Stat
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.brokers import BrokerGroup, BrokerLoad, GroupState, Registration
from vq.errors import CoordinationError, InvalidArgument, InvalidState
from vq.model import Address, GroupView
from vq.testing.waiting import WAIT_S, until


def broker(client: MemoryCoordinator, node: str = "n1", **options: Any) -> LeadingBroker:
    options = {"address": Address("127.0.0.1", 8123)} | options
    return LeadingBroker(client, node=node, **options)


async def test_a_broker_registers_and_leads(client) -> None:
    """Its node's czxid is the incarnation, the first epoch is 1, the group is alive."""
    first = broker(client, pool="p", version="1.2")
    registered = await first.start()
    assert registered.epoch == 1
    [node] = await registry.nodes(client, "b1")
    assert (node.node, node.address, node.version) == ("n1", Address("127.0.0.1", 8123), "1.2")
    assert node.incarnation == registered.incarnation
    assert await registry.read_state(client, "b1") == GroupState(
        epoch=1, master="n1", insync=("n1",), incarnations={"n1": registered.incarnation}
    )
    assert await group_views.groups(client) == [GroupView("b1", alive=True, pool="p")]
    await first.stop()
    assert await group_views.groups(client) == [GroupView("b1", alive=False, pool="p")]


async def test_each_start_has_a_new_epoch_and_incarnation(client) -> None:
    """A restarted process is not the one before."""
    seen = []
    for _ in range(3):
        one = broker(client)
        seen.append(await one.start())
        await one.stop()
    assert [each.epoch for each in seen] == [1, 2, 3]
    assert len({each.incarnation for each in seen}) == 3


@pytest.mark.virtual_time
async def test_a_second_process_of_one_name_is_refused(client, other) -> None:
    """The node of the first is never overwritten; the message names who has it."""
    first = broker(client)
    registered = await first.start()
    with pytest.raises(NameTaken, match=r"127\.0\.0\.1:8123"):
        await broker(other, address=Address("127.0.0.1", 9999)).start(timeout_s=0.05)
    assert first.registered == registered
    assert (await registry.read_node(client, "b1", "n1")).address.port == 8123
    await first.stop()


async def test_a_restart_waits_for_the_dead_sessions_node(ensemble, client, other, caplog) -> None:
    """After kill -9 the old node stays until its session ends; then the name is free."""
    await broker(client).start()
    ensemble.crash(client)
    with caplog.at_level("INFO"):
        restarted = asyncio.ensure_future(broker(other).start())
        await until(lambda: "waiting for another registration to end" in caplog.text)
    assert not restarted.done()
    ensemble.expire(client.session_id)
    assert (await restarted).epoch == 2


async def test_a_restart_on_the_same_directory_need_not_wait(ensemble, client, other) -> None:
    """Who holds the directory's lock knows that its last holder is dead."""
    await broker(client, directory="d1").start()
    ensemble.crash(client)
    again = broker(other, directory="d1")
    assert (await again.start(timeout_s=WAIT_S)).epoch == 2
    await again.stop()


async def test_two_processes_with_copies_of_a_directory_do_not_fight(
    ensemble, client, other, caplog
) -> None:
    """A copy that was made as a backup and started by mistake: the later process has the name."""
    first = broker(client, directory="d1")
    await first.start()
    await asyncio.sleep(0.002)  # times of a start have milliseconds
    later = broker(other, directory="d1")
    await later.start()
    await until(lambda: "with a copy of this data directory" in caplog.text)
    parent = Registration.parent("b1")
    registrations = (await client.get(parent)).stat.version
    for _ in range(50):  # as long as a fight of some rounds takes
        assert (await client.get(parent)).stat.version == registrations
    assert later.registration.incarnation is not None
    assert first.registration.incarnation is None
    await later.stop()
    await until(lambda: first.registration.incarnation is not None)


@pytest.mark.virtual_time
async def test_another_directory_has_to_wait(ensemble, client, other) -> None:
    """Also when its operator accepts that messages are lost: the first one may be alive."""
    await broker(client, directory="d1").start()
    ensemble.crash(client)
    with pytest.raises(NameTaken):
        await broker(other, directory="d2", accept_data_loss=True).start(timeout_s=0.05)


async def test_a_lost_session_is_told_and_followed_by_a_new_registration(ensemble, client) -> None:
    """None first, then a new incarnation with a higher epoch."""
    told: list[Leading | None] = []
    one = broker(client, on_change=told.append)
    first = await one.start()
    await expire(ensemble, client)
    await until(lambda: len(told) == 3)
    assert told[0] == first
    assert told[1] is None
    assert told[2] is not None
    assert told[2].epoch == first.epoch + 1
    assert told[2].incarnation > first.incarnation
    assert one.registered == told[2]
    await one.stop()


async def test_a_node_left_by_our_own_lost_session_is_deleted(ensemble, client) -> None:
    """It is not adopted: the old incarnation is over."""
    one = broker(client)
    first = await one.start()
    session = client.session_id
    # The old session's node outlives it, as real ensembles have done.
    stale = ensemble.tree.get("vq/test/brokers/b1/nodes/n1")
    ensemble.expire(client)
    ensemble.tree.apply(
        [_create("vq/test/brokers/b1/nodes/n1", stale.data)], session=session, now_ms=0
    )
    await until(lambda: one.registered not in {None, first})
    assert one.registered is not None
    assert one.registered.incarnation > first.incarnation
    await one.stop()


def _create(path: str, data: bytes) -> Any:
    from vq.coordination.tree.coordinator import Create

    return Create(path, data, ephemeral=True)


async def test_a_node_deleted_by_hand_is_made_again(client, other) -> None:
    """The registration notices by its watch, without a lost session."""
    told: list[Leading | None] = []
    one = broker(client, on_change=told.append)
    await one.start()
    await other.delete(Registration.path("b1", "n1"))
    await until(lambda: len(told) == 3)
    assert told[1] is None
    assert told[2] is not None
    assert told[2].epoch == 2
    await one.stop()


async def test_a_node_changed_and_then_deleted_by_hand_is_made_again(client, other) -> None:
    """A watch fires once: it is armed again, or the deletion is noticed by the slow audit only."""
    told: list[Leading | None] = []
    one = broker(client, on_change=told.append)
    await one.start()
    path = Registration.path("b1", "n1")
    for _ in range(2):
        await other.set(path, (await other.get(path)).data)
        await until(lambda: client.watches.data.get(client.full_path(path)))
    assert len(told) == 1, "a change by hand is no loss"
    await other.delete(path)
    await until(lambda: len(told) == 3)
    assert told[2] is not None
    await one.stop()


async def test_a_node_deleted_while_it_is_registered_is_made_again(client, other) -> None:
    """No registration is told of that is not there; nobody has to wait for the audit."""
    told: list[Leading | None] = []
    one = broker(client, on_change=told.append)
    exists, path = client.exists, Registration.path("b1", "n1")
    deleted: list[str] = []

    async def late(asked: str, **options: Any) -> Stat | None:
        if asked == path and not deleted:
            deleted.append(asked)
            await other.delete(path)
        return await exists(asked, **options)

    client.exists = late
    registered = await one.start()
    [node] = await registry.nodes(client, "b1")
    assert deleted
    assert told == [registered]
    assert registered.incarnation == node.incarnation
    await one.stop()


async def test_a_registration_is_renewed_in_one_step(client, other) -> None:
    """It has another incarnation, and the parent's version tells: a join by the old one fails."""
    told = list[int | None]()
    first = BrokerRegistration(
        client,
        SystemClock(),
        group="b1",
        node="n1",
        address=Address("127.0.0.1", 8123),
        on_change=told.append,
    )
    await first.start()
    path, parent = Registration.path("b1", "n1"), Registration.parent("b1")
    old, version = (await other.get(path)).stat.czxid, (await other.get(parent)).stat.version
    await first.renew()
    new = (await other.get(path)).stat.czxid
    assert new > old
    assert (await other.get(parent)).stat.version == version + 1
    await until(lambda: told[-1] == new)
    assert told == [old, None, new]
    await first.stop()


async def test_a_change_that_was_not_made_is_not_logged(client, other, monkeypatch, caplog) -> None:
    """Somebody changes the node between read and write; the next try is told, once."""

    class Damaged(Fitness):
        damaged = False

    fitness, get, path = Damaged(), client.get, Registration.path("b1", "n1")
    changed = list[int]()
    first = broker(client, fitness=fitness)
    await first.start()
    caplog.set_level("INFO")

    async def slow(wanted: str, **options: Any) -> Any:
        found = await get(wanted, **options)
        if wanted == path and not changed:
            changed.append(found.stat.version)
            await other.set(path, found.data)
        return found

    monkeypatch.setattr(client, "get", slow)
    fitness.damaged = True
    first.registration.wake()
    async with asyncio.timeout(WAIT_S):
        while not (await registry.read_node(other, "b1", "n1")).damaged:
            await asyncio.sleep(0.001)
    await first.stop()
    assert caplog.text.count("registration is changed") == 1


async def test_nobody_is_blamed_when_zookeeper_does_not_answer(client, monkeypatch) -> None:
    """The name is not taken: whoever starts the broker must not look for another process."""

    async def fail(*_: Any, **__: Any) -> None:
        raise ConnectionLost("the connection ended before the answer")

    await registry.ensure_group(client, "b1")
    monkeypatch.setattr(registry, "PAUSE_S", 0.0)
    monkeypatch.setattr(client, "create", fail)
    with pytest.raises(CoordinationError, match="ZooKeeper did not answer") as found:
        await broker(client).registration.register(timeout_s=0.01)
    assert not isinstance(found.value, NameTaken)


async def test_load_is_published_and_ends_with_the_session(client, other) -> None:
    """Written again and again; unknown is None, not zero."""
    one, path = broker(client), BrokerLoad.path("b1", "n1")
    await one.start()
    assert await other.exists(path) is None
    for depth in (1, 2):
        await one.registration.publish_load(BrokerLoad(queue_depth=depth, messages_per_s=0.5))
    said = BrokerLoad.decode(path, (await other.get(path)).data)
    assert said == BrokerLoad(queue_depth=2, messages_per_s=0.5)
    await client.close()
    assert await other.exists(path) is None


async def test_the_load_that_an_earlier_process_left_is_replaced(client, other) -> None:
    """It would end with the session of that process, and the load would be missing."""
    one, path = broker(client), BrokerLoad.path("b1", "n1")
    await one.start()
    await other.create(path, BrokerLoad().encode(), ephemeral=True, parents=True)
    await one.registration.publish_load(BrokerLoad(queue_depth=2))
    await other.close()
    assert BrokerLoad.decode(path, (await client.get(path)).data).queue_depth == 2


async def test_the_pool_can_be_set_and_draining_is_kept(client) -> None:
    """What an operator said of the group is not overwritten by a start."""
    path = BrokerGroup.path("b1")
    await client.create(
        path, BrokerGroup(draining=True, labels={"rack": "7"}).encode(), parents=True
    )
    await registry.ensure_group(client, "b1")
    await registry.ensure_group(client, "b1", pool="p")
    [view] = await group_views.groups(client)
    assert view == GroupView("b1", alive=False, draining=True, pool="p", labels={"rack": "7"})


async def test_a_group_goes_back_to_the_common_pool_by_its_name(client) -> None:
    await registry.ensure_group(client, "b1", pool="p")
    await registry.ensure_group(client, "b1", pool="common")
    assert await group_views.groups(client) == [GroupView("b1", alive=False, pool=None)]


async def test_labels_of_a_broker_are_those_of_its_group(client) -> None:
    """The last start that gives some decides; one that gives none leaves them."""
    for given, expected in (
        ({"rack": "1"}, {"rack": "1"}),
        ({}, {"rack": "1"}),
        ({"zone": "a"}, {"zone": "a"}),
    ):
        one = broker(client, labels=given)
        await one.start()
        [view] = await group_views.groups(client)
        assert view.labels == expected
        await one.stop()


async def test_setting_the_pool_against_a_busy_writer_ends(client, other, monkeypatch) -> None:
    """Somebody who writes the node again and again must not keep a broker from an answer."""
    await registry.ensure_group(client, "b1")
    write = client.set

    async def late(path: str, data: bytes, *, version: int = -1) -> Stat:
        await other.set(path, BrokerGroup(draining=True).encode())
        return await write(path, data, version=version)

    monkeypatch.setattr(client, "set", late)
    with pytest.raises(CoordinationError, match="'b1' changed 20 times"):
        async with asyncio.timeout(WAIT_S):
            await registry.ensure_group(client, "b1", pool="p")


async def test_misuse_is_told(client) -> None:
    """Bad names and a second start."""
    with pytest.raises(InvalidArgument):
        broker(client, "a/b")
    one = broker(client)
    await one.start()
    with pytest.raises(InvalidState):
        await one.start()
    await one.stop()


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_start_survives_a_fault_at_every_call(fault: str) -> None:
    """Whichever call is struck, one node is registered and it leads with its own incarnation."""
    skip = 0
    while True:
        ensemble = MemoryEnsemble(reconnect_delay_s=0.0)
        async with client_of(ensemble) as client:
            one = broker(client)
            strike(ensemble, client, fault, skip)
            await one.start()
            was_struck = disarm(client)
            await until(lambda one=one: one.registered is not None)
            state = await registry.read_state(client, "b1")
            [node] = await registry.nodes(client, "b1")
            assert state is not None
            assert state.incarnations["n1"] == node.incarnation == one.registered.incarnation
            assert state.epoch == one.registered.epoch
            await one.stop()
            assert await registry.nodes(client, "b1") == []
        if not was_struck:
            break
        skip += 1
    assert skip > 5
