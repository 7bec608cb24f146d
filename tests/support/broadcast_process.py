"""A member of a broadcasting group as a process of its own, which a test may kill.

    python -m support.broadcast_process ZOOKEEPER CLUSTER GROUP MEMBER PATTERN PARENT

Prints each message that it handled, as topic and content. It commits often; ends with its parent.
"""

import sys
import time

import vq
from vq.devtools.processes import die_with


def main(zookeeper: str, cluster: str, group: str, member: str, pattern: str, parent: str) -> None:
    """Run the member until it is killed."""
    die_with(int(parent))
    config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster, session_timeout_s=2.0)
    with vq.MessageFactory(config) as factory:
        consumer = factory.create_consumer(
            vq.ConsumerConfig(
                group=group,
                model="broadcasting",
                member_id=member,
                commit_interval_s=0.02,
                max_wait_s=0.2,
            )
        )

        def handle(message: vq.Message) -> None:
            time.sleep(0.002)
            print(message.topic, message.content.decode(), flush=True)

        consumer.subscribe(pattern, listener=handle).start()
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
