"""Looks at ZooKeeper's servers, this machine and the brokers; the conclusions: ``test_checks``."""

import contextlib
import datetime
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme
from support.broker import memory_cluster
from support.certificates import write_tls
from support.client import started
from support.hosts import HOSTS

from vq.broker.base.config import BrokerConfig
from vq.client.config import MessageFactoryConfig
from vq.coordination.groups import groups
from vq.coordination.tree.values.consumers import CommittedOffset, ConsumerGroup, Member
from vq.errors import CoordinationError
from vq.message_filter import ALL
from vq.model import Address
from vq.operations.cluster import doctor
from vq.operations.cluster.checks import Level
from vq.remoting.ports import free_port
from vq.security.tls import Tls
from vq.testing.waiting import until_true


@pytest.mark.parametrize("host", HOSTS)
def test_a_zookeeper_that_is_silent_and_one_that_is_away(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        address = Address(host, server.getsockname()[1])

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(16)
                connection.sendall(b"Zookeeper version: 3.9.2-abc, built on some day\n")

        threading.Thread(target=answer, daemon=True).start()
        assert doctor.server_version(str(address)) == "3.9.2"
    assert doctor.server_version(str(Address(host, free_port()))) is None


def test_what_accepts_and_is_no_zookeeper_that_answers_counts_as_silent() -> None:
    """As a server that hangs, or the port of a broker; a ZooKeeper may hide its version."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = str(Address("127.0.0.1", server.getsockname()[1]))
        assert doctor.server_version(address) is None  # the system accepts, nobody answers
        server.accept()[0].close()
        for answer, version in (
            (b"HTTP/1.1 400 Bad Request\r\n\r\n", None),
            (b"", None),
            (b"srvr is not executed because it is not in the whitelist.\n", "unknown"),
            (b"This ZooKeeper instance is not currently serving requests\n", "unknown"),
        ):
            with answering(server, answer):
                assert doctor.server_version(address) == version


@contextlib.contextmanager
def answering(server: socket.socket, answer: bytes) -> Iterator[None]:
    """Answer one connection; none is left when the block ends."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection:
            connection.recv(16)
            connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield
    thread.join(10)


def test_a_host_that_none_can_be_is_away_and_not_an_error() -> None:
    assert doctor.server_version("a..b:2181") is None
    assert doctor.server_version("a..b") is None


def test_a_data_directory_that_is_not_there_yet_is_looked_at_where_it_will_be(
    tmp_path: Path,
) -> None:
    config = BrokerConfig(data=tmp_path / "not" / "yet", group="g", node="n")
    findings = {each.check: each for each in doctor.check_machine(config)}
    assert list(findings) == [
        "client loops",
        "open files",
        "data directory",
        "disk space",
        "fdatasync",
    ]
    assert findings["data directory"].detail == (
        f"{tmp_path}/not/yet does not exist; its nearest directory {tmp_path} can be written"
    )


def test_a_data_directory_that_hangs_is_told_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a mount whose server is away."""
    answers = threading.Event()
    monkeypatch.setattr(doctor, "ANSWER_S", 0.01)
    monkeypatch.setattr(doctor, "sync_times", lambda place: answers.wait(30) and [0.001] * 7)
    config = BrokerConfig(data=tmp_path, group="g", node="n")
    finding = doctor.check_machine(config)[-1]
    answers.set()
    assert (finding.check, finding.level) == ("data directory", Level.FAIL)
    assert finding.detail == f"{tmp_path} does not answer within 0.01 s"


def test_an_error_of_a_data_directory_is_that_of_the_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(place: Path) -> list[float]:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(doctor, "sync_times", refuse)
    finding = doctor.check_machine(BrokerConfig(data=tmp_path, group="g", node="n"))[-1]
    assert (finding.check, finding.level) == ("data directory", Level.FAIL)


async def test_every_broker_and_its_clock_is_a_finding() -> None:
    async with memory_cluster() as cluster:
        await cluster.start("b1")
        await cluster.start("b2")
        async with started(cluster) as client:
            findings = {each.check: each for each in await doctor.check_brokers(client)}
            assert [*findings] == ["broker b1/n1", "broker b2/n1", "clocks"]
            cluster.network.kill("b2")
            findings = {each.check: each for each in await doctor.check_brokers(client)}
            assert findings["broker b1/n1"].level is Level.OK
            assert findings["broker b2/n1"].level is Level.FAIL


async def test_topics_that_refuse_messages_for_lack_of_nodes_fail_a_check() -> None:
    async with memory_cluster() as cluster:
        await cluster.start("b1")
        await cluster.create_topic("t", min_insync=2)
        async with started(cluster) as client:

            async def told() -> bool:  # once the broker has read of the topic
                failed = [e for e in await doctor.check_brokers(client) if e.level is Level.FAIL]
                return [each.check for each in failed] == ["group b1"] and "t (2)" in failed[
                    0
                ].detail

            await until_true(told)


async def test_a_group_without_a_node_says_which_nodes_have_its_messages() -> None:
    async with memory_cluster() as cluster:
        node = await cluster.start("b1")
        async with started(cluster) as client:
            await node.stop()
            failed = [e for e in await doctor.check_brokers(client) if e.level is Level.FAIL]
            assert [each.check for each in failed] == ["group b1"]
            assert "In sync: n1 (not registered)" in failed[0].detail


async def test_a_session_that_fails_is_not_told_to_run_the_doctor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_session(*_: object, **__: object) -> None:
        remedy = "check the address: `vq doctor`"
        raise CoordinationError(f"no session: it hangs; {remedy}", hint=remedy)

    monkeypatch.setattr(doctor, "server_version", lambda *_: "3.9.2")
    monkeypatch.setattr(doctor, "cluster_client", no_session)
    found = await doctor.check_cluster(MessageFactoryConfig(zookeeper="a:1"))
    assert [(each.check, each.detail) for each in found[1:]] == [
        ("session", "no session: it hangs")
    ]


async def test_offsets_of_what_does_not_exist_and_of_stores_that_are_elsewhere() -> None:
    """What ZooKeeper tells; a store outside of it is known by its identity alone."""
    async with memory_cluster() as cluster:
        await cluster.start("b1")
        await cluster.create_topic("t", partitions=2)
        async with started(cluster) as client:
            tree = client.coordinator

            async def offsets(group: str, topic: str, number: int, **values: Any) -> None:
                offset = CommittedOffset(offset=0, **values)
                path = CommittedOffset.path(group, topic, number)
                await tree.create(path, offset.encode(), parents=True)

            async def found() -> list[tuple[str, Level, str]]:
                checked = await doctor.check_brokers(client)
                return [
                    (each.check, each.level, each.detail)
                    for each in checked
                    if each.check.startswith("offset")
                ]

            now_ms = client.clock.wall_ms()
            await groups.ensure_group(tree, "plain", ConsumerGroup(topics={"t": ALL}))
            await offsets("plain", "t", 1, time_ms=now_ms)
            assert await found() == [], "all is well in ZooKeeper"
            await offsets("plain", "t", 2)
            await offsets("plain", "gone", 0)
            sql = ConsumerGroup(topics={"t": ALL}, offset_store="sql:0123456789abcdef")
            await groups.ensure_group(tree, "own", sql)
            await offsets("own", "t", 0, copied=True)
            await offsets("own", "t", 1)
            told = "1 group(s) have their offsets elsewhere (own: sql:0123456789abcdef)"
            plain, others = await found()
            assert plain[:2] == ("offsets of plain", Level.WARN)
            assert "some of gone, t-2, which does not exist" in plain[2]
            assert others[:2] == ("offset stores", Level.OK)
            assert others[2].startswith(told)
            await groups.join_group(tree, "own", "m", Member(nonce="n"))
            waits, _, _ = await found()
            assert waits[:2] == ("offsets of own", Level.WARN)
            assert (
                "was set for t-1 into the store sql:0123456789abcdef, with 1 member(s)" in waits[2]
            )
            await tree.set(
                CommittedOffset.path("own", "t", 1),
                CommittedOffset(offset=0, time_ms=now_ms).encode(),
            )
            assert len(await found()) == 2, "a member may be about to take it"


def test_the_certificate_of_a_broker_here_is_tried_before_it_starts(tmp_path: Path) -> None:
    """Files that cannot be used, another name, and one that expires soon."""
    ca = trustme.CA()
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=20, hours=1)
    good = write_tls(tmp_path / "good", ca)
    for tls, level, said in (
        (good, Level.OK, "expires in"),
        (write_tls(tmp_path / "soon", ca, expires=soon), Level.WARN, "expires in 20 days"),
        (write_tls(tmp_path / "name", ca, "b2.example"), Level.FAIL, "another name"),
        (Tls(certificate=good.certificate, key=tmp_path / "none"), Level.FAIL, "cannot be read"),
    ):
        config = BrokerConfig(data=tmp_path, group="b1", node="n1", tls=tls)
        [found] = doctor.check_certificate(config)
        assert found.level is level, found
        assert said in found.detail
    plain = BrokerConfig(data=tmp_path, group="b1", node="n1")
    assert doctor.check_certificate(plain) == []
