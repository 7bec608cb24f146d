"""What closed consumers left in the tree is deleted when ZooKeeper takes it, and nothing else."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest
from support.coordination import client_of, expire

from vq.client import departures as module
from vq.client.departures import Departure, Departures
from vq.coordination.groups import claims, groups
from vq.coordination.groups.claims import Claim
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.consumers import Member, Owner
from vq.model import TopicPartition
from vq.testing.waiting import until

pytestmark = pytest.mark.virtual_time
P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def ensemble() -> MemoryEnsemble:
    return MemoryEnsemble()


@pytest.fixture
async def client(ensemble: MemoryEnsemble) -> AsyncIterator[MemoryCoordinator]:
    async with client_of(ensemble) as made:
        yield made


async def owned(client: MemoryCoordinator) -> dict[TopicPartition, str]:
    found = await claims.read_partitions(client, Owner, "g", ["t"])
    return {partition: owner.member for partition, owner in found.items()}


async def joined(client: MemoryCoordinator, nonce: str = "n1") -> Departure:
    """Join, claim two partitions, and return the departure of that member."""
    await groups.join_group(client, "g", "a", Member(nonce=nonce))
    mine = [await claims.claim(client, "g", "a", each) for each in (P0, P1)]
    return Departure("g", "a", nonce, client.session_id, tuple(mine))


@pytest.mark.parametrize("away", [False, True])
async def test_everything_goes_when_zookeeper_takes_it(
    ensemble: MemoryEnsemble, client: MemoryCoordinator, away: bool
) -> None:
    """However long it was away, while the session lives."""
    departure = await joined(client)
    session = client.session_id
    departures = Departures(client, random.Random(7))
    if away:
        ensemble.stop()
    departures.begin(departure)
    if away:
        assert not await departures.wait("g", "a", 60.0)
        ensemble.start()
    assert await departures.wait("g", "a", 60.0)
    assert client.session_id == session
    assert await groups.members(client, "g") == {}
    assert await owned(client) == {}
    assert not departures.tasks


@pytest.mark.parametrize("fault", ["lose_next_request", "lose_next_reply"])
@pytest.mark.parametrize("skip", range(6))
async def test_a_lost_answer_leaves_nothing(
    ensemble: MemoryEnsemble, client: MemoryCoordinator, fault: str, skip: int
) -> None:
    departure = await joined(client)
    departures = Departures(client, random.Random(7))
    getattr(ensemble, fault)(client, skip=skip)
    departures.begin(departure)
    assert await departures.wait("g", "a", 60.0)
    client.faults.clear()
    assert await groups.members(client, "g") == {}
    assert await owned(client) == {}


async def test_a_new_session_keeps_what_a_later_consumer_made_in_it(
    ensemble: MemoryEnsemble, client: MemoryCoordinator
) -> None:
    """A claim of the old session says nothing about an owner node of the new one."""
    departure = await joined(client)
    await expire(ensemble, client)
    await joined(client, "n2")
    departures = Departures(client, random.Random(7))
    departures.begin(departure)
    assert await departures.wait("g", "a", 60.0)
    assert list(await groups.members(client, "g")) == ["a"]
    assert await owned(client) == {P0: "a", P1: "a"}


async def test_an_interrupted_claim_is_looked_for_in_the_next_session(
    ensemble: MemoryEnsemble, client: MemoryCoordinator
) -> None:
    """It may have been applied there."""
    session = client.session_id
    await expire(ensemble, client)
    await joined(client)
    interrupted = tuple(Claim("g", "a", each, generation=0) for each in (P0, P1))
    departures = Departures(client, random.Random(7))
    departures.begin(Departure("g", "a", "n1", session, interrupted))
    assert await departures.wait("g", "a", 60.0)
    assert await groups.members(client, "g") == {}
    assert await owned(client) == {}


async def test_they_end_with_the_session_for_good_and_when_they_are_closed(
    ensemble: MemoryEnsemble, client: MemoryCoordinator
) -> None:
    departure = await joined(client)
    departures = Departures(client, random.Random(7))
    ensemble.stop()
    departures.begin(departure)
    client.give_up("its clients died")
    assert await departures.wait("g", "a", 60.0)
    async with client_of(MemoryEnsemble()) as other:
        departures = Departures(other, random.Random(7))
        departures.begin(departure)
        await departures.close()
        await until(lambda: not departures.tasks)


async def test_their_number_is_bounded(
    ensemble: MemoryEnsemble,
    client: MemoryCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "DEPARTURES_MAX", 2)
    departures = Departures(client, random.Random(7))
    ensemble.stop()
    before = asyncio.all_tasks()
    for name in "abc":
        departures.begin(Departure("g", name, "n", client.session_id))
    assert len(asyncio.all_tasks() - before) == 2
    assert caplog.text.count("member=c") == 1
    await departures.close()
