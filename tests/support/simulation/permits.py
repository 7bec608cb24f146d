"""What may be lost of what was acknowledged or read: three exceptions, each with its proof.

    replication = async    the master of an epoch acknowledged it alone, and another node led later;
                           the old master, or who had copied it, has it in a file of cut bytes
    flush = async          all nodes in sync lost power after it was sent, and the one that led then
                           had not flushed it; or one of them did, and the next line came to it
    unclean election       an operator had a node lead that did not have it

Only the last two can take what somebody has read.
"""

from collections.abc import Mapping, Sequence

from support.simulation.history import Event
from support.simulation.kept import Kept
from support.simulation.losses import Loss, Place

#: A broker reads settings anew in this time, also when it hears nothing of a change.
SETTINGS_S = 15.0


class Permits:
    """Tells what may be lost, from the events, the files of cut bytes, and the losses of disks."""

    def __init__(
        self, events: Sequence[Event], kept: Mapping[Place, Sequence[Kept]], losses: Sequence[Loss]
    ) -> None:
        self._events = events
        self._kept = kept
        self._losses = losses
        self._leads = [event for event in events if event[1] == "lead"]
        self._sent = {event[3]: event[0] for event in events if event[1] == "send"}
        self._first: dict[str, float] = {}  # when something of a partition may have been lost first
        for loss in losses:
            for partition in {partition for partition, _ in loss.spots}:
                self._first.setdefault(partition, loss.at)

    def why_not(self, event: Event) -> str:
        """Return why an acknowledged message may not be lost; "": it may."""
        time, value, partition, offset = event[0], event[3], event[4], event[5]
        if self.was_taken(time, value, partition, offset):
            return ""
        if not self._was(partition, 3, "async", time):
            return "by all nodes in sync"
        kept = self._kept.get((partition, offset, event[6]), ())
        if not kept:
            return "and no node keeps it"
        for node, group, epoch in (each[2:5] for each in self._leads):
            for each in kept:
                if each.group == group and each.epoch < epoch and each.node != node:
                    return ""
        return "and nobody took over"

    def was_taken(self, time: float, value: str, partition: str, offset: int) -> bool:
        """Whether power cuts or an unclean election may have taken what counted at ``time``."""
        spot = partition, offset
        holding = [loss for loss in self._losses if spot in loss.spots]
        if any(loss.kind == "unclean" for loss in holding):
            return True
        if not self._was(partition, 4, "async", time):
            return False
        sent = self._sent.get(value, time)
        return any(self._left_without(loss, sent) for loss in holding)

    def may_have_lost(self, time: float, partition: str) -> bool:
        """Whether something of a partition may have been lost by then."""
        return self._first.get(partition, float("inf")) <= time

    def _left_without(self, loss: Loss, sent: float) -> bool:
        """Whether the node led that lost this, when all in sync had lost power since ``sent``."""
        for time, _, node, group, _, *insync in self._leads:
            if time < loss.at or (node, group) != (loss.node, loss.group):
                continue
            dark = {
                each.node
                for each in self._losses
                if each.kind == "power" and each.group == group and sent <= each.at <= time
            }
            if dark >= {*insync}:
                return True
        # Then who lost it in the dark was not even asked.
        return any(
            each.kind == "unclean" and each.group == loss.group and each.at >= loss.at
            for each in self._losses
        )

    def _was(self, partition: str, column: int, wanted: str, time: float) -> bool:
        """Whether a setting of a topic may have been so for its brokers at some time.

        A change reaches them within ``SETTINGS_S``.
        """
        topic = partition.rpartition("-")[0]
        so, since = False, 0.0
        for event in self._events:
            if event[1] == "set" and event[2] == topic:
                if event[0] > time:
                    break
                is_so = event[column : column + 1] == (wanted,)
                if is_so != so:
                    so, since = is_so, event[0]
        return so or (since > 0 and time < since + SETTINGS_S)
