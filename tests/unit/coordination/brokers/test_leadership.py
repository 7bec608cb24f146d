"""Who may lead a group: claims by compare-and-set, each with a new epoch."""

from dataclasses import replace
from typing import Any

import pytest
from support.coordination import LeadingBroker, expire

from vq.clock import SystemClock
from vq.coordination.brokers import group_views, registry
from vq.coordination.brokers.fitness import Fitness
from vq.coordination.brokers.insync import MastershipRefused
from vq.coordination.brokers.leadership import Following, Leadership, Leading
from vq.coordination.brokers.registry import BrokerRegistration
from vq.coordination.tree.memory import MemoryCoordinator
from vq.coordination.tree.values.brokers import GroupState, Registration
from vq.errors import CoordinationError
from vq.model import Address, GroupView
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time


def broker(client: MemoryCoordinator, node: str = "n1", **options: Any) -> LeadingBroker:
    options = {"address": Address("127.0.0.1", 8123)} | options
    return LeadingBroker(client, node=node, **options)


async def test_a_node_can_be_registered_and_lead_nothing(client) -> None:
    """Nobody leads the group then; the node may lead it later, in its present registration."""
    registration = BrokerRegistration(
        client, SystemClock(), group="b1", node="n1", address=Address("127.0.0.1", 8123)
    )
    incarnation = await registration.start()
    [node] = await registry.nodes(client, "b1")
    assert node.incarnation == incarnation == registration.incarnation
    assert await registry.read_state(client, "b1") is None
    assert await group_views.groups(client) == [GroupView("b1", alive=False)]
    leadership = Leadership(client, group="b1", node="n1")
    leadership.registered(incarnation)
    assert await leadership.start() == Leading(incarnation, 1)
    assert await group_views.groups(client) == [GroupView("b1", alive=True)]
    await leadership.stop()
    await registration.stop()


async def test_a_node_that_may_not_lead_stays_registered(client, other) -> None:
    """It claims the group for as long as it is registered, and leads it when that is allowed."""
    first = broker(client)
    await first.start()
    state = await registry.read_state(client, "b1")
    assert state is not None
    await client.set(GroupState.path("b1"), replace(state, insync=("n1", "n2")).encode())
    second = broker(other, "n2")
    incarnation = await second.registration.start()
    assert isinstance(await second.leadership.start(), Following)
    assert second.registration.incarnation == incarnation
    assert {node.node for node in await registry.nodes(client, "b1")} == {"n1", "n2"}
    await first.stop()
    await until(lambda: second.registered == Leading(incarnation, 2))
    await second.stop()


async def test_nothing_is_claimed_without_a_registration(client) -> None:
    leadership = Leadership(client, group="b1", node="n1")
    with pytest.raises(CoordinationError, match="is not registered"):
        await leadership.start(timeout_s=0.0)
    assert await registry.read_state(client, "b1") is None


async def test_mastership_needs_the_registration(client) -> None:
    """A process whose node is gone leads nothing, whatever it believes."""
    one = broker(client)
    info = await one.registration.register()
    await client.delete(Registration.path("b1", "n1"))
    with pytest.raises(CoordinationError):
        await one.leadership.claim_mastership(info.incarnation)
    assert await registry.read_state(client, "b1") is None


async def test_a_later_mastership_needs_the_registration_too(client) -> None:
    """The group has a record, and this node may lead by it; its node went at the last moment."""
    one = broker(client)
    info = await one.registration.register()
    state = await one.leadership.claim_mastership(info.incarnation)
    await client.delete(Registration.path("b1", "n1"))
    with pytest.raises(CoordinationError):
        await one.leadership.claim_mastership(info.incarnation)
    assert await registry.read_state(client, "b1") == state


async def test_a_node_that_is_not_in_sync_follows(client) -> None:
    """It might lack acknowledged messages; also while the master is down."""
    state = GroupState(epoch=4, master="n1", insync=("n1",), incarnations={"n1": 1})
    await client.create(GroupState.path("b1"), state.encode(), parents=True)
    second = broker(client, "n2")
    standing = await second.start()
    assert isinstance(standing, Following)
    assert (standing.epoch, standing.master, standing.address) == (4, "n1", None)
    assert await registry.read_state(client, "b1") == state
    await second.stop()


