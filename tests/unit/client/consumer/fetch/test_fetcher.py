"""A fetcher asks for one range after the other, from its start to its stop."""

import pytest
from support.fetcher import WHERE, Reader

from vq import limits
from vq.client.reading.chunk import Rest
from vq.errors import Busy
from vq.message_filter import Filter

pytestmark = pytest.mark.usefixtures("quick_fetcher")


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
    reader = Reader(length=99_999_999, wanted=Filter(("a", "b")))
    fetcher = reader.fetcher
    wanted = ("a", "b")
    assert (fetcher.partition, fetcher.topic_id, fetcher.wanted.tags) == (WHERE, "id-1", wanted)
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
    reader = Reader(wanted=Filter(("a",)))
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


async def test_half_a_record_does_not_hide_that_a_broker_came_up_anew() -> None:
    reader = Reader(prefetch_bytes=9_000)
    reader.answer(b"x" * 100, epoch=4)
    reader.answer(b"other", epoch=5)
    reader.consumed(reader.chunks[0].size, Rest(40, 60))
    assert reader.epochs == [200]
    reader.fetcher.stop()


async def test_a_fetcher_knows_in_which_epoch_the_last_batch_was_written() -> None:
    """Not at the start of a span: the batch before it has an epoch of another broker group."""
    reader = Reader(offset=100, prefetch_bytes=90_000)
    assert reader.fetcher.last_epoch == 0
    reader.answer(b"x" * 1_000, epoch=4, last_epoch=3)
    assert reader.fetcher.last_epoch == 3
    reader.answer(b"x" * 900, epoch=4, last_epoch=4)
    assert (reader.fetcher.position, reader.fetcher.last_epoch) == (2_000, 0)
    reader.answer(b"x" * 10, epoch=9, last_epoch=2)
    assert reader.fetcher.last_epoch == 2
    reader.fetcher.stop()


async def test_a_broker_that_came_up_anew_is_asked_whether_it_has_what_was_read() -> None:
    reader = Reader(prefetch_bytes=9_000)
    reader.answer(b"x" * 100, epoch=4, last_epoch=4)
    assert not reader.fetcher.unsure
    reader.answer(b"other", epoch=5, last_epoch=5)
    assert (reader.fetcher.unsure, reader.fetcher.last_epoch) == (True, 4)
    reader.consumed(reader.chunks[0].size)
    reader.fetcher.start()
    reader.answer(b"y" * 100, epoch=5, last_epoch=5)
    assert (reader.fetcher.unsure, reader.fetcher.last_epoch) == (False, 5)
    reader.fetcher.stop()


async def test_what_is_left_of_a_range_is_not_asked_for_once_more() -> None:
    """The broker gives it by itself, up to what was asked for; all of it is counted until then."""
    reader = Reader(length=10_000, prefetch_bytes=20_000)
    for number in range(4):
        reader.answer(b"x" * 488, again=True)
        assert reader.fetches.counted == (9_000 - 1_000 * number, 1_000 * (number + 1))
    assert reader.asked == [100]
    reader.answer(b"x" * 488)
    assert reader.fetches.asked == [(100, 10_000), (100 + 5 * 488, 10_000)]
    assert [each.offset for each in reader.chunks] == [100 + 488 * n for n in range(5)]
    reader.fetcher.stop()


async def test_what_is_left_of_a_range_is_withdrawn_when_a_broker_came_up_anew() -> None:
    reader = Reader()
    reader.answer(b"x" * 100, epoch=4, again=True)
    reader.answer(b"other", epoch=5, again=True)
    assert not reader.fetches.waits
    reader.consumed(reader.chunks[0].size)
    assert reader.epochs == [200]
    reader.fetcher.start()
    assert reader.asked == [100, 200]
    reader.fetcher.stop()
