"""As ../read_by_time_and_tag.py, with confluent-kafka; a tag is the header `tag`.

python read_by_time_and_tag.py TOPIC TAG MINUTES
"""

import os
import sys
import time

from confluent_kafka import Consumer, KafkaException, TopicPartition

topic, tag, minutes = sys.argv[1], sys.argv[2], float(sys.argv[3])
since = int((time.time() - minutes * 60) * 1000)
consumer = Consumer(
    {
        "bootstrap.servers": os.environ.get("KAFKA", "127.0.0.1:9092"),
        "group.id": "unused",
        "enable.auto.commit": False,
    }
)
try:
    found = consumer.list_topics(topic, timeout=10).topics[topic]
    if found.error:
        raise KafkaException(found.error)
    asked = [TopicPartition(topic, partition, since) for partition in found.partitions]
    for place in consumer.offsets_for_times(asked, timeout=10):
        _, latest = consumer.get_watermark_offsets(place, timeout=10)
        if place.offset < 0 or place.offset >= latest:
            continue
        consumer.assign([place])
        while consumer.position([place])[0].offset < latest:
            message = consumer.poll(1)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            if (tag.encode()) in [v for k, v in message.headers() or () if k == "tag"]:
                print(message.partition(), message.offset(), message.timestamp(), message.value())
finally:
    consumer.close()
