"""What an application does with the partitions that its member holds: seek, pause, resume.

Loop-bound. Each of them ends a reading or begins one, and never waits for a listener: a listener
may call them itself. The message that it is at is handled as any other; what follows comes from the
new place. All of it belongs to one hold: it ends when the partition is given up or lost.
"""

from collections.abc import Iterable
from typing import Protocol

from vq.client.config import ConsumerConfig
from vq.client.consumer.deliver.progress import Progress
from vq.client.consumer.group.hold_states import Event, State
from vq.client.consumer.group.holds import Holds, Reading
from vq.client.consumer.place import places
from vq.client.consumer.place.stops import Stops
from vq.client.consumer.reader import Reader
from vq.client.reading.positions import Position, check_position, check_where
from vq.coordination.tree.reading import gather_all
from vq.coordination.tree.values.group_terms import GroupModel
from vq.errors import InvalidState
from vq.model import TopicPartition


class Steered(Protocol):
    """A consumer, as its steering sees it."""

    config: ConsumerConfig
    holds: Holds
    reader: Reader
    stops: Stops

    def check_open(self) -> None:
        """Raise ``InvalidState`` if the consumer is closed."""
        ...

    def pause(self, reading: Reading) -> None:
        """Begin to end a reading; when it has ended, it goes on anew if it may."""
        ...

    def go_on_if_owned(self, reading: Reading) -> None:
        """Begin a new reading where it was sought, or where the old one was.

        Unless ownership is in doubt, or the application has paused it.
        """
        ...


class Steering:
    """The steering of one consumer."""

    def __init__(self, consumer: Steered) -> None:
        self._consumer = consumer

    async def seek(self, where: TopicPartition | str, position: Position) -> None:
        """See ``MessageConsumer.seek``."""
        wanted = check_position(position)
        readings = self._readings([where])
        partitions = [each.hold.partition for each in readings]
        await self._check_not_stopped(readings)
        offsets = await gather_all(
            self._consumer.reader.partition(each).place(wanted) for each in partitions
        )
        readings = self._readings(partitions)  # again: some may be given up by now
        for reading in readings:
            self._check_goes_on(reading, reading.hold.stopped)
            reading.hold.stopped = ""
        for reading, offset in zip(readings, offsets, strict=True):
            reading.hold.seek(Progress(offset))
            if reading.hold.state not in {State.PAUSING, State.PAUSED}:
                self._consumer.pause(reading)

    async def _check_not_stopped(self, readings: list[Reading]) -> None:
        reasons = await gather_all(self._consumer.stops.why(each) for each in readings)
        for reading, reason in zip(readings, reasons, strict=True):
            self._check_goes_on(reading, reason)

    def _check_goes_on(self, reading: Reading, reason: str) -> None:
        """Raise if a group is stopped there: an operator decides that for all its members.

        A broadcasting member decides for itself, by this seek.
        """
        config = self._consumer.config
        if reason and config.model is not GroupModel.BROADCASTING:
            raise places.stopped_error(config, reading.hold.partition, reason)

    def pause(self, where: Iterable[TopicPartition | str]) -> None:
        """See ``MessageConsumer.pause``."""
        for reading in self._readings(where):
            reading.hold.is_set_aside = True
            if reading.hold.state is not State.PAUSED:
                self._consumer.pause(reading)

    def resume(self, where: Iterable[TopicPartition | str]) -> None:
        """See ``MessageConsumer.resume``."""
        for reading in self._readings(where):
            reading.hold.is_set_aside = False
            if reading.hold.may(Event.RESUME):
                self._consumer.go_on_if_owned(reading)

    def paused(self) -> list[TopicPartition]:
        """See ``MessageConsumer.paused``."""
        return [each.hold.partition for each in self._held() if each.hold.is_set_aside]

    def _held(self) -> list[Reading]:
        """Return what may be steered: held, and not about to leave."""
        readings = self._consumer.holds.readings()
        return [each for each in readings if each.hold.is_owned and not each.hold.is_leaving]

    def _readings(self, where: Iterable[TopicPartition | str]) -> list[Reading]:
        """Return the readings of partitions and topics, all of them if none is named.

        Raises:
            InvalidState: This member holds no such partition now, or is of a shared group.
        """
        if self._consumer.config.model is GroupModel.SHARED:
            raise InvalidState(
                f"a member of shared group {self._consumer.config.group!r} holds messages, and no "
                "partitions that it could seek, pause or resume; close it to take no more"
            )
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
                group = self._consumer.config.group
                if not group:
                    raise InvalidState(
                        "this consumer has no group, and so holds no partitions: seek, pause and "
                        "resume are for members. Read at any offset or time with get()"
                    )
                self._consumer.check_open()
                what = f"no partition of topic {each!r}" if isinstance(each, str) else f"not {each}"
                raise InvalidState(
                    f"this member of group {group!r} holds {what} now; it holds "
                    f"{', '.join(str(one.hold.partition) for one in held) or 'none'}. Partitions "
                    "come some time after start, and move when members come and go: see assignment"
                )
            found |= {reading.hold.partition: reading for reading in those}
        return list(found.values())
