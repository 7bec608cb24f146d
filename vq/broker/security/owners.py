"""Whose producer ids and transactions are: the first user that a node saw with one. Pure."""

from typing import Final, TypeAlias

#: A transaction of the journal; or a topic, and a producer id or a transaction of one batch there.
OwnedNumber: TypeAlias = int | tuple[str, int]

#: So many are remembered; those that were not seen for longest are forgotten.
OWNERS_MAX: Final = 65_536
#: The owner of what members of the cluster use. No user has this name.
MEMBER: Final = " member"


class Owners:
    """Users by the numbers that are theirs; those of batches by topic, too.

    So nobody takes a number for a topic to which it may not write: numbers can be foreseen. It is
    forgotten when the node stops, and where a partition has another master. So it keeps apart
    users who may write to the same topic, and adds to their rights nothing.
    """

    def __init__(self) -> None:
        self._recent: dict[OwnedNumber, str] = {}
        self._older: dict[OwnedNumber, str] = {}

    def of(self, number: OwnedNumber) -> str | None:
        """Return whose a number is; None: nobody's that is known."""
        owner = self._recent.get(number)
        return self._older.get(number) if owner is None else owner

    def claim(self, number: OwnedNumber, user: str) -> bool:
        """Return whether a number is a user's; it becomes so if it is nobody's."""
        owner = self._recent.get(number)
        if owner is None:
            owner = self._older.get(number, user)
            self._keep(number, owner)
        return owner == user

    def take(self, number: OwnedNumber) -> None:
        """Give a number to members of the cluster, whoever has it."""
        if self._recent.get(number) is not MEMBER:
            self._keep(number, MEMBER)

    def _keep(self, number: OwnedNumber, owner: str) -> None:
        if len(self._recent) >= OWNERS_MAX // 2:
            self._older, self._recent = self._recent, {}
        self._recent[number] = owner
