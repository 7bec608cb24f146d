"""A program that sends far more than its buffer holds, as a process of its own.

    python -m support.filling_process ZOOKEEPER CLUSTER TOPIC COUNT PARENT

It prints a line of JSON when it is ready. Before each stage it reads a line from its standard
input; after it, it prints another one.

    fill    sends COUNT messages; the producer refuses those that find no space
    settle  waits for the outcomes of the others
    flow    sends COUNT messages; a send that finds no space waits
    close   waits for the outcomes of these

A line has the messages that were accepted, the outcomes by kind, how many did not find space, and
by how many bytes the resident memory has grown at most since the first message.
"""

import json
import sys
import threading
from collections import Counter
from pathlib import Path

import vq
from vq.devtools.processes import die_with
from vq.errors import BufferFull

SIZE = 100
#: Half of the default: 200,000 messages are far more than it holds.
BUFFER_BYTES = 16 << 20
_EVERY_S = 0.01
_PAGE = 4096


class Memory(threading.Thread):
    """Measures by how much the resident memory of this process grows at most, in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._begin = self._resident()
        self.growth = 0
        self.start()

    @staticmethod
    def _resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE

    def run(self) -> None:
        """Measure until the end of the process."""
        wait = threading.Event().wait
        while not wait(_EVERY_S):
            self.growth = max(self.growth, self._resident() - self._begin)


class Filler:
    """Sends with one producer, and counts."""

    def __init__(self, producer: vq.MessageProducer, topic: str, memory: Memory) -> None:
        self.producer = producer
        self._topic = topic
        self._memory = memory
        self._accepted = self._full = 0
        self._outcomes: Counter[str] = Counter()

    def count(self, _: vq.SendResult | None, error: vq.VqError | None) -> None:
        """Count an outcome."""
        refused = isinstance(error, vq.Refused)
        self._outcomes["sent" if error is None else "refused" if refused else "unknown"] += 1

    def send(self, count: int) -> None:
        """Send so many messages, each with a content of its own."""
        for number in range(count):
            message = vq.Message(self._topic, b"%0*d" % (SIZE, number))
            try:
                self.producer.send_async(message, self.count)
            except BufferFull:
                self._full += 1
            else:
                self._accepted += 1

    def tell(self) -> None:
        """Print the counts."""
        growth = self._memory.growth
        line = {"accepted": self._accepted, "full": self._full, "growth": growth}
        print(json.dumps({**line, **self._outcomes}), flush=True)


def main(zookeeper: str, cluster: str, topic: str, count: str, parent: str) -> None:
    """Go through the stages."""
    die_with(int(parent))
    config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster)
    with vq.MessageFactory(config) as factory:
        producers = [
            factory.create_producer(
                vq.ProducerConfig(buffer_bytes=BUFFER_BYTES, send_timeout_s=300.0, when_full=choice)
            )
            for choice in (vq.WhenFull.RAISE, vq.WhenFull.BLOCK)
        ]
        for producer in producers:
            producer.publish(topic)
            producer.send_sync(vq.Message(topic, b"first"))
        memory = Memory()
        print("{}", flush=True)
        for producer in producers:
            filler = Filler(producer, topic, memory)
            sys.stdin.readline()
            filler.send(int(count))
            filler.tell()
            sys.stdin.readline()
            producer.close()
            filler.tell()


if __name__ == "__main__":
    main(*sys.argv[1:])
