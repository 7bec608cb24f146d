"""RabbitMQ's streams, through rstream. A confirm does not wait for the disk: page cache class."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from bench.peers import rabbitmq
from bench.peers.peer import PAGE_CACHE, PROGRESS_EVERY, Peer, Values, check_received, need_client
from vq.cli.bench.workload import Ready, WorkFailed, contents
from vq.remoting.ports import free_port

_BATCH: Final = 1_000
_BATCHES_IN_FLIGHT: Final = 8
_SUBSCRIBER: Final = "bench"
_USER: Final = "guest"  # may log in from this host only


def check() -> str:
    """See ``Peer.check``."""
    version = rabbitmq.check()
    need_client("rstream", "rstream")
    return version


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Values]:
    """See ``Peer.running``."""
    port = free_port()
    more = (
        f"stream.listeners.tcp.1 = 127.0.0.1:{port}\n"
        f"stream.advertised_host = 127.0.0.1\nstream.advertised_port = {port}\n"
    )
    with rabbitmq.broker(directory, plugins="rabbitmq_stream", more=more):
        yield {"port": port}


# Client works -----------------------------------------------------------------------------------
def one_by_one(ready: Ready, *, port: int, seconds: float, size: int) -> dict[str, Any]:
    """Publish with ``send_wait``: each message confirmed before the next."""

    async def work() -> dict[str, Any]:
        import rstream

        bodies = contents(0, 0, 200_000, size)
        async with rstream.Producer("127.0.0.1", port, username=_USER, password=_USER) as producer:
            await producer.create_stream("one", exists_ok=True)
            await producer.send_wait("one", bodies[0])
            ready()
            begin = time.perf_counter()
            sent = 0
            while (took := time.perf_counter() - begin) < seconds:
                await producer.send_wait("one", bodies[sent])
                sent += 1
            return {"messages": sent, "seconds": took}

    return asyncio.run(work())


def pipelined(ready: Ready, *, port: int, count: int, size: int) -> dict[str, Any]:
    """Publish in batches of 1 000, eight in flight, with a callback per confirmed message."""

    async def work() -> dict[str, Any]:
        import rstream

        bodies = contents(0, 0, count, size)
        confirmed = 0
        progress = asyncio.Event()

        def on_confirm(status: rstream.ConfirmationStatus) -> None:
            nonlocal confirmed
            if not status.is_confirmed:
                raise WorkFailed(f"message {status.message_id} was refused")
            confirmed += 1
            if confirmed % _BATCH == 0 or confirmed == count:
                progress.set()

        async with rstream.Producer("127.0.0.1", port, username=_USER, password=_USER) as producer:
            await producer.create_stream("bulk", exists_ok=True)
            ready()
            begin = time.perf_counter()
            for at in range(0, count, _BATCH):
                while at - confirmed >= _BATCH * _BATCHES_IN_FLIGHT:
                    progress.clear()
                    await asyncio.wait_for(progress.wait(), 60)
                await producer.send_batch(
                    "bulk", bodies[at : at + _BATCH], on_publish_confirm=on_confirm
                )
            while confirmed < count:
                progress.clear()
                await asyncio.wait_for(progress.wait(), 60)
            return {"messages": count, "seconds": time.perf_counter() - begin}

    return asyncio.run(work())


def consume(ready: Ready, *, port: int, count: int, size: int) -> dict[str, Any]:
    """Receive with a callback per message, without decoding; store the offset now and then."""

    async def work() -> dict[str, Any]:
        import rstream

        received: list[bytes] = []
        marks: list[float] = []
        ended = asyncio.Event()

        stores: list[asyncio.Task[None]] = []

        def take(message: bytes, context: Any) -> None:
            received.append(bytes(message))
            number = len(received)
            if number % PROGRESS_EVERY == 0 or number == count:
                storing = consumer.store_offset("bulk", _SUBSCRIBER, context.offset)
                stores.append(asyncio.ensure_future(storing))
            if number in {1, count}:
                marks.append(time.perf_counter())
                if number == count:
                    ended.set()

        consumer = rstream.Consumer("127.0.0.1", port, username=_USER, password=_USER)
        await consumer.start()
        ready()
        await consumer.subscribe(
            "bulk",
            take,
            subscriber_name=_SUBSCRIBER,
            offset_specification=rstream.ConsumerOffsetSpecification(rstream.OffsetType.FIRST),
        )
        await asyncio.wait_for(ended.wait(), 120)
        await asyncio.gather(*stores)
        await consumer.close()
        check_received(received, count, size)
        return {"messages": count - 1, "seconds": marks[-1] - marks[0]}

    return asyncio.run(work())


PEER = Peer(
    name="RabbitMQ stream",
    durability=PAGE_CACHE,
    client="rstream (batches of 1 000)",
    check=check,
    running=running,
    works={
        "rabbitmq_stream_one_by_one": one_by_one,
        "rabbitmq_stream_pipelined": pipelined,
        "rabbitmq_stream_consume": consume,
    },
    one_by_one="rabbitmq_stream_one_by_one",
    pipelined="rabbitmq_stream_pipelined",
    consume="rabbitmq_stream_consume",
    messages=500_000,
)
