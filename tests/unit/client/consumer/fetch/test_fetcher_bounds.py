"""A fetcher holds no more than its bound, and goes on as soon as there is room."""

import asyncio
from dataclasses import replace

import pytest
from support.fetcher import Reader

from vq.client.consumer.fetch import fetcher as fetchers
from vq.client.reading.chunk import Rest
from vq.message_filter import Filter
from vq.testing.waiting import until

pytestmark = pytest.mark.usefixtures("quick_fetcher")


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
    reader = Reader(wanted=Filter(("a",)), prefetch_bytes=64 * 1024)
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


async def test_bytes_are_read_again_only_when_there_is_room_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetchers, "AGAIN", replace(fetchers.AGAIN, first_s=0.001))
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
