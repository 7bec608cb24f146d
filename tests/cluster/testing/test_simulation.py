"""Tests in virtual time, as users write them: repeatable, and fast whatever they wait for."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vq.client.config import ConsumerConfig
from vq.errors import InvalidArgument
from vq.model import Message
from vq.testing import Cluster, simulated, strategies, until, until_true


def handled_by_two(seeds: int) -> Callable[[], None]:
    """Return a test of a handler that is not idempotent: it counts an order twice if it repeats."""

    @simulated(seeds=seeds)
    async def test(cluster: Cluster) -> None:
        await cluster.create_topic("orders")
        sender = await cluster.factory("sender")
        async with await sender.create_producer() as producer:
            for number in range(20):
                await producer.send(Message("orders", b"%d" % number))
        total: list[int] = []

        async def book(message: Message) -> None:
            total.append(int(message.content))
            await asyncio.sleep(cluster.random.uniform(0, 0.3))

        async def begin(name: str) -> None:
            factory = await cluster.factory(name)
            config = ConsumerConfig(group="books", start_position="earliest")
            consumer = await factory.create_consumer(config)
            await consumer.subscribe("orders", listener=book).start()

        await begin("first")
        await until(lambda: len(total) >= 5)
        cluster.faults.crash("first")
        await begin("second")
        await until(lambda: set(total) == set(range(20)))
        assert len(total) == 20, f"{len(total)} bookings of 20 orders"

    return test


def test_a_failing_interleaving_is_told_by_its_seed_and_fails_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    test = handled_by_two(20)
    with pytest.raises(AssertionError) as failed:
        test()
    (note,) = failed.value.__notes__
    seed = note.removeprefix("seed ").split(":")[0]
    assert note == f"seed {seed}: VQ_TESTING_SEED={seed} runs it alone"
    monkeypatch.setenv("VQ_TESTING_SEED", seed)
    for _ in range(2):
        with pytest.raises(AssertionError) as again:
            test()
        assert str(again.value) == str(failed.value)
        assert again.value.__notes__ == [note]


def test_seeds_have_different_interleavings() -> None:
    """Of two senders, sometimes the one is first and sometimes the other."""
    first: set[bytes] = set()

    @simulated(seeds=10)
    async def race(cluster: Cluster) -> None:
        await cluster.create_topic("orders")

        async def send(name: str) -> None:
            factory = await cluster.factory(name)
            async with await factory.create_producer() as producer:
                await producer.send(Message("orders", name.encode()))

        await asyncio.gather(send("a"), send("b"))
        async with await (await cluster.factory("look")).create_consumer() as consumer:
            messages = await consumer.get("orders", 0, 0, 1_000)
        first.add(messages[0].content)

    race()
    assert first == {b"a", b"b"}


def test_waiting_takes_no_time() -> None:
    @simulated(seeds=1, time_s=3_600)
    async def minutes(cluster: Cluster) -> None:
        await asyncio.sleep(300)

    begun = time.process_time()
    minutes()
    assert time.process_time() - begun < 60  # of 300


def test_a_test_that_never_ends_fails() -> None:
    @simulated(seeds=1, time_s=30)
    async def hangs(cluster: Cluster) -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(
        TimeoutError, match=r"hangs has not ended after 30 virtual seconds .*time_s=\.\.\."
    ):
        hangs()


def test_a_wait_in_vain_says_for_what() -> None:
    @simulated(seeds=1)
    async def waits(cluster: Cluster) -> None:
        await until(lambda: False, "the lamp", timeout_s=2)

    @simulated(seeds=1)
    async def asks(cluster: Cluster) -> None:
        async def lamp() -> bool:
            return False

        await until_true(lamp, timeout_s=2)

    with pytest.raises(TimeoutError, match="not within 2 s: the lamp"):
        waits()
    with pytest.raises(TimeoutError, match=r"not within 2 s: <function .*lamp"):
        asks()


async def test_a_condition_that_is_always_true_is_refused() -> None:
    async def lamp() -> bool:
        return False

    with pytest.raises(InvalidArgument, match="returns a coroutine, which is always true"):
        await until(lamp)
    with pytest.raises(InvalidArgument, match="returns False, which cannot be awaited; take until"):
        await until_true(lambda: False)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"seeds": 0}, "seeds = 0 is outside"),
        ({"seeds": True}, "seeds = True is bool; give a whole number"),
        ({"seeds": "3"}, "seeds = '3' is str; give a whole number"),
        ({"seeds": 10**7}, "seeds = 10000000 is outside"),
        ({"groups": 0}, r"groups = 0 is outside \[1, 16\]"),
        ({"nodes": 9}, r"nodes = 9 is outside \[1, 5\]"),
        ({"time_s": 0}, r"time_s = 0 is outside \(0, "),
        ({"time_s": "x"}, "time_s = 'x' is str; give a number"),
    ],
)
def test_arguments_of_a_simulated_test_have_bounds(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidArgument, match=error):
        simulated(**arguments)


def test_a_simulated_test_is_a_coroutine_function_with_a_cluster() -> None:
    def plain(cluster: Cluster) -> None: ...

    async def other(brokers: Cluster) -> None: ...

    with pytest.raises(InvalidArgument, match="it takes a coroutine function"):
        simulated(plain)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="other has no argument `cluster`"):
        simulated(other)


@pytest.mark.parametrize("seed", ["-1", "x", "1000000"])
def test_a_seed_that_is_none_is_refused(seed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VQ_TESTING_SEED", seed)
    with pytest.raises(InvalidArgument, match=f"VQ_TESTING_SEED = '{seed}' is no whole number"):
        handled_by_two(1)()


def fields(message: Message) -> tuple[object, ...]:
    return message.content, message.tag, message.key, dict(message.headers or {})


@settings(max_examples=10)
@given(messages=st.lists(strategies.messages("orders"), min_size=1, max_size=10))
def test_what_the_strategies_draw_is_sent_and_received_as_it_is(messages: list[Message]) -> None:
    @simulated(seeds=1)
    async def there_and_back(cluster: Cluster) -> None:
        await cluster.create_topic("orders")
        factory = await cluster.factory()
        async with await factory.create_producer() as producer:
            await producer.send_batch(messages)
        async with await factory.create_consumer() as consumer:
            received = await consumer.get("orders", 0, 0, 1_000_000)
        assert [fields(each) for each in received] == [fields(each) for each in messages]

    there_and_back()
