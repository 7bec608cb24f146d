"""Clients of a cluster in memory: the core, on the loop of the test."""

import functools
import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from support.broker import PLACES, MemoryCluster

from vq import aio
from vq.client.cluster import ClusterClient
from vq.client.config import MessageFactoryConfig
from vq.clock import Clock
from vq.model import Message, TopicSettings

HOST = "client"


def cluster_client(
    cluster: MemoryCluster,
    *,
    host: str = HOST,
    clock: Clock | None = None,
    seed: int = 11,
    operator: bool = False,
    **settings: Any,
) -> ClusterClient:
    """Return a client of ``cluster``, not started; ``settings`` are those of its factory.

    ``operator``: it is of an operator's command.

    Clients with the same ``seed`` draw the same producer ids: the broker takes what the second one
    sends for resends of the first one's.
    """
    config = MessageFactoryConfig(
        **{
            "cluster": "test",
            "request_timeout_s": 2.0,
            "connect_timeout_s": 1.0,
            "archive_places": PLACES,
            **settings,
        }
    )
    return ClusterClient(
        config,
        coordinator=cluster.ensemble.coordinator(
            "test", session_timeout_s=settings.get("session_timeout_s", 4.0)
        ),
        network=cluster.network.at(host),
        clock=clock or cluster.ensemble.clock,
        rng=random.Random(seed),
        operator=operator,
    )


@asynccontextmanager
async def started(cluster: MemoryCluster, **options: Any) -> AsyncIterator[ClusterClient]:
    """Provide a started client."""
    client = cluster_client(cluster, **options)
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def factory_of(cluster: MemoryCluster, **options: Any) -> AsyncIterator[aio.MessageFactory]:
    """Provide an open factory of the asynchronous API."""
    async with (
        started(cluster, **options) as client,
        aio.MessageFactory.on_cluster(client) as factory,
    ):
        yield factory


#: What a method is called with; others get the name of a topic for each argument.
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "send": (Message("t", b"x"), 3),
    "send_async": (Message("t", b"x"),),
    "send_oneway": (Message("t", b"x"),),
    "request": (Message("t", b"x"), 3),
    "send_batch": ([Message("t", b"x")],),
    "get": ("t", 0, 0, 100),
    "change_settings": ("t", TopicSettings()),
    "add_partitions": ("t", 4),
    "get_status": ("127.0.0.1:1",),
    "broker_status": ("127.0.0.1:1",),
    "__aexit__": (ValueError, ValueError(), None),
}


def calls_of(made: object) -> list[Callable[[], Awaitable[object]]]:
    """Return a call of each public coroutine method."""
    calls = []
    for name, function in vars(type(made)).items():
        if inspect.iscoroutinefunction(function) and (name[0] != "_" or name[:2] == "__"):
            needed = [
                each
                for each in inspect.signature(function).parameters.values()
                if each.default is each.empty and each.kind is not each.VAR_KEYWORD
            ]
            named = {each.name: "t" for each in needed if each.kind is each.KEYWORD_ONLY}
            arguments = ARGUMENTS.get(name, ("t",) * (len(needed) - len(named) - 1))
            calls.append(functools.partial(getattr(made, name), *arguments, **named))
    return calls
