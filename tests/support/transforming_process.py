"""A member that sends an output for each message, in one transaction with its offset.

    python transforming_process.py ZOOKEEPER CLUSTER GROUP INPUT OUTPUT PARENT LISTENS

Ends with its parent; a test kills it before.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

import vq
from vq.devtools.processes import die_with


def main(
    zookeeper: str, cluster: str, group: str, topic: str, output: str, parent: str, listens: str
) -> None:
    """Run the member without end."""
    die_with(int(parent))
    config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster, session_timeout_s=2.0)
    with vq.MessageFactory(config) as factory, factory.create_producer() as producer:
        mode = {"mode": "concurrent", "workers": 2, "batch_size": 5} if listens == "yes" else {}
        settings: dict[str, Any] = {"commit_interval_s": 0.05, "max_wait_s": 1.0, **mode}
        consumer = factory.create_consumer(vq.ConsumerConfig(group=group, **settings))

        def transform(take: Callable[[], list[vq.Message]]) -> None:
            with producer.transaction():
                messages = take()
                producer.send_offsets(consumer)
                for message in messages:
                    producer.send_sync(vq.Message(output, message.content, key=message.content))

        if listens == "yes":
            consumer.subscribe(topic, 2_000, lambda given: transform(lambda: given)).start()
            threading.Event().wait()
        consumer.subscribe(topic, 2_000)
        while True:
            try:
                transform(lambda: consumer.get_many(10, timeout=1.0))
            except vq.errors.Refused as error:  # another member has them, say
                print(f"refused: {error}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
