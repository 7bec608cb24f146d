"""The secret of the cluster, by which its brokers know each other: made once, read by all.

``vq.remoting.membership`` says what is proved with it. This module makes and reads its node; no
error or log line here has the secret.
"""

from collections.abc import Callable

from vq.coordination.coordinator import Coordinator, Create, NoNode
from vq.coordination.paths import SECRET_BYTES, ClusterSecret
from vq.coordination.update import Plan, apply_plan
from vq.errors import CoordinationError

__all__ = ["cluster_secret", "read_secret"]


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
                "the cluster has no secret, by which its brokers know that a command may move "
                "partitions; a broker that starts makes it"
            ) from error
    return ClusterSecret.decode(path, node.data).key
