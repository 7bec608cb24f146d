"""Transactions as a producer that is gone has left them in a journal."""

from typing import Any, Final

import google_crc32c

from vq.client.asking import ask_master
from vq.client.cluster import ClusterClient
from vq.model import TopicPartition, TransactionState
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import TransactionPart, TransactRequest
from vq.reserved import TRANSACTIONS_TOPIC
from vq.store.records.record import encode_record

JOURNAL: Final = TopicPartition(TRANSACTIONS_TOPIC, 3)


async def ask(client: ClusterClient, command: Command, request: Any, body: bytes = b"") -> Any:
    """Ask the master of the journal."""
    await client.track_internal(TRANSACTIONS_TOPIC)
    request.topic, request.partition = JOURNAL
    deadline = client.clock.monotonic() + 10
    return await ask_master(client, JOURNAL, command, request, body, deadline=deadline, what="it")


async def transact(
    core: ClusterClient, state: TransactionState, *to: TopicPartition, **fields: Any
) -> int:
    """Begin a transaction with a message for each of some partitions; return its number."""
    await core.lease_slot()
    (number,) = core.take_ids(1)
    record = encode_record(number, b"%d" % number)
    parts = [
        TransactionPart(
            topic=each.topic,
            partition=each.partition,
            record_count=1,
            size=len(record),
            crc=google_crc32c.value(record),
            index=index,
        )
        for index, each in enumerate(to)
    ]
    request = TransactRequest(transaction=number, state=int(state), parts=parts, **fields)
    await ask(core, Command.TRANSACT, request, record * len(parts))
    return number
