"""A list whose first messages are handled already: the others are given, and did not fail."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.giving_up import Copied, FailedTries, Spent, awaiting, calling
from vq.client.consumer.deliver.policy import PolicyInForce
from vq.client.consumer.deliver.stored_results import passing, passing_async
from vq.client.consumer.deliver.tries import Retry
from vq.errors import AlreadyHandled
from vq.model import Message

LIST = [Message("t", b"%d" % number, partition=0, offset=number) for number in range(3)]


class Store:
    """A listener whose store is behind the first message; what it was given, and then raises."""

    def __init__(self, then: Any = None) -> None:
        self.given: list[list[int]] = []
        self.copied: list[int] = []
        self._then = then

    def __call__(self, messages: list[Message]) -> Any:
        self.given.append([each.offset for each in messages])
        done = sum(each.offset < 1 for each in messages)
        if done:
            raise AlreadyHandled("stored", details={"done": done, "offset": 1})
        if isinstance(self._then, Exception):
            raise self._then
        return self._then


@pytest.fixture(params=["blocking", "aio"])
def handle(request: pytest.FixtureRequest) -> Callable[[Store, list[Message]], Any]:
    """Give a list to a listener of a group that copies what has failed once."""
    policy = PolicyInForce(ConsumerConfig(group="g", on_failure="dead-letter", max_attempts=1))

    def call(store: Store, messages: list[Message]) -> Any:
        failing = FailedTries(policy, lambda: 0)

        def copy(spent: Sequence[Spent]) -> Copied:
            store.copied += [each.message.offset for each in spent]
            return len(spent), None

        if request.param == "blocking":
            return calling(passing(store), failing, copy)(messages)

        async def listener(given: list[Message]) -> Any:
            return store(given)

        async def keep(spent: Sequence[Spent]) -> Copied:
            return copy(spent)

        async def run() -> Any:
            return await awaiting(passing_async(listener), failing, keep)(messages)

        return asyncio.run(run())

    return call


def test_the_others_of_a_list_have_not_failed(handle: Callable[..., Any]) -> None:
    """With one try they were dead letters, or skipped, and no listener had handled them."""
    store = Store()
    assert handle(store, LIST) is None
    assert (store.given, store.copied) == ([[0, 1, 2], [1, 2]], [])
    store = Store()
    assert handle(store, LIST[:1]) is None
    assert (store.given, store.copied) == ([[0]], [])


def test_what_the_listener_says_of_the_others_counts(handle: Callable[..., Any]) -> None:
    store = Store(Retry(done=1))
    handle(store, LIST)
    assert store.copied == [2]
