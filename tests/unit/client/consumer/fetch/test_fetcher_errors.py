"""What fails or is damaged is asked for again, and told when it does not pass by itself."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.fetcher import Reader

from vq import limits
from vq.backoff import Backoff
from vq.client.consumer.fetch import fetcher as fetchers
from vq.client.reading.chunk import Chunk
from vq.errors import (
    Busy,
    ConnectionCut,
    CorruptData,
    InternalError,
    NotMaster,
    OffsetOutOfRange,
    PartitionQuarantined,
    ProtocolError,
    StaleEpoch,
    VqError,
)
from vq.testing.waiting import until

pytestmark = pytest.mark.usefixtures("quick_fetcher")


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


async def test_what_passes_and_lasts_is_told_until_an_answer_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time counts from the last answer of the broker, for whatever partition."""
    monkeypatch.setattr(fetchers, "DELAY_TOLD_S", 0.02)
    reader = Reader()
    fetcher = reader.fetcher
    fetcher.delayed(Busy("many reads"))
    await asyncio.sleep(0.03)
    fetcher.delayed(Busy("many reads"), asyncio.get_running_loop().time() - 0.01)
    assert not reader.errors
    await asyncio.sleep(0.03)
    fetcher.delayed(Busy("many reads"))
    (error,) = reader.errors
    assert isinstance(error, Busy)
    assert fetcher.at_once
    reader.answer(b"1")
    assert reader.errors[1:] == [None]
    fetcher.delayed(Busy("many reads"))
    assert len(reader.errors) == 2
    fetcher.stop()


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


async def test_bytes_that_failed_a_check_are_read_again_on_a_connection_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was under way is dropped, and what follows comes over the common connection again."""
    monkeypatch.setattr(fetchers, "AGAIN", replace(fetchers.AGAIN, first_s=0.001))
    reader = Reader()
    reader.answer(bytes(300))
    assert reader.asked == [100, 400]
    reader.fetcher.fetch_again(150)
    reader.answer(bytes(50))
    await until(lambda: len(reader.chunks) == 2)
    (request,) = reader.cluster.anew
    assert (request.offset, request.validate, request.from_copy) == (150, True, True)
    assert (reader.chunks[1].offset, reader.chunks[1].next_offset) == (150, 250)
    assert reader.asked == [100, 400, 250]
    assert reader.fetcher.buffered == reader.chunks[1].size, "what was dropped takes no room"
    reader.answer(bytes(10))
    assert reader.chunks[-1].offset == 250


async def test_pauses_before_reading_damage_again_grow_up_to_their_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At one place; at the next they begin anew. What no node has is asked for later."""
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def note(pause_s: float) -> None:
        pauses.append(pause_s)
        await sleep(0)

    noting = SimpleNamespace(**{**vars(asyncio), "sleep": note})
    monkeypatch.setattr(fetchers, "asyncio", noting)
    monkeypatch.setattr(fetchers, "BACKOFF", Backoff(first_s=0.001, most_s=0.004, jitter=0.5))
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
    reader.cluster.answers = [PartitionQuarantined("damage")]
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
    monkeypatch.setattr(fetchers, "AGAIN", replace(fetchers.AGAIN, first_s=0.001))
    reader = Reader()
    reader.cluster.report_answer = answer
    for tries in range(1, 4):
        reader.fetcher.fetch_again(100, CorruptData())
        await until(lambda tries=tries: len(reader.chunks) == tries)
        assert reader.cluster.reported == [100] * (tries - 1)


async def test_that_what_was_told_is_over_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, with the first answer, also where there is nothing new. A bug of the broker is told."""
    monkeypatch.setattr(fetchers, "BACKOFF", Backoff(first_s=0.001, most_s=0.001, jitter=0.5))
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
