"""One side of ``bench.guard``: the same work, by the public API of whichever vq is on the path.

    python bench/guarded.py ZOOKEEPER

Each line on stdin is JSON: a way and a number of messages. It does that, and answers with a line of
JSON: the seconds, and the processor time of this process, both for one message. It imports nothing
of ``bench``: this file is that of the newer side, and vq is not.
"""

import json
import sys
import threading
import time
from collections.abc import Callable

import vq

CONTENT = bytes(range(128))
LARGE = bytes(1024)


class Side:
    """The clients of one side; they stay from one work to the next."""

    def __init__(self, zookeeper: str) -> None:
        self.factory = vq.MessageFactory(vq.MessageFactoryConfig(zookeeper=zookeeper)).open()
        self.producer = self.factory.create_producer()
        self.groups = 0

    def pipelined(self, message: Callable[[int], vq.Message], count: int) -> None:
        """Send with callbacks, and wait for the last one."""
        left, ended, errors = [count], threading.Event(), []

        def told(result: vq.SendResult | None, error: Exception | None) -> None:
            if error is not None:
                errors.append(error)
            left[0] -= 1
            if not left[0]:
                ended.set()

        for number in range(count):
            self.producer.send_async(message(number), told)
        if not ended.wait(300) or errors:
            raise SystemExit(f"{left[0]} of {count} messages have no outcome: {errors[:1]}")

    def one_way(self, count: int) -> None:
        """Send without outcomes."""
        for _ in range(count):
            self.producer.send_oneway(plain(0))
        self.producer.flush(timeout=300)

    def batches(self, count: int) -> None:
        """Send by hundreds."""
        for _ in range(count // 100):
            self.producer.send_batch([plain(0) for _ in range(100)])

    def one_by_one(self, count: int) -> None:
        """Wait for each."""
        for _ in range(count):
            self.producer.send_sync(plain(0))

    def consumed(self, topic: str, count: int) -> None:
        """Have a listener called for messages that are there."""
        left, ended = [count], threading.Event()

        def listener(_: vq.Message) -> None:
            left[0] -= 1
            if not left[0]:
                ended.set()

        with self.new_consumer() as consumer:
            consumer.subscribe(topic, 1 << 20, listener).start()
            if not ended.wait(300):
                raise SystemExit(f"{left[0]} of {count} messages have not come")

    def pulled(self, count: int) -> None:
        """Take messages that are there, by hundreds."""
        with self.new_consumer() as consumer:
            consumer.subscribe("plain", 1 << 20).start()
            while count > 0:
                messages = consumer.get_many(100, timeout=300)
                if not messages:
                    raise SystemExit(f"{count} messages have not come")
                count -= len(messages)

    def new_consumer(self) -> vq.MessageConsumer:
        """Return a consumer of a group of its own."""
        self.groups += 1
        config = vq.ConsumerConfig(group=f"g{self.groups}-{time.time_ns()}")
        return self.factory.create_consumer(config)


def plain(_: int) -> vq.Message:
    """Return a message of 128 bytes."""
    return vq.Message("plain", CONTENT, tag="t")


def keyed(number: int) -> vq.Message:
    """Return one with a key and a header."""
    return vq.Message("keyed", CONTENT, key=number % 64, headers={"from": "bench"})


def large(_: int) -> vq.Message:
    """Return one of 1 KiB."""
    return vq.Message("large", LARGE)


WORKS: dict[str, Callable[[Side, int], None]] = {
    "pipelined": lambda side, count: side.pipelined(plain, count),
    "key and header": lambda side, count: side.pipelined(keyed, count),
    "1 KiB": lambda side, count: side.pipelined(large, count),
    "one way": Side.one_way,
    "batches": Side.batches,
    "one by one": Side.one_by_one,
    "consumed": lambda side, count: side.consumed("plain", count),
    "headers read": lambda side, count: side.consumed("keyed", count),
    "get_many(100)": Side.pulled,
}


def main() -> None:
    """Serve works until stdin ends."""
    side = Side(sys.argv[1])
    print(json.dumps({"vq": vq.__file__}), flush=True)
    for line in sys.stdin:
        way, count = json.loads(line)
        begun, begun_cpu = time.perf_counter(), time.process_time()
        WORKS[way](side, count)
        seconds, cpu = time.perf_counter() - begun, time.process_time() - begun_cpu
        print(json.dumps({"seconds": seconds / count, "processor_s": cpu / count}), flush=True)


if __name__ == "__main__":
    main()
