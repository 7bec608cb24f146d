"""Messages that a process may have died of. Pure.

A process that dies (killed, out of memory, crashed, over its time limit) had messages in hand. Who
gets them next cannot know it: a count of tries is in the memory of a member. So the parent keeps
this one:

    what the parent knows                               count of the message
    it was longer in hand than the time limit           + 1; the others in hand are not guilty
    it was alone in hand                                + 1
    it was in hand with others, none over the limit     1: it may be guilty
    it was handled since                                forgotten

A message with a count runs alone in its process, so the next death says who was guilty. At the
bound, which is the ``max_attempts`` of the group, it is not handed to the application any more:
each try fails at once, until the policy of the group takes the message. A delivery from the retry
topic counts anew, as for tries that raise.
"""

from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

#: More are not remembered; those that were noted first go.
SUSPECTS_MAX: Final = 1_000


class MessageKey(NamedTuple):
    """A message of one delivery.

    Attributes:
        topic, partition, offset, id: Of the message.
        earlier: The tries of its earlier deliveries.
    """

    topic: str
    partition: int
    offset: int
    id: int
    earlier: int = 0


class Suspects:
    """How many processes may have died of each message."""

    def __init__(self) -> None:
        self._counts: dict[MessageKey, int] = {}

    def __len__(self) -> int:
        return len(self._counts)

    def items(self) -> Iterator[tuple[MessageKey, int]]:
        """Go through all of them."""
        yield from self._counts.items()

    def count(self, key: MessageKey) -> int:
        """Return how many processes may have died of a message."""
        return self._counts.get(key, 0)

    def overdue(self, keys: Collection[MessageKey]) -> None:
        """Count messages for which a process is ended: they were in hand for too long."""
        for key in keys:
            self._note(key, self.count(key) + 1)

    def died(self, in_hand: Collection[MessageKey]) -> None:
        """Count the messages of a process that ended, and nobody knows why."""
        alone = len(in_hand) == 1
        for key in in_hand:
            self._note(key, self.count(key) + 1 if alone else max(1, self.count(key)))

    def handled(self, key: MessageKey) -> None:
        """Forget a message."""
        self._counts.pop(key, None)

    def _note(self, key: MessageKey, count: int) -> None:
        self._counts[key] = count
        while len(self._counts) > SUSPECTS_MAX:
            self._counts.pop(next(iter(self._counts)))
