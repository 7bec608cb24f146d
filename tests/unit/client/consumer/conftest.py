"""Short pauses of what fetches."""

from typing import Final

import pytest

from vq.backoff import Backoff
from vq.client.consumer import fetch_sessions
from vq.client.consumer import fetcher as fetchers

QUICK: Final = Backoff(first_s=0.002, most_s=0.004, jitter=0.5)


@pytest.fixture
def quick_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "_BACKOFF", QUICK)


@pytest.fixture
def quick_fetcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetchers, "_BACKOFF", QUICK)
