"""Deliveries from a log: what is noted of them says neither too much nor too little."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from vq.broker.journal.deliveries import DONE_S, Deliveries
from vq.broker.journal.items import Item
from vq.broker.journal.notes import Done, Sent
from vq.broker.journal.outbox import Parcel
from vq.model import TopicPartition

TO, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
pytestmark = pytest.mark.virtual_time


class Everything:
    """A source that has all that is asked of it."""

    what, position, batch_bytes, batch_items = "things", 0, 1_000, 10

    def __init__(self) -> None:
        self.freed: list[Item] = []

    def joins(self, *_: Any) -> bool:
        return True

    def took(self, *_: Any) -> bool:
        return True

    def free(self, _to: TopicPartition, items: Sequence[Item], _offset: int) -> None:
        self.freed += items

    async def parcel(self, sent: Sent, **_: Any) -> Parcel:
        return Parcel(sent.to, sent.stamp, b"", 1, resend=False)

    def delivered(self, *_: Any) -> None: ...
    def tell(self, *_: Any) -> None: ...
    def wake(self) -> None: ...


def deliveries(source: Everything, sent: list[Parcel]) -> Deliveries:
    channel = SimpleNamespace(topic_id="i", partition=OTHER, role=SimpleNamespace(epoch=1))
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())

    async def send(parcel: Parcel, _tell: Any) -> int:
        sent.append(parcel)
        return 0

    outbox: Any = SimpleNamespace(send=send)
    return Deliveries(channel, outbox, clock, source)  # type: ignore[arg-type]


async def test_a_batch_that_begins_now_is_not_noted_as_stored() -> None:
    """The note about the one before it would be taken for one about it, and it would be lost."""
    sent: list[Parcel] = []
    first = deliveries(Everything(), sent)
    first.go_live()
    log: list[Sent | Done] = []

    async def write() -> None:
        notes = first.notes()
        log.extend(notes)
        first.written(notes)
        for note in notes:
            first.take(note)
        await asyncio.sleep(0.1)

    first.ready(TO, [Item(1, 1, 1)])
    await write()
    await asyncio.sleep(DONE_S + 1)
    first.ready(TO, [Item(2, 2, 1)])
    await write()
    assert len(sent) == 2
    after: list[Parcel] = []
    source = Everything()
    second = deliveries(source, after)
    for note in log:
        second.take(note)
    assert source.freed == [Item(1, 1, 1)]
    second.go_live()
    await asyncio.sleep(0.1)
    assert [each.stamp for each in after] == [sent[1].stamp]
