"""A consumer as its membership sees it: what it does when the member's share changes."""

from typing import Protocol

from vq.client.consumer.group.holds import Hold
from vq.coordination.tree.values.group_terms import FailurePolicy
from vq.errors import VqError


class GroupConsumer(Protocol):
    """What a consumer does when its member's share changes, or is in doubt."""

    async def claimed(self, hold: Hold) -> None:
        """The member owns a partition now; ``hold.claim.committed`` says where to go on.

        If ``hold.unknown`` is set, it is to ``learn`` that first.
        """
        ...

    async def drain(self, hold: Hold) -> None:
        """Return once no listener runs for it any more; it is forgotten if it is lost.

        It is called in a task of the partition's own.
        """
        ...

    async def commit_last(self, hold: Hold) -> None:
        """Write its last progress into the tree and forget it.

        Called again when it raises; the partition is not released before.
        """
        ...

    def follow(self, failure: FailurePolicy) -> None:
        """The contract was read: this follows a failed message from now on."""
        ...

    def suspend(self) -> None:
        """Begin to deliver nothing until ``resume`` (or until everything was given up)."""
        ...

    def resume(self) -> None:
        """Ownership is proved again: go on, also where a listener returns later."""
        ...

    def ended(self, error: VqError) -> None:
        """The group has other terms, or there is no ZooKeeper any more: nothing follows."""
        ...
