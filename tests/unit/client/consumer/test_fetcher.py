"""Reading ahead of one partition: asked for once at a time, bounded, in order."""

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from support.waiting import until

from vq import limits
from vq.backoff import Backoff
from vq.client.consumer import fetcher as fetchers
from vq.client.consumer.fetcher import NO_REST, Chunk, PartitionFetcher, Rest
from vq.errors import (
    Busy,
    ConnectionCut,
    InternalError,
    NotMaster,
    OffsetOutOfRange,
    PartitionQuarantined,
    ProtocolError,
    StaleEpoch,
    VqError,
)
from vq.model import Address, PartitionPlacement, Span, TopicPartition
from vq.remoting.format import Command
from vq.remoting.wire_pb2 import FetchResult, GetRequest, GetResponse, VerifyResponse

WHERE = TopicPartition("t", 0)
HERE = Address("b1", 1)


class Cluster:
    """What a fetcher needs of a client of the cluster."""

    def __init__(self) -> None:
        self.rng = random.Random(5)
        self.refreshed: list[str] = []
        self.anew: list[GetRequest] = []
        self.answers: list[bytes | VqError] = []
        self.reported: list[int] = []
        self.report_answer: VqError | None = None
        spans = (Span("b1", 0, 2_000), Span("b2", 2_000))
        view = SimpleNamespace(id="id-1", partitions=[PartitionPlacement("t", 0, spans)])
        self.routes = SimpleNamespace(topics={"t": view})

    def master_at(self, partition: TopicPartition, offset: int) -> tuple[Address, int]:
        return HERE, 3

    async def request(
        self,
        address: Address,
        command: int,
        message: Any,
        *,
        timeout: float | None = None,
        anew: bool = False,
    ) -> tuple[Any, bytes]:
        """Answer on a connection of its own with 100 bytes, or as told; note reports of damage."""
        if command == Command.VERIFY:
            self.reported.append(message.offset)
            if self.report_answer is not None:
                raise self.report_answer
            return VerifyResponse(), b""
        assert (address, command, anew) == (HERE, Command.GET, True)
        self.anew.append(message)
        answer = self.answers.pop(0) if self.answers else bytes(100)
        if isinstance(answer, VqError):
            raise answer
        return GetResponse(offset=message.offset, high_watermark=5_000), answer

    def refresh(self, topic: str) -> None:
        self.refreshed.append(topic)


class Fetches:
    """Notes what is asked for; the test answers."""

    def __init__(self) -> None:
        self.cluster = Cluster()
        self.space = self
        self.share_bytes = limits.GIB
        self.allowed: int | None = None
        self.asked: list[tuple[int, int]] = []  # offset, bytes
        self.validated: list[bool] = []
        self.waits = False
        self.members = 0
        self.counted = (0, 0)
        self.permits = False  # to go beyond the bound
        self.in_line = 0

    def allowance(self, asker: PartitionFetcher) -> int:
        return self.share_bytes - asker.buffered if self.allowed is None else self.allowed

    def may_exceed(self, asker: PartitionFetcher) -> bool:
        self.in_line += 1
        return self.permits

    def count(self, asker: PartitionFetcher) -> None:
        self.counted = asker.asked, asker.buffered

    def join(self, asker: PartitionFetcher) -> None:
        self.members += 1

    def leave(self, asker: PartitionFetcher) -> None:
        self.members = 0
        self.waits = False

    def withdraw(self, asker: PartitionFetcher) -> None:
        self.waits = False

    def ask(self, asker: PartitionFetcher) -> None:
        assert not self.waits, "one at a time"
        assert self.members == 1
        self.waits = True
        self.asked.append((asker.position, asker.asked))
        self.validated.append(asker.validate)


