"""Reading ahead of one partition: one request at a time, bounded, from wherever the bytes lie."""

import asyncio
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from support.broker import until

from vq import limits
from vq.client import fetcher as fetchers
from vq.client.fetcher import Chunk, PartitionFetcher
from vq.errors import (
    Busy,
    ConnectionCut,
    InternalError,
    NotMaster,
    OffsetOutOfRange,
    PartitionQuarantined,
    ProtocolError,
    StaleEpoch,
    UnknownTopic,
    VqError,
)
from vq.model import Address, TopicPartition
from vq.remoting.format import Command
from vq.remoting.frames import Frame
from vq.remoting.messages import encode_error
from vq.remoting.wire_pb2 import GetRequest, GetResponse

WHERE = TopicPartition("t", 0)
HERE = Address("b1", 1)


class Connection:
    """Notes requests; the test answers them."""

    def __init__(self) -> None:
        self.asked: list[tuple[GetRequest, Callable[[Frame | None], None]]] = []
        self.closed = 0
        self.refused = 0
        self.refuse: VqError | None = None

    def send(self, command: int, header: bytes, body: bytes, on_reply: Any) -> int:
        assert command == Command.GET
        if self.refuse is not None:
            self.refused += 1
            raise self.refuse
        self.asked.append((GetRequest.FromString(header), on_reply))
        return len(self.asked)

    def close(self) -> None:
        self.closed += 1
        for _, on_reply in self.asked:
            on_reply(None)


class Cluster:
    """What a fetcher needs of a client of the cluster."""

    def __init__(self) -> None:
        self.rng = random.Random(5)
        self.connection: Connection | None = Connection()
        self.listeners: list[Callable[[], None]] = []
        self.refreshed: list[str] = []
        self.missing: VqError | None = None
        self.epoch = 3
        self.lookups = 0
        self.anew: list[GetRequest] = []
        self.answers: list[bytes | VqError] = []
        self.routes = SimpleNamespace(topics={"t": SimpleNamespace(id="id-1")})

    def master_at(self, where: TopicPartition, offset: int) -> tuple[Address, int]:
        if self.missing is not None:
            raise self.missing
        return HERE, self.epoch

    def live_connection(self, address: Address) -> Connection | None:
        self.lookups += 1
        return self.connection

    async def request(
        self, address: Address, command: int, message: GetRequest, *, timeout: float, anew: bool
    ) -> tuple[GetResponse, bytes]:
        """Answer on a connection of its own with 100 bytes, or as told."""
        assert (address, command, anew) == (HERE, Command.GET, True)
        self.anew.append(message)
        answer = self.answers.pop(0) if self.answers else bytes(100)
        if isinstance(answer, VqError):
            raise answer
        return GetResponse(offset=message.offset, high_watermark=5_000), answer

    def refresh(self, topic: str) -> None:
        self.refreshed.append(topic)

    def on_change(self, listener: Callable[[], None]) -> Callable[[], None]:
        self.listeners.append(listener)
        return lambda: self.listeners.remove(listener)


class Reader:
    """A fetcher and what came out of it."""

    def __init__(self, *, offset: int = 100, tags: tuple[str, ...] = (), **settings: Any) -> None:
        self.cluster = Cluster()
        self.chunks: list[Chunk] = []
        self.errors: list[VqError | None] = []
        cluster: Any = self.cluster
        bounds = {"length": 1_000, "prefetch_bytes": 2_000, "max_wait_s": 5.0, **settings}
        self.fetcher = PartitionFetcher(
            cluster,
            WHERE,
            offset,
            tags=tags,
            on_chunk=self.chunks.append,
            on_error=self.errors.append,
            **bounds,
        )
        self.fetcher.start()

    @property
    def connection(self) -> Connection:
        assert self.cluster.connection is not None
        return self.cluster.connection

    @property
    def asked(self) -> list[int]:
        """The offsets that were asked for."""
        return [request.offset for request, _ in self.connection.asked]

    def answer(self, body: bytes = b"", *, number: int = -1, **fields: Any) -> None:
        request, on_reply = self.connection.asked[number]
        response = GetResponse(**{"offset": request.offset, "high_watermark": 5_000, **fields})
        on_reply(Frame(Command.GET, 0, 1, 0, response.SerializeToString(), body))

    def refuse(self, error: VqError) -> None:
        status, header = encode_error(error)
        self.connection.asked[-1][1](Frame(Command.GET, status, 1, 0, header, b""))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetchers, "_BACKOFF_S", 0.002)
    monkeypatch.setattr(fetchers, "_BACKOFF_MAX_S", 0.004)


async def test_bytes_are_asked_for_one_request_after_the_other() -> None:
    reader = Reader()
    assert reader.asked == [100]
    reader.answer(b"x" * 300)
    assert reader.asked == [100, 400]
    reader.answer(b"y" * 200)
    assert reader.asked == [100, 400, 600]
    assert [(c.offset, c.next_offset, c.offsets) for c in reader.chunks] == [
        (100, 400, None),
        (400, 600, None),
    ]
    assert reader.fetcher.high_watermark == 5_000
    reader.fetcher.stop()


