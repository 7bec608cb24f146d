"""vq's own works of the comparison with other systems of three nodes; see ``bench.replicated``."""

from typing import Any, Final

import vq
from bench.peers.accounts import account
from bench.peers.steady import Done, Progress, send_steadily
from vq.cli.bench.workload import Ready

_SEND_S: Final = 60.0
_READ_BYTES: Final = 4 << 20


def vq_keep_sending(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    stream: int,
    in_flight: int,
    rate: float,
    size: int,
) -> dict[str, Any]:
    """Send with callbacks; the producer itself retries."""
    with (
        vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory,
        factory.create_producer() as producer,
    ):
        producer.publish(topic)

        def send(body: bytes, done: Done) -> None:
            message = vq.Message(topic, body)
            producer.send_async(message, lambda _, error: done(error), timeout=_SEND_S)

        progress = Progress(stream=stream, size=size, in_flight=in_flight, rate=rate)
        return send_steadily(ready, progress, send)


def vq_read_back(
    ready: Ready,
    *,
    client: dict[str, Any],
    topic: str,
    sent: dict[str, int],
    failed: dict[str, list[int]],
    size: int,
) -> dict[str, Any]:
    """Read the only partition to its end and judge it."""
    received: list[bytes] = []
    with vq.MessageFactory(vq.MessageFactoryConfig(**client)) as factory:
        reader = factory.create_consumer()
        ready()
        offset = reader.get_bounds(topic, 0).earliest
        while messages := reader.get(topic, 0, offset, _READ_BYTES):
            received.extend(bytes(message.content) for message in messages)
            offset = messages[-1].next_offset
    return account(
        received,
        {int(stream): count for stream, count in sent.items()},
        {int(stream): numbers for stream, numbers in failed.items()},
        size,
    ).as_json()


WORKS: Final = {work.__name__: work for work in (vq_keep_sending, vq_read_back)}
