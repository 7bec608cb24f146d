"""Messages that wait in a journal, as its master tells them to producers and to operators."""

from collections.abc import Iterable

from vq.client.reading.decode import to_message
from vq.errors import CorruptData
from vq.model import Message, TopicPartition
from vq.remoting.wire_pb2 import TransactionPartStatus
from vq.reserved import DELAYED_TOPIC
from vq.store.records.record import decode_properties, decode_records


def waiting_messages(parts: Iterable[TransactionPartStatus], body: bytes) -> list[Message]:
    """Return the messages of some parts, in the order in which they were sent.

    A delayed message has the topic to which it goes. None has an offset.

    Args:
        parts: Of a transaction.
        body: Their records, one part behind the other.

    Raises:
        CorruptData: A record cannot be read, or there is none.
    """
    messages: list[Message] = []
    at = 0
    for part in parts:
        to = TopicPartition(part.topic, part.partition)
        for record in decode_records(body[at : at + part.size], 0):
            message = to_message(to, record)._replace(offset=-1, next_offset=-1)
            if part.topic == DELAYED_TOPIC and record.properties is not None:
                properties = decode_properties(record.properties)
                if properties.destination is not None:
                    topic, partition = properties.destination
                    due_s = properties.delivery_time_ms / 1_000
                    message = message._replace(topic=topic, partition=partition, deliver_at=due_s)
            messages.append(message)
        at += part.size
    if not messages:
        raise CorruptData("a transaction came without messages")
    return sorted(messages, key=lambda each: each.id)
