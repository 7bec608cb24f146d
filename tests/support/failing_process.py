"""A member whose listener fails for some messages, as a process that may die.

    python -m support.failing_process ZOOKEEPER CLUSTER TOPIC PARENT SETTINGS

SETTINGS are JSON: of ``vq.ConsumerConfig``, and ``tries``: so often a message that begins with
"bad" fails. Prints the content of each message that it has done. Ends in order on SIGTERM, and
with its parent.
"""

import json
import signal
import sys
import threading

import vq
from vq.devtools.processes import die_with


def main(zookeeper: str, cluster: str, topic: str, parent: str, given: str) -> None:
    """Run the member until SIGTERM."""
    die_with(int(parent))
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    settings = json.loads(given)
    tries = settings.pop("tries")

    def handle(message: vq.Message) -> None:
        if message.content.startswith(b"bad") and message.attempts <= tries:
            raise ValueError("not now")
        print(message.content.decode(), flush=True)

    config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster, session_timeout_s=3.0)
    with vq.MessageFactory(config) as factory:
        consumer = factory.create_consumer(
            vq.ConsumerConfig(commit_interval_s=0.2, max_wait_s=0.5, **settings)
        )
        with consumer:
            consumer.subscribe(topic, 64 * 1024, handle).start()
            while not stop.wait(0.5):  # a signal that another thread gets does not end a wait
                pass


if __name__ == "__main__":
    main(*sys.argv[1:])
