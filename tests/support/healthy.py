"""Healthy clients of a broker that is under attack: senders and a consumer, in one process.

    python -m support.healthy CONFIG

CONFIG is JSON: fields of ``MessageFactoryConfig``. Each line on stdin is a number of seconds; then
it sends and receives for so long, and writes a line of JSON: what it measured. Its clients stay
from one turn to the next. In each turn a new client comes, too, and sends one message.
"""

import dataclasses
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from support.attacks import TOPIC

import vq
from vq.security.tls import Tls

SENDERS: Final = 4
#: A sender's pause after each acknowledgement: room on the processor for broker and attacker.
PAUSE_S: Final = 0.004
SIZE: Final = 1024


@dataclasses.dataclass(frozen=True)
class Measured:
    """What healthy clients saw in one turn.

    Attributes:
        rate: Messages acknowledged in a second.
        p99_ms: Of the time from a send to its acknowledgement.
        received: Messages that the consumer got.
        fresh_ms: How long the new client took until its message was stored.
        failures: Errors, as text.
    """

    rate: float
    p99_ms: float
    received: int
    fresh_ms: float
    failures: list[str]


class HealthyClients:
    """The process, from outside. Use from the main thread."""

    def __init__(self, config: dict[str, Any]) -> None:
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-m", "support.healthy", json.dumps(config)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, env=environ, **pipes)
        assert self._line() == {"ready": True}

    def turn(self, seconds: float) -> Measured:
        """Send and receive for so long."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"%f\n" % seconds)
        self._process.stdin.flush()
        return Measured(**self._line())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _line(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the healthy clients have ended"
        return json.loads(line)


def _turn(
    config: vq.MessageFactoryConfig, producer: Any, got: list[int], seconds: float
) -> Measured:
    end = time.monotonic() + seconds
    latencies: list[list[float]] = [[] for _ in range(SENDERS)]
    failures: list[str] = []
    fresh: list[float] = []
    content = os.urandom(SIZE)

    def send(times: list[float]) -> None:
        while (begun := time.monotonic()) < end:
            try:
                producer.send_sync(vq.Message(TOPIC, content), timeout=60)
            except vq.VqError as error:
                failures.append(repr(error))
            times.append(time.monotonic() - begun)
            time.sleep(PAUSE_S)

    def come() -> None:
        begun = time.monotonic()
        try:
            with vq.MessageFactory(config) as factory, factory.create_producer() as own:
                own.send_sync(vq.Message(TOPIC, content), timeout=60)
        except vq.VqError as error:
            failures.append(f"new client: {error!r}")
        fresh.append(time.monotonic() - begun)

    before = len(got)
    threads = [threading.Thread(target=send, args=(each,)) for each in latencies]
    threads.append(threading.Thread(target=come))
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    all_of_them = sorted(one for each in latencies for one in each)
    return Measured(
        rate=len(all_of_them) / seconds,
        p99_ms=all_of_them[int(len(all_of_them) * 0.99)] * 1_000,
        received=len(got) - before,
        fresh_ms=fresh[0] * 1_000,
        failures=failures[:5],
    )


def main(text: str) -> None:
    """Serve turns until stdin ends."""
    values = json.loads(text)
    if values.get("tls"):
        values["tls"] = Tls(ca=Path(values["tls"]))
    config = vq.MessageFactoryConfig(**values)
    got: list[int] = []
    with (
        vq.MessageFactory(config) as factory,
        factory.create_producer() as producer,
        factory.create_consumer(vq.ConsumerConfig(group="healthy")) as consumer,
    ):
        consumer.subscribe(TOPIC, 1 << 20, lambda message: got.append(message.partition))
        consumer.start()
        _turn(config, producer, got, 0.2)
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            measured = _turn(config, producer, got, float(line))
            print(json.dumps(dataclasses.asdict(measured)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
