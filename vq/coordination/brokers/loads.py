"""Reads the published load of broker processes. Writing it is ``registry``'s."""

from collections.abc import Mapping
from dataclasses import dataclass

from vq.coordination.tree.coordinator import Coordinator, NoNode
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values.brokers import BrokerLoad
from vq.errors import CoordinationError
from vq.log_lines import get_logger

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PublishedLoad:
    """A load as it was read.

    Attributes:
        load: The value.
        written: Creation and version of the node: another pair means that it was written again.
    """

    load: BrokerLoad
    written: tuple[int, int]


async def read_loads(
    coordinator: Coordinator, nodes: Mapping[str, str]
) -> dict[str, PublishedLoad]:
    """Return the load of one node of each group, without those that are missing or damaged.

    It costs one read for each group.

    Args:
        coordinator: A started coordinator.
        nodes: Group → node.

    Raises:
        CoordinationError: ZooKeeper does not answer.
    """
    found = await gather_all(_read(coordinator, group, node) for group, node in nodes.items())
    return {group: load for group, load in zip(nodes, found, strict=True) if load is not None}


async def _read(coordinator: Coordinator, group: str, node: str) -> PublishedLoad | None:
    path = BrokerLoad.path(group, node)
    try:
        found = await coordinator.get(path)
    except NoNode:
        return None
    try:
        load = BrokerLoad.decode(path, found.data)
    except CoordinationError as error:
        logger.debug("load of a broker cannot be read", group=group, error=error)
        return None
    return PublishedLoad(load, (found.stat.czxid, found.stat.version))
