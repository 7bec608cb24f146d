"""Names for the completion of a shell: topics, consumer groups and broker groups.

They come from ZooKeeper, within a short time; a shell that completes shows nothing rather than an
error. Importing this module imports neither the client nor ZooKeeper's library.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

import click

from vq.errors import VqError

if TYPE_CHECKING:
    from vq.coordination.tree.coordinator import Coordinator

#: For all of it: connecting, reading, closing.
WAIT_S: Final = 1.5
NAMES_MAX: Final = 1_000

Names = Callable[["Coordinator"], Awaitable[list[str]]]


def topic_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the topics that begin with what was typed; reserved ones if that does, too."""
    from vq.coordination.topics.topics import list_topics
    from vq.reserved import is_reserved

    async def names(coordinator: "Coordinator") -> list[str]:
        known = await list_topics(coordinator)
        return [each for each in known if not is_reserved(each) or is_reserved(incomplete)]

    return _found(ctx, incomplete, names)


def deleted_topic_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the deleted topics that begin with what was typed."""
    from vq.coordination.topics.grace import list_deleted

    async def names(coordinator: "Coordinator") -> list[str]:
        return [each.name for each in await list_deleted(coordinator)]

    return _found(ctx, incomplete, names)


def group_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the consumer groups that begin with what was typed."""
    from vq.coordination.groups.groups import list_groups

    return _found(ctx, incomplete, list_groups)


def dead_letter_groups(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the groups with dead letters that begin with what was typed."""
    from vq.coordination.topics.topics import list_topics
    from vq.reserved import Purpose, group_of

    async def names(coordinator: "Coordinator") -> list[str]:
        known = await list_topics(coordinator)
        return [g for each in known if (g := group_of(each, Purpose.DEAD_LETTERS)) is not None]

    return _found(ctx, incomplete, names)


def write_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the repeatable writes that begin with what was typed."""
    from vq.coordination.leases.writes import names

    return _found(ctx, incomplete, names)


def broker_group_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return the broker groups that begin with what was typed."""
    from vq.coordination.brokers.registry import group_names as names

    return _found(ctx, incomplete, names)


def broker_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return broker groups and their nodes, as ``b1`` and ``b1/n1``."""
    from vq.coordination.brokers.registry import all_nodes
    from vq.coordination.brokers.registry import group_names as names

    async def both(coordinator: "Coordinator") -> list[str]:
        nodes = [f"{each.group}/{each.node}" for each in await all_nodes(coordinator)]
        return sorted([*await names(coordinator), *nodes])

    return _found(ctx, incomplete, both)


def _found(ctx: click.Context, incomplete: str, names: Names) -> list[str]:
    logging.disable()  # nothing but names may reach the shell
    try:
        known = asyncio.run(asyncio.wait_for(_ask(ctx.params, names), WAIT_S))
    except (VqError, OSError, TimeoutError):
        return []
    return [name for name in known if name.startswith(incomplete)][:NAMES_MAX]


async def _ask(params: dict[str, Any], names: Names) -> list[str]:
    from vq.cli.base.settings import build, read_sources
    from vq.client.config import MessageFactoryConfig
    from vq.coordination.tree.coordinator import NoNode, NotEmpty
    from vq.coordination.tree.paths import BROKERS
    from vq.coordination.zookeeper.zk import ZooKeeperCoordinator

    given = {name: params.get(name) for name in ("zookeeper", "cluster")}
    sources = read_sources(params.get("config"), os.environ, **given)
    config = build(MessageFactoryConfig, "client", sources)
    coordinator = ZooKeeperCoordinator(
        config.zookeeper,
        config.cluster,
        auth=config.zookeeper_auth,
        tls=config.zookeeper_tls,
    )
    try:
        await coordinator.start(WAIT_S)
        if await coordinator.exists(BROKERS) is None:  # no such cluster: leave none behind
            with contextlib.suppress(NoNode, NotEmpty):
                await coordinator.delete("")
            return []
        return await names(coordinator)
    finally:
        await coordinator.close()
