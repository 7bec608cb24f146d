"""Archives that a client reads by itself: what one place does to another."""

import asyncio
import logging

import pytest
from support.archive_places import URL, Failing
from support.broker import PLACES

from vq.client.reading import zips
from vq.client.reading.zips import Zips
from vq.clock import SystemClock
from vq.store.archive.zipped_block import WantedBlock


def wanted(place: str) -> WantedBlock:
    url = f"{place}/c/b1/n1/t.0/0/0.zip"
    return WantedBlock(url, 100_000, "t", 0, "id", 0, 1_000)


async def test_a_place_that_hangs_takes_no_thread_from_another_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many calls hang in it; the other one is told by its own error."""
    Failing.reset()
    Failing.asked = lambda _: None
    Failing.free.clear()
    found = Zips(SystemClock(), PLACES)
    try:
        monkeypatch.setattr(zips, "ANSWER_S", 0.05)
        hanging = (found.read(wanted(URL), 0, 10, 30.0) for _ in range(zips.THREADS_MAX + 1))
        assert await asyncio.gather(*hanging) == [None] * (zips.THREADS_MAX + 1)
        monkeypatch.setattr(zips, "ANSWER_S", 30.0)
        assert await found.read(wanted("memory://other"), 0, 10, 30.0) is None
    finally:
        Failing.free.set()
        found.close()
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert len(told) == 2
    assert "no answer within" in told[0]
    assert "memory://other" in told[1]
    assert "no answer within" not in told[1]


async def test_the_threads_of_places_that_were_read_long_ago_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zips, "PLACES_MAX", 2)
    found = Zips(SystemClock(), PLACES)
    for number in range(4):
        await found.read(wanted(f"memory://{number}"), 0, 10, 30.0)
    assert list(found.calls) == ["memory://2", "memory://3"]
    found.close()


async def test_what_a_broker_tells_is_not_opened_outside_the_places(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whoever may write to ZooKeeper chooses the URLs; the credentials are of this process."""
    Failing.reset()
    asked: list[object] = []
    Failing.asked = asked.append
    found = Zips(SystemClock(), ("file:///mnt/archive", "s3://ours/vq"))
    for place in (
        URL,
        "s3://theirs/vq",
        "s3://ours/vqx",
        "file:///mnt/archive/../../etc",
        f"s3://ours/vq::{URL}",
    ):
        assert await found.read(wanted(place), 0, 10, 30.0) is None
        assert f"{place}/c/b1/n1/t.0/0/0.zip' are not opened" in caplog.text
    assert "archive_places = file:///mnt/archive, s3://ours/vq; add its place" in caplog.text
    assert asked == []
    assert not found.calls
    found.close()
