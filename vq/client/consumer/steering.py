"""What an application does with the partitions that its member holds: seek, pause, resume.

Loop-bound. Each of them ends a reading or begins one, and never waits for a listener: a listener
may call them itself. The message that it is at is handled as any other; what follows comes from the
new place. All of it belongs to one hold: it ends when the partition is given up or lost.
"""

from collections.abc import Awaitable, Callable, Iterable

from vq.client.consumer import places
from vq.client.consumer.hold_states import Event, State
from vq.client.consumer.holds import Holds, Reading
from vq.client.consumer.progress import Progress
from vq.client.consumer.reader import Reader
from vq.client.reading.positions import Position, check_position, check_where
from vq.coordination.tree.reading import gather_all
from vq.errors import InvalidState
from vq.model import TopicPartition


class Steering:
    """The steering of one consumer.

    Args:
        holds: What the member has.
        reader: Asks brokers for offsets.
        group: Its name, for errors.
        why_stopped: Asks the broker whether messages were lost where a reading is now, and returns
            why the group is to be stopped there; "": it is not. The member's own question for that
            may still be open, and a seek must not end it.
        pause: Begins to end a reading; when it has ended, ``go_on`` is called if it may.
        go_on: Begins a new reading, at the place that was sought or where the old one was, unless
            ownership is in doubt.
    """

    def __init__(
        self,
        holds: Holds,
        reader: Reader,
        *,
        group: str,
        why_stopped: Callable[[Reading], Awaitable[str]],
        pause: Callable[[Reading], None],
        go_on: Callable[[Reading], None],
    ) -> None:
        self._holds = holds
        self._reader = reader
        self._group = group
        self._why_stopped = why_stopped
        self._pause = pause
        self._go_on = go_on

    async def seek(self, where: TopicPartition | str, position: Position) -> None:
        """See ``MessageConsumer.seek``."""
        wanted = check_position(position)
        readings = self._readings([where])
        partitions = [each.hold.partition for each in readings]
        reasons = await gather_all(self._why_stopped(each) for each in readings)
        for partition, reason in zip(partitions, reasons, strict=True):
            if reason:
                raise places.stopped_error(self._group, partition, reason)
        offsets = await gather_all(
            self._reader.partition(each).place(wanted) for each in partitions
        )
        readings = self._readings(partitions)  # again: some may be given up by now
        for reading in readings:
            if reading.hold.stopped:
                raise places.stopped_error(
                    self._group, reading.hold.partition, reading.hold.stopped
                )
        for reading, offset in zip(readings, offsets, strict=True):
            reading.hold.seek(Progress(offset))
            if reading.hold.state not in {State.PAUSING, State.PAUSED}:
                self._pause(reading)

    def pause(self, where: Iterable[TopicPartition | str]) -> None:
        """See ``MessageConsumer.pause``."""
        for reading in self._readings(where):
            reading.hold.is_set_aside = True
            if reading.hold.state is not State.PAUSED:
                self._pause(reading)

    def resume(self, where: Iterable[TopicPartition | str]) -> None:
        """See ``MessageConsumer.resume``."""
        for reading in self._readings(where):
            reading.hold.is_set_aside = False
            if reading.hold.may(Event.RESUME):
                self._go_on(reading)

    def paused(self) -> list[TopicPartition]:
        """See ``MessageConsumer.paused``."""
        return [each.hold.partition for each in self._held() if each.hold.is_set_aside]

    def _held(self) -> list[Reading]:
        """Return what may be steered: held, and not about to leave."""
        readings = self._holds.readings()
        return [each for each in readings if each.hold.is_owned and not each.hold.is_leaving]

    def _readings(self, where: Iterable[TopicPartition | str]) -> list[Reading]:
        """Return the readings of partitions and topics, all of them if none is named.

        Raises:
            InvalidState: This member holds no such partition now.
        """
        held = self._held()
        named = [check_where(each) for each in where]
        if not named:
            return held
        found: dict[TopicPartition, Reading] = {}
        for each in named:
            those = [
                reading
                for reading in held
                if each in (reading.hold.partition, reading.hold.partition.topic)
            ]
            if not those:
                what = f"no partition of topic {each!r}" if isinstance(each, str) else f"not {each}"
                raise InvalidState(
                    f"this member of group {self._group!r} holds {what} now; it holds "
                    f"{', '.join(str(one.hold.partition) for one in held) or 'none'}. Partitions "
                    "come some time after start, and move when members come and go: see assignment"
                )
            found |= {reading.hold.partition: reading for reading in those}
        return list(found.values())
