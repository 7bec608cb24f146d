"""The events of all clients in order of virtual time, and a hash over them.

An event is a plain tuple ``(time, kind, who, …)``; the kinds and what follows:

    send      producer, value, key                       taken by the producer (invoked)
    ok        producer, value, partition, offset, id     acknowledged
    refused   producer, value, error                     certainly not stored
    unknown   producer, value, error
    read      member, partition, offset, next, value     delivered to a member of the group
    seen      reader, partition, offset, next, value     read by position
    commit    member, partition, offset                  progress that ZooKeeper took
    own       member, partition, generation              a claim that ZooKeeper took
    low       member, partition, offset                  where a shared group is, in ZooKeeper
    got, says, said                                      of its members: see ``shared``
    stopped   member, partition, offset                  a group that must not go on, as told there
    reset     group, partition, offset                   progress that an operator set
    lead      node, group, epoch, nodes in sync …        an epoch that ZooKeeper took
    set       topic, replication, flush                  settings that ZooKeeper took
    loss      node, kind, group, count                   messages that may be lost (``losses``)
    asked     reader, partition, offset                  where a read by position began
    told      reader, partition, error                   a read by position failed: bytes are gone
    fault     kind, target                               what the nemesis did
    note      …                                          anything worth a line in the trace
    calm      seconds                                    so long, until now, all had to go well
    broken    …                                          a promise broken, noticed on the spot
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

Event = tuple[Any, ...]


class History:
    """The events of one run. ``tell`` is called with every event, for a trace."""

    def __init__(
        self, now: Callable[[], float], *, tell: Callable[[Event], None] | None = None
    ) -> None:
        self.events: list[Event] = []
        self._now = now
        self._tell = tell
        self._start = now()
        self._hash = hashlib.sha256()

    def add(self, kind: str, who: str, *facts: Any) -> None:
        """Note that something happened now."""
        event = (round(self._now() - self._start, 6), kind, who, *facts)
        self.events.append(event)
        self._hash.update(repr(event).encode())
        if self._tell is not None:
            self._tell(event)

    def of(self, *kinds: str) -> Iterator[Event]:
        """Yield the events of some kinds, in order."""
        return (event for event in self.events if event[1] in kinds)

    @property
    def hash(self) -> str:
        """A hash of all events so far."""
        return self._hash.hexdigest()[:16]
