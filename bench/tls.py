"""What TLS costs: the same loads over two clusters of one broker, one plain and one behind TLS.

The plain one is measured just before, and is the baseline.
"""

import contextlib
import os
import resource
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import vq
from bench.cluster import CLUSTER, Cluster
from bench.context import Context, Rounds
from bench.figures import Figure, Target
from bench.processor import memory_of, processor_s
from vq.cli.bench.workload import WorkFailed
from vq.remoting.format import VERSION_MAX, VERSION_MIN, Command
from vq.remoting.frames import encode_frame
from vq.remoting.wire_pb2 import HelloRequest
from vq.security.tls import TlsContexts

SIZE: Final = 1024
_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")

TARGETS: Final = {
    "1 KiB in": Target(ratio_min=0.60),
    "1 KiB out": Target(ratio_min=0.60),
    "raw fetch": Target(ratio_min=0.30),
    "send_sync, 1 thread, p50, beyond plain": Target(value_max=0.15),
    "idle connection, memory of the broker": Target(value_max=64.0),
}
#: Connections from one address of loopback: a broker takes up to 1,000.
_PER_ADDRESS: Final = 900


def tls(context: Context) -> Rounds:
    """1 KiB in with callbacks, out to a listener, raw; one send at a time; idle connections."""
    files = _files(context.directory)
    with (
        context.cluster() as plain,
        context.cluster(tls=files) as secure,
        contextlib.ExitStack() as held,
    ):
        idle = _Idle(secure, files, held)
        idle.open(_PER_ADDRESS // 9)  # what comes with the first ones only
        for _ in range(context.rounds):
            without = _measured(context, plain)
            with _environment(files):
                behind = _measured(context, secure)
            p50 = "send_sync, 1 thread, p50"
            figures = [
                Figure(name, value, unit, without[name][0])
                for name, (value, unit) in behind.items()
            ]
            more = behind[p50][0] - without[p50][0]
            idle_figures = idle.measured(context.pick(3_000, 300))
            yield [*figures, Figure(f"{p50}, beyond plain", more, "ms"), *idle_figures]


class _Idle:
    """Connections that have said HELLO, and nothing else; all stay open.

    Each round has more of them: what the broker frees it keeps for others, so memory that was used
    before would not show.
    """

    def __init__(self, cluster: Cluster, files: vq.Tls, held: contextlib.ExitStack) -> None:
        self._broker = cluster.broker
        self._context = TlsContexts(vq.Tls(ca=files.ca)).client()
        self._held = held
        self._count = 0
        hello = HelloRequest(
            version_min=VERSION_MIN, version_max=VERSION_MAX, client_id="idle", cluster=CLUSTER
        )
        self._hello = encode_frame(Command.HELLO, 0, 1, 0, hello.SerializeToString())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))

    def open(self, count: int) -> None:
        """Open so many more."""
        address = self._broker.spec.address
        for _ in range(count):
            source = f"127.0.0.{2 + self._count // _PER_ADDRESS}"
            plain = socket.create_connection(address, source_address=(source, 0))
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secure = self._context.wrap_socket(plain, server_hostname=address.host)
            self._held.callback(secure.close)
            secure.sendall(self._hello)
            if not secure.recv(4096):
                raise WorkFailed(f"the broker refused connection {self._count}")
            self._count += 1

    def measured(self, count: int) -> list[Figure]:
        """Open so many more; return what each costs the broker."""
        pid = self._broker.pid
        memory, used = memory_of(pid)["RssAnon"], processor_s(pid)
        self.open(count)
        used = processor_s(pid) - used
        grown = memory_of(pid)["RssAnon"] - memory
        return [
            Figure("idle connection, memory of the broker", grown * 1e6 / 1024 / count, "KiB"),
            Figure("handshakes for a second of the broker's core", count / used, "/s"),
        ]


def _measured(context: Context, cluster: Cluster) -> dict[str, tuple[float, str]]:
    count = context.pick(250_000, 20_000)
    topic = cluster.topic()
    sent = cluster.run("send_async", topic=topic, count=count, size=SIZE)
    cluster.run("verify", topic=topic, size=SIZE, sent=sent["sent"])
    out = cluster.run("consume", topic=topic, group=topic, count=count, size=SIZE)
    raw = cluster.run(
        "raw_fetch",
        topic=topic,
        address=str(cluster.broker.spec.address),
        passes=context.pick(8, 3),
        size=SIZE,
        sent=sent["sent"],
    )
    one = cluster.topic()
    seconds = 1.0 if context.quick else 5.0
    waited = cluster.run("send_sync", topic=one, seconds=seconds, size=SIZE, threads=1)
    for each in (topic, one):
        cluster.drop(each)
    return {
        "1 KiB in": (_rate(sent) * SIZE / 1e6, "MB/s"),
        "1 KiB out": (_rate(out) * SIZE / 1e6, "MB/s"),
        "raw fetch": (raw["bytes"] / raw["seconds"] / 1e6, "MB/s"),
        "send_sync, 1 thread, p50": (waited["latency_ms"]["p50"], "ms"),
    }


def _rate(found: Mapping[str, Any]) -> float:
    rate: float = found["messages"] / found["seconds"]
    return rate


@contextlib.contextmanager
def _environment(files: vq.Tls) -> Iterator[None]:
    """Have clients, also those in processes of their own, use TLS."""
    given = {"VQ_TLS_CA": str(files.ca)}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)


def _files(directory: Path) -> vq.Tls:
    """Make an authority, and a certificate of this machine, as the how-to has it.

    Raises:
        WorkFailed: openssl is not there, or fails.
    """
    place = directory / "tls"
    place.mkdir(exist_ok=True)
    (place / "broker.ext").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    as_ca = ("-x509", "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    as_broker = ("-subj", "/CN=b", "-keyout", "broker.key", "-out", "broker.csr")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2")
    named = ("-extfile", "broker.ext", "-out", "broker.pem")
    for command in (
        ("req", *_KEY, *as_ca),
        ("req", *_KEY, *as_broker),
        ("x509", "-req", "-in", "broker.csr", *signed, *named),
    ):
        try:
            subprocess.run(["openssl", *command], cwd=place, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise WorkFailed(f"openssl, which makes certificates, fails: {error}") from error
    return vq.Tls(ca=place / "ca.pem", certificate=place / "broker.pem", key=place / "broker.key")
