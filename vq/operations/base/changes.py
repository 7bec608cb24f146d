"""Errors for changes whose outcome is unknown because ZooKeeper did not answer."""

import contextlib
from collections.abc import Iterator

from vq.coordination.tree.coordinator import ConnectionLost, SessionExpired
from vq.errors import OutcomeUnknown


class ChangeUnknown(OutcomeUnknown):
    """ZooKeeper did not answer during a change of several steps."""

    hint = "`vq topic describe NAME` says how things stand; then run the command again if need be"


class ResetUnknown(ChangeUnknown):
    """ZooKeeper went away while a group's progress was set; partitions before that one are set."""

    hint = "`vq group describe GROUP` shows where the group is; the reset may be repeated"


class TreeUnknown(ChangeUnknown):
    """ZooKeeper went away while its tree was repaired or imported."""

    hint = "`vq zk check` shows how the tree is; the command may be repeated"


@contextlib.contextmanager
def unknown_when_cut(what: str, error: type[ChangeUnknown] = ChangeUnknown) -> Iterator[None]:
    """Say of a change that ZooKeeper's silence ended: perhaps done.

    Also where that silence says that nothing was sent: this holds for the last step alone.

    Raises:
        ChangeUnknown: It did; of the class ``error``.
    """
    try:
        yield
    except (ConnectionLost, SessionExpired) as cut:
        raise error(f"{what} may or may not have been done: {cut}") from cut
