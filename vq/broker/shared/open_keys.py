"""Which open messages of a partition may be handled, where a group keeps the order of keys. Pure.

    open messages      5   6   7   8   9
    their keys         a   b   ?   a   -        ?: nobody has told it yet      -: it has none
    may be handled     yes yes     no  yes      8 waits for 5, which has its key, and for 7

A message waits for each open one before it that has its key, or may have it. Nobody knows a key
before a member has read its message; members tell them. This is not in the journal: the next node
that leads it knows no key, so messages wait for all before them until members have told the keys.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import Protocol


class OpenNumbers(Protocol):
    """Open messages that follow each other, from ``first`` up to, but without, ``end``."""

    first: int
    end: int


def _first_of(run: OpenNumbers) -> int:
    return run.first


class OpenKeys:
    """See the module. Keys are numbers, equal for equal keys; 0: the message has none."""

    def __init__(self) -> None:
        self._of: dict[int, int] = {}  # the keys of open messages, as far as they are told
        self._messages: dict[int, list[int]] = {}  # the open messages of each key, rising
        self._known_to = 0  # the lowest open message whose key nobody has told

    def tell(self, first: int, keys: Sequence[int], runs: Sequence[OpenNumbers]) -> None:
        """Note the keys of messages that follow each other; only open ones count.

        Args:
            first: The first of them.
            keys: Theirs.
            runs: All that is open, in order.
        """
        end = first + len(keys)
        for run in runs[max(0, bisect_right(runs, first, key=_first_of) - 1) :]:
            if run.first >= end:
                break
            for number in range(max(first, run.first), min(end, run.end)):
                key = keys[number - first]
                if self._of.get(number) == key:
                    continue
                self.done([number])  # it was cut, and another message has its number now
                self._of[number] = key
                if key:
                    insort(self._messages.setdefault(key, []), number)

    def done(self, numbers: Iterable[int]) -> None:
        """Forget messages that are done."""
        for number in numbers:
            key = self._of.pop(number, 0)
            if key:
                messages = self._messages[key]
                messages.remove(number)
                if not messages:
                    del self._messages[key]

    def look(self, runs: Sequence[OpenNumbers], cursor: int) -> None:
        """Look up to where all keys are told, before ``waits``; ``cursor``: nothing is open there.

        What is open from there on is looked at once only, however often this is called.
        """
        for run in runs[max(0, bisect_right(runs, self._known_to, key=_first_of) - 1) :]:
            for number in range(max(self._known_to, run.first), run.end):
                if number not in self._of:
                    self._known_to = number
                    return
        self._known_to = cursor

    def waits(self, number: int) -> bool:
        """Whether a message waits for others before it. One whose key is not told does not.

        Somebody has to read it first.
        """
        key = self._of.get(number, 0)
        return key != 0 and (number > self._known_to or self._messages[key][0] != number)
