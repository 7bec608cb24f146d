"""Tests in virtual time, each with interleavings that seeds draw."""

import asyncio
import functools
import inspect
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, overload

from vq.bounds import check_between, check_positive
from vq.errors import InvalidArgument
from vq.shown import shown
from vq.testing.cluster import Cluster
from vq.testing.loop import VirtualLoop

#: A test that runs with this variable takes the seed in it alone.
SEED_VARIABLE: Final = "VQ_TESTING_SEED"
SEEDS_DEFAULT: Final = 10
SEEDS_MAX: Final = 1_000_000
#: Virtual seconds after which a test has not ended, and fails.
TIME_S_DEFAULT: Final = 3_600.0

T = TypeVar("T")
Test = Callable[..., Awaitable[Any]]


@overload
def simulated(test: Test) -> Callable[..., None]: ...


@overload
def simulated(
    *,
    seeds: int = SEEDS_DEFAULT,
    groups: int = 1,
    nodes: int = 1,
    time_s: float = TIME_S_DEFAULT,
) -> Callable[[Test], Callable[..., None]]: ...


def simulated(
    test: Test | None = None,
    *,
    seeds: int = SEEDS_DEFAULT,
    groups: int = 1,
    nodes: int = 1,
    time_s: float = TIME_S_DEFAULT,
) -> Callable[..., Any]:
    """Run a coroutine function as a test in virtual time, once for each seed.

    Example::

        @vq.testing.simulated(seeds=50)
        async def test_an_order_is_booked_once(cluster: vq.testing.Cluster) -> None:
            await cluster.create_topic("orders")
            …

    The function gets a cluster that runs, as its argument ``cluster``; pytest gives the others, as
    ever. Its loop has a clock that jumps to the next timer when nothing is left to do: a time-out
    of a minute takes no time. The seed draws how long each message between hosts takes, so each
    run has another order of events, and the same seed has the same one. What the test does itself
    must not depend on the real time, on threads or on random numbers other than those of
    ``cluster.random``.

    A failure carries a note with its seed; ``VQ_TESTING_SEED=17 pytest …`` runs that one alone.

    Args:
        test: The function, if the decorator has no arguments.
        seeds: The seeds 0 to ``seeds - 1``, 1 to 1,000,000.
        groups, nodes: Of the cluster; see ``Cluster``.
        time_s: A test that has not ended after so many virtual seconds fails.

    Raises:
        InvalidArgument: An argument is out of bounds, or the function is no coroutine function with
            an argument ``cluster``.
    """
    check_between("seeds", seeds, 1, SEEDS_MAX)
    check_positive("time_s", time_s)
    Cluster(groups=groups, nodes=nodes)  # it refuses what it cannot be

    def decorate(function: Test) -> Callable[..., None]:
        _check_test(function)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            for seed in _seeds(seeds):
                cluster = Cluster(groups=groups, nodes=nodes, seed=seed)

                async def main(cluster: Cluster = cluster) -> None:
                    try:
                        async with asyncio.timeout(time_s) as bound, cluster:
                            await function(*args, cluster=cluster, **kwargs)
                    except TimeoutError as error:
                        if not bound.expired():
                            raise  # of the test
                        raise TimeoutError(
                            f"{function.__name__} has not ended after {time_s:g} virtual seconds "
                            "(time_s); a test that waits for longer gives "
                            "simulated(time_s=...) more"
                        ) from error

                try:
                    run_virtually(main)
                except BaseException as error:
                    error.add_note(f"seed {seed}: {SEED_VARIABLE}={seed} runs it alone")
                    raise

        signature = inspect.signature(function)
        others = [each for name, each in signature.parameters.items() if name != "cluster"]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate if test is None else decorate(test)


def _check_test(function: object) -> None:
    if not inspect.iscoroutinefunction(function):
        raise InvalidArgument(
            f"simulated gets {shown(function)}; it takes a coroutine function (async def)"
        )
    if "cluster" not in inspect.signature(function).parameters:
        raise InvalidArgument(
            f"{function.__name__} has no argument `cluster`; it gets the cluster by that name"
        )


def run_virtually(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function on a loop whose time jumps; return its result."""

    async def whole() -> T:
        return await main()

    loop = VirtualLoop()
    try:
        try:
            return loop.run_until_complete(whole())
        finally:
            loop.run_until_complete(_cancel(loop.unfinished()))
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _cancel(left: Sequence[asyncio.Task[Any]]) -> None:
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


def _seeds(count: int) -> range:
    given = os.environ.get(SEED_VARIABLE)
    if given is None:
        return range(count)
    if not given.isdecimal() or int(given) >= SEEDS_MAX:
        raise InvalidArgument(
            f"{SEED_VARIABLE} = {shown(given)} is no whole number below 1,000,000"
        )
    return range(int(given), int(given) + 1)
