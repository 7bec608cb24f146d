"""A running cluster of plain brokers changes to TLS, users and rules, one node after the other.

Goal: the steps of SECURITY.md and of its pages, under load. No send fails; each message that was
acknowledged is stored once, in order, and received. The clients change between two changes of the
brokers, and work with what there was before and with what comes next. Three nodes of a group with
copies, real processes, a real ZooKeeper; only in the long form, for each step restarts them all.
The short form is ``cluster/client/test_rolling_security.py``.

    brokers                       clients
    plain                         plain
    tls_mode = accepted           plain
    tls_mode = preferred          plain, then TLS
    TLS alone                     TLS
    authentication = optional     TLS, then TLS with a user
    authentication = required     with a user
    authorization = permissive    with a user; rules are added
    authorization = enforced      with a user
"""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import trustme
from support.certificates import write_tls
from support.cluster import ForkedBroker, ProcessCluster

import vq
from vq.errors import NotAuthenticated, NotAuthorized
from vq.security.tls import Tls
from vq.testing.waiting import PROCESSES_WAIT_S, block_until

PACE_S = 0.005
NODES = ("n1", "n2", "n3")
PASSWORD = "correct horse battery staple"
EACH = 1_000_000


class Clients:
    """A sender of numbers, each when the last is stored, and a member of a group; threads."""

    def __init__(self, config: vq.MessageFactoryConfig, first: int, received: list[int]) -> None:
        self.sent: list[int] = []
        self._next = first
        self._stops = threading.Event()
        self._error: BaseException | None = None
        self._held = ExitStack()
        self._factory = self._held.enter_context(vq.MessageFactory(config))
        consumer = self._factory.create_consumer(vq.ConsumerConfig(group="g"))
        self._held.enter_context(consumer)
        consumer.subscribe("t", 1 << 20, lambda message: received.append(int(message.content)))
        consumer.start()
        self._thread = threading.Thread(target=self._send)
        self._thread.start()
        block_until(lambda: len(self.sent) > 20 or self._error)

    def _send(self) -> None:
        try:
            with self._factory.create_producer() as producer:
                while not self._stops.wait(PACE_S):
                    producer.send_sync(vq.Message("t", b"%d" % self._next, key="k"), timeout=None)
                    self.sent.append(self._next)
                    self._next += 1
        except BaseException as error:
            self._error = error

    def check(self) -> None:
        """Raise what a send raised; it goes on otherwise."""
        if self._error is not None:
            raise self._error
        count = len(self.sent)
        block_until(lambda: len(self.sent) > count or self._error, "no send ends")

    def finish(self) -> None:
        """Stop, and raise what a send raised."""
        self._stops.set()
        self._thread.join(PROCESSES_WAIT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        assert len(self.sent) > 20, "it did nothing"

    def close(self) -> None:
        """Leave the group, and close."""
        self._stops.set()
        self._held.close()


class Rolling:
    """The nodes, and what an operator does to them."""

    def __init__(self, processes: ProcessCluster, settings: Path) -> None:
        self.processes = processes
        self._settings = settings
        self.tls: Tls | None = None
        self._settings.write_text("[broker]\n")
        for node in NODES:
            spec = processes.spec("b1", "--config", str(settings), node=node)
            spec = replace(spec, data=processes.directory / f"b1-{node}")
            processes.run(ForkedBroker(spec), name=node)
            if node == NODES[0]:
                self.vq("topic", "create", "t", "--partitions", "1")
        self._wait("the start")

    def vq(self, *arguments: str, code: int = 0) -> str:
        """Run a command of an operator."""
        reached = () if self.tls is None else ("--tls-ca", str(self.tls.ca))
        ended = self.processes.vq(*arguments, *reached)
        assert ended.returncode == code, ended.stderr.decode()
        return ended.stdout.decode()

    def change(self, clients: Clients, *, tls: Tls | None = None, **settings: str) -> None:
        """Restart one node after the other with settings; the clients go on."""
        lines = [f"{name} = {value!r}\n" for name, value in settings.items()]
        self._settings.write_text("".join(["[broker]\n", *lines]))
        for node in NODES:
            old = self.processes.brokers[node]
            assert old.stop() == 0
            self.processes.run(ForkedBroker(replace(old.spec, tls=tls or old.spec.tls)), name=node)
            self._wait(f"{node} has {settings}")
            clients.check()

    def _wait(self, after: str) -> None:
        """Return when all nodes are in sync."""

        def in_sync() -> bool:
            reached = () if self.tls is None else ("--tls-ca", str(self.tls.ca))
            ended = self.processes.vq("cluster", "status", *reached)
            return ended.returncode == 0

        block_until(in_sync, f"not all are in sync after {after}")


@pytest.fixture
def rolling(processes: ProcessCluster, tmp_path: Path) -> Rolling:
    return Rolling(processes, tmp_path / "vq.toml")


def stored(config: vq.MessageFactoryConfig) -> Iterator[int]:
    """Yield the numbers in the log."""
    with vq.MessageFactory(config) as factory, factory.create_consumer() as consumer:
        bounds = consumer.get_bounds("t", 0)
        offset = bounds.earliest
        while offset < bounds.latest:
            for each in consumer.get("t", 0, offset, 1 << 20):
                yield int(each.content)
                offset = each.next_offset


def refused(config: vq.MessageFactoryConfig) -> vq.VqError | None:
    """Return the error of a send; None: it was stored."""
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        try:
            producer.send_sync(vq.Message("t", b"0"), timeout=5)
        except vq.VqError as error:
            return error
    return None


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_running_cluster_changes_to_tls_users_and_rules(
    rolling: Rolling, processes: ProcessCluster, tmp_path: Path
) -> None:
    files = write_tls(tmp_path / "tls", trustme.CA())
    secret = tmp_path / "password"
    secret.write_text(f"{PASSWORD}\n")
    secret.chmod(0o600)
    rolling.vq("topic", "alter", "t", "--min-insync", "2")
    plain = vq.MessageFactoryConfig(zookeeper=processes.zookeeper, cluster=processes.name)
    secure = replace(plain, tls=Tls(ca=files.ca))
    anna = replace(secure, user="anna", password=PASSWORD)
    received: list[int] = []
    generations: list[Clients] = []

    def next_clients(config: vq.MessageFactoryConfig) -> Clients:
        """Have other clients come, and those before them go."""
        made = Clients(config, EACH * (len(generations) + 1), received)
        for each in generations[-1:]:
            each.finish()
            each.close()
        generations.append(made)
        return made

    try:
        clients = next_clients(plain)
        # docs/howto/use-tls.md
        rolling.change(clients, tls=files, tls_mode="accepted")
        rolling.change(clients, tls_mode="preferred")
        rolling.tls = files
        clients = next_clients(secure)
        rolling.change(clients)
        assert refused(plain)
        # docs/howto/users.md
        rolling.change(clients, authentication="optional")
        rolling.vq("user", "add", "anna", "--new-password-file", str(secret))
        clients = next_clients(anna)
        rolling.change(clients, authentication="required")
        assert isinstance(refused(secure), NotAuthenticated)
        # docs/howto/rules.md
        known = {"authentication": "required"}
        rolling.change(clients, **known, authorization="permissive")
        logs = [each.spec.log for each in processes.brokers.values()]
        told = "requests without a right carried_out=true"
        block_until(lambda: any(told in each.read_text() for each in logs), "nothing is told")
        rolling.vq("acl", "add", "user:anna", "read,write", "topic:t")
        rolling.vq("acl", "test", "anna", "write", "topic:t")
        rolling.change(clients, **known, authorization="enforced")
        clients.finish()
        acknowledged = {number for each in generations for number in each.sent}
        block_until(lambda: acknowledged <= {*received}, "not all is received")
        rolling.vq("acl", "add", "user:anna", "write", "topic:t", "--deny")
        block_until(lambda: isinstance(refused(anna), NotAuthorized), "the rule is not heard of")
        rolling.vq("acl", "remove", "user:anna", "write", "topic:t", "--deny")
    finally:
        for each in generations:
            each.close()
    found = [each for each in stored(anna) if each]
    assert sorted(found) == sorted({*found}), "a message is stored twice"
    assert acknowledged <= {*found}
    for first in range(EACH, EACH * (len(generations) + 1), EACH):
        own = [each for each in found if first <= each < first + EACH]
        assert own == sorted(own), "messages are stored in another order"
