"""Short pauses, and threads that call listeners."""

from collections.abc import Iterator
from typing import Final

import pytest
from support.delivery import NotedWorkers

from vq.backoff import Backoff
from vq.client.consumer.fetch import fetch_sessions
from vq.client.consumer.fetch import fetcher as fetchers
from vq.testing.waiting import WAIT_S

QUICK: Final = Backoff(first_s=0.002, most_s=0.004, jitter=0.5)


@pytest.fixture
def quick_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "BACKOFF", QUICK)


@pytest.fixture
def quick_fetcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetchers, "BACKOFF", QUICK)


@pytest.fixture
def workers() -> Iterator[NotedWorkers]:
    workers = NotedWorkers()
    yield workers
    assert workers.close(WAIT_S)