class Reader:
    """A fetcher and what came out of it."""

    def __init__(
        self,
        *,
        offset: int = 100,
        tags: tuple[str, ...] = (),
        start: bool = True,
        **settings: Any,
    ) -> None:
        self.fetches = Fetches()
        self.cluster = self.fetches.cluster
        self.chunks: list[Chunk] = []
        self.errors: list[VqError | None] = []
        self.epochs: list[int] = []  # where a broker came up anew
        fetches: Any = self.fetches
        bounds = {"length": 1_000, "prefetch_bytes": 2_000, **settings}
        self.fetcher = PartitionFetcher(
            fetches,
            WHERE,
            offset,
            tags=tags,
            on_chunk=self.chunks.append,
            on_error=self.errors.append,
            on_new_epoch=lambda: self.epochs.append(self.fetcher.position),
            **bounds,
        )
        if start:
            self.fetcher.start()

    @property
    def asked(self) -> list[int]:
        """The offsets that were asked for."""
        return [offset for offset, _ in self.fetches.asked]

    def answer(self, body: bytes = b"", **fields: Any) -> None:
        """Answer what was asked for last, unless it was withdrawn."""
        if not self.fetches.waits:
            return
        self.fetches.waits = False
        values = {"offset": self.asked[-1], "high_watermark": 5_000, **fields}
        self.fetcher.took(FetchResult(**values), body)

    def consumed(self, size: int, rest: Rest = NO_REST) -> None:
        """Finish bytes, and have the loop count them at once."""
        self.fetcher.finished(size, rest)
        self.fetcher._go_on_after_finished()

    def refuse(self, error: VqError) -> None:
        self.fetches.waits = False
        self.fetcher.failed(error)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetchers, "_BACKOFF", Backoff(first_s=0.002, most_s=0.004, jitter=0.5))


async def test_bytes_are_asked_for_one_range_after_the_other() -> None:
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
    assert reader.fetcher.behind
    reader.fetcher.stop()


async def test_what_is_wanted_is_there_to_be_asked_for() -> None:
    reader = Reader(length=99_999_999, tags=("a", "b"))
    fetcher = reader.fetcher
    assert (fetcher.partition, fetcher.topic_id, list(fetcher.tags)) == (WHERE, "id-1", ["a", "b"])
    assert fetcher.asked == limits.FETCH_BYTES_MAX
    assert fetcher.validate, "where it begins must be a boundary"
    assert not fetcher.behind, "nothing is known of it yet"
    reader.answer(b"x" * 300)
    assert not fetcher.validate, "an answer may end inside a record"
    fetcher.stop()


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


async def test_the_end_of_what_is_stored_shows_in_the_chunk() -> None:
    """Only there must the last record be whole."""
    reader = Reader()
    reader.answer(b"x" * 300)
    reader.answer(b"x" * 300, high_watermark=700)
    assert [chunk.at_end for chunk in reader.chunks] == [False, True]
    reader.fetcher.stop()


async def test_no_more_is_fetched_than_the_bound_until_something_is_consumed() -> None:
    reader = Reader(prefetch_bytes=1_200)
    for _ in range(3):
        reader.answer(b"x" * 400)
        if len(reader.asked) == len(reader.chunks):
            break
    assert len(reader.asked) == len(reader.chunks) == 2
    reader.consumed(reader.chunks[0].size)
    assert len(reader.asked) == 3
    reader.fetcher.stop()


async def test_what_is_finished_while_an_answer_is_due_wakes_the_loop_for_nothing() -> None:
    """It is counted with that answer; so most chunks cost the loop one iteration, not two."""
    reader = Reader(prefetch_bytes=100_000)
    reader.answer(b"x" * 400)
    size = reader.chunks[0].size
    reader.fetcher.finished(size)
    await asyncio.sleep(0)
    assert reader.fetcher.buffered == size
    reader.answer(b"y" * 100)
    assert reader.fetcher.buffered == reader.chunks[1].size
    reader.fetcher.stop()


@pytest.mark.parametrize("thread", [False, True])
async def test_what_is_finished_while_none_is_due_makes_it_ask(thread: bool) -> None:
    reader = Reader(prefetch_bytes=400)
    reader.answer(b"x" * 400)
    assert len(reader.asked) == 1, "as much is there as may be"
    size = reader.chunks[0].size
    if thread:
        await asyncio.to_thread(reader.fetcher.finished, size, Rest(7, 9))
    else:
        reader.fetcher.finished(size, Rest(7, 9))
    await until(lambda: len(reader.asked) == 2)
    assert reader.fetches.counted[1] == reader.fetcher.buffered == 7
    reader.fetcher.stop()


async def test_what_is_finished_beyond_the_share_is_counted_soon() -> None:
    """Others may wait for that space, and no answer may come for long."""
    reader = Reader(prefetch_bytes=100_000)
    reader.fetches.share_bytes = 1_000
    reader.fetches.allowed = 2_000
    reader.answer(b"x" * 400)
    assert reader.fetcher.asked + reader.fetcher.buffered > 1_000
    reader.fetcher.finished(reader.chunks[0].size)
    await until(lambda: reader.fetches.counted[1] == 0)
    reader.fetcher.stop()


