"""Roles of nodes for tests of one part."""

from collections.abc import Callable, Collection

from vq.broker.standing.lease import Lease
from vq.broker.standing.role import Role
from vq.errors import NotMaster


class Told(Lease):
    """A lease that lasts while a test says so."""

    def __init__(self, lasts: Callable[[], bool]) -> None:
        self._lasts = lasts

    def lasts(self) -> bool:
        return self._lasts()


def new_role(*, lease: Callable[[], bool] = lambda: True) -> Role:
    """Return what a node of group b1 is that has just started."""
    return Role("b1", Told(lease), NotMaster("this node is not registered yet"))


def leading(
    epoch: int = 3, others: Collection[str] = (), *, lease: Callable[[], bool] = lambda: True
) -> Role:
    """Return what the master of group b1 is, with ``others`` in sync."""
    role = new_role(lease=lease)
    role.claimed()
    role.begins(epoch, others)
    role.leads()
    return role
