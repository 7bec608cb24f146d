"""The secret of the cluster is made once, and everybody reads the same."""

import asyncio
import itertools

import pytest

from vq.coordination.brokers.secret import cluster_secret, read_secret, replace_secret
from vq.coordination.tree.coordinator import ConnectionLost
from vq.coordination.tree.memory import MemoryCoordinator, MemoryEnsemble
from vq.coordination.tree.values.cluster import ClusterSecret
from vq.errors import CoordinationError

pytestmark = pytest.mark.virtual_time

_numbers = itertools.count(1)


def another(size: int) -> bytes:
    return next(_numbers).to_bytes(size, "big")


async def started(ensemble: MemoryEnsemble) -> MemoryCoordinator:
    coordinator = ensemble.coordinator("test", session_timeout_s=4.0)
    await coordinator.start()
    return coordinator


async def test_those_who_make_it_at_the_same_time_have_one():
    ensemble = MemoryEnsemble()
    clients = [await started(ensemble) for _ in range(8)]
    found = set(await asyncio.gather(*(cluster_secret(each, another) for each in clients)))
    (secret,) = found
    assert len(secret) == 32
    assert await read_secret(clients[0]) == secret


async def test_a_lost_answer_makes_no_second_one(monkeypatch):
    """It is read then."""
    ensemble = MemoryEnsemble()
    client = await started(ensemble)
    create = client.create

    async def lost(*arguments, **options):
        await create(*arguments, **options)
        raise ConnectionLost("cut")

    monkeypatch.setattr(client, "create", lost)
    secret = await cluster_secret(client, another)
    assert await read_secret(await started(ensemble)) == secret


async def test_without_one_there_is_an_error():
    client = await started(MemoryEnsemble())
    with pytest.raises(CoordinationError, match="start a broker, which makes it"):
        await read_secret(client)


async def test_something_else_there_is_not_replaced():
    """A newer vq may have written it."""
    client = await started(MemoryEnsemble())
    await client.create(ClusterSecret.path(), b'{"v": 2}', parents=True)
    calls = (
        read_secret(client),
        cluster_secret(client, another),
        replace_secret(client, another),
    )
    for call in calls:
        with pytest.raises(CoordinationError, match="upgrade vq here"):
            await call


@pytest.mark.parametrize("there", [None, b"{", ClusterSecret.of(b"old" * 11).encode()])
async def test_another_one_takes_the_place_of_whatever_is_there(there):
    coordinator = await started(MemoryEnsemble())
    if there is not None:
        await coordinator.create(ClusterSecret.path(), there, parents=True)
    await replace_secret(coordinator, another)
    found = await read_secret(coordinator)
    assert ClusterSecret.of(found).encode() != there
    assert await cluster_secret(coordinator, another) == found


async def test_a_lost_answer_replaces_it_once():
    ensemble = MemoryEnsemble()
    coordinator = await started(ensemble)
    await replace_secret(coordinator, another)
    ensemble.lose_next_reply(coordinator, skip=1)  # that of the write
    await replace_secret(coordinator, another)
    path = ClusterSecret.path()
    assert (await coordinator.get(path)).stat.version == 1