async def test_what_is_finished_just_when_an_answer_fills_the_buffer_is_not_forgotten() -> None:
    """The thread saw that an answer was due, and the answer came before its report was counted."""
    reader = Reader(prefetch_bytes=500)
    reader.answer(b"x" * 10)
    first = reader.chunks[0].size
    assert len(reader.asked) == 1, "it is full: the overhead of a chunk counts"
    reader.consumed(first)
    assert len(reader.asked) == 2
    reader.fetcher.finished(0, Rest(3, 5))
    reader.answer(b"y" * 10)
    assert (reader.fetcher.asked, reader.fetches.counted) == (0, (0, 3 + reader.chunks[1].size))
    reader.fetcher.stop()


async def test_what_is_finished_just_before_the_memory_is_divided_anew_makes_it_ask() -> None:
    """``Fetches.expect`` counts it before the loop gets to the report, and does not ask."""
    reader = Reader(prefetch_bytes=400)
    reader.answer(b"x" * 400)
    assert len(reader.asked) == 1, "as much is there as may be"
    reader.fetcher.finished(reader.chunks[0].size)
    reader.fetcher.count()
    await until(lambda: len(reader.asked) == 2)
    reader.fetcher.stop()


async def test_what_was_finished_before_bytes_are_fetched_again_counts_no_more() -> None:
    reader = Reader(prefetch_bytes=100_000)
    reader.answer(b"x" * 400)
    reader.fetcher.finished(10, Rest(8, 9))
    reader.fetcher.fetch_again(100)
    assert (reader.fetcher.buffered, reader.fetcher.missing) == (0, 0)
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


async def test_no_more_is_asked_for_than_all_partitions_together_leave() -> None:
    """Scraps are not worth an answer while there is something to consume."""
    reader = Reader()
    reader.fetches.share_bytes, reader.fetches.allowed = 700, 600
    reader.answer(b"x" * 100)
    assert reader.fetches.asked[-1] == (200, 600)
    reader.fetches.allowed = 200
    reader.answer(b"x" * 100)
    assert reader.asked == [100, 200]
    reader.fetches.allowed = 400
    reader.consumed(reader.chunks[0].size)
    assert reader.fetches.asked[-1] == (300, 400)
    reader.fetches.allowed = 5
    reader.answer(b"x" * 100)
    for chunk in reader.chunks[1:]:
        reader.consumed(chunk.size)
    assert reader.fetches.asked[-1] == (400, 5), "with nothing to consume it must go on"
    assert reader.fetches.counted == (5, 0)
    reader.fetcher.stop()


# Errors -------------------------------------------------------------------------------------------
@pytest.mark.parametrize("error", [NotMaster("elsewhere"), StaleEpoch("the request knows epoch 3")])
async def test_what_moved_is_looked_for_again(error: VqError) -> None:
    """A broker that does not know of its successor is not believed; the routes say who that is."""
    reader = Reader()
    reader.refuse(error)
    assert reader.cluster.refreshed == ["t"]
    assert reader.asked == [100]
    await until(lambda: reader.asked == [100, 100])
    assert not reader.errors
    reader.fetcher.stop()


@pytest.mark.parametrize("error", [Busy(), ConnectionCut()])
async def test_what_passes_is_told_to_nobody(error: VqError) -> None:
    reader = Reader()
    reader.answer(b"x" * 50)
    reader.refuse(error)
    await until(lambda: reader.asked == [100, 150, 150])
    assert (reader.errors, reader.cluster.refreshed) == ([], [])
    reader.fetcher.stop()


async def test_a_final_error_is_told_and_tried_again_slowly() -> None:
    reader = Reader()
    reader.refuse(OffsetOutOfRange("too old", details={"earliest": 500, "latest": 900}))
    (error,) = reader.errors
    assert isinstance(error, OffsetOutOfRange)
    assert error.details == {"earliest": 500, "latest": 900}
    await until(lambda: reader.asked == [100, 100])
    reader.fetcher.stop()


