"""The quotas: read, and changed by compare-and-set, all of them together."""

from collections.abc import Callable

from vq.coordination.tree.coordinator import Coordinator, Create, Node, NoNode, Operation, Set
from vq.coordination.tree.update import update
from vq.coordination.tree.values.quotas import QuotaList
from vq.security.quotas import Quotas

__all__ = ["change_quotas", "read_quotas"]


async def read_quotas(coordinator: Coordinator) -> Quotas:
    """Return the quotas; none where nobody has set any.

    Raises:
        Unreadable: A newer vq has written them, or they are none.
        CoordinationError: ZooKeeper did not answer.
    """
    path = QuotaList.path()
    try:
        node = await coordinator.get(path)
    except NoNode:
        return Quotas()
    return QuotaList.decode(path, node.data).quotas


async def change_quotas(coordinator: Coordinator, change: Callable[[Quotas], Quotas]) -> Quotas:
    """Change the quotas; return those that hold now.

    Args:
        coordinator: A started coordinator.
        change: Takes the quotas and returns those to write instead. It is called again if another
            one changed them at the same time.

    Raises:
        InvalidArgument: ``change`` raised it, or there would be too many.
        Unreadable: A newer vq has written the present ones.
        CoordinationError: ZooKeeper did not answer; they may be changed.
    """
    path = QuotaList.path()
    made = Quotas()

    def decide(node: Node | None) -> list[Operation]:
        nonlocal made
        before = Quotas() if node is None else QuotaList.decode(path, node.data).quotas
        made = change(before)
        if made == before:
            return []
        data = QuotaList(quotas=made).encode()
        return [Create(path, data) if node is None else Set(path, data, node.stat.version)]

    await update(coordinator, path, decide, what="the quotas")
    return made