async def test_the_request_says_what_is_wanted() -> None:
    reader = Reader(length=99_999_999, tags=("a", "b"))
    (request, _), *_ = reader.connection.asked
    assert (request.topic, request.partition, request.topic_id) == ("t", 0, "id-1")
    assert request.epoch == 3
    assert request.max_bytes == limits.FETCH_BYTES_MAX
    assert (request.max_wait_ms, list(request.tags)) == (5_000, ["a", "b"])
    assert request.validate, "where it begins must be a boundary"
    reader.answer(b"x" * 300)
    assert not reader.connection.asked[1][0].validate, "a reply may end inside a record"
    reader.fetcher.stop()


async def test_an_empty_answer_asks_again_from_the_same_place() -> None:
    reader = Reader()
    reader.answer()
    assert reader.asked == [100, 100]
    assert reader.chunks == []
    reader.fetcher.stop()


async def test_picked_records_move_on_by_what_was_looked_through() -> None:
    reader = Reader(tags=("a",))
    reader.answer(b"r" * 30, filtered=True, offsets=[150], next_offset=900)
    reader.answer(filtered=True, next_offset=1_700)
    assert reader.asked == [100, 900, 1_700]
    assert [(c.offset, c.next_offset, c.offsets) for c in reader.chunks] == [
        (100, 900, [150]),
        (900, 1_700, []),
    ]
    reader.fetcher.stop()


async def test_no_more_is_fetched_than_the_bound_until_something_is_consumed() -> None:
    reader = Reader(prefetch_bytes=1_200)
    for _ in range(3):
        reader.answer(b"x" * 400)
        if len(reader.asked) == len(reader.chunks):
            break
    assert len(reader.asked) == len(reader.chunks) == 2
    reader.fetcher.consumed(reader.chunks[0].size)
    assert len(reader.asked) == 3
    reader.fetcher.stop()


async def test_answers_without_a_record_count_against_the_bound_too() -> None:
    """A filter that nothing matches must not fill the memory while the listener stands still."""
    reader = Reader(tags=("a",), prefetch_bytes=64 * 1024)
    for _ in range(10_000):
        asked = len(reader.asked)
        reader.answer(filtered=True, next_offset=reader.fetcher.position + 10)
        if len(reader.asked) == asked:
            break
    assert len(reader.chunks) <= 200
    reader.fetcher.stop()


# Errors -------------------------------------------------------------------------------------------
async def test_what_moved_is_looked_for_again() -> None:
    reader = Reader()
    reader.refuse(NotMaster("elsewhere"))
    assert reader.cluster.refreshed == ["t"]
    assert reader.asked == [100]
    await until(lambda: reader.asked == [100, 100])
    assert not reader.errors
    reader.fetcher.stop()


async def test_a_broker_that_does_not_know_of_its_successor_is_not_believed() -> None:
    """It refuses whoever knows a newer master; the routes say soon who that is."""
    reader = Reader()
    reader.refuse(StaleEpoch("the request knows epoch 3"))
    assert reader.cluster.refreshed == ["t"]
    reader.cluster.epoch = 4
    await until(lambda: reader.asked == [100, 100])
    assert [request.epoch for request, _ in reader.connection.asked] == [3, 4]
    assert not reader.errors
    reader.fetcher.stop()


async def test_a_place_that_is_not_known_is_asked_for_until_it_is() -> None:
    reader = Reader()
    reader.cluster.missing = UnknownTopic("not yet")
    reader.answer(b"x" * 10)
    await until(lambda: len(reader.cluster.refreshed) >= 2)
    reader.cluster.missing = None
    await until(lambda: reader.asked == [100, 110])
    reader.fetcher.stop()


async def test_a_final_error_is_told_and_tried_again_slowly() -> None:
    reader = Reader()
    reader.refuse(OffsetOutOfRange("too old", details={"earliest": 500, "latest": 900}))
    assert [type(error) for error in reader.errors] == [OffsetOutOfRange]
    assert reader.errors[0].details == {"earliest": 500, "latest": 900}
    await until(lambda: reader.asked == [100, 100])
    reader.fetcher.stop()


@pytest.mark.parametrize(
    "damage",
    [
        lambda reader: reader.answer(b"x", offset=300),
        lambda reader: reader.connection.asked[-1][1](
            Frame(Command.GET, 0, 1, 0, b"\xff\xff", b"")
        ),
        lambda reader: reader.connection.asked[-1][1](
            Frame(Command.GET, 9, 1, 0, b"\xff\xff", b"")
        ),
    ],
)
async def test_an_answer_that_is_none_is_told_and_tried_again(
    damage: Callable[[Reader], None],
) -> None:
    """Bytes of another place must never be taken for those asked for."""
    reader = Reader()
    damage(reader)
    assert [type(error) for error in reader.errors] == [ProtocolError]
    assert (reader.chunks, reader.fetcher.position) == ([], 100)
    await until(lambda: reader.asked == [100, 100])
    reader.fetcher.stop()