async def test_an_error_that_cannot_be_told_is_tried_again_all_the_same() -> None:
    """What is told is logged, and logging of the application may raise."""
    reader = Reader()
    fails = 2

    def tell(error: VqError | None) -> None:
        nonlocal fails
        if fails:
            fails -= 1
            raise KeyError("a bug")
        reader.errors.append(error)

    reader.fetcher._on_error = tell
    reader.refuse(OffsetOutOfRange("too old"))
    await until(lambda: reader.asked == [100, 100])
    reader.answer(b"1")
    assert (fails, reader.errors, reader.fetcher.at_once) == (0, [], True)
    reader.answer(b"2")
    assert reader.errors == [None], "that it is over is told at the next answer"
    assert [chunk.body for chunk in reader.chunks] == [b"1", b"2"]
    reader.fetcher.stop()


async def test_bytes_that_cannot_be_handed_on_are_asked_for_again() -> None:
    reader = Reader()

    def stumble(chunk: Chunk) -> None:
        raise MemoryError

    reader.fetcher._on_chunk = stumble
    with pytest.raises(MemoryError):
        reader.answer(b"1")
    reader.fetcher._on_chunk = reader.chunks.append
    reader.refuse(InternalError("a bug"))
    await until(lambda: reader.asked == [100, 100])
    reader.answer(b"1")
    assert [chunk.offset for chunk in reader.chunks] == [100]
    reader.fetcher.stop()


async def test_an_answer_for_another_place_is_told_and_tried_again() -> None:
    """Its bytes must never be taken for those asked for."""
    reader = Reader()
    reader.answer(b"x", offset=300)
    assert [type(error) for error in reader.errors] == [ProtocolError]
    assert (reader.chunks, reader.fetcher.position) == ([], 100)
    await until(lambda: reader.asked == [100, 100])
    reader.fetcher.stop()


# Stopping -----------------------------------------------------------------------------------------
async def test_after_the_stop_nothing_is_asked_for() -> None:
    reader = Reader()
    reader.fetcher.stop()
    assert reader.fetches.members == 0
    reader.fetcher.failed(Busy())
    reader.consumed(10)
    reader.fetcher.start()
    assert (reader.asked, reader.fetches.members) == ([100], 0)


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
    monkeypatch.setattr(fetchers, "_AGAIN", replace(fetchers._AGAIN, first_s=0.001))
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
    assert reader.fetcher.buffered == reader.chunks[1].size, "what was dropped takes no room"
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
    monkeypatch.setattr(fetchers, "_BACKOFF", Backoff(first_s=0.001, most_s=0.004, jitter=0.5))
    reader = Reader()
    for _ in range(12):
        reader.fetcher.fetch_again(100)
        count = len(reader.chunks) + 1
        await until(lambda count=count: len(reader.chunks) == count)
    sizes = [request.max_bytes for request in reader.cluster.anew]
    assert sizes[:2] == [1_000, 1_000]
    assert min(sizes[2:]) >= limits.MESSAGE_BYTES_MAX, "any record as a whole, in the end"
    assert 0.05 < pauses[0] < 0.15
    assert all(early < late for early, late in zip(pauses[:5], pauses[2:7], strict=True))
    assert 20 < pauses[-1] < 40
    reader.cluster.answers = [Busy("later")]
    reader.fetcher.fetch_again(120)
    await until(lambda: len(pauses) == 13 and not reader.cluster.answers)
    assert pauses[-1] < 0.15
    await until(lambda: reader.asked[-1] == 120)
    assert reader.fetches.validated[-1]
    reader.fetcher.fetch_again(130)
    reader.fetcher.stop()
    await sleep(0)
    assert reader.fetcher._again.task is not None
    assert reader.fetcher._again.task.cancelled()


@pytest.mark.parametrize("answer", [None, Busy("too many reports")])
async def test_damage_that_comes_again_is_reported_to_the_broker(
    monkeypatch: pytest.MonkeyPatch, answer: VqError | None
) -> None:
    """Not at once: one bad read may be the way's. What becomes of the report changes nothing."""
    monkeypatch.setattr(fetchers, "_AGAIN", replace(fetchers._AGAIN, first_s=0.001))
    reader = Reader()
    reader.cluster.report_answer = answer
    for tries in range(1, 4):
        reader.fetcher.fetch_again(100)
        await until(lambda tries=tries: len(reader.chunks) == tries)
        assert reader.cluster.reported == [100] * (tries - 1)


