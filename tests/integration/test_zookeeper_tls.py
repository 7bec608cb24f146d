"""A real ZooKeeper behind TLS that asks for certificates: sessions, and what is refused."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme
from support.certificates import LONG_AGO, write_ca, write_tls
from support.zookeeper import unavailable

from vq.client.config import MessageFactoryConfig
from vq.coordination.tree.coordinator import SessionState
from vq.coordination.zookeeper.zk import ZooKeeperCoordinator
from vq.devtools.zookeeper import EmbeddedZooKeeper, MissingPart
from vq.errors import CoordinationError
from vq.operations.cluster.doctor import check_cluster
from vq.security.tls import ClientCertificates, Tls
from vq.testing.waiting import PROCESSES_WAIT_S, until


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One for all tests, with a port for TLS beside the plain one."""
    directory = tmp_path_factory.mktemp("zookeeper")
    tls = write_tls(directory / "tls", ca, "127.0.0.1")
    required = ClientCertificates.REQUIRED
    try:
        made = EmbeddedZooKeeper(directory, tls=tls, client_certificates=required)
    except MissingPart as error:
        unavailable(str(error))
    with made:
        yield made


@asynccontextmanager
async def session(
    hosts: str, tls: Tls | None, timeout_s: float = PROCESSES_WAIT_S
) -> AsyncIterator[ZooKeeperCoordinator]:
    coordinator = ZooKeeperCoordinator(hosts, "test", session_timeout_s=4.0, tls=tls)
    await coordinator.start(timeout_s)
    try:
        yield coordinator
    finally:
        await coordinator.close()


async def refusal(hosts: str, tls: Tls | None) -> str:
    with pytest.raises(CoordinationError) as refused:
        async with session(hosts, tls, timeout_s=1.0):
            pass
    return str(refused.value)


async def test_a_session_reads_writes_and_watches_over_tls(
    server: EmbeddedZooKeeper, ca: trustme.CA, tmp_path: Path
) -> None:
    """Values larger than a TLS record come whole, and many answers at once are all read."""
    large = os.urandom(200_000)
    tls = write_tls(tmp_path, ca, "client")
    async with session(server.secure_hosts, tls) as first, session(server.hosts, None) as plain:
        await first.create("large", large)
        changed = asyncio.Event()
        node = await first.get("large", watch=lambda _: changed.set())
        assert node.data == large
        names = [f"n{number}" for number in range(300)]
        await asyncio.gather(*(first.create(name, name.encode()) for name in names))
        nodes = await asyncio.gather(*(first.get(name) for name in names))
        assert [each.data.decode() for each in nodes] == names
        await plain.set("large", b"small")
        await asyncio.wait_for(changed.wait(), PROCESSES_WAIT_S)


async def test_a_server_that_cannot_be_trusted_gets_no_session(
    server: EmbeddedZooKeeper, ca: trustme.CA, tmp_path: Path
) -> None:
    """Nor one that is reached by a name that its certificate does not have: kazoo would take it."""
    port = server.secure_hosts.rpartition(":")[2]
    good = write_tls(tmp_path / "good", ca, "client")
    other = write_tls(tmp_path / "other", ca, "client", trusts=trustme.CA())
    expired = write_tls(tmp_path / "expired", ca, "client", expires=LONG_AGO)
    said = await refusal(server.secure_hosts, other)
    assert "not signed by" in said
    assert "zookeeper_tls_ca" in said
    assert "another name" in await refusal(f"localhost:{port}", good)
    assert "client certificate" in await refusal(server.secure_hosts, write_ca(tmp_path, ca))
    assert "certificate" in await refusal(server.secure_hosts, expired)


async def test_plain_and_tls_are_told_of_each_other(
    server: EmbeddedZooKeeper, ca: trustme.CA, tmp_path: Path
) -> None:
    tls = write_tls(tmp_path, ca, "client")
    assert "zookeeper_tls_ca" in await refusal(server.secure_hosts, None)
    assert "does not seem to speak TLS" in await refusal(server.hosts, tls)


async def test_a_new_connection_reads_changed_files(
    server: EmbeddedZooKeeper, ca: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on with the new certificate when the connection is lost."""
    monkeypatch.setattr("vq.security.tls.LOOK_S", 0.0)
    tls = write_tls(tmp_path, ca, "client")
    async with session(server.secure_hosts, tls) as coordinator:
        key = Path(str(tls.key)).read_bytes()
        write_tls(tmp_path, ca, "other-client")
        assert Path(str(tls.key)).read_bytes() != key
        states: list[SessionState] = []
        coordinator.add_listener(states.append)
        assert coordinator.kazoo is not None
        coordinator.kazoo._connection._socket.shutdown(2)  # as a cut network would
        await until(lambda: SessionState.CONNECTED in states, timeout_s=PROCESSES_WAIT_S)
        await coordinator.sync()


async def test_the_doctor_asks_over_tls(
    server: EmbeddedZooKeeper, ca: trustme.CA, tmp_path: Path
) -> None:
    tls = write_tls(tmp_path, ca, "client")
    config = MessageFactoryConfig(zookeeper=server.secure_hosts, zookeeper_tls=tls)
    found = (await check_cluster(config))[0]
    assert found.level == "ok"
    assert "the names of servers are checked" in found.detail
