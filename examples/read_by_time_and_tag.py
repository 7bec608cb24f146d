"""Print what came to a topic since a time and has a tag.

python read_by_time_and_tag.py TOPIC TAG MINUTES
"""

import sys
from datetime import UTC, datetime, timedelta

import vq

topic, tag, minutes = sys.argv[1], sys.argv[2], float(sys.argv[3])
since = datetime.now(UTC) - timedelta(minutes=minutes)
with vq.MessageFactory() as factory, factory.create_consumer() as reader:
    for partition in factory.admin.bounds(topic):
        offset = reader.offset_at(topic, partition, since)
        while messages := reader.get(topic, partition, offset, 1024 * 1024):
            for message in messages:
                if message.tag == tag:
                    print(partition, message.offset, message.timestamp, message.content)
            offset = messages.next_offset
