"""Two broker processes behind TLS: copies, commands, both lanes of a producer, SIGHUP."""

import asyncio
import contextlib
import datetime
import signal
import socket
import ssl
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme
from support.certificates import write_tls
from support.cluster import ForkedBroker, ProcessCluster, process_cluster
from support.gateway_process import gateway_process
from support.raw_client import RawClient
from support.zookeeper import ZooKeeperService

import vq
from vq.devtools.processes import BrokerChild, ask_status
from vq.security.tls import Tls, TlsContexts
from vq.testing.waiting import block_until

#: So many connections are open at once, and each may take so much of a broker.
IDLE = 250
IDLE_BYTES_MAX = 48 << 10
LINES = [f"line {number}" for number in range(50)]


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(ca: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return write_tls(tmp_path_factory.mktemp("tls"), ca)


class TlsCluster(ProcessCluster):
    """Its command has the files of TLS in its environment."""

    tls: Tls

    @property
    def environ(self) -> dict[str, str]:
        files = {"CA": self.tls.ca, "CERTIFICATE": self.tls.certificate, "KEY": self.tls.key}
        return {**super().environ, **{f"VQ_TLS_{name}": str(file) for name, file in files.items()}}


@pytest.fixture(scope="module")
def cluster(
    tls: Tls, tmp_path_factory: pytest.TempPathFactory, zookeeper: ZooKeeperService
) -> Iterator[TlsCluster]:
    """Two nodes that ask each other, and clients, for certificates; metrics without."""
    with process_cluster(tmp_path_factory.mktemp("brokers"), zookeeper.hosts, TlsCluster) as made:
        made.tls = tls
        for node in ("n1", "n2"):
            spec = made.spec("b1", node=node)
            spec = replace(
                spec,
                tls=tls,
                data=spec.data.with_name(f"b1-{node}"),
                metrics_port=made.hold_port(),
                more=("--tls-client-certificates", "required"),
            )
            made.run(ForkedBroker(spec), name=node)
        yield made


@pytest.fixture(scope="module")
def topic(cluster: TlsCluster) -> str:
    made = cluster.vq("topic", "create", "t", "--partitions", "1", "--min-insync", "2")
    assert made.returncode == 0, made.stderr.decode()
    return "t"


def status(broker: BrokerChild, tls: Tls) -> Any:
    spec = broker.spec
    found = asyncio.run(ask_status(spec.address, cluster=spec.cluster, tls=tls))
    assert found is not None
    return found


def test_commands_and_copies_go_over_tls(cluster: TlsCluster, topic: str) -> None:
    """Each message is stored on both nodes before it is acknowledged."""
    text = "\n".join(LINES).encode()
    sent = cluster.vq("produce", topic, stdin=text)
    assert sent.returncode == 0, sent.stderr.decode()
    got = cluster.vq("consume", topic, "--group", "g", "--max", str(len(LINES)), "--timeout", "30")
    assert sorted(got.stdout.decode().splitlines()) == sorted(LINES)


def test_a_plain_client_is_told_what_to_set(cluster: TlsCluster, topic: str) -> None:
    config = vq.MessageFactoryConfig(
        zookeeper=cluster.zookeeper, cluster=cluster.name, connect_timeout_s=1.0
    )
    with (
        vq.MessageFactory(config) as factory,
        factory.create_producer() as producer,
        pytest.raises(vq.VqError, match="if it serves TLS, give tls_ca"),
    ):
        producer.send_sync(vq.Message(topic, b"x"), timeout=0.5)


def test_an_idle_connection_takes_little_of_a_broker(cluster: TlsCluster, tls: Tls) -> None:
    """After connections that were open before, too, whose memory lies about."""
    broker, context = cluster.brokers["n1"], TlsContexts(tls).client()
    found = []
    for _ in range(2):
        with contextlib.ExitStack() as held:
            before = memory_of(broker)
            for _ in range(IDLE):
                held.enter_context(RawClient(broker.spec.address, context=context))
            found.append((memory_of(broker) - before) / IDLE)
        block_until(lambda: status(broker, tls).connections < IDLE // 2)
    assert max(found) < IDLE_BYTES_MAX, found


def memory_of(broker: BrokerChild) -> int:
    """Return the bytes of memory, without those of files, that a broker has."""
    text = Path(f"/proc/{broker.pid}/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def test_metrics_are_served_over_tls(cluster: TlsCluster, tls: Tls) -> None:
    broker = cluster.brokers["n1"].spec
    context = TlsContexts(Tls(ca=tls.ca)).client()
    with urllib.request.urlopen(f"https://{broker.metrics}/metrics", context=context) as page:
        text = page.read().decode()
    assert "vq_tls_files_refused 0.0" in text
    assert "vq_tls_certificate_expiry_timestamp_seconds" in text


def https_flags(tls: Tls) -> tuple[str, ...]:
    certificate, key, ca = map(str, (tls.certificate, tls.key, tls.ca))
    return ("--https-certificate", certificate, "--https-key", key, "--https-ca", ca)


def test_the_gateway_serves_https_and_takes_new_files(
    cluster: TlsCluster, topic: str, ca: trustme.CA, tmp_path: Path
) -> None:
    """An open connection goes on; a new one gets the new certificate. Metrics have it, too."""
    web = write_tls(tmp_path / "web", ca)
    context = TlsContexts(Tls(ca=web.ca)).client()
    with gateway_process(cluster, tmp_path, *https_flags(web), tls=context) as gateway:
        page = httpx.get(f"{gateway.metrics}/metrics", verify=context)
        assert page.status_code == 200
        with gateway.client() as client:
            send = {"text": "over https"}
            answer = client.post(f"/v1/topics/{topic}/messages", json=send)
            assert answer.status_code == 201, answer.text
            until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)
            write_tls(tmp_path / "web", ca, expires=until)
            gateway.process.send_signal(signal.SIGHUP)
            block_until(lambda: ends_of(gateway.port, context) == int(until.timestamp()))
            block_until(
                lambda: ends_of(port_of(gateway.metrics), context) == int(until.timestamp())
            )
            assert client.post(f"/v1/topics/{topic}/messages", json=send).status_code == 201
        with socket.create_connection(("127.0.0.1", gateway.port)) as silent:
            assert gateway.serves()
            silent.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert silent.recv(100) == b""
        assert gateway.stop() == 0


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def ends_of(port: int, context: ssl.SSLContext) -> int:
    """When the certificate of a new connection expires."""
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
    ):
        found: Any = secure.getpeercert()
        return int(ssl.cert_time_to_seconds(found["notAfter"]))


def test_sighup_takes_new_files_and_no_send_fails(
    cluster: TlsCluster, topic: str, ca: trustme.CA, tls: Tls, tmp_path: Path
) -> None:
    """Bad files are told, and change nothing, for new connections either."""
    first = cluster.brokers["n1"]
    until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)
    key = Path(str(tls.key))
    client = write_tls(tmp_path, ca, "client")
    config = vq.MessageFactoryConfig(zookeeper=cluster.zookeeper, cluster=cluster.name, tls=client)
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        producer.send_sync(vq.Message(topic, b"before"))
        write_tls(key.parent, ca, expires=until)
        first.signal(signal.SIGHUP)
        ends_ms = int(until.timestamp()) * 1_000
        block_until(lambda: status(first, client).tls_expires_ms == ends_ms)
        assert any("expires in 2 days" in each for each in status(first, client).problems)
        producer.send_sync(vq.Message(topic, b"on the old connection"))
        key.write_bytes(key.read_bytes()[:40])
        first.signal(signal.SIGHUP)
        block_until(lambda: any("stay in use" in each for each in status(first, client).problems))
        with vq.MessageFactory(config) as other, other.create_producer() as newcomer:
            newcomer.send_sync(vq.Message(topic, b"on a new connection"))
        producer.send_sync(vq.Message(topic, b"after"))
    assert b"TLS files cannot be used" in first.spec.log.read_bytes()
