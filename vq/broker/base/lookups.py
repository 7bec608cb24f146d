"""Look-ups of topics that requests wait for: which may wait, and which is next; without I/O.

A look-up waits for one read of its topic. Clients that ask for many topics must not keep the others
waiting, so some of the places are for clients that ask for few, and names are read in turn: one of
each client, then the next one of each. One read of a name answers all that wait for it, and one
read of the list of topics all that wait for names which nobody here has heard of.

Example, with three names to be read at a time:

    client   waits for      read first   then
    A        a b c d        a b          c d
    B        z              z            –
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from vq.errors import VqError

#: Look-ups that may wait. What a node lets wait at all is bounded where it comes in, but those
#: whose connection has ended are not counted there any more. Each is a dozen objects, and each full
#: pass of the garbage collector looks at all of them while the loop stands still: 16 384 take it
#: 0.03 s. One read answers for thousands, so they need not wait for long.
WAITING_MAX: Final = 16_384
#: Of these, look-ups of one client.
WAITING_PER_ASKER_MAX: Final = 4_096
#: A client with fewer look-ups than this asks for few ...
FEW: Final = 4
#: ... and so many places are for such clients alone.
KEPT: Final = WAITING_MAX // 4
#: Names that one read of the list of topics answers for: walking through more takes too long.
UNKNOWN_AT_ONCE_MAX: Final = 4_096

#: Called after the read, with an error if that failed.
Then = Callable[[VqError | None], None]


class Lookup(NamedTuple):
    """A request that waits for a read of a topic."""

    asker: Hashable
    then: Then


class Taken(NamedTuple):
    """What is to be read next.

    Attributes:
        names: Topics to read.
        lists: The list of topics is to be read, too.
        lookups: What waits for that.
    """

    names: list[str]
    lists: bool
    lookups: list[Lookup]


class Lookups:
    """The look-ups of a node that wait or are being read.

    Invariant: a name in one of ``_lines`` that is not in ``_by_name`` was taken in the turn of
    another asker.

    Attributes:
        per_asker_max: How many one asker may have at a time.
        counts: How many each has.
    """

    def __init__(
        self,
        *,
        waiting_max: int = WAITING_MAX,
        per_asker_max: int = WAITING_PER_ASKER_MAX,
        kept: int = KEPT,
        few: int = FEW,
    ) -> None:
        self._waiting_max = waiting_max
        self.per_asker_max = per_asker_max
        self._kept = kept
        self._few = few
        self._by_name: dict[str, list[Lookup]] = {}
        self._lines: OrderedDict[Hashable, deque[str]] = OrderedDict()  # the next asker comes first
        self.counts: Counter[Hashable] = Counter()  # also those that are read just now
        self._waiting = 0

    def __len__(self) -> int:
        """How many wait; those that are read just now are not counted."""
        return self._waiting

    def why_not(self, asker: Hashable) -> str:
        """Return why another look-up of ``asker`` may not wait, "" if it may."""
        count = self.counts[asker]
        if count >= self.per_asker_max:
            return (
                f"{count} look-ups of this connection wait for a read of ZooKeeper; at most "
                f"{self.per_asker_max} may"
            )
        most = self._waiting_max if count < self._few else self._waiting_max - self._kept
        if self._waiting >= most:
            return f"{self._waiting} look-ups wait for a read of ZooKeeper; at most {most} may"
        return ""

    def add(self, name: str, asker: Hashable, then: Then) -> None:
        """Have ``then`` called after a later read of ``name``; ask ``why_not`` first."""
        waiting = self._by_name.setdefault(name, [])
        waiting.append(Lookup(asker, then))
        self._lines.setdefault(asker, deque()).append(name)
        self.counts[asker] += 1
        self._waiting += 1

    def take(
        self,
        names_max: int,
        is_known: Callable[[str], bool] = lambda _: True,
        unknown_max: int = UNKNOWN_AT_ONCE_MAX,
    ) -> Taken:
        """Return what is to be read next, and all look-ups that this answers.

        Args:
            names_max: How many names that are known may be read.
            is_known: Whether a name is that of a topic known here.
            unknown_max: How many other names the list of topics may answer for.
        """
        names: list[str] = []
        taken: list[Lookup] = []
        unknown = 0
        while self._lines and len(names) < names_max and unknown < unknown_max:
            asker, line = self._lines.popitem(last=False)
            found = self._first_waiting(line)
            if found is not None:
                taken += self._by_name.pop(found)
                if is_known(found):
                    names.append(found)
                else:
                    unknown += 1
            if line:
                self._lines[asker] = line
        self._waiting -= len(taken)
        return Taken(names, unknown > 0, taken)

    def take_all(self) -> list[Lookup]:
        """Return all look-ups that wait: ZooKeeper cannot be read."""
        taken = [each for waiting in self._by_name.values() for each in waiting]
        self._by_name.clear()
        self._lines.clear()
        self._waiting = 0
        return taken

    def done(self, lookup: Lookup) -> None:
        """Count a look-up that was taken no more."""
        self.counts[lookup.asker] -= 1
        if not self.counts[lookup.asker]:
            del self.counts[lookup.asker]

    def _first_waiting(self, line: deque[str]) -> str | None:
        """Take the names off the line up to the first one that still waits; return that one."""
        while line:
            name = line.popleft()
            if name in self._by_name:
                return name
        return None
