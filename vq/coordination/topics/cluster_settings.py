"""The settings of the whole cluster, and the topics that producers may create by themselves.

One node holds them. Operators write it, and producers read it when a topic is missing.
"""

import functools
from collections.abc import Callable, Sequence

from vq.coordination.brokers.group_views import groups
from vq.coordination.topics import topics
from vq.coordination.topics.allocation import missing_pool
from vq.coordination.topics.topics import TopicExists
from vq.coordination.tree.coordinator import (
    Check,
    ConnectionLost,
    Coordinator,
    Stat,
)
from vq.coordination.tree.reading import in_grace, read_summary
from vq.coordination.tree.single import change_single, read_single
from vq.coordination.tree.update import TRIES_MAX
from vq.coordination.tree.values.cluster import ClusterSettings
from vq.coordination.tree.values.topics import IN_GRACE
from vq.errors import CoordinationError, InvalidArgument, UnknownTopic
from vq.model import COMMON_POOL, GroupView, TopicOrigin, TopicSettings, check_name
from vq.reserved import check_own_name

#: Takes the settings and returns those to write instead.
Change = Callable[[ClusterSettings], ClusterSettings]


async def read_settings(coordinator: Coordinator) -> ClusterSettings:
    """Return the settings; the defaults where no operator wrote any."""
    found = await read_single(coordinator, ClusterSettings)
    return ClusterSettings() if found is None else found[0]


async def change_settings(coordinator: Coordinator, change: Change) -> ClusterSettings:
    """Change the settings by compare-and-set; return the new ones.

    Raises:
        InvalidArgument: Producers could not create topics with these settings.
    """
    known = await groups(coordinator)

    def checked(before: ClusterSettings) -> ClusterSettings:
        made = change(before)
        _check(made, known)
        return made

    return await change_single(
        coordinator, ClusterSettings, checked, what="the settings of the cluster"
    )


def _check(settings: ClusterSettings, known: Sequence[GroupView]) -> None:
    """Refuse settings with which no producer could create a topic on the known broker groups."""
    if not settings.may_create:
        return
    wanted = settings.new_topics
    missing = missing_pool(known, wanted.pool)
    if missing and (known or wanted.pool is not None):  # brokers of the common pool may come yet
        raise InvalidArgument(f"pool = {wanted.pool or COMMON_POOL!r}: {missing}")


async def settings_of_missing_topic(coordinator: Coordinator, name: str) -> TopicSettings:
    """Return the settings that a missing topic gets if a producer creates it now.

    Raises:
        InvalidArgument: The name is not valid for a topic, or reserved.
        UnknownTopic: The cluster does not allow it, or a deleted topic has the name.
    """
    check_own_name(check_name("topic", name))
    await _check_not_deleted(coordinator, name)
    wanted = (await read_settings(coordinator)).auto_create
    if wanted is None:
        raise UnknownTopic(
            f"there is no topic {name!r}; create it: `vq topic create {name} --partitions N`; or "
            "let producers create topics: `vq cluster settings --auto-create on`"
        )
    return wanted


async def create_missing_topic(
    coordinator: Coordinator, name: str, origin: TopicOrigin | None = None
) -> None:
    """Create a topic that a producer wants, if the cluster allows it.

    If others create it at the same time, there is one topic and no error. It is created with one
    transaction, which fails if an operator has changed the settings since they were read.

    Raises:
        InvalidArgument: The name is not valid for a topic; nothing was written.
        UnknownTopic: The cluster does not allow it.
        CoordinationError: No broker group can take partitions, or ZooKeeper did not answer; if it
            was asked to create the topic, the message says so.
    """
    for _ in range(TRIES_MAX):
        stat = await coordinator.exists(ClusterSettings.path())
        wanted = await settings_of_missing_topic(coordinator, name)
        try:
            await topics.create_topic(
                coordinator,
                name,
                wanted,
                only_if=functools.partial(unchanged_since, coordinator, stat),
                origin=origin,
            )
        except TopicExists:
            # Another client created it, or it is not ready: read no older state of the tree.
            await coordinator.sync()
            await _check_not_deleted(coordinator, name)
        except _Changed:
            continue
        except ConnectionLost as error:
            raise CoordinationError(
                f"it is unknown whether topic {name!r} was created: {error}",
                hint="send or publish again; if it was created, it is used",
            ) from error
        return
    raise CoordinationError(
        f"the settings of the cluster changed {TRIES_MAX} times while topic {name!r} was created; "
        "try again"
    )


async def _check_not_deleted(coordinator: Coordinator, name: str) -> None:
    """Return unless a topic that can be brought back has the name.

    Raises:
        UnknownTopic: So it is; the hint says what to do.
    """
    found = await read_summary(coordinator, name)
    if found is not None and found.phase == IN_GRACE:
        raise in_grace(name)


class _Changed(CoordinationError):
    """An operator changed the settings since they were read."""


async def unchanged_since(coordinator: Coordinator, known: Stat | None) -> Check:
    """Return the check that the settings are those of ``known``.

    So no topic is created after an operator has forbidden it.

    Raises:
        _Changed: They are others already.
    """
    path = ClusterSettings.path()
    stat = await coordinator.exists(path)
    if known is None or stat is None or (stat.czxid, stat.version) != (known.czxid, known.version):
        raise _Changed(path)
    return Check(path, known.version)
