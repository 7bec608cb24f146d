"""Values of which the tree has one, in one node: read, and changed by compare-and-set."""

from collections.abc import Callable
from typing import TypeVar

from vq.coordination.tree.coordinator import Coordinator, Create, Node, NoNode, Operation, Set
from vq.coordination.tree.update import update
from vq.coordination.tree.values.value import SingleValue

S = TypeVar("S", bound=SingleValue)


async def read_single(coordinator: Coordinator, kind: type[S]) -> tuple[S, int] | None:
    """Return the value of a kind, and how often it was changed; None: nobody has written one.

    Raises:
        Unreadable: A newer vq has written it, or it is none.
        CoordinationError: ZooKeeper did not answer, or this client may not read it.
    """
    path = kind.path()
    try:
        node = await coordinator.get(path)
    except NoNode:
        return None
    return kind.decode(path, node.data), node.stat.version


async def change_single(
    coordinator: Coordinator, kind: type[S], change: Callable[[S], S], *, what: str
) -> S:
    """Change the value of a kind; return the one that holds now.

    Args:
        coordinator: A started coordinator.
        kind: Its class; ``kind()`` counts where nobody has written one.
        change: Takes the value and returns the one to write instead. It is called again if another
            one changed it at the same time.
        what: The subject of the error text: "the quotas".

    Raises:
        InvalidArgument: ``change`` raised it, or the value is too large to be stored.
        Unreadable: A newer vq has written the present one.
        CoordinationError: ZooKeeper did not answer; it may be changed.
    """
    path = kind.path()
    made = kind()

    def decide(node: Node | None) -> list[Operation]:
        nonlocal made
        before = kind() if node is None else kind.decode(path, node.data)
        made = change(before)
        if made == before:
            return []
        data = made.encode()
        return [Create(path, data) if node is None else Set(path, data, node.stat.version)]

    await update(coordinator, path, decide, what=what)
    return made
