"""NATS JetStream as three nodes with streams of three replicas, through nats-py.

The leader of a stream acknowledges when a majority, two of three, has stored a message. By default
the nodes sync every two minutes: page cache class. From 2.10 on, ``sync_interval: always`` has them
sync each write: fsync class.
"""

import asyncio
import contextlib
import functools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.peers import nats
from bench.peers.accounts import account
from bench.peers.cluster import NODES, STRUCK, ClusterPeer, Nodes
from bench.peers.peer import FSYNC, PAGE_CACHE, Missing, Server
from bench.peers.steady import Progress, publish_steadily
from vq.cli.bench.workload import Ready, WorkFailed
from vq.remoting.ports import free_port

_WAIT_S: Final = 60.0
_ANSWER_S: Final = 1.0
_ASKED_S: Final = 3.0
_READS_MAX: Final = 5
_PAUSE_S: Final = 0.05
_SYNCS_SINCE: Final = (2, 10)


def check_synced() -> str:
    """See ``ClusterPeer.check``; of a server that can sync each write."""
    version = nats.check()
    if tuple(int(part) for part in version.split(".")[:2]) < _SYNCS_SINCE:
        raise Missing(
            f"nats-server {version} is older than 2.10, the first with sync_interval: always; "
            "NATS_SERVER can name a newer one"
        )
    return version


@contextlib.contextmanager
def running(directory: Path, *, synced: bool) -> Iterator[Nodes]:
    """See ``ClusterPeer.running``."""
    ports = [free_port() for _ in range(NODES)]
    inner = [free_port() for _ in range(NODES)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in inner)
    with contextlib.ExitStack() as stack:
        servers = []
        for at, (port, cluster_port) in enumerate(zip(ports, inner, strict=True)):
            file = directory / f"n{at + 1}.conf"
            file.write_text(
                f"server_name: n{at + 1}\nlisten: 127.0.0.1:{port}\n"
                f'jetstream {{ store_dir: "{directory / f"n{at + 1}"}"'
                + (", sync_interval: always" if synced else "")
                + " }\n"
                f"cluster {{ name: bench, listen: 127.0.0.1:{cluster_port}, routes: [{routes}] }}\n"
            )
            command = [nats.program(), "-c", str(file)]
            servers.append(stack.enter_context(Server(command, directory / f"n{at + 1}.log")))
        for server, port in zip(servers, ports, strict=True):
            server.wait_port(port)
        yield Nodes(ports, servers, functools.partial(_leader, ports), {"replicas": NODES})


def _leader(ports: list[int], name: str) -> int:
    """Return which node leads a stream, once both others follow it."""

    async def find() -> int:
        deadline = time.monotonic() + _WAIT_S
        said: object = None
        while time.monotonic() < deadline:
            try:
                client, jetstream = await nats.stream(ports[0], name, NODES, _ASKED_S)
            except Exception as error:  # noqa: BLE001 - without a leader nobody answers
                said = error
                await asyncio.sleep(0.2)
                continue
            info = await jetstream.stream_info(name)
            await client.close()
            cluster = info.cluster
            said = cluster
            others = [each for each in cluster.replicas or () if each.current]
            if cluster.leader and len(others) == NODES - 1:
                return int(cluster.leader[1:]) - 1
            await asyncio.sleep(0.2)
        raise Missing(f"stream {name} had no three replicas after {_WAIT_S:g} s: {said}")

    return asyncio.run(find())


# Client works -----------------------------------------------------------------------------------
async def _connect(ports: list[int]) -> Any:
    import nats as client

    return await client.connect(
        [f"nats://127.0.0.1:{port}" for port in ports],
        dont_randomize=True,
        reconnect_time_wait=0.1,
        max_reconnect_attempts=-1,
        error_cb=_ignore,
    )


async def _ignore(_error: Exception) -> None:
    """A lost connection is what is measured; the client makes another one."""


def keep_sending(
    ready: Ready, *, ports: list[int], stream: int, in_flight: int, rate: float, size: int
) -> dict[str, Any]:
    """Publish with an id each, and again after a second without an answer."""

    async def work() -> dict[str, Any]:
        import nats as package

        client = await _connect(ports)
        jetstream = client.jetstream()

        async def publish(number: int, body: bytes) -> None:
            headers = {"Nats-Msg-Id": f"{stream}-{number}"}
            while True:
                try:
                    await jetstream.publish(
                        f"{STRUCK}.messages", body, timeout=_ANSWER_S, headers=headers
                    )
                except (package.errors.Error, TimeoutError):
                    await asyncio.sleep(_PAUSE_S)
                else:
                    return

        progress = Progress(stream=stream, size=size, in_flight=in_flight, rate=rate)
        result = await publish_steadily(ready, progress, publish)
        await client.close()
        return result

    return asyncio.run(work())


def read_back(
    ready: Ready,
    *,
    ports: list[int],
    sent: dict[str, int],
    failed: dict[str, list[int]],
    size: int,
    replicas: int,
) -> dict[str, Any]:
    """Read the stream to its end and judge it."""
    from nats.errors import Error as NatsError

    async def read(client: Any) -> list[bytes]:
        jetstream = client.jetstream()
        end = (await jetstream.stream_info(STRUCK)).state.last_seq
        received: list[bytes] = []
        ended = asyncio.Event()

        async def take(message: Any) -> None:
            received.append(message.data)
            if message.metadata.sequence.stream >= end:
                ended.set()

        await jetstream.subscribe(f"{STRUCK}.messages", cb=take, ordered_consumer=True)
        await asyncio.wait_for(ended.wait(), _WAIT_S)
        return received

    async def work() -> list[bytes]:
        client = await _connect(ports)
        ready()
        for _ in range(_READS_MAX):
            try:
                return await read(client)
            except (OSError, TimeoutError, NatsError) as error:
                said = error  # the nodes that are left do not answer everything yet
                await asyncio.sleep(1.0)
        raise WorkFailed(f"the stream could not be read: {said!r}")

    return account(
        asyncio.run(work()),
        {int(stream): count for stream, count in sent.items()},
        {int(stream): numbers for stream, numbers in failed.items()},
        size,
    ).as_json()


def _peer(name: str, durability: str) -> ClusterPeer:
    synced = durability == FSYNC
    return ClusterPeer(
        name=name,
        durability=durability,
        acknowledged_by="2 of 3",
        flushed="before the acknowledgement" if synced else "every 2 min",
        detection="election after 4 to 9 s (fixed)",
        client="nats-py (500 in flight)",
        check=check_synced if synced else nats.check,
        running=functools.partial(running, synced=synced),
        works={
            "nats_one_by_one": nats.one_by_one,
            "nats_pipelined": nats.pipelined,
            "nats_consume": nats.consume,
            "nats_keep_sending": keep_sending,
            "nats_read_back": read_back,
        },
        one_by_one="nats_one_by_one",
        pipelined="nats_pipelined",
        consume="nats_consume",
        keep_sending="nats_keep_sending",
        read_back="nats_read_back",
    )


PEERS: Final = (_peer("NATS JetStream, sync always", FSYNC), _peer("NATS JetStream", PAGE_CACHE))
