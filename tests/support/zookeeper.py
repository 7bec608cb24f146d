"""A real ZooKeeper for tests: embedded by default, a given one, or a container.

``VQ_TEST_ZOOKEEPER`` unset: a server of its own for this test process (about 94 MB), started when
the first test asks. ``host:port``: that one. ``docker``: the official image through testcontainers.
Every test works below a root of its own, which is deleted afterwards.
"""

import gc
import os
import time
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from vq.coordination.zookeeper.four_letter import four_letter_word
from vq.coordination.zookeeper.zk import ZooKeeperCoordinator
from vq.devtools.zookeeper import EmbeddedZooKeeper, MissingPart
from vq.testing.waiting import PROCESSES_WAIT_S

DOCKER_IMAGE = "zookeeper:3.9"


@dataclass(frozen=True)
class ZooKeeperService:
    """A ZooKeeper that runs; ``server`` is None unless this process started it itself."""

    hosts: str
    server: EmbeddedZooKeeper | None = None


@dataclass(frozen=True)
class ZooKeeperRoot:
    """A place in a ZooKeeper that belongs to one test."""

    hosts: str
    root: str

    def coordinator(
        self, cluster: str = "test", *, session_timeout_s: float = 4.0
    ) -> ZooKeeperCoordinator:
        """Return a new coordinator below this root, not yet started."""
        return ZooKeeperCoordinator(
            self.hosts, cluster, session_timeout_s=session_timeout_s, root=self.root
        )


@contextmanager
def service(directory: Path) -> Iterator[ZooKeeperService]:
    """Provide the ZooKeeper that ``VQ_TEST_ZOOKEEPER`` asks for."""
    wanted = os.environ.get("VQ_TEST_ZOOKEEPER", "")
    if wanted == "docker":
        with _container() as hosts:
            yield ZooKeeperService(hosts)
    elif wanted:
        yield ZooKeeperService(wanted)
    else:
        with embedded(directory) as server:
            yield ZooKeeperService(server.hosts, server)


@contextmanager
def embedded(
    directory: Path, *, servers: int = 1, tick_ms: int = 500
) -> Iterator[EmbeddedZooKeeper]:
    """Run a ZooKeeper that the test may kill, pause and wipe."""
    try:
        server = EmbeddedZooKeeper(directory, servers=servers, tick_ms=tick_ms)
    except MissingPart as error:
        unavailable(str(error))
    with server:
        yield server


@contextmanager
def own_root(hosts: str) -> Iterator[ZooKeeperRoot]:
    """Provide a root for one test and delete it afterwards."""
    root = f"/vq-test/{uuid.uuid4().hex}"
    try:
        yield ZooKeeperRoot(hosts, root)
    finally:
        with admin(hosts) as client:
            client.delete(root, recursive=True)


@contextmanager
def admin(hosts: str, client_id: tuple[int, bytes] | None = None) -> Iterator[KazooClient]:
    """Connect a bare client, for what an operator would do by hand."""
    client = KazooClient(hosts, timeout=4.0, client_id=client_id)
    client.start(timeout=PROCESSES_WAIT_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def expire_session(coordinator: ZooKeeperCoordinator) -> None:
    """End a coordinator's session as the server would: a second client closes the same session.

    The first one wants it back meanwhile, and may be faster than the close; so again, until the
    server does not know the session any more. Blocks; call it in a thread.
    """
    client = coordinator.kazoo
    assert client is not None
    session = client.client_id
    assert session is not None
    deadline = time.monotonic() + PROCESSES_WAIT_S
    while time.monotonic() < deadline:
        with admin(coordinator.hosts, session) as second:
            if second.client_id[0] != session[0]:
                return
    raise AssertionError(
        f"session {session[0]:#x} lives on after {PROCESSES_WAIT_S:g} s of closing it"
    )


def unavailable(reason: str) -> "None":
    """Something is not installed: skip on a laptop, fail on CI, which installs what it needs."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def forbidden(reason: str) -> "None":
    """The machine, or our user, may not do it: skip with the reason."""
    pytest.skip(reason)


@contextmanager
def _container() -> Iterator[str]:
    from testcontainers.core.container import DockerContainer

    _need_docker_engine()
    container = DockerContainer(DOCKER_IMAGE).with_exposed_ports(2181)
    container.with_env("ZOO_4LW_COMMANDS_WHITELIST", "*").with_env("ZOO_TICK_TIME", "500")
    with container:
        host, port = container.get_container_host_ip(), int(container.get_exposed_port(2181))
        deadline = time.monotonic() + PROCESSES_WAIT_S
        while "Mode:" not in four_letter_word(host, port, "srvr"):
            if time.monotonic() > deadline:
                pytest.fail(
                    f"{DOCKER_IMAGE} at {host}:{port} did not serve in {PROCESSES_WAIT_S} s"
                )
            time.sleep(0.1)
        yield f"{host}:{port}"


def _need_docker_engine() -> None:
    import docker

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a failed look leaves an open socket behind
        try:
            client = docker.from_env()
            client.ping()
            client.close()
        except docker.errors.DockerException as error:
            reason = f"VQ_TEST_ZOOKEEPER=docker, but no Docker engine answers: {error}"
        else:
            return
        gc.collect()
    unavailable(reason)


def let_read(hosts: str, path: str, *, allowed: bool) -> None:
    """Say by the ACL of a node whether anybody may read it; ``path`` is absolute.

    Whoever denies it must allow it again: what deletes a test's root reads all nodes.
    """
    rights = make_acl(
        "world", "anyone", read=allowed, write=True, create=True, delete=True, admin=True
    )
    with admin(hosts) as client:
        client.set_acls(path, [rights])
