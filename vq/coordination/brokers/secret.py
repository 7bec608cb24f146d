"""The secret of the cluster, by which its brokers know each other: made once, read by all.

``vq.remoting.membership`` says what is proved with it. This module makes, reads and replaces it; no
error or log line here has the secret.
"""

from collections.abc import Callable

from vq.coordination.tree.coordinator import (
    Coordinator,
    Create,
    Node,
    NoNode,
    Operation,
    Set,
    Unreadable,
)
from vq.coordination.tree.update import Plan, apply_plan, update
from vq.coordination.tree.values.cluster import SECRET_BYTES, ClusterSecret
from vq.errors import CoordinationError


async def cluster_secret(coordinator: Coordinator, random: Callable[[int], bytes]) -> bytes:
    """Return the secret; if there is none, make it, once, however many do so at the same time.

    Args:
        coordinator: A started coordinator.
        random: Returns so many bytes that nobody can foresee.

    Raises:
        CoordinationError: ZooKeeper did not answer, or has something else at its place.
    """
    path = ClusterSecret.path()

    async def plan(_: CoordinationError | None) -> Plan[bytes]:
        try:
            node = await coordinator.get(path)
        except NoNode:
            made = ClusterSecret.of(random(SECRET_BYTES))
            return Plan([Create(path, made.encode())], made.key)
        # Also after a create whose answer was lost: whoever made it, this is the secret.
        return Plan((), ClusterSecret.decode(path, node.data).key)

    return await apply_plan(coordinator, plan, what="the secret of the cluster")


async def replace_secret(coordinator: Coordinator, random: Callable[[int], bytes]) -> None:
    """Put another secret at the place of the present one, or where there is none.

    Connections that were proved before go on until they end. Brokers take the new one after a proof
    that fails, or at a start.

    Args:
        coordinator: A started coordinator.
        random: Returns so many bytes that nobody can foresee.

    Raises:
        Unreadable: A newer vq has written the present one.
        CoordinationError: ZooKeeper did not answer; if the connection was lost, the secret may be
            replaced.
    """
    path = ClusterSecret.path()
    data = ClusterSecret.of(random(SECRET_BYTES)).encode()

    def change(node: Node | None) -> list[Operation]:
        if node is None:
            return [Create(path, data)]
        try:
            ClusterSecret.decode(path, node.data)
        except Unreadable:  # a newer vq has written it
            raise
        except CoordinationError:
            pass  # it is no secret, and this repairs it
        return [] if node.data == data else [Set(path, data, node.stat.version)]

    await update(coordinator, path, change, what="the secret of the cluster")


async def read_secret(coordinator: Coordinator) -> bytes:
    """Return the secret.

    Raises:
        CoordinationError: There is none, or ZooKeeper did not answer, or has something else there.
    """
    path = ClusterSecret.path()
    try:
        node = await coordinator.get(path)
    except NoNode:
        await coordinator.sync()  # a server that lags behind may not know it yet
        try:
            node = await coordinator.get(path)
        except NoNode as error:
            raise CoordinationError(
                "the cluster has no secret yet, and brokers move partitions only for those who "
                "know it; start a broker, which makes it"
            ) from error
    return ClusterSecret.decode(path, node.data).key