async def test_after_a_cut_it_goes_on_at_the_same_byte() -> None:
    reader = Reader()
    reader.answer(b"x" * 50)
    reader.connection.asked[-1][1](None)
    await until(lambda: reader.asked == [100, 150, 150])
    reader.answer(b"y", number=1)
    assert len(reader.chunks) == 1, "an answer to a request that was given up"
    reader.fetcher.stop()


@pytest.mark.parametrize("error", [Busy(), ConnectionCut()])
async def test_a_request_that_cannot_be_sent_is_tried_again(error: VqError) -> None:
    reader = Reader()
    reader.connection.refuse = error
    reader.answer(b"x" * 50)
    await until(lambda: reader.connection.refused >= 3)
    assert len(reader.asked) == 1
    reader.connection.refuse = None
    await until(lambda: reader.asked == [100, 150])
    reader.fetcher.stop()


async def test_without_a_connection_it_waits_for_one() -> None:
    reader = Reader()
    connection, reader.cluster.connection = reader.connection, None
    lookups = reader.cluster.lookups
    connection.asked[-1][1](None)
    await until(lambda: reader.cluster.lookups > lookups)
    reader.cluster.connection = connection
    for listener in list(reader.cluster.listeners):
        listener()
    assert reader.asked == [100, 100]
    reader.fetcher.stop()


async def test_a_broker_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetchers, "_GRACE_S", 0.01)
    reader = Reader(max_wait_s=0.01)
    await until(lambda: reader.connection.closed == 1)
    await until(lambda: reader.asked == [100, 100])
    reader.answer()
    reader.fetcher.stop()


# Stopping -----------------------------------------------------------------------------------------
async def test_after_the_stop_nothing_is_delivered_and_nothing_is_left() -> None:
    reader = Reader()
    reader.fetcher.stop()
    reader.answer(b"x" * 50)
    assert (reader.chunks, reader.asked, reader.cluster.listeners) == ([], [100], [])
    reader.fetcher.consumed(10)
    reader.fetcher.start()
    assert reader.asked == [100]


async def test_a_stop_during_a_pause_ends_it() -> None:
    reader = Reader()
    reader.refuse(Busy())
    timer = reader.fetcher._timer
    assert timer is not None
    reader.fetcher.stop()
    assert timer.cancelled()
    assert reader.asked == [100]


async def test_bytes_that_failed_a_check_are_read_again_on_a_connection_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was under way is dropped, and what follows comes over the common connection again."""
    monkeypatch.setattr(fetchers, "_AGAIN_S", 0.001)
    reader = Reader()
    reader.answer(bytes(300))
    assert reader.asked == [100, 400]
    reader.fetcher.fetch_again(150)
    reader.answer(bytes(50))
    await until(lambda: len(reader.chunks) == 2)
    (request,) = reader.cluster.anew
    assert (request.offset, request.validate, request.max_wait_ms) == (150, True, 0)
    assert (reader.chunks[1].offset, reader.chunks[1].next_offset) == (150, 250)
    assert reader.asked == [100, 400, 250]
    assert reader.fetcher._buffered == reader.chunks[1].size, "what was dropped takes no room"
    reader.answer(bytes(10))
    assert reader.chunks[-1].offset == 250


async def test_pauses_before_reading_damage_again_grow_up_to_their_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At one place; at the next they begin anew. A cluster that does not answer is asked later."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(pause_s: float) -> None:
        pauses.append(pause_s)
        await sleep(0)

    noting = SimpleNamespace(**{**vars(asyncio), "sleep": note})
    monkeypatch.setattr(fetchers, "asyncio", noting)
    monkeypatch.setattr(fetchers, "_BACKOFF_S", 0.001)
    reader = Reader()
    for _ in range(12):
        reader.fetcher.fetch_again(100)
        count = len(reader.chunks) + 1
        await until(lambda count=count: len(reader.chunks) == count)
    assert 0.05 < pauses[0] < 0.15
    assert all(early < late for early, late in zip(pauses[:5], pauses[2:7], strict=True))
    assert 20 < pauses[-1] < 40
    reader.cluster.answers = [Busy("later")]
    reader.fetcher.fetch_again(120)
    await until(lambda: len(pauses) == 13 and not reader.cluster.answers)
    assert pauses[-1] < 0.15
    await until(lambda: reader.asked[-1] == 120)
    assert reader.connection.asked[-1][0].validate
    reader.fetcher.fetch_again(130)
    reader.fetcher.stop()
    await sleep(0)
    assert reader.fetcher._again is not None
    assert reader.fetcher._again.cancelled()


async def test_that_what_was_told_is_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, with the first answer, also where there is nothing new. A bug of the broker is told."""
    monkeypatch.setattr(fetchers, "_BACKOFF_MAX_S", 0.001)
    reader = Reader()
    reader.answer()
    assert reader.errors == []
    for error in (PartitionQuarantined("damage"), InternalError("a bug")):
        count = len(reader.asked)
        status, header = encode_error(error)
        reader.connection.asked[-1][1](Frame(Command.GET, status, 1, 0, header, b""))
        await until(lambda count=count: len(reader.asked) > count)
    reader.answer()
    reader.answer()
    assert [type(each) for each in reader.errors] == [
        PartitionQuarantined, InternalError, type(None),
    ]  # fmt: skip