async def test_that_what_was_told_is_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, with the first answer, also where there is nothing new. A bug of the broker is told."""
    monkeypatch.setattr(fetchers, "_BACKOFF", Backoff(first_s=0.001, most_s=0.001, jitter=0.5))
    reader = Reader()
    reader.answer()
    assert reader.errors == []
    for error in (PartitionQuarantined("damage"), InternalError("a bug")):
        count = len(reader.asked)
        reader.refuse(error)
        assert reader.fetcher.at_once
        await until(lambda count=count: len(reader.asked) > count)
    reader.answer()
    reader.answer()
    assert [type(each) for each in reader.errors] == [
        PartitionQuarantined, InternalError, type(None),
    ]  # fmt: skip


async def test_a_broker_that_came_up_anew_is_told_before_its_bytes_are_used() -> None:
    """First what was fetched before is consumed; another broker group is no such thing."""
    reader = Reader(prefetch_bytes=9_000)
    reader.answer(b"x" * 100, epoch=4)
    (chunk,) = reader.chunks
    reader.answer(b"other", epoch=5)
    assert (len(reader.chunks), reader.epochs) == (1, [])
    reader.consumed(chunk.size)
    assert reader.epochs == [200]
    reader.consumed(0)
    assert reader.asked == [100, 200], "nothing is asked for until somebody says so"
    reader.fetcher.start()
    assert reader.asked == [100, 200, 200]
    reader.answer(b"y" * 1_800, epoch=5)
    reader.answer(b"z" * 100, epoch=9)  # the next span, of b2
    assert [each.offset for each in reader.chunks] == [100, 200, 2_000]
    assert reader.epochs == [200]
    reader.fetcher.stop()


async def test_nothing_is_fetched_before_it_is_started_or_after_it_is_stopped() -> None:
    """It takes no share of the memory either."""
    reader = Reader(start=False)
    assert (reader.fetches.members, reader.asked) == (0, [])
    reader.fetcher.stop()
    reader.fetcher.start()
    assert (reader.fetches.members, reader.asked) == (0, [])


async def test_the_beginning_of_a_record_takes_room_and_is_completed_in_one_answer() -> None:
    """However little is asked for otherwise: only a whole record gives room back."""
    reader = Reader(length=300, prefetch_bytes=400)
    reader.answer(b"x" * 300)
    (chunk,) = reader.chunks
    assert reader.asked == [100], "it is behind by more than the bound"
    reader.fetches.allowed = 5_000
    reader.consumed(chunk.size, Rest(280, 900))
    assert reader.fetches.asked[-1] == (400, 900)
    assert reader.fetches.counted == (900, 280)
    assert reader.fetches.in_line == 0
    reader.fetcher.stop()


async def test_without_room_for_the_rest_of_a_record_it_waits_in_line() -> None:
    reader = Reader(length=300, prefetch_bytes=400)
    reader.answer(b"x" * 300)
    reader.fetches.allowed = 899
    reader.consumed(reader.chunks[0].size, Rest(280, 900))
    assert (reader.asked, reader.fetches.in_line) == ([100], 1)
    assert reader.fetcher.missing == 900
    reader.fetches.permits = True
    reader.fetcher.go_on()
    assert reader.fetches.asked[-1] == (400, 900)
    reader.answer(b"x" * 900)
    reader.consumed(reader.chunks[1].size)
    assert reader.fetcher.buffered == reader.fetcher.missing == 0
    reader.fetcher.stop()


async def test_half_a_record_does_not_hide_that_a_broker_came_up_anew() -> None:
    reader = Reader(prefetch_bytes=9_000)
    reader.answer(b"x" * 100, epoch=4)
    reader.answer(b"other", epoch=5)
    reader.consumed(reader.chunks[0].size, Rest(40, 60))
    assert reader.epochs == [200]
    reader.fetcher.stop()


async def test_bytes_are_read_again_only_when_there_is_room_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetchers, "_AGAIN", replace(fetchers._AGAIN, first_s=0.001))
    reader = Reader()
    reader.answer(b"x" * 100)
    reader.fetches.allowed = 10
    reader.fetcher.fetch_again(100)
    assert reader.fetches.counted == (0, 0), "what it had is forgotten"
    await until(lambda: reader.fetches.in_line == 1)
    assert (reader.cluster.anew, reader.fetcher.missing) == ([], 1_000)
    reader.fetches.permits = True
    reader.fetcher.go_on()
    assert reader.fetches.counted == (1_000, 0)
    await until(lambda: len(reader.chunks) == 2)
    assert [request.max_bytes for request in reader.cluster.anew] == [1_000]
    reader.fetcher.stop()