async def test_a_living_master_is_followed_by_another_member_in_sync(client, other) -> None:
    """And no longer once its registration is gone."""
    first = broker(client, "n1")
    leads = await first.start()
    path = GroupState.path("b1")
    state = await registry.read_state(client, "b1")
    assert state is not None
    both = GroupState(
        epoch=state.epoch,
        master="n1",
        insync=("n1", "n2"),
        incarnations={**state.incarnations, "n2": 1},
    )
    await client.set(path, both.encode())
    successor = broker(other, "n2")
    standing = await successor.start()
    assert isinstance(standing, Following)
    assert (standing.master, standing.master_incarnation) == ("n1", leads.incarnation)
    assert standing.address == Address("127.0.0.1", 8123)
    await first.stop()
    await until(lambda: successor.registered is not None and successor.registered.epoch == 2)
    await successor.stop()


async def test_a_master_that_comes_back_is_found_again(client, other) -> None:
    """The node that follows is told each registration of it, and that there is none."""
    first = broker(client, "n1")
    await first.start()
    second = broker(other, "n2")
    await second.start()
    told = second.standings
    await first.stop()
    await until(lambda: told[-1].address is None)
    again = broker(client, "n1")
    standing = await again.start()
    await until(lambda: told[-1].epoch == standing.epoch and told[-1].address is not None)
    assert told[-1].master_incarnation == standing.incarnation
    await second.stop()
    await again.stop()


async def test_a_node_leads_only_with_the_directory_it_was_in_sync_with(client) -> None:
    """An emptied or swapped directory lacks acknowledged messages: an operator must say so."""
    first = broker(client, directory="d1")
    await first.start()
    await first.stop()
    with pytest.raises(
        MastershipRefused, match=r"with id d1; this one has id d2.*accept-data-loss"
    ):
        await broker(client, directory="d2").start()
    state = await registry.read_state(client, "b1")
    assert state is not None
    assert (state.epoch, state.directories) == (1, {"n1": "d1"})
    again = broker(client, directory="d1")
    assert (await again.start()).epoch == 2
    await again.stop()
    accepted = broker(client, directory="d2", accept_data_loss=True)
    assert (await accepted.start()).epoch == 3
    await accepted.stop()
    with pytest.raises(MastershipRefused, match="with id d2; this one has id d1"):
        await broker(client, directory="d1").start()


async def test_a_start_tells_of_no_registration_that_is_over(ensemble, client, monkeypatch) -> None:
    """The session ended right behind the claim, and its node with it: another one is made."""
    told: list[Leading | None] = []
    one = broker(client, on_change=told.append)
    claim, epochs = one.leadership.claim_mastership, []

    async def claim_slowly(incarnation: int, _view: object) -> int:
        epochs.append(await claim(incarnation))
        if len(epochs) == 1:
            await expire(ensemble, client)
        return epochs[-1]

    monkeypatch.setattr(one.leadership, "claim_mastership", claim_slowly)
    registered = await one.start()
    [node] = await registry.nodes(client, "b1")
    assert told == [registered]
    assert (registered.incarnation, registered.epoch) == (node.incarnation, 2)
    await one.stop()


async def test_a_node_that_waits_for_others_leads_when_there_are_none_any_more(
    client, monkeypatch
) -> None:
    """An operator decides so in the moment between its claim and the look for whom it waits."""

    class LostPower(Fitness):
        lost_power = True

    one = LeadingBroker(client, node="n1", directory="d1", fitness=LostPower())
    await one.registration.start()
    path, both = GroupState.path("b1"), {"n1": 1, "n2": 2}
    state = GroupState(epoch=4, master="n1", insync=tuple(both), incarnations=both)
    await client.create(path, state.encode(), parents=True)
    wait, waited = Leadership._wait, list[str]()

    async def decided(self: Leadership, incarnation: int, why: str) -> Following | None:
        if not waited:
            alone = replace(state, epoch=5, insync=("n1",), incarnations={}, unclean=True)
            await client.set(path, alone.encode())
        waited.append(why)
        return await wait(self, incarnation, why)

    monkeypatch.setattr(Leadership, "_wait", decided)
    standing = await one.leadership.start()
    assert isinstance(standing, Leading)
    assert (standing.epoch, standing.insync) == (6, ("n1",))
    assert len(waited) == 1
    await one.stop()
