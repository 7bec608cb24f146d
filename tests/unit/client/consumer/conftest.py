"""Short pauses, and threads that call listeners."""

from collections.abc import Iterator
from typing import Final

import pytest
from support.waiting import WAIT_S

from vq.backoff import Backoff
from vq.client.consumer import fetch_sessions
from vq.client.consumer import fetcher as fetchers
from vq.client.consumer.delivery import Workers

QUICK: Final = Backoff(first_s=0.002, most_s=0.004, jitter=0.5)


@pytest.fixture
def quick_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "_BACKOFF", QUICK)


@pytest.fixture
def quick_fetcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetchers, "_BACKOFF", QUICK)


@pytest.fixture
def workers() -> Iterator[Workers]:
    workers = Workers(1, name="test")
    yield workers
    assert workers.close(WAIT_S)
