"""A member that stores each message in a database, in one transaction with its offset.

    python storing_process.py ZOOKEEPER CLUSTER GROUP TOPIC URL PARENT

Ends with its parent; a test kills it before.
"""

import sys
import threading

import sqlalchemy as sa

import vq
from vq.devtools.processes import die_with


def main(zookeeper: str, cluster: str, group: str, topic: str, url: str, parent: str) -> None:
    """Run the member without end."""
    die_with(int(parent))
    engine = sa.create_engine(url)
    results = sa.Table("results", sa.MetaData(), sa.Column("text", sa.String(64)))
    store = vq.SqlOffsetStore(url)

    def listener(message: vq.Message) -> None:
        with engine.begin() as connection:
            connection.execute(results.insert(), {"text": message.content.decode()})
            store.commit_in(connection, message)

    config = vq.MessageFactoryConfig(zookeeper=zookeeper, cluster=cluster, session_timeout_s=2.0)
    with vq.MessageFactory(config) as factory:
        consumer = factory.create_consumer(
            vq.ConsumerConfig(
                group=group, offset_store=store, commit_interval_s=0.05, max_wait_s=1.0
            )
        )
        consumer.subscribe(topic, 2_000, listener).start()
        threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
